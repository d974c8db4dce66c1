"""The clock of a call: wall time since `solve` was called, compilation included; and the time of a run without it."""

import math
import time
from collections.abc import Callable

from hierax._base.interrupt import Interrupt
from hierax._compile.bound import Bound

CHUNK_SECONDS = 0.5  # how long the host stays away: progress, Ctrl-C, callbacks and the clock wait this long
MOMENT_SECONDS = 0.02  # between two looks while something is waited for; as much work is worth a chunk of its own


class OutOfTime(Exception):
    """The seconds were used up while a run waited for something."""


class Interrupted(Exception):
    """Ctrl-C was pressed while a run waited for something."""


class Clock:
    """A number of seconds from now on (None: without end)."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = seconds
        self.begin = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the call."""
        return time.perf_counter() - self.begin

    @property
    def left(self) -> float:
        """Seconds that are left, negative once they are used up."""
        return math.inf if self.seconds is None else self.seconds - self.elapsed

    @property
    def passed(self) -> bool:
        """Whether the time is up."""
        return self.left <= 0


class Waiting:
    """Seconds that a run waited for data; whoever waits adds to them."""

    def __init__(self) -> None:
        self.seconds = 0.0


class Stopwatch:
    """Seconds of a run from now on, those spent compiling the problem's programs apart; and those of `waiting`."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._begin, self._compiled = time.perf_counter(), bound.compile_seconds
        self.waiting = Waiting()

    @property
    def elapsed(self) -> float:
        """Seconds of the run, compilation apart."""
        return time.perf_counter() - self._begin - self.compiling

    @property
    def compiling(self) -> float:
        """Seconds that the run spent compiling."""
        return self._bound.compile_seconds - self._compiled


Patience = Callable[[], None]
"""Called by whoever waits, again and again; raises once there is no point in waiting any longer."""


def endless() -> None:
    """The patience of a caller without a clock."""


def patience_of(clock: Clock, interrupt: Interrupt) -> Patience:
    """As long as the clock allows, and until Ctrl-C."""

    def still_waiting() -> None:
        if interrupt.asked:
            raise Interrupted
        if clock.passed:
            raise OutOfTime

    return still_waiting
