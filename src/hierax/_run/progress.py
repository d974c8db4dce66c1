"""The clock of a call, how long it waits for data, and how it says where it is.

It says so by a bar on a terminal, by lines elsewhere, and by lines of the logger "hierax".

The parts of a run leave what they know with the call's `News`; a thread of `reporting` reads it every few seconds, so
that a run is not silent for minutes while it compiles or makes one long step. Where stderr is a terminal,
`progress_bar` draws a bar instead of the lines (rich).
"""

import logging
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeVar

import numpy as np

from hierax._base.imports import lazy
from hierax._base.interrupt import Interrupt
from hierax._compile.bound import Bound

rich_console, rich_progress = lazy("rich.console"), lazy("rich.progress")
logger = logging.getLogger("hierax")

Item = TypeVar("Item")
Numbers = Mapping[str, float | np.ndarray]  # of a record, by name; of many starts, arrays
Show = Callable[[int, Numbers | None], None]

SHOWN = ("upper", "violation", "gap", "stationarity")
LINE_SECONDS = 5.0  # seconds between two lines on stderr
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


class Stopwatch:
    """Seconds of a run from now on, those spent compiling the problem's programs apart."""

    def __init__(self, bound: Bound) -> None:
        self._bound = bound
        self._begin, self._compiled = time.perf_counter(), bound.compile_seconds

    @property
    def elapsed(self) -> float:
        """Seconds of the run, compilation apart."""
        return time.perf_counter() - self._begin - self.compiling

    @property
    def compiling(self) -> float:
        """Seconds that the run spent compiling."""
        return self._bound.compile_seconds - self._compiled


class Patience:
    """How long a run waits for data: as long as its clock allows, and until Ctrl-C (None: without end).

    Attributes:
        waited: seconds that it has waited so far.
    """

    def __init__(self, clock: Clock | None = None, interrupt: Interrupt | None = None) -> None:
        self._clock, self._interrupt = clock, interrupt
        self.waited = 0.0

    def check(self) -> None:
        """Raise `Interrupted` or `OutOfTime` once there is no point in waiting any longer."""
        if self._interrupt is not None and self._interrupt.asked:
            raise Interrupted
        if self._clock is not None and self._clock.passed:
            raise OutOfTime

    def wait_for(
        self, get: Callable[..., Item], seconds: float, meanwhile: Callable[[float], object] = lambda waited: None
    ) -> Item | None:
        """What `get(timeout=...)` gives; None where it does not come within the seconds.

        `meanwhile` is called again and again with the seconds so far, and may raise.
        """
        begin = time.perf_counter()
        try:
            while True:
                waited = time.perf_counter() - begin
                try:
                    return get(timeout=min(MOMENT_SECONDS, max(0.0, seconds - waited)))
                except (queue.Empty, TimeoutError):
                    self.check()
                    meanwhile(waited)
                    if waited >= seconds:
                        return None
        finally:
            self.waited += time.perf_counter() - begin


class News:
    """Where a call is, as its parts have said it last: written by the run, read by the thread that tells it.

    Args:
        doing: what it does before anything is said.
    """

    def __init__(self, doing: str = "preparing and compiling") -> None:
        self._begin = time.perf_counter()
        self._done = doing
        self._record: Numbers = {}

    def say(self, done: str, record: Numbers | None) -> None:
        """What is done, for example "3 of 16 starts"; and the latest record, None: as before."""
        self._done = done
        if record:
            self._record = record

    def line(self) -> str:
        """All of it in one line."""
        numbers = numbers_shown(self._record, ", ")
        return f"hierax: {time.perf_counter() - self._begin:.0f} s, {self._done}{', ' if numbers else ''}{numbers}"


def numbers_shown(record: Numbers, between: str) -> str:
    """The numbers of a record that are worth showing; of many starts, their medians.

    Examples:
        >>> numbers_shown({"step": 7, "upper": np.array([1.0, 2.0, 4.0]), "violation": 1e-9}, ", ")
        'upper 2, violation 1e-09'
    """
    known = [name for name in SHOWN if name in record]
    return between.join(f"{name} {float(np.median(record[name])):.3g}" for name in known)


@contextmanager
def reporting(news: News, progress: bool | None) -> Iterator[None]:
    """While it lasts a thread reports the news: to stderr every 5 seconds where `progress` is True and stderr is no
    terminal, and to the logger half as often.
    """
    ended = threading.Event()
    told_of = (news, progress is True and not _on_a_terminal(progress), ended, LINE_SECONDS)
    thread = threading.Thread(target=_tell, args=told_of, name="hierax progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _tell(news: News, lines: bool, ended: threading.Event, every: float) -> None:
    to_the_logger = True
    while not ended.wait(every):
        to_the_logger = not to_the_logger
        if to_the_logger:
            logger.info(news.line())
        try:
            if lines:
                sys.stderr.write(f"{news.line()}\n")
                sys.stderr.flush()
        except (OSError, ValueError):  # nobody reads them any more
            lines = False


def _on_a_terminal(progress: bool | None) -> bool:
    """Whether stderr is a terminal; rich, which takes more for one than Python does, is asked where a bar is wanted."""
    return bool(rich_console.Console(stderr=True).is_terminal) if progress else sys.stderr.isatty()


@contextmanager
def progress_bar(wanted: bool | None, news: News, total: int, unit: str) -> Iterator[Show]:
    """A function `show(done, record)`: it leaves the news, and draws the bar where one is wanted.

    Where the unit is seconds the time itself is what is done.
    """

    def tell(done: int, record: Numbers | None) -> None:
        most = max(done, total)  # a search may add starts
        news.say(f"of at most {total} s" if unit == "seconds" else f"{done} of {most} {unit}", record)

    tell(0, None)
    if wanted is False or not _on_a_terminal(wanted):
        yield tell
        return
    columns = (
        rich_progress.TextColumn("hierax"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("{task.fields[text]}"),
    )
    with rich_progress.Progress(*columns, console=rich_console.Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, text="")

        def show(done: int, record: Numbers | None) -> None:
            tell(done, record)
            bar.update(task, completed=done, text=numbers_shown(record or {}, "  "))

        yield show
