"""Batches from host iterators: order, restart, exhaustion, short batches, errors."""

import asyncio
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierax as hx

BATCH, INNER = 4, 2
START = 20 * INNER  # batches of xi before the first step: 20 rounds of the inner loop
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


def test_a_run_fed_from_one_buffer_is_that_of_separate_batches():
    loaders = [Refilling(batches, np.empty((BATCH, 2))) for batches in (ZETA, XI)]
    refilled, separate = solve(problem(*loaders)), solve(problem(ZETA, XI))
    np.testing.assert_array_equal((refilled.x, refilled.y), (separate.x, separate.y))


# -- whole runs --------------------------------------------------------------------------------------------------------


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


def test_nothing_is_judged_of_a_stream_that_has_ended():
    sol = solve(problem(iter(list(cycle(ZETA, 0, 9))), XI), throw=False)
    assert sol.certificate.verdict() == "unknown"
    assert "nothing was judged: the Stream given as zeta has no further batch" in sol.certificate.reasons()[0]
    assert "unknown" in str(sol) and sol.to_dict()["certificate"]["verdict"] == "unknown"


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


def test_auto_keeps_what_it_has_when_the_data_end():
    zeta, xi = iter(list(cycle(ZETA, 0, 700))), XI
    sol = hx.solve(problem(zeta, xi), 0.5, 0.5, hx.Auto(seconds=60.0), throw=False)
    assert sol.status.name == "data_error"
    assert "no further batch" in sol.status.message
    assert np.isfinite(float(sol.x)) and sol.value == sol.estimates.upper
    assert "992 samples of the streams were put aside" in sol.log[1]  # 250 batches, in whole groups


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


def test_waiting_for_a_slow_loader_is_told():
    """50 ms for a batch and hardly anything for a step; the first few come while it is compiled."""
    share, found = share_waiting(slow_steps(Slow(0.05), 0.0, prefetch=1), 25)
    assert found.counts.seconds > 0.5
    assert 0.5 < share <= 1
    assert f"{share:.0%} of them waiting for data" in str(found)


def test_a_run_without_streams_waits_for_nothing():
    stated = hx.Problem(upper=lambda x, y, zeta: (y - 1.0) ** 2 + x**2, lower=lambda x, y, xi: (y - x) ** 2)
    assert hx.solve(stated, 0.5, 0.5, hx.SALVF(), max_steps=2).counts.waiting_seconds == 0
