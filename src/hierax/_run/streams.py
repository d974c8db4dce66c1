"""The host's side of a `Stream`: fetch batches ahead in a thread and stack them for a chunk of steps.

The iterable is the user's, so nothing is taken for granted: it may block, fail, end, or change the shape of its
batches. Whoever waits for a batch keeps looking at its clock and at Ctrl-C (`Patience`), and the thread holds on to
neither the stream nor its feeder, so that it ends with them; a thread that is blocked inside the iterable cannot be
ended, but it is a daemon and nothing waits for it.
"""

import math
import queue
import threading
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
from jaxtyping import PyTree, PyTreeDef

from hierax._base.errors import HieraxWarning, InputError
from hierax._problem.samples import Stream
from hierax._run.packing import hash_of_arrays, packed
from hierax._run.progress import CHUNK_SECONDS, LINE_SECONDS, MOMENT_SECONDS, Patience, Waiting, endless

STATE_METHODS = (("get_state", "set_state"), ("state_dict", "load_state_dict"))


class Place(NamedTuple):
    """A place in a stream: behind a batch.

    Attributes:
        given: batches that the iterable gave up to here, those that were dropped included.
        state: what the iterator says of itself there; None: it has no such method.
        form: shapes and types of the arrays of the stream's batches; None: not known yet.
        digest: hash of the last batch; empty where `state` says it all, or where there was none.
    """

    given: int = 0
    state: object = None
    form: list[tuple[list[int], str]] | None = None
    digest: str = ""


class PlacedBatches:
    """The batches of an iterable from a place on, epoch after epoch, each with the place behind it."""

    def __init__(self, iterable: Iterable[PyTree], begin: Place, with_states: bool) -> None:
        self._iterable, self._begin, self._with_states = iterable, begin, with_states
        self._endless = not isinstance(iterable, Iterator)

    def __iter__(self) -> Iterator[tuple[PyTree, Place]]:
        place = self._begin
        iterator, skip = self._opened(place)
        given = int(place.given > 0)  # the place may be at the end of an epoch: nothing more of that one is no end
        while True:
            for batch in iterator:
                given += 1
                batch = jax.tree.map(_copied, batch)
                if skip:
                    skip -= 1
                    if not skip and hash_of_arrays(batch) != self._begin.digest:
                        raise OtherBatches
                    continue
                place = Place(place.given + 1, self._state(iterator))
                yield batch, place
            if not self._endless or not given:
                return
            iterator, given = iter(self._iterable), 0

    def _opened(self, place: Place) -> tuple[Iterator[PyTree], int]:
        """An iterator, and how many batches of it are to be skipped."""
        own = _methods_of(self._iterable)
        if place.state is not None and own is not None:
            getattr(self._iterable, own[1])(place.state)
        iterator = iter(self._iterable)
        if place.state is None:
            return iterator, place.given
        names = _methods_of(iterator)
        if own is None and names is not None:
            getattr(iterator, names[1])(place.state)
        return iterator, 0

    def _state(self, iterator: Iterator[PyTree]) -> object:
        """What the iterator, or the iterable, says of itself; None: it has no such method."""
        owner = iterator if _methods_of(self._iterable) is None else self._iterable
        names = _methods_of(owner)
        if names is None or not self._with_states:
            return None
        state = getattr(owner, names[0])()
        packed(state)  # raises where it cannot be kept
        return state


class OtherBatches(Exception):
    """A re-iterable that gave other batches than before."""

    def __str__(self) -> str:
        return (
            "it gives other batches when it is iterated again (shuffled without a seed of its own?), so that the "
            "checkpoint's place in it cannot be found"
        )


