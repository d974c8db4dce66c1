"""Batches of open streams and of files, stacked for the steps of a chunk."""

from __future__ import annotations

import dataclasses
import queue
import sys
import threading
import weakref
from typing import NamedTuple

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
from hierax._run.progress import MOMENT_SECONDS, Patience, Waiting, endless
from hierax._run.streams import Exhausted, Needed, put_unless_stopped, received

Numbers = dict[str, np.ndarray]
"""Row numbers by the field of `Tickets` that they belong to."""

SOURCE_OF = {"zeta": "zeta", "xi": "xi", "inner": "xi"}
MAX_STACKED_BYTES = 4_000_000  # of rows that the thread reads at once, and of batches that are stacked for one chunk


class _Counted(NamedTuple):
    """What the plan of samples needs of a state."""

    key: PRNGKeyArray
    step: Int[Array, ""]


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
        return rows_of(self.files, self._of_files(found))

    def from_step(self, step: int) -> Numbers:
        """The rows of a step and of those behind it in its block, with a leading axis of steps."""

        def program(problem: Problem, key: PRNGKeyArray, step: Int[Array, ""]) -> Tickets:
            return self._batches.draws(self._as_numbers(problem), _Counted(key, step))

        at = np.int32(step)
        numbers = self._of_files(self._bound.run("rows", program, self._key, at, static=self._static, quick=True))
        return {field: block[step % len(block) :] for field, block in numbers.items()}

    def _as_numbers(self, problem: Problem) -> Problem:
        """The problem with the rows of files as its only samples, planned like those of `Finite`."""
        numbers = {name: RowNumbers(source.size, source.replace) for name, source in self.files.items()}
        return dataclasses.replace(problem, zeta=numbers.get("zeta"), xi=numbers.get("xi"))

    def _of_files(self, tickets: Tickets) -> Numbers:
        planned = {field: getattr(tickets, field) for field, name in SOURCE_OF.items() if name in self.files}
        return {field: np.asarray(numbers) for field, numbers in planned.items() if numbers is not None}


def rows_of(files: dict[str, FiniteFiles], numbers: Numbers) -> dict[str, PyTree]:
    """The rows with these numbers, by field."""
    return {field: files[SOURCE_OF[field]].rows(wanted) for field, wanted in numbers.items()}


class FileFeeder:
    """The rows of one step after the other, from a step on."""

    def __init__(
        self, planned: PlannedRows, step: int, patience: Patience = endless, waiting: Waiting | None = None
    ) -> None:
        self._patience, self._waiting = patience, waiting or Waiting()
        self._planned, self._next_planned = planned, step
        self._part_steps = max(1, MAX_STACKED_BYTES // max(1, planned.step_bytes))
        self._numbers: queue.Queue[Numbers] = queue.Queue()
        self._ready: queue.Queue[dict[str, PyTree] | Exception] = queue.Queue(maxsize=LOOK_AHEAD_BATCHES)
        self._held: list[dict[str, PyTree]] = []
        self._step = step  # the next one to be taken
        self._error: Exception | None = None  # of reading the rows behind those that are held
        stop = threading.Event()
        read = (planned.files, self._numbers, self._ready, stop)
        threading.Thread(target=_read, args=read, daemon=True, name="hierax files").start()
        self._stop = weakref.finalize(self, stop.set)

    def hold(self, steps: int, wanted: int) -> int:
        """Wait for the rows of `steps` steps; returns for how many of them they are there, at least one.

        Once there is one, no more than a moment is spent on waiting for `wanted` of them, and none for the others.

        Raises:
            Exhausted: the rows of the next step cannot be read.
        """
        self._plan_until(self._step + 2 * steps)  # by the host, between chunks: the device is free now
        needed = Needed(steps, 1, wanted)
        while (held := sum(map(_steps_in, self._held))) < steps and self._error is None:
            part = received(self._ready, needed.patience(held), lambda _: self._patience(), self._waiting)
            if part is None:
                break
            if isinstance(part, Exception):
                self._error = part
            else:
                self._held.append(part)
        if not held:
            raise Exhausted(str(self._error)) from self._error
        return min(steps, held)

    def close(self) -> None:
        """End the thread."""
        self._stop()

    def _plan_until(self, step: int) -> None:
        """Have the thread read the rows of all steps before this one."""
        while self._next_planned < step:
            numbers = self._planned.from_step(self._next_planned)
            count = _steps_in(numbers)
            for first in range(0, count, self._part_steps):
                part = slice(first, first + self._part_steps)
                self._numbers.put({field: wanted[part] for field, wanted in numbers.items()})
            self._next_planned += count

    def take(self, steps: int) -> dict[str, PyTree]:
        """The rows of the next steps, all of which are held, by field, with a leading axis of steps."""
        taken, left = [], steps
        while left:
            part = self._held.pop(0)
            if _steps_in(part) > left:
                self._held.insert(0, jax.tree.map(lambda a, left=left: a[left:], part))
                part = jax.tree.map(lambda a, left=left: a[:left], part)
            taken.append(part)
            left -= _steps_in(part)
        self._step += steps
        return jax.tree.map(lambda *parts: np.concatenate(parts), *taken)


def _steps_in(tree: PyTree) -> int:
    return len(jax.tree.leaves(tree)[0])


def _read(
    files: dict[str, FiniteFiles],
    numbers: queue.Queue[Numbers],
    ready: queue.Queue[dict[str, PyTree] | Exception],
    stop: threading.Event,
) -> None:
    """Read the rows with the planned numbers until `stop` is set. An error ends it, and is handed over."""
    while not stop.is_set():
        try:
            wanted = numbers.get(timeout=MOMENT_SECONDS)
        except queue.Empty:
            continue
        try:
            rows = rows_of(files, wanted)
        except Exception as error:
            put_unless_stopped(error, ready, stop)
            return
        put_unless_stopped(rows, ready, stop)


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
