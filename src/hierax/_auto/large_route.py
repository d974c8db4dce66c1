"""The large route: SALVF in stages, for sampled problems and for sizes at which nothing else is possible.

The first stage is a race over the weight c1 of the value function, for small problems from several starts side by side.
Every further stage makes two runs from the best point so far, with a normal and a longer x-step (`Schedule`), and
keeps whichever ends lower in F at the lower level's own answer (`Referee`). A run that fails counts as no run.

The certificate of the best point decides what comes next: where it says yes, the route ends; where it objects although
F no longer falls, c1 is raised; where noise keeps it from deciding, points are judged by more samples and the stages go
on. Problems too large for a certificate at every stage go by F alone, and end without a proof.

Lower levels that are trained rather than solved, as networks, are searched by training them. F is the mean over several
trainings under x (`hierax._judge.retraining`), with the same starts and batches for every x, so that it is a function
of x that can be minimised without derivatives: over x itself where it has few entries, else along the way that the
stages have found.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._auto import constants as const
from hierax._auto.runs import Referee, Runner, RunSettings, Schedule, Stage, open_by_noise
from hierax._auto.session import Session, arrays_of, in_precision_of, tree_of, zero_multipliers
from hierax._base import trees
from hierax._base.constants import FRESH_SAMPLES, LITTLE, LOWER_STARTS, MUCH
from hierax._base.imports import lazy
from hierax._base.text import numbers_of, shown
from hierax._base.trees import size
from hierax._compile.configuration import as_answer, doubled_on_host
from hierax._engine.float64_problem import GROUPS
from hierax._engine.programs import FEASIBLE, boxes, raveled, unraveled
from hierax._judge.certificate import Certificate, Verdict
from hierax._judge.measuring import SURE
from hierax._judge.retraining import COUNT, LARGE, Retraining
from hierax._judge.sampling import Estimates
from hierax._lower.linear import OutOfTime
from hierax._math.lower_level import INFEASIBLE, SOLVED, UNBOUNDED
from hierax._problem import sets
from hierax._problem.problem import Multipliers, is_streamed
from hierax._run.call import Clock, Patience, Show, progress_bar
from hierax._run.feeding import Feeder
from hierax._run.solution import Kind, Reason, Solution, Starts, Status, changed, lowest_of_starts

optimize = lazy("scipy.optimize")

WHY = {
    Kind.UNPROVED: "further stages gain nothing; ",
    Kind.STOPPED: "by the callback; ",
    Kind.INTERRUPTED: "by Ctrl-C or SIGTERM; ",
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
        best: the stage where the next runs begin: of those that are not significantly worse than the lowest, the last.
        least_violation: of the upper constraints, of all stages.
        certificate: of the best stage; None: it was not made.
    """

    def __init__(self, session: Session, show: Show) -> None:
        self.session, self.prepared, self._show = session, session.prepared, show
        self.streamed = is_streamed(self.prepared.problem)
        self._candidates: list[Stage] = []
        self.referee = Referee(
            self.prepared, session.seed, functools.partial(rows_of_streams, session, itertools.count())
        )
        session.compiles(self.referee.setting.bound)
        if self.streamed:
            session.log.append(
                f"{self.referee.setting.fresh_samples} samples of the streams were put aside: they judge the stages."
            )
        if self.referee.not_convex is not None:
            why = self.referee.not_convex
            session.log.append(f"The lower level is {why}: y is the best of {LOWER_STARTS} solves at every x.")
        self.runner = Runner(session, self.referee)
        several = size(self.prepared.x) + self.referee.entries <= LARGE and not self.streamed
        self.starts = session.auto.starts or (const.AGREEING_STARTS if several else 1)
        self.best: Stage | None = None
        self.least_violation = np.inf
        self.certificate: Certificate | None = None
        self.ran_off = False

    def run(self) -> None:
        """Stages until the certificate agrees, the budget is spent, or nothing improves any more; then trainings."""
        if self.referee.trained is None:
            if self.referee.exact:
                x, y = self.prepared.x, self.prepared.y
                start = self.referee.judge(x, y, y, zero_multipliers(self.prepared))
                self._candidates += [start] if start.lower_status == SOLVED else []
            self._run_stages(None)
            self._see_other_samples()
            if self.session.work.ended is not Kind.INTERRUPTED:
                self._certified()  # what is said of the best point in the end
            return
        self.session.log.append(f"The lower level is {self.referee.trained}: it is trained, not solved.")
        if size(self.prepared.x) > const.FEW_X:
            self._run_stages(2 * const.FEW_X)
        way = None if self.best is None else self.best.x
        found = search_by_training(self.session, self.referee, self.met, way)
        self.session.ended = self.session.work.ended
        if found is not None:
            self.best, self.certificate = found
        elif self.best is None:
            self.session.log.append("The time was up before the lower level was trained once: the start is returned.")
            x, y = self.prepared.x, self.prepared.y
            self.best = self.referee.judge(x, y, y, zero_multipliers(self.prepared), exact_up_to=0)
            self.least_violation = self.best.upper_violation

    def _run_stages(self, most: int | None) -> None:
        """Race after race, at most until there are `most` stages."""
        schedule = Schedule()
        winner, _ = self._race(schedule.first_race(), first=True)
        if self.runner.known.lower_statuses and SOLVED not in self.runner.known.lower_statuses:
            return
        schedule.settings = winner or schedule.settings
        while not (self._must_end() or self._falls_for_ever() or self._certified()):
            if most is not None and len(self.session.records) >= most:
                return
            schedule.learn(*self._race(schedule.next_race()))
            if schedule.longer_lost >= 2 and not self._way_out(schedule):
                break

    def _must_end(self) -> bool:
        """Whether time, samples or data are used up, Ctrl-C was pressed, or the caller has enough."""
        ended = self.session.work.ended
        if ended is not Kind.INTERRUPTED and self.runner.known.no_more_data:
            ended = Kind.DATA_ERROR
        self.session.ended = ended or (Kind.SAMPLES if self.runner.samples_left == 0 else None)
        return self.session.ended is not None

    def met(self, stage: Stage) -> None:
        """A stage was made: it is reported."""
        names = {"upper": stage.upper, "violation": stage.violation, "gap": stage.iterate_gap}
        record = {**names, "factor": stage.settings.step_factor}
        self.least_violation = min(self.least_violation, stage.upper_violation)
        self.session.report(record, lambda: as_answer((stage.x, stage.y)), again=self.session.replayed)
        leader = self.best or stage
        self._show(int(self.session.work.elapsed), {"upper": leader.upper, "violation": leader.violation})

    def _race(self, race: list[RunSettings], first: bool = False) -> tuple[RunSettings | None, bool]:
        """One run with each of the settings, from the best point (first race: from all starts).

        Returns:
            The settings that did best (None: no run was any good), and whether F is clearly lower than before.
        """
        x, y = self.prepared.x, self.prepared.y
        if self.best is not None:
            x, y = in_precision_of((x, y), (self.best.x, self.best.y))
        several = None
        if first and self.starts > 1:
            several, (x, y) = self.starts, self.referee.starts(self.starts)
        found = []
        for settings in race:
            stage = None if self._must_end() and self.session.records else self.runner.run(settings, x, y, several)
            if stage is not None:
                self.met(stage)
                found.append(stage)
        self.session.log += [stage.text for stage in found]
        if len(found) < len(race):
            self.runner.damping /= const.GROWTH
        ahead, before = min(found, key=lambda stage: stage.merit, default=None), self.best
        if ahead is None:
            return None, False
        self._candidates.append(ahead)
        lowest = min(self._candidates, key=lambda stage: stage.merit)
        close = [one for one in self._candidates if one.merit <= lowest.merit + SURE * one.error_against(lowest)]
        self.best = close[-1]
        if self.best is not before:
            self.certificate = None
        if self.best is not ahead or before is None:
            return ahead.settings, before is None
        error = SURE * ahead.error_against(before)
        return ahead.settings, ahead.merit < before.merit - max(const.NOTICEABLE * (1 + abs(before.merit)), error)

    def _way_out(self, schedule: Schedule) -> bool:
        """What to do where the stages bring no progress: another weight, more samples; False: nothing."""
        if self.least_violation > const.NOTICEABLE:
            return False
        self._certified()
        certificate, referee, best = self.certificate, self.referee, self.best
        if certificate is not None and open_by_noise(certificate, self.session.auto.tol):
            if best is not None and referee.see_more_samples():
                self._judge_again(best)
                line = f"Noise leaves the certificate open: from here on {referee.samples} samples judge."
                self.session.log.append(line)
            schedule.longer_lost = 0
            return True
        if schedule.settings.c1_factor > 1 and self._verdict != "no":
            return False
        schedule.raise_c1()
        return True

    def _judge_again(self, stage: Stage) -> None:
        """Judge a stage by the samples of now: those before it were judged by others."""
        self.session.compiles(self.referee.setting.bound)
        self.best, self.certificate = self.referee.again(stage), None
        self._candidates = [self.best]

    def _see_other_samples(self) -> None:
        """Judge the best point by samples that have chosen nothing, where there are some."""
        referee, work = self.referee, self.session.work
        if self.best is None or not referee.setting.sampled or work.over:
            return
        if not referee.see_other_samples(referee.samples):
            self.session.log.append("The streams give no further samples: those that chose the point judge it.")
            return
        self._judge_again(self.best)
        self.session.log.append(
            f"Judged by other samples, which have chosen nothing: F = {referee.in_words(self.best)}."
        )

    @property
    def _verdict(self) -> Verdict | None:
        """What the certificate of the best point says; None: it was not made."""
        return None if self.certificate is None else self.certificate.verdict(self.session.auto.tol)

    def _certified(self) -> bool:
        """Whether the certificate of the best point agrees; a new one is told to the log."""
        missing = self.certificate is None and not self.session.work.over
        if missing and self.best is not None:
            self.certificate = self.referee.certificate(self.best)
            if self.certificate is not None:
                words = next(iter(self.certificate.reasons(self.session.auto.tol)), "no objection.")
                self.session.log.append(f"Certificate of the best point: {self._verdict}; {words}")
        return self._verdict == "yes"

    def _falls_for_ever(self) -> bool:
        """Whether F falls without an end: where the best point is far away, on along the ray from the start as well."""
        if self.best is None:
            return False
        x0, end = self.prepared.x, self.best
        way = trees.sub(end.x, x0)
        if _largest(way) < MUCH * (1 + _largest(x0)):
            return False
        for stretch in const.STRETCHES:
            further = sets.project(self.prepared.problem.x_set, trees.add_scaled(x0, stretch, way))
            before = end.upper
            end = self.referee.judge(further, end.y, end.y, end.multipliers)
            feasible = end.upper_violation <= const.NOTICEABLE and end.lower_status in (SOLVED, None)
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
        judged_as_it_is = referee.exact or referee.trained is not None
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
        point = self.prepared.inside(*point)
        found = session.solution(point, multipliers, status, certificate, starts, upper, known.counts)
        if end is None or not referee.setting.sampled or referee.trained is not None:
            return found
        seen: dict[str, Any] = dict.fromkeys(Estimates._fields, np.nan)
        seen |= {"upper": end.upper, "upper_se": end.upper_se, "fresh": referee.setting.fresh_samples}
        return changed(found, estimates=Estimates(**seen))

    def _answer(self) -> Stage | None:
        """The best point with y and multipliers from an exact lower solve, where that is possible."""
        end, referee, log = self.best, self.referee, self.session.log
        if end is None:
            return end
        if not (referee.exact or self.streamed) and referee.trained is None:
            end = referee.again(end, const.MATRIX_ORDER)
        if end.lower_status == SOLVED:
            log.append("y is the lower level's exact solution at the final x.")
        elif referee.trained is not None and self.certificate is not None:
            log.append(f"y is the best of {COUNT} trainings at the final x.")
        elif end.violation > FEASIBLE:
            kept = referee.moved_onto_rows(end)
            log.append(
                f"y violated the lower level's constraints by {end.violation:.2g}: it was moved to the nearest point "
                f"that keeps them (violation {kept.violation:.2g}, F = {kept.upper:.6g})."
            )
            return kept
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
        if self.least_violation > const.NOTICEABLE:
            nearest = f"The least violation of any stage is {self.least_violation:.3g}."
            return Reason.NO_FEASIBLE_X.status(stages, nearest=nearest)
        kind, text = self.session.ended or Kind.UNPROVED, "`sol.certificate` says how good that is."
        if self._verdict == "yes":
            branches = self.referee.not_convex is not None
            kind, text = Kind.BEST_OF_BRANCHES if branches else Kind.CONVERGED, "The certificate agrees."
        elif self.certificate is not None:
            said = "objects" if self._verdict == "no" else "cannot decide"
            objection = next(iter(self.certificate.reasons(self.session.auto.tol)), None)
            text = f"The certificate {said}: {objection} More seconds may help."
        details = {"seen": self.referee.in_words(best), "violation": best.violation, "stages": stages}
        what = WHY.get(kind, f"{self.runner.known.no_more_data} " if kind is Kind.DATA_ERROR else "")
        return Reason.STAGES_ENDED.status(stages, kind, what=what, **details, certificate=text)


