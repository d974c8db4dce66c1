"""Exact called outside of jit: the active set method on the host against the compiled loop and Clarabel.

Unit tests of hierax._lower.on_host.
"""

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
from hierax._lower import on_host
from hierax._lower.on_host import solved_on_host
from hierax.extend import INFEASIBLE, SOLVED, UNBOUNDED, LowerSolution

SOME = range(0, 100, 7)
LIMITS: dict[str, Any] = {"tol": 1e-8, "max_steps": 200, "dense_limit": 2000}


def level(lower: Callable, constraints: Callable | None = None, y_set: Any = None) -> hx.Problem:
    return hx.Problem(lambda x, y, zeta: 0.0, lower, constraints, y_set=y_set)


def by_loop(solver: Exact, problem: hx.Problem, *args: Any) -> LowerSolution:
    """The compiled loop, which is what there is inside of jit."""
    return jax.jit(lambda args: solver.solve(problem, *args))(args)


@pytest.fixture(scope="module")
def looped() -> LowerSolution:
    return by_exact()


def test_cold_starts_agree_with_the_loop_and_with_clarabel(looped: LowerSolution) -> None:
    """Boxes, balls, simplices, equalities and ellipsoids, y a dict: most are solved on the host, all are solved."""
    on_the_host = 0
    for place in SOME:
        one = INSTANCES[place]
        found = solved_on_host(problem_of(one), None, START, None, None, **LIMITS)
        if found is not None:
            on_the_host += 1
            assert found.status == SOLVED
            assert found.residual <= 1e-8
            expected = jax.tree.map(operator.itemgetter(place), looped)
            assert jax.tree.structure(found) == jax.tree.structure(expected)
            assert [a.dtype for a in jax.tree.leaves(found)] == [a.dtype for a in jax.tree.leaves(expected)]
            same_as(by_clarabel(one), found, one)
            close((found.y, found.value), (expected.y, expected.value), rtol=1e-6, atol=1e-6)
    assert on_the_host >= 0.8 * len(SOME)


def test_every_warm_start_is_solved_on_the_host(looped: LowerSolution) -> None:
    steps = []
    for place in SOME:
        one = INSTANCES[place]
        moved = one._replace(q=1.01 * one.q, b=one.b + 0.003)
        last = jax.tree.map(operator.itemgetter(place), looped)
        found = solved_on_host(problem_of(moved), None, last.y, None, last.multipliers, **LIMITS)
        assert found is not None
        same_as(by_clarabel(moved), found, moved)
        steps.append(int(found.iterations))
    assert np.mean(steps) <= 6


def random_qp(matrix: Any) -> hx.Problem:
    """min 1/2 y'My - x'y with sum y <= 1 and 0 <= y."""
    return level(lambda x, y, xi: 0.5 * y @ matrix @ y - x @ y, lambda x, y: jnp.sum(y) - 1, hx.NonNegative())


def test_what_the_last_call_left_never_changes_an_answer() -> None:
    """The same form with other matrices, and one that differs in a single entry by a millionth."""
    rng = np.random.default_rng(3)
    root, x = rng.standard_normal((6, 6)), jnp.asarray(rng.standard_normal(6))
    first = root @ root.T + 0.1 * np.eye(6)
    second, third = first.copy(), 3 * first
    second[5, 5] *= 1 + 1e-6

    def solved(matrix: np.ndarray) -> LowerSolution:
        found = solved_on_host(random_qp(jnp.asarray(matrix)), x, jnp.zeros(6), None, None, **LIMITS)
        assert found is not None
        return found

    alone = []
    for matrix in (first, second, third):
        on_host._last.clear()
        alone.append(solved(matrix))
    for place in (0, 0, 1, 2, 0, 1, 1):
        close(solved((first, second, third)[place]), alone[place], rtol=1e-10, atol=1e-11)
    assert np.max(np.abs(alone[0].y - alone[1].y)) > 1e-9


