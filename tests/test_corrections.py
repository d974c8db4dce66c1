"""Items 10 and 14 to 37 of docs/methods/corrections.md: what is printed fails on an example, what replaces it does not.

A bound that is repaired is also tried on random problems. Everything is computed here, in NumPy, from the paper's
formulas; the names of the tests begin with the number of the item.
"""

import importlib.util
import itertools
import re
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

TRIALS = 300


def positive(values):
    return np.maximum(values, 0.0)


def augmented(h, z, gamma1):
    """The augmented term with the -gamma1^2 z^2 of item 1."""
    return np.sum(positive(gamma1 * z + h) ** 2 - (gamma1 * z) ** 2, axis=-1) / (2 * gamma1)


def envelope(lower, rows, ys, z, gamma1, gamma2):
    """E at one x by a search over the points ys of Y, after item 13; `lower` and `rows` are functions of y."""
    joint = gamma1 * gamma2 / (gamma1 + gamma2)
    return np.min(lower(ys) + augmented(rows(ys), z, joint))


class Quadratic(NamedTuple):
    """G and p rows, quadratic in u = (x, y); the sets are the box [-1, 1], on which the constants below hold."""

    n: int  # size of x
    lower: np.ndarray
    slope: np.ndarray
    rows: np.ndarray
    row_slopes: np.ndarray
    shifts: np.ndarray

    @staticmethod
    def random(rng):
        n, m, p = rng.integers(1, 4, 3)
        size, scale = n + m, 10 ** rng.uniform(-1.5, 1.5, 3)
        square = rng.normal(size=(size, size))
        shapes = rng.normal(size=(p, size, size))
        return Quadratic(
            n,
            scale[0] * square @ square.T,
            scale[0] * rng.normal(size=size),
            scale[1] * np.einsum("pij,pkj->pik", shapes, shapes) * rng.integers(0, 2),
            scale[2] * rng.normal(size=(p, size)),
            scale[2] * rng.normal(size=p),
        )

    def h(self, u):
        return 0.5 * np.einsum("pij,i,j->p", self.rows, u, u) + self.row_slopes @ u + self.shifts

    def jacobian(self, u):
        return self.rows @ u + self.row_slopes

    def gradient(self, u):
        return self.lower @ u + self.slope

    def of_l(self, u, z, gamma1):
        """grad_u of the augmented Lagrangian, (A.4)."""
        return self.gradient(u) + positive(gamma1 * z + self.h(u)) @ self.jacobian(u) / gamma1

    def saddle_gradient(self, u, lam, z, gamma1, gamma2):
        """grad of ell in x, and in z."""
        return np.concatenate([self.of_l(u, lam, gamma1)[: self.n], gamma2 * (lam - z)])

    def constants(self):
        """L_G, L_H, M_G1, M_H0, M_H1, p; of the box, from above."""
        radius = np.sqrt(len(self.slope))
        norms = np.linalg.norm(self.rows, 2, axis=(1, 2))
        slopes = np.linalg.norm(self.row_slopes, axis=1)
        lipschitz = np.linalg.norm(self.lower, 2)
        return (
            lipschitz,
            np.max(norms),
            np.linalg.norm(self.slope) + lipschitz * radius,
            np.max(np.abs(self.shifts) + slopes * radius + norms * radius**2 / 2),
            np.max(slopes + norms * radius),
            len(self.shifts),
        )


def trials():
    """Random problems with two points of the box that share x, multipliers of any size and the two gammas."""
    rng = np.random.default_rng(0)
    for _ in range(TRIALS):
        problem = Quadratic.random(rng)
        size, p = len(problem.slope), len(problem.shifts)
        u, v = rng.uniform(-1, 1, (2, size))
        v = np.where(np.arange(size) < problem.n, u, u + rng.choice([0.01, 1.0]) * (v - u))
        z, lam, mu = 10 ** rng.uniform(-2, 1) * positive(rng.normal(size=(3, p)))
        yield problem, u, v, z, lam, lam + rng.choice([0.01, 1.0]) * (mu - lam), *10 ** rng.uniform(-2, 2, 2)


@pytest.mark.parametrize(("own", "stable"), [(3.0, True), (0.1, False)])
def test_10_the_printed_schedule_is_unstable_where_the_frozen_hessian_is_indefinite(own, stable):
    """F = own (x^2 + y^2)/2, G = y^2/2 - x y, no row, c1 = 2: w* = x; no noise, exact inner loop."""
    c1 = 2.0
    frozen = np.array([[own, -c1], [-c1, own + c1]])  # with w held, E is linear in x
    hessian = frozen + np.diag([c1, 0.0])  # E = -x^2/2
    assert np.linalg.eigvalsh(hessian)[0] > 0
    assert bool(np.linalg.eigvalsh(frozen)[0] >= 0) is stable
    before = u = np.ones(2)
    alpha, norms = 0.45 / np.linalg.norm(hessian, 2), []
    for k in range(30_000):
        shift = np.array([c1 * u[0], 0.0])  # of grad Psi at w* = x_k
        fresh, stale = frozen @ u + shift, frozen @ before + shift
        beta = (k or 1) ** (-2 / 3)
        d = fresh + (1 - beta) * (d - stale) if k else fresh
        before, u = u, u - alpha * (k + 1) ** (-1 / 3) * d
        norms.append(np.linalg.norm(u))
        if norms[-1] > 1e6:
            break
    assert (norms[-1] < 1e-3) if stable else (norms[-1] > 1e6)


def test_14_the_appendix_counts_g_twice_and_the_augmented_term_twice():
    """(A.2) and (A.3) at a feasible point with z = 0, where L is G; and the slope in H of an active row, which is z."""
    g, gamma = 3.0, 0.5

    def printed(h, z):
        term = g + (positive(gamma * z + h) ** 2 - (gamma * z) ** 2) / gamma
        return g + term

    assert printed(-1.0, 0.0) == 2 * g and g + augmented(np.array([-1.0]), np.zeros(1), gamma) == g
    slope = (printed(1e-6, 2.0) - printed(0.0, 2.0)) / 1e-6
    right = (augmented(np.array([1e-6]), np.array([2.0]), gamma) - 0.0) / 1e-6
    np.testing.assert_allclose([slope, right], [4.0, 2.0], rtol=1e-5)


