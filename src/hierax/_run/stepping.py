"""One run of a method that makes steps, for `solve` and for every stage of `Auto`.

Before the first step unset values are estimated and the lower level is solved once, or an earlier run is made ready to
go on; then the host orders chunks of steps. At the end every start has a status: what its residuals say speaks of the
method's own reformulation, a certificate of the bilevel problem.
"""

from __future__ import annotations

import dataclasses
import functools
import logging
from collections.abc import Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar

from hierax._base.constants import CHUNK_SECONDS, LITTLE_DATA
from hierax._base.errors import InputError
from hierax._base.interrupt import Interrupt, interruptible
from hierax._base.settings import is_transformation
from hierax._base.text import numbers_of
from hierax._base.trees import on_device, size
from hierax._compile.checked import finite_values, refuse_nonfinite
from hierax._compile.placement import at_home, read
from hierax._judge.measuring import SHOWN_TOLERANCE
from hierax._lower.linear import OutOfTime
from hierax._math.hypergradient import MOST as MAX_ORDER
from hierax._problem import samples, sets
from hierax._problem.problem import Multipliers, Problem, row_of_nan
from hierax._run import device
from hierax._run.call import (
    MOMENT_SECONDS,
    Call,
    Guarded,
    Info,
    Interrupted,
    Patience,
    State,
    Stopwatch,
    progress_bar,
    start_keys,
)
from hierax._run.checkpoints import Gathered, gathered, placed
from hierax._run.device import Chunk, Orders, Output, Record, Run, first_run, over_starts, restarted
from hierax._run.feeding import Exhausted, Feeding, FileFeeder, Place, PlannedRows
from hierax._run.method import AbstractMethod, Costs
from hierax._run.prepare import Prepared, check_method, described
from hierax._run.solution import FAILED, Counts, History, Reason, Solution, Solutions, Status, certified, statuses_of

RUN = "run"  # the name of what a run of steps leaves in a checkpoint
NO_BATCH = (Exhausted, OutOfTime, Interrupted)  # why there is no batch for the next step
FOR_MESSAGES = ("pinned", "cycling", "slope_x")  # fields of a record that are no columns of the history
HARDLY_MOVED_SHARE = 0.02  # x has hardly moved where it moved by less than this part of its size, or of its set's width

FAILURES = {
    device.NONFINITE: Reason.NOT_A_NUMBER,
    device.DIVERGED: Reason.RAN_AWAY,
    device.NO_LOWER_POINT: Reason.NO_LOWER_POINT,
    device.NO_LOWER_BOUND: Reason.NO_LOWER_BOUND,
}

logger = logging.getLogger("hierax")


def started(prepared: Prepared, method: AbstractMethod, call: Call, form_only: bool = False) -> State:
    """The state of a run before its first step; with `form_only`, shapes in the place of its arrays: no batch is taken
    for that.
    """
    with prepared.processes.together():
        fed = _fed(prepared, method, call, form_only)
    output, spread, count = static = (call.output_of(prepared.problem), prepared.spread, prepared.count)

    def program(
        problem: Problem, method: AbstractMethod, x: PyTree, y: PyTree, seed: Array, fed: dict[str, PyTree]
    ) -> PyTree:
        """Of every start: the method with unset values estimated, its run with the lower level solved, which values are
        finite, and doubts.
        """

        def one(x: PyTree, y: PyTree, key: PRNGKeyArray) -> PyTree:
            look = method.batches(problem).first_look(problem, key)._replace(**fed)
            zeta = samples.fetch(problem.zeta, jax.tree.map(lambda a: a[0], look.zeta))
            xi = samples.fetch(problem.xi, jax.tree.map(lambda a: a[0], look.xi))
            begun = method.begin(problem, x, y, key, look)
            run = first_run(problem, begun.method, begun.state, output)
            return begun.method, run, finite_values(problem, x, y, zeta, xi), begun.doubts

        return over_starts(one, spread)(x, y, start_keys(seed, count))

    asked = ("the start", program, method, prepared.x, prepared.y, call.seed, fed)
    if form_only:
        filled, run, _, _ = prepared.bound.shapes(*asked, static=static)
    else:
        quick = size((prepared.x, prepared.y)) <= LITTLE_DATA  # it runs once
        filled, run, finite, doubts = prepared.bound.run(*asked, static=static, quick=quick)
        refuse_nonfinite(read(finite), prepared.problem)
        for text, flags in doubts.items():
            if np.any(read(flags)):
                raise InputError(text)
        filled = at_home(filled)
    return State(filled, run, output, 0.0, method.costs(prepared.bound.problem).start)


