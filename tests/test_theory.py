"""`hx.theory`: estimates where the constants are known, the formulas' closed forms, and what it says of assumptions.

Unit tests of hierax._theory.formulas among them.
"""

import dataclasses
import itertools
import math
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax._theory.formulas import Constants, Gammas, corrected, printed
from hierax.problems import toy
from hierax.problems.toy import toy_inner_solution

A = np.array([[1.0, 0.5], [0.2, -1.0]])  # rows of H = A y + C x - b
C = np.array([[0.3, 0.0], [0.0, 0.4]])
B = np.array([0.1, 0.2])
D = np.array([2.0, 5.0])  # curvature of G in y
P = np.array([1.0, 3.0])  # of F in y
SIGMA = 0.3


def quadratic():
    """F = y'Py/2 - 1'y + |x|^2/2, G = y'Dy/2 + x'y on [-1, 1]^2 x [-2, 2]^2, with noise added to their gradients."""

    def noise(batch, x, y):
        return jnp.vdot(jnp.mean(batch, axis=0), jnp.concatenate([x, y]))

    def draw(key, n):
        return SIGMA * jax.random.normal(key, (n, 4))

    return hx.Problem(
        lambda x, y, z: 0.5 * jnp.sum(P * y**2) - jnp.sum(y) + 0.5 * jnp.sum(x**2) + noise(z, x, y),
        lambda x, y, z: 0.5 * jnp.sum(D * y**2) + jnp.vdot(x, y) + noise(z, x, y),
        lambda x, y: jnp.asarray(A) @ y + jnp.asarray(C) @ x - jnp.asarray(B),
        x_set=hx.Box(-1.0, 1.0),
        y_set=hx.Box(-2.0, 2.0),
        zeta=hx.Sampler(draw, exact=np.zeros((1, 4))),
        xi=hx.Sampler(draw, exact=np.zeros((1, 4))),
    )


@pytest.fixture(scope="module")
def found():
    return hx.theory(quadratic(), np.zeros(2), np.zeros(2), eps=0.1)


def test_constants_of_a_quadratic_problem(found):
    """Norms of affine functions are largest at vertices of the boxes, which far points land on."""
    vertices = [(np.array(v[:2]), 2 * np.array(v[2:])) for v in itertools.product([-1.0, 1.0], repeat=4)]
    whole = np.block([[np.zeros((2, 2)), np.eye(2)], [np.eye(2), np.diag(D)]])
    both = np.hstack([C, A])
    seen = found.constants
    close = {"rel": 0.02}
    assert seen.lipschitz == pytest.approx(max(np.linalg.norm(P * y - 1) for _, y in vertices), **close)
    assert seen.upper == pytest.approx(3.0, **close)
    assert seen.lower == pytest.approx(np.linalg.norm(whole, 2), **close)
    assert seen.convexity == pytest.approx(2.0, **close)
    assert seen.rows == 0.0
    assert seen.gradient == pytest.approx(
        max(np.hypot(*np.linalg.norm([y, D * y + x], axis=1)) for x, y in vertices), **close
    )
    assert seen.value == pytest.approx(max(np.max(np.abs(A @ y + C @ x - B)) for x, y in vertices), **close)
    assert seen.row == pytest.approx(np.max(np.linalg.norm(both, axis=1)), **close)
    assert seen.jacobian == pytest.approx(np.linalg.norm(both, 2), **close)
    over = [np.sum(np.maximum(A @ y + C @ x - B, 0)) for x, y in vertices]
    assert seen.violation == pytest.approx(max(over), **close)
    assert seen.upper_noise == pytest.approx(4 * SIGMA**2, rel=0.08)
    assert seen.lower_noise == pytest.approx(4 * SIGMA**2, rel=0.08)
    assert seen.upper_mean == pytest.approx(3.0, **close)
    assert seen.lower_mean == pytest.approx(np.linalg.norm(whole, 2), **close)
    assert seen.p == 2
    norms = np.linalg.norm(A, axis=1)
    assert any(seen.sigma_0 == pytest.approx(s, **close) for s in (np.linalg.svd(A)[1].min(), *norms))
    assert found.multiplier <= found.corrected.bound


