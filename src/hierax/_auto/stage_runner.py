"""Runs of the large route: SALVF with given settings from given starts, each end judged by the referee."""

import dataclasses
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import PyTree

from hierax._auto.budget import Budget
from hierax._auto.constants import (
    ALLOWED_VIOLATION,
    DAMPING,
    EXACT_INNER_STEPS,
    PRICE_OF_VIOLATION,
    X_STEP_DECAY,
)
from hierax._auto.kept_answer import arrays_of, form_of_multipliers, tree_of
from hierax._auto.referee import Referee, RunEnd
from hierax._auto.schedule import RunSettings
from hierax._base.errors import InputError
from hierax._judge.point import Judgement
from hierax._lower.salm import SALM
from hierax._math.lower_level import INFEASIBLE, UNBOUNDED
from hierax._methods.inner import inner_of
from hierax._methods.salvf import SALVF
from hierax._methods.steps import Decay, Steps
from hierax._run.call import Call
from hierax._run.clock import Interrupted, OutOfTime
from hierax._run.device import Output
from hierax._run.notes import NOTHING_KEPT, Notes
from hierax._run.prepare import Prepared
from hierax._run.solution import Counts, Solution, Solutions, statuses_of
from hierax._run.status import Kind
from hierax._run.stepping import run_steps
from hierax._run.stream_places import Place
from hierax._run.streams import Exhausted

NO_SOLUTION = (INFEASIBLE, UNBOUNDED)
LEAST_SECONDS = 1e-3  # of a run that begins when no time is left: it ends at its start, which is then the answer


class Estimates(NamedTuple):
    """What SALVF estimated at the first run's start: c1, the x-step, and the cap of the inner steps."""

    c1: float
    x_step: float
    inner_step: float


class Stage(NamedTuple):
    """The best end of a run, and what the run was made with."""

    end: RunEnd
    settings: RunSettings
    text: str = ""

    @property
    def upper(self) -> float:
        """F(x, y) at the end of the stage."""
        return float(self.end.judged.upper)

    @property
    def violation(self) -> float:
        """The largest violation."""
        return float(self.end.judged.violation)

    @property
    def upper_violation(self) -> float:
        """The largest violation of an upper constraint."""
        return float(self.end.judged.upper_violation)

    @property
    def merit(self) -> float:
        """F, and a price for upper constraints that are not kept."""
        excess = max(self.upper_violation - ALLOWED_VIOLATION, 0.0)
        return self.upper + PRICE_OF_VIOLATION * (1 + abs(self.upper)) * excess


class KeptStage(NamedTuple):
    """A stage as a checkpoint keeps it: arrays of its trees, and everything else."""

    x: list[np.ndarray]
    y: list[np.ndarray]
    multipliers: list[np.ndarray]
    judged: Judgement
    iterate_gap: float
    lower_status: int | None
    settings: RunSettings
    text: str


class KeptRun(NamedTuple):
    """What a `StageRunner` knows after a run, and the stage that came of it; see there."""

    stage: KeptStage | None
    estimates: Estimates | None
    runs: int
    failures: dict[str, int]
    lower_statuses: list[int]
    no_more_data: str
    spent: tuple[Counts, int]
    places: dict[str, Place]
    ends: tuple[tuple[int, float], ...] = ()


KEPT_TYPES = (KeptStage, KeptRun, Judgement, RunSettings, Estimates, Counts, Place)


def kept_stage(stage: Stage) -> KeptStage:
    """A stage for the notes."""
    end = stage.end
    return KeptStage(
        x=arrays_of(end.x),
        y=arrays_of(end.y),
        multipliers=arrays_of(end.multipliers),
        judged=Judgement(*map(float, end.judged)),
        iterate_gap=end.iterate_gap,
        lower_status=end.lower_status,
        settings=stage.settings,
        text=stage.text,
    )


def stage_of(kept: KeptStage, prepared: Prepared) -> Stage:
    """The stage that was kept."""
    multipliers = tree_of(kept.multipliers, form_of_multipliers(prepared))
    end = RunEnd(
        tree_of(kept.x, prepared.x),
        tree_of(kept.y, prepared.y),
        multipliers,
        kept.judged,
        kept.iterate_gap,
        kept.lower_status,
    )
    return Stage(end, kept.settings, kept.text)


