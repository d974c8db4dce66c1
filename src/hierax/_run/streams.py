"""The host's side of a `Stream`: fetch batches ahead in a thread and stack them for a chunk of steps.

The iterable is the user's, so nothing is taken for granted: it may block, fail, end, or change the shape of its
batches. Whoever waits for a batch keeps looking at its clock and at Ctrl-C (`Patience`), and the thread holds on to
neither the stream nor its feeder, so that it ends with them; a thread that is blocked inside the iterable cannot be
ended, but it is a daemon and nothing waits for it.
"""

import queue
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.errors import HieraxWarning, InputError
from hierax._problem.samples import Stream
from hierax._run.clock import Patience, endless

POLL = 0.05  # seconds between two looks at the clock while waiting
SILENT = 10.0  # seconds without a batch after which a warning says what the run is waiting for
FIRST_BATCHES = 5  # whose majority decides the shape
FIRST_SECONDS = 1.0  # how long to wait for the others of these once one is there
WRONG_IN_A_ROW = 1000  # batches of other shapes that are dropped before the stream is given up
NO_FURTHER = "has no further batch"
LINGER = 0.25  # seconds to wait for more batches than the next step needs


class Exhausted(Exception):
    """The stream gives no further batch: it has ended, failed, or has none of the right shape."""


class _End(NamedTuple):
    """What the thread sends after the last batch."""

    text: str
    cause: BaseException | None = None


class Feeder:
    """Batches of one stream, in order. Lives as long as the stream, so that a continued run goes on where it was."""

    def __init__(self, name: str, stream: Stream, patience: Patience = endless) -> None:
        self.name, self.patience = name, patience
        self._queue: queue.Queue = queue.Queue(maxsize=stream.prefetch)
        stop = threading.Event()
        fill = (stream.iterable, self._queue, stop)
        threading.Thread(target=_fill, args=fill, daemon=True, name=f"hierax stream {name}").start()
        weakref.finalize(self, stop.set)
        self._warned_of: set[str] = set()
        self._ended: _End | None = None
        self._form: Any = None  # agreed upon when the first batch is asked for
        self._waiting: list[PyTree] = []

    # -- one batch --------------------------------------------------------------------------------------------------

    def _received(self, seconds: float | None = None) -> PyTree:
        """The next batch, whatever its form; None where it does not come within the given seconds."""
        if self._ended is not None:
            raise self.no_batch()
        begin = time.perf_counter()
        while True:
            try:
                batch = self._queue.get(timeout=POLL)
                break
            except queue.Empty:
                self.patience()
                waited = time.perf_counter() - begin
                if seconds is not None and waited > seconds:
                    return None
                if waited > SILENT:
                    self._warn("silent", f"has given no batch for {SILENT:g} seconds; the run waits for it.")
        if isinstance(batch, _End):
            self._ended = batch
            raise self.no_batch()
        return batch

    def no_batch(self) -> Exhausted:
        """The error of whoever asks for a batch after the end."""
        text, cause = self._ended or _End(NO_FURTHER)
        error = Exhausted(f"the Stream given as {self.name} {text}")
        error.__cause__ = cause
        return error

    def _agree_on_a_form(self) -> None:
        """The form that most of the first few batches have is the stream's, and the others are dropped.

        Batches wait where they are if the wait for the others is ended: the next run finds them.
        """
        try:
            while len(self._waiting) < FIRST_BATCHES:
                batch = self._received(FIRST_SECONDS if self._waiting else None)
                if batch is None:
                    break
                self._waiting.append(batch)
        except Exhausted:
            if not self._waiting:
                raise
        forms = [_form(batch) for batch in self._waiting]
        self._form = Counter(forms).most_common(1)[0][0]
        self._check(self._waiting[forms.index(self._form)])
        self._waiting = [batch for batch in self._waiting if self._fits(batch)]

    def _next(self, seconds: float | None = None) -> PyTree:
        """The next batch of the right form; None where none comes within the given seconds."""
        for _ in range(WRONG_IN_A_ROW):
            batch = self._received(seconds)
            if batch is None or self._fits(batch):
                return batch
        self._ended = _End(f"gave {WRONG_IN_A_ROW} batches in a row that do not have {_shown(self._form)}")
        raise self.no_batch()

    def _fits(self, batch: PyTree) -> bool:
        form = _form(batch)
        if form != self._form:
            self._warn("form", f"a batch of {_shown(form)} was dropped; most have {_shown(self._form)}.")
        return form == self._form

    def _warn(self, about: str, text: str) -> None:
        """Once for everything there is to warn about."""
        if about not in self._warned_of:
            self._warned_of.add(about)
            warnings.warn(f"Stream {self.name}: {text}", HieraxWarning, stacklevel=2)

    def _check(self, batch: PyTree) -> None:
        leaves = jax.tree.leaves(batch)
        if not leaves or any(leaf.ndim == 0 or leaf.shape[0] != leaves[0].shape[0] for leaf in leaves):
            raise InputError(
                f"Stream {self.name}: every leaf of a batch needs the same leading axis (the samples); got shapes "
                f"{[leaf.shape for leaf in leaves]}."
            )
        for leaf in leaves:
            if leaf.dtype.kind not in "biufc" and not hasattr(jax.dtypes, leaf.dtype.name):
                raise InputError(f"Stream {self.name}: a batch must hold numbers, got dtype {leaf.dtype}.")

    # -- many batches -----------------------------------------------------------------------------------------------

    def peek(self) -> PyTree:
        """The next batch, which stays the next."""
        if not self.hold(1):
            raise self.no_batch()
        return self._waiting[0]

    def hold(self, count: int, least: int | None = None) -> int:
        """Fetch until `count` batches wait; returns how many do, fewer where the stream ends.

        Once `least` of them are there (None: all), no more than a moment is spent on waiting for the others.
        """
        if self._form is None:
            self._agree_on_a_form()
        least = count if least is None else least
        linger = time.perf_counter() + LINGER
        try:
            while len(self._waiting) < count:
                enough = len(self._waiting) >= least
                batch = self._next(max(0.0, linger - time.perf_counter()) if enough else None)
                if batch is None:
                    break
                self._waiting.append(batch)
        except Exhausted:
            pass
        return min(count, len(self._waiting))

    @property
    def batch(self) -> int:
        """Samples per batch."""
        return int(jax.tree.leaves(self.peek())[0].shape[0])

    @property
    def nbytes(self) -> int:
        """Bytes per batch."""
        self.peek()
        return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in self._form[1])

    def take(self, *shape: int) -> PyTree:
        """The next prod(shape) batches, stacked to leading axes `shape`."""
        count = int(np.prod(shape))
        if self.hold(count) < count:
            raise self.no_batch()
        batches, self._waiting = self._waiting[:count], self._waiting[count:]
        return jax.tree.map(lambda *leaves: np.stack(leaves).reshape(*shape, *leaves[0].shape), *batches)