@pytest.mark.slow
def test_curved_rows_and_noise_in_the_curvature():
    """L_H of a ball, sigma_0 = |grad_y H| on it, and L_f = sqrt(E (1 + zeta)^2) |u|^2/2's curvature."""
    problem = hx.Problem(
        lambda x, y, z: 0.5 * jnp.mean(1.0 + z) * (jnp.sum(x**2) + jnp.sum(y**2)),
        lambda x, y, _: jnp.sum((y - 2.0) ** 2) + 0.1 * jnp.sum(x * y),
        lambda x, y: 1.5 * jnp.sum(y**2) - 1.5,
        x_set=hx.Box(-1.0, 1.0),
        zeta=hx.Sampler(lambda key, n: 0.5 * jax.random.normal(key, (n,)), exact=np.zeros(1)),
    )
    found = hx.theory(problem, np.zeros(2), np.zeros(2), eps=0.1, points=32)
    assert found.constants.rows == pytest.approx(3.0, rel=1e-6)
    assert found.constants.sigma_0 == pytest.approx(3.0, rel=1e-4)
    assert found.constants.upper_mean == pytest.approx(math.sqrt(1.25), rel=0.05)
    holds = {a.name: a.holds for a in found.assumptions}
    assert not holds["X and Y compact"]
    assert holds["G strongly convex in y"] and holds["H convex in y"] and holds["Slater"] and holds["LICQ, sigma_0 > 0"]


CONSTANTS = Constants(
    lipschitz=3.0, upper=2.0, lower=5.0, rows=0.5, convexity=2.0, gradient=4.0, value=1.5, row=2.0, jacobian=2.5,
    violation=1.0, sigma_0=0.5, upper_noise=0.1, lower_noise=0.2, upper_mean=2.2, lower_mean=5.5, p=2,
)  # fmt: skip
GAMMAS = Gammas(0.5, 0.25)
EPS = 0.25


def test_the_printed_formulas():
    """Theorem 3.2, Lemmas A.7 and C.1, Corollary C.1, and the remarks' orders, with these numbers put in by hand."""
    asked = printed(CONSTANTS, GAMMAS, EPS)
    c1 = 2 * 3.0 / (3 * 2.0 * 0.25)  # c1* = 4
    bound = 4 / 0.25 * 2.0 * (4.0 + 2 * 2.0)  # 256
    gap = 3 * 4.0 + 2**0.5 * 2.0 * (bound + 2**0.5 / 0.25 * 1.5) + 2 * 1.5 * 2.0 + 2**0.5 * 1.5
    c2 = 1.5 * c1**2 * bound**2 / 0.25 + 2
    smooth = 2.0 + (c1 + 2) * gap + c2 / 2 * 0.5 * 1.5
    expected = {
        "c1": c1 + 2, "c2": c2, "bound": bound, "side": bound / 2**0.5, "delta": 0.25 / (6 * (c1 + 2)),
        "smoothness": smooth, "alpha": 0.5 / smooth, "alpha_vr": 0.125 / math.hypot(2.2 + 0.25 / (c1 + 2), smooth),
        "s": (c1 + 2) ** 2 / 0.25, "r": 4.0, "q": (c1 + 2) ** 2 / 0.25,
        "beta": math.nan, "r_vr": 1.0, "q_vr": (c1 + 2) ** 2 / 0.25,
        "steps": c2 / 0.25, "steps_vr": (c2 / 0.25) ** 1.5,
        "c1_exact": 3 / (2 * 2.0 * 0.25) + 2, "c2_exact": 3.0**2 * bound**2 / 0.25 + 2,
    }  # fmt: skip
    # Lemma A.2, Lemma B.2 and Theorem B.1 with eta = 1/mu_G = 1/2, rho = 1/gamma2 = 4, ||z|| = B.
    moment, moment_z = 4 * (4.0**2 + 0.2 + 1.5 / 0.5**2), 4 * 1.5**2 * 2.0**2
    lam_bound = 2 * bound**2 + 2 * 2 * 4.0**2 * 1.5**2
    steep = 4.0 * (4 * 0.25 * bound**2 + 4 * 1.5**2)
    phi = 0.5 * (0.5 * moment + steep + (0.5 * moment_z + 2 * 4.0 * 0.75) * lam_bound)
    expected |= {"moment": moment, "moment_z": moment_z, "lam_bound": lam_bound, "phi_w": phi, "phi_lam": 8 * phi}
    assert asked._asdict() == pytest.approx(expected, rel=1e-14, nan_ok=True)
    assert asked.samples(False) == pytest.approx((asked.steps * 4.0, asked.steps * 2 * asked.s))
    assert asked.samples(True) == pytest.approx((asked.steps_vr, asked.steps_vr * 2 * asked.s))


