"""Unit tests of hierax._run.feeding: batches of a Stream, one after another, and their threads."""

import gc
import os
import signal
import threading
import time

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_streams import (
    BATCH,
    INNER,
    METHOD,
    START,
    XI,
    ZETA,
    Loader,
    Refilling,
    Slow,
    TorchLike,
    block,
    cycle,
    problem,
    solve,
    threads,
)

import hierax as hx
from hierax._compile.bound import Bound
from hierax._problem.samples import HostBatches
from hierax._run.feeding import Exhausted, Feeder, feeder_of
from hierax.extend import Tickets


def test_a_re_iterable_restarts_in_order():
    loader = Loader(XI)
    feeder = Feeder("xi", hx.Stream(loader))
    np.testing.assert_array_equal(feeder.peek(), XI[0])
    np.testing.assert_array_equal(feeder.take(3), cycle(XI, 0, 3))
    np.testing.assert_array_equal(feeder.take(4, 5), cycle(XI, 3, 20).reshape(4, 5, BATCH, 2))
    np.testing.assert_array_equal(feeder.peek(), XI[23 % 11])
    assert loader.opened >= 3
    assert len(feeder.peek()) == BATCH


def test_rows_are_those_of_the_next_batches_and_leave_some():
    feeder = Feeder("xi", hx.Stream(cycle(XI, 0, 20)[i] for i in range(20)))
    np.testing.assert_array_equal(feeder.rows(8, 17), cycle(XI, 0, 5).reshape(-1, 2))
    np.testing.assert_array_equal(feeder.rows(8, 1000), cycle(XI, 5, 7).reshape(-1, 2))  # of 15 that were left
    np.testing.assert_array_equal(feeder.rows(29, 1000), cycle(XI, 12, 8).reshape(-1, 2))
    with pytest.raises(Exhausted, match="no further batch"):
        feeder.rows(8, 1000)
    slow = Feeder("xi", hx.Stream(Slow(0.01)))
    assert 8 <= len(slow.rows(8, 10**6, stop=lambda: True)) < 400


@pytest.mark.parametrize("prefetch", [1, 2, 16])
@pytest.mark.parametrize("kind", ["numpy", "memory-mapped", "torch"])
def test_a_loader_may_refill_its_buffer(kind, prefetch, tmp_path):
    buffer = np.empty((BATCH, 2))
    if kind == "memory-mapped":
        buffer = np.memmap(tmp_path / "buffer", dtype=float, mode="w+", shape=(BATCH, 2))
    loader = Refilling(XI, buffer, TorchLike if kind == "torch" else lambda memory: memory)
    feeder = Feeder("xi", hx.Stream(loader, prefetch=prefetch))
    np.testing.assert_array_equal(feeder.take(25), cycle(XI, 0, 25))


def test_a_generator_is_exhausted_after_its_last_batch():
    feeder = Feeder("xi", hx.Stream(batch for batch in XI))
    assert feeder.hold(100) == 11
    np.testing.assert_array_equal(feeder.take(5), np.stack(XI[:5]))
    np.testing.assert_array_equal(feeder.take(6), np.stack(XI[5:]))
    with pytest.raises(Exhausted, match="the Stream given as xi has no further batch"):
        feeder.take(1)
    with pytest.raises(Exhausted):
        feeder.peek()


def test_a_short_last_batch_is_dropped_with_one_warning():
    with pytest.warns(hx.HieraxWarning, match=r"Stream xi: a batch of shapes \(1, 2\) .* was dropped") as seen:
        feeder = Feeder("xi", hx.Stream([XI[0], XI[1], XI[2][:1]]))
        taken = feeder.take(5)
    np.testing.assert_array_equal(taken, np.stack([XI[0], XI[1], XI[0], XI[1], XI[0]]))
    assert len(seen) == 1


