"""Samples that streams have given, kept: the first N rows make an average, the rows behind them judge its answer."""

import contextlib

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._lower.linear import OutOfTime
from hierax._run.call import Interrupted, Patience
from hierax._run.feeding import Feeder


def rows_in(batch: PyTree) -> int:
    """How many samples a batch has."""
    return len(jax.tree.leaves(batch)[0])


class Bank:
    """The rows of several streams, read when they are asked for; all of them stay, for larger averages.

    It waits for rows that do not come as long as `patience` does.
    """

    def __init__(self, feeders: dict[str, Feeder], patience: Patience) -> None:
        self._feeders = feeders
        for feeder in feeders.values():
            feeder.patience = patience
        self._rows = {name: jax.tree.map(lambda leaf: leaf[0], feeder.take(1)) for name, feeder in feeders.items()}
        self._batch = {name: rows_in(rows) for name, rows in self._rows.items()}

    def available(self, most: int) -> int:
        """How many rows there are of every stream, as far as `most`: they are read."""
        return min((self._read(name, most) for name in self._feeders), default=most)

    def rows(self, name: str, first: int, last: int) -> PyTree:
        """Some rows of a stream; fewer where it ends before."""
        self._read(name, last)
        return jax.tree.map(lambda leaf: leaf[first:last], self._rows[name])

    def read(self, name: str) -> int:
        """How many rows of a stream were read."""
        return rows_in(self._rows[name])

    def _read(self, name: str, most: int) -> int:
        """Read on where rows are missing; how many there are then, as far as `most`."""
        feeder, missing = self._feeders[name], most - self.read(name)
        count = 0
        if missing > 0:
            with contextlib.suppress(OutOfTime, Interrupted):
                count = feeder.hold(-(-missing // self._batch[name]))
        if count:
            more = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), feeder.take(count))
            self._rows[name] = jax.tree.map(lambda *leaves: np.concatenate(leaves), self._rows[name], more)
        return min(most, self.read(name))
