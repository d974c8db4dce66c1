"""KKT systems of active sets that differ in a few rows: against a dense solve with the active rows only.

Unit tests of hierax._math.hypergradient.
"""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hierax._math.hypergradient import Adjoint, System, adjoint

N = 5


def system_of(hessian: np.ndarray, jacobian: np.ndarray) -> System:
    """A system with every scale at one."""
    ones = jnp.ones(len(jacobian))
    one = jnp.ones(())
    return System(jnp.asarray(hessian), jnp.asarray(jacobian), ones, one, ones, ones, ones, one, np.zeros(0, bool))


def directly(hessian: np.ndarray, jacobian: np.ndarray, active: np.ndarray, grad_y: np.ndarray) -> tuple[Any, Any]:
    """(v, u) of one set by a dense solve with its rows only: a reference that shares no code."""
    held = jacobian[active]
    corner = np.zeros((len(held), len(held)))
    matrix = np.block([[hessian, held.T], [held, corner]])
    found = np.linalg.solve(matrix, np.concatenate([-grad_y, np.zeros(len(held))]))
    u = np.zeros(len(jacobian))
    u[active] = found[N:]
    return found[:N], u


def all_sets(active: np.ndarray, doubted: list[int]) -> list[np.ndarray]:
    """The set itself first; the first doubted row changes sides fastest."""
    sets = []
    for digits in itertools.product([False, True], repeat=len(doubted)):
        other = active.copy()
        other[doubted] ^= digits[::-1]
        sets.append(other)
    return sets


def solved(hessian: Any, jacobian: Any, sets: list[np.ndarray], grad_y: Any) -> Adjoint:
    """The answers of all sets, on a leading axis."""

    def program(active: Any) -> Adjoint:
        return adjoint(system_of(hessian, jacobian), active, jnp.asarray(grad_y))

    return jax.jit(jax.vmap(program))(jnp.stack(sets))


def random_system(seed: int, rows: int, flat: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A Hessian with `flat` null directions, rows of norm one, a right-hand side."""
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((N, N))
    root[:, :flat] = 0.0
    jacobian = rng.standard_normal((rows, N))
    return root.T @ root / N, jacobian / np.linalg.norm(jacobian, axis=1)[:, None], rng.standard_normal(N)


@pytest.mark.parametrize("flat", [0, 1])
@pytest.mark.parametrize("rows", [3, 7])
def test_every_set_is_solved_as_if_alone(rows: int, flat: int) -> None:
    hessian, jacobian, grad_y = random_system(rows, rows, flat)
    active = np.isin(np.arange(rows), [0, 1])
    doubted = [1, 2, rows - 1] if rows > 3 else [2, 1]  # some leave, some join
    sets = all_sets(active, doubted)
    found = solved(hessian, jacobian, sets, grad_y)
    assert not np.any(found.singular)
    for i, one in enumerate(sets):
        v, u = directly(hessian, jacobian, one, grad_y)
        np.testing.assert_allclose(found.y[i], v, atol=1e-8)
        np.testing.assert_allclose(found.rows[i], u, atol=1e-8)


def test_sets_with_dependent_gradients_are_named_and_the_others_solved() -> None:
    """Row 3 is row 0: the two together are singular, and no set without both of them is."""
    hessian, jacobian, grad_y = random_system(1, 5)
    jacobian[3] = jacobian[0]
    for active in (np.array([True, True, False, True, False]), np.array([True, True, False, False, False])):
        sets = all_sets(active, [3, 2])
        found = solved(hessian, jacobian, sets, grad_y)
        dependent = np.array([one[0] and one[3] for one in sets])
        assert dependent.sum() == 2
        np.testing.assert_array_equal(found.singular, dependent)
        assert not np.any(found.flat[dependent])
        for i in np.flatnonzero(~dependent):
            v, u = directly(hessian, jacobian, sets[i], grad_y)
            np.testing.assert_allclose(found.y[i], v, atol=1e-8)
            np.testing.assert_allclose(found.rows[i], u, atol=1e-8)


def test_sets_that_leave_the_objective_flat_are_named() -> None:
    """Nothing but row 0 holds the one direction without curvature."""
    hessian = np.diag([0.0, 1.0, 1.0, 1.0, 1.0])
    jacobian = np.eye(N)[:3]
    active = np.array([True, False, False])
    found = solved(hessian, jacobian, all_sets(active, [0, 1]), np.ones(N))
    np.testing.assert_array_equal(found.singular, [False, True, False, True])
    assert np.all(found.flat[np.asarray(found.singular)])


def test_more_active_rows_than_variables() -> None:
    """Six active rows of y with five entries: singular, but for the set that a doubted row has left."""
    hessian, jacobian, grad_y = random_system(2, 7)
    active = np.arange(7) < N + 1
    sets = all_sets(active, [2, 6])
    found = solved(hessian, jacobian, sets, grad_y)
    full = np.array([one.sum() > N for one in sets])
    np.testing.assert_array_equal(found.singular, full)
    (i,) = np.flatnonzero(~full)
    v, u = directly(hessian, jacobian, sets[i], grad_y)
    np.testing.assert_allclose(found.y[i], v, atol=1e-8)
    np.testing.assert_allclose(found.rows[i], u, atol=1e-8)