def _fed(prepared: Prepared, method: AbstractMethod, call: Call, form_only: bool) -> dict[str, PyTree]:
    """What streams and files give before the first step: batches for a lower solve, and a look at the next zeta.

    With `form_only` no batch of a stream is taken: what comes is of the same form. Rows of files are the same whenever
    they are asked for.
    """
    batches, starts = method.batches(prepared.bound.problem), prepared.count
    fed: dict[str, PyTree] = {}
    if prepared.files:
        keys = prepared.bound.run("keys", lambda _, key: start_keys(key, starts), call.seed, static=starts, quick=True)
        fed = PlannedRows(prepared.files, prepared.bound, batches, keys).first_look()
    for name, feeder in prepared.feeders.items():
        count = 1 if name == "zeta" else max(1, batches.start)
        if form_only or name == "zeta" or not batches.start:
            taken = jax.tree.map(lambda a, count=count: np.broadcast_to(a, (count, *a.shape)), feeder.peek())
        else:
            taken = feeder.take(count)
        fed |= {"zeta": taken} if name == "zeta" else {"xi": taken, "inner": taken}
    return prepared.on_mesh(fed, 1)


# -- going on ---------------------------------------------------------------------------------------------------------


def continued(state: State, prepared: Prepared, method: AbstractMethod, output: Output) -> State:
    """An earlier state made ready to go on; its arrays are copied, because a run overwrites its own."""
    point = state.run.state.point
    then, now = (jax.tree.map(jnp.shape, tree) for tree in ((point.x, point.y), (prepared.x, prepared.y)))
    if then != now:
        raise InputError(f"state: belongs to variables (x, y) of shapes {then}, but x0, y0 have {now}.")
    fresh, spread = output != state.output, prepared.spread

    def program(problem: Problem, runs: Run, method: AbstractMethod) -> Run:
        def one(method: AbstractMethod, run: Run) -> Run:
            return restarted(problem, method, run, output, fresh)

        return over_starts(one, spread)(method, runs)

    static = output, spread, fresh
    run = prepared.bound.run("restart", program, prepared.placed(state.run), method, static=static)
    return state._replace(method=method, run=run, output=output)


def settings_to_go_on_with(asked: AbstractMethod | None, known: AbstractMethod) -> AbstractMethod:
    """The method of a continued run: what the call sets, and for the rest what the run had."""
    if asked is None:
        return known
    if type(asked) is not type(known):
        raise InputError(
            f"method: the state was made by {type(known).__name__}, which does not fit {type(asked).__name__}. Leave "
            "the method unset, or start a new run from (sol.x, sol.y)."
        )
    for name, unset in asked.state_settings.items():
        then, now = _kind(getattr(known, name), unset), _kind(getattr(asked, name), unset)
        if getattr(asked, name) is not None and then != now:
            raise InputError(
                f"method: the state was made by a {type(known).__name__} whose {name} is {then}, which does not fit "
                f"{now}. Leave {name} unset, or start a new run from (sol.x, sol.y)."
            )
    return _merged(asked, known)


def _kind(setting: object, unset: str) -> str:
    """What decides the form of the state that a setting leaves behind."""
    if setting is None:
        return unset
    if is_transformation(setting):
        return "an optax transformation"
    if isinstance(setting, eqx.Module) and not callable(setting):
        return f"{type(setting).__name__}()"
    return "a number or schedule"


def _merged(asked: PyTree, known: PyTree) -> PyTree:
    """The settings of `asked`; where it leaves one unset, that of `known`."""
    if asked is None:
        return known
    if dataclasses.is_dataclass(asked) and type(asked) is type(known):
        merged = object.__new__(type(asked))  # unchecked: both were checked, and many starts give numbers an axis
        for field in dataclasses.fields(asked):
            object.__setattr__(merged, field.name, _merged(getattr(asked, field.name), getattr(known, field.name)))
        return merged
    if eqx.is_array_like(asked) and not isinstance(asked, bool) and eqx.is_array(known):
        return on_device(np.broadcast_to(np.asarray(asked), known.shape), known.dtype)
    return asked