def moreau(phi, z, gamma, points):
    return np.min(phi(points) + gamma / 2 * (points - z) ** 2)


def test_15_the_envelope_tends_to_the_function_as_gamma_grows():
    points = np.linspace(-3, 3, 600_001)
    small, large = (moreau(np.abs, 1.0, gamma, points) for gamma in (1e-3, 1e3))
    assert 1.0 - small > 0.9  # gamma -> 0: the least value of phi
    np.testing.assert_allclose(1.0 - large, 1 / (2 * 1e3), rtol=1e-3)  # l^2/(2 gamma), attained
    rng = np.random.default_rng(1)
    for _ in range(20):
        knots, slopes = rng.uniform(-2, 2, 4), rng.uniform(-1, 1, 4)

        def phi(t, knots=knots, slopes=slopes):
            return np.sum(slopes * np.abs(t[..., None] - knots), axis=-1)

        lipschitz, gamma, z = np.sum(np.abs(slopes)), 10 ** rng.uniform(-0.5, 2), rng.uniform(-1, 1)
        below = phi(np.array(z)) - moreau(phi, z, gamma, np.linspace(-12, 12, 48_001))
        assert -1e-3 * lipschitz <= below <= lipschitz**2 / (2 * gamma)


def test_16_a_face_of_y_makes_the_multiplier_as_large_as_it_likes():
    """G = |y - (0, 1)|^2/2 on [0, 1]^2 with y1 + t (y2 - 1/2) <= 0: y* = (0, 1/2) and lam* = 1/(2 t), the only one."""
    for t in (1e-1, 1e-2, 1e-3):
        y, row, face = np.array([0.0, 0.5]), np.array([1.0, t]), np.array([-1.0, 0.0])
        gradient = y - np.array([0.0, 1.0])
        lam, at_face = np.linalg.solve(np.stack([row, face], axis=1), -gradient)
        assert lam == pytest.approx(0.5 / t) and at_face > 0  # KKT, and the level is convex: y is y*
        sigma_0, largest = np.linalg.norm(row), np.sqrt(2.0)
        printed = sigma_0**-2 * np.linalg.norm(row) * (largest + np.linalg.norm(row))
        assert lam > printed
        both = np.linalg.svd(np.stack([row, face]), compute_uv=False)[-1]
        assert lam <= largest / both
    assert 2 * printed < 0.5 / 0.1


def test_17_every_z_maximises_l_at_an_active_row_and_one_makes_e_equal_v():
    """The toy at x = y = 1, where lam* = 2 and v = 1."""
    ys = np.linspace(0, 3, 300_001)[:, None]

    def lower(y):
        return (y[..., 0] - 2.0) ** 2

    def rows(y):
        return y - 1.0

    zs = np.array([0.0, 1.0, 2.0, 7.0])
    at_y = [lower(np.ones(1)) + augmented(np.zeros(1), np.array([z]), 1.0) for z in zs]
    np.testing.assert_array_equal(at_y, 1.0)  # each is in the printed argmax
    values = [envelope(lower, rows, ys, np.array([z]), 1.0, 1.0) for z in zs]
    np.testing.assert_allclose(values, [1 / 2, 7 / 8, 1, -2], atol=1e-9)
    dual = [np.min(lower(ys) + augmented(rows(ys), np.array([z]), 1.0)) for z in zs]
    assert np.argmax(dual) == 2


@pytest.mark.parametrize("theorem", ["A.1, A.3", "A.2", "3.2, A.4"])
def test_18_c1_needs_the_square_of_the_slope_of_f(theorem):
    """F = -M y, G = mu y^2/2, no row: the least F + c1 (G - v) is -M^2/(2 c1 mu), so (x*, y*) is worse by that."""
    slope, mu, eps = 10.0, 2.0, 0.1
    factor = {"A.1, A.3": 1.0, "A.2": 1 / 2, "3.2, A.4": 2 / 3}[theorem]
    ys = np.linspace(-5, 5, 1_000_001)

    def excess(c1):
        return -np.min(-slope * ys + c1 * mu / 2 * ys**2)

    assert excess(factor * slope / (mu * eps)) > 4.9 * eps
    if theorem != "A.1, A.3":  # with the square alone the three terms of the proof add up to more than eps
        least = {"A.2": 1 / (2 * factor) + 1 / 2, "3.2, A.4": 1 / (2 * factor) + 1 / 3 + 1 / 3}[theorem]
        assert least > 1
    assert excess(1.5 * slope**2 / (mu * eps)) <= eps / 3 * (1 + 1e-6)


@pytest.mark.parametrize("parts", [2, 3], ids=["A.2 and 3.1", "A.4 and 3.2"])
def test_18_the_weights_put_right_make_the_solution_eps_minimal(parts):
    """Levels min mu (y - a x)^2/2, y <= x (so lam* = mu (a - 1) x), F of sines; with delta = 0, 2/3 of eps are left."""
    rng = np.random.default_rng(12)
    xs, ys = np.linspace(0, 1, 201)[:, None], np.linspace(-0.5, 1.5, 2001)[None]
    for _ in range(20):
        mu, a, eps = rng.uniform(0.5, 2), rng.uniform(1.1, 2), 10 ** rng.uniform(-2, 0)
        slopes, waves, turns = rng.normal(size=3), rng.uniform(1, 6, 3), rng.uniform(0, 6, 3)

        def f(x, y, slopes=slopes, waves=waves, turns=turns):
            return sum(s * np.sin(v * y + u * x) for s, v, u in zip(slopes, waves, turns, strict=True))

        slope, bound = np.sum(np.abs(slopes * waves)), mu * (a - 1)
        c1 = parts * slope**2 / (2 * mu * eps)
        c2 = parts / 2 * c1**2 * bound**2 / eps
        value = mu / 2 * (xs - a * xs) ** 2
        psi = f(xs, ys) + c1 * (mu / 2 * (ys - a * xs) ** 2 - value) + c2 / 2 * positive(ys - xs) ** 2
        assert np.min(psi) >= np.min(f(xs, xs)) - 2 / parts * eps


