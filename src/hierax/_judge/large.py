"""What can be said of a point whose matrices do not fit: violations, gap, distance and KKT residual, with their errors.

The upper level (slope, kinks, descent test) is looked at in `free_above.py`, by products alone, where the lower level
looks convex and its expectation is known; else stationarity above is left open.
"""

from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree, Scalar

from hierax._base import tree_math
from hierax._base.text import entries, numbers_of
from hierax._engine.float64_problem import Data, Float64Problem, standard_error
from hierax._engine.matrix_free import FreeFollower
from hierax._engine.programs import raveled, unraveled
from hierax._engine.segments import not_convex
from hierax._judge.below import GapRange
from hierax._judge.free_above import above_without_matrices, x_lengths
from hierax._judge.inspection import Fields, Stop
from hierax._judge.point import violations
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math.hypergradient import MOST
from hierax._math.kkt_residual import residual_at, units_at
from hierax._math.lower_level import SOLVED, LowerSolution, level_at, multiplier_vector
from hierax._problem.problem import Multipliers, Problem, Rows

STARTS = 8  # further solves of a lower level that is not convex
ACCURATE = 1e-8  # what the KKT residual calls zero


class Comparison(NamedTuple):
    """(x, y) beside the reference solution.

    Attributes:
        violations: how much each constraint is violated, by block.
        lower_gap: G(x, y) - v(x).
        distance: ||y - y*(x)||.
        kkt_residual: of y, relative.
        slope: size of G's gradient.
        curvature: typical size of G's second derivatives.
    """

    violations: dict[str, PyTree]
    lower_gap: Scalar
    distance: Scalar
    kkt_residual: Scalar
    slope: Scalar
    curvature: Scalar


def without_matrices(
    setting: Float64Problem, solver: AbstractLowerSolver, given: Multipliers | None, seed: int, stop: Stop
) -> Fields:
    """The fields of a certificate that need no matrices."""
    found, why = _reference(setting, solver, seed)
    compared = compare(setting, found, given)
    size = float(np.sqrt(np.mean(numbers_of(setting.y) ** 2))) or 1.0
    of_x = x_lengths(FreeFollower(setting), raveled(setting.x))
    length = size * numbers_of(setting.y).size ** 0.5
    too_large = f"too large: the KKT matrix of the lower level exceeds order {MOST}"
    numbers: dict[str, PyTree] = {
        "reference": found,
        **feasibility(compared),
        "lengths": (unraveled(setting.x, of_x), jax.tree.map(lambda leaf: np.full(leaf.shape, size), setting.y)),
        "not_convex": why,
        "gap_range": GapRange(float(compared.slope) * length, 0.5 * float(compared.curvature) * length**2, 0.0, 0.0),
    }
    if int(found.status) == SOLVED:
        numbers |= {name: float(getattr(compared, name)) for name in ("lower_gap", "distance", "kkt_residual")}
    if setting.xi.fresh:
        numbers["lower_gap_se"] = _gap_error(setting, found)
    notes = dict.fromkeys(("hypergradient_norm", "gains"), f"not computed: {too_large}")
    if int(found.status) == SOLVED and why is None and not setting.sampled:
        seen = above_without_matrices(setting, found, seed, stop)
        numbers, notes = numbers | seen.numbers, seen.notes
    if "radius" not in numbers:
        notes["distance"] = f"that y*(x) is unique was not tested: {too_large}"
    return Fields(numbers, notes)


def feasibility(compared: Comparison) -> dict[str, PyTree]:
    """The largest violation, and of what."""
    names = [name for block, tree in compared.violations.items() for name in entries(block, tree)]
    values = np.concatenate([numbers_of(tree) for tree in compared.violations.values()])
    worst = int(np.argmax(np.where(np.isnan(values), np.inf, values)))
    return {"max_violation": float(values[worst]), "violation": float(values[worst]), "worst": names[worst]}


def _reference(setting: Float64Problem, solver: AbstractLowerSolver, seed: int) -> tuple[LowerSolution, str | None]:
    """The lower level solved at x from y; where samples show that it is not convex, the best of several solves."""
    found = setting.solve_lower(solver, setting.x, setting.y)
    around = found.y if int(found.status) == SOLVED else setting.y
    bent = not_convex(setting, around, seed)
    if bent is None:
        return found, None
    again = setting.solve_lower(Exact(starts=STARTS), setting.x, around)
    best = min([found, again], key=lambda one: (int(one.status) != SOLVED, float(one.value)))
    return best, f"{bent}: v(x) is the best of {1 + STARTS} solves"


def compare(setting: Float64Problem, found: LowerSolution, given: Multipliers | None) -> Comparison:
    """The setting's point beside the reference solution (which may be none)."""

    def program(problem: Problem, data: Data, x: PyTree, y: PyTree, found: LowerSolution, own: Rows) -> Comparison:
        xi, accurate = data.xi, jnp.asarray(ACCURATE)
        level = level_at(problem, x, y, xi)
        mu = multiplier_vector(found._replace(multipliers=own), level.start.dtype)
        slope = jax.grad(level.objective)(level.start)
        units = units_at(level, level.start, level.rows(level.start), slope, accurate)
        return Comparison(
            violations=violations(problem, x, y),
            lower_gap=problem.lower(x, y, xi) - problem.lower(x, found.y, xi),
            distance=tree_math.norm(tree_math.sub(y, found.y)),
            kkt_residual=residual_at(level, level.start, mu, accurate),
            slope=jnp.linalg.norm(slope),
            curvature=units.curvature,
        )

    own = found.multipliers if given is None else Rows(given.inequalities, given.equalities)
    return setting.run("compare", program, setting.x, setting.y, found, own)


def _gap_error(setting: Float64Problem, found: LowerSolution) -> float:
    """The standard error of the gap."""

    def program(problem: Problem, data: Data, x: PyTree, y: PyTree, found: LowerSolution) -> Scalar:
        return problem.lower(x, y, data.xi) - problem.lower(x, found.y, data.xi)

    return float(standard_error(setting.run_on_groups("groups below", program, setting.x, setting.y, found)))