def refuse_unless_restorable(name: str, iterable: Iterable[PyTree]) -> None:
    """Raise InputError for an iterator that nobody could bring back to where it was."""
    if isinstance(iterable, Iterator) and _methods_of(iterable) is None:
        raise InputError(
            f"checkpoint: the Stream given as {name} is an iterator ({type(iterable).__name__}), which another process "
            "could not bring back to where it was. Give a re-iterable (a list, a DataLoader with a seed, an object "
            "whose __iter__ begins anew), or an iterator with get_state and set_state or state_dict and "
            "load_state_dict."
        )


def _copied(leaf: object) -> np.ndarray:
    """A batch's array with memory of its own: a loader may refill its buffer for the next batch."""
    return np.asarray(leaf) if isinstance(leaf, jax.Array) else np.array(leaf)  # nobody writes into a jax.Array


def _methods_of(candidate: object) -> tuple[str, str] | None:
    for names in STATE_METHODS:
        if all(callable(getattr(candidate, name, None)) for name in names):
            return names
    return None


Form = tuple[PyTreeDef, tuple[tuple[tuple[int, ...], np.dtype], ...]]
"""Structure of a batch, and shapes and types of its arrays."""

Item = TypeVar("Item")

SILENT_SECONDS = LINE_SECONDS  # without a batch, after which a warning says what the run is waiting for
FIRST_BATCHES = 5  # whose majority decides the shape
MAX_WRONG_BATCHES = 1000  # batches of other shapes that are dropped before the stream is given up
NO_FURTHER = "has no further batch"


class Exhausted(Exception):
    """The stream gives no further batch: it has ended, failed, or has none of the right shape."""


class _End(NamedTuple):
    """What the thread sends after the last batch."""

    text: str
    cause: BaseException | None = None


class _Fetched(NamedTuple):
    """A batch, and the place in the stream behind it."""

    batch: PyTree
    place: Place


class Needed:
    """How long to wait for more: without end for `least`, a moment for `wanted`, and not for the others."""

    def __init__(self, count: int, least: int, wanted: int) -> None:
        self.least, self.wanted = least, min(wanted, count)
        self._until = time.perf_counter() + CHUNK_SECONDS

    def patience(self, held: int) -> float | None:
        """Seconds to wait for the next one where `held` are there (None: without end)."""
        if held < self.least:
            return None
        return max(0.0, self._until - time.perf_counter()) if held < self.wanted else 0.0