def _largest(tree: PyTree) -> float:
    """The largest entry."""
    return float(np.max(np.abs(numbers_of(tree)), initial=0.0))


def rows_of_streams(session: Session, numbers: Iterator[int], count: int) -> dict[str, PyTree]:
    """The next rows of every stream, which no run sees; of one that ends, at most half of what it has left.

    No more batches than the first run takes, and no more numbers than may be used whole. `numbers` tell the looks of a
    call apart.
    """
    feeders, work = session.prepared.feeders, session.work

    def next_rows(feeder: Feeder) -> PyTree:
        feeder.patience = Patience(Clock(work.seconds - work.elapsed), session.interrupt)
        batch, begin = feeder.peek(), work.elapsed
        each = len(jax.tree.leaves(batch)[0])
        batches = count * const.FIRST_STEPS // FRESH_SAMPLES
        most = min(count, batches * each, int(const.MUCH_DATA / size(batch) * each))
        return feeder.rows(2 * GROUPS, most, lambda: work.elapsed - begin > LITTLE * work.seconds)

    def record(rows: dict[str, PyTree]) -> dict[str, list[np.ndarray]]:
        return {name: arrays_of(tree) for name, tree in rows.items()}

    def restore(kept: dict[str, list[np.ndarray]]) -> dict[str, PyTree]:
        return {name: tree_of(arrays, feeders[name].peek()) for name, arrays in kept.items()}

    def take() -> dict[str, PyTree]:
        return {name: next_rows(feeder) for name, feeder in feeders.items()}

    return session.piece(f"samples that judge {next(numbers)}", take, (), record, restore) if feeders else {}


