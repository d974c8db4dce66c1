"""Augmented Lagrangian and saddle function: formulas against autodiff, finite differences and hand-made numbers.

Unit tests of hierax._math.psi.
"""

import functools

import jax
import jax.extend.core
import jax.numpy as jnp
import numpy as np
from cases import close, random_data, random_problem
from formulas import saddle_value
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import hierax as hx
from hierax._math.psi import (
    augmented_lagrangian,
    augmented_term,
    nonnegative,
    saddle_gradient,
    saddle_gradient_xw,
    shifted_multiplier,
)
from hierax.extend import Rows

SHAPES = st.sampled_from([(1, 2, 1, 1), (3, 4, 5, 2)])
LEVELS = st.sampled_from([-100.0, 0.0, 100.0])  # no constraint active, some, all
GAMMAS = st.floats(0.05, 20.0)


def value(data, x, z, w, lam, gamma1, gamma2):
    return saddle_value(random_problem(data), x, z, w, lam, gamma1, gamma2, data["xi"])


@jax.jit
def formulas(data, gamma1, gamma2):
    problem = random_problem(data)
    x, z, w, lam, xi = data["x"], data["z"], data["w"], data["lam"], data["xi"]
    gradient = saddle_gradient(problem, x, z, w, lam, gamma1, gamma2, xi)
    d_x, d_w = saddle_gradient_xw(problem, x, w, lam, gamma1, xi)
    return (d_x, gradient.w, gradient.lam), d_w, problem.rows(x, w)


@jax.jit
def derivatives(data, gamma1, gamma2):
    at = functools.partial(value, data)
    return jax.grad(at, (0, 2, 3))(data["x"], data["z"], data["w"], data["lam"], gamma1, gamma2)


@jax.jit
def slope(data, gamma1, gamma2, direction):
    """Central difference of ell along a direction of (x, w, lam)."""
    flat, unravel = ravel_pytree((data["x"], data["w"], data["lam"]))
    unit = direction[: flat.size] / jnp.linalg.norm(direction[: flat.size])

    def along(t):
        x, w, lam = unravel(flat + t * unit)
        return value(data, x, data["z"], w, lam, gamma1, gamma2)

    return (along(1e-5) - along(-1e-5)) / 2e-5, unit


@given(st.integers(0, 10**6), SHAPES, LEVELS, GAMMAS, GAMMAS)
def test_gradients_of_the_saddle_function(seed, shape, level, gamma1, gamma2):
    data = random_data(seed, *shape, level)
    formula, d_w, values = formulas(data, gamma1, gamma2)
    exact = derivatives(data, gamma1, gamma2)
    close(formula, exact, rtol=1e-11, atol=1e-11)
    close(d_w, formula[1], rtol=1e-12, atol=1e-12)
    assert level == 0 or np.all(np.sign(ravel_pytree(values.inequalities)[0]) == np.sign(level))
    # A quadratic spline: where no kink lies within 1e-5 of the point, central differences are good to 1e-7 or so.
    difference, unit = slope(data, gamma1, gamma2, np.random.default_rng(seed).standard_normal(64))
    np.testing.assert_allclose(ravel_pytree(formula)[0] @ unit, difference, rtol=1e-5, atol=1e-5)


def test_augmented_term_by_hand():
    # gamma1 = 2; active: (2*1 + 3)^2 = 25, minus (2*1)^2 = 4, over 4; inactive: -(2*0.5)^2 over 4; equality 3*2 + 9/4.
    values, z = Rows(jnp.array([3.0, -5.0]), jnp.array([3.0])), Rows(jnp.array([1.0, 0.5]), jnp.array([2.0]))
    np.testing.assert_allclose(augmented_term(values, z, 2.0), 21 / 4 - 1 / 4 + 6 + 9 / 4, rtol=1e-15)
    mu = shifted_multiplier(values, z, 2.0)
    np.testing.assert_allclose(mu.inequalities, [5 / 2, 0.0])
    np.testing.assert_allclose(mu.equalities, [2 + 3 / 2])


def test_equality_multipliers_keep_their_sign():
    rows = nonnegative(Rows(jnp.array([-1.0, 2.0]), (jnp.array([-3.0]),)))
    np.testing.assert_array_equal(rows.inequalities, [0.0, 2.0])
    np.testing.assert_array_equal(rows.equalities[0], [-3.0])


@given(st.floats(0.1, 5.0), st.floats(0.01, 0.9), st.floats(-3.0, 3.0), st.floats(0.0, 3.0))
def test_saddle_function_is_concave_in_lam_even_for_small_gamma2(gamma1, part, h, z):
    """The paper's main text prints A without -gamma1^2 z^2: then ell would grow without bound for gamma2 < gamma1."""
    gamma2 = part * gamma1
    lam = jnp.linspace(0.0, 1000.0, 2001)
    shaped = jax.vmap(lambda m: augmented_term(Rows(h, None), Rows(m, None), gamma1) - 0.5 * gamma2 * (m - z) ** 2)
    values = np.asarray(shaped(lam))
    assert np.all(np.diff(values, 2) <= 1e-6 * np.abs(values).max())
    assert values[-1] < values[0]
    printed = values + 0.5 * gamma1 * np.asarray(lam) ** 2
    assert printed[-1] > printed[0]


def test_without_constraints_the_augmented_term_vanishes():
    problem = hx.Problem(lambda x, y, zeta: x, lambda x, y, xi: (y - x) ** 2)
    rows = problem.rows(1.0, 2.0)
    assert jax.tree.leaves(rows) == []
    assert augmented_lagrangian(problem, 1.0, 3.0, rows, 1.0, None) == 4.0
    gradient = saddle_gradient(problem, jnp.array(1.0), rows, jnp.array(3.0), rows, 1.0, 1.0, None)
    assert gradient.w == 4.0
    assert jax.tree.leaves(gradient.lam) == []


def test_ten_thousand_constraints_without_their_jacobian():
    p, n = 10_000, 200
    problem = hx.Problem(
        lambda x, y, zeta: jnp.sum(x**2),
        lambda x, y, xi: jnp.sum(y**2),
        lambda x, y: jnp.resize(y, p) ** 2 - jnp.resize(x, p),
    )
    rows = Rows(jnp.ones(p), None)

    def gradients(x, w, z, lam):
        return saddle_gradient(problem, x, z, w, lam, 1.0, 1.0, None), saddle_gradient_xw(problem, x, w, lam, 1.0, None)

    def largest(jaxpr):
        own = [v.aval.size for e in jaxpr.eqns for v in e.outvars]
        nested = [largest(j) for e in jaxpr.eqns for j in jax.extend.core.jaxprs_in_params(e.params)]
        return max(own + nested)

    traced = jax.make_jaxpr(gradients)(jnp.ones(n), jnp.ones(n), rows, rows)
    assert largest(traced.jaxpr) < 10 * p
    (inner, outer) = jax.jit(gradients)(jnp.ones(n), jnp.full(n, 2.0), rows, rows)
    # mu = [1 + (4 - 1)]_+ = 4, fifty constraints per entry: 2*2 + 50 * 2*2*4, and -50 * 4 for x.
    np.testing.assert_allclose(inner.w, np.full(n, 804.0))
    np.testing.assert_allclose(outer[0], np.full(n, -200.0))