# -- its records ------------------------------------------------------------------------------------------------------


Spending = list[tuple[int, Costs]]
"""The parts of a run: the first step of each, and what every step of it costs."""


def spent_until(step: int | np.ndarray, before: Costs, parts: Spending) -> dict[str, Any]:
    """Costs by name after `step` steps; `before`: what was spent before the first one."""
    ends = [first for first, _ in parts[1:]] + [np.iinfo(np.int64).max]
    made = [np.clip(step, first, end) - first for (first, _), end in zip(parts, ends, strict=True)]
    costs = zip(before, *(each for _, each in parts), strict=True)
    totals = [start + sum(n * each for n, each in zip(made, rest, strict=True)) for start, *rest in costs]
    return dict(zip(Costs._fields, totals, strict=True))


class Records:
    """The records of a run so far."""

    def __init__(self) -> None:
        self._tables: list[tuple[Record, np.ndarray]] = []
        self._own: dict[str, dict[int, np.ndarray]] = {}  # of the caller's: by name, and by the record's number

    def __len__(self) -> int:
        """Number of chunks that brought records."""
        return len(self._tables)

    def add(self, table: Record, count: int, begin: float, end: float) -> None:
        """Add the first `count` rows of a chunk's table, made between two times in seconds."""
        if count:
            rows = jax.tree.map(lambda a: np.asarray(a)[:count].copy(), table)  # not the rest of the table
            self._tables.append((rows, np.linspace(begin, end, count + 1)[1:]))

    def note(self, numbers: Mapping[str, Any]) -> None:
        """Add numbers of the caller's to the latest record: one of each name, or one for every start."""
        at, starts = sum(len(times) for _, times in self._tables) - 1, self._tables[-1][0].step.shape[1:]
        for name, number in numbers.items():
            known = name in {*Record._fields, *Costs._fields, "seconds"}
            if known or np.shape(number) not in ((), starts) or not np.issubdtype(np.asarray(number).dtype, np.number):
                needs = "another name: the history has this one" if known else "a number, or one for every start"
                raise InputError(f"callback: {name!r} needs {needs}; got {number!r}.")
            self._own.setdefault(name, {})[at] = np.broadcast_to(np.asarray(number, float), starts)

    def kept(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """All records as columns by name, and their times: what a checkpoint keeps."""
        if not self._tables:
            return {}, np.zeros((0,))
        tables, times = zip(*self._tables, strict=True)
        columns = {name: np.concatenate([getattr(table, name) for table in tables]) for name in Record._fields}
        unknown = np.full(columns["step"].shape[1:], np.nan)
        for name, own in self._own.items():
            columns[name] = np.stack([own.get(at, unknown) for at in range(len(columns["step"]))])
        return columns, np.concatenate(times)

    def restore(self, columns: dict[str, Any], times: np.ndarray) -> None:
        """Begin with what was `kept`."""
        own = {name: columns.pop(name) for name in [*columns] if name not in Record._fields}
        self._own = {name: dict(enumerate(column)) for name, column in own.items()}
        self._tables = [(Record(**columns), times)] if columns else []

    def last(self, at: int = -1) -> dict[str, np.ndarray]:
        """The latest record (`at` 0: the first); empty where there is none yet."""
        return {name: column[at] for name, column in self._tables[at][0]._asdict().items()} if self._tables else {}

    def of(self, start: int, at: int = -1) -> dict[str, float]:
        """The same of one start."""
        return {name: float(np.ravel(number)[start]) for name, number in self.last(at).items()}

    def path(self, start: int, first: int) -> float:
        """How far a start's x has travelled since step `first`, every step counted."""
        columns, times = self.kept()
        steps, moved = (columns[name].reshape(len(times), -1)[:, start] for name in ("step", "step_x"))
        return float(np.diff(steps, prepend=first) @ moved.astype(float))

    def history(self, before: Costs, parts: Spending, many: bool) -> History:
        """All records, with the costs up to each."""
        kept, times = self.kept()
        names = (name for name in (*Record._fields, *self._own) if name not in FOR_MESSAGES)
        columns = {name: kept.get(name, np.zeros(0)) for name in names}
        if many and kept:
            columns["step"] = columns["step"].max(axis=1)
        return History({**columns, "seconds": times, **spent_until(columns["step"].astype(int), before, parts)})


class Ending(NamedTuple):
    """Why the host ended a run, with what the reason's text says of the data."""

    reason: Reason
    what: str = ""
    cure: str = ""


# -- the run ----------------------------------------------------------------------------------------------------------


class Host:
    """One run of steps, from its state to its solution."""

    def __init__(
        self, prepared: Prepared, method: AbstractMethod, call: Call, watch: Stopwatch, interrupt: Interrupt
    ) -> None:
        """`watch`: of the run, its start included."""
        self.prepared, self.call, self.spread = prepared, call, prepared.spread
        self.output = call.output_of(prepared.problem)
        self.processes = prepared.processes
        self.watch, self.patience, self.interrupt = watch, Patience(call.clock, interrupt), interrupt
        for feeder in prepared.feeders.values():
            feeder.patience = self.patience
        earlier = call.notes.take(RUN, (Gathered, Costs, Place))  # what a checkpoint says of the run up to `before`
        self.before = state = state_to_begin_with(prepared, method, call, earlier)
        self.runs = state.run
        x = jax.tree.map(lambda a: np.array(a, copy=True), read(state.run.state.point.x))  # chunks overwrite the run
        self.begin_step, self.begin_x = int(np.max(read(state.run.state.step))), x
        self.done, self._compiled_before = 0, 0.0
        self._kept_at = -1  # steps made when the checkpoint was told of the run
        self.records = Records()
        self.parts: Spending = []
        if earlier is not None:
            self.begin_step = earlier["begin_step"]
            self.begin_x = jax.tree.unflatten(jax.tree.structure(x), earlier["begin_x"])
            self.records.restore(earlier["columns"], earlier["times"])
            self._compiled_before = earlier["compile_seconds"]
            self.done = self._kept_at = earlier["done"]
        self._open_stage(self.begin_step)
        while self.stage_end < self.step:
            self._open_stage(self.stage_end)

    @property
    def step(self) -> int:
        """Outer steps made, those of earlier calls included."""
        return self.begin_step + self.done

    def _open_stage(self, first: int) -> None:
        """The method, every value filled in, with the batch sizes of the steps from `first` to `stage_end`."""
        problem = self.prepared.bound.problem
        self.method: AbstractMethod
        self.method, self.stage_end = self.before.method.staged(first)
        batches, rows = self.method.batches(problem), None
        if self.prepared.files:
            planned = PlannedRows(self.prepared.files, self.prepared.bound, batches, self.runs.state.key)
            rows = FileFeeder(planned, self.step, self.patience)
        self.feeding = Feeding(self.prepared.feeders, rows, batches.inner, self.prepared.on_mesh)
        self.parts.append((first, self.method.costs(problem).step))

    @property
    def _seconds(self) -> dict[str, Any]:
        """Seconds in all calls so far (those compiling: in this one), as `Counts` has them."""
        return {
            "seconds": self.before.seconds + self.watch.elapsed,
            "compile_seconds": self._compiled_before + self.watch.compiling,
            "waiting_seconds": self.before.waiting + self.patience.waited,
        }

    def drive(self) -> Outcome:
        """Run until the steps, the clock, the callback, Ctrl-C, the tolerance, the data or a failure ends it."""
        try:
            ended = self._order_chunks()
        finally:
            self.feeding.close()
        self._keep()  # before the last window is closed: a run that goes on closes it where an uninterrupted one would
        opened, step = read((self.runs.window.first, self.runs.state.step))
        if ended is not None and self.done and int(np.max(step)) > int(np.max(opened)):
            self._run_chunk(0, True, 0, self.feeding.last, tol=None)  # a last record, between two: no steps
        return Outcome(self, ended)

    def _order_chunks(self) -> Ending | None:
        """Chunk after chunk; what the host ended the run with, None: its steps, or its own codes."""
        per_step: float | None = None
        shown = self.call.progress if self.processes.first else False
        with progress_bar(shown, self.call.news, self.call.steps, "steps") as show:
            while self.done < self.call.steps and self._running:
                if self.step == self.stage_end:
                    self.feeding.close()
                    self._open_stage(self.step)
                if not _steps_left(self):
                    return Ending(Reason.SAMPLES_USED)
                ended, asked = self._decision(per_step)
                if ended is not None:
                    return ended
                before, recorded = self.watch.elapsed - self.patience.waited, len(self.records)
                try:
                    steps = self._chunk(asked, self._affordable(per_step, MOMENT_SECONDS))
                except NO_BATCH as error:
                    return _without_a_batch(error)
                per_step = (self.watch.elapsed - self.patience.waited - before) / steps
                self.done += steps
                show(self.done, self.records.last())
                if len(self.records) > recorded and self._running and self._callback_stops():
                    return Ending(Reason.CALLBACK)
        return None

    @property
    def _running(self) -> bool:
        """Whether a start has not stopped by itself."""
        return bool(np.any(read(self.runs.code) == device.RUNNING))

    def _keep(self) -> None:
        """Leave a record of the run as it is now to the checkpoint, where there is one."""
        if not self.call.notes.kept or self.done == self._kept_at:
            return
        self._kept_at = self.done
        columns, times = self.records.kept()
        record = {
            "state": gathered((self.before.method, self.runs)),
            "begin_step": self.begin_step,
            "begin_x": jax.tree.leaves(self.begin_x),
            "done": self.done,
            **self._seconds,
            "spent": self.before.spent,
            "columns": columns,
            "times": times,
            "places": self.prepared.places(),
        }
        self.call.notes.put(RUN, record, f"step {self.step}")

    def _decision(self, per_step: float | None) -> tuple[Ending | None, int]:
        """Whether Ctrl-C or the clock ends the run, and else how many steps to order; before that a checkpoint is
        written where it is time for one. Ctrl-C in any process counts, the times are those of the first.
        """
        left = self.call.notes.journal.left
        due = per_step is not None and left <= max(per_step, MOMENT_SECONDS)  # after another step it might be late
        seconds = CHUNK_SECONDS if due else min(CHUNK_SECONDS, left / 2)  # half: a busy machine may take twice as long
        own = (due, self.interrupt.asked, self.call.clock.passed, self._affordable(per_step, seconds))
        told = self.processes.exchanged(*own)
        keep, _, late, steps = told[0]
        if keep:
            self._keep()
            self.call.notes.journal.write()
        if told[:, 1].any():
            self.interrupt.ask(self.interrupt.by)
            return Ending(Reason.CTRL_C), 0
        return (Ending(Reason.TIME_UP) if late else None), int(steps)

    def _affordable(self, per_step: float | None, seconds: float) -> int:
        """How many steps are made in `seconds`, and within the time that is left; at least one."""
        if per_step is None:
            return 1
        steps = int(min(seconds, self.call.clock.left) / max(per_step, 1e-9))
        return max(1, min(steps, self.call.steps - self.done))

    def _callback_stops(self) -> bool:
        """Ask the callback, where there is one, in the first process."""
        if not isinstance(self.call.callback, Guarded):  # there is none
            return False
        state, stops = at_home(self.runs.state), False
        point = state.point
        with self.processes.together():
            if self.processes.first:
                x, y = self.prepared.whole(point.x, point.y)
                seen = self.method.shown(state)
                x, y, seen = jax.tree.map(lambda a: jnp.array(a, copy=True) if eqx.is_array(a) else a, (x, y, seen))
                try:
                    info = Info(self.step, x, y, self.records.last(), **seen)
                    stops = bool(self.call.callback(info, self.records.note))
                except KeyboardInterrupt:
                    self.interrupt.ask()
        return bool(self.processes.exchanged(stops)[0, 0])

    def _chunk(self, asked: int, wanted: int) -> int:
        """Compile (once) and run one chunk of at most `asked` steps; returns how many.

        `wanted` steps' batches are worth waiting for a moment.
        """
        period = self.call.period
        asked = self._supplied(min(asked, _steps_left(self), self.stage_end - self.step), wanted)
        to_record = period - self.step % period
        lead, with_record, rows = asked, self.done + asked == self.call.steps, 0
        if asked >= to_record:
            lead, with_record = to_record, True
            rows = 0 if self.call.callback is not None else min((asked - lead) // period, device.MAX_CHUNK_RECORDS - 1)
        steps = lead + rows * period
        self._run_chunk(lead, with_record, rows, self.feeding.batches(steps), self.call.tol)
        return steps

    def _supplied(self, asked: int, wanted: int) -> int:
        """For how many of the steps there are batches: in every process, where streams feed several."""
        if not (self.prepared.feeders or self.prepared.files):
            return asked
        failure: Exception | None = None
        try:
            steps = self.feeding.available(asked, wanted)
        except NO_BATCH as error:
            steps, failure = 0, error
        told = self.processes.exchanged(steps, *(isinstance(failure, kind) for kind in NO_BATCH))
        failed = np.flatnonzero(told[:, 0] == 0)
        if failure is not None and failed[0] == self.processes.index:
            raise failure
        if failed.size:
            process, *kinds = failed[0], *told[failed[0], 1:]
            raise NO_BATCH[kinds.index(1)](f"the Streams of process {process} have no batch for the next step")
        return int(told[:, 0].min())

    def _run_chunk(self, lead: int, with_record: bool, rows: int, fed: dict[str, PyTree], tol: float | None) -> None:
        """Order `lead` steps (and a record), and then `rows` rows of steps with a record each."""
        first, period = on_device(self.step, np.int32), on_device(self.call.period, np.int32)
        ordered = on_device(lead, np.int32), on_device(with_record), on_device(rows, np.int32)
        orders = Orders(first, *ordered, period, on_device(tol or -1.0, self.runs.limit.dtype), fed)
        started = self.watch.elapsed
        static = self.output, self.spread

        def program(problem: Problem, runs: Run, method: AbstractMethod, orders: Orders) -> tuple[Run, Record, Array]:
            return Chunk(*static, problem, method, orders).run(runs)

        bound, given, before = self.prepared.bound, (self.runs, self.method, orders), self.before.seconds
        self.runs, table, written = bound.run("the steps", program, *given, static=static, donate=True)
        self.records.add(read(table), int(written), started + before, self.watch.elapsed + before)

    # -- the end ----------------------------------------------------------------------------------------------------

    def solution(self, outcome: Outcome) -> Solution | Solutions:
        """Everything that was computed, and how it ended."""
        prepared, bound = self.prepared, self.prepared.bound

        def program(problem: Problem, runs: Run, method: AbstractMethod) -> PyTree:
            def one(method: AbstractMethod, run: Run) -> tuple[PyTree, PyTree, Multipliers]:
                state = run.state if run.kept is None else method.moved_to(run.state, *run.kept)
                x, y, multipliers = method.finish(problem, state)
                # An exact solver's y may miss a bound by a rounding error: one on its bound is on it to the last digit.
                return sets.project(problem.x_set, x), sets.project(problem.y_set, y), multipliers

            return over_starts(one, self.spread)(method, runs)

        static = self.output, self.spread
        x, y, multipliers = bound.run("finish", program, self.runs, self.method, static=static)
        total = int(np.max(read(self.runs.state.step)))  # a chunk ends early where every start has stopped
        begun, end = self.before.spent, self.method.costs(bound.problem).end
        spent = Costs(*(int(a) + b for a, b in zip(spent_until(total, begun, self.parts).values(), end, strict=True)))
        x, y, multipliers = at_home((x, y, multipliers))
        x, y = prepared.whole(x, y)
        counts = Counts(**spent._asdict(), **self._seconds)
        state = State(self.before.method, self.runs, self.output, counts.seconds, spent, counts.waiting_seconds)
        history, statuses = self.records.history(begun, self.parts, prepared.count is not None), outcome.statuses()
        told = (history, counts, state, self.before.method, prepared.problem, (), self.processes.shared)
        if prepared.count is None:
            return Solution(x, y, multipliers, statuses[0], *told)
        return Solutions(x, y, multipliers, statuses, *told)


def _steps_left(host: Host) -> int:
    """Further steps of those asked for, as long as there are samples for them in `max_samples`."""
    left = host.call.steps - host.done
    if host.call.max_samples is None:
        return left
    costs, earlier = host.method.costs(host.prepared.bound.problem), host.before.spent
    spent = spent_until(host.step, earlier if host.call.state is None else Costs(), host.parts)
    room = host.call.max_samples - spent["zeta"] - spent["xi"] - costs.end.zeta - costs.end.xi
    each = costs.step.zeta + costs.step.xi
    return min(left, max(0, int(room) // each)) if each else left


def _without_a_batch(error: Exception) -> Ending:
    """How a run ends whose streams give nothing for its next step."""
    if isinstance(error, Interrupted):
        return Ending(Reason.CTRL_C)
    if isinstance(error, OutOfTime):
        return Ending(Reason.NO_BATCH_IN_TIME, "the Stream gives its batches too slowly")
    if error.__cause__ is not None:
        return Ending(Reason.NO_MORE_BATCHES, str(error), "Repair the source, and go on with state=sol.state.")
    return Ending(Reason.NO_MORE_BATCHES, str(error), "Give a re-iterable, or fewer max_steps.")


# -- how it ended -----------------------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What is known of a run after its last step; `ended`: what the host ended it with (None: its steps, or its own
    codes).
    """

    host: Host
    ended: Ending | None

    def statuses(self) -> list[Status]:
        """How every start ended."""
        arrays = self.host.runs.code, self.host.runs.state.step, self.host.runs.pinned
        flags = zip(*(np.ravel(read(array)).tolist() for array in arrays), strict=True)
        return [self._status(i, *one) for i, one in enumerate(flags)]

    def _status(self, i: int, code: int, step: int, pinned: bool) -> Status:
        if code in FAILURES:
            unexplained = code in (device.NONFINITE, device.DIVERGED)
            return FAILURES[code].status(step, cure=self._cure(i) if unexplained else "")
        ended = self.ended or Ending(Reason.STEPS_DONE)
        if pinned and ended.reason.kind not in FAILED:
            return Reason.HELD_IN_A_CORNER.status(step)
        quality = self.quality(i)
        if code == device.CONVERGED and ended.reason.kind not in FAILED:
            why = "sols[i].certificate tells."
            return Reason.RESIDUALS_SMALL_UNPROVED.status(step, tol=self.host.call.tol, quality=quality, why=why)
        call, said = self.host.call, {"quality": quality, "hint": self._hint(i), "what": ended.what, "cure": ended.cure}
        limits = {"seconds": call.seconds, "samples": call.max_samples, "compiling": self.host.watch.compiling}
        return ended.reason.status(step, done=self.host.done, **limits, **said)

    def quality(self, i: int) -> str:
        """How good the last point of start i is by its own residuals, in words."""
        last = self.host.records.of(i)
        if not last:
            return ""
        stationarity, violation, distance = (last[name] for name in ("stationarity", "violation", "distance"))
        tol = self.host.call.tol or SHOWN_TOLERANCE
        below = f"y is {distance:.2g} from the inner solver's answer"
        if violation > max(distance, tol):
            below += ", which is not the lower level's solution: it is not feasible"
        elif distance > tol:
            below += f": {self.host.method.advice.bring_y_closer}"
        return f" (stationarity {stationarity:.2g}, violation {violation:.2g}, {below})"

    def _hint(self, i: int) -> str:
        """What to do about start i where it goes round in a cycle or x has hardly moved."""
        last, first = self.host.records.of(i), self.host.records.of(i, 0)
        if not last:
            return ""
        small = max(self.host.call.tol or 0.0, HARDLY_MOVED_SHARE * first["stationarity"])
        if last["cycling"] and last["stationarity"] > small:
            return (
                " The last steps jump to and fro in a cycle: each is long, and together they lead nowhere. "
                f"{self.host.method.advice.shorten_steps}"
            )
        return self._no_movement(i, last)

    @functools.cached_property
    def _ends_of_x(self) -> tuple[PyTree, PyTree]:
        return self.host.begin_x, read(self.host.runs.state.point.x)

    def _no_movement(self, i: int, last: dict[str, float]) -> str:
        """That x has hardly moved although its direction is not zero, where that is so.

        Noise moves x to and fro: where the way it came is much longer than the distance, it need not go further.
        """
        ends = self._ends_of_x if self.host.prepared.count is None else jax.tree.map(lambda a: a[i], self._ends_of_x)
        x0, x = map(numbers_of, ends)
        sizes, moved = np.maximum(np.maximum(np.abs(x), np.abs(x0)), 1.0), float(np.linalg.norm(x - x0))
        wandering = 2 * moved < self.host.records.path(i, self.host.begin_step)
        few = last["step"] - self.host.begin_step <= device.CYCLE_STEPS
        if few or wandering or moved > HARDLY_MOVED_SHARE * np.linalg.norm(sizes):
            return ""
        box = sets.bounds(self.host.prepared.problem.x_set, jax.tree.map(jnp.asarray, ends[1]))
        length = float(np.linalg.norm(np.minimum(sizes, np.asarray(box.upper) - np.asarray(box.lower))))
        flat = last["slope_x"] * length < HARDLY_MOVED_SHARE * (1 + abs(last["upper"]))
        if flat or moved > HARDLY_MOVED_SHARE * length:
            return ""
        return (
            f" x has moved by {moved:.1g} in all, {moved / length:.2g} of its size or its set's width, and its "
            f"direction is not zero: {self.host.method.advice.lengthen_x_step}"
        )

    def _cure(self, i: int) -> str:
        """What to do about start i: its steps compared with what the curvature at its last finite point allows."""
        advice = self.host.method.advice
        if wrong := row_of_nan(self.host.prepared.problem):
            return wrong
        if self.host.prepared.feeders or self.host.prepared.files:
            return advice.shorten_steps
        method, run = self.host.method, self.host.runs
        if self.host.prepared.count is not None:
            method, run = jax.tree.map(lambda a: a[i] if eqx.is_array(a) else a, (method, run))

        def program(problem: Problem, run: Run, method: AbstractMethod) -> dict[str, tuple[Scalar, Scalar]]:
            return method.step_limits(problem, run.state)

        limits = self.host.prepared.bound.run("step limits", program, run, method)
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

    def too_costly(self) -> str:
        """Why the certificate is not made before the run returns; empty: it is."""
        prepared = self.host.prepared
        rows = jax.eval_shape(prepared.bound.problem.rows, prepared.x, prepared.y)
        entries = size((prepared.y, rows))
        if entries > MAX_ORDER:  # then judging the point may take longer than the run
            return f"with {entries:,} entries of y and constraints the certificate is left to you: sol.certificate."
        return "no time was left for the certificate: sol.certificate." if self.host.call.clock.passed else ""


# -- a run from its beginning to its end ------------------------------------------------------------------------------


def run_steps(prepared: Prepared, asked: AbstractMethod | None, call: Call) -> Solution | Solutions:
    """Make steps from the prepared start (or go on from `call.state`) until something ends the run.

    `asked` None: with the method of `call.state`, as it is. Ctrl-C ends the run with what it has; before there is a
    point to return it raises KeyboardInterrupt.
    """
    watch = Stopwatch(prepared.bound)
    if call.state is None:
        assert asked is not None
        method = asked
    else:
        method = settings_to_go_on_with(asked, call.state.method)
    processes = prepared.processes
    with processes.together():
        check_method(prepared, method, asked)
    processes.check_alike(_steering(method, call))
    with interruptible() as interrupt:
        if processes.exchanged(interrupt.asked).any():
            raise KeyboardInterrupt
        host = Host(prepared, method, call, watch, interrupt)
        outcome = host.drive()
        solution = host.solution(outcome)
        if isinstance(solution, Solution) and solution.status.kind is Reason.RESIDUALS_SMALL_UNPROVED.kind:
            assert call.tol is not None
            solution = certified(solution, call.tol, outcome.quality(0), outcome.too_costly())
    for status in statuses_of(solution):
        loud = status.failed and not call.quiet
        logger.log(logging.WARNING if loud else logging.INFO, "%s: %s", status.name, status.message)
    return solution


def _steering(method: AbstractMethod, call: Call) -> dict[str, object]:
    """What decides which programs run, by name: the same in every process."""
    names = ("max_steps", "max_samples", "record_every", "seed", "tol", "output")
    given = {name: getattr(call, name) for name in names}
    return {**given, "method": described(method), "whether there is a callback": call.callback is not None}


def state_to_begin_with(
    prepared: Prepared, method: AbstractMethod, call: Call, earlier: dict[str, Any] | None
) -> State:
    """The state before the first step of this call: new, that of the call, or that of a checkpoint, in which case the
    streams are brought to their places.
    """
    if call.state is not None:
        state = continued(call.state, prepared, method, call.output_of(prepared.problem))
    else:
        try:
            state = started(prepared, method, call, form_only=earlier is not None)
        except Exhausted as error:
            raise InputError(f"{error} before the first step: give a re-iterable or more batches.") from error
    if earlier is None:
        return state
    filled, run = placed(earlier["state"], (state.method, state.run))
    prepared.move_streams_to(earlier["places"])
    return State(filled, run, state.output, earlier["seconds"], earlier["spent"], earlier["waiting_seconds"])