def test_19_the_violation_that_the_weights_leave():
    """h = |[H]_+| <= (c1 B + sqrt(c1^2 B^2 + 2 c2 e))/c2 with e = eps + M^2/(2 c1 mu), at eps-minimisers of Psi."""
    rng = np.random.default_rng(2)
    ys = np.linspace(-3, 3, 20_001)
    for _ in range(TRIALS):
        mu, aim, slope, eps = rng.uniform(0.5, 3), rng.uniform(0.1, 2), rng.normal(), 10 ** rng.uniform(-3, 0)
        bound = mu * aim  # lam* of min mu/2 (y - aim)^2, y <= 0
        c1 = rng.uniform(0.5, 5) / eps
        c2 = rng.uniform(0.2, 3) * c1**2 * bound**2 / eps
        h = positive(ys)
        psi = slope * ys + c1 * (mu / 2 * (ys - aim) ** 2 - mu / 2 * aim**2) + c2 / 2 * h**2
        error = eps + slope**2 / (2 * c1 * mu)
        far = np.max(h[psi <= 0.0 + eps], initial=0.0)  # F(x*, y*) = 0
        assert far <= (c1 * bound + np.sqrt((c1 * bound) ** 2 + 2 * c2 * error)) / c2
    # The proof's p + h^2/2 <= eps alone leaves h of the size of B: outside the feasible set p is negative.
    p = 0.1 / 2 * (ys - 10.0) ** 2 - 0.1 / 2 * 10.0**2  # B = 1
    assert np.max(h[p + h**2 / 2 <= 1e-6]) > 1.5


def test_20_delta_goes_with_the_square_of_eps():
    """delta = eps/(6 c1) with c1 of Theorem 3.2; the remarks print eps^-2, which would allow any error."""
    eps = np.array([1e-2, 1e-3])
    delta = eps / (6 * (1.5 / eps + 2))
    np.testing.assert_allclose(np.log(delta[0] / delta[1]) / np.log(10), 2.0, atol=0.01)
    assert np.all(delta < eps) and np.all(eps**-2.0 > 1)


def test_21_the_gradient_of_l():
    def bound(problem, z, gamma1, slope):
        _, _, gradient, value, row, p = problem.constants()
        return gradient + p * value * row / gamma1 + slope(p, row) * np.linalg.norm(z)

    for problem, u, _, z, _, _, gamma1, _ in trials():
        assert np.linalg.norm(problem.of_l(u, z, gamma1)) <= bound(problem, z, gamma1, lambda p, row: p**0.5 * row)
    # G = u, H = 10 (u - 1) near u = 1, z = 1, gamma1 = 10: M_G1 = 1, M_H0 = .1 and M_H1 = 10 for |u - 1| <= .01.
    seen = 1.0 + 10.0 * positive(10.0 * 1.0 + 0.1) / 10.0
    assert seen > 5 * (1.0 + (0.1 * 10.0 / 10.0 + 1.0))
    assert seen <= 1.0 + 0.1 * 10.0 / 10.0 + 10.0


def test_22_its_second_moment():
    def right(problem, z, gamma1, noise):
        _, _, gradient, value, row, p = problem.constants()
        first = gradient**2 + noise + (p * value * row / gamma1) ** 2
        return (2 + p) * (first + row**2 * np.sum(z**2))

    rng = np.random.default_rng(3)
    for problem, u, _, z, _, _, gamma1, _ in trials():
        noise = rng.normal() * rng.normal(size=(2, len(u)))  # two samples, +- the same
        moment = np.mean([np.sum((problem.of_l(u, z, gamma1) + sign * noise[0]) ** 2) for sign in (1, -1)])
        assert moment <= right(problem, z, gamma1, np.sum(noise[0] ** 2))
    # G = 0, H = 10 (u - 1) for |u - 1| <= .001, z = 1/2, gamma1 = 10: M_H0 = .01, M_H1 = 10.
    seen = (10.0 * positive(10.0 * 0.5 + 0.01) / 10.0) ** 2
    printed = 3 * (0.01 / 10.0**2) + 3 * 0.01**2 * 10.0**2 * 0.5**2
    assert seen > 100 * printed


def test_23_the_second_moment_of_the_augmented_term_is_smaller_at_feasible_points_only():
    gamma1, slope = 0.5, 2.0

    def moments(lam, h):
        return np.mean((positive(gamma1 * lam + h) / gamma1 * slope) ** 2), np.mean((lam * slope) ** 2)

    rng = np.random.default_rng(4)
    lam = positive(rng.normal(size=1000))
    inside, outside = -positive(rng.normal(size=1000)), np.full(1000, 0.1)
    assert np.less_equal(*moments(lam, inside))
    assert np.greater(*moments(lam, outside))
    both = moments(lam, outside)[1], np.mean((positive(outside) / gamma1 * slope) ** 2)
    assert moments(lam, outside)[0] <= 2 * sum(both)
    # A second moment is no variance: with lam = 1 throughout the Lagrangian's term does not vary at all.
    terms = positive(gamma1 * np.ones(1000) + np.where(np.arange(1000) % 2, 0.0, -0.25)) / gamma1 * slope
    assert np.var(terms) > 0.2 and np.var(np.ones(1000) * slope) == 0


def dual_gradient(h, lam, z, gamma1, gamma2):
    return np.maximum(-gamma1 * lam, h) - gamma2 * (lam - z)


def test_23_proposition_a_3_holds():
    rng = np.random.default_rng(14)
    for _ in range(TRIALS):
        h, z, gamma = -positive(rng.normal(size=3)), positive(rng.normal(size=3)), 10 ** rng.uniform(-2, 2)
        assert z @ h <= augmented(h, z, gamma) + 1e-12 <= 2e-12


def test_24_the_dual_gradient():
    for problem, u, _, z, lam, _, gamma1, gamma2 in trials():
        value, p = problem.constants()[3], len(z)
        seen = np.sum(dual_gradient(problem.h(u), lam, z, gamma1, gamma2) ** 2)
        right = (gamma1 + gamma2) ** 2 * np.sum(lam**2) + 2 * gamma2**2 * np.sum(z**2) + 2 * p * value**2
        assert seen <= right
    seen = dual_gradient(0.0, 0.0, 1.0, 1.0, 10.0) ** 2  # gamma2 = 10, z = 1, nothing else
    assert seen > 2 * (4 * 10.0)