# -- lower levels that are trained ------------------------------------------------------------------------------------


def search_by_training(
    session: Session, referee: Referee, met: Callable[[Stage], None], ahead: PyTree | None
) -> tuple[Stage, Certificate] | None:
    """The x with the lowest mean of F over trainings, and its certificate; None: there was no time for a single one.

    Args:
        session: of the call.
        referee: of the problem.
        met: is told of every stage.
        ahead: where SALVF has come to from the start; None: nowhere.
    """
    problem, best = referee.setting, None
    assert referee.trained is not None
    training = Retraining.of(problem, problem.y, referee.seed, lambda: session.work.passed, referee.trained)
    x = problem.x
    way = None if ahead is None else jax.tree.map(np.subtract, doubled_on_host(ahead), x)
    for turn in range(1, const.TURNS):  # the certificate may name a lower point, from which the search goes on
        training.stop = lambda: session.work.passed
        stages = trained_stages(session, training, met, f"trainings {turn}", x, way)
        if not stages:
            return best
        stage = min(stages, key=lambda stage: stage.merit)
        session.log.append(f"{stage.text} That is the lowest F of {len(stages)} such points.")
        training.stop = lambda: session.work.over
        certificate = referee.certificate(stage, training)
        assert certificate is not None
        own = certificate.reference.multipliers
        above = jax.tree.map(np.zeros_like, stage.multipliers.upper)
        best = stage._replace(multipliers=Multipliers(own.inequalities, own.equalities, above)), certificate
        seen = certificate.retrained
        move = None if seen is None else seen.lower(session.auto.tol * certificate.upper_scale, SURE)
        if move is None or way is not None or session.work.passed:
            break
        x = move.x
    return best


