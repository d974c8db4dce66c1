"""The host's side of a `Stream`: fetch batches ahead in a thread and stack them for a chunk of steps."""

import queue
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.errors import HieraxWarning, InputError
from hierax._problem.samples import Stream


class Exhausted(Exception):
    """The stream has no further batch."""


class Feeder:
    """Batches of one stream, in order. Lives as long as the stream, so that a continued run goes on where it was."""

    def __init__(self, name: str, stream: Stream) -> None:
        self.name = name
        self._queue: queue.Queue = queue.Queue(maxsize=stream.prefetch)
        self._stream = stream
        self._warned = False
        self._ended: Exception | None = None
        threading.Thread(target=self._fill, daemon=True).start()
        self._shapes: Any = None
        self._waiting: list[PyTree] = [self._next()]

    def _fill(self) -> None:
        iterable = self._stream.iterable
        try:
            while True:
                count = 0
                for batch in iterable:
                    self._queue.put(jax.tree.map(np.asarray, batch))
                    count += 1
                if isinstance(iterable, Iterator) or count == 0:
                    break
            self._queue.put(Exhausted(f"the Stream given as {self.name} has no further batch"))
        except Exception as error:
            self._queue.put(error)

    def _next(self) -> PyTree:
        while True:
            if self._ended is not None:
                raise self._ended
            batch = self._queue.get()
            if isinstance(batch, Exception):
                self._ended = batch
                continue
            shapes = jax.tree.map(np.shape, batch)
            if self._shapes is None:
                self._check(batch)
                self._shapes = shapes
            if shapes == self._shapes:
                return batch
            if not self._warned:
                self._warned = True
                warnings.warn(
                    f"Stream {self.name}: a batch of shapes {shapes} was dropped; the first had {self._shapes}.",
                    HieraxWarning,
                    stacklevel=2,
                )

    def _check(self, batch: PyTree) -> None:
        leaves = jax.tree.leaves(batch)
        if not leaves or any(leaf.ndim == 0 or leaf.shape[0] != leaves[0].shape[0] for leaf in leaves):
            raise InputError(
                f"Stream {self.name}: every leaf of a batch needs the same leading axis (the samples); got shapes "
                f"{[leaf.shape for leaf in leaves]}."
            )

    def peek(self) -> PyTree:
        """The next batch, which stays the next."""
        if not self.hold(1):
            raise self._ended or Exhausted(self.name)
        return self._waiting[0]

    def hold(self, count: int) -> int:
        """Fetch until `count` batches wait; returns how many do, fewer where the stream ends."""
        try:
            while len(self._waiting) < count:
                self._waiting.append(self._next())
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
        return sum(leaf.nbytes for leaf in jax.tree.leaves(self.peek()))

    def take(self, *shape: int) -> PyTree:
        """The next prod(shape) batches, stacked to leading axes `shape`."""
        count = int(np.prod(shape))
        if self.hold(count) < count:
            raise self._ended or Exhausted(self.name)
        batches, self._waiting = self._waiting[:count], self._waiting[count:]
        return jax.tree.map(lambda *leaves: np.stack(leaves).reshape(*shape, *leaves[0].shape), *batches)


def feeder_of(name: str, stream: Stream) -> Feeder:
    """The feeder of a stream, made at first use."""
    if not hasattr(stream, "_feeder"):
        stream._feeder = Feeder(name, stream)  # type: ignore[attr-defined]
    return stream._feeder  # type: ignore[attr-defined]