def test_24_the_inner_loop_with_the_constants_put_right():
    """phi_1 (1 + log s)/s bounds E|w_s - w*|^2 in one dimension, with the two samples of xi taken in turn at random."""
    rng = np.random.default_rng(5)
    for _ in range(20):
        mu, aim, slope, sigma = rng.uniform(0.5, 2), rng.uniform(0, 2), rng.uniform(0.2, 2), rng.uniform(0, 1)
        gamma1, gamma2 = 10 ** rng.uniform(-1, 0.5, 2)
        z = rng.uniform(0, 1)  # G = mu/2 (w - aim)^2, H = slope (w - 1/2), Y = [0, 1]
        eta, rho, s = 1 / mu, 1 / gamma2, 200
        joint = gamma1 * gamma2 / (gamma1 + gamma2)
        ws = np.linspace(0, 1, 100_001)
        best = ws[np.argmin(mu / 2 * (ws - aim) ** 2 + augmented(slope * (ws - 0.5)[:, None], z, joint))]
        w, lam = rng.uniform(0, 1) * np.ones(200), np.zeros(200)
        for j in range(s):
            h, noise = slope * (w - 0.5), sigma * rng.choice([-1, 1], 200)
            step = mu * (w - aim) + noise + positive(gamma1 * lam + h) / gamma1 * slope
            up = dual_gradient(h, lam, z, gamma1, gamma2)
            w, lam = np.clip(w - eta / (j + 1) * step, 0, 1), positive(lam + rho / (j + 1) * up)
        gradient, value = mu * max(aim, abs(1 - aim)), slope / 2
        largest = 2 * rho**2 * (gamma2**2 * z**2 + value**2)  # M_lam, Lemma B.2
        assert np.all(lam**2 <= largest)
        primal = 3 * (gradient**2 + sigma**2 + (value * slope / gamma1) ** 2 + slope**2 * largest)
        dual = 2 * gamma2**2 * z**2 + 2 * value**2 + (gamma1 + gamma2) ** 2 * largest
        assert np.mean((w - best) ** 2) <= eta * (eta * primal + rho * dual) * (1 + np.log(s)) / s


def test_25_the_inner_loop_needs_eta_of_at_least_one_over_mu():
    """Theorem 3.3 names no eta: with .1/mu the error of min mu w^2/2 falls like s^-.2, without any noise."""
    s = np.array([10**3, 10**6])
    slow, right = (
        [np.prod(1 - factor / np.arange(1.0, n + 1)[int(factor) :]) ** 2 for n in s] for factor in (0.1, 1.0)
    )
    assert np.log(slow[0] / slow[1]) / np.log(1e3) == pytest.approx(0.2, abs=1e-3)
    assert right[1] <= right[0] / 1e3


def test_26_a_multiplier_of_the_solution_is_not_the_best_one_elsewhere():
    """The toy at x = 1, z = 0, gammas 1: (w*, lam*) = (4/3, 1/3) and ell(w, lam*) >= ell(w, lam) fails at (2, 1)."""

    def ell(w, lam):
        return (w - 2.0) ** 2 + augmented(np.array([w - 1.0]), np.array([lam]), 1.0) - 0.5 * lam**2

    ws, lams = np.linspace(0, 3, 3001), np.linspace(0, 3, 3001)
    w = ws[np.argmin([(v - 2.0) ** 2 + augmented(np.array([v - 1.0]), np.zeros(1), 0.5) for v in ws])]
    lam = lams[np.argmax([ell(w, m) for m in lams])]
    assert ell(2.0, lam) < ell(2.0, 1.0)
    # What is right: along the average of the iterates the first-order terms are at most the gap, which sums.
    rng = np.random.default_rng(6)
    for v, m in rng.uniform(0, 3, (TRIALS, 2)):
        gap = ell(v, lam) - ell(w, m)
        size = max(2 + 1.0, 2.0)  # of the second derivatives: gamma's 1, G's 2, one row of slope 1
        assert gap >= -1e-5
        assert abs(ell(v, m) - ell(w, lam)) <= gap + size * ((v - w) ** 2 + (m - lam) ** 2) + 1e-5


def test_27_the_slope_of_the_gap_and_1_over_gamma1():
    """Norms of grad ell in (x, z) at any lam with |lam - z| <= sqrt(p) M_H0/gamma2, as at the solution."""
    for problem, u, v, z, _, _, gamma1, gamma2 in trials():
        _, _, gradient, value, row, p = problem.constants()
        move = np.linspace(-1, 1, p) if p > 1 else np.ones(1)
        lam = positive(z + value / gamma2 * move)
        parts = [problem.saddle_gradient(v, lam, z, gamma1, gamma2), problem.gradient(u)]
        largest = np.linalg.norm(z) + p**0.5 * value / gamma2
        right = 3 * gradient + p**0.5 * row * largest + p * value * row / gamma1 + p**0.5 * value
        assert sum(np.linalg.norm(part) for part in parts) <= right * (1 + 1e-12)
    # Item 16's level with H = x + y1 + t (y2 - 1/2), at x = 0 and z = 0: w* = (0, w2), the multiplier is (1 - w2)/t.
    t, gamma1, gamma2 = 1e-3, 1e-8, 1.0
    joint = gamma1 * gamma2 / (gamma1 + gamma2)
    w2 = (1 + t**2 / (2 * joint)) / (1 + t**2 / joint)  # of (1 - w2)^2/2 + t^2 (w2 - 1/2)^2/(2 joint)
    seen = t * (w2 - 0.5) / joint  # |grad_x ell|, and grad_x G = 0
    gradient, value, row = 2**0.5, 1 + t / 2, (2 + t**2) ** 0.5  # X = [-1, 0], Y = [0, 1]^2
    bound = row * (gradient + row)  # B with sigma_0 >= 1
    printed = 3 * gradient + row * (bound + value / gamma2) + value * row + value
    assert seen > 30 * printed
    assert seen <= printed + value * row / gamma1


