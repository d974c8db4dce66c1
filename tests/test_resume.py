"""`solve(..., state=sol.state)` goes on bit for bit where the run was."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from cases import METHOD, TOY, VR, same

import hierax as hx

CASES = [(METHOD, output) for output in ("last", "tail", "best", "random")] + [
    (VR, "last"),
    pytest.param(VR, "random", marks=pytest.mark.slow),  # both halves of it above
    pytest.param(METHOD, "random_after", marks=pytest.mark.slow),
]


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
    assert whole.counts.zeta == third.counts.zeta == 90 * method.batches(TOY.problem).zeta
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
    other = hx.solve(TOY.problem, 0.2, 0.3, METHOD, max_steps=10, seed=99, state=first.state, output="last")
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
    assert second.counts.grad_lower - first.counts.grad_lower == 10 * (
        10 + 2 + 2
    )  # the inner loop, the step, and a product that watches it
    assert second.status.step == 20


def test_going_on_without_a_method_keeps_the_settings():
    method = dataclasses.replace(METHOD, penalty="quadratic", inner=hx.SALM(steps=3))
    whole = hx.solve(TOY.problem, 1.4, 0.5, method, max_steps=20)
    half = hx.solve(TOY.problem, 1.4, 0.5, method, max_steps=10)
    on = hx.solve(TOY.problem, 1.4, 0.5, max_steps=10, state=half.state)
    assert on.method.penalty == "quadratic"
    assert on.method.inner.steps == 3
    assert (on.x, on.y) == (whole.x, whole.y)
    assert on.counts.zeta == whole.counts.zeta == 20


def test_another_output_is_collected_anew():
    half = hx.solve(TOY.problem, 1.4, 0.5, METHOD, max_steps=10, output="tail")
    on = hx.solve(TOY.problem, 1.4, 0.5, METHOD, max_steps=10, state=half.state, output="last")
    assert on.x == on.state.run.state.point.x
    again = hx.solve(TOY.problem, 1.4, 0.5, METHOD, max_steps=10, state=on.state, output="tail")
    assert again.x != again.state.run.state.point.x


def test_a_run_that_met_its_tolerance_can_go_on():
    easy = hx.Problem(upper=lambda x, y, zeta: (x - 1.0) ** 2 + y**2, lower=lambda x, y, xi: (y - x) ** 2)
    done = hx.solve(easy, 0.0, 0.0, hx.SALVF(), tol=1e-2, max_steps=5000, record_every=50)
    assert done.status.name == "not_certified"
    on = hx.solve(easy, 0.0, 0.0, max_steps=7, state=done.state)
    assert on.status.name == "max_steps"
    assert on.status.step == done.status.step + 7


def test_a_state_of_other_shapes_or_direction_is_refused():
    state = hx.solve(TOY.problem, 1.4, 0.5, METHOD, max_steps=2).state
    with pytest.raises(hx.InputError, match="does not fit Storm"):
        hx.solve(TOY.problem, 1.4, 0.5, hx.SALVF_VR(), max_steps=2, state=state)
    plain = hx.Problem(upper=lambda x, y, zeta: jnp.sum(x**2 + y**2), lower=lambda x, y, xi: jnp.sum((y - x) ** 2))
    with pytest.raises(hx.InputError, match="belongs to variables"):
        hx.solve(plain, np.ones(2), np.ones(2), max_steps=2, state=state)
