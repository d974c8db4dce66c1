"""The large route: SALVF in stages, for sampled problems and for sizes at which nothing else is possible.

The first stage is a race over the weight c1 of the value function, for small problems from several starts side by side.
Every further stage makes two runs from the best point so far, with a normal and a longer x-step (`schedule.py`), and
keeps whichever ends lower in F at the lower level's own answer (`referee.py`). A run that fails counts as no run.

The certificate of the best point decides what comes next: where it says yes, the route ends; where it objects although
F no longer falls, c1 is raised; where noise keeps it from deciding, points are judged by more samples and the stages go
on. Problems too large for a certificate at every stage go by F alone, and end without a proof.

Lower levels that are trained rather than solved, as networks, are searched by training them (`retrained_search.py`),
over all of x where it has few entries, else along the way that the stages have found.
"""

import dataclasses
import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import PyTree

from hierax._auto.budget import Budget
from hierax._auto.certified import Certifier
from hierax._auto.constants import (
    ALLOWED_VIOLATION,
    CERTIFIED,
    LARGE_ROUTE_SECONDS,
    LARGE_ROUTE_STARTS,
    RAN_FAR,
    SEARCH_SHARE,
    SEVERAL_STARTS_SIZE,
    STAGES_BEFORE_RETRAINING,
    STRETCHES,
)
from hierax._auto.referee import Referee, can_judge, in_precision_of
from hierax._auto.retrained_search import Limits, few, search_by_training
from hierax._auto.schedule import RunSettings, Schedule
from hierax._auto.stage_runner import Stage, StageRunner
from hierax._auto.stages import Stages
from hierax._base import tree_math
from hierax._base.constants import LOWER_STARTS
from hierax._base.interrupt import Interrupt, interruptible
from hierax._base.text import numbers_of
from hierax._base.trees import size
from hierax._compile.precision import as_answer
from hierax._judge.retraining import COUNT
from hierax._math.lower_level import INFEASIBLE, SOLVED, UNBOUNDED
from hierax._methods.salvf import SALVF
from hierax._problem import sets
from hierax._problem.problem import Multipliers
from hierax._run.call import Call, Info
from hierax._run.prepare import Prepared
from hierax._run.progress import Show, progress_bar
from hierax._run.solution import Solution, with_certificate
from hierax._run.starts import Starts, lowest_of_starts
from hierax._run.status import Reason, Status
from hierax._run.stepping import run_steps

if TYPE_CHECKING:
    from hierax._auto.auto import Auto

KEPT = 1e-6  # violation of the final y above which it is repaired


