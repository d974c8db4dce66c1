"""`solve(..., state=sol.state)` goes on bit for bit where the run was."""

import dataclasses

import numpy as np
import pytest
from cases import METHOD, TOY, VR, same

import hierax as hx

CASES = [(METHOD, output) for output in ("last", "tail", "best", "random")] + [(VR, "last"), (VR, "random")]


def run(method, output, steps, state=None, **call):
    settings = {"max_steps": steps, "record_every": 5, "output": output, "seed": 1, "state": state, **call}
    return hx.solve(TOY.problem, TOY.x0, TOY.y0, method, **settings)


@pytest.mark.parametrize(("method", "output"), CASES)
def test_continued_run_is_one_long_run(method, output):
    whole = run(method, output, 90)
    first = run(method, output, 35)
    second = run(method, output, 15, first.state)
    third = run(method, output, 40, second.state)
    same((whole.x, whole.y, whole.multipliers, whole.state.run), (third.x, third.y, third.multipliers, third.state.run))
    assert whole.counts.zeta == third.counts.zeta == 90
    assert whole.counts.xi == third.counts.xi
    steps = np.concatenate([part.history["step"] for part in (first, second, third)])
    np.testing.assert_array_equal(steps, whole.history["step"])
    upper = np.concatenate([part.history["upper"] for part in (first, second, third)])
    np.testing.assert_array_equal(upper, whole.history["upper"])
    # Nothing was overwritten: the earlier states still work, and lead to the same end.
    same(run(method, output, 55, first.state).x, whole.x)
    same(run(method, output, 15, first.state).state.run, second.state.run)


def test_seed_and_start_do_not_matter_once_there_is_a_state():
    first = run(METHOD, "last", 10)
    other = hx.solve(TOY.problem, 0.2, 0.3, METHOD, max_steps=10, seed=99, state=first.state)
    same(other.x, run(METHOD, "last", 10, first.state).x)


def test_settings_may_change_on_the_way_and_unset_ones_are_kept():
    first = run(METHOD, "last", 10)
    more = dataclasses.replace(METHOD, c1=7.0)
    second = run(more, "last", 10, first.state)
    assert float(second.method.c1) == 7.0
    assert float(second.method.c2) == 100.0
    same(second.method.inner, first.method.inner)
    assert second.x != run(METHOD, "last", 10, first.state).x
    # The resolved method says the same as the one it came from.
    same(run(first.method, "last", 10, first.state).x, run(METHOD, "last", 10, first.state).x)


def test_seconds_and_counts_add_up():
    first = run(METHOD, "last", 10)
    second = run(METHOD, "last", 10, first.state)
    assert second.counts.seconds > first.counts.seconds
    assert second.counts.grad_lower - first.counts.grad_lower == 10 * (10 + 2)
    assert second.status.step == 20
