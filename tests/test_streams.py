"""Batches from host iterators: order, restart, exhaustion, short batches, errors."""

import asyncio
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

import hierax as hx
from hierax._compile.bound import Bound
from hierax._lower.salm import START_ROUNDS
from hierax._problem.samples import HostBatches
from hierax._run.streams import Exhausted, Feeder, feeder_of
from hierax.extend import Tickets

BATCH, INNER = 4, 2
START = START_ROUNDS * INNER  # batches of xi before the first step
METHOD = hx.SALVF(c1=5.0, c2=100.0, inner=hx.SALM(steps=INNER))
RNG = np.random.default_rng(0)
ZETA = [0.1 * RNG.standard_normal((BATCH, 2)) for _ in range(7)]
XI = [0.1 * RNG.standard_normal((BATCH, 2)) for _ in range(11)]


class Loader:
    """What a PyTorch DataLoader shows of itself: a length and a fresh iterator each time."""

    def __init__(self, batches):
        self.batches, self.opened = batches, 0

    def __len__(self):
        return len(self.batches)

    def __iter__(self):
        self.opened += 1
        return iter(self.batches)


def problem(zeta, xi):
    return hx.Problem(
        upper=lambda x, y, zeta: (x - 1.0) ** 2 + (y - 2.0) ** 2 + jnp.mean(zeta, 0) @ jnp.stack([x, y]),
        lower=lambda x, y, xi: (y - 2.0 * x) ** 2 + jnp.mean(xi, 0) @ jnp.stack([x, y]),
        constraints=lambda x, y: y - x,
        x_set=hx.Box(0.0, 3.0),
        y_set=hx.Box(0.0, 3.0),
        zeta=hx.Stream(zeta),
        xi=hx.Stream(xi),
    )


def solve(stated, steps=20, **call):
    return hx.solve(stated, 0.5, 0.5, METHOD, max_steps=steps, **call)


def cycle(batches, start, count):
    return np.stack([batches[i % len(batches)] for i in range(start, start + count)])


# -- the feeder alone --------------------------------------------------------------------------------------------------


def test_a_re_iterable_restarts_in_order():
    loader = Loader(XI)
    feeder = Feeder("xi", hx.Stream(loader))
    np.testing.assert_array_equal(feeder.peek(), XI[0])
    np.testing.assert_array_equal(feeder.take(3), cycle(XI, 0, 3))
    np.testing.assert_array_equal(feeder.take(4, 5), cycle(XI, 3, 20).reshape(4, 5, BATCH, 2))
    np.testing.assert_array_equal(feeder.peek(), XI[23 % 11])
    assert loader.opened >= 3
    assert feeder.batch == BATCH


class Refilling:
    """A loader with one buffer, which it refills for every batch."""

    def __init__(self, batches, buffer, shown=lambda buffer: buffer):
        self.batches, self.buffer, self.shown = batches, buffer, shown

    def __iter__(self):
        for batch in self.batches:
            self.buffer[...] = batch
            yield self.shown(self.buffer)


class TorchLike:
    """What NumPy sees of a torch tensor: `__array__` gives its own memory."""

    def __init__(self, memory):
        self.memory = memory

    def __array__(self, dtype=None, copy=None):
        return np.array(self.memory, dtype, copy=copy)


@pytest.mark.parametrize("prefetch", [1, 2, 16])
@pytest.mark.parametrize("kind", ["numpy", "memory-mapped", "torch"])
def test_a_loader_may_refill_its_buffer(kind, prefetch, tmp_path):
    buffer = np.empty((BATCH, 2))
    if kind == "memory-mapped":
        buffer = np.memmap(tmp_path / "buffer", dtype=float, mode="w+", shape=(BATCH, 2))
    loader = Refilling(XI, buffer, TorchLike if kind == "torch" else lambda memory: memory)
    feeder = Feeder("xi", hx.Stream(loader, prefetch=prefetch))
    np.testing.assert_array_equal(feeder.take(25), cycle(XI, 0, 25))


def test_a_run_fed_from_one_buffer_is_that_of_separate_batches():
    loaders = [Refilling(batches, np.empty((BATCH, 2))) for batches in (ZETA, XI)]
    refilled, separate = solve(problem(*loaders)), solve(problem(ZETA, XI))
    np.testing.assert_array_equal((refilled.x, refilled.y), (separate.x, separate.y))


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


# -- whole runs --------------------------------------------------------------------------------------------------------


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


def test_a_continued_run_goes_on_where_the_stream_was():
    whole = solve(problem(ZETA, XI))
    stated = problem(ZETA, XI)
    first = solve(stated, 12)
    second = solve(stated, 8, state=first.state)
    np.testing.assert_array_equal((second.x, second.y), (whole.x, whole.y))


