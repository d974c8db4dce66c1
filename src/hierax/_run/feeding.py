"""Batches of open streams and of files, stacked for the steps of a chunk."""

import sys

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._run.batches import MAX_DRAWN_STEPS, Batches
from hierax._run.clock import Patience, Waiting, endless
from hierax._run.file_rows import MAX_STACKED_BYTES, FileFeeder, PlannedRows
from hierax._run.prepare import Prepared
from hierax._run.sources import on_mesh

MAX_STACKED_STEPS = MAX_DRAWN_STEPS  # whose batches are stacked: padding more takes longer than beginning another chunk


class Feeding:
    """What streams and files give to the chunks of a run; without them, nothing."""

    def __init__(
        self,
        prepared: Prepared,
        batches: Batches,
        planned: PlannedRows | None = None,
        patience: Patience = endless,
        waiting: Waiting | None = None,
    ) -> None:
        """`planned`: which rows of files the run reads; `patience` and `waiting`: of whoever waits for them."""
        self.prepared, self.feeders, self.planned = prepared, prepared.feeders, planned
        self.patience, self.waiting = patience, waiting
        self.per_step = {"zeta": 1, "xi": 1 + batches.inner}
        self.last: dict[str, PyTree] = {}  # what the latest chunk was given
        self._files: FileFeeder | None = None

    @property
    def most(self) -> int:
        """How many steps' batches may be stacked."""
        size = sum(feeder.nbytes * self.per_step[name] for name, feeder in self.feeders.items())
        size += 0 if self.planned is None else self.planned.step_bytes
        return max(1, min(MAX_STACKED_STEPS, MAX_STACKED_BYTES // size)) if size else sys.maxsize

    def available(self, step: int, steps: int, wanted: int) -> int:
        """For how many of the steps after `step` there are batches by now, at least one.

        Where there are some, `wanted` steps are waited for no longer than a moment, and more not at all.

        Raises:
            Exhausted: there is none.
        """
        steps = min(steps, self.most)
        for name, feeder in self.feeders.items():
            each = self.per_step[name]
            feeder.require(each)
            steps = min(steps, feeder.hold(steps * each, least=each, wanted=wanted * each) // each)
        if self.planned is not None:
            self._files = self._files or FileFeeder(self.planned, step, self.patience, self.waiting)
            steps = self._files.hold(steps, wanted)
        return steps

    def close(self) -> None:
        """Read no more of the files; streams stay open, for the next run."""
        if self._files is not None:
            self._files.close()

    def batches(self, steps: int) -> dict[str, PyTree]:
        """The batches of the coming steps, padded to one length so that the program's shapes never change."""
        length = self.most  # known as long as a batch waits: before the last ones are taken
        for name, feeder in self.feeders.items():  # of all or of none: a checkpoint keeps where they are
            feeder.require(steps * self.per_step[name])
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
        padded = jax.tree.map(lambda a: np.pad(a, [(0, length - len(a))] + [(0, 0)] * (a.ndim - 1)), tree)
        return on_mesh(padded, 2 if name == "inner" else 1, self.prepared.placement, self.prepared.processes)
