"""The large route: SALVF in stages, for sampled problems and for sizes at which nothing else is possible.

The first stage is a race over the weight c1 of the value function, for small problems from several starts side by side.
Every further stage makes two runs from the best point so far, with a normal and a longer x-step (`schedule.py`), and
keeps whichever ends lower in F at the lower level's own answer (`referee.py`). A run that fails counts as no run.

The certificate of the best point decides what comes next: where it has nothing to object beyond its standard errors,
the route ends; where it objects although F no longer falls, c1 is raised. Problems too large for a certificate at every
stage go by F alone.
"""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import optax
from jaxtyping import PyTree

from hierax._auto.budget import Budget
from hierax._auto.certified import Certifier, agrees, in_a_line, objection, objects
from hierax._auto.constants import (
    ALLOWED_VIOLATION,
    CERTIFIED,
    GAIN,
    LARGE_ROUTE_SECONDS,
    LARGE_ROUTE_STARTS,
    RAN_FAR,
    SEVERAL_STARTS_SIZE,
    STRETCHES,
)
from hierax._auto.referee import Referee, can_judge
from hierax._auto.schedule import RunSettings, Schedule
from hierax._auto.stage_runner import Stage, StageRunner
from hierax._base.constants import LOWER_STARTS
from hierax._base.trees import size
from hierax._math.lower_level import INFEASIBLE, SOLVED, UNBOUNDED
from hierax._methods.salvf import SALVF
from hierax._problem import sets
from hierax._problem.problem import Multipliers
from hierax._run.call import Call
from hierax._run.prepare import Prepared
from hierax._run.progress import Show, progress_bar
from hierax._run.records import History
from hierax._run.solution import Solution
from hierax._run.status import Reason, Status
from hierax._run.stepping import run_steps

if TYPE_CHECKING:
    from hierax._auto.auto import Auto


class LargeRoute:
    """The stages of one problem."""

    def __init__(self, prepared: Prepared, auto: "Auto", seed: int, log: list[str]) -> None:
        self.prepared, self.log = prepared, log
        self.budget = Budget(auto.seconds or LARGE_ROUTE_SECONDS, auto.samples)
        self.budget.do_not_count_compilation_of(prepared.bound)
        self.referee = Referee(prepared, seed) if can_judge(prepared.problem) else None
        if self.referee is not None:
            self.budget.do_not_count_compilation_of(self.referee.setting.bound)
        self.runner = StageRunner(prepared, self.referee, self.budget, seed)
        self.certifier = Certifier(self.referee)
        self.starts = 1 if self.referee is None else auto.starts or _default_starts(prepared, self.referee)
        self.stages: list[Stage] = []  # the best end of every run that came to something
        self.best: Stage | None = None
        self.ran_off = False
        if self.referee is not None and self.referee.not_convex is not None:
            log.append(
                f"The lower level is {self.referee.not_convex}: y is the best of {LOWER_STARTS} solves at every x."
            )

    def run(self, show: Show) -> None:
        """Stages until the certificate agrees, the budget is spent, or nothing improves any more."""
        schedule = Schedule()
        first = self._race(schedule.first_race(), show, first=True)
        self.log += [stage.text for stage in first]
        ahead = min(first, key=lambda stage: stage.merit, default=None)
        self._keep(ahead)
        if self.runner.lower_statuses and SOLVED not in self.runner.lower_statuses:
            return
        schedule.go_on_with(None if ahead is None else ahead.settings)
        while not (self._falls_for_ever() or self._certified() or self.budget.spent):
            pair = self._race(schedule.next_race(), show)
            if len(pair) < 2:
                self.runner.shorten_inner_steps()
            ahead = min(pair, key=lambda stage: stage.merit, default=None)
            progress = self._keep(ahead)
            if ahead is not None and ahead is self.best:
                self.log.append(ahead.text)
            schedule.learn(None if ahead is None else ahead.settings, progress)
            if schedule.stalled:
                if self.least_upper_violation > ALLOWED_VIOLATION:
                    return
                if schedule.c1_high_enough and not self._certificate_objects():
                    return
                schedule.raise_c1()

    @property
    def least_upper_violation(self) -> float:
        """The least violation of the upper constraints that was met."""
        return min((stage.upper_violation for stage in self.stages), default=0.0)

    def _race(self, race: Sequence[RunSettings], show: Show, first: bool = False) -> list[Stage]:
        """The good ones of one run with each of the settings, from the best point (first race: from all starts)."""
        x, y = (self.prepared.x, self.prepared.y) if self.best is None else (self.best.end.x, self.best.end.y)
        several = None
        if first and self.starts > 1 and self.referee is not None:
            several, (x, y) = self.starts, self.referee.starts(self.starts)
        found = []
        for settings in race:
            stage = None if self.budget.spent and self.stages else self.runner.run(settings, x, y, several)
            if stage is not None:
                self.stages.append(stage)
                found.append(stage)
                leader = self.best or stage
                show(int(self.budget.elapsed), {"upper": leader.upper, "violation": leader.violation})
        return found

    def _keep(self, stage: Stage | None) -> bool:
        """Go on from a stage that is better than all before; whether it is clearly so."""
        if stage is None or (self.best is not None and stage.merit >= self.best.merit):
            return False
        progress = self.best is None or stage.merit < self.best.merit - GAIN * (1 + abs(self.best.merit))
        self.best = stage
        return progress

    def _certified(self) -> bool:
        """Whether the certificate of the best point agrees; a new one is told to the log."""
        if self.best is None:
            return False
        new = self.certifier.known(self.best) is None
        certificate = self.certifier.certificate(self.best)
        if new and certificate is not None:
            self.log.append(f"Certificate of the best point: {in_a_line(certificate)}")
        return agrees(certificate)

    def _certificate_objects(self) -> bool:
        self._certified()
        return self.best is not None and objects(self.certifier.known(self.best))

    def _falls_for_ever(self) -> bool:
        """Whether F falls without an end: where the best point is far away, on along the ray from the start as well."""
        if self.best is None or self.referee is None:
            return False
        x0, end = self.prepared.x, self.best.end
        way = optax.tree.sub(end.x, x0)
        if optax.tree.norm(way) < RAN_FAR * (1 + optax.tree.norm(x0)):
            return False
        for stretch in STRETCHES:
            further = sets.project(self.prepared.problem.x_set, optax.tree.add_scale(x0, stretch, way))
            before = float(end.judged.upper)
            end = self.referee.judge(further, end.y, end.y, end.multipliers)
            feasible = end.judged.upper_violation <= ALLOWED_VIOLATION and end.lower_status in (SOLVED, None)
            if not (end.judged.upper < before - abs(before) and feasible):
                return False
        self.ran_off = True
        return True