def test_the_corrected_formulas():
    asked = corrected(CONSTANTS, GAMMAS, EPS)
    c1 = 3 * 3.0**2 / (2 * 2.0 * 0.25) + 2  # 29
    c2 = 1.5 * c1**2 * 8.0**2 / 0.25 + 2
    joint = 0.5 * 0.25 / 0.75
    pushed = 2 * 8.0 + 1.0 / joint
    block = np.array([[5.0 + 0.5 * pushed + 2.5**2 / joint, 2.5], [2.5, joint]])
    most = np.linalg.eigvalsh(block)[-1]
    outer = c2 * (2.5**2 + 0.5)
    smooth = 2.0 + c1 * (5.0 + most + most**2 / 2.0) + outer
    frozen = 2 * 5.5 + 0.5 * pushed + 2.5**2 / 0.5 + 0.25
    drift, noise = c1 * (most + most**2 / 2.0 + frozen), 2.2 + c1 * frozen
    assert (asked.c1, asked.bound, asked.side) == pytest.approx((c1, 8.0, 8.0))
    assert asked.c2 == pytest.approx(c2, rel=1e-14)
    assert asked.smoothness == pytest.approx(smooth, rel=1e-14)
    # What item 36 of the corrections asks of alpha and beta.
    assert asked.beta == pytest.approx(max(0.25, drift / smooth, (noise / smooth) ** 2))
    assert asked.alpha_vr == pytest.approx(0.25 / smooth, rel=1e-14)
    assert asked.alpha_vr <= (1 + 1e-12) * min(asked.beta / (4 * drift), asked.beta**0.5 / (4 * noise))
    # Items 18, 22 and 24, with the largest z of [0, B]^p.
    assert (asked.c1_exact, asked.c2_exact) == pytest.approx((3.0**2 / (2.0 * 0.25), 18.0**2 * 8.0**2 / 0.25))
    moment, moment_z = 4 * (4.0**2 + 0.2 + (2 * 1.5 * 2.0 / 0.5) ** 2), 4 * 2.0**2
    lam_bound = 2 * 2 * 8.0**2 + 2 * 2 * 4.0**2 * 1.5**2
    dual = 2 * 0.25**2 * 2 * 8.0**2 + 2 * 2 * 1.5**2 + 0.75**2 * lam_bound
    phi = 0.5 * (0.5 * (moment + moment_z * lam_bound) + 4.0 * dual)
    found = asked.moment, asked.moment_z, asked.lam_bound, asked.phi_w, asked.phi_lam
    assert found == pytest.approx((moment, moment_z, lam_bound, phi, 8 * phi), rel=1e-14)
    # Theorem 3.1 likewise: two terms that add up to eps.
    assert 3.0**2 / (2 * asked.c1_exact * 2.0) + asked.c1_exact**2 * 8.0**2 / (2 * asked.c2_exact) <= 0.25 + 1e-12
    # What the proof of Theorem 3.2 needs: three terms that add up to eps; the printed c1 leaves them above it.
    terms = 3.0**2 / (2 * c1 * 2.0) + c1**2 * 8.0**2 / (2 * c2) + 2 * c1 * asked.delta
    assert terms <= 0.25
    first = printed(CONSTANTS, GAMMAS, EPS).c1 - 2
    assert 3.0**2 / (2 * first * 2.0) > 0.25


