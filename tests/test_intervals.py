"""Unit tests of hierax._base.intervals and hierax._engine.settling: no value, slope or curvature is out of bounds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_hidden_solutions import well

from hierax._base.intervals import bounds
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.programs import Programs, raw_units
from hierax._engine.settling import settled
from hierax._engine.vectors import VectorProblem

FUNCTIONS = {
    "well": lambda y: 0.2 * (y[0] + y[1]) ** 2 - 2 * jnp.exp(-(((y[0] - 0.7) / 0.3) ** 2)),
    "waves": lambda y: jnp.sum(jnp.array([0.3, 0.7]) * jnp.cos(7 * y) - 0.2 * jnp.sin(3 * y)),
    "quotient": lambda y: y[0] / (3.0 + y[1] ** 2) + y[1] ** 3,
    "softplus": lambda y: jax.nn.softplus(y[0] - 2 * y[1]) + jax.nn.logsumexp(y),
    "choice": lambda y: jnp.where(y[0] > y[1], y[0] ** 2, jnp.abs(y[1])) + jnp.maximum(y[0], 0.3) * y[1],
    "powers": lambda y: (y[0] ** 2 + 1.0) ** 1.5 + jnp.sqrt(y[1] ** 2 + 1e-3) + 1 / (1 + jnp.exp(-y[0])),
    "matrices": lambda y: y @ jnp.array([[2.0, -1.0], [0.5, 1.0]]) @ y + jnp.linalg.norm(y - 5.0),
    "loop": lambda y: jax.lax.fori_loop(0, 3, lambda i, v: v * y[0], y[1]),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("order", [0, 1, 2])
def test_nothing_in_the_box_is_outside_of_the_bounds(name, order):
    function = FUNCTIONS[name]
    for _ in range(order):
        function = jax.jacfwd(function)
    rng = np.random.default_rng(0)
    boxes = [np.sort(rng.uniform(-2, 2, (2, 2)), axis=0) for _ in range(4)]
    points = rng.uniform(size=(40, 2))
    values = jax.jit(jax.vmap(function))
    enclosed = jax.jit(lambda low, high: bounds(function, low, high)[0])
    for low, high in boxes:
        found = enclosed(jnp.asarray(low), jnp.asarray(high))
        seen = np.asarray(values(jnp.asarray(low + points * (high - low))))
        slack = 1e-5 * (1 + np.abs(seen))
        assert (seen >= np.asarray(found.low) - slack).all()
        assert (seen <= np.asarray(found.high) + slack).all()


def test_bounds_tend_to_the_value_with_the_box():
    for name in set(FUNCTIONS) - {"loop"}:
        at = jnp.array([0.3, -0.4])
        (found,) = bounds(FUNCTIONS[name], at - 1e-3, at + 1e-3)
        assert found.high - found.low < 0.1, name


def test_a_quadratic_function_has_one_hessian_in_all_of_space():
    (found,) = bounds(jax.jacfwd(jax.jacfwd(FUNCTIONS["matrices"])), jnp.full(2, -1.0), jnp.full(2, 1.0))
    assert np.isfinite(found.low).all()
    square = jax.jacfwd(jax.jacfwd(lambda y: jnp.sum((y - 1.0) ** 2)))
    (found,) = bounds(square, jnp.full(2, -jnp.inf), jnp.full(2, jnp.inf))
    assert np.array_equal(found.low, 2 * np.eye(2))


def settled_at(problem, x, y):
    """Values of the lower level's solutions at (x, y), by how much a y may be lower, and the least on a fine grid."""
    setting = Float64Problem.of(problem, x, y, 64, 0)
    programs = Programs(setting)
    x, y = np.atleast_1d(x), np.atleast_1d(y)
    vectors = VectorProblem(programs, raw_units(setting), y, 0)
    found, left = settled(vectors, x, vectors.branches(x, y))
    return found.value[found.best()], left


@pytest.mark.parametrize("width", [0.1, 0.01, 1e-3])
def test_the_value_of_a_level_with_a_narrow_well_is_that_of_a_fine_grid(width):
    value, left = settled_at(well(width), 0.5, -0.5)
    grid = 0.7237 + width * np.linspace(-3, 3, 20001)
    lowest = np.min(0.2 * (grid + 0.5) ** 2 - 2 * np.exp(-(((grid - 0.7237) / width) ** 2)))
    assert left == 0.0
    assert value == pytest.approx(lowest, abs=1e-6)