def _default_starts(prepared: Prepared, referee: Referee) -> int:
    """Several for a small problem."""
    return LARGE_ROUTE_STARTS if size(prepared.x) + referee.entries <= SEVERAL_STARTS_SIZE else 1


# -- the end of the route ---------------------------------------------------------------------------------------------


def run_large(prepared: Prepared, auto: "Auto", seed: int, first_line: str, progress: bool | None) -> Solution:
    """The best point of all stages."""
    route = LargeRoute(prepared, auto, seed, [first_line])
    with progress_bar(progress, int(route.budget.seconds)) as show:
        route.run(show)
    status = _status(route)
    failures = ", ".join(f"{count} {name}" for name, count in route.runner.failures.items())
    route.log.append(f"{route.runner.runs} runs in all" + (f", undone: {failures}." if failures else "."))
    x, y, multipliers = _answer(route, seed)
    x, y = prepared.whole(*prepared.inside(x, y))
    columns = {
        "step": np.arange(1, len(route.stages) + 1),
        "upper": np.array([stage.upper for stage in route.stages]),
        "violation": np.array([stage.violation for stage in route.stages]),
        "gap": np.array([stage.end.iterate_gap for stage in route.stages]),
        "factor": np.array([stage.settings.step_factor for stage in route.stages]),
    }
    return Solution(
        x=x,
        y=y,
        multipliers=multipliers,
        status=status,
        history=History(columns),
        counts=route.budget.total(),
        state=None,
        method=dataclasses.replace(auto, seconds=route.budget.seconds, starts=route.starts),
        problem=prepared.problem,
        log=(*route.log, status.message),
    )


def _answer(route: LargeRoute, seed: int) -> tuple[PyTree, PyTree, Multipliers]:
    """The best point with y and multipliers from an exact lower solve, where that is possible; else the start."""
    if route.best is None:
        prepared = route.prepared
        start = run_steps(prepared, SALVF(), Call(max_steps=1, seed=seed, progress=False, quiet=True))
        return prepared.x, prepared.y, start.multipliers
    end = route.best.end
    if route.referee is not None and not route.referee.exact:
        end = route.referee.judge(end.x, end.y, end.y, end.multipliers, CERTIFIED)
    if end.lower_status == SOLVED:
        route.log.append("y is the lower level's exact solution at the final x.")
    return end.x, end.y, end.multipliers


def _status(route: LargeRoute) -> Status:
    """How the route ended."""
    stages, best, budget = len(route.stages), route.best, route.budget
    if route.runner.lower_statuses == {INFEASIBLE}:
        return Reason.NO_FEASIBLE_Y.status(stages)
    if route.runner.lower_statuses == {UNBOUNDED}:
        return Reason.LOWER_FALLS_FOR_EVER.status(stages)
    if best is None:
        return Reason.EVERY_STAGE_FAILED.status(0)
    if route.ran_off:
        return Reason.FALLS_FOR_EVER.status(stages, upper=best.upper)
    if route.least_upper_violation > ALLOWED_VIOLATION:
        return Reason.NO_FEASIBLE_X.status(stages, violation=route.least_upper_violation)
    if agrees(route.certifier.known(best)) or not budget.spent:
        branches = route.referee is not None and route.referee.not_convex is not None
        reason = Reason.STAGES_DONE_AMONG_BRANCHES if branches else Reason.STAGES_DONE
    else:
        reason = Reason.STAGES_OUT_OF_TIME if budget.out_of_time else Reason.STAGES_OUT_OF_SAMPLES
    text = _certificate_text(route, best)
    return reason.status(stages, upper=best.upper, violation=best.violation, stages=stages, certificate=text)


def _certificate_text(route: LargeRoute, best: Stage) -> str:
    """What the certificate of the best point says of it, in a sentence of the status."""
    certificate = route.certifier.known(best)
    if certificate is None:
        return "`sol.certificate` says how good that is."
    if agrees(certificate):
        return "The certificate agrees."
    return f"The certificate objects: {objection(certificate)} More seconds may help."