class StageRunner:
    """Makes the runs of one problem; counts those that came to nothing."""

    def __init__(
        self, prepared: Prepared, referee: Referee | None, budget: Budget, seed: int, notes: Notes = NOTHING_KEPT
    ) -> None:
        self.prepared, self.referee, self.budget, self.seed = prepared, referee, budget, seed
        self._notes, self._asked = notes, 0
        self._places: dict[str, Place] = {}  # where the streams were after the latest run that was taken over
        self._cut_short = False  # whether time or the user ended the latest run
        self.replayed = False  # whether the latest run was taken over from an earlier run of the call
        self.estimates: Estimates | None = None  # in whose units settings are; of the first run
        self.runs = 0
        self.failures: Counter[str] = Counter()  # of runs that came to nothing, why
        self.ends: list[tuple[int, float]] = []  # start and F of ends of runs from several starts
        self.lower_statuses: set[int] = set()  # how exact solves of the lower level ended
        self.no_more_data = ""  # why the streams give nothing any more; empty: they do
        self._damping = 1.0

    def shorten_inner_steps(self) -> None:
        """After a run that failed."""
        self._damping *= DAMPING

    def run(self, settings: RunSettings, x: PyTree, y: PyTree, starts: int | None = None) -> Stage | None:
        """One run from (x, y), or one from each of several; the best end, or None where all failed.

        A run that an earlier run of the same call has finished is taken over from its notes.
        """
        name = f"run {self._asked}"
        self._asked += 1
        kept: KeptRun | None = self._notes.take(name, KEPT_TYPES)
        self.replayed = kept is not None
        if kept is not None:
            return self._taken_over(kept)
        self._cut_short = False
        stage = self._new_run(settings, x, y, starts, self._notes.under(name))
        if self._notes.kept and not self._cut_short:
            self._notes.under(name).drop()  # the steps of the run: what came of them is the stage
            self._notes.put(name, self._kept(stage))
        return stage

    def _kept(self, stage: Stage | None) -> KeptRun:
        """What is known after a run."""
        return KeptRun(
            stage=None if stage is None else kept_stage(stage),
            estimates=self.estimates,
            runs=self.runs,
            failures=dict(self.failures),
            lower_statuses=sorted(self.lower_statuses),
            no_more_data=self.no_more_data,
            spent=self.budget.kept(),
            places=self.prepared.places(),
            ends=tuple(self.ends),
        )

    def _taken_over(self, kept: KeptRun) -> Stage | None:
        self.estimates, self.runs, self.no_more_data = kept.estimates, kept.runs, kept.no_more_data
        self.failures, self.lower_statuses = Counter(kept.failures), set(kept.lower_statuses)
        self.ends = list(kept.ends)
        self.budget.restore(*kept.spent)
        self._places = kept.places
        return None if kept.stage is None else stage_of(kept.stage, self.prepared)

    def _new_run(self, settings: RunSettings, x: PyTree, y: PyTree, starts: int | None, notes: Notes) -> Stage | None:
        if self._places:
            self.prepared.move_streams_to(self._places)
            self._places = {}
        call = Call(
            max_steps=self.budget.affordable(settings.steps, starts or 1),
            seconds=max(LEAST_SECONDS, self.budget.left),
            seed=self.seed + self.runs,
            output=self._output,
            progress=False,
            quiet=True,  # a failure is part of the race, and the route's own log tells of it
            notes=notes,
        )
        found = self._run(self.prepared.at(x, y, starts), settings, call)
        if found is None:
            return None
        self.runs += 1
        self.budget.charge(found)
        solutions = [found] if isinstance(found, Solution) else list(found)
        if self.estimates is None:
            self.estimates = _estimates(solutions[0])
        with self.budget.kept_back("judging"):
            numbered = [(i, Stage(end, settings)) for i, one in enumerate(solutions) for end in self._ends(one)]
        self.lower_statuses |= {s.end.lower_status for _, s in numbered if s.end.lower_status is not None}
        numbered = [(i, s) for i, s in numbered if np.isfinite(s.merit) and s.end.lower_status not in NO_SOLUTION]
        if starts is not None:
            self.ends += [(i, s.upper) for i, s in numbered if s.upper_violation <= ALLOWED_VIOLATION]
        fine = [stage for _, stage in numbered]
        if not fine:
            status = solutions[0].status
            self.failures[status.name if status.failed else "no lower-level solution there"] += 1
            return None
        return _told(min(fine, key=lambda stage: stage.merit), fine, found)

    def _run(self, prepared: Prepared, settings: RunSettings, call: Call) -> Solution | Solutions | None:
        """The run; None where its streams give nothing for a first step, although earlier runs had something."""
        try:
            found = run_steps(prepared, self._method(settings), call)
        except (OutOfTime, Interrupted):
            if not self.runs:
                raise
            self._cut_short = True
            return None  # the budget and the request to end are looked at between the runs
        except InputError as error:
            if not (self.runs and isinstance(error.__cause__, Exhausted)):
                raise
            self.no_more_data, self._cut_short = str(error.__cause__), True
            return None
        for status in statuses_of(found):
            if status.kind is Kind.DATA_ERROR:
                self.no_more_data = status.message
            self._cut_short |= status.kind in (Kind.SECONDS, Kind.INTERRUPTED, Kind.DATA_ERROR)
        return found

    @property
    def _output(self) -> Output:
        """The average over a run's second half is worth a look where y is solved for anew at every x anyway."""
        return "tail" if self.referee is not None and self.referee.exact else "last"

    def _method(self, settings: RunSettings) -> SALVF:
        """SALVF as the run makes it; what is not given here is estimated at the run's start."""
        exact = self.prepared.problem.xi is None
        inner = SALM(steps=EXACT_INNER_STEPS) if exact else SALM()
        follow = exact or None
        if self.estimates is None:
            return SALVF(inner=inner, follow=follow)
        c1, x_step, inner_step = self.estimates
        # The longest stable x-step is about 1/(c1 L).
        steps = Steps(x=Decay(x_step * settings.step_factor / settings.c1_factor, X_STEP_DECAY))
        inner = dataclasses.replace(inner, eta_max=inner_step * self._damping)
        return SALVF(c1=c1 * settings.c1_factor, steps=steps, inner=inner, follow=follow)

    def _ends(self, solution: Solution) -> Iterator[RunEnd]:
        """Where a run that did not fail ended: its average, and its last point."""
        if solution.status.failed and solution.status.kind is not Kind.DATA_ERROR:
            return
        assert solution.state is not None
        last, multipliers = solution.state.run.state, solution.multipliers
        x, iterate = (eqx.filter(tree, eqx.is_inexact_array) for tree in (solution.x, solution.y))
        if self.referee is None:
            if not len(solution.history):  # ended before its first step: nothing is known of the point
                return
            upper, violation = (float(solution.history[name][-1]) for name in ("upper", "violation"))
            judged = Judgement(upper, np.nan, violation, 0.0, np.nan)
            yield RunEnd(x, last.w, multipliers, judged, np.nan, None)
            return
        yield self.referee.judge(x, iterate, last.w, multipliers)
        if self._output == "tail":
            yield self.referee.judge(last.point.x, iterate, last.w, multipliers)


def _estimates(solution: Solution) -> Estimates:
    method = solution.method
    assert isinstance(method, SALVF)
    longest_inner_step = inner_of(method.inner).control_step(method.smoothness)
    return Estimates(float(method.c1), float(method.steps.x.scale), float(longest_inner_step))


def _told(best: Stage, fine: list[Stage], found: Solution | Solutions) -> Stage:
    """The best end of a run with a line for the log."""
    whence = others = ""
    if isinstance(found, Solutions):
        whence = f" from {len(found)} starts"
        others = f" (others up to {max(stage.merit for stage in fine):.6g})"
    text = (
        f"{best.settings.steps} steps{whence} with {best.settings}: F = {best.upper:.6g}{others}, violation "
        f"{best.violation:.2g}, gap of the iterate {best.end.iterate_gap:.2g}."
    )
    return best._replace(text=text)
