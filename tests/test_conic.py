"""Conic against SciPy, Clarabel itself and Exact; its statuses, the forms it refuses, and how it is called."""

import dataclasses
import importlib
import importlib.util

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lower_levels import INSTANCES, STACKED, START, by_clarabel, by_scipy, problem_of

import hierax as hx
from hierax.errors import InputError
from hierax.lower import conic
from hierax.lower.conic import Conic
from hierax.lower.exact import Exact
from hierax.lower.kkt import flat_level
from hierax.lower.solution import INACCURATE, INFEASIBLE, SOLVED, UNBOUNDED
from hierax.report import MissingExtra

needs_ecos = pytest.mark.skipif(
    importlib.util.find_spec("ecos") is None, reason="ECOS is GPL and not among hierax's extras: pip install ecos"
)


def level(lower, constraints=None, equalities=None, y_set=None):
    return hx.Problem(
        upper=lambda x, y, zeta: 0.0, lower=lower, constraints=constraints, equalities=equalities, y_set=y_set
    )


SQUARE = level(lambda x, y, xi: 0.5 * jnp.sum(y**2))


@pytest.fixture(scope="module")
def found():
    """All random problems by one compiled program."""
    return jax.jit(jax.vmap(lambda one: Conic().solve(problem_of(one), None, START)))(STACKED)


@pytest.mark.parametrize("solver", [by_scipy, by_clarabel])
def test_agrees_with_others_on_random_problems(found, solver):
    assert np.all(found.status == SOLVED)
    assert np.max(found.residual) <= 1e-9
    for place, one in enumerate(INSTANCES):
        other = solver(one)
        mine = jax.tree.map(lambda leaf: np.asarray(leaf[place]), found)  # noqa: B023
        np.testing.assert_allclose(mine.value, other.value, rtol=1e-7)
        scale = 1 + max(np.max(np.abs(part)) for part in other[2:])
        np.testing.assert_allclose(mine.multipliers.inequalities["affine"], other.affine, atol=1e-5 * scale)
        np.testing.assert_allclose(mine.multipliers.inequalities["balls"], other.balls, atol=1e-5 * scale)
        if one.E.any():
            np.testing.assert_allclose(mine.multipliers.equalities, other.equal, atol=1e-5 * scale)


def test_agrees_with_exact_on_everything(found):
    exact = jax.jit(jax.vmap(lambda one: Exact().solve(problem_of(one), None, START)))(STACKED)
    np.testing.assert_allclose(found.value, exact.value, rtol=1e-7)
    flat = [
        np.concatenate([np.reshape(leaf, (100, -1)) for leaf in jax.tree.leaves(part)], 1) for part in (found, exact)
    ]
    del flat
    for mine, other in zip(jax.tree.leaves(found.y), jax.tree.leaves(exact.y), strict=True):
        np.testing.assert_allclose(mine, other, atol=1e-6)
    for mine, other in zip(
        jax.tree.leaves((found.multipliers.inequalities, found.faces)),
        jax.tree.leaves((exact.multipliers.inequalities, exact.faces)),
        strict=True,
    ):
        np.testing.assert_allclose(mine, other, atol=1e-5 * (1 + np.max(np.abs(other))))
