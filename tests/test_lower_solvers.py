"""`solve` of a lower solver called by hand: compiled once for problems of equal form, and as before inside of jit.

Unit tests of hierax._lower.base and of what hierax._compile.bound keeps.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax import AbstractLowerSolver, Exact, MaxMin
from hierax._compile import bound as programs

SOLVERS: list[AbstractLowerSolver] = [Exact(), MaxMin(dual_steps=300, primal_steps=5)]


def pulled_to(target: Any) -> hx.Problem:
    """y*(x) = min(target x, x): a fresh lambda for every call."""
    return hx.Problem(lambda x, y, _: y, lambda x, y, _: (y - target * x) ** 2, lambda x, y: y - x)


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the programs that are compiled from now on."""
    names: list[str] = []
    remember = programs._remember

    def noted(cache: Any, key: Any, value: Any) -> None:
        if cache is programs._programs:
            names.append(key[2])
        remember(cache, key, value)

    monkeypatch.setattr(programs, "_remember", noted)
    programs.forget_programs()
    return names


@pytest.mark.parametrize("solver", SOLVERS, ids=lambda solver: type(solver).__name__)
def test_problems_of_equal_form_share_a_program(solver: AbstractLowerSolver, compiled: list[str]) -> None:
    needed = []
    for target, x in ((2.0, 1.5), (3.0, 0.5), (0.5, 1.0)):
        found = solver.solve(pulled_to(jnp.asarray(target)), x, 0.0)
        assert found.y == pytest.approx(min(target, 1) * x, abs=1e-4)
        needed = needed or list(compiled)
    assert compiled == needed != []


def in_jit(x: Any, solve: Callable) -> Any:
    return jax.jit(lambda x: solve(x, 2.0))(x)


def in_vmap(x: Any, solve: Callable) -> Any:
    return jax.vmap(lambda x: solve(x, 2.0))(jnp.stack([x, x]))[0]


def in_vmap_through_a_closure(x: Any, solve: Callable) -> Any:
    """What is mapped over is seen by the problem's functions only."""
    return jax.vmap(lambda target: solve(x, target))(jnp.full(2, 2.0))[0]


def in_jit_through_a_closure(x: Any, solve: Callable) -> Any:
    return jax.jit(lambda target: solve(x, target))(2.0)


@pytest.mark.parametrize("around", [in_jit, in_vmap, in_jit_through_a_closure, in_vmap_through_a_closure])
def test_inside_a_transformation_nothing_is_compiled_apart(around: Callable, compiled: list[str]) -> None:
    y = around(jnp.asarray(1.5), lambda x, target: Exact().solve(pulled_to(target), x, jnp.zeros(())).y)
    assert y == pytest.approx(1.5, abs=1e-6)
    assert compiled == []


def test_trees_batches_and_multipliers_go_through(compiled: list[str]) -> None:
    """min over a, b of mean (a - x xi)^2 + (b - 1)^2 with a + b <= 1: at x = 1 and xi = 1 it is a = b = 1/2."""

    def lower(x: Any, y: Any, xi: Any) -> Any:
        return jnp.mean((y["a"] - x * xi) ** 2) + (y["b"] - 1) ** 2

    problem = hx.Problem(lambda x, y, _: y["a"], lower, lambda x, y: y["a"] + y["b"] - 1, xi=hx.Finite(np.ones(3)))
    y0 = {"a": 0.0, "b": np.zeros(())}
    first = Exact().solve(problem, 1.0, y0, np.ones(3))
    again = Exact().solve(problem, 1.0, first.y, np.ones(3), first.multipliers)
    for found in (first, again):
        assert float(found.y["a"]) == pytest.approx(0.5, abs=1e-6)
        assert float(found.multipliers.inequalities) == pytest.approx(1.0, abs=1e-5)
    assert int(again.iterations) < int(first.iterations)
    assert compiled == 2 * ["lower solve"]  # with multipliers too
