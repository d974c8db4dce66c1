"""The host's side of a run: it orders chunks of steps, looks at the clock between them, and tells how the run ended."""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hierax._base.interrupt import Interrupt
from hierax._problem import sets
from hierax._problem.problem import Multipliers, Problem
from hierax._run import device, wording
from hierax._run.call import Call, Info, State
from hierax._run.clock import Interrupted, OutOfTime
from hierax._run.device import Orders, Output, Run, Spread
from hierax._run.feeding import Feeding
from hierax._run.prepare import Prepared
from hierax._run.progress import progress_bar
from hierax._run.records import Records
from hierax._run.reports import Costs
from hierax._run.solution import Counts, Solution, Solutions
from hierax._run.status import Open, Reason, Status
from hierax._run.streams import Exhausted

if TYPE_CHECKING:
    from hierax._run.method import AbstractMethod

CHUNK_SECONDS = 0.5  # how long the host stays away: progress, Ctrl-C, callbacks and the clock wait this long

LOWER_FAILURES = {device.NO_LOWER_POINT: Reason.NO_LOWER_POINT, device.NO_LOWER_BOUND: Reason.NO_LOWER_BOUND}


class Ending(NamedTuple):
    """Why the host ended a run, with what the reason's text says of the data."""

    reason: Reason
    what: str = ""
    cure: str = ""


