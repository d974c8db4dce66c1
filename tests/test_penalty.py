"""Psi, its gradient, the outer multiplier, the control variate and stationarity.

Unit tests of hierax._math.psi.
"""

import jax
import jax.numpy as jnp
import numpy as np
from cases import close, random_data, random_problem
from formulas import psi, saddle_value
from hypothesis import given
from hypothesis import strategies as st
from jax.flatten_util import ravel_pytree

import hierax as hx
from hierax._math import psi as penalty
from hierax._math.psi import Inner, Point, PsiGradient, Weights, psi_gradient
from hierax.extend import Rows

SHAPES = st.sampled_from([(1, 2, 1, 1), (3, 4, 5, 2)])
LEVELS = st.sampled_from([-100.0, 0.0, 100.0])
NUMBERS = st.floats(0.05, 20.0)
FREE = hx.Free()
Y_SET = [hx.Box(-0.5, 0.5), hx.Ball(1.0)]


def parts(data):
    return Point(data["x"], data["y"], data["z"], data["nu"]), Inner(data["w"], data["lam"])


@jax.jit
def formula(data, weights):
    point, inner = parts(data)
    return psi_gradient(random_problem(data), point, inner, Weights(*weights), data["zeta"], data["xi"])


@jax.jit
def derivative(data, weights, direction):
    point, inner = parts(data)

    def value(block):
        at = point._replace(x=block[0], y=block[1], z=block[2])
        return psi(random_problem(data), at, inner, Weights(*weights), data["zeta"], data["xi"])

    block = (point.x, point.y, point.z)
    flat, unravel = ravel_pytree(block)
    unit = direction[: flat.size] / jnp.linalg.norm(direction[: flat.size])
    h = 1e-5
    slope = (value(unravel(flat + h * unit)) - value(unravel(flat - h * unit))) / (2 * h)
    return jax.grad(value)(block), slope, unit