def test_28_the_bias_of_the_gap_s_gradient():
    for problem, u, v, z, lam, other, gamma1, gamma2 in trials():
        smooth, rows, _, value, row, p = problem.constants()
        error = problem.saddle_gradient(u, lam, z, gamma1, gamma2) - problem.saddle_gradient(
            v, other, z, gamma1, gamma2
        )
        a, b = bias_constants(smooth, rows, value, row, p, gamma1, gamma2, other)
        right = a * np.linalg.norm(lam - other) + b * np.linalg.norm(u - v)
        assert np.linalg.norm(error) <= right * (1 + 1e-12)
    # The z-part alone: gamma2 = 10, lam off by .01, no x in the level, |grad H| = .05.
    off, gamma2 = 0.01, 10.0
    assert gamma2 * off > 5 * (gamma2 / 2 * off**2 + (0.05 + 1) * off)


def bias_constants(smooth, rows, value, row, p, gamma1, gamma2, lam):
    """a and b of item 28: the bias is at most a |lam - lam*| + b |w - w*|."""
    curved = (p**0.5 * np.linalg.norm(lam) + p * value / gamma1) * rows
    return p**0.5 * row + gamma2, smooth + p * row**2 / gamma1 + curved


def test_29_the_variance_that_comes_from_the_inner_loop():
    rng = np.random.default_rng(7)
    for problem, u, v, z, lam, other, gamma1, gamma2 in trials():
        smooth, rows, _, value, row, p = problem.constants()
        signs = rng.uniform(-1, 1, (6, 2))  # six outcomes of the inner loop around (w*, lam*) = (v, other)
        points = [v + s * (u - v) for s in signs[:, 0]]
        lams = [positive(other + s * (lam - other)) for s in signs[:, 1]]
        seen = [problem.saddle_gradient(w, m, z, gamma1, gamma2) for w, m in zip(points, lams, strict=True)]
        a, b = bias_constants(smooth, rows, value, row, p, gamma1, gamma2, other)
        far = np.mean([np.sum((m - other) ** 2) for m in lams]), np.mean([np.sum((w - v) ** 2) for w in points])
        assert np.sum(np.var(seen, axis=0)) <= 2 * (a**2 * far[0] + b**2 * far[1]) * (1 + 1e-12)
    # L_H = 0, w exact and lam = 1 +- .1: the printed bound sees gamma2 Var(lam) only, the x-part has 10^2 Var(lam).
    lams, slope, gamma2 = np.array([0.9, 1.1]), 10.0, 0.1
    seen = np.var(lams * slope) + np.var(gamma2 * lams)
    assert seen > 100 * gamma2**2 * np.mean((lams - 1.0) ** 2)


def test_29_four_sigma_squared_is_attained():
    """g with noise xi x cos(y): at y = 0 and w = pi both gradients in x have variance 1, with opposite signs."""
    xi, q, x = np.array([-1.0, 1.0]), 1, 0.5
    y, w = 0.0, np.pi
    gradient = np.stack([xi * np.cos(y) - xi * np.cos(w), -xi * x * np.sin(y)])
    variance = np.sum(np.var(gradient, axis=1))
    assert variance == pytest.approx(4.0 / q) and variance > 2.0 / q


def test_30_the_batch_divides_once():
    """Exact inner solution and r large: E|b|^2 is c1^2 times the variance over q, the bound has q twice."""
    c1, q, sigma = 3.0, 100, 1.0
    rng = np.random.default_rng(8)
    noise = sigma * rng.choice([-1.0, 1.0], (4000, q))  # grad_x g(x, y; xi) - grad_x g(x, w; xi) = 2 xi, as in item 29
    seen = np.mean((c1 * 2 * noise.mean(axis=1)) ** 2)
    variance = 4 * sigma**2 / q
    assert seen > 10 * 2 * c1**2 * variance / q
    assert seen == pytest.approx(c1**2 * variance, rel=0.1)


def descent(c, start, alpha, steps):
    """Iterates of gradient descent on c u^2/2."""
    return start * (1 - alpha * c) ** np.arange(steps + 1)


def test_31_the_left_side_of_theorem_3_4_lacks_one_over_alpha():
    """c u^2/2 from u = 1: what is printed stays of order 1 where the squared gradient is of order c."""
    for c in (1e2, 1e4):
        u = descent(c, 1.0, 1 / (4 * c), 1)
        moved = np.diff(u) ** 2
        printed, right = np.mean(moved * 4 * c), np.mean(moved * (4 * c) ** 2)
        assert right == pytest.approx((c * u[0]) ** 2) and printed / right == pytest.approx(1 / (4 * c))


def test_32_r_is_drawn_from_the_steps_that_were_made():
    """Psi = -c u on [0, 1] from 1 - 1/c: one step ends it, but dist(u^0)^2/K = c eps is not of order eps."""
    eps = 0.1
    for c in (1e3, 1e5):
        steps, alpha, u = int(c / eps), 1 / c, 1 - 1 / c
        distances = []  # of u^0, u^1 to stationarity; the others are those of u^1
        for _ in range(2):
            distances.append(0.0 if u == 1 else c)
            u = min(1.0, u + alpha * c)
        bound = 18 * 1.0 / (alpha * steps)
        assert distances[0] ** 2 / steps > 5 * bound  # R in {0, ..., K-1}, (2.13)
        assert distances[1] == 0  # R in {1, ..., K}, Corollary C.2


def test_32_theorems_c_1_and_c_2_hold_along_every_path():
    """(C.22) and what follows (C.25), for quadratics over a box and directions with any error b, alpha = 1/(2 L)."""
    rng = np.random.default_rng(13)
    for _ in range(20):
        n, steps = rng.integers(1, 4), 40
        root = rng.normal(size=(n, n))
        hessian, slope = root + root.T, rng.normal(size=n)
        smooth = np.linalg.norm(hessian, 2)
        alpha, u = 1 / (2 * smooth), rng.uniform(-1, 1, n)
        psi, moved, errors, distances = [], 0.0, 0.0, 0.0
        for _ in range(steps):
            psi.append(0.5 * u @ hessian @ u + slope @ u)
            b = rng.normal(size=n) * rng.choice([0.0, 0.1, 1.0])
            before, u = u, np.clip(u - alpha * (hessian @ u + slope + b), -1, 1)
            gradient = hessian @ u + slope  # the distance to -gradient in the normal cone of the box
            free = np.where(u >= 1, positive(gradient), np.where(u <= -1, -positive(-gradient), gradient))
            moved, errors = moved + np.sum((u - before) ** 2) / alpha, errors + alpha * b @ b
            distances += alpha * free @ free
        decrease = psi[0] - (0.5 * u @ hessian @ u + slope @ u)
        assert moved <= 4 * decrease + 2 * errors + 1e-12
        assert distances <= 18 * decrease + 11 * errors + 1e-12


