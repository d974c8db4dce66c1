"""Batches of open streams and rows of files, stacked for the steps of a chunk.

The numbers of the rows of files are those that `Finite` would draw, a function of the key and the step; so a run that
goes on, or begins anew, reads what it would have read. A thread reads them ahead.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import sys
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

from hierax._compile.bound import Bound
from hierax._problem.files import FiniteFiles
from hierax._problem.problem import Problem
from hierax._problem.samples import RowNumbers, Tickets
from hierax._run.batches import LOOK_AHEAD_BATCHES, MAX_DRAWN_STEPS, Batches
from hierax._run.prepare import Prepared, on_mesh
from hierax._run.progress import CHUNK_SECONDS, Patience
from hierax._run.streams import Exhausted

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
            drawn = self._bound.run("rows", program, self._key, np.int32(step), static=self._static, quick=True)
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
        self._planned, self._patience = planned, patience
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
        whole = jax.tree.map(lambda *parts: np.concatenate(parts), *self._held)
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

    `key`: the run's, which says the rows of files; `patience`: of whoever waits for them.
    """

    def __init__(self, prepared: Prepared, batches: Batches, key: PRNGKeyArray, step: int, patience: Patience) -> None:
        self.prepared, self.feeders = prepared, prepared.feeders
        self.per_step = {"zeta": 1, "xi": 1 + batches.inner}
        self.last: dict[str, PyTree] = {}  # what the latest chunk was given
        self._files: FileFeeder | None = None
        self._file_bytes = 0
        if prepared.files:
            planned = PlannedRows(prepared.files, prepared.bound, batches, key)
            self._files, self._file_bytes = FileFeeder(planned, step, patience), planned.step_bytes

    @property
    def most(self) -> int:
        """How many steps' batches may be stacked."""
        size = self._file_bytes + sum(feeder.nbytes * self.per_step[name] for name, feeder in self.feeders.items())
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
