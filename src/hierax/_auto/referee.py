"""How the large route sees a point: the lower level's own answer there, F on all of the data, and the certificate.

SALVF's iterate y is drawn towards low F, which for a network means that it has seen the validation data; so points are
judged at the lower level's own answer. Everything is in double precision, with programs that all stages share.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from hierax._auto.constants import JUDGED_EXACTLY, MATRIX_ORDER, MOST_SAMPLES, RUN_OFF, VIOLATED
from hierax._auto.schedule import AS_ESTIMATED, RunSettings
from hierax._auto.session import arrays_of, float64_problem, form_of_multipliers, in_precision_of, tree_of
from hierax._base.constants import FRESH_SAMPLES, LOWER_STARTS
from hierax._base.trees import select, size
from hierax._compile.checked import finite_values
from hierax._compile.precision import doubled_on_host
from hierax._engine.float64_problem import Data
from hierax._engine.segments import not_convex
from hierax._judge.certificate import Certificate, Verdict
from hierax._judge.certifying import certificate_in
from hierax._judge.keeping import nearest_kept
from hierax._judge.point import Judgement, point_values, relative_gap
from hierax._judge.retraining import Retraining, is_trained
from hierax._lower.exact import Exact
from hierax._math.lower_level import SOLVED
from hierax._math.scatter import Cube, cover, unit_cube
from hierax._problem.problem import Multipliers, Problem
from hierax._run.prepare import Prepared


class Stage(NamedTuple):
    """The end of a run, judged at the lower level's own answer; the best of its ends stands for the run.

    Attributes:
        x: the run's x.
        y: the lower level's solution there: exact where its size allows, else the inner solver's.
        multipliers: likewise.
        judged: F and violations at (x, y).
        iterate_gap: relative gap of the run's own y against this one: what the weight c1 leaves of the lower level.
        lower_status: how the exact solve ended; None where there was none.
        settings: what the run was made with.
        text: a line for the log.
    """

    x: PyTree
    y: PyTree
    multipliers: Multipliers
    judged: Judgement
    iterate_gap: float
    lower_status: int | None
    settings: RunSettings = AS_ESTIMATED
    text: str = ""

    @property
    def upper(self) -> float:
        """F(x, y) at the end of the stage."""
        return float(self.judged.upper)

    @property
    def violation(self) -> float:
        """The largest violation."""
        return float(self.judged.violation)

    @property
    def upper_violation(self) -> float:
        """The largest violation of an upper constraint."""
        return float(self.judged.upper_violation)

    @property
    def merit(self) -> float:
        """F; where upper constraints are not kept, these come first."""
        return self.upper + RUN_OFF * (1 + abs(self.upper)) * max(self.upper_violation - VIOLATED, 0.0)

    def kept(self) -> "Stage":
        """The same for a checkpoint: lists of arrays instead of trees."""
        trees: list[Any] = [arrays_of(tree) for tree in self[:3]]
        return self._replace(x=trees[0], y=trees[1], multipliers=trees[2], judged=Judgement(*map(float, self.judged)))

    def in_form_of(self, prepared: Prepared) -> "Stage":
        """The stage that was `kept`."""
        likes = prepared.x, prepared.y, form_of_multipliers(prepared)
        x, y, multipliers = (tree_of(arrays, like) for arrays, like in zip(self[:3], likes, strict=True))
        return self._replace(x=x, y=y, multipliers=multipliers)


class Reading(NamedTuple):
    """A certificate as the route reads it.

    Attributes:
        verdict: yes, no or unknown (where it cannot decide, as at a kink or in noise).
        open_by_noise: whether noise alone keeps it from saying yes or no.
        objection: the first thing that it objects to, in a sentence; None: nothing.
        line: the certificate for the log.
    """

    verdict: Verdict
    open_by_noise: bool
    objection: str | None
    line: str

    @classmethod
    def of(cls, certificate: Certificate, tol: float) -> "Reading":
        """A certificate, read at a tolerance."""
        verdict, reasons = certificate.verdict(tol), certificate.reasons(tol)
        norm, error = certificate.hypergradient_norm, certificate.hypergradient_norm_se
        objection = reasons[0] if reasons else None
        slope = "hyper-gradient unknown" if norm is None else f"hyper-gradient {norm:.2g}"
        slope += "" if error is None else f" +- {error:.1g}"
        gap = "unknown" if certificate.lower_gap is None else f"{certificate.lower_gap:.2g}"
        line = (
            f"violation {certificate.max_violation:.2g}, lower gap {gap}, {slope} (its terms: "
            f"{certificate.hypergradient_scale:.2g}); {objection or 'ok'}"
        )
        return cls(verdict, verdict == "unknown" and norm is not None and error is not None, objection, line)


class Referee:
    """Judges points of one problem. Points are arrays in the precision of the run, here and in what it returns."""

    def __init__(self, prepared: Prepared, seed: int) -> None:
        self.prepared, self.seed = prepared, seed
        self.samples = FRESH_SAMPLES
        self.setting = float64_problem(prepared, seed)
        rows = self.setting.shapes("constraints"), self.setting.shapes("equalities")
        self.entries = size(self.setting.y) + sum(row.size for row in jax.tree.leaves(rows))
        self.not_convex = not_convex(self.setting, self.setting.y, seed) if self.exact else None
        self.trained = None if self.exact else is_trained(self.setting, seed)  # why it is trained, not solved
        self.lower = Exact() if self.not_convex is None else Exact(starts=LOWER_STARTS)

    @property
    def exact(self) -> bool:
        """Whether every point is judged at the exact y*(x)."""
        return self.entries <= JUDGED_EXACTLY

    def see_more_samples(self) -> bool:
        """Judge by as many samples as possible from now on; False where there is no noise, or they do so already."""
        if not self.setting.sampled or self.samples >= MOST_SAMPLES:
            return False
        self.samples = MOST_SAMPLES
        self.setting = float64_problem(self.prepared, self.seed, self.samples)
        return True

    def judge(
        self, x: PyTree, iterate: PyTree, w: PyTree, multipliers: Multipliers, exact_up_to: int = JUDGED_EXACTLY
    ) -> Stage:
        """The end (x, iterate) of a run, judged at y*(x) up to this number of entries, else at the inner solver's w."""
        at, y, last = doubled_on_host((x, w, iterate))
        status = None
        if self.entries <= exact_up_to:
            found = self.setting.solve_lower(self.lower, at, y)
            status = int(found.status)
            if status == SOLVED:
                own = found.multipliers
                y, multipliers = found.y, Multipliers(own.inequalities, own.equalities, multipliers.upper)
        judged, gap = self.setting.run("end of a run", _judged, at, y, last)
        y = in_precision_of(self.prepared.y, y)
        return Stage(x, y, multipliers, Judgement(*map(float, judged)), float(gap), status)

    def again(self, stage: Stage, exact_up_to: int = JUDGED_EXACTLY) -> Stage:
        """A stage judged once more."""
        new = self.judge(stage.x, stage.y, stage.y, stage.multipliers, exact_up_to)
        return new._replace(settings=stage.settings, text=stage.text)

    def moved_onto_rows(self, end: Stage) -> Stage:
        """The end of a run with its y moved to where it keeps the constraints of the lower level."""
        x, y = doubled_on_host((end.x, end.y))
        y, _ = self.setting.run("nearest y that keeps the rows", nearest_kept, x, y)
        judged, _ = self.setting.run("end of a run", _judged, x, y, y)
        return end._replace(y=in_precision_of(self.prepared.y, y), judged=Judgement(*map(float, judged)))

    def starts(self, count: int) -> tuple[PyTree, PyTree]:
        """The given start and points that cover X and Y, stacked; where a function is not finite, the given start."""
        x, y = self.prepared.x, self.prepared.y
        cubes = unit_cube(size(x), count - 1, self.seed), unit_cube(size(y), count - 1, self.seed + 1)
        xs, ys = self.setting.run("starts", _finite_starts, self.setting.x, self.setting.y, *cubes)
        return in_precision_of(x, xs), in_precision_of(y, ys)

    def certificate(self, end: Stage) -> Certificate | None:
        """The certificate of a point; None where the problem is too large to make one at every stage."""
        if self.entries > MATRIX_ORDER:
            return None
        there = self.setting.at(end.x, end.y)
        return certificate_in(there, Exact(), doubled_on_host(end.multipliers), None, self.seed)

    def retraining(self, stop: Callable[[], bool]) -> Retraining:
        """Trainings of the lower level, from the y that the caller gave."""
        assert self.trained is not None
        return Retraining.of(self.setting, self.setting.y, self.seed, stop, self.trained)

    def certificate_of_training(self, end: Stage, training: Retraining) -> Certificate:
        """The certificate of a point whose lower level is trained."""
        there = self.setting.at(end.x, end.y)
        return certificate_in(there, seed=self.seed, stop=training.stop, training=training)


def _judged(problem: Problem, data: Data, x: PyTree, y: PyTree, iterate: PyTree) -> tuple[Judgement, Array]:
    judged = point_values(problem, data, x, y)
    return judged, relative_gap(problem.lower(x, iterate, data.xi), judged.lower)


def _finite_starts(
    problem: Problem, data: Data, x: PyTree, y: PyTree, x_cube: Cube, y_cube: Cube
) -> tuple[PyTree, PyTree]:
    def stacked(convex_set: PyTree, tree: PyTree, cube: Cube) -> PyTree:
        return jax.vmap(jax.flatten_util.ravel_pytree(tree)[1])(cover(convex_set, tree, cube))

    def usable(at: PyTree, below: PyTree) -> tuple[PyTree, PyTree]:
        finite = jnp.stack(list(finite_values(problem, at, below, data.zeta, data.xi).values()))
        return select(jnp.all(finite), (at, below), (x, y))

    return jax.vmap(usable)(stacked(problem.x_set, x, x_cube), stacked(problem.y_set, y, y_cube))
