"""Ctrl-C at any moment returns what there is; the clock is obeyed, compilation included."""

import os
import signal
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import METHOD, TOY, same

import hierax as hx
from hierax._auto.runs import Runner
from hierax._base.interrupt import interruptible

LONG = {"max_steps": 10**8, "record_every": 100}


def press():
    os.kill(os.getpid(), signal.SIGINT)


def press_later(seconds):
    threading.Timer(seconds, press).start()


def press_at(step):
    def callback(info):
        if info.step == step:
            press()

    return callback


# -- Ctrl-C ------------------------------------------------------------------------------------------------------------


def test_ctrl_c_returns_the_point_so_far():
    sol = hx.solve(TOY.problem, 1.4, 0.5, METHOD, max_steps=50, record_every=10, callback=press_at(20))
    assert sol.status.name == "interrupted"
    assert not sol.status.ok
    assert not sol.status.failed
    assert sol.status.step == 20
    assert "Ctrl-C" in sol.status.message
    same(sol.x, hx.solve(TOY.problem, 1.4, 0.5, METHOD, max_steps=20).x)
    on = hx.solve(TOY.problem, 1.4, 0.5, state=sol.state, max_steps=30)
    same(on.x, hx.solve(TOY.problem, 1.4, 0.5, METHOD, max_steps=50).x)


def test_a_keyboard_interrupt_of_the_callback_is_a_request_too():
    def callback(info):
        raise KeyboardInterrupt

    sol = hx.solve(TOY.problem, 1.4, 0.5, METHOD, max_steps=50, record_every=10, callback=callback)
    assert (sol.status.name, sol.status.step) == ("interrupted", 10)


def test_ctrl_c_from_outside_ends_a_long_run():
    press_later(1.0)
    begin = time.perf_counter()
    sol = hx.solve(TOY.problem, 1.4, 0.5, METHOD, **LONG)
    assert sol.status.name == "interrupted"
    assert len(sol.history) > 0
    assert time.perf_counter() - begin < 20.0


@pytest.mark.slow  # one start above
def test_ctrl_c_ends_many_starts():
    starts = np.array([1.4, 1.5])
    sols = hx.solve_many(TOY.problem, starts, starts, METHOD, max_steps=50, record_every=10, callback=press_at(20))
    assert [status.name for status in sols.status] == ["interrupted"] * 2
    assert sols[1].status.step == 20


def test_the_next_run_is_not_interrupted():
    hx.solve(TOY.problem, 1.4, 0.5, METHOD, max_steps=50, record_every=10, callback=press_at(20))
    assert hx.solve(TOY.problem, 1.4, 0.5, METHOD, max_steps=20).status.name == "max_steps"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_without_a_point_it_raises():
    pressed = []

    def upper(x, y, zeta):
        if not pressed:  # while the function is traced, before anything was computed
            pressed.append(True)
            press()
        return (x - 1.0) ** 2 + y**2

    with pytest.raises(KeyboardInterrupt):
        hx.solve(hx.Problem(upper=upper, lower=lambda x, y, xi: (y - x) ** 2), 0.5, 0.5, hx.SALVF(), max_steps=3)


def test_a_caller_that_was_asked_to_end_starts_no_further_run():
    with interruptible() as interrupt, pytest.raises(KeyboardInterrupt):
        interrupt.ask()
        hx.solve(TOY.problem, 1.4, 0.5, METHOD, max_steps=3)


def test_ctrl_c_ends_the_stages_of_auto(monkeypatch):
    run = Runner.run

    def pressed(self, *args):
        stage = run(self, *args)
        press()
        return stage

    monkeypatch.setattr(Runner, "run", pressed)
    sol = hx.solve(TOY.problem, 1.4, 0.5, hx.Auto(route="large", starts=1, seconds=60.0))
    assert sol.status.name == "interrupted"
    assert len(sol.history) == 1
    assert np.isfinite(sol.value)


# -- the clock ---------------------------------------------------------------------------------------------------------


def test_seconds_are_wall_time():
    hx.solve(TOY.problem, 1.4, 0.5, METHOD, max_steps=3)  # compiled
    begin = time.perf_counter()
    sol = hx.solve(TOY.problem, 1.4, 0.5, METHOD, seconds=2.0, **LONG)
    assert time.perf_counter() - begin < 1.05 * 2.0 + 1.0
    assert sol.status.name == "seconds"
    assert sol.history["step"][-1] == sol.status.step  # the last record is of the last step
    assert "stationarity" in sol.status.message


def test_seconds_include_compilation():
    problem = hx.Problem(
        upper=lambda x, y, zeta: jnp.sum((x - 1.0) ** 2) + jnp.sum(jnp.cos(y) ** 2),
        lower=lambda x, y, xi: jnp.sum((y - x) ** 2),
    )
    sol = hx.solve(problem, np.ones(3), np.ones(3), hx.SALVF(), seconds=1e-3, **LONG)
    assert (sol.status.name, sol.status.step) == ("seconds", 0)
    assert len(sol.history) == 0
    assert np.isfinite(sol.value)
    assert "0" in str(sol)


def test_slow_steps_are_ordered_one_by_one():
    def wait(x):
        time.sleep(0.01)
        return np.asarray(x)

    @jax.custom_jvp
    def waiting(x):
        return jax.pure_callback(wait, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="sequential")

    @waiting.defjvp
    def _(primals, tangents):
        return waiting(*primals), tangents[0]

    problem = hx.Problem(
        upper=lambda x, y, zeta: (waiting(x) - 1.0) ** 2 + y**2, lower=lambda x, y, xi: (waiting(y) - x) ** 2
    )
    method = hx.BiCGAFFA(start="given")
    begin = time.perf_counter()
    sol = hx.solve(problem, 0.5, 0.5, method, seconds=6.0, **LONG)
    assert time.perf_counter() - begin < 1.05 * 6.0 + 1.0
    assert sol.status.name == "seconds"
    assert sol.status.step > 1


def test_the_stages_of_auto_obey_the_clock():
    begin = time.perf_counter()
    sol = hx.solve(TOY.problem, 1.4, 0.5, hx.Auto(route="large", seconds=3.0, starts=1))
    taken = time.perf_counter() - begin
    assert taken < 1.05 * 3.0 + 1.0 + sol.counts.compile_seconds
    assert sol.status.name in ("seconds", "converged", "unproved")


def test_many_steps_and_few_seconds_leave_a_history(tmp_path):
    """A run that no record fell into ended in an IndexError of the figure."""
    sol = hx.solve(TOY.problem, 1.4, 0.5, METHOD, max_steps=10**9, seconds=0.5)
    assert len(sol.history) == (sol.status.step > 0)