def trained_stages(
    session: Session, training: Retraining, met: Callable[[Stage], None], name: str, x: PyTree, way: PyTree | None
) -> list[Stage]:
    """The points of a search from x for the lowest mean of F over trainings: over all of its entries, or along `way`.

    Trainings that an earlier run of the call has done are taken over.
    """
    stages: dict[bytes, Stage] = {}
    at = raveled(x)
    low, high = boxes(training.setting)[0]
    if way is None:
        # Lengths are sizes here: the search lengthens its steps by itself, whatever the width of X.
        lengths = np.where(at != 0, np.abs(at), np.where(np.isfinite(high - low), 0.5 * (high - low), 1.0))
        bounds, start = optimize.Bounds((low - at) / lengths, (high - at) / lengths), np.zeros(at.size)
    else:
        lengths, bounds, start = raveled(way), optimize.Bounds(0.0, MUCH), np.ones(1)

    def value(u: np.ndarray) -> float:
        there = np.clip(at + lengths * u, low, high)
        key = there.tobytes()
        if key not in stages:
            train = functools.partial(_trained, session, training, unraveled(x, there))
            piece = f"{name}/training {len(stages)}"
            restore = functools.partial(Stage.restored, session.prepared)
            stages[key] = session.piece(piece, train, (RunSettings,), Stage.kept, restore)
            met(stages[key])
            if session.work.passed:
                raise OutOfTime
        merit = stages[key].merit
        return merit if np.isfinite(merit) else const.RUN_OFF

    most = 2 * const.FEW_X * (1 + start.size)
    options = {"initial_tr_radius": 0.5, "final_tr_radius": const.LAST_RADIUS, "maxfev": most}
    with contextlib.suppress(OutOfTime):
        optimize.minimize(value, start, method="COBYQA", bounds=bounds, options=options)
    return list(stages.values())


def _trained(session: Session, training: Retraining, x: PyTree) -> Stage:
    """The point with the best of its trainings as y, and the mean of F over all of them as its F."""
    found = training.at(x)
    if found is None:
        raise OutOfTime
    session.work.evaluations += 1
    y, best = found.answer()
    upper = np.asarray(found.judged.upper)
    mean, error = float(np.mean(upper)), float(np.std(upper, ddof=1)) / upper.size**0.5
    text = f"{upper.size} trainings at x = {shown(x)}: F = {mean:.6g} +- {error:.1g}, G = {best.lower:.6g}."
    above = float(np.max(found.judged.upper_violation))
    return Stage(x, y, zero_multipliers(session.prepared), mean, float(best.violation), above, 0.0, text=text)
