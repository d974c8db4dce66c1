"""The host's side of a run: it orders chunks of steps, looks at the clock between them, and tells how the run ended."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from hierax._problem import sets
from hierax._problem.problem import Multipliers, Problem
from hierax._run import device
from hierax._run.call import Call, Info, State
from hierax._run.device import Orders, Output, Run, Spread
from hierax._run.feeding import Feeding
from hierax._run.prepare import Prepared
from hierax._run.progress import progress_bar
from hierax._run.records import Records
from hierax._run.reports import Costs
from hierax._run.solution import Counts, Solution, Solutions
from hierax._run.status import Reason, Status
from hierax._run.streams import Exhausted

if TYPE_CHECKING:
    from hierax._run.method import AbstractMethod

CHUNK_SECONDS = 0.5  # how long the host stays away: progress, Ctrl-C, callbacks and the clock wait this long

LOWER_FAILURES = {device.NO_LOWER_POINT: Reason.NO_LOWER_POINT, device.NO_LOWER_BOUND: Reason.NO_LOWER_BOUND}


class Host:
    """One run of steps, from its state to its solution."""

    def __init__(
        self, prepared: Prepared, state: State, call: Call, spread: Spread, since: tuple[float, float]
    ) -> None:
        """`since`: the clock and the seconds spent compiling when the run began."""
        self.prepared, self.before, self.call, self.spread = prepared, state, call, spread
        self.runs, self._since = state.run, since
        self.costs = state.method.costs(prepared.bound.problem)
        self.first = int(np.max(state.run.state.step))
        self.done = 0
        self.records = Records()
        self.feeding = Feeding(prepared.feeders, state.method.batches(prepared.bound.problem))
        self.ended: Status | None = None  # what the host ended the run with; None: its steps, or its own codes

    @property
    def method(self) -> AbstractMethod:
        """The method with every value filled in."""
        return self.before.method

    @property
    def step(self) -> int:
        """Outer steps made, those of earlier calls included."""
        return self.first + self.done

    @property
    def elapsed(self) -> float:
        """Seconds of this run, compilation apart."""
        begin, compiled = self._since
        return time.perf_counter() - begin - (self.prepared.bound.compile_seconds - compiled)

    def drive(self) -> None:
        """Run until the steps, the clock, the callback, the tolerance, the data or a failure ends it."""
        per_step: float | None = None
        with progress_bar(self.call.progress, self.call.steps) as show:
            while self.done < self.call.steps and self.ended is None:
                asked = 1 if per_step is None else max(1, int(CHUNK_SECONDS / max(per_step, 1e-9)))
                before, recorded = self.elapsed, len(self.records)
                try:
                    steps = self._chunk(asked)
                except Exhausted as error:
                    self.ended = Reason.NO_MORE_BATCHES.status(self.step, what=error)
                    return
                per_step = (self.elapsed - before) / steps
                self.done += steps
                show(self.done, self.records.last())
                if not bool(np.any(np.asarray(self.runs.code) == device.RUNNING)):
                    return
                self.ended = self._ended_between_chunks(fresh=len(self.records) > recorded)

    def _ended_between_chunks(self, fresh: bool) -> Status | None:
        """Whether the callback (asked where there is a fresh record) or the clock ends the run."""
        if self.call.callback is not None and fresh and self._callback_stops():
            return Reason.CALLBACK.status(self.step)
        late = self.call.seconds is not None and self.elapsed >= self.call.seconds
        if late and self.done < self.call.steps:
            return Reason.TIME_UP.status(self.step, seconds=self.call.seconds)
        return None

    def _callback_stops(self) -> bool:
        assert self.call.callback is not None
        point = self.runs.state.point
        x, y = self.prepared.whole(point.x, point.y)
        x, y = jax.tree.map(lambda a: jnp.array(a, copy=True) if eqx.is_array(a) else a, (x, y))
        answer = self.call.callback(Info(self.step, x, y, self.records.last() or {}))
        return isinstance(answer, bool | np.bool_) and bool(answer)

    def _chunk(self, asked: int) -> int:
        """Compile (once) and run one chunk; returns its number of steps."""
        period = self.call.period
        asked = self.feeding.available(min(asked, self.call.steps - self.done))
        to_record = period - self.step % period
        lead, with_record, rows = asked, self.done + asked == self.call.steps, 0
        if asked >= to_record:
            lead, with_record = to_record, True
            rows = 0 if self.call.callback is not None else min((asked - lead) // period, device.ROWS - 1)
        steps = lead + rows * period
        orders = Orders(
            first_step=jnp.asarray(self.step, jnp.int32),
            lead=jnp.asarray(lead, jnp.int32),
            lead_record=jnp.asarray(with_record),
            rows=jnp.asarray(rows, jnp.int32),
            period=jnp.asarray(period, jnp.int32),
            tol=jnp.asarray(self.call.tol or -1.0, self.runs.limit.dtype),
            fed=self.feeding.batches(steps),
        )
        started = self.elapsed
        self.runs, table, written = self.prepared.bound.run(
            "chunk",
            functools.partial(device.chunk, self.call.output, self.spread),
            self.runs,
            self.method,
            orders,
            static=(self.call.output, self.spread),
            donate=True,
        )
        self.records.add(table, int(written), started + self.before.seconds, self.elapsed + self.before.seconds)
        return steps

    # -- the end ----------------------------------------------------------------------------------------------------

    def solution(self) -> Solution | Solutions:
        """Everything that was computed."""
        prepared, bound = self.prepared, self.prepared.bound
        x, y, multipliers = bound.run(
            "finish",
            functools.partial(_finish, self.call.output, self.spread),
            self.runs,
            self.method,
            static=(self.call.output, self.spread),
        )
        seconds = self.before.seconds + self.elapsed
        total = int(np.max(self.runs.state.step))  # a chunk ends early where every start has stopped
        parts = zip(self.before.spent, self.costs.step, self.costs.end, strict=True)
        spent = Costs(*(a + (total - self.first) * b + c for a, b, c in parts))
        x, y = prepared.whole(x, y)
        compiling = bound.compile_seconds - self._since[1]
        told: dict[str, Any] = {
            "x": x,
            "y": y,
            "multipliers": multipliers,
            "history": self.records.history(self.before.spent, self.costs.step, self.first, self.spread != "one"),
            "counts": Counts(**spent._asdict(), seconds=seconds, compile_seconds=compiling),
            "state": self.before._replace(run=self.runs, seconds=seconds, spent=spent),
            "method": self.method,
            "problem": prepared.problem,
        }
        statuses = [self._status(i) for i in range(np.size(self.runs.code))]
        if self.spread == "one":
            return Solution(status=statuses[0], **told)
        return Solutions(status=statuses, **told)

    def _status(self, i: int) -> Status:
        """How start i ended."""
        code, step = int(np.ravel(self.runs.code)[i]), int(np.ravel(self.runs.state.step)[i])
        if code == device.NONFINITE:
            return Reason.NOT_A_NUMBER.status(step, cure=self._cure(i))
        if code == device.DIVERGED:
            return Reason.RAN_AWAY.status(step, cure=self._cure(i))
        if code in LOWER_FAILURES:
            return LOWER_FAILURES[code].status(step)
        if self.ended is not None and self.ended.failed:
            return Status(self.ended.kind, self.ended.message, step)
        if bool(np.ravel(self.runs.pinned)[i]):
            return Reason.HELD_IN_A_CORNER.status(step)
        quality = self.records.quality(i, self.method.advice.bring_y_closer)
        if code == device.CONVERGED:
            return Reason.RESIDUALS_SMALL.status(step, tol=self.call.tol, quality=quality)
        if self.ended is not None:
            return Status(self.ended.kind, self.ended.message, step)
        return Reason.STEPS_DONE.status(step, done=self.done, quality=quality)

    def _cure(self, i: int) -> str:
        """What to do about start i: its steps compared with what the curvature at its last finite point allows."""
        advice = self.method.advice
        if self.prepared.feeders:
            return advice.shorten_steps
        method, run = self.method, self.runs
        if self.spread != "one":
            method, run = jax.tree.map(lambda a: a[i] if eqx.is_array(a) else a, (method, run))
        limits = self.prepared.bound.run("step limits", _step_limits, run, method)
        found = {name: (float(used), float(most)) for name, (used, most) in limits.items()}
        for name, (used, most) in found.items():
            if np.isfinite(most) and used > most:
                return (
                    f"{name}={used:.3g} exceeds 2/L ~ {most:.3g} there; lower it or leave it unset (an estimate is "
                    "made at the start only: where the curvature grows on the way, set a smaller step)."
                )
        if not all(np.isfinite(most) for _, most in found.values()):
            return "The functions' derivatives are not finite there: restrict X and Y to where they are."
        return (found and advice.no_step_too_long) or advice.shorten_steps


def _finish(
    output: Output, spread: Spread, problem: Problem, runs: Run, method: AbstractMethod
) -> tuple[Any, Any, Multipliers]:
    def one(method: AbstractMethod, run: Run) -> tuple[Any, Any, Multipliers]:
        state = run.state if run.kept is None else method.moved_to(run.state, *run.kept)
        x, y, multipliers = method.finish(problem, state)
        # An exact solver's y may miss a bound by a rounding error: an entry on its bound is on it to the last digit.
        return sets.project(problem.x_set, x), sets.project(problem.y_set, y), multipliers

    return device.over_starts(one, spread)(method, runs)


def _step_limits(problem: Problem, run: Run, method: AbstractMethod) -> dict[str, tuple[Any, Any]]:
    return method.step_limits(problem, run.state)