def test_an_error_of_the_iterable_reaches_the_user():
    def broken():
        yield XI[0]
        raise OSError("disk on fire")

    feeder = Feeder("xi", hx.Stream(broken()))
    with pytest.raises(Exhausted, match="the Stream given as xi failed: OSError: disk on fire") as caught:
        feeder.take(3)
    assert isinstance(caught.value.__cause__, OSError)


def test_batches_need_a_common_leading_axis():
    with pytest.raises(hx.InputError, match="every leaf of a batch needs the same leading axis"):
        Feeder("xi", hx.Stream([(np.zeros(3), np.zeros(4))])).peek()
    with pytest.raises(hx.InputError, match="same leading axis"):
        Feeder("xi", hx.Stream([1.0, 2.0])).peek()
    with pytest.raises(hx.InputError, match="a batch must hold numbers, got dtype <U1"):
        Feeder("xi", hx.Stream([np.array(["a", "b"])])).peek()


def test_a_feeder_tells_how_long_it_was_waited_for():
    """By the clock of the caller, who does nothing else."""
    feeder = Feeder("zeta", hx.Stream(Slow(0.02), prefetch=1))
    feeder.peek()
    waited, begin = feeder.patience.waited, time.perf_counter()
    feeder.take(30)
    elapsed = time.perf_counter() - begin
    assert elapsed > 0.3
    assert 0.9 * elapsed < feeder.patience.waited - waited <= elapsed


def test_solve_takes_the_batches_in_order():
    """The same iterates as a loop that is handed the batches by hand: s + 1 of xi and one of zeta per step."""
    sol = solve(problem(Loader(ZETA), Loader(XI)))
    stated = problem(ZETA, XI)
    bound = Bound(stated, None, None)
    for name in ("zeta", "xi"):
        bound.replace_source(name, HostBatches(BATCH))
    fed = hx.Problem(stated.upper, stated.lower, stated.constraints, None, None, stated.x_set, stated.y_set)
    fed = eqx.tree_at(
        lambda p: (p.zeta, p.xi), fed, (bound.problem.zeta, bound.problem.xi), is_leaf=lambda a: a is None
    )
    start = cycle(XI, 0, START)
    look = Tickets(ZETA[0][None], start, start)
    x0, key = jnp.asarray(0.5), jax.random.key(0)
    method, state, _ = eqx.filter_jit(METHOD.begin)(fed, x0, x0, key, look)
    step = eqx.filter_jit(lambda method, state, tickets: method.step(fed, state, tickets)[0])
    for k in range(20):
        xi = cycle(XI, START + k * (INNER + 1), INNER + 1)
        state = step(method, state, Tickets(ZETA[k % 7], xi[-1], xi[:-1]))
    np.testing.assert_allclose((sol.x, sol.y), (state.point.x, state.point.y), rtol=1e-12)
    assert sol.counts.zeta == 20 * BATCH
    assert sol.counts.xi == (START + 20 * (INNER + 1)) * BATCH


def test_ctrl_c_ends_the_wait_for_a_batch(monkeypatch):
    monkeypatch.setattr("hierax._run.feeding.SILENT_SECONDS", 0.3)
    stated = problem(block(list(cycle(ZETA, 0, 10)), 9), XI)
    solve(problem(ZETA, XI), 3)  # compiled
    threading.Timer(4.0, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.warns(hx.HieraxWarning, match="Stream zeta: has given no batch for 0.3 seconds; the run waits"):
        sol = solve(stated)
    assert (sol.status.name, sol.status.step) == ("interrupted", 9)


def test_threads_end_with_their_streams():
    gc.collect()
    before = threads()
    for _ in range(21):
        feeder_of("zeta", hx.Stream(Loader(ZETA))).take(2)
    solve(problem(ZETA, XI), 3)
    gc.collect()
    until = time.perf_counter() + 5.0
    while threads() > before and time.perf_counter() < until:
        time.sleep(0.05)
    assert threads() <= before