class Feeder:
    """Batches of one stream, in order. Lives as long as the stream, so that a continued run goes on where it was."""

    def __init__(
        self,
        name: str,
        stream: Stream,
        patience: Patience = endless,
        begin: Place = Place(),
        restorable: bool = False,
    ) -> None:
        """`begin`: where in the stream; `restorable`: whether iterators are asked for their state at every batch."""
        self.name, self.patience, self.restorable = name, patience, restorable
        self.waiting = Waiting()  # of the run that takes the batches
        self._queue: queue.Queue[_Fetched | _End] = queue.Queue(maxsize=stream.prefetch)
        self._stop = threading.Event()
        fill = (PlacedBatches(stream.iterable, begin, restorable), self._queue, self._stop)
        self._thread = threading.Thread(target=_fill, args=fill, daemon=True, name=f"hierax stream {name}")
        self._thread.start()
        weakref.finalize(self, self._stop.set)
        self._warned_of: set[str] = set()
        self._ended: _End | None = None
        self._form: Any = None  # agreed upon when the first batch is asked for
        self._waiting: list[_Fetched] = []
        self._begin = begin
        self._last: _Fetched | None = None  # the latest that was taken

    # -- its place --------------------------------------------------------------------------------------------------

    @property
    def place(self) -> Place:
        """The place behind the last batch that was taken: those that only wait are still to come."""
        if self._last is None:
            return self._begin
        place = self._last.place._replace(form=_as_kept(self._form))
        return place if place.state is not None else place._replace(digest=hash_of_arrays(self._last.batch))

    def close(self) -> None:
        """End the thread; whoever waits for it keeps its patience."""
        self._stop.set()
        while self._thread.is_alive():
            self._thread.join(MOMENT_SECONDS)
            self.patience()

    # -- one batch --------------------------------------------------------------------------------------------------

    def _received(self, seconds: float | None = None) -> _Fetched | None:
        """The next batch, whatever its form; None where it does not come within the given seconds."""
        if self._ended is not None:
            raise self._no_batch()
        item: _Fetched | _End | None = received(self._queue, seconds, self._look_around, self.waiting)
        if isinstance(item, _End):
            self._ended = item
            if isinstance(item.cause, OtherBatches):
                raise InputError(f"checkpoint: the Stream given as {self.name} cannot be resumed: {item.cause}.")
            raise self._no_batch()
        return item

    def _look_around(self, waited: float) -> None:
        """While a batch is waited for."""
        self.patience()
        if waited > SILENT_SECONDS:
            self._warn("silent", f"has given no batch for {SILENT_SECONDS:g} seconds; the run waits for it.")

    def _no_batch(self) -> Exhausted:
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
                batch = self._received(CHUNK_SECONDS if self._waiting else None)
                if batch is None:
                    break
                self._waiting.append(batch)
        except Exhausted:
            if not self._waiting:
                raise
        forms = [_form(fetched.batch) for fetched in self._waiting]
        known = [form for form in forms if self._begin.form is not None and _as_kept(form) == self._begin.form]
        self._form = Counter(known or forms).most_common(1)[0][0]
        _check_form(self.name, self._form)
        self._waiting = [fetched for fetched in self._waiting if self._fits(fetched.batch)]

    def _next(self, seconds: float | None = None) -> _Fetched | None:
        """The next batch of the right form; None where none comes within the given seconds."""
        for _ in range(MAX_WRONG_BATCHES):
            fetched = self._received(seconds)
            if fetched is None or self._fits(fetched.batch):
                return fetched
        self._ended = _End(f"gave {MAX_WRONG_BATCHES} batches in a row that do not have {_shown(self._form)}")
        raise self._no_batch()

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

    # -- many batches -----------------------------------------------------------------------------------------------

    def peek(self) -> PyTree:
        """The next batch, which stays the next."""
        if not self.hold(1):
            raise self._no_batch()
        return self._waiting[0].batch

    def hold(self, count: int, least: int | None = None, wanted: int | None = None) -> int:
        """Fetch until `count` batches wait; returns how many do, fewer where the stream ends.

        Once `least` of them are there (None: all), no more than a moment is spent on waiting for `wanted` of them
        (None: all), and none on waiting for the others.
        """
        if self._form is None:
            self._agree_on_a_form()
        needed = Needed(count, count if least is None else least, count if wanted is None else wanted)
        try:
            while len(self._waiting) < count:
                batch = self._next(needed.patience(len(self._waiting)))
                if batch is None:
                    break
                self._waiting.append(batch)
        except Exhausted:
            pass
        return min(count, len(self._waiting))

    def require(self, count: int) -> None:
        """Wait for `count` batches; raises `Exhausted` where the stream ends before."""
        if self.hold(count) < count:
            raise self._no_batch()

    @property
    def nbytes(self) -> int:
        """Bytes per batch."""
        self.peek()
        return sum(int(np.prod(shape)) * np.dtype(dtype).itemsize for shape, dtype in self._form[1])

    def take(self, *shape: int) -> PyTree:
        """The next prod(shape) batches, stacked to leading axes `shape`."""
        count = int(np.prod(shape))
        self.require(count)
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        self._last = taken[-1]
        batches = [fetched.batch for fetched in taken]
        return jax.tree.map(lambda *leaves: np.stack(leaves).reshape(*shape, *leaves[0].shape), *batches)


