"""What a route may spend: seconds by the clock, and on the large route samples."""

import dataclasses
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from hierax._base.interrupt import Interrupt
from hierax._compile.bound import Bound
from hierax._run.solution import Counts, Solution, Solutions, statuses_of
from hierax._run.status import Kind


class Deadline:
    """So many seconds from a moment on (`begin`, on `time.perf_counter`), until Ctrl-C is pressed, or until told."""

    def __init__(self, seconds: float, interrupt: Interrupt, begin: float, told: list[Kind] | None = None) -> None:
        self.seconds, self._interrupt, self._begin = seconds, interrupt, begin
        self._told: list[Kind] = [] if told is None else told  # shared by deadlines of one search

    def until(self, seconds: float) -> "Deadline":
        """Another end of the same work: who tells one of them, tells both."""
        return Deadline(seconds, self._interrupt, self._begin, self._told)

    def tell(self, kind: Kind) -> None:
        """End the work for another reason than time."""
        self._told.append(kind)

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._interrupt.asked

    @property
    def passed(self) -> bool:
        """Whether the work has to end."""
        return bool(self._told) or self.interrupted or time.perf_counter() > self._begin + self.seconds

    @property
    def kind(self) -> Kind | None:
        """Why the work has to end; None: it has not."""
        if self._told:
            return self._told[0]
        if self.interrupted:
            return Kind.INTERRUPTED
        return Kind.SECONDS if self.passed else None


class Budget:
    """Seconds and samples of the large route, and what its runs have cost so far.

    Judging a point and certifying it take time too: how long they took last time is kept back from the runs.

    Args:
        seconds: how long it may take by the clock, compilation included.
        samples: how many samples of zeta and xi it may draw, of all starts together; None: no bound.
        begin: when the clock started, by `time.perf_counter`.
    """

    def __init__(self, seconds: float, samples: int | None, begin: float) -> None:
        self.seconds, self.samples = seconds, samples
        self.counts = Counts()
        self._begin = begin
        self._steps = 0  # of all runs and starts
        self._bounds: dict[int, Bound] = {}
        self._kept_back: dict[str, float] = {}

    def count_compilation_of(self, bound: Bound) -> None:
        """Tell the time spent compiling programs of this problem apart (saying so twice changes nothing)."""
        self._bounds[id(bound)] = bound

    @contextmanager
    def kept_back(self, what: str) -> Iterator[None]:
        """Remember how long the work inside takes, compilation apart: so long it will take again."""
        begin, compiled = time.perf_counter(), self.compile_seconds
        yield
        self._kept_back[what] = time.perf_counter() - begin - (self.compile_seconds - compiled)

    @property
    def compile_seconds(self) -> float:
        """Seconds spent compiling."""
        return sum(bound.compile_seconds for bound in self._bounds.values())

    @property
    def elapsed(self) -> float:
        """Seconds since the route began."""
        return time.perf_counter() - self._begin

    @property
    def left(self) -> float:
        """Seconds that are left for runs."""
        return self.seconds - self.elapsed - sum(self._kept_back.values())

    @property
    def out_of_time(self) -> bool:
        """Whether the seconds are used up."""
        return self.left <= 0

    @property
    def over(self) -> bool:
        """Whether what was kept back is used up as well."""
        return self.elapsed >= self.seconds

    @property
    def drawn(self) -> int:
        """Samples so far, of all starts."""
        return self.counts.zeta + self.counts.xi

    @property
    def spent(self) -> bool:
        """Whether seconds or samples are used up."""
        return self.out_of_time or (self.samples is not None and self.drawn >= self.samples)

    def affordable(self, steps: int, starts: int) -> int:
        """As many of the steps as the samples allow, going by what a step has cost so far."""
        if self.samples is None or not self._steps:
            return steps
        return int(np.clip((self.samples - self.drawn) * self._steps // max(self.drawn, 1) // starts, 1, steps))

    def charge(self, run: Solution | Solutions) -> None:
        """Add up what a run cost; its counts are per start."""
        starts = len(statuses_of(run))
        per_start = dataclasses.replace(run.counts, seconds=0.0, compile_seconds=0.0, waiting_seconds=0.0)
        pairs = zip(dataclasses.astuple(self.counts), dataclasses.astuple(per_start), strict=True)
        counts = Counts(*(a + starts * b for a, b in pairs))
        waiting = counts.waiting_seconds + run.counts.waiting_seconds
        self.counts = dataclasses.replace(counts, waiting_seconds=waiting)
        self._steps += sum(status.step for status in statuses_of(run))

    def kept(self) -> tuple[Counts, int]:
        """What runs have cost and how many steps they made, for a checkpoint."""
        return self.counts, self._steps

    def restore(self, counts: Counts, steps: int) -> None:
        """Take over what was `kept`."""
        self.counts, self._steps = counts, steps

    def total(self) -> Counts:
        """What everything has cost."""
        compiling = self.compile_seconds
        return dataclasses.replace(self.counts, seconds=self.elapsed - compiling, compile_seconds=compiling)
