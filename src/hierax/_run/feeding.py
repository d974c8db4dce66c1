"""Batches of open streams, stacked for the steps of a chunk."""

import sys

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._run.batches import Batches
from hierax._run.streams import Feeder

BYTES = 2**26  # of batches that are stacked for one chunk
STEPS = 256  # for how many steps batches are stacked at most


class Feeding:
    """What the streams of a run give to its chunks; without streams, nothing."""

    def __init__(self, feeders: dict[str, Feeder], batches: Batches) -> None:
        self.feeders = feeders
        self.per_step = {"zeta": 1, "xi": 1 + batches.inner}
        self.last: dict[str, PyTree] = {}  # what the latest chunk was given

    @property
    def most(self) -> int:
        """How many steps' batches may be stacked."""
        size = sum(feeder.nbytes * self.per_step[name] for name, feeder in self.feeders.items())
        return max(1, min(STEPS, BYTES // size)) if size else sys.maxsize

    def available(self, steps: int) -> int:
        """How many of the coming steps the streams have batches for by now (at least one: taking it ends the run)."""
        steps = min(steps, self.most)
        for name, feeder in self.feeders.items():
            each = self.per_step[name]
            steps = min(steps, feeder.hold(steps * each, least=each) // each)
        return max(1, steps)

    def batches(self, steps: int) -> dict[str, PyTree]:
        """The batches of the coming steps, padded to one length so that the program's shapes never change."""
        fed: dict[str, PyTree] = {}
        length = self.most if self.feeders else 0

        def padded(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda a: np.pad(a, [(0, length - len(a))] + [(0, 0)] * (a.ndim - 1)), tree)

        for name, feeder in self.feeders.items():  # of all or of none: a checkpoint keeps where they are
            feeder.require(steps * self.per_step[name])
        for name, feeder in self.feeders.items():
            if name == "zeta":
                fed["zeta"] = padded(feeder.take(steps))
                continue
            both = feeder.take(steps, self.per_step["xi"])
            if self.per_step["xi"] > 1:
                fed["inner"] = padded(jax.tree.map(lambda a: a[:, :-1], both))
            fed["xi"] = padded(jax.tree.map(lambda a: a[:, -1], both))
        self.last = fed
        return fed
