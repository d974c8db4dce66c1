"""The polishes of the small route: derivatives against differences, and what their lines say.

Unit tests of hierax._auto.descents.
"""

import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax._auto.descents import System
from hierax._auto.hunt import Space
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.vectors import Point


@pytest.fixture(scope="module")
def space():
    """Every kind of line: upper rows, rows and an equality below, bounds of both levels; the lower level is convex."""
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((y - 1.0) ** 2) + x[0] * y[1] + jnp.exp(0.1 * x[1]),
        lower=lambda x, y, xi: jnp.sum(y**2) + y[0] * jnp.sin(x[0]) - 2.0 * x[1] * y[1] + 0.1 * jnp.sum(y**4),
        constraints=lambda x, y: jnp.stack([y[0] ** 2 + y[1] - 2.0 - x[0], y[2] - x[1]]),
        equalities=lambda x, y: jnp.sum(y) - x[0],
        upper_constraints=lambda x, y: x[0] + y[0] * x[1] - 3.0,
        x_set=hx.Box(-np.ones(2), 2 * np.ones(2)),
        y_set=hx.Box(np.array([-2.0, -np.inf, -2.0]), np.array([2.0, np.inf, np.inf])),
    )
    setting = Float64Problem.of(problem, np.array([0.4, 0.3]), np.array([0.2, 0.1, 0.1]), 64, 0)
    return Space.of(setting, 4, 0, 0, lambda: False)


@pytest.mark.parametrize("cuts", [0, 2])
def test_lines_have_the_derivatives_of_differences(space, cuts):
    layout = space.vectors.layout
    solved = space.vectors.branches(space.xs[0], space.ys[0])
    branches = cuts * (Point(space.xs[0], solved.y[0], solved.mu[0]),)
    system, rng = System(space, branches, with_multipliers=True), np.random.default_rng(1)
    mu = rng.uniform(0.1, 1.0, layout.rows)
    u = system.packed(Point(space.xs[0] + 0.01, space.ys[0] - 0.02, mu))
    found, step = system.evaluate(u, t=0.1), 1e-5
    assert system.equalities == 1 + layout.ny  # one equality below, and stationarity
    for entry in range(u.size):
        there, back = (system.evaluate(u + side * step * np.eye(u.size)[entry], t=0.1) for side in (1, -1))
        difference = (there[:, 0] - back[:, 0]) / (2 * step)
        assert np.allclose(found[:, 1 + entry], difference, rtol=1e-5, atol=1e-6)


def test_lines_say_what_the_kkt_conditions_say(space):
    """At a solution of the lower level: stationary, feasible, complementary; t is what the products have to spare."""
    solved = space.vectors.branches(space.xs[0], space.ys[0])
    point = Point(space.xs[0], solved.y[0], solved.mu[0])
    system = System(space, (), with_multipliers=True)
    found = system.evaluate(system.packed(point), t=0.25)
    values = space.vectors.values(*point)
    assert np.isclose(found[0, 0], values.upper)
    assert np.allclose(found[-system.equalities :, 0], 0.0, atol=1e-8)
    assert np.allclose(found[system.parts["pairs"], 0], 0.25, atol=1e-8)
    assert np.all(found[1 : system.parts["pairs"].start, 0] >= -1e-8 - np.max(np.maximum(values.above, 0)))


def test_outside_of_the_sets_lines_go_on_straight(space):
    vectors = space.vectors
    mu = np.zeros(vectors.layout.rows)
    inside = np.concatenate([vectors.x_limits.upper, space.ys[0], mu])
    away = np.zeros(inside.size)
    away[0] = 0.7
    here, there = vectors.table(inside), vectors.table(inside + away)
    assert np.allclose(there[:, 0], here[:, 0] + 0.7 * here[:, 1])
    assert np.allclose(there[:, 1:], here[:, 1:])