def feeder_of(name: str, stream: Stream, patience: Patience = endless) -> Feeder:
    """The feeder of a stream, made at first use; it waits as long as `patience` does."""
    if not hasattr(stream, "_feeder"):
        stream._feeder = Feeder(name, stream, patience)  # type: ignore[attr-defined]
    feeder: Feeder = stream._feeder  # type: ignore[attr-defined]
    feeder.patience = patience
    return feeder


def _form(batch: PyTree) -> tuple[Any, tuple]:
    """What a compiled program knows of a batch: its structure, and shapes and types of its arrays."""
    leaves, structure = jax.tree.flatten(batch)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def _shown(form: tuple[Any, tuple]) -> str:
    structure, leaves = form
    shapes = jax.tree.unflatten(structure, [shape for shape, _ in leaves])
    kinds = sorted({str(dtype) for _, dtype in leaves})
    return f"shapes {shapes} ({', '.join(kinds)})"


# -- the thread -------------------------------------------------------------------------------------------------------


def _fill(iterable: Iterable[Any], batches: queue.Queue, stop: threading.Event) -> None:
    """Put batches into the queue until they end or `stop` is set. Whatever the iterable raises ends the stream."""
    try:
        while not stop.is_set():
            count = 0
            for batch in iterable:
                if not _put(jax.tree.map(np.asarray, batch), batches, stop):
                    return
                count += 1
            if isinstance(iterable, Iterator) or count == 0:
                break
        _put(_End(NO_FURTHER), batches, stop)
    except BaseException as error:  # SystemExit and its like would end the thread without a word
        _put(_End(f"failed: {type(error).__name__}: {error}", error), batches, stop)


def _put(item: object, batches: queue.Queue, stop: threading.Event) -> bool:
    """Wait for a place in the queue; False where nobody wants the item any more."""
    while not stop.is_set():
        try:
            batches.put(item, timeout=POLL)
            return True
        except queue.Full:
            continue
    return False
