"""Identities of the envelope on random strongly convex QPs, with Clarabel and SciPy as the reference solvers.

Unit tests of hierax._math.psi.
"""

import clarabel
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from formulas import saddle_value
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize, sparse

import hierax as hx
from hierax._math.psi import (
    Inner,
    Point,
    Weights,
    best_multiplier,
    eliminated_value,
    joint_gamma,
    psi_gradient,
    saddle_gradient,
)
from hierax.extend import Rows
from hierax.problems import toy, toy_inner_solution

N, P, Q = 4, 3, 1
SEEDS = st.integers(0, 10**6)
GAMMAS = st.sampled_from([(1.0, 1.0), (0.3, 2.0), (2.0, 0.2)])


def quadratic(seed):
    """G = 1/2 y'Ay + b'y, inequalities C y <= d (y = 0 feasible, some active at the solution), equality e'y = f."""
    rng = np.random.default_rng(seed)
    factor = rng.standard_normal((N, N))
    return {
        "A": factor @ factor.T + 0.5 * np.eye(N),
        "b": 3 * rng.standard_normal(N),
        "C": rng.standard_normal((P, N)),
        "d": rng.uniform(0.05, 0.5, P),
        "e": rng.standard_normal((Q, N)),
    }


def as_problem(data):
    return hx.Problem(
        lambda x, y, zeta: jnp.sum(y),
        lambda x, y, xi: 0.5 * y @ data["A"] @ y + data["b"] @ y,
        lambda x, y: data["C"] @ y - data["d"],
        lambda x, y: data["e"] @ y,
    )


def clarabel_qp(hessian, linear, rows, bounds, equal):
    """min 1/2 v'Hv + c'v s.t. rows v <= bounds, equal v = 0: the point, both multipliers and the value."""
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-11
    cones = [clarabel.ZeroConeT(len(equal)), clarabel.NonnegativeConeT(len(bounds))]
    both, limits = np.vstack([equal, rows]), np.concatenate([np.zeros(len(equal)), bounds])
    solver = clarabel.DefaultSolver(
        sparse.csc_matrix(hessian), linear, sparse.csc_matrix(both), limits, cones, settings
    )
    found = solver.solve()
    assert str(found.status) in ("Solved", "AlmostSolved")
    duals = np.asarray(found.z)
    return np.asarray(found.x), duals[len(equal) :], duals[: len(equal)], found.obj_val


def lower_value(data):
    y, lam, nu, value = clarabel_qp(data["A"], data["b"], data["C"], data["d"], data["e"])
    return y, Rows(lam, nu), value


@jax.jit
def eliminated(data, z, w, gamma1, gamma2):
    problem = as_problem(data)

    def value(v):
        return eliminated_value(problem, 0.0, z, v, gamma1, gamma2, None)

    return value(w), jax.grad(value)(w)


@jax.jit
def saddle(data, z, w, gamma1, gamma2):
    """lam in closed form at w, ell there, and both derivatives of ell."""
    problem = as_problem(data)
    lam = best_multiplier(problem.rows(0.0, w), z, gamma1, gamma2)
    gradient = saddle_gradient(problem, 0.0, z, w, lam, gamma1, gamma2, None)
    return lam, saddle_value(problem, 0.0, z, w, lam, gamma1, gamma2, None), gradient.w, gradient.lam


@jax.jit
def ell(data, z, w, lam, gamma1, gamma2):
    def value(v):
        return saddle_value(as_problem(data), 0.0, z, v, lam, gamma1, gamma2, None)

    return value(w), jax.grad(value)(w)


def envelope(data, z, gamma1, gamma2):
    """E and its w by SciPy alone: BFGS, then MINPACK's hybrid method on the gradient."""
    args = (data, z)
    rough = optimize.minimize(
        lambda w: [np.asarray(a) for a in eliminated(*args, w, gamma1, gamma2)], np.zeros(N), jac=True, method="BFGS"
    )
    fine = optimize.root(lambda w: np.asarray(eliminated(*args, w, gamma1, gamma2)[1]), rough.x, tol=1e-14)
    return float(eliminated(*args, fine.x, gamma1, gamma2)[0]), fine.x


def centre(seed):
    rng = np.random.default_rng(seed + 1)
    return Rows(rng.uniform(0, 3, P), rng.standard_normal(Q))


