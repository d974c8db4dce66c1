"""Rows of data in files for the steps of a run: which ones the run's key says, read ahead by a thread.

The numbers of the rows are those that `Finite` would draw, a function of the key and the step; so a run that goes on,
or begins anew, reads what it would have read. The thread holds on to neither its feeder nor the run, so that it ends
with them.
"""

from __future__ import annotations

import dataclasses
import queue
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
from hierax._run.batches import LOOK_AHEAD_BATCHES, Batches
from hierax._run.clock import MOMENT_SECONDS, Patience, Waiting, endless
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
