"""A call: the arguments that steer a run, checked; its clock, how long it waits for data, and how it says where it is;
what a callback and a continued run get to see.

It says where it is by a bar on a terminal, by lines elsewhere, and by lines of the logger "hierax". The parts of a run
leave what they know with the call's `News`; a thread of `reporting` reads it every few seconds, with what is being
compiled, so that a run is not silent for minutes. Where stderr is a terminal, `progress_bar` draws a bar instead of the
lines (rich).
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import logging
import math
import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, PRNGKeyArray, PyTree

from hierax._base.errors import InputError
from hierax._base.imports import lazy
from hierax._base.interrupt import Interrupt
from hierax._base.settings import NEVER, TRUE_FALSE_OR_UNSET, check_setting, is_number, is_whole
from hierax._base.trees import is_key
from hierax._compile.bound import Bound, compiling
from hierax._judge.psi import Penalty
from hierax._lower.linear import OutOfTime
from hierax._problem.problem import Problem
from hierax._run.checkpoints import NOTHING_KEPT, Notes
from hierax._run.device import Output, Run
from hierax._run.method import AbstractMethod, Costs

rich_console, rich_progress = lazy("rich.console"), lazy("rich.progress")
logger = logging.getLogger("hierax")

Item = TypeVar("Item")
Numbers = Mapping[str, float | np.ndarray]  # of a record, by name; of many starts, arrays
Show = Callable[[int, Numbers | None], None]

SHOWN = ("upper", "violation", "gap", "stationarity")
LINE_SECONDS = 5.0  # seconds between two lines on stderr
MOMENT_SECONDS = 0.02  # between two looks while something is waited for; as much work is worth a chunk of its own


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
            raise OutOfTime("the Stream has given too few batches")

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
        seconds = f"{time.perf_counter() - self._begin:.0f} s"
        return f"hierax: {seconds}, {self._done}{', ' if numbers else ''}{numbers}{compiling()}"


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
    """While it lasts a thread reports the news: where stderr is no terminal to it, every 5 seconds where `progress` is
    True and half as often where it is None; and half as often to the logger.
    """
    ended, every = threading.Event(), LINE_SECONDS

    def tell(lines: bool) -> None:
        to_the_logger = True
        while not ended.wait(every):
            to_the_logger = not to_the_logger
            if to_the_logger:
                logger.info(news.line())
            try:
                if lines and (progress or to_the_logger):
                    sys.stderr.write(f"{news.line()}\n")
                    sys.stderr.flush()
            except (OSError, ValueError):  # nobody reads them any more
                lines = False

    lines = progress is not False and not _on_a_terminal(progress)
    thread = threading.Thread(target=tell, args=(lines,), name="hierax progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


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
    columns = (rich_progress.BarColumn(), rich_progress.MofNCompleteColumn(), rich_progress.TimeRemainingColumn())
    console = rich_console.Console(stderr=True)
    with rich_progress.Progress("hierax", *columns, "{task.fields[text]}", console=console, transient=True) as bar:
        task = bar.add_task("", total=total, text="")

        def show(done: int, record: Numbers | None) -> None:
            tell(done, record)
            bar.update(task, completed=done, text=numbers_shown(record or {}, "  "))

        yield show


# -- the arguments ----------------------------------------------------------------------------------------------------


DEFAULT_RECORDS = 100  # of a run where the user does not say how often to record
DEFAULT_STEPS = DEFAULT_RECORDS * DEFAULT_RECORDS  # then there are as many steps between two records as records


class Info(NamedTuple):
    """What a callback sees between chunks: the point and the latest record.

    Attributes:
        step: outer steps made.
        x: the upper variable.
        y: the lower variable.
        record: the latest entry of the history, by name.
        z: SALVF's z, as `hx.extend.Rows` in the user's units; None where the method has none.
        w: its inner solver's w.
        lam: its inner solver's lam, like z.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> seen = []
        >>> watch = lambda info: seen.append(info.step)
        >>> sol = hx.solve(problem, 0.5, 0.5, hx.SALVF(), max_steps=20, record_every=10, callback=watch)
        >>> seen
        [10, 20]
    """

    step: int
    x: PyTree
    y: PyTree
    record: dict[str, Any]
    z: PyTree = None
    w: PyTree = None
    lam: PyTree = None


class State(NamedTuple):
    """Everything a run needs to go on; for its certificate a `hierax._judge.psi.RunState`.

    Attributes:
        method: the method with every value filled in.
        run: iterates, optimiser states, key and step (arrays only).
        output: which iterate the run returns.
        seconds: spent in all calls so far, compilation apart.
        spent: samples and gradients before the first step and in all calls so far.
        waiting: seconds spent waiting for data, in all calls so far.
    """

    method: AbstractMethod
    run: Run
    output: Output
    seconds: float
    spent: Costs
    waiting: float = 0.0

    @property
    def method_name(self) -> str:
        """The name of the method's class."""
        return type(self.method).__name__

    def psi_penalty(self) -> Penalty | None:
        """What the penalty function Psi of the run was made of, for its certificate; None for methods without Psi."""
        return self.method.psi_penalty(self.run.state)


