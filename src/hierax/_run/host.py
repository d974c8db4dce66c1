"""The host's side of a run: chunks, clock, records, streams, and the solution at the end."""

import dataclasses
import functools
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hierax._base.errors import InputError
from hierax._problem.problem import Problem
from hierax._run import device as loop
from hierax._run.method import AbstractMethod, Costs
from hierax._run.prepare import Prepared
from hierax._run.progress import progress_bar
from hierax._run.solution import Counts, History, Solution, Status

CHUNK_SECONDS = 0.5  # how long the host stays away: progress, Ctrl-C, callbacks and the clock wait this long
FED_BYTES = 2**26  # batches of a Stream that are stacked for one chunk
RECORDS = 100
LOWER_FAILURES = {
    loop.NO_LOWER_POINT: (
        "infeasible",
        "infeasible at step {step}: no y in Y satisfies the lower level's constraints at the next x; the last point is "
        "returned. Restrict X to where the lower level is feasible, or shorten the x-step.",
    ),
    loop.NO_LOWER_BOUND: (
        "unbounded_lower",
        "unbounded_lower at step {step}: the lower objective falls without limit at the next x; the last point is "
        "returned. Bound Y, or add a term that grows in every direction of y.",
    ),
}


class Info(NamedTuple):
    """What a callback sees between chunks: the point and the latest record."""

    step: int
    x: PyTree
    y: PyTree
    record: dict[str, Any]


class State(NamedTuple):
    """Everything a run needs to go on."""

    method: Any
    run: loop.Run
    output: loop.Output
    seconds: float
    spent: Costs  # before the first step, and in the calls so far


