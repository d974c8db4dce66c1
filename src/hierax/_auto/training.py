"""The search over x where the lower level is trained rather than solved: networks, and other large nonconvex levels.

F is taken as the mean over several trainings under x (`hierax._judge.retraining`), with the same starts and batches for
every x, so that it is a function of x that can be minimised without derivatives: over x itself where it has few
entries, else along the way that SALVF has found.
"""

import contextlib
import functools
from collections.abc import Callable

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._auto.constants import FEW_X, LAST_RADIUS, RUN_OFF, STRETCH, TURNS
from hierax._auto.runs import Referee, RunSettings, Stage
from hierax._auto.session import Keeper, Session, zero_multipliers
from hierax._base.imports import lazy
from hierax._base.text import numbers_of, shown
from hierax._compile.configuration import doubled_on_host, float64
from hierax._engine.programs import raveled, unraveled
from hierax._judge.certificate import Certificate
from hierax._judge.measuring import SURE
from hierax._judge.point import Judgement
from hierax._judge.retraining import Retraining
from hierax._problem import sets
from hierax._problem.problem import Multipliers

optimize = lazy("scipy.optimize")


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
    training = referee.retraining(lambda: session.work.passed)
    x, best = referee.setting.x, None
    way = None if ahead is None else jax.tree.map(np.subtract, doubled_on_host(ahead), x)
    for turn in range(1, TURNS):  # the certificate may name a lower point, from which the search goes on
        training.stop = lambda: session.work.passed
        search = RetrainedSearch(session, training, met, f"trainings {turn}")
        stage = search.run(x, way)
        if stage is None:
            return best
        session.log.append(f"{stage.text} That is the lowest F of {len(search.stages)} such points.")
        training.stop = lambda: session.work.over
        certificate = referee.certificate_of_training(stage, training)
        own = certificate.reference.multipliers
        above = jax.tree.map(np.zeros_like, stage.multipliers.upper)
        best = stage._replace(multipliers=Multipliers(own.inequalities, own.equalities, above)), certificate
        seen = certificate.retrained
        move = None if seen is None else seen.lower(session.auto.tol * certificate.upper_scale, SURE)
        if move is None or way is not None or session.work.passed:
            break
        x = move.x
    return best


class _OutOfTime(Exception):
    """The time was up during a training."""


class RetrainedSearch(Keeper):
    """Minimises the mean of F over trainings; those that an earlier run of the call has done are taken over.

    Attributes:
        stages: what was met, by x.
    """

    def __init__(self, session: Session, training: Retraining, met: Callable[[Stage], None], name: str) -> None:
        super().__init__(Stage, Judgement, RunSettings)
        self.session, self.training, self.met, self.name = session, training, met, name
        self.stages: dict[bytes, Stage] = {}

    def run(self, x: PyTree, way: PyTree | None) -> Stage | None:
        """The best point found from x: over all of its entries, or along `way`; None: not one training was done."""
        at = raveled(x)
        with float64():
            low, high = map(np.asarray, sets.bounds(self.training.setting.bound.problem.x_set, x))
        if way is None:
            # Lengths are sizes here: the search lengthens its steps by itself, whatever the width of X.
            lengths = np.where(at != 0, np.abs(at), np.where(np.isfinite(high - low), 0.5 * (high - low), 1.0))
            bounds = optimize.Bounds((low - at) / lengths, (high - at) / lengths)
            start = np.zeros(at.size)
        else:
            lengths, bounds, start = raveled(way), optimize.Bounds(0.0, STRETCH), np.ones(1)

        def value(u: np.ndarray) -> float:
            there = np.clip(at + lengths * u, low, high)
            key = there.tobytes()
            if key not in self.stages:
                self.stages[key] = self._trained_at(unraveled(x, there))
            merit = self.stages[key].merit
            return merit if np.isfinite(merit) else RUN_OFF

        most = 2 * FEW_X * (1 + start.size)
        options = {"initial_tr_radius": 0.5, "final_tr_radius": LAST_RADIUS, "maxfev": most}
        with contextlib.suppress(_OutOfTime):
            optimize.minimize(value, start, method="COBYQA", bounds=bounds, options=options)
        return min(self.stages.values(), key=lambda stage: stage.merit, default=None)

    def _trained_at(self, x: PyTree) -> Stage:
        name = f"{self.name}/training {len(self.stages)}"
        stage = self.session.piece(name, functools.partial(self._trained, x), self)
        self.met(stage)
        if self.session.work.passed:
            self.stages[raveled(x).tobytes()] = stage
            raise _OutOfTime
        return stage

    def _trained(self, x: PyTree) -> Stage:
        """The point with the best of its trainings as y, and the mean of F over all of them as its F."""
        found = self.training.at(x)
        if found is None:
            raise _OutOfTime
        self.session.work.evaluations += 1
        y, best = found.answer()
        upper = np.asarray(found.judged.upper)
        mean, error = float(np.mean(upper)), float(np.std(upper, ddof=1)) / upper.size**0.5
        judged = Judgement(mean, best.lower, best.violation, float(np.max(found.judged.upper_violation)), best.gap)
        text = f"{upper.size} trainings at x = {shown(x)}: F = {mean:.6g} +- {error:.1g}, G = {best.lower:.6g}."
        return Stage(x, y, zero_multipliers(self.session.prepared), judged, 0.0, None, text=text)

    def record(self, result: Stage) -> Stage:
        """What is kept of a training."""
        return result.kept()

    def restore(self, record: Stage) -> Stage:
        """A training of an earlier run of the call, on the host as others are here."""
        self.session.work.evaluations += 1
        stage = record.in_form_of(self.session.prepared)
        x, y, multipliers = (jax.tree.map(np.asarray, tree) for tree in stage.trees)
        return stage._replace(x=x, y=y, multipliers=multipliers)


def has_few_entries(x: PyTree) -> bool:
    """Whether a search by training moves every entry of x."""
    return bool(numbers_of(x).size <= FEW_X)