def test_matrices_are_not_computed_again_where_they_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    counted = []
    table = on_host._Ready.table
    monkeypatch.setattr(on_host._Ready, "table", lambda *args: counted.append(1) or table(*args))
    on_host._last.clear()
    problem, y, mu = random_qp(jnp.diag(jnp.arange(1.0, 5.0))), jnp.zeros(4), None
    for size in (1.0, 1.01, 1.02, 1.03):
        found = Exact().solve(problem, size * jnp.array([1.0, 2.0, -1.0, 0.5]), y, None, mu)
        y, mu = found.y, found.multipliers
        assert found.status == SOLVED
    assert len(counted) == 1


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
    again = solved_on_host(problem, 1.01 * x, found.y, None, found.multipliers, **LIMITS)
    assert found.status == expected.status == SOLVED
    close((found.y, found.value, found.multipliers), (expected.y, expected.value, expected.multipliers), atol=1e-6)
    assert again is not None
    close(again.y, by_loop(Exact(), problem, 1.01 * x, y).y, atol=1e-6)


@pytest.mark.parametrize("y_set", [hx.Box(-0.5, 0.5), hx.Ball(0.8), hx.Simplex(1.5), hx.NonNegative()], ids=str)
def test_the_nearest_point_of_a_set(y_set: Any) -> None:
    target = jnp.array([0.3, -1.4, 2.0])
    problem = level(lambda x, y, xi: jnp.sum((y - x * target) ** 2), y_set=y_set)
    found = solved_on_host(problem, 1.0, jnp.zeros(3), None, None, **LIMITS)
    assert found is not None
    close(found.y, y_set.project(target), atol=1e-8)


def test_single_precision() -> None:
    """Computed in double precision, answered in single precision, judged as it is answered."""
    one = INSTANCES[3]
    single = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), one)
    start = jax.tree.map(lambda leaf: np.asarray(leaf, np.float32), START)
    found = solved_on_host(problem_of(single), None, start, None, None, **LIMITS)
    assert found is not None
    assert {leaf.dtype for leaf in jax.tree.leaves(found)} == {np.dtype(np.float32), np.dtype(np.int32)}
    assert 1e-10 < found.residual <= 2.4e-5
    np.testing.assert_allclose(found.value, by_clarabel(one).value, rtol=1e-5)


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
    assert solved_on_host(problem, None, y, None, None, **LIMITS) is None
    assert Exact().solve(problem, None, y).status == by_loop(Exact(), problem, None, y).status == status


def test_a_maximum_is_not_a_solution() -> None:
    """Newton's steps from 0.1 go to the hill-top at 0; with two entries, to the saddle between the wells."""
    problem = level(lambda x, y, xi: jnp.sum(y**4 - y**2) + x * y[0] * y[1])
    for y in (jnp.full(2, 0.1), jnp.array([0.1, 0.7])):
        assert solved_on_host(problem, 0.1, y, None, None, **LIMITS) is None
        found = Exact().solve(problem, 0.1, y)
        assert found.status == SOLVED
        assert np.min(np.abs(found.y)) > 0.5
    concave = level(lambda x, y, xi: -jnp.sum(y**2), y_set=hx.Box(-1.0, 2.0))
    assert solved_on_host(concave, None, jnp.full(2, 0.1), None, None, **LIMITS) is None


def test_settings_hold_on_the_host_too() -> None:
    problem, x, y = random_qp(jnp.eye(3)), jnp.array([1.0, 2.0, -1.0]), jnp.zeros(3)
    assert solved_on_host(problem, x, y, None, None, **LIMITS) is not None
    assert solved_on_host(problem, x, y, None, None, **LIMITS | {"dense_limit": 3}) is None
    assert solved_on_host(problem, x, y, None, None, **LIMITS | {"max_steps": 1}) is None
    assert Exact(starts=2).on_host(problem, x, y, None, None) is None
    assert solved_on_host(problem, x, jnp.zeros(3, int), None, None, **LIMITS) is None


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
    """Inside of jit, vmap and jvp nothing of this is used, and they agree with the calls outside."""
    problem, xs = random_qp(jnp.diag(jnp.array([1.0, 2.0, 3.0]))), jnp.array([[1.0, 2.0, -1.0], [0.1, 0.2, 0.3]])
    mapped = jax.vmap(lambda x: Exact().solve(problem, x, jnp.zeros(3)).y)(xs)
    close(mapped, jnp.stack([Exact().solve(problem, x, jnp.zeros(3)).y for x in xs]), atol=1e-7)
