"""`hierax_lab.problems.sparse`: the planted points are solutions, by a solver outside hierax."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hierax_lab.bench.medium_case import Bounds, Functions, MediumCase
from hierax_lab.bench.medium_phi import Phi
from hierax_lab.problems import chain, flows, membrane

EXAMPLES = {"chain": chain(40), "membrane": membrane(6), "flows": flows(3, goods=2)}


@pytest.mark.slow  # a part of it: the KKT conditions below
@pytest.mark.parametrize("name", EXAMPLES)
def test_the_planted_point_is_a_solution(name):
    """Clarabel finds the planted y at x*; F along y*(x) is 0 there, its slope too, and close by F is not lower."""
    example = EXAMPLES[name]
    (known,), n = example.solutions, example.y0.size
    low = np.full(n, -np.inf if name == "membrane" else 0.0)
    box = Bounds.between(-1.0, 1.0, known.x.size)
    case = MediumCase(example.problem, example.problem, example.x0, example.y0, box, Bounds(low, np.full(n, np.inf)))
    phi = Phi(Functions(case))
    np.testing.assert_allclose(phi.lower_solution(known.x), np.ravel(known.y), atol=1e-6)
    at = phi(known.x)
    assert abs(at.value) < 1e-6 and np.abs(at.gradient).max() < 1e-5
    steps = 0.01 * np.random.default_rng(0).normal(size=(5, known.x.size))
    assert all(phi(known.x + step).value > 1e-5 for step in steps)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_multipliers_are_those_of_the_kkt_conditions(name):
    """Where y is not at a bound, the Lagrangian of the stated functions has slope 0."""
    example = EXAMPLES[name]
    (known,) = example.solutions
    with jax.enable_x64(True):
        x, y = jnp.asarray(known.x), jnp.asarray(known.y)

        def lagrangian(y):
            terms = [example.problem.lower(x, y, None)]
            if known.multipliers is not None:
                terms.append(jnp.sum(known.multipliers * example.problem.constraints(x, y)))
            if known.equality_multipliers is not None:
                terms.append(jnp.sum(known.equality_multipliers * example.problem.equalities(x, y)))
            return sum(terms)

        slope = np.asarray(jax.jit(jax.grad(lagrangian))(y))
    inside = np.ones(y.shape, bool) if name == "membrane" else np.asarray(y) > 0
    np.testing.assert_allclose(slope[inside], 0.0, atol=1e-10)
    assert (slope[~inside] > 0).all()


def test_large_ones_are_made_without_a_solver():
    assert membrane(60).y0.size == 3600 and flows(8, goods=10).y0.size == 2240