@dataclasses.dataclass(frozen=True)
class Call:
    """What `solve` was asked for beside the problem, the start and the method; None: not said.

    The meaning of each is that of the argument of `solve`; `quiet`, which `solve` has not, keeps failures out of the
    warnings, for a caller to whom they are part of the game. `notes` hold what an earlier call of the same kind has
    done. `clock` starts when the call is made; `news` are where it has come to.
    """

    max_steps: int | None = None
    seconds: float | None = None
    seed: int | PRNGKeyArray = 0
    tol: float | None = None
    record_every: int | None = None
    callback: Callable[[Info], object] | None = None
    output: Output | None = None
    progress: bool | None = None
    state: State | None = None
    mesh: Mesh | None = None
    max_samples: int | None = None
    notes: Notes = NOTHING_KEPT
    quiet: bool = False
    clock: Clock = dataclasses.field(init=False)
    news: News = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        """Refuse values that no method could make sense of."""
        for name in ("max_steps", "record_every", "max_samples"):
            value = getattr(self, name)
            if value is not None and not (is_whole(value) and 1 <= value <= NEVER):
                raise InputError(f"{name}={value!r}: needs a whole number >= 1, and below 2**31.")
        for name in ("seconds", "tol"):
            value = getattr(self, name)
            if value is not None and not (is_number(value) and value > 0):
                raise InputError(f"{name}={value!r}: needs a positive number or None.")
        check_setting("solve", "progress", self.progress, TRUE_FALSE_OR_UNSET)
        if self.output is not None and self.output not in get_args(Output):
            raise InputError(f"output={self.output!r}: choose one of {', '.join(map(repr, get_args(Output)))}.")
        if self.callback is not None and not callable(self.callback):
            raise InputError(f"callback: needs a function of one argument, got {type(self.callback).__name__}.")
        if self.callback is not None and not isinstance(self.callback, Guarded):
            object.__setattr__(self, "callback", Guarded(self.callback))
        if self.state is not None and not isinstance(self.state, State):
            raise InputError(f"state: needs the state of an earlier solution, got {type(self.state).__name__}.")
        if not (is_whole(self.seed) and 0 <= self.seed <= np.iinfo(np.int64).max) and not is_key(self.seed):
            raise InputError(f"seed={self.seed!r}: needs a whole number or a JAX key; the number >= 0, below 2**63.")
        for name in ("max_steps", "record_every", "max_samples", "seed"):
            if isinstance(getattr(self, name), np.integer):
                object.__setattr__(self, name, int(getattr(self, name)))
        object.__setattr__(self, "clock", Clock(self.seconds))
        object.__setattr__(self, "news", News())

    def under(self, name: str) -> Call:
        """The same call, by the same clock, with the notes of a part of the work."""
        part = copy.copy(self)
        object.__setattr__(part, "notes", self.notes.under(name))
        return part

    def output_of(self, problem: Problem) -> Output:
        """Which iterate is returned: unless asked for, an average of the last ones where anything is sampled."""
        return self.output or ("last" if problem.zeta is None and problem.xi is None else "tail")

    def arguments(self) -> dict[str, object]:
        """The arguments that it takes to repeat the call, as they were given; those left unset are left out."""
        names = ("max_steps", "max_samples", "seconds", "tol", "record_every", "output")
        given = {name: getattr(self, name) for name in names}
        given["seed"] = self.seed if isinstance(self.seed, int) else "a JAX key"
        given["state"] = None if self.state is None else "goes on from an earlier run"
        return {name: value for name, value in given.items() if value is not None}

    @property
    def callback_error(self) -> BaseException | None:
        """What the callback raised."""
        return self.callback.error if isinstance(self.callback, Guarded) else None

    def raise_callback_error(self, solution: object) -> None:
        """Raise what the callback raised, with the solution as its attribute `solution`."""
        error = self.callback_error
        if error is not None:
            with contextlib.suppress(AttributeError):
                error.solution = solution  # type: ignore[attr-defined]
            error.add_note("It was raised by the callback of hierax: what was computed is its attribute `solution`.")
            raise error

    @property
    def steps(self) -> int:
        """Outer steps to make."""
        return DEFAULT_STEPS if self.max_steps is None else self.max_steps

    @property
    def period(self) -> int:
        """Outer steps between records."""
        return self.record_every or max(1, self.steps // DEFAULT_RECORDS)


def start_keys(seed: Array | PRNGKeyArray, count: int | None) -> PRNGKeyArray:
    """The key of a single run (start 0 of its seed), or those of `count` starts; a key given as seed is used as is
    (many starts: one key each, or one that is folded). Part of a compiled program.
    """
    if is_key(seed) and (count is None or seed.shape == (count,)):
        return seed
    base = seed if is_key(seed) else jax.random.key(seed)
    if count is None:
        return jax.random.fold_in(base, 0)
    return jax.vmap(lambda i: jax.random.fold_in(base, i))(jnp.arange(count))


class Guarded:
    """Calls a callback; one that fails ends the run as if it had asked for that."""

    def __init__(self, function: Callable[[Info], object]) -> None:
        self._function = function
        self.error: BaseException | None = None
        self.stopped = False  # whether the latest call ended its run

    def __call__(self, info: Info, note: Callable[[Mapping[str, Any]], None] = lambda numbers: None) -> bool:
        """Whether the run is to end: the callback says True, of Python or NumPy, or has failed; Ctrl-C is the run's own
        business. A dict that it returns goes to `note`.
        """
        try:
            answer = self._function(info) if self.error is None else True
            if isinstance(answer, Mapping):
                note(answer)
            self.stopped = isinstance(answer, bool | np.bool_) and bool(answer)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit and its like are raised as well, once the run has ended
            self.error, self.stopped = error, True
        return self.stopped
