"""The host's side of a run: it orders chunks of steps, looks at the clock between them, and gathers what came of it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from hierax._base.interrupt import Interrupt
from hierax._base.trees import on_device
from hierax._problem import sets
from hierax._problem.problem import Multipliers, Problem
from hierax._run import device
from hierax._run.call import Call, Info, State
from hierax._run.clock import Interrupted, OutOfTime, Stopwatch, patience_of
from hierax._run.device import Orders, Output, Run, Spread
from hierax._run.feeding import Feeding
from hierax._run.file_rows import FileFeeder, PlannedRows
from hierax._run.outcome import Begin, Ending, Outcome
from hierax._run.prepare import Prepared
from hierax._run.progress import progress_bar
from hierax._run.records import Records
from hierax._run.reports import Costs
from hierax._run.run_record import RUN, RunRecord
from hierax._run.solution import Counts, Solution, Solutions
from hierax._run.spending import Spending
from hierax._run.state_arrays import gathered
from hierax._run.status import Reason
from hierax._run.streams import Exhausted

if TYPE_CHECKING:
    from hierax._run.method import AbstractMethod

CHUNK_SECONDS = 0.5  # how long the host stays away: progress, Ctrl-C, callbacks and the clock wait this long
WORTH_SECONDS = 0.02  # steps that take so long are begun with, instead of waiting for the batches of more


class Host:
    """One run of steps, from its state to its solution."""

    def __init__(
        self,
        prepared: Prepared,
        state: State,
        call: Call,
        spread: Spread,
        watch: Stopwatch,
        interrupt: Interrupt,
        earlier: RunRecord | None = None,
    ) -> None:
        """`watch`: of the run, its start included; `earlier`: what a checkpoint says of the run up to `state`."""
        self.prepared, self.before, self.call, self.spread = prepared, state, call, spread
        self.watch, self.interrupt = watch, interrupt
        self.runs = state.run
        self.begin = Begin.of(state.run)
        self.done, self._compiled_before = 0, 0.0
        self._kept_at = -1  # steps made when the checkpoint was told of the run
        self.records = Records()
        self.spending = Spending(state.spent)
        if earlier is not None:
            x = jax.tree.unflatten(jax.tree.structure(self.begin.x), earlier.begin_x)
            self.begin = Begin(earlier.begin_step, x)
            self.records.restore(earlier.columns, earlier.times)
            self._compiled_before = earlier.compile_seconds
        self._open_stage()
        if earlier is not None:
            self.done = self._kept_at = earlier.done
            while self.stage_end < self.step:
                self._open_stage(self.stage_end)

    @property
    def step(self) -> int:
        """Outer steps made, those of earlier calls included."""
        return self.begin.step + self.done

    def _open_stage(self, step: int | None = None) -> None:
        """The method, every value filled in, with the batch sizes of the steps from `step` (None: the next) on;
        `stage_end`: where they change.
        """
        problem, step = self.prepared.bound.problem, self.step if step is None else step
        self.method: AbstractMethod
        self.method, self.stage_end = self.before.method.staged(step)
        batches, files = self.method.batches(problem), self.prepared.files
        planned = PlannedRows(files, self.prepared.bound, batches, self.runs.state.key) if files else None
        self.feeding = Feeding(self.prepared.feeders, batches, planned, self._open_files)
        self.spending.begin(step, self.method.costs(problem).step)

    def _open_files(self, planned: PlannedRows, step: int) -> FileFeeder:
        """What reads the rows of files, from a step on."""
        return FileFeeder(planned, step, patience_of(self.call.clock, self.interrupt), self.watch.waiting)

    @property
    def _waiting(self) -> float:
        """Seconds spent waiting for data, in all calls so far."""
        return self.before.waiting + self.watch.waiting.seconds

    def drive(self) -> Outcome:
        """Run until the steps, the clock, the callback, Ctrl-C, the tolerance, the data or a failure ends it."""
        try:
            ended = self._order_chunks()
        finally:
            self.feeding.close()
        self._keep()  # before the last window is closed: a run that goes on closes it where an uninterrupted one would
        if ended is not None:
            self._close_window()
        return Outcome(
            prepared=self.prepared,
            call=self.call,
            spread=self.spread,
            method=self.method,
            begin=self.begin,
            runs=self.runs,
            records=self.records,
            watch=self.watch,
            done=self.done,
            ended=ended,
        )

    def _order_chunks(self) -> Ending | None:
        """Chunk after chunk; what the host ended the run with, None: its steps, or its own codes."""
        per_step: float | None = None
        with progress_bar(self.call.progress, self.call.steps) as show:
            while self.done < self.call.steps and self._running:
                if self.call.notes.due:
                    self._keep()
                ended = self._ended_between_chunks()
                if ended is not None:
                    return ended
                before, recorded = self.watch.elapsed - self.watch.waiting.seconds, len(self.records)
                try:
                    steps = self._chunk(per_step)
                except (Exhausted, OutOfTime, Interrupted) as error:
                    return _without_a_batch(error)
                per_step = (self.watch.elapsed - self.watch.waiting.seconds - before) / steps
                self.done += steps
                show(self.done, self.records.last())
                if len(self.records) > recorded and self._running and self._callback_stops():
                    return Ending(Reason.CALLBACK)
        return None

    @property
    def _running(self) -> bool:
        """Whether a start has not stopped by itself."""
        return bool(np.any(np.asarray(self.runs.code) == device.RUNNING))

    def _keep(self) -> None:
        """Leave a record of the run as it is now to the checkpoint, where there is one."""
        if not self.call.notes.kept or self.done == self._kept_at:
            return
        self._kept_at = self.done
        columns, times = self.records.kept()
        record = RunRecord(
            state=gathered((self.before.method, self.runs)),
            begin_step=self.begin.step,
            begin_x=jax.tree.leaves(self.begin.x),
            done=self.done,
            seconds=self.before.seconds + self.watch.elapsed,
            compile_seconds=self._compiled_before + self.watch.compiling,
            waiting_seconds=self._waiting,
            spent=self.before.spent,
            columns=columns,
            times=times,
            places=self.prepared.places(),
        )
        self.call.notes.put(RUN, record, f"step {self.step}")

    def _ended_between_chunks(self) -> Ending | None:
        """Whether Ctrl-C or the clock ends the run."""
        if self.interrupt.asked:
            return Ending(Reason.CTRL_C)
        return Ending(Reason.TIME_UP) if self.call.clock.passed else None

    def _affordable(self, per_step: float | None, seconds: float) -> int:
        """How many steps are made in so many seconds, and within the time that is left; at least one."""
        if per_step is None:
            return 1
        return max(1, int(min(seconds, self.call.clock.left) / max(per_step, 1e-9)))

    def _callback_stops(self) -> bool:
        if self.call.callback is None:
            return False
        point = self.runs.state.point
        x, y = self.prepared.whole(point.x, point.y)
        x, y = jax.tree.map(lambda a: jnp.array(a, copy=True) if eqx.is_array(a) else a, (x, y))
        try:
            answer = self.call.callback(Info(self.step, x, y, self.records.last() or {}))
        except KeyboardInterrupt:
            self.interrupt.ask()
            return False
        return isinstance(answer, bool | np.bool_) and bool(answer)

    def _chunk(self, per_step: float | None) -> int:
        """Compile (once) and run one chunk; returns its number of steps. `per_step`: seconds of a step, where known."""
        if self.step == self.stage_end:
            self.feeding.close()
            self._open_stage()
        period = self.call.period
        asked = min(self._affordable(per_step, CHUNK_SECONDS), self.call.steps - self.done, self.stage_end - self.step)
        asked = self.feeding.available(self.step, asked, self._affordable(per_step, WORTH_SECONDS))
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
        opened = int(np.max(np.asarray(self.runs.window.first)))
        if self.done and int(np.max(np.asarray(self.runs.state.step))) > opened:
            self._run_chunk(0, True, 0, self.feeding.last, tol=None)

    def _run_chunk(self, lead: int, with_record: bool, rows: int, fed: dict[str, Any], tol: float | None) -> None:
        """Order `lead` steps (and a record), and then so many `rows` of steps with a record each."""
        orders = Orders(
            first_step=on_device(self.step, np.int32),
            lead=on_device(lead, np.int32),
            lead_record=on_device(with_record),
            rows=on_device(rows, np.int32),
            period=on_device(self.call.period, np.int32),
            tol=on_device(tol or -1.0, self.runs.limit.dtype),
            fed=fed,
        )
        started = self.watch.elapsed
        self.runs, table, written = self.prepared.bound.run(
            "chunk",
            functools.partial(device.chunk, self.call.output, self.spread),
            self.runs,
            self.method,
            orders,
            static=(self.call.output, self.spread),
            donate=True,
        )
        self.records.add(table, int(written), started + self.before.seconds, self.watch.elapsed + self.before.seconds)

    # -- the end ----------------------------------------------------------------------------------------------------

    def solution(self, outcome: Outcome) -> Solution | Solutions:
        """Everything that was computed, and how it ended."""
        prepared, bound = self.prepared, self.prepared.bound
        x, y, multipliers = bound.run(
            "finish",
            functools.partial(_finish, self.call.output, self.spread),
            self.runs,
            self.method,
            static=(self.call.output, self.spread),
        )
        seconds, compiling = self.before.seconds + self.watch.elapsed, self._compiled_before + self.watch.compiling
        total = int(np.max(np.asarray(self.runs.state.step)))  # a chunk ends early where every start has stopped
        end = self.method.costs(bound.problem).end
        spent = Costs(*(int(a) + b for a, b in zip(self.spending.until(total).values(), end, strict=True)))
        x, y = prepared.whole(x, y)
        told: dict[str, Any] = {
            "x": x,
            "y": y,
            "multipliers": multipliers,
            "history": self.records.history(self.spending, self.spread != "one"),
            "counts": Counts(
                **spent._asdict(), seconds=seconds, compile_seconds=compiling, waiting_seconds=self._waiting
            ),
            "state": self.before._replace(run=self.runs, seconds=seconds, spent=spent, waiting=self._waiting),
            "method": self.before.method,
            "problem": prepared.problem,
        }
        statuses = outcome.statuses()
        if self.spread == "one":
            return Solution(status=statuses[0], **told)
        return Solutions(status=statuses, **told)


def _without_a_batch(error: Exception) -> Ending:
    """How a run ends whose streams give nothing for its next step."""
    if isinstance(error, Interrupted):
        return Ending(Reason.CTRL_C)
    if isinstance(error, OutOfTime):
        return Ending(Reason.NO_BATCH_IN_TIME, "the Stream gives its batches too slowly")
    if error.__cause__ is not None:
        return Ending(Reason.NO_MORE_BATCHES, str(error), "Repair the source, and go on with state=sol.state.")
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
