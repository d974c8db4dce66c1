"""Exact called outside of jit: its answers against Clarabel, closed forms, and calls inside of jit."""

import operator
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import close
from lower_levels import INSTANCES, START, by_clarabel, by_exact, problem_of, same_as

import hierax as hx
from hierax import Exact
from hierax.extend import INFEASIBLE, SOLVED, UNBOUNDED, LowerSolution

SOME = range(0, 100, 7)


def level(lower: Callable, constraints: Callable | None = None, y_set: Any = None) -> hx.Problem:
    return hx.Problem(lambda x, y, zeta: 0.0, lower, constraints, y_set=y_set)


def by_loop(solver: Exact, problem: hx.Problem, *args: Any) -> LowerSolution:
    """The compiled loop, which is what there is inside of jit."""
    return jax.jit(lambda args: solver.solve(problem, *args))(args)


@pytest.fixture(scope="module")
def looped() -> LowerSolution:
    return by_exact()


def test_cold_and_warm_starts_agree_with_clarabel(looped: LowerSolution) -> None:
    """Boxes, balls, simplices, equalities and ellipsoids, y a dict."""
    for place in SOME:
        one = INSTANCES[place]
        found, expected = Exact().solve(problem_of(one), None, START), jax.tree.map(operator.itemgetter(place), looped)
        assert found.status == SOLVED
        assert found.residual <= 1e-8
        assert jax.tree.structure(found) == jax.tree.structure(expected)
        assert [a.dtype for a in jax.tree.leaves(found)] == [a.dtype for a in jax.tree.leaves(expected)]
        same_as(by_clarabel(one), found, one)
        close((found.y, found.value), (expected.y, expected.value), rtol=1e-6, atol=1e-6)
        moved = one._replace(q=1.01 * one.q, b=one.b + 0.003)
        again = Exact().solve(problem_of(moved), None, found.y, None, found.multipliers)
        same_as(by_clarabel(moved), again, moved)


def random_qp(matrix: Any) -> hx.Problem:
    """min 1/2 y'My - x'y with sum y <= 1 and 0 <= y."""
    return level(lambda x, y, xi: 0.5 * y @ matrix @ y - x @ y, lambda x, y: jnp.sum(y) - 1, hx.NonNegative())


def test_a_curved_level_on_a_set() -> None:
    """Exponentials and a logarithm that is never evaluated outside of Y, against the loop."""
    problem = level(
        lambda x, y, xi: jnp.sum(jnp.exp(y)) - jnp.sum(jnp.log(y + 0.1)) - x @ y,
        lambda x, y: jnp.sum(y**2) - 4.0,
        hx.NonNegative(),
    )
    x, y = jnp.array([1.0, 8.0, -20.0]), jnp.ones(3)
    expected = by_loop(Exact(), problem, x, y)
    found = Exact().solve(problem, x, y)
    again = Exact().solve(problem, 1.01 * x, found.y, None, found.multipliers)
    assert found.status == expected.status == SOLVED
    close((found.y, found.value, found.multipliers), (expected.y, expected.value, expected.multipliers), atol=1e-6)
    close(again.y, by_loop(Exact(), problem, 1.01 * x, y).y, atol=1e-6)


@pytest.mark.parametrize("y_set", [hx.Box(-0.5, 0.5), hx.Ball(0.8), hx.Simplex(1.5), hx.NonNegative()], ids=str)
def test_the_nearest_point_of_a_set(y_set: Any) -> None:
    target = jnp.array([0.3, -1.4, 2.0])
    problem = level(lambda x, y, xi: jnp.sum((y - x * target) ** 2), y_set=y_set)
    found = Exact().solve(problem, 1.0, jnp.zeros(3))
    close(found.y, y_set.project(target), atol=1e-8)


def test_without_double_precision_switched_on() -> None:
    with jax.enable_x64(False):
        found = Exact().solve(random_qp(np.eye(3, dtype=np.float32)), jnp.array([1.0, 2.0, -1.0]), jnp.zeros(3))
        assert found.y.dtype == found.value.dtype == found.multipliers.inequalities.dtype == jnp.float32
        np.testing.assert_allclose(found.y, [0.0, 1.0, 0.0], atol=1e-6)


NO_SOLUTION = {
    "half-spaces": (lambda x, y, xi: jnp.sum(y**2), lambda x, y: jnp.stack([y[0] + 1, 1 - y[0]]), INFEASIBLE),
    "a ball": (lambda x, y, xi: jnp.sum(y**2), lambda x, y: jnp.sum(y**2) + 1, INFEASIBLE),
    "a ray": (lambda x, y, xi: y[0] ** 2 - y[1], lambda x, y: y[0] - 1, UNBOUNDED),
}


@pytest.mark.parametrize("name", NO_SOLUTION)
def test_levels_without_solution_have_the_status_of_the_loop(name: str) -> None:
    lower, constraints, status = NO_SOLUTION[name]
    problem, y = level(lower, constraints), jnp.array([0.3, -0.2])
    assert Exact().solve(problem, None, y).status == by_loop(Exact(), problem, None, y).status == status


def test_a_maximum_is_not_a_solution() -> None:
    """Newton's steps from 0.1 go to the hill-top at 0; with two entries, to the saddle between the wells."""
    problem = level(lambda x, y, xi: jnp.sum(y**4 - y**2) + x * y[0] * y[1])
    for y in (jnp.full(2, 0.1), jnp.array([0.1, 0.7])):
        found = Exact().solve(problem, 0.1, y)
        assert found.status == SOLVED
        assert np.min(np.abs(found.y)) > 0.5


def test_threads_may_call_at_once() -> None:
    matrices = [size * np.eye(3) for size in (1.0, 2.0)]
    x, answers = jnp.array([0.2, 0.1, -1.0]), {}

    def work(place: int) -> None:
        problem = random_qp(jnp.asarray(matrices[place]))
        answers[place] = [Exact().solve(problem, x, jnp.zeros(3)).y for _ in range(10)]

    threads = [threading.Thread(target=work, args=(place,)) for place in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for place, size in enumerate((1.0, 2.0)):
        np.testing.assert_allclose(answers[place], 10 * [np.array([0.2, 0.1, 0.0]) / size], atol=1e-9)


def test_derivatives_and_maps_are_those_of_the_loop() -> None:
    """They agree with the calls outside."""
    problem, xs = random_qp(jnp.diag(jnp.array([1.0, 2.0, 3.0]))), jnp.array([[1.0, 2.0, -1.0], [0.1, 0.2, 0.3]])
    mapped = jax.vmap(lambda x: Exact().solve(problem, x, jnp.zeros(3)).y)(xs)
    close(mapped, jnp.stack([Exact().solve(problem, x, jnp.zeros(3)).y for x in xs]), atol=1e-7)
