"""Exact with many starts: the global value of lower levels that are not convex, per-branch multipliers and slopes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax._math.lower_level import level_at
from hierax._math.scatter import cover, unit_cube
from hierax._problem import sets
from hierax.extend import SOLVED, UNBOUNDED
from hierax_lab.problems import bolib

STARTS = 24
EXACT = hx.Exact(starts=STARTS)


def branches(problem, x, y, seed=0):
    points = cover(problem.y_set, y, unit_cube(y.size, STARTS - 1, seed))
    rows = level_at(problem, x, y, None).equal.size

    @jax.jit
    def found(x):
        return EXACT.branches(problem, x, y, None, points, jnp.zeros((STARTS, rows)))

    return found


@pytest.mark.parametrize("name", ["MitsosBarton2006Ex316", "Vogel2012", "PaulaviciusAdjiman2017a"])
def test_value_is_that_of_a_dense_grid(name):
    case = bolib.load(name)
    problem, (_, y) = case.problem(), case.x0y0()
    found = branches(problem, jnp.zeros(1), y)
    low, high = (np.clip(np.broadcast_to(side, 1), -10, 10)[0] for side in sets.bounds(problem.y_set, y))
    grid = np.linspace(low, high, 20001)
    for at in np.linspace(*(np.broadcast_to(side, 1)[0] for side in sets.bounds(problem.x_set, jnp.zeros(1))), 7):
        x = jnp.asarray([at])
        values = np.asarray(jax.vmap(lambda t, x=x: problem.lower(x, t[None], None))(grid))
        if case.rows is not None:
            rows = np.asarray(jax.vmap(lambda t, x=x: problem.constraints(x, t[None]))(grid)).max(axis=1)
            values = np.where(rows <= 0, values, np.inf)
        end = found(x)
        solved = end.value[end.status == SOLVED]
        assert solved.size > 0
        np.testing.assert_allclose(solved.min(), values.min(), atol=2e-2)  # the grid is what is coarse
        assert solved.min() <= values.min() + 1e-7


def test_slope_of_a_branch_is_that_of_its_value():
    case = bolib.load("Outrata1993Ex32")
    problem, (_, y) = case.problem(), case.x0y0()
    found = branches(problem, jnp.zeros(1), y)
    x, step = jnp.asarray([3.0]), 1e-5
    here, up, down = (found(x + t) for t in (0.0, step, -step))
    best = int(jnp.argmin(here.value))
    np.testing.assert_allclose(here.slope[best], (up.value[best] - down.value[best]) / (2 * step), rtol=1e-5)


def test_solve_returns_the_best_branch_and_its_multipliers():
    problem = hx.Problem(
        upper=lambda x, y, zeta: y,
        lower=lambda x, y, xi: y**4 - 2 * y**2 + 0.3 * y + 0 * x,
        y_set=hx.Box(-0.5, 2.0),
    )
    one = hx.Exact().solve(problem, jnp.asarray(0.0), jnp.asarray(-0.4))
    many = EXACT.solve(problem, jnp.asarray(0.0), jnp.asarray(-0.4))
    assert int(many.status) == SOLVED
    np.testing.assert_allclose(many.y, 0.960149, atol=1e-5)  # the larger root of 4 y^3 - 4 y + 0.3
    assert many.value <= one.value + 1e-9


def test_linear_lower_level_next_to_a_tie():
    problem = dataclasses.replace(bolib.load("DempeFranke2011Ex41").problem())
    for cost in (1e-5, 1e-7, 0.0, -1e-6):
        x = jnp.asarray([cost, -1.0])
        found = EXACT.solve(problem, x, jnp.asarray([2.0, 2.0]))
        assert int(found.status) == SOLVED
        np.testing.assert_allclose(found.value, min(cost, 2 * cost) - 2.0, atol=1e-7)


@pytest.mark.parametrize("objective", [lambda y: -y, lambda y: -(y**2)])
def test_unbounded(objective):
    problem = hx.Problem(lambda x, y, z: y, lambda x, y, xi: objective(y) + 0 * x, lambda x, y: -y - x)
    assert int(EXACT.solve(problem, jnp.asarray(0.5), jnp.asarray(0.5)).status) == UNBOUNDED


def test_scattered_points():
    box = hx.Box(np.array([0.0, -np.inf, 1.0]), np.array([2.0, np.inf, np.inf]))
    centre = jnp.array([1.0, 5.0, 2.0])
    points = np.asarray(cover(box, centre, unit_cube(3, 63)))
    np.testing.assert_array_equal(points[0], centre)
    assert (points[:, 0] >= 0).all() and (points[:, 0] <= 2).all() and (points[:, 2] >= 1).all()
    assert np.ptp(points[1:, 0]) > 1.8
    assert (points[:, 1] > 5).any() and (points[:, 1] < 5).any()
    again = np.asarray(cover(box, centre, unit_cube(3, 63)))
    np.testing.assert_array_equal(points, again)
    assert not np.array_equal(points, np.asarray(cover(box, centre, unit_cube(3, 63, seed=1))))
    ball = np.asarray(cover(hx.Ball(1.0), jnp.zeros(3), unit_cube(3, 31)))
    assert (np.linalg.norm(ball, axis=1) <= 1 + 1e-12).all()
