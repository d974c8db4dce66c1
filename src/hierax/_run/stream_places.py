"""Where a stream is, and how an iterable is brought back there in another process.

An iterator with `get_state` and `set_state` (as grain's) or `state_dict` and `load_state_dict` (as torchdata's, where
the iterable may have them) says itself where it is. A re-iterable is begun anew, and what it gave before is skipped;
the last skipped batch is compared, so that one which gives others every time is noticed. Other iterators cannot be
brought back.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.errors import InputError
from hierax._run.packing import packed
from hierax._run.state_arrays import hash_of_arrays

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
