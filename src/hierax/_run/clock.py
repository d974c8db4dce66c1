"""The clock of a call: wall time from the moment `solve` was called, compilation included."""

import math
import time
from collections.abc import Callable

from hierax._base.interrupt import Interrupt


class OutOfTime(Exception):
    """The seconds were used up while a run waited for something."""


class Interrupted(Exception):
    """Ctrl-C was pressed while a run waited for something."""


class Clock:
    """So many seconds from now (None: without end)."""

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