class LargeRoute:
    """The stages of one problem."""

    def __init__(
        self, prepared: Prepared, auto: "Auto", seed: int, log: list[str], interrupt: Interrupt, call: Call
    ) -> None:
        self.prepared, self.log, self.interrupt, self.call = prepared, log, interrupt, call
        self.budget = Budget(auto.seconds or LARGE_ROUTE_SECONDS, auto.samples, call.clock.begin)
        self.budget.count_compilation_of(prepared.bound)
        self.referee = Referee(prepared, seed) if can_judge(prepared.problem) else None
        if self.referee is not None:
            self.budget.count_compilation_of(self.referee.setting.bound)
        self.runner = StageRunner(prepared, self.referee, self.budget, seed, call.notes)
        self.certifier = Certifier(self.referee, auto.tol, call.notes)
        self.starts = 1 if self.referee is None else auto.starts or _default_starts(prepared, self.referee)
        self.stages = Stages()
        self.stages_until = math.inf  # seconds after which something else begins
        self.ran_off = self.stopped = self.cut_short = False
        if self.referee is not None and self.referee.not_convex is not None:
            log.append(
                f"The lower level is {self.referee.not_convex}: y is the best of {LOWER_STARTS} solves at every x."
            )

    def run(self, show: Show) -> None:
        """Stages until the certificate agrees, the budget is spent, or nothing improves any more; then trainings."""
        if self.referee is None or self.referee.trained is None:
            self._run_stages(show)
            return
        self.log.append(f"The lower level is {self.referee.trained}: it is trained, not solved.")
        if not few(self.prepared.x):
            self.stages_until = STAGES_BEFORE_RETRAINING * self.budget.seconds
            self._run_stages(show)
        self._retrain(self.referee, show)

    def _retrain(self, referee: Referee, show: Show) -> None:
        """Search over x by training the lower level."""
        self.stages_until = math.inf
        ahead = self.stages.best

        def met(stage: Stage, again: bool) -> bool:
            self.stages.add(stage)
            self._tell(stage, again)
            show(int(self.budget.elapsed), {"upper": stage.upper, "violation": stage.violation})
            return self._must_end

        limits = Limits(lambda: self._enough_trained, lambda: self.budget.over or self.interrupt.asked)
        way = None if ahead is None else ahead.end.x
        found = search_by_training(referee, limits, met, way, self.certifier.tol, self.call.notes)
        self.cut_short = self._enough_trained
        if found is not None:
            self.stages.best, self.log = found.stage, [*self.log, *found.log]
            self.certifier.know(found.stage, found.certificate)
        elif ahead is None:
            self.log.append("The time was up before the lower level was trained once: the start is returned.")
            start = referee.as_it_is(self.prepared.x, self.prepared.y)
            self.stages.go_on_from(Stage(start, RunSettings()))

    @property
    def _enough_trained(self) -> bool:
        """Whether the search has to end, so that time is left for the certificate."""
        return self._must_end or self.budget.elapsed > SEARCH_SHARE * self.budget.seconds

    def _run_stages(self, show: Show) -> None:
        schedule = Schedule()
        first = self._race(schedule.first_race(), show, first=True)
        self.log += [stage.text for stage in first]
        ahead = min(first, key=lambda stage: stage.merit, default=None)
        self.stages.go_on_from(ahead)
        if self.runner.lower_statuses and SOLVED not in self.runner.lower_statuses:
            return
        schedule.go_on_with(None if ahead is None else ahead.settings)
        while not (self._must_end or self._falls_for_ever() or self._certified()):
            pair = self._race(schedule.next_race(), show)
            if len(pair) < 2:
                self.runner.shorten_inner_steps()
            ahead = min(pair, key=lambda stage: stage.merit, default=None)
            progress = self.stages.go_on_from(ahead)
            if ahead is not None and ahead is self.stages.best:
                self.log.append(ahead.text)
            schedule.learn(None if ahead is None else ahead.settings, progress)
            if schedule.stalled and not self._way_out(schedule):
                break
        if not self.interrupt.asked:
            self._certified()  # what is said of the best point in the end

    @property
    def _must_end(self) -> bool:
        """Whether the budget is spent, Ctrl-C was pressed, the caller has enough, or the data have ended."""
        enough = self.stopped or self._out_of_stages or self.budget.elapsed > self.stages_until
        return enough or self.budget.spent or self.interrupt.asked or bool(self.runner.no_more_data)

    @property
    def _out_of_stages(self) -> bool:
        return self.call.max_steps is not None and len(self.stages) >= self.call.max_steps

    def _tell(self, stage: Stage, again: bool) -> None:
        """Tell the callback of a stage, unless an earlier run of the call has made it; it may end the route."""
        if self.call.callback is not None and not again:
            x, y = self.prepared.whole(*as_answer((stage.end.x, stage.end.y)))
            record = {"upper": stage.upper, "violation": stage.violation, "gap": stage.end.iterate_gap}
            try:
                self.stopped |= self.call.callback(Info(len(self.stages), x, y, record)) is True
            except KeyboardInterrupt:
                self.interrupt.ask()

    def _way_out(self, schedule: Schedule) -> bool:
        """What to do where the stages bring no progress: another weight, more samples; False: nothing."""
        if self.stages.least_upper_violation > ALLOWED_VIOLATION:
            return False
        self._certified()
        reading = None if self.stages.best is None else self.certifier.known(self.stages.best)
        if reading is not None and reading.open_by_noise:
            self._look_closer()
            schedule.go_on()
            return True
        if schedule.c1_high_enough and not (reading is not None and reading.objects):
            return False
        schedule.raise_c1()
        return True

    def _look_closer(self) -> None:
        """Judge the best point, and all that come, by more samples."""
        best = self.stages.best
        if self.referee is None or best is None or not self.referee.see_more_samples():
            return
        self.budget.count_compilation_of(self.referee.setting.bound)
        end = best.end
        self.stages.best = best._replace(end=self.referee.judge(end.x, end.y, end.y, end.multipliers))
        self.log.append(f"Noise leaves the certificate open: from here on {self.referee.samples} samples judge.")

    def _race(self, race: Sequence[RunSettings], show: Show, first: bool = False) -> list[Stage]:
        """The good ones of one run with each of the settings, from the best point (first race: from all starts)."""
        best = self.stages.best
        x, y = self.prepared.x, self.prepared.y
        if best is not None:
            x, y = in_precision_of((x, y), (best.end.x, best.end.y))
        several = None
        if first and self.starts > 1 and self.referee is not None:
            several, (x, y) = self.starts, self.referee.starts(self.starts)
        found = []
        for settings in race:
            stage = None if self._must_end and self.stages else self.runner.run(settings, x, y, several)
            if stage is not None:
                self.stages.add(stage)
                self._tell(stage, self.runner.replayed)
                found.append(stage)
                leader = best or stage
                show(int(self.budget.elapsed), {"upper": leader.upper, "violation": leader.violation})
        return found

    def _certified(self) -> bool:
        """Whether the certificate of the best point agrees; a new one is told to the log."""
        best = self.stages.best
        if best is None:
            return False
        new = self.certifier.known(best) is None
        if new and self.budget.over:
            return False
        with self.budget.kept_back("certificate") if new else nullcontext():
            reading = self.certifier.reading(best)
        if new and reading is not None:
            self.log.append(f"Certificate of the best point: {reading.line}")
        return reading is not None and reading.agrees

    def _falls_for_ever(self) -> bool:
        """Whether F falls without an end: where the best point is far away, on along the ray from the start as well."""
        best = self.stages.best
        if best is None or self.referee is None:
            return False
        x0, end = self.prepared.x, best.end
        way = tree_math.sub(end.x, x0)
        if _size(way) < RAN_FAR * (1 + _size(x0)):
            return False
        for stretch in STRETCHES:
            further = sets.project(self.prepared.problem.x_set, tree_math.add_scaled(x0, stretch, way))
            before = float(end.judged.upper)
            end = self.referee.judge(further, end.y, end.y, end.multipliers)
            feasible = end.judged.upper_violation <= ALLOWED_VIOLATION and end.lower_status in (SOLVED, None)
            if not (end.judged.upper < before - abs(before) and feasible):
                return False
        self.ran_off = True
        return True


