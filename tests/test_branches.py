"""Exact with many starts: the global value of lower levels that are not convex, per-branch multipliers and slopes."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax.extend import SOLVED, UNBOUNDED
from hierax_lab.problems import bolib

STARTS = 24
EXACT = hx.Exact(starts=STARTS)


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
