"""The search over x where the lower level is trained rather than solved: networks, and other large nonconvex levels.

F is taken as the mean over several trainings under x (`hierax._judge.retraining`), with the same starts and batches for
every x, so that it is a function of x that can be minimised without derivatives: over x itself where it has few
entries, else along the way that SALVF has found.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._auto.constants import (
    FEW_X,
    RETRAINED_EVALUATIONS,
    RETRAINED_RADII,
    WAY_AT_MOST,
)
from hierax._auto.referee import Referee, RunEnd
from hierax._auto.schedule import RunSettings
from hierax._auto.stage_runner import KEPT_TYPES, KeptStage, Stage, kept_stage, stage_of
from hierax._base.lazy import lazy
from hierax._base.text import numbers_of, shown
from hierax._compile.precision import doubled_on_host, float64
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.programs import raveled, unraveled
from hierax._judge.certificate import SURE, Certificate
from hierax._judge.point import Judgement
from hierax._judge.retraining import Retraining, Trained
from hierax._problem import sets
from hierax._problem.problem import Multipliers
from hierax._run.notes import NOTHING_KEPT, Notes
from hierax._run.prepare import Prepared

optimize = lazy("scipy.optimize")

NOWHERE = 1e30  # F of a point whose trainings are not finite, as the search sees it
AGAIN = 2  # times that the search goes on from a lower point which the certificate has found


Met = Callable[[Stage, bool], bool]
"""Is told of a stage, and whether an earlier run of the call has met it; True: the search has to end."""


class Limits(NamedTuple):
    """Whether the search has to end, and whether its certificate has to."""

    search: Callable[[], bool]
    certificate: Callable[[], bool]


class Found(NamedTuple):
    """The best point of a search, its certificate, and what the log is told."""

    stage: Stage
    certificate: Certificate
    log: list[str]


def search_by_training(
    referee: Referee, limits: Limits, met: Met, ahead: PyTree | None, tol: float, notes: Notes = NOTHING_KEPT
) -> Found | None:
    """The x with the lowest mean of F over trainings; None: there was no time for a single one.

    Args:
        referee: of the problem.
        limits: of the time.
        met: is told of every stage; True ends the search.
        ahead: where SALVF has come to from the start; None: nowhere.
        tol: of the certificate, which may name a lower point from which the search goes on.
        notes: of the call: trainings that an earlier run of it has done are taken over.
    """
    training = referee.retraining(limits.search)
    x, log, before = referee.setting.x, list[str](), None
    way = None if ahead is None else jax.tree.map(np.subtract, doubled_on_host(ahead), x)
    for turn in range(1 + AGAIN):
        training.stop = limits.search
        search = RetrainedSearch(training, met, referee.prepared, notes.under(f"trainings {turn}"))
        stage = search.run(x, way)
        if stage is None:
            return before
        log.append(f"{stage.text} That is the lowest F of {len(search.stages)} such points.")
        training.stop = limits.certificate
        certificate = referee.certificate_of_training(stage.end, training)
        own = certificate.reference.multipliers
        above = jax.tree.map(np.zeros_like, stage.end.multipliers.upper)
        end = stage.end._replace(multipliers=Multipliers(own.inequalities, own.equalities, above))
        before = Found(stage._replace(end=end), certificate, log)
        seen = certificate.retrained
        move = None if seen is None else seen.lower(tol * certificate.upper_scale, SURE)
        if move is None or way is not None or limits.search():
            break
        x = move.x
    return before


class _OutOfTime(Exception):
    """The time was up during a training."""


@dataclasses.dataclass
class RetrainedSearch:
    """Minimises the mean of F over trainings.

    Attributes:
        retraining: how the lower level is trained.
        met: is told of every stage; True ends the search.
        prepared: the problem, for the structure of what is kept.
        notes: trainings that are done.
        stages: what was met, by x.
    """

    retraining: Retraining
    met: Met
    prepared: Prepared
    notes: Notes
    stages: dict[bytes, Stage] = dataclasses.field(default_factory=dict)

    def run(self, x: PyTree, way: PyTree | None) -> Stage | None:
        """The best point found from x: over all of its entries, or along `way`; None: not one training was done."""
        at = raveled(x)
        with float64():
            low, high = map(np.asarray, sets.bounds(self.retraining.setting.bound.problem.x_set, x))
        if way is None:
            # Lengths are sizes here: the search lengthens its steps by itself, whatever the width of X.
            lengths = np.where(at != 0, np.abs(at), np.where(np.isfinite(high - low), 0.5 * (high - low), 1.0))
            bounds = optimize.Bounds((low - at) / lengths, (high - at) / lengths)
            start = np.zeros(at.size)
        else:
            lengths, bounds, start = raveled(way), optimize.Bounds(0.0, WAY_AT_MOST), np.ones(1)

        def value(u: np.ndarray) -> float:
            there = np.clip(at + lengths * u, low, high)
            stage = self._at(x, there)
            return stage.merit if np.isfinite(stage.merit) else NOWHERE

        first, last = RETRAINED_RADII
        options = {
            "initial_tr_radius": first,
            "final_tr_radius": last,
            "maxfev": RETRAINED_EVALUATIONS * (1 + start.size),
        }
        with contextlib.suppress(_OutOfTime):
            optimize.minimize(value, start, method="COBYQA", bounds=bounds, options=options)
        return min(self.stages.values(), key=lambda stage: stage.merit, default=None)

    def _at(self, x: PyTree, there: np.ndarray) -> Stage:
        """The stage at a point, made of its trainings where it is new."""
        key = there.tobytes()
        if key not in self.stages:
            name = f"training {len(self.stages)}"
            kept = self.notes.take(name, KEPT_TYPES)
            stage = self._trained(unraveled(x, there)) if kept is None else self._taken_over(kept)
            self.stages[key] = stage
            if kept is None and self.notes.kept:
                self.notes.put(name, kept_stage(stage))
            if self.met(stage, kept is not None):
                raise _OutOfTime
        return self.stages[key]

    def _trained(self, at: PyTree) -> Stage:
        found = self.retraining.at(at)
        if found is None:
            raise _OutOfTime
        return _stage(self.retraining.setting, at, found)

    def _taken_over(self, kept: KeptStage) -> Stage:
        """A stage of an earlier run of the call, on the host as others are here."""
        stage = stage_of(kept, self.prepared)
        return stage._replace(end=jax.tree.map(np.asarray, stage.end))


def few(x: PyTree) -> bool:
    """Whether x has so few entries that all of them are searched."""
    return numbers_of(x).size <= FEW_X


def _stage(setting: Float64Problem, x: PyTree, found: Trained) -> Stage:
    """The point with the best of its trainings as y, and the mean of F over all of them as its F."""
    y, best = found.answer()
    upper = np.asarray(found.judged.upper)
    mean, error = float(np.mean(upper)), float(np.std(upper, ddof=1)) / upper.size**0.5
    judged = Judgement(mean, best.lower, best.violation, float(np.max(found.judged.upper_violation)), best.gap)
    text = f"{upper.size} trainings at x = {shown(x)}: F = {mean:.6g} +- {error:.1g}, G = {best.lower:.6g}."
    names = ("constraints", "equalities", "upper_constraints")
    unknown = Multipliers(*(jax.tree.map(lambda row: np.zeros(row.shape), setting.shapes(name)) for name in names))
    return Stage(RunEnd(x, y, unknown, judged, 0.0, None), RunSettings(), text)
