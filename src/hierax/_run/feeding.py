"""The host's side of data: batches of a `Stream` and rows of files, fetched ahead by a thread, stacked for a chunk.

The iterable of a stream is the user's, so nothing is taken for granted: it may block, fail, end, or change the shape of
its batches. Whoever waits for a batch keeps looking at its clock and at Ctrl-C (`Patience`), and the thread holds on to
neither the stream nor its feeder, so that it ends with them; a thread that is blocked inside the iterable cannot be
ended, but it is a daemon and nothing waits for it.

An iterator with `get_state` and `set_state` (as grain's) or `state_dict` and `load_state_dict` (as torchdata's, where
the iterable may have them) says itself where it is. A re-iterable is begun anew, and what it gave before is skipped;
the last skipped batch is compared, so that one which gives others every time is noticed. Other iterators cannot be
brought back.

The numbers of the rows of files are those that `Finite` would draw, a function of the key and the step; so a run that
goes on, or begins anew, reads what it would have read.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from hierax._base.constants import CHUNK_SECONDS, FRESH_SAMPLES, MANY
from hierax._base.errors import InputError, warn
from hierax._compile.bound import Bound
from hierax._engine.float64_problem import GROUPS
from hierax._problem.problem import Problem
from hierax._problem.samples import FiniteFiles, RowNumbers, Sampler, Stream, Tickets
from hierax._run.call import LINE_SECONDS, MOMENT_SECONDS, Patience
from hierax._run.checkpoints import hash_of_arrays, packed
from hierax._run.method import LOOK_AHEAD_BATCHES, MAX_DRAWN_STEPS, Batches

# -- streams ----------------------------------------------------------------------------------------------------------

SILENT_SECONDS = LINE_SECONDS  # without a batch, after which a warning says what the run is waiting for
MAX_WRONG_BATCHES = MANY  # batches of other shapes that are dropped before the stream is given up


class Exhausted(Exception):
    """The stream gives no further batch: it has ended, failed, or has none of the right shape."""


class Place(NamedTuple):
    """A place in a stream: behind a batch.

    Attributes:
        given: batches that the iterable gave up to here, those that were dropped included.
        state: what the iterator says of itself there; None: it has no such method.
        form: shapes and types of the arrays of the stream's batches, in words; empty: not known yet.
        digest: hash of the last batch; empty where `state` says it all, or where there was none.
    """

    given: int = 0
    state: object = None
    form: str = ""
    digest: str = ""


Item = tuple[PyTree, Place] | Exception
"""A batch and the place behind it, or why there is none."""


class Feeder:
    """Batches of one stream, in order. Lives as long as the stream, so that a continued run goes on where it was."""

    def __init__(
        self,
        name: str,
        stream: Stream,
        patience: Patience | None = None,
        begin: Place = Place(),
        restorable: bool = False,
    ) -> None:
        """`begin`: where in the stream; `restorable`: whether iterators are asked for their state at every batch."""
        self.name, self.patience, self.restorable = name, patience or Patience(), restorable
        self._queue: queue.Queue[Item] = queue.Queue(maxsize=stream.prefetch)
        self._stop = threading.Event()
        fill = (name, _from_place(name, stream.iterable, begin, restorable), self._queue, self._stop)
        self._thread = threading.Thread(target=_fill, args=fill, daemon=True, name=f"hierax stream {name}")
        self._thread.start()
        weakref.finalize(self, self._stop.set)
        self._warned_of: set[str] = set()
        self._ended: Exception | None = None  # why there is no further batch
        self._form = begin.form  # shapes and types of its batches, in words: those of the first
        self._waiting: list[tuple[PyTree, Place]] = []
        self._begin = begin
        self._last: tuple[PyTree, Place] | None = None  # the latest that was taken

    # -- its place --------------------------------------------------------------------------------------------------

    @property
    def place(self) -> Place:
        """The place behind the last batch that was taken: those that only wait are still to come."""
        if self._last is None:
            return self._begin
        batch, place = self._last
        return place._replace(form=self._form, digest="" if place.state is not None else hash_of_arrays(batch))

    def close(self) -> None:
        """End the thread; whoever waits for it keeps its patience."""
        self._stop.set()
        while self._thread.is_alive():
            self._thread.join(MOMENT_SECONDS)
            self.patience.check()

    # -- one batch --------------------------------------------------------------------------------------------------

    def _received(self, seconds: float) -> tuple[PyTree, Place] | None:
        """The next batch, whatever its form; None where it does not come within the given seconds."""
        if self._ended is None:
            item = self.patience.wait_for(self._queue.get, seconds, self._warn_of_silence)
            if not isinstance(item, Exception):
                return item
            self._ended = item
        raise self._ended.with_traceback(None)

    def _warn_of_silence(self, waited: float) -> None:
        if waited > SILENT_SECONDS:
            self._warn("silent", f"has given no batch for {SILENT_SECONDS:g} seconds; the run waits for it.")

    def _fits(self, batch: PyTree) -> bool:
        """Whether a batch has the form of the first one; it is dropped where it has not."""
        form = _form(batch)
        if not self._form:
            _check_batch(self.name, batch)
            self._form = form
        if form != self._form:
            self._warn("form", f"a batch of {form} was dropped; the first had {self._form}.")
        return form == self._form

    def _warn(self, about: str, text: str) -> None:
        """Once for everything there is to warn about."""
        if about not in self._warned_of:
            self._warned_of.add(about)
            warn(f"Stream {self.name}: {text}")

    # -- many batches -----------------------------------------------------------------------------------------------

    def hold(self, count: int, wanted: int | None = None) -> int:
        """Fetch until `count` batches wait; returns how many do, fewer where the stream ends.

        No more than a moment is spent on waiting for `wanted` of them (None: as long as it takes for all), and none on
        waiting for the others.
        """
        until = math.inf if wanted is None else time.perf_counter() + CHUNK_SECONDS
        wrong = 0
        try:
            while len(self._waiting) < count:
                seconds = until - time.perf_counter() if wanted is None or len(self._waiting) < wanted else 0.0
                fetched = self._received(max(0.0, seconds))
                if fetched is None:
                    break
                if self._fits(fetched[0]):
                    self._waiting.append(fetched)
                    wrong = 0
                elif (wrong := wrong + 1) == MAX_WRONG_BATCHES:
                    text = f"gave {MAX_WRONG_BATCHES} batches in a row that do not have {self._form}"
                    self._ended = _no_batch(self.name, text)
        except Exhausted:
            pass
        return min(count, len(self._waiting))

    def require(self, count: int) -> None:
        """Wait for `count` batches; raises `Exhausted` where the stream ends before."""
        if self.hold(count) < count:
            assert self._ended is not None
            raise self._ended.with_traceback(None)

    def peek(self) -> PyTree:
        """The next batch, which stays the next."""
        self.require(1)
        return self._waiting[0][0]

    @property
    def nbytes(self) -> int:
        """Bytes per batch."""
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.peek()))

    def rows(self, least: int, most: int, stop: Callable[[], bool] = lambda: False) -> PyTree:
        """The rows of the next batches, `most` of them or one batch more; fewer once `stop` says so.

        Where the stream ends before, half of what it still has.

        Raises:
            Exhausted: there are not even `least`.
        """
        each = len(jax.tree.leaves(self.peek())[0])
        few, many = -(-least // each), -(-most // each)
        self.require(few)
        while (held := self.hold(many, many)) < many and self._ended is None and not stop():
            pass
        taken = self.take(held if self._ended is None else max(few, held // 2))
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), taken)

    def take(self, *shape: int) -> PyTree:
        """The next prod(shape) batches, stacked to leading axes `shape`."""
        count = int(np.prod(shape))
        self.require(count)
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        self._last = taken[-1]
        batches = [batch for batch, _ in taken]
        return jax.tree.map(lambda *leaves: np.stack(leaves).reshape(*shape, *leaves[0].shape), *batches)


def feeder_of(name: str, stream: Stream, patience: Patience | None = None, restorable: bool = False) -> Feeder:
    """The feeder of a stream, made at first use; it waits as long as `patience` does.

    With `restorable`, a stream whose place another process could not restore is refused.
    """
    iterator = isinstance(stream.iterable, Iterator)
    if restorable and iterator and _state_methods(stream.iterable) is None:
        raise InputError(
            f"checkpoint: the Stream given as {name} is an iterator ({type(stream.iterable).__name__}), which another "
            "process could not bring back to where it was. Give a re-iterable (a list, a DataLoader with a seed, an "
            "object whose __iter__ begins anew), or an iterator with get_state and set_state or state_dict and "
            "load_state_dict."
        )
    if not hasattr(stream, "_feeder"):
        stream._feeder = Feeder(name, stream, patience, restorable=restorable)  # type: ignore[attr-defined]
    feeder: Feeder = stream._feeder  # type: ignore[attr-defined]
    if restorable and not feeder.restorable and iterator:
        raise InputError(
            f"checkpoint: the Stream given as {name} was used without checkpoint= before, and where its iterator is by "
            "now is not known. Give a new hx.Stream."
        )
    feeder.patience = patience or Patience()
    return feeder


def on_next_rows(problem: Problem, count: int) -> tuple[Problem, int]:
    """The problem with about `count` of the next rows of its streams in their place, and how many rows those are."""
    streams = {name: getattr(problem, name) for name in ("zeta", "xi")}
    feeders = {name: feeder_of(name, one) for name, one in streams.items() if isinstance(one, Stream)}
    return on_rows(problem, {name: feeder.rows(2 * GROUPS, count) for name, feeder in feeders.items()})


def on_rows(problem: Problem, rows: dict[str, PyTree]) -> tuple[Problem, int]:
    """The problem with rows in the place of its streams, as samples, and how many of each there are."""
    count = min((len(jax.tree.leaves(tree)[0]) for tree in rows.values()), default=FRESH_SAMPLES)

    def source(tree: PyTree) -> Sampler:
        return Sampler(lambda key, n: jax.tree.map(lambda leaf: leaf[:n], tree))

    sources: dict[str, Any] = {name: source(tree) for name, tree in rows.items()}
    return dataclasses.replace(problem, **sources), count


def _form(batch: PyTree) -> str:
    """What a compiled program knows of a batch, in words: its structure, and shapes and types of its arrays."""
    return f"shapes {jax.tree.map(np.shape, batch)} ({', '.join(str(leaf.dtype) for leaf in jax.tree.leaves(batch))})"


def _check_batch(name: str, batch: PyTree) -> None:
    leaves = jax.tree.leaves(batch)
    shapes = [leaf.shape for leaf in leaves]
    if not shapes or any(not shape or shape[0] != shapes[0][0] for shape in shapes):
        raise InputError(
            f"Stream {name}: every leaf of a batch needs the same leading axis (the samples); got shapes {shapes}."
        )
    for dtype in (leaf.dtype for leaf in leaves):
        if dtype.kind not in "biufc" and not hasattr(jax.dtypes, dtype.name):
            raise InputError(f"Stream {name}: a batch must hold numbers, got dtype {dtype}.")


def _no_batch(name: str, text: str) -> Exhausted:
    return Exhausted(f"the Stream given as {name} {text}")


# -- the thread -------------------------------------------------------------------------------------------------------


def _fill(name: str, items: Iterator[Item], fetched: queue.Queue[Item], stop: threading.Event) -> None:
    """Put items into the queue until they end or `stop` is set. Whatever the iterable raises ends the stream."""

    def put(item: Item) -> None:
        while not stop.is_set():
            try:
                return fetched.put(item, timeout=MOMENT_SECONDS)
            except queue.Full:
                continue

    try:
        for item in items:
            put(item)
            if stop.is_set():
                return
        put(_no_batch(name, "has no further batch"))
    except BaseException as error:  # SystemExit and its like would end the thread without a word
        end = _no_batch(name, f"failed: {type(error).__name__}: {error}")
        end.__cause__ = error
        put(end)


def _from_place(name: str, iterable: Iterable[PyTree], begin: Place, with_states: bool) -> Iterator[Item]:
    """The batches of an iterable from a place on, epoch after epoch, each with the place behind it."""
    own = _state_methods(iterable)
    if own is not None and begin.state is not None:
        own[1](begin.state)
    iterator = iter(iterable)
    methods = own or _state_methods(iterator)
    if own is None and methods is not None and begin.state is not None:
        methods[1](begin.state)
    given, skip = begin.given, begin.given if begin.state is None else 0
    some = given > 0  # the place may be at the end of an epoch: nothing more of that one is no end
    while True:
        for batch in iterator:
            some = True
            batch = jax.tree.map(np.array, batch)  # copies: a loader may refill its buffer for the next one
            if skip:
                skip -= 1
                if not skip and hash_of_arrays(batch) != begin.digest:
                    yield InputError(
                        f"checkpoint: the Stream given as {name} cannot be resumed: it gives other batches when it is "
                        "iterated again (shuffled without a seed of its own?), so that the checkpoint's place in it "
                        "cannot be found."
                    )
                continue
            given += 1
            state = methods[0]() if with_states and methods is not None else None
            packed(state)  # raises where it cannot be kept
            yield batch, Place(given, state)
        if isinstance(iterable, Iterator) or not some:
            return
        iterator, some = iter(iterable), False
        methods = own or _state_methods(iterator)


def _state_methods(candidate: object) -> tuple[Callable[[], object], Callable[[object], object]] | None:
    """The two methods by which an object says where it is, and is brought back there; None: it has none."""
    for names in (("get_state", "set_state"), ("state_dict", "load_state_dict")):
        get, put = (getattr(candidate, name, None) for name in names)
        if callable(get) and callable(put):
            return get, put
    return None


# -- files ------------------------------------------------------------------------------------------------------------

Numbers = dict[str, np.ndarray]
"""Row numbers by the field of `Tickets` that they belong to."""

SOURCE_OF = {"zeta": "zeta", "xi": "xi", "inner": "xi"}
MAX_STACKED_BYTES = 4_000_000  # of rows that the thread reads at once, and of batches that are stacked for one chunk
MAX_STACKED_STEPS = MAX_DRAWN_STEPS  # whose batches are stacked: padding more takes longer than beginning another chunk


class PlannedRows:
    """Which rows of the files of a problem a run reads. With many starts, all read what the first one draws."""

    def __init__(self, files: dict[str, FiniteFiles], bound: Bound, batches: Batches, key: PRNGKeyArray) -> None:
        self.files, self._bound, self._batches = files, bound, batches
        self._key = jnp.array(key, copy=True).reshape(-1)[0]  # a copy: the run overwrites its own
        self._static = batches, tuple((name, source.size, source.replace) for name, source in files.items())

    @property
    def step_bytes(self) -> int:
        """Bytes of the rows of one step."""
        each = {"zeta": self._batches.zeta, "xi": self._batches.xi + self._batches.inner * self._batches.inner_size}
        return sum(each[name] * source.row_bytes for name, source in self.files.items())

    def first_look(self) -> dict[str, PyTree]:
        """The rows to look at before the first step, by field (see `Batches.first_look`)."""

        def program(problem: Problem, key: PRNGKeyArray) -> Tickets:
            look = self._batches.first_look(self._as_numbers(problem), key)
            return look._replace(zeta=None if look.zeta is None else look.zeta[:LOOK_AHEAD_BATCHES])

        found = self._bound.run("rows to look at", program, self._key, static=self._static, quick=True)
        return self.rows(self._of_files(found))

    def from_step(self, step: int) -> Iterator[Numbers]:
        """The numbers of the rows of a step and of all behind it, piece by piece, with a leading axis of steps."""

        def program(problem: Problem, key: PRNGKeyArray, step: Int[Array, ""]) -> Tickets:
            return self._batches.draws(self._as_numbers(problem), SimpleNamespace(key=key, step=step))

        part_steps = max(1, MAX_STACKED_BYTES // max(1, self.step_bytes))
        while True:
            drawn = self._bound.run("rows", program, self._key, np.int32(step), static=self._static)
            numbers = self._of_files(drawn)
            block = _steps_in(numbers)
            for first in range(step % block, block, part_steps):
                yield {field: wanted[first : first + part_steps] for field, wanted in numbers.items()}
            step += block - step % block

    def rows(self, numbers: Numbers) -> dict[str, PyTree]:
        """The rows with these numbers, by field."""
        return {field: self.files[SOURCE_OF[field]].rows(wanted) for field, wanted in numbers.items()}

    def _as_numbers(self, problem: Problem) -> Problem:
        """The problem with the rows of files as its only samples, planned like those of `Finite`."""
        numbers = {name: RowNumbers(source.size, source.replace) for name, source in self.files.items()}
        return dataclasses.replace(problem, zeta=numbers.get("zeta"), xi=numbers.get("xi"))

    def _of_files(self, tickets: Tickets) -> Numbers:
        planned = {field: getattr(tickets, field) for field, name in SOURCE_OF.items() if name in self.files}
        return {field: np.asarray(numbers) for field, numbers in planned.items() if numbers is not None}


class FileFeeder:
    """The rows of one step after the other, from a step on. The host plans them, a thread reads them."""

    def __init__(self, planned: PlannedRows, step: int, patience: Patience) -> None:
        self._planned, self._patience, self.step_bytes = planned, patience, planned.step_bytes
        self._numbers = planned.from_step(step)
        self._reader = ThreadPoolExecutor(1, "hierax files")
        self._reading: deque[Future[dict[str, PyTree] | Exception]] = deque()
        self._held: list[dict[str, PyTree]] = []

    def hold(self, steps: int, wanted: int) -> int:
        """Wait for the rows of `steps` steps; returns for how many of them they are there, at least one.

        Once there is one, no more than a moment is spent on waiting for `wanted` of them, and none for the others.

        Raises:
            Exhausted: the rows of the next step cannot be read.
        """
        until = time.perf_counter() + CHUNK_SECONDS
        while (held := sum(map(_steps_in, self._held))) < steps:
            ahead = LOOK_AHEAD_BATCHES - len(self._reading)
            for numbers in itertools.islice(self._numbers, ahead):  # planned between chunks: the device is free now
                self._reading.append(self._reader.submit(_rows_or_error, self._planned, numbers))
            seconds = max(0.0, until - time.perf_counter()) if held < wanted else 0.0
            part = self._patience.wait_for(self._reading[0].result, seconds if held else math.inf)
            if isinstance(part, Exception) and not held:
                raise Exhausted(str(part)) from part
            if part is None or isinstance(part, Exception):
                break
            self._reading.popleft()
            self._held.append(part)
        return min(steps, held)

    def close(self) -> None:
        """End the thread."""
        self._reader.shutdown(wait=False, cancel_futures=True)

    def take(self, steps: int) -> dict[str, PyTree]:
        """The rows of the next steps, all of which are held, by field, with a leading axis of steps."""
        whole = self._held[0] if len(self._held) == 1 else jax.tree.map(lambda *a: np.concatenate(a), *self._held)
        self._held = [jax.tree.map(lambda a: a[steps:], whole)]
        return jax.tree.map(lambda a: a[:steps], whole)


def _steps_in(tree: PyTree) -> int:
    return len(jax.tree.leaves(tree)[0])


def _rows_or_error(planned: PlannedRows, numbers: Numbers) -> dict[str, PyTree] | Exception:
    try:
        return planned.rows(numbers)
    except Exception as error:
        return error


class Feeding:
    """What streams and files give to the chunks of a run from a step on; without them, nothing.

    `inner`: batches of xi that the inner loop of a step takes; `put`: brings batches to the devices of the run.
    """

    def __init__(
        self, feeders: dict[str, Feeder], files: FileFeeder | None, inner: int, put: Callable[[PyTree, int], PyTree]
    ) -> None:
        self.feeders, self._files, self._put = feeders, files, put
        self.per_step = {"zeta": 1, "xi": 1 + inner}
        self.last: dict[str, PyTree] = {}  # what the latest chunk was given

    @property
    def most(self) -> int:
        """How many steps' batches may be stacked."""
        file_bytes = 0 if self._files is None else self._files.step_bytes
        size = file_bytes + sum(feeder.nbytes * self.per_step[name] for name, feeder in self.feeders.items())
        return max(1, min(MAX_STACKED_STEPS, MAX_STACKED_BYTES // size)) if size else sys.maxsize

    def available(self, steps: int, wanted: int) -> int:
        """For how many of the coming steps there are batches by now, at least one.

        Where there are some, `wanted` steps are waited for no longer than a moment, and more not at all.

        Raises:
            Exhausted: there is none.
        """
        steps = min(steps, self.most)
        for name, feeder in self.feeders.items():
            each = self.per_step[name]
            feeder.require(each)
            steps = min(steps, feeder.hold(steps * each, wanted * each) // each)
        return steps if self._files is None else self._files.hold(steps, wanted)

    def close(self) -> None:
        """Read no more of the files; streams stay open, for the next run."""
        if self._files is not None:
            self._files.close()

    def batches(self, steps: int) -> dict[str, PyTree]:
        """The batches of the coming steps, padded to one length so that the program's shapes never change."""
        length = self.most  # known as long as a batch waits: before the last ones are taken
        fed: dict[str, PyTree] = {} if self._files is None else self._files.take(steps)
        for name, feeder in self.feeders.items():
            if name == "zeta":
                fed["zeta"] = feeder.take(steps)
                continue
            both = feeder.take(steps, self.per_step["xi"])
            if self.per_step["xi"] > 1:
                fed["inner"] = jax.tree.map(lambda a: a[:, :-1], both)
            fed["xi"] = jax.tree.map(lambda a: a[:, -1], both)
        self.last = {name: self._ready(tree, name, length) for name, tree in fed.items()}
        return self.last

    def _ready(self, tree: PyTree, name: str, length: int) -> PyTree:
        """Batches of steps, padded to a length, where the run's programs want them."""

        def padded(a: np.ndarray) -> np.ndarray:
            return a if len(a) == length else np.pad(a, [(0, length - len(a))] + [(0, 0)] * (a.ndim - 1))

        return self._put(jax.tree.map(padded, tree), 2 if name == "inner" else 1)