@dataclasses.dataclass(frozen=True)
class Call:
    """The arguments that steer the loop, checked."""

    max_steps: int
    seconds: float | None
    tol: float | None
    record_every: int | None
    callback: Callable[[Info], Any] | None
    output: loop.Output
    progress: bool | None
    state: State | None

    def __post_init__(self) -> None:
        for name in ("max_steps", "record_every"):
            value = getattr(self, name)
            allowed_none = name == "record_every"
            if not (value is None and allowed_none) and (
                isinstance(value, bool) or not isinstance(value, int) or value < 1
            ):
                raise InputError(f"{name}={value!r}: needs a whole number >= 1.")
        for name in ("seconds", "tol"):
            value = getattr(self, name)
            if value is not None and not (isinstance(value, int | float) and value > 0):
                raise InputError(f"{name}={value!r}: needs a positive number or None.")
        if self.output not in ("last", "tail", "best", "random"):
            raise InputError(f"output={self.output!r}: choose 'last', 'tail', 'best' or 'random'.")
        if self.callback is not None and not callable(self.callback):
            raise InputError(f"callback: needs a function of one argument, got {type(self.callback).__name__}.")
        if self.state is not None and not isinstance(self.state, State):
            raise InputError(f"state: needs the state of an earlier solution, got {type(self.state).__name__}.")

    @property
    def period(self) -> int:
        return self.record_every or max(1, self.max_steps // RECORDS)


class Driver:
    """Cuts a run into chunks, looks at the clock between them, and collects the records."""

    def __init__(self, ready: Prepared, state: State, call: Call, spread: loop.Spread, begin: float) -> None:
        self.ready, self.state, self.call, self.spread = ready, state, call, spread
        self.method = state.method
        self.runs = state.run
        self.costs: Costs = ready.method.costs(ready.bound.problem)
        self.begin = begin
        self.first = int(np.max(state.run.state.step))
        self.done = 0
        self.tables: list[tuple[loop.Record, np.ndarray]] = []
        self.ended: tuple[str, str] | None = None

    @property
    def elapsed(self) -> float:
        """Seconds of this call, compilation apart."""
        return time.perf_counter() - self.begin - self.ready.bound.compile_seconds

    def drive(self) -> None:
        """Run until the steps, the clock, the callback, the tolerance or a failure ends it."""
        per_step: float | None = None
        with progress_bar(self.call.progress, self.call.max_steps) as show:
            while self.done < self.call.max_steps:
                asked = 1 if per_step is None else max(1, int(CHUNK_SECONDS / max(per_step, 1e-9)))
                before, compiled = time.perf_counter(), self.ready.bound.compile_seconds
                records = len(self.tables)
                steps = self._chunk(asked)
                taken = time.perf_counter() - before - (self.ready.bound.compile_seconds - compiled)
                per_step = taken / steps
                self.done += steps
                last = self._last_record()
                show(self.done, last)
                if not bool(np.any(np.asarray(self.runs.code) == loop.RUNNING)):
                    return
                fresh = len(self.tables) > records
                if self.call.callback is not None and last is not None and fresh and self._tell(last):
                    self.ended = ("stopped", f"stopped by the callback after step {self.first + self.done}.")
                    return
                if self.call.seconds is not None and self.elapsed >= self.call.seconds and self._unfinished():
                    self.ended = (
                        "seconds",
                        f"the {self.call.seconds:g} seconds are used up after step {self.first + self.done}; "
                        "go on with state=sol.state.",
                    )
                    return

    def _unfinished(self) -> bool:
        return self.done < self.call.max_steps

    def _chunk(self, asked: int) -> int:
        """Compile (once) and run one chunk; returns its number of steps."""
        period = self.call.period
        asked = self._with_batches(min(asked, self.call.max_steps - self.done, self._fed_steps()))
        to_record = period - (self.first + self.done) % period
        last = self.done + asked == self.call.max_steps
        if asked < to_record:
            lead, with_record, rows = asked, last, 0
        else:
            lead, with_record = to_record, True
            rows = 0 if self.call.callback is not None else min((asked - lead) // period, loop.ROWS - 1)
        steps = lead + rows * period
        fed = self._fed(steps)
        started = self.elapsed
        self.runs, table, written = self.ready.bound.run(
            "chunk",
            functools.partial(loop.chunk, self.call.output, self.spread),
            self.runs,
            self.method,
            *(jnp.asarray(value, jnp.int32) for value in (self.first + self.done, lead)),
            jnp.asarray(with_record),
            *(jnp.asarray(value, jnp.int32) for value in (rows, period)),
            jnp.asarray(self.call.tol or -1.0, self.runs.limit.dtype),
            fed,
            static=(self.call.output, self.spread),
            donate=True,
        )
        count = int(written)
        table = jax.tree.map(lambda a: np.asarray(a)[:count], table)
        times = np.linspace(started, self.elapsed, count + 1)[1:] + self.state.seconds
        if count:
            self.tables.append((table, times))
        return steps

    def _fed_steps(self) -> int:
        """How many steps' batches of the streams may be stacked."""
        per_step = sum(f.nbytes * self._per_step(name) for name, f in self.ready.feeders.items())
        return max(1, min(256, FED_BYTES // per_step)) if per_step else sys.maxsize

    def _with_batches(self, steps: int) -> int:
        """How many of the coming steps the streams still have batches for (at least one: taking it ends the run)."""
        for name, feeder in self.ready.feeders.items():
            steps = min(steps, feeder.hold(steps * self._per_step(name)) // self._per_step(name))
        return max(1, steps)

    def _per_step(self, name: str) -> int:
        return 1 if name == "zeta" else 1 + self.ready.method.inner_draws()[0]

    def _fed(self, steps: int) -> dict[str, PyTree]:
        """Stacked batches for the coming steps, padded to one length so that the program's shapes never change."""
        fed: dict[str, PyTree] = {}
        length = self._fed_steps() if self.ready.feeders else 0

        def padded(tree: PyTree) -> PyTree:
            return jax.tree.map(lambda a: np.pad(a, [(0, length - len(a))] + [(0, 0)] * (a.ndim - 1)), tree)

        for name, feeder in self.ready.feeders.items():
            if name == "zeta":
                fed["zeta"] = padded(feeder.take(steps))
            else:
                both = feeder.take(steps, self._per_step("xi"))
                if self._per_step("xi") > 1:
                    fed["inner"] = padded(jax.tree.map(lambda a: a[:, :-1], both))
                fed["xi"] = padded(jax.tree.map(lambda a: a[:, -1], both))
        return fed

    def _last_record(self) -> dict[str, Any] | None:
        if not self.tables:
            return None
        table, _ = self.tables[-1]
        return {name: np.asarray(column)[-1] for name, column in table._asdict().items()}

    def _tell(self, record: dict[str, Any]) -> bool:
        point = self.runs.state.point
        x, y = eqx.combine(point.x, self.ready.x_rest), eqx.combine(point.y, self.ready.y_rest)
        assert self.call.callback is not None
        x, y = jax.tree.map(lambda a: jnp.array(a, copy=True) if eqx.is_array(a) else a, (x, y))
        answer = self.call.callback(Info(self.first + self.done, x, y, record))
        return isinstance(answer, bool | np.bool_) and bool(answer)

    # -- the end ----------------------------------------------------------------------------------------------------

    def solution(self) -> Solution:
        """Everything that was computed."""
        bound = self.ready.bound
        x, y, multipliers = bound.run(
            "finish",
            functools.partial(_finish_program, self.call.output, self.spread),
            self.runs,
            self.method,
            static=(self.call.output, self.spread),
        )
        seconds = self.elapsed
        statuses = [self._status(i) for i in range(np.size(self.runs.code))]
        total = int(np.max(self.runs.state.step))  # a chunk ends early where every start has stopped
        end = self.method.end_costs(bound.problem)
        spent = Costs(
            *(a + (total - self.first) * b + c for a, b, c in zip(self.state.spent, self.costs, end, strict=True))
        )
        counts = Counts(**spent._asdict(), seconds=self.state.seconds + seconds, compile_seconds=bound.compile_seconds)
        state = self.state._replace(run=self.runs, seconds=self.state.seconds + seconds, spent=spent)
        return Solution(
            x=eqx.combine(x, self.ready.x_rest),
            y=eqx.combine(y, self.ready.y_rest),
            multipliers=multipliers,
            status=statuses[0] if self.spread == "one" else statuses,
            history=self._history(),
            counts=counts,
            state=state,
            method=self.method,
        )

    def _status(self, i: int) -> Status:
        code = int(np.ravel(self.runs.code)[i])
        step = int(np.ravel(self.runs.state.step)[i])
        pinned = bool(np.ravel(self.runs.pinned)[i])
        if code in (loop.NONFINITE, loop.DIVERGED):
            name = "nonfinite" if code == loop.NONFINITE else "diverged"
            return Status(name, self._diagnosis(name, step, i), step)
        if code in LOWER_FAILURES:
            return Status(LOWER_FAILURES[code][0], LOWER_FAILURES[code][1].format(step=step), step)
        if self.ended is not None and self.ended[0] == "data_error":
            return Status(*self.ended, step)
        if pinned:
            return Status(
                "pinned",
                f"after step {step} every entry of x and y is held by the sets X and Y although the direction is not "
                "zero: a corner, either the solution or where a failed run collected. Try other starts, longer inner "
                "loops or shorter steps, and judge the point by its lower-level gap before using it.",
                step,
            )
        if code == loop.CONVERGED:
            text = f"all residuals of the penalised problem are below tol={self.call.tol:g} after step {step}"
            return Status("converged", f"{text}{self._quality(i)}.", step)
        if self.ended is not None:
            return Status(*self.ended, step)
        text = f"{self.done} steps done{self._quality(i)}"
        return Status("max_steps", f"{text}; go on from sol.state, or raise max_steps.", step)

    def _quality(self, i: int) -> str:
        """What the last record says of the point, in words."""
        record = self._last_record()
        if record is None:
            return ""
        numbers = {name: float(np.ravel(record[name])[i]) for name in ("stationarity", "violation", "distance")}
        return (
            f" (stationarity {numbers['stationarity']:.2g}, violation {numbers['violation']:.2g}, y is "
            f"{numbers['distance']:.2g} from the lower level's solution: {self.method.closer})"
        )

    def _diagnosis(self, name: str, step: int, i: int) -> str:
        """Cause and cure: compare the steps in use with what the curvature at the last finite point allows."""
        happened = "a value is not finite" if name == "nonfinite" else "the iterates run away"
        text = f"{name} at step {step}: {happened}; the last finite point is returned. "
        method, run = self.method, self.runs
        if self.spread != "one":
            method, run = jax.tree.map(lambda a: a[i] if eqx.is_array(a) else a, (method, run))
        if self.ready.feeders:
            return text + self.method.shorten
        causes = self.ready.bound.run("diagnose", _diagnose_program, run, method)
        found = {key: (float(used), float(most)) for key, (used, most) in causes.items()}
        if not found:
            return text + self.method.shorten
        for key, (used, most) in found.items():
            if np.isfinite(most) and used > most:
                return text + (
                    f"{key}={used:.3g} exceeds 2/L ~ {most:.3g} there; lower it or leave it unset (an estimate is made "
                    "at the start only: where the curvature grows on the way, set a smaller step)."
                )
        if not all(np.isfinite(most) for _, most in found.values()):
            return text + "The functions' derivatives are not finite there: restrict X and Y to where they are."
        return text + (self.method.otherwise or self.method.shorten)

    def _history(self) -> History:
        names = [name for name in loop.Record._fields if name != "pinned"]
        tables = [table for table, _ in self.tables]
        columns = {
            name: np.concatenate([np.asarray(getattr(t, name)) for t in tables]) if tables else np.zeros((0,))
            for name in names
        }
        if self.spread != "one" and tables:
            columns["step"] = columns["step"].max(axis=1)
        columns["seconds"] = np.concatenate([times for _, times in self.tables]) if tables else np.zeros((0,))
        steps = columns["step"].astype(int)
        for name in Costs._fields:
            columns[name] = getattr(self.state.spent, name) + (steps - self.first) * getattr(self.costs, name)
        return History(columns)


def _finish_program(
    output: loop.Output, spread: loop.Spread, problem: Problem, runs: loop.Run, method: AbstractMethod
) -> Any:
    def one(method: AbstractMethod, run: loop.Run) -> Any:
        if run.kept is None:
            return method.postprocess(problem, run.state)
        return method.postprocess(problem, method.moved_to(run.state, *run.kept))

    return loop.over_starts(one, spread)(method, runs)


def _diagnose_program(problem: Problem, run: loop.Run, method: AbstractMethod) -> dict[str, tuple[Any, Any]]:
    return method.step_limits(problem, run.state)