def random_constants(rng):
    sizes = 10 ** rng.uniform(-1, 1, len(Constants._fields) - 1)
    return Constants(*sizes, p=int(rng.integers(1, 5))), Gammas(*10 ** rng.uniform(-1, 1, 2))


def test_every_term_of_the_corrected_bounds_is_of_the_order_of_eps():
    """Items 30 and 36 of the corrections with the numbers of the corrected column, all constants of the orders 1.

    SALVF: 1/(alpha K), 1/r, c1^2/q, c1^2/s. SALVF-VR: the start's, the bias, and beta times the variance.
    """
    rng = np.random.default_rng(0)
    for eps in (0.5, 1e-1, 1e-2, 1e-3):
        for constants, gammas in (random_constants(rng) for _ in range(50)):
            asked = corrected(constants, gammas, eps)
            c, bias = max(asked.c1, asked.c2), asked.c1**2 / asked.s
            plain = [c / asked.steps, 1 / asked.r, asked.c1**2 / asked.q, bias]
            variance = 1 / asked.r_vr + asked.c1**2 / asked.q_vr + bias
            start = c / asked.steps_vr + (variance + bias) / (asked.beta * asked.steps_vr)
            reduced = [start, bias, asked.beta * variance]
            assert max(plain) <= eps * (1 + 1e-9) and max(reduced) <= 5 * eps
            assert eps <= asked.beta <= 1
            assert np.all(np.array(asked.samples(True)) <= np.array(asked.samples(False)) * (1 + 1e-9) + 1 / eps**2)


def test_the_printed_bound_of_variance_reduction_keeps_a_term_that_grows():
    """K^(2/3)/r (1/q + 1/s), Theorem 3.5, with the printed (r, q, s, K): 2 c/c1^2."""
    for eps in (1e-1, 1e-2, 1e-3):
        asked = printed(CONSTANTS, GAMMAS, eps)
        term = asked.steps_vr ** (2 / 3) / asked.r_vr * (1 / asked.q_vr + 1 / asked.s)
        assert term == pytest.approx(2 * asked.c2 / asked.c1**2) and term > 100 * eps