def test_33_k_of_order_c_over_eps_needs_a_start_with_psi_of_order_one():
    eps = 0.1
    means = []
    for c in (1e2, 1e4):
        steps, alpha = int(c / eps), 1 / (4 * c)
        for start in (1.0, c**-0.5):  # Psi(u^0) = c/2, and 1/2
            u = descent(c, start, alpha, steps)
            means.append(np.mean((np.diff(u) / alpha) ** 2))
    infeasible, near = means[::2], means[1::2]
    assert max(near) <= 4 * 0.5 * 4 * eps and infeasible[1] > 50 * infeasible[0]


class Recursion(NamedTuple):
    """Psi = F + c1 (G(x, y) - E(x, z)), quadratic, with two outcomes each of zeta, of xi and of the inner loop.

    v = (x, y, z); ell = (x, z, w, lam)' m (x, z, w, lam)/2 with one row, active throughout.
    """

    sizes: tuple[int, int]
    upper: np.ndarray  # Hessian of F, and of each f(.; zeta)
    uppers: np.ndarray
    lower: np.ndarray
    lowers: np.ndarray
    saddle: np.ndarray
    c1: float

    @staticmethod
    def random(rng):
        n, m = rng.integers(1, 3, 2)
        root = rng.normal(size=(n + m, n + m))
        lower = root @ root.T + 0.5 * np.eye(n + m)
        row, gamma1, gamma2 = rng.normal(size=n + m), *10 ** rng.uniform(-1, 1, 2)
        saddle = np.zeros((n + m + 2, n + m + 2))  # order x, z, w, lam
        xw = np.r_[0:n, n + 1 : n + 1 + m]
        saddle[np.ix_(xw, xw)] = lower + np.outer(row, row) / gamma1
        saddle[xw, -1] = saddle[-1, xw] = row
        saddle[n, n] = saddle[-1, -1] = -gamma2
        saddle[n, -1] = saddle[-1, n] = gamma2
        noise = rng.normal(size=(2, n + m, n + m)) * 10 ** rng.uniform(-2, 1, 2)[:, None, None]
        noise += np.swapaxes(noise, 1, 2)
        upper = root + root.T
        pair = np.array([1.0, -1.0])[:, None, None]
        return Recursion(
            (n, m), upper, upper + pair * noise[0], lower, lower + pair * noise[1], saddle, 10 ** rng.uniform(-1, 1)
        )

    def solution(self, v):
        """(w*, lam*) at v."""
        outer = self.outer
        inner = np.delete(np.arange(len(self.saddle)), outer)
        return -np.linalg.solve(self.saddle[np.ix_(inner, inner)], self.saddle[np.ix_(inner, outer)] @ self.xz(v))

    @property
    def outer(self):
        return np.arange(self.sizes[0] + 1)

    def xz(self, v):
        n, m = self.sizes
        return np.r_[v[:n], v[n + m]]

    def gradient(self, v, inner, upper=None, lower=None):
        """grad Psi with (w, lam) = inner and Hessians of the two batches."""
        n, m = self.sizes
        xy = v[: n + m]
        upper, lower = (self.upper if upper is None else upper), (self.lower if lower is None else lower)
        ell = (self.saddle[self.outer] @ np.r_[self.xz(v), inner])[: n + 1]
        ell[:n] += ((lower - self.lower) @ np.r_[v[:n], inner[:m]])[:n]
        found = np.r_[upper @ xy + self.c1 * lower @ xy, 0.0]
        return found - self.c1 * np.r_[ell[:n], np.zeros(m), ell[n]]

    def frozen_against_envelope(self):
        """ell of item 34: the Lipschitz constant of grad E - grad ell in (x, z) at frozen (w, lam)."""
        outer, inner = self.outer, np.delete(np.arange(len(self.saddle)), self.outer)
        cross = self.saddle[np.ix_(inner, outer)]
        return np.linalg.norm(cross.T @ np.linalg.solve(self.saddle[np.ix_(inner, inner)], cross), 2)