def _size(tree: PyTree) -> float:
    """The largest entry."""
    return float(np.max(np.abs(numbers_of(tree)), initial=0.0))


def _default_starts(prepared: Prepared, referee: Referee) -> int:
    """Several for a small problem."""
    return LARGE_ROUTE_STARTS if size(prepared.x) + referee.entries <= SEVERAL_STARTS_SIZE else 1


# -- the end of the route ---------------------------------------------------------------------------------------------


def run_large(prepared: Prepared, auto: "Auto", seed: int, first_line: str, call: Call) -> Solution:
    """The best point of all stages."""
    with interruptible() as interrupt:
        route = LargeRoute(prepared, auto, seed, [first_line], interrupt, call)
        with progress_bar(call.progress, call.news, int(route.budget.seconds), "seconds") as show:
            route.run(show)
        return _solution(route, auto, seed)


def _solution(route: LargeRoute, auto: "Auto", seed: int) -> Solution:
    prepared, status = route.prepared, _status(route)
    failures = ", ".join(f"{count} {name}" for name, count in route.runner.failures.items())
    route.log.append(f"{route.runner.runs} runs in all" + (f", undone: {failures}." if failures else "."))
    x, y, multipliers = _answer(route, seed)
    x, y = prepared.whole(*prepared.inside(x, y))
    solution = Solution(
        x=x,
        y=y,
        multipliers=as_answer(multipliers),
        status=status,
        history=route.stages.history(),
        counts=route.budget.total(),
        state=None,
        method=dataclasses.replace(auto, seconds=route.budget.seconds, starts=route.starts),
        problem=prepared.problem,
        log=(*route.log, status.message),
        tol=auto.tol,
        starts=_ends_of_starts(route),
    )
    certificate = None if route.stages.best is None else route.certifier.certificate_of(route.stages.best)
    judged_as_it_is = route.referee is not None and (route.referee.exact or route.referee.trained is not None)
    return with_certificate(solution, certificate if judged_as_it_is else None)


