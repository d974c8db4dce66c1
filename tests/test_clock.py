"""Time limits, by a clock that the tests move themselves; by real clocks: the tests marked slow that name this file."""

import signal
import threading

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import EXACT, METHOD, TOY

import hierax as hx

HOUR = 3600.0


def waiting_for(clock, batches=()):
    """A loader that gives some batches, and then lets the time pass and gives nothing more."""
    yield from batches
    clock.forward(HOUR)
    threading.Event().wait()


def streamed(clock, batches=()):
    return hx.Problem(
        upper=lambda x, y, zeta: (x - 1.0) ** 2 + (y - 2.0) ** 2 + zeta.mean() * x,
        lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        constraints=lambda x, y: y - x,
        zeta=hx.Stream(waiting_for(clock, batches)),
    )


def test_a_run_of_steps_ends_at_the_first_look_after_its_time(clock):
    run = {"max_steps": 10_000, "record_every": 10, "seconds": HOUR}
    sol = hx.solve(TOY.problem, 1.4, 0.5, METHOD, callback=lambda info: clock.forward(0.4 * HOUR), **run)
    assert (sol.status.name, sol.status.step) == ("seconds", 30)
    assert sol.history["step"][-1] == 30  # the last record is of the last step
    assert "stationarity" in sol.status.message and sol.counts.seconds > HOUR
    on = hx.solve(TOY.problem, 1.4, 0.5, METHOD, max_steps=10, state=sol.state)
    assert on.state is not None and on.status.step == 40


def test_compiling_counts(clock):
    """What the time before the first step took, the limit knows: nothing is ordered after it."""

    def upper(x, y, zeta):
        clock.forward(HOUR)  # while the function is traced
        return (x - 1.0) ** 2 + y**2

    sol = hx.solve(hx.Problem(upper, lambda x, y, xi: (y - x) ** 2), 0.5, 0.5, METHOD, seconds=0.5 * HOUR)
    assert (sol.status.name, sol.status.step) == ("seconds", 0)
    assert len(sol.history) == 0 and np.isfinite(sol.value)


def test_a_search_of_auto_ends_and_says_what_its_certificate_misses(clock):
    seen = []

    def pass_the_time(info):
        seen.append(info.step)
        clock.forward(HOUR)

    sol = hx.solve(EXACT.problem, 1.4, 0.5, seconds=2.5 * HOUR, callback=pass_the_time)
    assert sol.status.name in ("seconds", "converged", "best_of_branches") and len(seen) <= 4
    assert np.isfinite(sol.value)
    if sol.status.name == "seconds":
        assert "the time was up" in sol.status.message


def test_a_stream_that_blocks_before_the_first_step_ends_with_the_clock(clock):
    sol = hx.solve(streamed(clock), 0.5, 0.5, METHOD, seconds=0.5 * HOUR)
    assert (sol.status.name, sol.status.step) == ("seconds", 0)
    assert (float(sol.x), float(sol.y)) == (0.5, 0.5)
    assert "Stream" in sol.status.message and "seconds" in str(sol)


def test_a_stream_that_blocks_later_ends_with_the_clock(clock):
    sol = hx.solve(streamed(clock, [np.zeros(4)] * 9), 0.5, 0.5, METHOD, seconds=0.5 * HOUR, max_steps=100)
    assert sol.status.name == "seconds" and sol.status.step <= 9


@pytest.mark.parametrize("starts", [3])
def test_starts_without_a_turn_are_returned_as_they_are(clock, starts):
    points = np.linspace(0.2, 1.0, starts)
    sols = hx.solve_many(
        EXACT.problem, points, points, hx.Auto(), seconds=HOUR, callback=lambda info: clock.forward(2 * HOUR)
    )
    assert [status.name for status in sols.status[1:]] == ["seconds"] * (starts - 1)
    np.testing.assert_array_equal(sols.x[1:], points[1:])


# -- work that takes long between two looks ----------------------------------------------------------------------------


def waves(passes=None):
    """A lower level with several minima; `passes` is called at every one of its evaluations."""

    def told(y):
        passes()
        return y

    @jax.custom_jvp
    def seen(y):
        return jax.pure_callback(told, jax.ShapeDtypeStruct(y.shape, y.dtype), y, vmap_method="expand_dims")

    seen.defjvp(lambda y, dy: (seen(*y), dy[0]))
    return hx.Problem(
        upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        lower=lambda x, y, xi: jnp.cos(3 * (y if passes is None else seen(y))) + (y - x) ** 2,
        x_set=hx.Box(-2.0, 2.0),
        y_set=hx.Box(-2.0, 2.0),
    )


@pytest.mark.parametrize("evaluation", [1.0, 20.0])
def test_slow_functions_end_in_time(clock, evaluation):
    """5 % and a second over the limit at most, and what is under way: a table of derivatives, or one Newton step."""
    begin, limit = clock(), 100 * evaluation
    sol = hx.solve(waves(lambda: clock.forward(evaluation)), 0.5, 0.5, seconds=limit)
    assert sol.status.name == "seconds" and np.isfinite(sol.x)
    assert clock() - begin <= 1.05 * limit + 1.0 + 10 * evaluation


def test_sigterm_ends_slow_functions(clock):
    seen = []

    def passes():
        seen.append(clock.forward(1.0))
        if len(seen) == 30:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(KeyboardInterrupt):  # before there is a point to return
        hx.solve(waves(passes), 0.5, 0.5, seconds=HOUR)
    assert len(seen) <= 30 + 10