class Host:
    """One run of steps, from its state to its solution."""

    def __init__(
        self,
        prepared: Prepared,
        state: State,
        call: Call,
        spread: Spread,
        since: tuple[float, float],
        interrupt: Interrupt,
    ) -> None:
        """`since`: the time and the seconds spent compiling when the run began."""
        self.prepared, self.before, self.call, self.spread = prepared, state, call, spread
        self.interrupt = interrupt
        self.runs, self._since = state.run, since
        self.costs = state.method.costs(prepared.bound.problem)
        self.first = int(np.max(state.run.state.step))
        self.done = 0
        self.records = Records()
        self.feeding = Feeding(prepared.feeders, state.method.batches(prepared.bound.problem))
        self.ended: Ending | None = None  # what the host ended the run with; None: its steps, or its own codes
        self._first_x = jax.tree.map(lambda a: np.array(a, copy=True), state.run.state.point.x)

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
        return time.perf_counter() - self._since[0] - self._compiling

    @property
    def _compiling(self) -> float:
        """Seconds that this run spent compiling."""
        return self.prepared.bound.compile_seconds - self._since[1]

    def drive(self) -> None:
        """Run until the steps, the clock, the callback, Ctrl-C, the tolerance, the data or a failure ends it."""
        per_step: float | None = None
        ended: Ending | None = None
        with progress_bar(self.call.progress, self.call.steps) as show:
            while self.done < self.call.steps and (ended := self._ended_between_chunks()) is None:
                before, recorded = self.elapsed, len(self.records)
                try:
                    steps = self._chunk(self._affordable(per_step))
                except (Exhausted, OutOfTime, Interrupted) as error:
                    ended = _without_a_batch(error)
                    break
                per_step = (self.elapsed - before) / steps
                self.done += steps
                show(self.done, self.records.last())
                if not bool(np.any(np.asarray(self.runs.code) == device.RUNNING)):
                    return
                if len(self.records) > recorded and self.call.callback is not None and self._callback_stops():
                    ended = Ending(Reason.CALLBACK)
                    break
        if ended is not None:
            self.ended = ended
            self._close_window()

    def _ended_between_chunks(self) -> Ending | None:
        """Whether Ctrl-C or the clock ends the run."""
        if self.interrupt.asked:
            return Ending(Reason.CTRL_C)
        return Ending(Reason.TIME_UP) if self.call.clock.passed else None

    def _affordable(self, per_step: float | None) -> int:
        """How many steps to order: so many as keep the host away for a moment, and within the time that is left."""
        if per_step is None:
            return 1
        return max(1, int(min(CHUNK_SECONDS, self.call.clock.left) / max(per_step, 1e-9)))

    def _callback_stops(self) -> bool:
        assert self.call.callback is not None
        point = self.runs.state.point
        x, y = self.prepared.whole(point.x, point.y)
        x, y = jax.tree.map(lambda a: jnp.array(a, copy=True) if eqx.is_array(a) else a, (x, y))
        try:
            answer = self.call.callback(Info(self.step, x, y, self.records.last() or {}))
        except KeyboardInterrupt:
            self.interrupt.ask()
            return False
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
        self._run_chunk(lead, with_record, rows, self.feeding.batches(steps), self.call.tol)
        return steps

    def _close_window(self) -> None:
        """A last record where a run ends between two of them: a chunk without steps."""
        opened = int(np.max(self.runs.window.first))
        if self.done and int(np.max(self.runs.state.step)) > opened:
            self._run_chunk(0, True, 0, self.feeding.last, tol=None)

    def _run_chunk(self, lead: int, with_record: bool, rows: int, fed: dict[str, Any], tol: float | None) -> None:
        """Order `lead` steps (and a record), and then so many `rows` of steps with a record each."""
        orders = Orders(
            first_step=jnp.asarray(self.step, jnp.int32),
            lead=jnp.asarray(lead, jnp.int32),
            lead_record=jnp.asarray(with_record),
            rows=jnp.asarray(rows, jnp.int32),
            period=jnp.asarray(self.call.period, jnp.int32),
            tol=jnp.asarray(tol or -1.0, self.runs.limit.dtype),
            fed=fed,
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
        told: dict[str, Any] = {
            "x": x,
            "y": y,
            "multipliers": multipliers,
            "history": self.records.history(self.before.spent, self.costs.step, self.first, self.spread != "one"),
            "counts": Counts(**spent._asdict(), seconds=seconds, compile_seconds=self._compiling),
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
        if self.ended is not None and self.ended.reason.kind.failed:
            return self._ending(self.ended, i, step)
        if bool(np.ravel(self.runs.pinned)[i]):
            return Reason.HELD_IN_A_CORNER.status(step)
        if code == device.CONVERGED:
            quality = self.quality(i)
            return Reason.RESIDUALS_SMALL_UNPROVED.status(
                step, tol=self.call.tol, quality=quality, why=Open.ONE_OF_MANY.text()
            )
        return self._ending(self.ended or Ending(Reason.STEPS_DONE), i, step)

    def _ending(self, ended: Ending, i: int, step: int) -> Status:
        """The status of a start that the host ended."""
        reason, what, cure = ended
        time_taken = {"seconds": self.call.seconds, "compiling": self._compiling}
        quality, hint = self.quality(i), self._hint(i)
        return reason.status(step, done=self.done, quality=quality, hint=hint, what=what, cure=cure, **time_taken)

    @property
    def met_tolerance(self) -> bool:
        """Whether a single run was ended by its tolerance."""
        met = self.spread == "one" and int(self.runs.code) == device.CONVERGED
        return met and not bool(self.runs.pinned)

    def quality(self, i: int) -> str:
        """How good the last point of start i is by its own residuals, in words."""
        return wording.quality(self.records, i, self.method.advice, self.call.tol)

    @functools.cached_property
    def _last_x(self) -> PyTree:
        return jax.tree.map(np.asarray, self.runs.state.point.x)

    def _hint(self, i: int) -> str:
        """What to do about start i where it goes round in a cycle or x has hardly moved."""
        ends = self._first_x, self._last_x
        if self.spread != "one":
            ends = jax.tree.map(lambda a: a[i], ends)
        way = wording.Way(self.first, *ends)
        return wording.hints(self.records, i, self.method.advice, self.call.tol, self.prepared.problem, way)

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


def _without_a_batch(error: Exception) -> Ending:
    """How a run ends whose streams give nothing for its next step."""
    if isinstance(error, Interrupted):
        return Ending(Reason.CTRL_C)
    if isinstance(error, OutOfTime):
        return Ending(Reason.NO_BATCH_IN_TIME, "the Stream gives its batches too slowly")
    if error.__cause__ is not None:
        return Ending(Reason.NO_MORE_BATCHES, str(error), "Repair the iterable, and go on with state=sol.state.")
    return Ending(Reason.NO_MORE_BATCHES, str(error), "Give a re-iterable, or fewer max_steps.")


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