def feeder_of(name: str, stream: Stream, patience: Patience = endless, restorable: bool = False) -> Feeder:
    """The feeder of a stream, made at first use; it waits as long as `patience` does.

    With `restorable`, a stream whose place another process could not restore is refused.
    """
    if restorable:
        refuse_unless_restorable(name, stream.iterable)
    if not hasattr(stream, "_feeder"):
        stream._feeder = Feeder(name, stream, patience, restorable=restorable)  # type: ignore[attr-defined]
    feeder: Feeder = stream._feeder  # type: ignore[attr-defined]
    if restorable and not feeder.restorable and isinstance(stream.iterable, Iterator):
        raise InputError(
            f"checkpoint: the Stream given as {name} was used without checkpoint= before, and where its iterator is by "
            "now is not known. Give a new hx.Stream."
        )
    feeder.patience = patience
    return feeder


def reopened(feeder: Feeder, stream: Stream, place: Place) -> Feeder:
    """Another feeder of the same stream that begins at a place; the old one is ended."""
    feeder.close()
    again = Feeder(feeder.name, stream, feeder.patience, place, feeder.restorable)
    again.waiting = feeder.waiting
    stream._feeder = again  # type: ignore[attr-defined]
    return again


def _form(batch: PyTree) -> Form:
    """What a compiled program knows of a batch: its structure, and shapes and types of its arrays."""
    leaves, structure = jax.tree.flatten(batch)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


def _check_form(name: str, form: Form) -> None:
    shapes = [shape for shape, _ in form[1]]
    if not shapes or any(not shape or shape[0] != shapes[0][0] for shape in shapes):
        raise InputError(
            f"Stream {name}: every leaf of a batch needs the same leading axis (the samples); got shapes {shapes}."
        )
    for _, dtype in form[1]:
        if dtype.kind not in "biufc" and not hasattr(jax.dtypes, dtype.name):
            raise InputError(f"Stream {name}: a batch must hold numbers, got dtype {dtype}.")


def _as_kept(form: Form) -> list[tuple[list[int], str]]:
    """The shapes and types of a form, as a checkpoint keeps them."""
    return [(list(shape), np.dtype(dtype).name) for shape, dtype in form[1]]


def _shown(form: Form) -> str:
    structure, leaves = form
    shapes = jax.tree.unflatten(structure, [shape for shape, _ in leaves])
    kinds = sorted({str(dtype) for _, dtype in leaves})
    return f"shapes {shapes} ({', '.join(kinds)})"


# -- the thread -------------------------------------------------------------------------------------------------------


def _fill(placed: PlacedBatches, batches: queue.Queue[_Fetched | _End], stop: threading.Event) -> None:
    """Put batches into the queue until they end or `stop` is set. Whatever the iterable raises ends the stream."""
    try:
        for batch, place in placed:
            if not put_unless_stopped(_Fetched(batch, place), batches, stop):
                return
        put_unless_stopped(_End(NO_FURTHER), batches, stop)
    except BaseException as error:  # SystemExit and its like would end the thread without a word
        put_unless_stopped(_End(f"failed: {type(error).__name__}: {error}", error), batches, stop)


def received(
    items: queue.Queue[Item], seconds: float | None, look_around: Callable[[float], None], waiting: Waiting
) -> Item | None:
    """The next item of a queue; None where it does not come within the seconds (None: without end).

    While it waits it calls `look_around` again and again, which may raise, with the seconds so far.
    """
    begin = time.perf_counter()
    try:
        while True:
            waited = time.perf_counter() - begin
            try:
                return items.get(timeout=min(MOMENT_SECONDS, max(0.0, (seconds or math.inf) - waited)))
            except queue.Empty:
                look_around(waited)
                if seconds is not None and waited >= seconds:
                    return None
    finally:
        waiting.seconds += time.perf_counter() - begin


def put_unless_stopped(item: Item, batches: queue.Queue[Item], stop: threading.Event) -> bool:
    """Wait for a place in the queue; False where nobody wants the item any more."""
    while not stop.is_set():
        try:
            batches.put(item, timeout=MOMENT_SECONDS)
            return True
        except queue.Full:
            continue
    return False
