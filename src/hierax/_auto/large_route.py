"""The large route: SALVF in stages, for sampled problems and for sizes at which nothing else is possible.

The first stage is a race over the weight c1 of the value function, for small problems from several starts side by side.
Every further stage makes two runs from the best point so far, with a normal and a longer x-step (`Schedule`), and
keeps whichever ends lower in F at the lower level's own answer (`Referee`). A run that fails counts as no run.

The certificate of the best point decides what comes next: where it says yes, the route ends; where it objects although
F no longer falls, c1 is raised; where noise keeps it from deciding, points are judged by more samples and the stages go
on. Problems too large for a certificate at every stage go by F alone, and end without a proof.

Lower levels that are trained rather than solved, as networks, are searched by training them (`training.py`), over all
of x where it has few entries, else along the way that the stages have found.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np
from jaxtyping import PyTree

from hierax._auto.constants import (
    AGREE,
    CLOSE,
    JUDGED_EXACTLY,
    MATRIX_ORDER,
    PATIENCE,
    STARTS,
    STRETCH,
    STRETCHES,
    VIOLATED,
)
from hierax._auto.runs import Reading, Referee, Runner, RunSettings, Schedule, Stage
from hierax._auto.session import Keeper, Session, in_precision_of, seen_as_a_whole, zero_multipliers
from hierax._auto.training import has_few_entries, search_by_training
from hierax._base import trees
from hierax._base.constants import LOWER_STARTS
from hierax._base.text import numbers_of
from hierax._base.trees import size
from hierax._compile.configuration import as_answer
from hierax._judge.certificate import Certificate
from hierax._judge.retraining import COUNT
from hierax._math.lower_level import INFEASIBLE, SOLVED, UNBOUNDED
from hierax._problem import sets
from hierax._run.progress import Show, progress_bar
from hierax._run.solution import Solution, Starts, lowest_of_starts
from hierax._run.status import Kind, Reason, Status

REASONS = {
    Kind.INTERRUPTED: Reason.STAGES_INTERRUPTED,
    Kind.DATA_ERROR: Reason.STAGES_OUT_OF_DATA,
    Kind.STOPPED: Reason.STAGES_STOPPED,
    Kind.MAX_STEPS: Reason.STAGES_ENOUGH,
    Kind.SECONDS: Reason.STAGES_OUT_OF_TIME,
    Kind.SAMPLES: Reason.STAGES_OUT_OF_SAMPLES,
    None: Reason.STAGES_WITHOUT_PROOF,
}


def run_large(session: Session) -> Solution:
    """The best point of all stages."""
    seconds = int(session.work.seconds)
    with progress_bar(session.call.progress, session.call.news, seconds, "seconds") as show:
        route = LargeRoute(session, show)
        route.run()
        return route.solution()


class LargeRoute:
    """The stages of one problem.

    Attributes:
        best: the best stage so far, where the next runs begin.
        least_violation: of the upper constraints, of all stages.
        reading: what the certificate of the best stage says; None: it was not made.
        certificate: the same, where this call has made it.
    """

    def __init__(self, session: Session, show: Show) -> None:
        self.session, self.prepared, self._show = session, session.prepared, show
        self.referee: Referee | None = None
        if seen_as_a_whole(self.prepared.problem):
            self.referee = Referee(self.prepared, session.seed)
            session.compiles(self.referee.setting.bound)
            if self.referee.not_convex is not None:
                why = self.referee.not_convex
                session.log.append(f"The lower level is {why}: y is the best of {LOWER_STARTS} solves at every x.")
        self.runner = Runner(session, self.referee)
        self.starts = _starts(session, self.referee)
        self.best: Stage | None = None
        self.least_violation = np.inf
        self.reading: Reading | None = None
        self.certificate: Certificate | None = None
        self.ran_off = False
        self._certificates = 0

    def run(self) -> None:
        """Stages until the certificate agrees, the budget is spent, or nothing improves any more; then trainings."""
        if self.referee is None or self.referee.trained is None:
            self._run_stages(None)
            return
        self.session.log.append(f"The lower level is {self.referee.trained}: it is trained, not solved.")
        if not has_few_entries(self.prepared.x):
            self._run_stages(2 * PATIENCE)
        way = None if self.best is None else self.best.x
        found = search_by_training(self.session, self.referee, self.met, way)
        self.session.ended = self.session.work.ended
        if found is not None:
            self.best, self.certificate = found
            self.reading = Reading.of(self.certificate, self.session.auto.tol)
        elif self.best is None:
            self.session.log.append("The time was up before the lower level was trained once: the start is returned.")
            x, y = self.prepared.x, self.prepared.y
            self.best = self.referee.judge(x, y, y, zero_multipliers(self.prepared), exact_up_to=0)
            self.least_violation = self.best.upper_violation

    def _run_stages(self, most: int | None) -> None:
        """Race after race, at most until there are `most` stages."""
        schedule = Schedule()
        first = self._race(schedule.first_race(), first=True)
        self.session.log += [stage.text for stage in first]
        ahead = min(first, key=lambda stage: stage.merit, default=None)
        self._go_on_from(ahead)
        if self.runner.known.lower_statuses and SOLVED not in self.runner.known.lower_statuses:
            return
        schedule.settings = schedule.settings if ahead is None else ahead.settings
        while not (self._must_end() or self._falls_for_ever() or self._certified()):
            if most is not None and len(self.session.records) >= most:
                return
            pair = self._race(schedule.next_race())
            if len(pair) < 2:
                self.runner.shorten_inner_steps()
            ahead = min(pair, key=lambda stage: stage.merit, default=None)
            progress = self._go_on_from(ahead)
            if ahead is not None and ahead is self.best:
                self.session.log.append(ahead.text)
            schedule.learn(None if ahead is None else ahead.settings, progress)
            if schedule.stalled and not self._way_out(schedule):
                break
        if not self.session.work.interrupted:
            self._certified()  # what is said of the best point in the end

    def _must_end(self) -> bool:
        """Whether time, samples or data are used up, Ctrl-C was pressed, or the caller has enough."""
        ended = self.session.work.ended
        if ended is not Kind.INTERRUPTED and self.runner.known.no_more_data:
            ended = Kind.DATA_ERROR
        self.session.ended = ended or (Kind.SAMPLES if self.runner.out_of_samples else None)
        return self.session.ended is not None

    def met(self, stage: Stage) -> None:
        """A stage was made: it is reported."""
        names = {"upper": stage.upper, "violation": stage.violation, "gap": stage.iterate_gap}
        record = {**names, "factor": stage.settings.step_factor}
        self.least_violation = min(self.least_violation, stage.upper_violation)
        self.session.report(record, lambda: as_answer((stage.x, stage.y)), again=self.session.replayed)
        leader = self.best or stage
        self._show(int(self.session.work.elapsed), {"upper": leader.upper, "violation": leader.violation})

    def _race(self, race: Sequence[RunSettings], first: bool = False) -> list[Stage]:
        """The good ones of one run with each of the settings, from the best point (first race: from all starts)."""
        x, y = self.prepared.x, self.prepared.y
        if self.best is not None:
            x, y = in_precision_of((x, y), (self.best.x, self.best.y))
        several = None
        if first and self.starts > 1 and self.referee is not None:
            several, (x, y) = self.starts, self.referee.starts(self.starts)
        found = []
        for settings in race:
            stage = None if self._must_end() and self.session.records else self.runner.run(settings, x, y, several)
            if stage is not None:
                self.met(stage)
                found.append(stage)
        return found

    def _go_on_from(self, stage: Stage | None) -> bool:
        """Go on from a stage that is better than all before; whether it is clearly so."""
        if stage is None or (self.best is not None and stage.merit >= self.best.merit):
            return False
        progress = self.best is None or stage.merit < self.best.merit - AGREE * (1 + abs(self.best.merit))
        self.best, self.reading, self.certificate = stage, None, None
        return progress

    def _way_out(self, schedule: Schedule) -> bool:
        """What to do where the stages bring no progress: another weight, more samples; False: nothing."""
        if self.least_violation > VIOLATED:
            return False
        self._certified()
        if self.reading is not None and self.reading.open_by_noise:
            self._look_closer()
            schedule.go_on()
            return True
        if schedule.settings.c1_power >= 1 and not (self.reading is not None and self.reading.verdict == "no"):
            return False
        schedule.raise_c1()
        return True

    def _look_closer(self) -> None:
        """Judge the best point, and all that come, by more samples."""
        if self.referee is None or self.best is None or not self.referee.see_more_samples():
            return
        self.session.compiles(self.referee.setting.bound)
        self.best, self.reading, self.certificate = self.referee.again(self.best), None, None
        text = f"Noise leaves the certificate open: from here on {self.referee.samples} samples judge."
        self.session.log.append(text)

    def _certified(self) -> bool:
        """Whether the certificate of the best point agrees; a new one is told to the log."""
        if self.best is None or self.referee is None:
            return False
        if self.reading is None and not self.session.work.over:
            name = f"certificate {self._certificates}"
            self._certificates += 1
            self.reading = self.session.piece(name, self._read, Keeper(Reading))
            if self.reading is not None:
                self.session.log.append(f"Certificate of the best point: {self.reading.line}")
        return self.reading is not None and self.reading.verdict == "yes"

    def _read(self) -> Reading | None:
        assert self.best is not None and self.referee is not None
        self.certificate = self.referee.certificate(self.best)
        return None if self.certificate is None else Reading.of(self.certificate, self.session.auto.tol)

    def _falls_for_ever(self) -> bool:
        """Whether F falls without an end: where the best point is far away, on along the ray from the start as well."""
        if self.best is None or self.referee is None:
            return False
        x0, end = self.prepared.x, self.best
        way = trees.sub(end.x, x0)
        if _largest(way) < STRETCH * (1 + _largest(x0)):
            return False
        for stretch in STRETCHES:
            further = sets.project(self.prepared.problem.x_set, trees.add_scaled(x0, stretch, way))
            before = end.upper
            end = self.referee.judge(further, end.y, end.y, end.multipliers)
            feasible = end.upper_violation <= VIOLATED and end.lower_status in (SOLVED, None)
            if not (end.upper < before - abs(before) and feasible):
                return False
        self.ran_off = True
        return True

    # -- the end of the route -----------------------------------------------------------------------------------------

    def solution(self) -> Solution:
        """The best point with its status."""
        known, session, referee = self.runner.known, self.session, self.referee
        status = self._status()
        failures = ", ".join(f"{count} {name}" for name, count in Counter(known.failures).items())
        session.log.append(f"{known.runs} runs in all" + (f", undone: {failures}." if failures else "."))
        judged_as_it_is = referee is not None and (referee.exact or referee.trained is not None)
        end = self._answer()
        if end is None:
            point, multipliers = (self.prepared.x, self.prepared.y), zero_multipliers(self.prepared)
        else:
            point, multipliers = (end.x, end.y), end.multipliers
        starts = Starts()
        if known.ends:
            said = f"After the first runs, from {self.starts} starts; the search went on from the best of them."
            starts = Starts(lowest_of_starts(list(known.ends), self.starts), said)
        certificate = self.certificate if judged_as_it_is else None
        session.auto = dataclasses.replace(session.auto, starts=self.starts)
        upper = None if end is None else end.upper
        point = session.as_given(*point)
        return session.solution(point, multipliers, status, certificate, starts, upper, known.counts)

    def _answer(self) -> Stage | None:
        """The best point with y and multipliers from an exact lower solve, where that is possible."""
        end, referee, log = self.best, self.referee, self.session.log
        if end is None or referee is None:
            return end
        if not referee.exact and referee.trained is None:
            end = referee.again(end, MATRIX_ORDER)
        if end.lower_status == SOLVED:
            log.append("y is the lower level's exact solution at the final x.")
        elif referee.trained is not None and self.reading is not None:
            log.append(f"y is the best of {COUNT} trainings at the final x.")
        elif end.violation > CLOSE:
            kept = referee.moved_onto_rows(end)
            log.append(
                f"y violated the lower level's constraints by {end.violation:.2g}: it was moved to the nearest point "
                f"that keeps them (violation {kept.violation:.2g}, F = {kept.upper:.6g})."
            )
            end = kept
        return end

    def _status(self) -> Status:
        """How the route ended."""
        stages, best, below = len(self.session.records), self.best, self.runner.known.lower_statuses
        if below == (INFEASIBLE,):
            return Reason.NO_FEASIBLE_Y.status(stages)
        if below == (UNBOUNDED,):
            return Reason.LOWER_FALLS_FOR_EVER.status(stages)
        if best is None:
            return Reason.EVERY_STAGE_FAILED.status(0)
        if self.ran_off:
            return Reason.FALLS_FOR_EVER.status(stages, upper=best.upper)
        if self.least_violation > VIOLATED:
            nearest = f"The least violation of any stage is {self.least_violation:.3g}."
            return Reason.NO_FEASIBLE_X.status(stages, nearest=nearest)
        reason, text = REASONS[self.session.ended], "`sol.certificate` says how good that is."
        if self.reading is not None and self.reading.verdict == "yes":
            branches = self.referee is not None and self.referee.not_convex is not None
            reason = Reason.STAGES_DONE_AMONG_BRANCHES if branches else Reason.STAGES_DONE
            text = "The certificate agrees."
        elif self.reading is not None:
            said = "objects" if self.reading.verdict == "no" else "cannot decide"
            text = f"The certificate {said}: {self.reading.objection} More seconds may help."
        details = {"upper": best.upper, "violation": best.violation, "stages": stages}
        return reason.status(stages, **details, certificate=text, what=self.runner.known.no_more_data)


def _largest(tree: PyTree) -> float:
    """The largest entry."""
    return float(np.max(np.abs(numbers_of(tree)), initial=0.0))


def _starts(session: Session, referee: Referee | None) -> int:
    """How many starts: several for a small problem that is seen as a whole."""
    if referee is None:
        return 1
    several = size(session.prepared.x) + referee.entries <= JUDGED_EXACTLY
    return session.auto.starts or (STARTS // 2 if several else 1)
