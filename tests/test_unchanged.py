"""A problem that is solved again and again: traced once while nothing changes, and every change counts.

Unit tests of hierax._compile.unchanged.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx
from hierax._compile import bound
from hierax._compile.unchanged import MAX_COMPARED_NUMBERS, Seen, Unknown

TARGET = 1.0  # changed by tests


def target() -> float:
    return TARGET


class Holder:
    """An object with an attribute, whose changes nobody sees from outside."""

    def __init__(self, value: float) -> None:
        self.value = value

    def lower(self, x: Any, y: Any, xi: Any) -> Any:
        return jnp.sum((y - self.value) ** 2)


def solved(lower: Callable, y_set: Any = None) -> Callable[[], float]:
    """y* of one and the same problem, as often as it is called."""
    problem = hx.Problem(lambda x, y, zeta: 0.0, lower, y_set=y_set)
    return lambda: float(hx.Exact().solve(problem, jnp.zeros(1), jnp.zeros(1)).y[0])


def array_in_place() -> tuple[Callable, Callable]:
    values = np.ones(1)
    return lambda x, y, xi: jnp.sum((y - values) ** 2), lambda: values.__setitem__(0, 2.0)


def entry_of_a_dict() -> tuple[Callable, Callable]:
    values = {"target": 1.0}
    return lambda x, y, xi: jnp.sum((y - values["target"]) ** 2), lambda: values.update(target=2.0)


def entry_of_a_list_in_a_default() -> tuple[Callable, Callable]:
    values = [1.0]
    return lambda x, y, xi, given=values: jnp.sum((y - given[0]) ** 2), lambda: values.__setitem__(0, 2.0)


def closed_over() -> tuple[Callable, Callable]:
    value = 1.0

    def change() -> None:
        nonlocal value
        value = 2.0

    return lambda x, y, xi: jnp.sum((y - value) ** 2), change


def change_the_global() -> None:
    global TARGET
    TARGET = 2.0


def of_a_global() -> tuple[Callable, Callable]:
    return lambda x, y, xi: jnp.sum((y - TARGET) ** 2), change_the_global


def of_a_global_in_a_function() -> tuple[Callable, Callable]:
    return lambda x, y, xi: jnp.sum((y - target()) ** 2), change_the_global


def of_a_global_in_an_inner_function() -> tuple[Callable, Callable]:
    return lambda x, y, xi: (lambda: jnp.sum((y - TARGET) ** 2))(), change_the_global


def attribute() -> tuple[Callable, Callable]:
    holder = Holder(1.0)
    return lambda x, y, xi: jnp.sum((y - holder.value) ** 2), lambda: setattr(holder, "value", 2.0)


def attribute_through_a_method() -> tuple[Callable, Callable]:
    holder = Holder(1.0)
    return holder.lower, lambda: setattr(holder, "value", 2.0)


def argument_of_a_partial() -> tuple[Callable, Callable]:
    values = np.ones(1)

    def lower(values: np.ndarray, x: Any, y: Any, xi: Any) -> Any:
        return jnp.sum((y - values) ** 2)

    return functools.partial(lower, values), lambda: values.__setitem__(0, 2.0)


@pytest.mark.parametrize(
    "kind",
    [
        array_in_place,
        entry_of_a_dict,
        entry_of_a_list_in_a_default,
        closed_over,
        of_a_global,
        of_a_global_in_a_function,
        of_a_global_in_an_inner_function,
        attribute,
        attribute_through_a_method,
        argument_of_a_partial,
    ],
)
def test_every_change_counts(kind: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "TARGET", 1.0)
    lower, change = kind()
    answer = solved(lower)
    assert [answer(), answer()] == pytest.approx([1.0, 1.0], abs=1e-6)
    change()
    assert answer() == pytest.approx(2.0, abs=1e-6)


def test_changes_of_a_set_count() -> None:
    most = np.full(1, 1.0, np.float32)
    answer = solved(lambda x, y, xi: jnp.sum((y - 3.0) ** 2), hx.Box(np.zeros(1, np.float32), most))
    before = answer()
    most[0] = 2.0
    assert [before, answer()] == pytest.approx([1.0, 2.0], abs=1e-6)


def test_the_same_problem_is_traced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    traced = []
    trace_function = bound.trace_function

    def counted(name: str, *args: Any) -> Any:
        traced.append(name)
        return trace_function(name, *args)

    monkeypatch.setattr(bound, "trace_function", counted)
    numbers, of_numpy = jnp.ones(1), np.ones(1)
    answer = solved(lambda x, y, xi: jnp.sum((y - numbers * of_numpy * target()) ** 2))
    answer()
    first = len(traced)
    answer()
    answer()
    assert first > 0
    assert len(traced) == first


def test_what_may_change_unseen_has_no_list() -> None:
    def imports(x: Any) -> Any:
        import math

        return math.pi * x

    large = np.zeros(MAX_COMPARED_NUMBERS + 1)
    for thing in (Holder(1.0), Holder(1.0).lower, imports, large, iter([1]), lambda: eval("TARGET")):
        with pytest.raises(Unknown):
            Seen(thing)
    moved = [[1.0], [2.0]]
    seen = Seen(moved)
    moved[0].append(moved[1].pop())  # the same things in another order
    assert not seen.unchanged(moved)
    things = jnp.sum, np.sum, np.exp, jnp.float32, jnp.ones(2), (1, "a"), {"a": [None]}
    assert Seen(things).unchanged(things)