@pytest.mark.parametrize("ends", ["zeta", "xi"])
def test_an_exhausted_generator_ends_the_run_with_the_last_point(ends):
    steps = 9
    sources = {"zeta": ZETA, "xi": XI}
    count = steps if ends == "zeta" else START + steps * (INNER + 1)
    sources[ends] = iter(list(cycle(sources[ends], 0, count)))
    sol = solve(problem(**sources), throw=False)
    assert sol.status.name == "data_error"
    assert sol.status.failed
    assert f"the Stream given as {ends} has no further batch" in sol.status.message
    assert sol.status.step == steps  # every batch there was has been used
    reference = solve(problem(ZETA, XI), steps)
    np.testing.assert_array_equal((sol.x, sol.y), (reference.x, reference.y))


def test_exhaustion_raises_with_the_solution():
    with pytest.raises(hx.RunFailed, match="Give a re-iterable, or fewer max_steps") as caught:
        solve(problem(iter(list(cycle(ZETA, 0, 5))), XI))
    assert int(caught.value.solution.state.run.state.step) == 5


def test_too_few_batches_to_start():
    with pytest.raises(hx.InputError, match="given as xi has no further batch before the first step"):
        solve(problem(ZETA, iter(XI)))
    with pytest.raises(hx.InputError, match=r"Problem\(zeta\): the Stream given as zeta has no further"):
        solve(problem([], XI))
    spent = problem(iter(list(cycle(ZETA, 0, 5))), XI)
    solve(spent, throw=False)
    with pytest.raises(hx.InputError, match=r"Problem\(zeta\): the Stream given as zeta has no further"):
        solve(spent)


def test_a_stream_sets_the_batch_size():
    with pytest.raises(hx.InputError, match="batch_zeta: the Stream given as zeta sets the batch size"):
        hx.solve(problem(ZETA, XI), 0.5, 0.5, hx.SALVF(batch_zeta=8))
    with pytest.raises(hx.InputError, match="batch_xi: the Stream given as xi sets the batch size"):
        hx.solve(problem(ZETA, XI), 0.5, 0.5, hx.SALVF(inner=hx.SALM(batch=8)))
    with pytest.raises(hx.InputError, match=r"SALVF\(repair\): needs an xi that can be drawn from"):
        hx.solve(problem(ZETA, XI), 0.5, 0.5, hx.SALVF(repair=10))


# -- streams that misbehave --------------------------------------------------------------------------------------------


def block(batches, after):
    """The first few batches, and then nothing for a long time."""
    yield from batches[:after]
    time.sleep(600)


def raising(error, after):
    yield from cycle(ZETA, 0, after)
    raise error


def threads():
    return sum(thread.name.startswith("hierax stream") for thread in threading.enumerate())


def test_a_stream_that_blocks_ends_with_the_clock():
    stated = problem(block(list(cycle(ZETA, 0, 10)), 9), XI)
    begin = time.perf_counter()
    sol = solve(stated, seconds=4.0)
    assert time.perf_counter() - begin < 1.05 * 4.0 + 1.0 + sol.counts.compile_seconds
    assert sol.status.name == "seconds"
    assert sol.status.step == 9
    assert "Stream" in sol.status.message


def test_a_stream_that_blocks_before_the_first_step_ends_with_the_clock():
    begin = time.perf_counter()
    sol = solve(problem(block(ZETA, 0), XI), seconds=0.5)
    assert time.perf_counter() - begin < 1.05 * 0.5 + 1.0
    assert (sol.status.name, sol.status.step) == ("seconds", 0)
    assert (float(sol.x), float(sol.y)) == (0.5, 0.5)
    assert "Stream" in sol.status.message
    assert np.isnan(sol.value)
    assert "seconds" in str(sol)


def test_a_stream_that_was_given_up_can_be_used_again():
    """What came while nobody waited is not lost, and no second thread reads the iterator."""
    gate = threading.Event()

    def late():
        gate.wait()
        yield from cycle(ZETA, 0, 30)

    stated = problem(late(), XI)
    assert solve(stated, seconds=0.3).status.step == 0
    gate.set()
    sol = solve(stated, 9)
    np.testing.assert_array_equal((sol.x, sol.y), solve_and_point(9))


def test_auto_does_not_wait_for_a_stream_for_ever():
    begin = time.perf_counter()
    sol = hx.solve(problem(block(ZETA, 0), XI), 0.5, 0.5, hx.Auto(seconds=0.5))
    assert time.perf_counter() - begin < 1.05 * 0.5 + 1.0
    assert sol.status.name == "seconds"


def test_a_slow_stream_is_used_as_it_comes():
    def slow():
        for batch in cycle(ZETA, 0, 1000):
            time.sleep(0.1)
            yield batch

    begin = time.perf_counter()
    sol = solve(problem(slow(), XI), 1000, seconds=4.0)
    assert time.perf_counter() - begin < 1.05 * 4.0 + 1.0 + sol.counts.compile_seconds
    assert sol.status.name == "seconds"
    assert sol.status.step > 3


