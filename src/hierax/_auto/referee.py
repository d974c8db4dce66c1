"""How the large route sees a point: the lower level's own answer there, F on all of the data, and the certificate.

SALVF's iterate y is drawn towards low F, which for a network means that it has seen the validation data; so points are
judged at the lower level's own answer. Everything is in double precision, with programs that all stages share.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, PyTree

from hierax._auto.constants import CERTIFIED, JUDGED_EXACTLY
from hierax._base.constants import FRESH_SAMPLES, LOWER_STARTS
from hierax._base.trees import select, size
from hierax._compile.checked import finite_values
from hierax._compile.precision import doubled_on_host
from hierax._engine.float64_problem import Data, Float64Problem
from hierax._engine.segments import not_convex
from hierax._judge.certificate import Certificate
from hierax._judge.certifying import certificate_in
from hierax._judge.keeping import nearest_kept
from hierax._judge.point import Judgement, point_values, relative_gap
from hierax._judge.retraining import Retraining, is_trained
from hierax._lower.exact import Exact
from hierax._math.lower_level import SOLVED
from hierax._math.scatter import Cube, cover, unit_cube
from hierax._problem.problem import Multipliers, Problem
from hierax._problem.samples import Stream
from hierax._run.prepare import Prepared

MORE, MOST_SAMPLES = 16, 2**16  # how many times more samples judge where noise leaves it open, and how many at most


class RunEnd(NamedTuple):
    """Where a run ended, judged at the lower level's own answer.

    Attributes:
        x: the run's x.
        y: the lower level's solution there: exact where its size allows, else the inner solver's.
        multipliers: likewise.
        judged: F and violations at (x, y).
        iterate_gap: relative gap of the run's own y against this one: what the weight c1 leaves of the lower level.
        lower_status: how the exact solve ended; None where there was none.
    """

    x: PyTree
    y: PyTree
    multipliers: Multipliers
    judged: Judgement
    iterate_gap: float
    lower_status: int | None


class Referee:
    """Judges points of one problem. Points are arrays in the precision of the run, here and in what it returns."""

    def __init__(self, prepared: Prepared, seed: int) -> None:
        self.prepared, self.seed = prepared, seed
        self.samples = FRESH_SAMPLES
        self.setting = setting_of(prepared, seed)
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
        """Judge by more samples from now on; False where there is no noise or they are as many as can be had."""
        if not self.setting.sampled or self.samples >= MOST_SAMPLES:
            return False
        self.samples *= MORE
        self.setting = setting_of(self.prepared, self.seed, self.samples)
        return True

    def judge(
        self, x: PyTree, iterate: PyTree, w: PyTree, multipliers: Multipliers, exact_up_to: int = JUDGED_EXACTLY
    ) -> RunEnd:
        """The end (x, iterate) of a run, judged at y*(x) up to so many entries, and else at the inner solver's w."""
        at, y, last = doubled_on_host((x, w, iterate))
        status = None
        if self.entries <= exact_up_to:
            found = self.setting.solve_lower(self.lower, at, y)
            status = int(found.status)
            if status == SOLVED:
                own = found.multipliers
                y, multipliers = found.y, Multipliers(own.inequalities, own.equalities, multipliers.upper)
        judged, gap = self.setting.run("end of a run", _judged, at, y, last)
        return RunEnd(x, y, multipliers, Judgement(*map(float, judged)), float(gap), status)

    def kept(self, end: RunEnd) -> RunEnd:
        """The end of a run with its y moved to where it keeps the constraints of the lower level."""
        x, y = doubled_on_host((end.x, end.y))
        y, _ = self.setting.run("nearest y that keeps the rows", nearest_kept, x, y)
        judged, _ = self.setting.run("end of a run", _judged, x, y, y)
        return end._replace(y=y, judged=Judgement(*map(float, judged)))

    def as_it_is(self, x: PyTree, y: PyTree) -> RunEnd:
        """A point of which nothing is known, judged without a lower solve."""
        shapes = map(self.setting.shapes, ("constraints", "equalities", "upper_constraints"))
        none = Multipliers(*(jax.tree.map(lambda row: jnp.zeros(row.shape), tree) for tree in shapes))
        return self.judge(x, y, y, none, exact_up_to=0)

    def starts(self, count: int) -> tuple[PyTree, PyTree]:
        """The given start and points that cover X and Y, stacked; where a function is not finite, the given start."""
        x, y = self.prepared.x, self.prepared.y
        cubes = unit_cube(size(x), count - 1, self.seed), unit_cube(size(y), count - 1, self.seed + 1)
        xs, ys = self.setting.run("starts", _finite_starts, self.setting.x, self.setting.y, *cubes)
        return in_precision_of(x, xs), in_precision_of(y, ys)

    def certificate(self, end: RunEnd) -> Certificate | None:
        """The certificate of a point; None where the problem is too large to make one at every stage."""
        if self.entries > CERTIFIED:
            return None
        there = self.setting.at(end.x, end.y)
        return certificate_in(there, Exact(), doubled_on_host(end.multipliers), None, self.seed)

    def retraining(self, stop: Callable[[], bool]) -> Retraining:
        """Trainings of the lower level, from the y that the caller gave."""
        assert self.trained is not None
        return Retraining.of(self.setting, self.setting.y, self.seed, stop, self.trained)

    def certificate_of_training(self, end: RunEnd, training: Retraining) -> Certificate:
        """The certificate of a point whose lower level is trained."""
        there = self.setting.at(end.x, end.y)
        return certificate_in(there, seed=self.seed, stop=training.stop, training=training)


def setting_of(prepared: Prepared, seed: int, samples: int = FRESH_SAMPLES) -> Float64Problem:
    """The prepared problem in double precision.

    A problem without samples shares the traces of the run, where that is in double precision. With samples it would
    gain nothing (batches have other shapes than all of the data), and the certificate of the solution, which knows
    nothing of the run, would compile its programs again.
    """
    sampled = any(source is not None for source in (prepared.problem.zeta, prepared.problem.xi))
    x, y = prepared.whole(prepared.x, prepared.y)
    return Float64Problem.of(prepared.problem, x, y, samples, seed, None if sampled else prepared.bound)


def can_judge(problem: Problem) -> bool:
    """Whether a referee can judge the problem: a Stream is never seen as a whole."""
    return not any(isinstance(source, Stream) for source in (problem.zeta, problem.xi))


def in_precision_of(like: PyTree, tree: PyTree) -> PyTree:
    """JAX arrays with the dtypes of another tree."""
    return jax.tree.map(lambda old, new: jnp.asarray(new, old.dtype), like, tree)


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
