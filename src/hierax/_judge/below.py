"""The certificate's view of the lower level: reference solution at x, violations, gap, distance and KKT residual."""

from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, PyTree, Scalar

from hierax._base.constants import LOWER_STARTS
from hierax._base.text import entries, numbers_of
from hierax._base.trees import size
from hierax._judge.point import violations
from hierax._judge.segments import not_convex
from hierax._judge.setting import Data, Setting, standard_error
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math.kkt_residual import residual_at, units_at
from hierax._math.lower_level import SOLVED, LowerSolution, level_at, multiplier_vector
from hierax._problem.problem import Multipliers, Problem, Rows

FEWER_STARTS, SMALL = 8, 100  # further solves of a lower level that is not convex, where y has more entries than SMALL
ACCURATE = 1e-8  # what the KKT residual calls zero


class Part(NamedTuple):
    """Some numbers of a certificate by their name there, and notes on those that are missing or need a word."""

    numbers: dict[str, PyTree]
    notes: dict[str, str]


class Comparison(NamedTuple):
    """(x, y) beside the reference solution.

    Attributes:
        violations: how much each constraint is violated, by block.
        lower_gap: G(x, y) - v(x).
        distance: ||y - y*(x)||.
        kkt_residual: of y, relative.
        slope_unit: what a gradient of G is compared with in that residual.
        upper: the upper constraints at (x, y*(x)).
    """

    violations: dict[str, PyTree]
    lower_gap: Scalar
    distance: Scalar
    kkt_residual: Scalar
    slope_unit: Scalar
    upper: PyTree

    def worst(self) -> tuple[float, str]:
        """The largest violation at (x, y), and what is violated."""
        names = [name for block, tree in self.violations.items() for name in entries(block, tree)]
        values = np.concatenate([numbers_of(tree) for tree in self.violations.values()])
        worst = int(np.argmax(np.where(np.isnan(values), np.inf, values)))
        return float(values[worst]), names[worst]


def reference(setting: Setting, solver: AbstractLowerSolver, seed: int) -> tuple[LowerSolution, dict[str, str]]:
    """The lower level solved at x from y; where samples show that it is not convex, the best of several solves."""
    found = setting.solve_lower(solver, setting.x, setting.y)
    around = found.y if int(found.status) == SOLVED else setting.y
    bent = not_convex(setting, around, seed)
    if bent is None:
        return found, {}
    starts = LOWER_STARTS if size(setting.y) <= SMALL else FEWER_STARTS
    again = setting.solve_lower(Exact(starts=starts), setting.x, around)
    best = min([found, again], key=lambda one: (int(one.status) != SOLVED, float(one.value)))
    return best, {"lower_gap": f"{bent}: v(x) is the best of {1 + starts} solves"}


def compare(setting: Setting, found: LowerSolution, given: Multipliers | None) -> Comparison:
    """The setting's point beside the reference solution (which may be none)."""

    def program(problem: Problem, data: Data, x: PyTree, y: PyTree, found: LowerSolution, own: Rows) -> Comparison:
        xi, accurate = data.xi, jnp.asarray(ACCURATE)
        level = level_at(problem, x, y, xi)
        mu = multiplier_vector(found._replace(multipliers=own), level.start.dtype)
        slope = jax.grad(level.objective)(level.start)
        return Comparison(
            violations=violations(problem, x, y),
            lower_gap=problem.lower(x, y, xi) - problem.lower(x, found.y, xi),
            distance=optax.tree.norm(optax.tree.sub(y, found.y)),
            kkt_residual=residual_at(level, level.start, mu, accurate),
            slope_unit=units_at(level, level.start, level.rows(level.start), slope, accurate).slope,
            upper=problem.upper_constraints(x, found.y),
        )

    own = found.multipliers if given is None else Rows(given.inequalities, given.equalities)
    return setting.run("compare", program, setting.x, setting.y, found, own)


def below(setting: Setting, found: LowerSolution, compared: Comparison) -> Part:
    """Gap, distance and KKT residual of y, with their standard errors."""

    def program(problem: Problem, data: Data, x: PyTree, y: PyTree, found: LowerSolution) -> tuple[Array, Array]:
        value, slope = jax.value_and_grad(problem.lower, 1)(x, y, data.xi)
        return value - problem.lower(x, found.y, data.xi), jax.flatten_util.ravel_pytree(slope)[0]

    numbers = {name: float(getattr(compared, name)) for name in ("lower_gap", "distance", "kkt_residual")}
    if setting.xi.fresh:
        gaps, slopes = setting.run_on_groups("groups below", program, setting.x, setting.y, found)
        numbers["lower_gap_se"] = float(standard_error(gaps))
        numbers["kkt_residual_se"] = float(np.max(standard_error(slopes)) / compared.slope_unit)
    return Part(numbers, {})
