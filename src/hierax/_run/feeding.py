"""Batches of open streams, stacked for the steps of a chunk."""

import sys

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._run.batches import Batches
from hierax._run.prepare import Prepared
from hierax._run.sources import on_mesh

BYTES = 2**26  # of batches that are stacked for one chunk
STEPS = 256  # for how many steps batches are stacked at most


class Feeding:
    """What the streams of a run give to its chunks; without streams, nothing."""

    def __init__(self, prepared: Prepared, batches: Batches) -> None:
        self.prepared, self.feeders = prepared, prepared.feeders
        self.per_step = {"zeta": 1, "xi": 1 + batches.inner}
        self.last: dict[str, PyTree] = {}  # what the latest chunk was given

    @property
    def most(self) -> int:
        """How many steps' batches may be stacked."""
        size = sum(feeder.nbytes * self.per_step[name] for name, feeder in self.feeders.items())
        return max(1, min(STEPS, BYTES // size)) if size else sys.maxsize

    def available(self, steps: int) -> int:
        """How many of the coming steps the streams have batches for by now, at least one.

        Raises:
            Exhausted: there is none.
        """
        steps = min(steps, self.most)
        for name, feeder in self.feeders.items():
            each = self.per_step[name]
            feeder.require(each)
            steps = min(steps, feeder.hold(steps * each, least=each) // each)
        return steps

    def batches(self, steps: int) -> dict[str, PyTree]:
        """The batches of the coming steps, padded to one length so that the program's shapes never change."""
        fed: dict[str, PyTree] = {}
        length = self.most if self.feeders else 0

        def padded(tree: PyTree, axis: int = 1) -> PyTree:
            tree = jax.tree.map(lambda a: np.pad(a, [(0, length - len(a))] + [(0, 0)] * (a.ndim - 1)), tree)
            return on_mesh(tree, axis, self.prepared.placement, self.prepared.processes)

        for name, feeder in self.feeders.items():  # of all or of none: a checkpoint keeps where they are
            feeder.require(steps * self.per_step[name])
        for name, feeder in self.feeders.items():
            if name == "zeta":
                fed["zeta"] = padded(feeder.take(steps))
                continue
            both = feeder.take(steps, self.per_step["xi"])
            if self.per_step["xi"] > 1:
                fed["inner"] = padded(jax.tree.map(lambda a: a[:, :-1], both), axis=2)
            fed["xi"] = padded(jax.tree.map(lambda a: a[:, -1], both))
        self.last = fed
        return fed