def _ends_of_starts(route: LargeRoute) -> Starts:
    """Where the first runs ended, which alone began at several starts."""
    if not route.runner.ends:
        return Starts()
    said = f"After the first runs, from {route.starts} starts; the search went on from the best of them."
    return Starts(lowest_of_starts(route.runner.ends, route.starts), said)


def _answer(route: LargeRoute, seed: int) -> tuple[PyTree, PyTree, Multipliers]:
    """The best point with y and multipliers from an exact lower solve, where that is possible; else the start."""
    if route.stages.best is None:
        prepared = route.prepared
        start = run_steps(prepared, SALVF(), Call(max_steps=1, seed=seed, progress=False, quiet=True))
        return prepared.x, prepared.y, start.multipliers
    end = route.stages.best.end
    trained = route.referee is not None and route.referee.trained is not None
    if route.referee is not None and not (route.referee.exact or trained):
        end = route.referee.judge(end.x, end.y, end.y, end.multipliers, CERTIFIED)
    if end.lower_status == SOLVED:
        route.log.append("y is the lower level's exact solution at the final x.")
    elif trained and route.certifier.known(route.stages.best) is not None:
        route.log.append(f"y is the best of {COUNT} trainings at the final x.")
    elif route.referee is not None and end.judged.violation > KEPT:
        kept = route.referee.kept(end)
        route.log.append(
            f"y violated the lower level's constraints by {end.judged.violation:.2g}: it was moved to the nearest "
            f"point that keeps them (violation {kept.judged.violation:.2g}, F = {kept.judged.upper:.6g})."
        )
        end = kept
    return end.x, end.y, end.multipliers


def _status(route: LargeRoute) -> Status:
    """How the route ended."""
    stages, best = len(route.stages), route.stages.best
    if route.runner.lower_statuses == {INFEASIBLE}:
        return Reason.NO_FEASIBLE_Y.status(stages)
    if route.runner.lower_statuses == {UNBOUNDED}:
        return Reason.LOWER_FALLS_FOR_EVER.status(stages)
    if best is None:
        return Reason.EVERY_STAGE_FAILED.status(0)
    if route.ran_off:
        return Reason.FALLS_FOR_EVER.status(stages, upper=best.upper)
    if route.stages.least_upper_violation > ALLOWED_VIOLATION:
        nearest = f"The least violation of any stage is {route.stages.least_upper_violation:.3g}."
        return Reason.NO_FEASIBLE_X.status(stages, nearest=nearest)
    details = {"upper": best.upper, "violation": best.violation, "stages": stages}
    return _reason(route, best).status(
        stages, **details, certificate=_certificate_text(route, best), what=route.runner.no_more_data
    )


def _reason(route: LargeRoute, best: Stage) -> Reason:
    """Why the stages ended with the best point."""
    reading = route.certifier.known(best)
    if reading is not None and reading.agrees:
        branches = route.referee is not None and route.referee.not_convex is not None
        return Reason.STAGES_DONE_AMONG_BRANCHES if branches else Reason.STAGES_DONE
    if route.interrupt.asked:
        return Reason.STAGES_INTERRUPTED
    if route.runner.no_more_data:
        return Reason.STAGES_OUT_OF_DATA
    if route.stopped:
        return Reason.STAGES_STOPPED
    if route.call.max_steps is not None and len(route.stages) >= route.call.max_steps:
        return Reason.STAGES_ENOUGH
    if not (route.budget.spent or route.cut_short):
        return Reason.STAGES_WITHOUT_PROOF
    out_of_time = route.budget.out_of_time or route.cut_short
    return Reason.STAGES_OUT_OF_TIME if out_of_time else Reason.STAGES_OUT_OF_SAMPLES


def _certificate_text(route: LargeRoute, best: Stage) -> str:
    """What the certificate of the best point says of it, in a sentence of the status."""
    reading = route.certifier.known(best)
    if reading is None:
        return "`sol.certificate` says how good that is."
    if reading.agrees:
        return "The certificate agrees."
    said = "objects" if reading.objects else "cannot decide"
    return f"The certificate {said}: {reading.objection} More seconds may help."