def test_34_the_recursion_of_the_error():
    """E|e^{k+1}|^2 of item 34 with every outcome counted, r and q up to 2."""
    rng = np.random.default_rng(9)
    closest = 0.0
    for _ in range(TRIALS // 3):
        case = Recursion.random(rng)
        n, m = case.sizes
        old, error = rng.normal(size=(2, n + m + 1))
        new = old + 10 ** rng.uniform(-3, 1) * rng.normal(size=n + m + 1)
        beta, (r, q) = rng.choice([0.01, 0.1, 0.5, 1.0]), rng.integers(1, 3, 2)
        error *= rng.choice([0.0, 0.1, 1.0])
        ends = case.solution(new) + rng.choice([0.0, 0.1]) * rng.normal(size=(2, m + 1))  # of the inner loop
        truth = [case.gradient(v, case.solution(v)) for v in (old, new)]
        direction = truth[0] + error
        errors, plain = [], []
        for *picked, end in itertools.product(*[(0, 1)] * (r + q), ends):
            batch = np.mean(case.uppers[picked[:r]], axis=0), np.mean(case.lowers[picked[r:]], axis=0)
            at_old, at_new = (case.gradient(v, end, *batch) for v in (old, new))
            errors.append(at_new + (1 - beta) * (direction - at_old) - truth[1])
            plain.append(at_new - truth[1])
        variance, bias = np.sum(np.var(plain, axis=0)), np.sum(np.mean(plain, axis=0) ** 2)
        spread = case.uppers[0] - case.upper, case.lowers[0] - case.lower
        moved = np.sum((new - old) ** 2)
        noise = np.linalg.norm(spread[0], 2) ** 2 / r + case.c1**2 * 4 * np.linalg.norm(spread[1], 2) ** 2 / q
        drift = (case.c1 * case.frozen_against_envelope()) ** 2
        right = (1 - beta) * np.sum(error**2) + 2 * beta * bias + 2 * drift * moved / beta
        right += 2 * beta**2 * variance + 2 * noise * moved
        seen = np.mean(np.sum(np.square(errors), axis=1))
        assert seen <= right * (1 + 1e-9)
        closest = max(closest, seen / right)
    assert closest > 0.4  # the bound is not idle


def test_34_no_batch_divides_what_the_frozen_inner_solution_leaves_out():
    """No noise, an exact inner loop, e^k = 0: the printed right side is 8 (L'^2 + L^2)/r |du|^2, the left is not."""
    case, beta, r = Recursion.random(np.random.default_rng(10)), 0.1, 1e8
    basis = np.eye(sum(case.sizes) + 1)
    old, new = np.ones(len(basis)), np.full(len(basis), 1.1)
    end, nothing = case.solution(new), np.zeros(case.sizes[1] + 1)
    error = case.gradient(new, end) - case.gradient(new, case.solution(new))
    error += (1 - beta) * (case.gradient(old, case.solution(old)) - case.gradient(old, end))
    smooth = np.linalg.norm([case.gradient(v, case.solution(v)) for v in basis], 2)  # L_Psi; both gradients are linear
    frozen = np.linalg.norm([case.gradient(v, nothing) for v in basis], 2)  # L_Psi'
    printed = 8 * (smooth**2 + frozen**2) / r * np.sum((new - old) ** 2)
    assert np.sum(error**2) > 100 * printed
    drift = (case.c1 * case.frozen_against_envelope()) ** 2 * np.sum((new - old) ** 2)
    assert np.sum(error**2) <= 2 / beta * drift


def test_35_the_proof_asks_for_a_beta_that_the_corollary_does_not_have():
    """(C.36a) with theta_k = theta/alpha_{k-1}: beta_{k+1} is above 1 - 1/sqrt 8 at every k, beta alpha_k^2 is not."""
    smooth = 3.0
    theta = 1 / (64 * 2 * smooth**2)
    k = np.arange(1, 10**5)
    alpha = np.sqrt(theta) * (k + 1) ** (-1 / 3)
    before = np.sqrt(theta) * k ** (-1 / 3)
    least = 1 - np.sqrt((theta / before - alpha) / (8 * theta / alpha))
    assert np.min(least) > 1 - 8**-0.5
    assert np.all(alpha**2 / theta < least)  # beta_{k+1} = beta alpha_k^2 with beta = alpha^-2


def test_35_the_sum_is_four_times_the_printed_one():
    """(C.39) has |du|^2/(4 alpha) on its left. One step on u^2/2: the sum is more than Psi(u^0) - Psi(u^1)."""
    u = descent(1.0, 1.0, 1 / 8, 1)
    left, decrease = (u[1] - u[0]) ** 2 * 8, 0.5 * (u[0] ** 2 - u[1] ** 2)
    assert left > decrease and left <= 4 * decrease


def printed_vr_terms(c, c1, eps):
    """The five terms of Corollary C.3 with the (r, q, s, K) of the remark after it, and the last with its c1^2."""
    r, q, s, steps = 1.0, c1**2 / eps, c1**2 / eps, (c / eps) ** 1.5
    batches = 1 / q + 1 / s
    last = steps ** (2 / 3) / r * batches
    return [c / steps ** (2 / 3), c1**2 / q, c1**2 / s, 1 / (steps ** (2 / 3) * r), last, c1**2 * last]


def test_36_the_last_term_of_corollary_c_3_is_not_of_order_eps():
    for eps in (1e-1, 1e-2, 1e-3):
        *small, printed, restored = printed_vr_terms(eps**-3.0, 1 / eps, eps)
        assert max(small) <= eps * (1 + 1e-9)
        assert printed == pytest.approx(2 / eps) and restored == pytest.approx(2 * eps**-3.0)
    # theta/(alpha r) c1^2 with theta = c^-2 and alpha = 1/c is c1^2/(c r); printed is 1/(c r).
    c, c1, r = 1e3, 10.0, 2.0
    assert c**-2.0 * c1**2 / (r / c) == pytest.approx(c1**2 / (c * r))


def test_36_the_repaired_bound_holds_along_runs():
    """4 decrease/(alpha K) + 2 |e^0|^2/(beta K) + 4 c1^2 bias^2 + 4 beta V, against 400 runs, some over a box.

    F = own (x^2 + y^2)/2 and G = mu y^2/2 - cross x y without rows: w* = cross x/mu, E = -cross^2 x^2/(2 mu).
    """
    rng = np.random.default_rng(11)
    closest, steps, runs = 0.0, 60, 400
    for _ in range(12):
        mu, cross, c1, own = rng.uniform(0.5, 2), rng.normal(), rng.uniform(0.5, 5), rng.uniform(0.5, 2)
        sigma_f, sigma_g, inner, bias = rng.uniform(0, [2, 2, 1, 1])  # the last two of w - w*: spread and mean
        beta = rng.choice([0.05, 0.2, 1.0])
        frozen = np.array([[own, -c1 * cross], [-c1 * cross, own + c1 * mu]])  # of grad Psi at fixed w
        hessian = frozen + np.diag([c1 * cross**2 / mu, 0.0])
        alpha = min(1 / (4 * np.linalg.norm(hessian, 2)), beta / (4 * c1 * cross**2 / mu))
        u = before = start = np.tile(rng.normal(size=2), (runs, 1))
        direction, moved, side = np.zeros_like(u), [], rng.choice([np.inf, 0.3])
        u = before = start = np.clip(u, -side, side)
        for k in range(steps):
            w = cross * u[:, 0] / mu + bias + inner * rng.choice([-1, 1], runs)
            in_y = c1 * sigma_g * rng.choice([-1, 1], runs)  # the noise of g, xi y, has no part in x
            shift = np.stack([c1 * cross * w + sigma_f * rng.choice([-1, 1], runs), in_y], axis=1)
            direction = u @ frozen + shift + (1 - beta if k else 0) * (direction - before @ frozen - shift)
            before, u = u, np.clip(u - alpha * direction, -side, side)
            moved.append(np.mean(np.sum(((u - before) / alpha) ** 2, axis=1)))
        psi = [0.5 * np.einsum("ri,ij,rj->r", v, hessian, v).mean() for v in (start, u)]
        variance = sigma_f**2 + c1**2 * (sigma_g**2 + (cross * inner) ** 2)
        right = 4 * (psi[0] - psi[1]) / (alpha * steps) + 2 * (variance + (c1 * cross * bias) ** 2) / (beta * steps)
        right += 4 * (c1 * cross * bias) ** 2 + 4 * beta * variance
        assert np.mean(moved) <= right
        closest = max(closest, np.mean(moved) / right)
    assert closest > 0.1


def vr_terms(c, c1, eps):
    """Every term of item 36's bound in orders, with its (beta, r, q, s, K), and the samples of zeta and xi."""
    beta = min(1.0, max(eps, c1 / c))
    r, q, s = max(1.0, beta / eps), max(1.0, beta * c1**2 / eps), c1**2 / eps
    steps = max(c, 1 / beta) / eps
    variance = 1 / r + c1**2 / q + c1**2 / s
    terms = [c / steps, variance / (beta * steps), c1**2 / s / steps / beta, c1**2 / s, beta * variance]
    return terms, (steps * r, steps * (q + s))


def test_36_every_term_of_the_repaired_bound_is_of_order_eps():
    for eps, power, ratio in itertools.product((1e-1, 1e-2, 1e-3), (0, 0.5, 1, 2), (1, 10, 1e3, 1e6)):
        terms, _ = vr_terms(ratio * eps**-power, eps**-power, eps)
        assert max(terms) <= 3 * eps * (1 + 1e-9)


def test_37_where_variance_reduction_saves_samples():
    """In Theorem 3.2's regime, c1 = 1/eps and c = eps^-3: as printed it costs more, as repaired eps times as many."""
    for eps in (1e-1, 1e-2, 1e-3):
        c, c1 = eps**-3.0, 1 / eps
        plain = c / eps**2, 2 * c * c1**2 / eps**2  # SALVF: samples of zeta and of xi
        assert (c / eps) ** 1.5 > plain[0] * 2
        zeta, xi = vr_terms(c, c1, eps)[1]
        assert zeta == pytest.approx(eps * plain[0]) and xi <= plain[1]
        # The printed c^1.5 eps^-1.5 is less than c eps^-2 for c < 1/eps alone.
        for weight in (0.5 / eps, 2 / eps):
            assert ((weight / eps) ** 1.5 < weight / eps**2) == (weight < 1 / eps)
    # The conclusion prints c1 where the theorems have c = max(c1, c2): eps^-3 and eps^-5 for eps^-5 and eps^-7.
    eps = 1e-2
    assert (1 / eps) / eps**2 == pytest.approx(eps**-3.0) and eps**-3.0 / eps**2 == pytest.approx(eps**-5.0)


def test_37_the_inner_loop_may_have_no_bias():
    """mu w^2/2 with eta = 1/mu: every outcome of the two-point noise counted, w^s has mean 0 and variance sigma^2/s."""
    mu, sigma = 2.0, 3.0
    for s in (1, 2, 5):
        ends = []
        for signs in itertools.product((-1, 1), repeat=s):
            w = 1.7
            for j, sign in enumerate(signs):
                w -= 1 / (mu * (j + 1)) * (mu * w + sigma * sign)
            ends.append(w)
        assert np.mean(ends) == pytest.approx(0, abs=1e-12)
        assert np.var(ends) == pytest.approx((sigma / mu) ** 2 / s)
    # Item 36 without a bias: s = beta c1^2/eps keeps 4 beta V at eps; with beta = c1/c that is 1/eps for eps^-3.
    for eps in (1e-1, 1e-2):
        c1, c = 1 / eps, eps**-3.0
        s = c1 / c * c1**2 / eps
        assert s == pytest.approx(1 / eps) and c1**2 / eps == pytest.approx(eps**-3.0)
        assert c1 / c * c1**2 / s == pytest.approx(eps)


# -- the page and the note --------------------------------------------------------------------------------------------

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "methods" / "corrections.md").read_text("utf-8")


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("corrections_note", ROOT / "tools" / "corrections_note.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_item_from_14_on_has_a_test():
    items = [int(number) for number in re.findall(r"^(\d+)\. ", PAGE, re.MULTILINE)]
    assert items == list(range(1, 39))
    tested = {int(name.split("_")[1]) for name in globals() if re.match(r"test_\d+_", name)}
    assert tested == {10, *range(14, 38)}  # 38 lists slips of the pen


def test_the_note_is_what_the_page_gives(tool):
    """`python tools/corrections_note.py` writes it."""
    assert tool.NOTE.read_text("utf-8") == tool.note(PAGE)


def test_the_note_is_whole(tool):
    """Braces, environments, mathematics and references, as far as one can see without LaTeX."""
    text = re.sub(r"(?m)(?<!\\)%.*$", "", tool.note(PAGE))
    depth = np.cumsum([{"{": 1, "}": -1}.get(char, 0) for char in re.sub(r"\\[{}\\]", "", text)])
    assert depth.min() == 0 and depth[-1] == 0
    opened = []
    for kind, name in re.findall(r"\\(begin|end)\{(\w+)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened and text.count(r"\[") == text.count(r"\]") == PAGE.count("$$") // 2
    assert re.sub(r"\\\$", "", text).count("$") % 2 == 0
    labels = re.findall(r"\\label\{([^}]*)\}", text)
    assert len(labels) == len(set(labels)) == 38 and set(re.findall(r"\\ref\{([^}]*)\}", text)) <= set(labels)
    words = re.sub(r"\$[^$]*\$|\\\[.*?\\\]", "", text.partition(r"\maketitle")[2], flags=re.DOTALL)
    words = re.sub(r"section\*|``|\\begin\{longtable\}.*?\\end\{longtable\}", "", words, flags=re.DOTALL)
    assert not re.search(r"(?<!\\)[_^#&]|[*`]", words)


def test_inline_forms_of_the_note(tool):
    assert tool.inline('**a $x_1$** and *b*: `c_d`, [e](f.md) "g" 50 %') == (
        r"\textbf{a $x_1$} and \emph{b}: \texttt{c\_d}, e ``g'' 50 \%"
    )
    assert tool.table(["| a | b |", "| --- | --- |", "| $x$ | |"]).splitlines()[2:5:2] == [r"a & b \\", r"$x$ &  \\"]