@pytest.fixture(scope="module")
def of_toy():
    return hx.theory(toy(0.1).problem, 0.5, 0.7, eps=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("s", [10, 1000])
def test_the_constants_of_the_inner_loop_bound_its_error(of_toy, s):
    """Theorem B.1 as corrected: E||w^s - w*||^2 <= phi_1 (1 + log s)/s, likewise lam; and M_lambda for every lam."""
    asked, gammas, mu = of_toy.corrected, of_toy.gammas, of_toy.constants.convexity
    salm = hx.SALM(steps=s, rule="paper", warm=False, eta=1 / mu, rho=1 / gammas.gamma2)
    found = hx.gradient_errors(
        toy(0.1).problem, 1.0, 1.0, 2.0, hx.SALVF(c1=5.0, c2=50.0, **gammas._asdict(), inner=salm), draws=64
    )
    rate = (1 + math.log(s)) / s
    assert found.w_error.value <= asked.phi_w * rate and found.lam_error.value <= asked.phi_lam * rate
    lam = found.exact.envelope.lam.inequalities
    assert lam**2 <= asked.lam_bound


@pytest.mark.slow
def test_l_psi_bounds_the_curvature_of_psi_and_the_printed_one_does_not(of_toy):
    """On the toy, whose envelope is known in closed form, with the c1 and c2 of each column."""
    problem, gammas = toy(0.0).problem, of_toy.gammas

    def curvature(asked):
        def psi(u):
            x, y, z = u
            w, lam = toy_inner_solution(x, z, *gammas)
            term = (jnp.maximum(gammas.gamma1 * lam + w - x, 0.0) ** 2 - (gammas.gamma1 * lam) ** 2) / (
                2 * gammas.gamma1
            )
            envelope = (w - 2 * x) ** 2 + term - gammas.gamma2 / 2 * (lam - z) ** 2
            outer = asked.c2 / 2 * jnp.maximum(y - x, 0.0) ** 2
            return problem.upper(x, y, None) + asked.c1 * ((y - 2 * x) ** 2 - envelope) + outer

        points = np.random.default_rng(0).uniform(0.0, 3.0, (200, 3))
        hessians = jax.jit(jax.vmap(jax.hessian(psi)))(jnp.asarray(points))
        return float(np.max(np.linalg.norm(hessians, 2, axis=(1, 2))))

    for eps in (0.1, 1.0):
        right, wrong = (formulas(of_toy.constants, gammas, eps) for formulas in (corrected, printed))
        assert curvature(right) <= right.smoothness
        assert curvature(wrong) > wrong.smoothness


def test_the_toy_says_where_the_theorems_do_not_reach(of_toy):
    """At x = 0 the toy's lower level is the single point y = 0: no Slater point, and y* on a face of Y."""
    holds = {a.name: a.holds for a in of_toy.assumptions}
    assert holds["G strongly convex in y"] and holds["X and Y compact"] and not holds["Slater"]
    assert of_toy.constants.lipschitz == pytest.approx(math.e**2, rel=0.05)  # at y = 0, cos 6x = -1
    text = str(of_toy)
    assert "order, constant 1" in text and "NOT SEEN" in text and "corrected" in text
    assert f"{float(of_toy.defaults.c1):.3g}" in text
    assert "Samples of zeta of SALVF-VR for one of SALVF" in text


def test_the_method_of_the_theorem(of_toy):
    """Its numbers are the column's, one step for all blocks; sizes that no machine can draw are refused."""
    short = {"inner": hx.SALM(steps=5, rule="paper", warm=False), "batch_xi": 1}
    method = of_toy.method(**short)
    assert float(method.c1) == of_toy.corrected.c1 and method.batch_zeta == 10
    assert 0 < method.steps.x == method.steps.y == method.steps.z < of_toy.corrected.alpha
    reduced = of_toy.method("printed", reduced=True, **short)
    assert reduced.direction.z and reduced.batch_zeta == 1
    assert float(reduced.bound) == pytest.approx(of_toy.printed.bound) and reduced.direction.schedule == "paper"
    repaired = of_toy.method(reduced=True, inner=short["inner"], batch_xi=1)
    assert repaired.direction.schedule is None and repaired.direction.beta == of_toy.corrected.beta >= 0.1
    assert 0 < repaired.steps.x == repaired.steps.y == repaired.steps.z < of_toy.corrected.alpha_vr
    strict = dataclasses.replace(of_toy, corrected=corrected(of_toy.constants, of_toy.gammas, 1e-3))
    with pytest.raises(hx.InputError, match="samples per step; give inner="):
        strict.method()
    flat = dataclasses.replace(
        of_toy, corrected=corrected(of_toy.constants._replace(convexity=0.0), of_toy.gammas, 0.1)
    )
    with pytest.raises(hx.InputError, match="c1 = inf; an assumption does not hold"):
        flat.method()


@pytest.mark.slow
@pytest.mark.usefixtures("as_users_start")
def test_the_page_prints_what_it_says(capsys):
    page = (Path(__file__).parent.parent / "docs" / "pictures" / "constants.md").read_text()
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(code, {})
        told = "\n".join(("    " + line).rstrip() for line in capsys.readouterr().out.rstrip().splitlines())
        assert told in page


REFUSED = {"eps": {"eps": 0.0}, "points": {"eps": 0.1, "points": 0}, "radius": {"eps": 0.1, "radius": -1.0}}


@pytest.mark.parametrize("name, call", REFUSED.items(), ids=REFUSED)
def test_refusals_name_the_argument(name, call):
    with pytest.raises(hx.InputError, match=rf"theory\({name}="):
        hx.theory(toy(0.1).problem, 0.5, 0.7, **call)