@given(st.integers(0, 10**6), SHAPES, LEVELS, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_gradient_of_psi(seed, shape, level, c1, c2, gamma1, gamma2):
    data, weights = random_data(seed, *shape, level), (c1, c2, gamma1, gamma2)
    got = formula(data, weights)
    exact, slope, unit = derivative(data, weights, np.random.default_rng(seed).standard_normal(64))
    size = 1 + np.max(np.abs(ravel_pytree(exact)[0]))
    close((got.x, got.y, got.z), exact, rtol=1e-11, atol=1e-12 * size)
    np.testing.assert_allclose(ravel_pytree((got.x, got.y, got.z))[0] @ unit, slope, atol=1e-6 * size)
    problem = random_problem(data)
    np.testing.assert_allclose(got.upper, problem.upper(data["x"], data["y"], data["zeta"]), rtol=1e-12)
    np.testing.assert_allclose(got.lower, problem.lower(data["x"], data["y"], data["xi"]), rtol=1e-12)


@given(st.lists(st.floats(-3, 3), min_size=3, max_size=3), st.lists(st.floats(0, 3), min_size=3, max_size=3), NUMBERS)
def test_outer_term_and_its_push(values, nu, c2):
    values, nu = hx.Multipliers(*map(jnp.asarray, values)), hx.Multipliers(*map(jnp.asarray, nu))
    close(penalty.push(values, nu, c2), jax.grad(penalty.outer_term)(values, nu, c2), rtol=1e-12, atol=1e-12)
    zero = jax.tree.map(jnp.zeros_like, nu)
    h, e, up = values
    quadratic = 0.5 * c2 * (max(h, 0.0) ** 2 + e**2 + max(up, 0.0) ** 2)
    np.testing.assert_allclose(penalty.outer_term(values, zero, c2), quadratic, rtol=1e-12, atol=1e-14)


def test_update_of_the_outer_multiplier_by_hand():
    values = hx.Multipliers(jnp.array([0.1, -0.1, -9.0]), jnp.array([-0.5]), jnp.array([0.2]))
    nu = hx.Multipliers(jnp.array([1.0, 1.0, 1.0]), jnp.array([1.0]), jnp.array([0.0]))
    new = penalty.updated_nu(values, nu, 10.0, 0.5)
    np.testing.assert_allclose(new.inequalities, [1.5, 0.5, 0.5])  # the last: max(-nu, c2 H) = -nu
    np.testing.assert_allclose(new.equalities, [1.0 - 2.5])
    np.testing.assert_allclose(new.upper, [1.0])
    full = penalty.updated_nu(values, nu, 10.0, 1.0)
    close(full, penalty.push(values, nu, 10.0))  # tau = 1 is the method of multipliers
    worst = penalty.violation(values)
    np.testing.assert_allclose(worst.inequalities, [0.1, 0.0, 0.0])
    np.testing.assert_allclose(worst.equalities, [0.5])
    np.testing.assert_allclose(worst.upper, [0.2])


@jax.jit
def with_control(data, step):
    point, inner = parts(data)
    weights = Weights(2.0, 3.0, 0.7, 1.3)
    problem = random_problem(data, y_set=Y_SET)
    args = (problem, point, inner, weights, data["zeta"], data["xi"])
    return psi_gradient(*args, control=step), psi_gradient(*args)


def test_control_variate_touches_y_only_and_has_the_inner_gradients_noise():
    data = random_data(3, 1, 2, 1, 1, 0.0)
    data["w"] = [jnp.array([0.1, -0.2]), jnp.array([[0.1], [0.3]])]  # strictly inside Y
    with_it, plain = with_control(data, 1e-6)  # a step so short that it stays inside
    close((with_it.x, with_it.z), (plain.x, plain.z), rtol=1e-14, atol=1e-14)
    _, inner = parts(data)
    d_w = jax.grad(
        lambda w: saddle_value(random_problem(data), data["x"], data["z"], w, inner.lam, 0.7, 1.3, data["xi"])
    )(inner.w)
    close(with_it.y, jax.tree.map(lambda a, b: a - 2.0 * b, plain.y, d_w), rtol=1e-6, atol=1e-6)
    # The batch mean of xi enters grad_y g and d_w ell alike, so the corrected y-gradient does not see it.
    shifted = {**data, "xi": data["xi"] + 5.0}
    close(with_control(shifted, 1e-6)[0].y, with_it.y, rtol=1e-6, atol=1e-6)
    assert np.max(np.abs(with_control(shifted, 1e-6)[1].y[0] - plain.y[0])) > 5.0


def test_control_variate_on_the_boundary_keeps_the_tangential_part_only():
    point, gradient = jnp.array([1.0, 0.0, 1.0, 0.5]), jnp.array([-3.0, 2.0, 4.0, 1.0])
    mapped = penalty.gradient_mapping(hx.Box(0.0, 1.0), point, gradient, 1e-3)
    np.testing.assert_allclose(mapped, [0.0, 0.0, 4.0, 1.0], atol=1e-10)


def test_gradient_mapping_and_stationarity():
    gradient = jnp.array([3.0, -4.0])
    np.testing.assert_allclose(penalty.gradient_mapping(FREE, jnp.zeros(2), gradient, 0.1), gradient, rtol=1e-12)
    problem = hx.Problem(None, None, x_set=hx.Box(0.0, 1.0), y_set=FREE)
    point = Point(jnp.array(0.0), jnp.zeros(2), Rows(jnp.array([0.0, 1.0]), jnp.array([0.0])), None)
    still = PsiGradient(jnp.array(7.0), jnp.zeros(2), Rows(jnp.array([2.0, 0.0]), jnp.array([0.0])), None, None)
    assert penalty.stationarity(problem, point, still, 0.1) == 0.0  # x and z at a bound, pushed outwards
    moving = PsiGradient(jnp.array(-3.0), jnp.zeros(2), Rows(jnp.array([0.0, 0.0]), jnp.array([4.0])), None, None)
    np.testing.assert_allclose(penalty.stationarity(problem, point, moving, 0.1), 5.0, rtol=1e-12)