@pytest.mark.parametrize(
    "error", [OSError("disk on fire"), SystemExit("gone"), KeyboardInterrupt("gone"), asyncio.CancelledError("gone")]
)
def test_an_iterator_that_raises_ends_the_run_as_data_error(error):
    sol = solve(problem(raising(error, 9), XI), throw=False)
    assert (sol.status.name, sol.status.step) == ("data_error", 9)
    assert f"failed: {type(error).__name__}" in sol.status.message
    assert str(error) in sol.status.message
    np.testing.assert_array_equal((sol.x, sol.y), solve_and_point(9))


def solve_and_point(steps):
    reference = solve(problem(ZETA, XI), steps)
    return reference.x, reference.y


def test_one_stray_first_batch_does_not_decide_the_shape():
    with pytest.warns(hx.HieraxWarning, match=r"a batch of shapes \(3, 2\) .* was dropped") as seen:
        sol = solve(problem(iter([ZETA[0][:3], *cycle(ZETA, 0, 30)]), XI), 9)
    assert len(seen) == 1
    assert sol.status.name == "max_steps"
    np.testing.assert_array_equal((sol.x, sol.y), solve_and_point(9))


def test_a_stream_of_wrong_batches_only_is_given_up():
    def changing():
        yield from cycle(ZETA, 0, 9)
        while True:
            yield ZETA[0][:3]

    with pytest.warns(hx.HieraxWarning, match="was dropped") as seen:
        sol = solve(problem(changing(), XI), throw=False)
    assert len(seen) == 1
    assert (sol.status.name, sol.status.step) == ("data_error", 9)
    assert "batches in a row that do not have shapes (4, 2)" in sol.status.message


def test_ctrl_c_ends_the_wait_for_a_batch(monkeypatch):
    monkeypatch.setattr("hierax._run.streams.SILENT_SECONDS", 0.3)
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


def test_auto_keeps_what_it_has_when_the_data_end():
    zeta, xi = iter(list(cycle(ZETA, 0, 700))), XI
    sol = hx.solve(problem(zeta, xi), 0.5, 0.5, hx.Auto(seconds=60.0), throw=False)
    assert sol.status.name == "data_error"
    assert "no further batch" in sol.status.message
    assert np.isfinite(float(sol.x))


# -- waiting -----------------------------------------------------------------------------------------------------------


class Slow:
    """A loader that takes its time for every batch."""

    def __init__(self, seconds):
        self.seconds = seconds

    def __iter__(self):
        for batch in ZETA:
            time.sleep(self.seconds)
            yield batch


def slow_steps(loader, seconds, **options):
    """A problem whose steps take so many seconds at least, most of them asleep."""

    def asleep(batch):
        time.sleep(seconds)
        return np.zeros((), batch.dtype)

    def upper(x, y, zeta):
        nothing = jax.pure_callback(asleep, jax.ShapeDtypeStruct((), zeta.dtype), zeta)
        return (y - 1.0) ** 2 + 0.1 * x**2 + jnp.mean(zeta[:, 0]) * y + nothing

    stream = hx.Stream(loader, **options)
    return hx.Problem(upper=upper, lower=lambda x, y, xi: (y - x) ** 2, x_set=hx.Box(0.0, 3.0), zeta=stream)


def share_waiting(problem, steps):
    found = hx.solve(problem, 0.5, 0.5, hx.SALVF(c1=5.0), max_steps=steps)
    assert found.status.step == steps
    return found.counts.waiting_seconds / found.counts.seconds, found


def test_batches_are_fetched_while_steps_are_made():
    """5 ms for a batch, and longer for a step: what is fetched ahead is there when it is needed."""
    share, found = share_waiting(slow_steps(Slow(0.005), 0.01), 60)
    assert share < 0.15, found.counts
    assert "waiting" not in str(found) or share > 0.05


def test_a_feeder_tells_how_long_it_was_waited_for():
    """By the clock of the caller, who does nothing else."""
    feeder = Feeder("zeta", hx.Stream(Slow(0.02), prefetch=1))
    feeder.peek()
    waited, begin = feeder.waiting.seconds, time.perf_counter()
    feeder.take(30)
    elapsed = time.perf_counter() - begin
    assert elapsed > 0.3
    assert 0.9 * elapsed < feeder.waiting.seconds - waited <= elapsed


def test_waiting_for_a_slow_loader_is_told():
    """50 ms for a batch and hardly anything for a step; the first few come while it is compiled."""
    share, found = share_waiting(slow_steps(Slow(0.05), 0.0, prefetch=1), 25)
    assert found.counts.seconds > 0.5
    assert 0.5 < share <= 1
    assert f"{share:.0%} of them waiting for data" in str(found)


def test_a_run_without_streams_waits_for_nothing():
    stated = hx.Problem(upper=lambda x, y, zeta: (y - 1.0) ** 2 + x**2, lower=lambda x, y, xi: (y - x) ** 2)
    assert hx.solve(stated, 0.5, 0.5, hx.SALVF(), max_steps=2).counts.waiting_seconds == 0