@given(SEEDS, GAMMAS)
def test_eliminated_form_is_the_max_min(seed, gammas):
    data, z = quadratic(seed), centre(seed)
    value, w = envelope(data, z, *gammas)
    lam, at_saddle, d_w, d_lam = saddle(data, z, w, *gammas)
    assert np.all(lam.inequalities >= 0)
    # A saddle point: no derivative left in w, none in lam except against the bound lam >= 0.
    assert np.max(np.abs(d_w)) < 1e-9
    assert np.max(np.abs(d_lam.equalities)) < 1e-9
    held = (np.asarray(lam.inequalities) == 0) & (np.asarray(d_lam.inequalities) < 0)
    assert np.max(np.abs(np.where(held, 0.0, d_lam.inequalities))) < 1e-9
    np.testing.assert_allclose(at_saddle, value, rtol=1e-11, atol=1e-11)
    # Max-min: the minimum over w at any other multiplier is below E.
    other = Rows(np.random.default_rng(seed).uniform(0, 4, P), lam.equalities + 0.3)
    below = optimize.minimize(
        lambda v: [np.asarray(a) for a in ell(data, z, v, other, *gammas)], w, jac=True, method="BFGS"
    )
    assert below.fun <= value + 1e-9


@given(SEEDS, GAMMAS)
def test_envelope_is_below_the_lower_value_and_touches_it_at_a_multiplier(seed, gammas):
    data = quadratic(seed)
    y, multiplier, value = lower_value(data)
    touching, w = envelope(data, multiplier, *gammas)
    np.testing.assert_allclose(touching, value, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(w, y, atol=1e-5)
    assert envelope(data, centre(seed), *gammas)[0] <= value + 1e-9
    far = Rows(np.asarray(multiplier.inequalities) + 2.0, np.asarray(multiplier.equalities) - 2.0)
    assert envelope(data, far, *gammas)[0] < value - 1e-3


def test_closed_form_multiplier_is_the_best_one():
    rng = np.random.default_rng(0)
    data, z, w = quadratic(5), centre(5), rng.standard_normal(N)
    for gammas in [(1.0, 1.0), (0.3, 2.0), (2.0, 0.2)]:
        lam, best, _, _ = saddle(data, z, w, *gammas)
        np.testing.assert_allclose(best, eliminated(data, z, w, *gammas)[0], rtol=1e-12)
        for _ in range(10):
            other = Rows(np.maximum(0, lam.inequalities + rng.standard_normal(P)), lam.equalities + 0.1)
            assert ell(data, z, w, other, *gammas)[0] < best


def test_joint_gamma():
    assert joint_gamma(1.0, 1.0) == 0.5
    np.testing.assert_allclose(1 / joint_gamma(0.3, 2.0), 1 / 0.3 + 1 / 2.0, rtol=1e-15)


# -- the toy: closed-form saddle point ---------------------------------------------------------------------------------

EXACT = toy(0.0).problem
WEIGHTS = Weights(5.0, 100.0, 1.0, 1.0)


def z_gradient(x, z):
    w, lam = toy_inner_solution(x, z, 1.0, 1.0)
    point = Point(x, x, Rows(z, None), hx.Multipliers(jnp.zeros(()), None, None))
    return psi_gradient(EXACT, point, Inner(w, Rows(lam, None)), WEIGHTS, None, None)


@pytest.mark.parametrize("x", [0.3, 1.0, 2.2])
def test_sign_of_the_z_step(x):
    """The paper prints d_z (G - E) = gamma2 (lam - z): that is ascent, and z runs away from the multiplier 2x."""
    step = 0.5 / 5.0

    @jax.jit
    def walk(sign):
        def body(z, _):
            return jnp.maximum(0.0, z - step * sign * z_gradient(jnp.asarray(x), z).z.inequalities), None

        return jax.lax.scan(body, jnp.asarray(2 * x + 0.1), None, length=200)[0]

    np.testing.assert_allclose(walk(1.0), 2 * x, atol=1e-9)
    assert abs(walk(-1.0) - 2 * x) > 1.0


@given(st.floats(0.2, 2.5), st.floats(0.0, 5.0))
def test_envelope_theorem_on_the_toy(x, z):
    """With (w, lam) at the saddle point, the frozen gradient is that of c1 (G - E), by central differences of E."""

    def gap(x, y, z):
        w, lam = toy_inner_solution(x, z, 1.0, 1.0)
        return (y - 2 * x) ** 2 - saddle_value(EXACT, x, Rows(z, None), w, Rows(lam, None), 1.0, 1.0, None)

    x, z = jnp.asarray(x), jnp.asarray(z)
    frozen = z_gradient(x, z)
    h = 1e-5
    d_z = (gap(x, x, z + h) - gap(x, x, z - h)) / (2 * h) if z > h else None
    d_x = (gap(x + h, x, z) - gap(x - h, x, z)) / (2 * h)
    upper = jax.grad(EXACT.upper)(x, x, None)
    outer = 0.0  # H = 0 and nu = 0 at y = x
    if d_z is not None:
        np.testing.assert_allclose(frozen.z.inequalities, 5.0 * d_z, atol=1e-7)
    np.testing.assert_allclose(frozen.x, upper + 5.0 * d_x + outer, atol=1e-7)
