"""Standard errors: what groups of fresh samples say of the gap and of the hyper-gradient, each for itself."""

from typing import NamedTuple

import jax
import jax.flatten_util
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from hierax._engine.float64_problem import Data, Float64Problem, standard_error
from hierax._math import hypergradient as implicit
from hierax._math.lower_level import LowerSolution, level_at
from hierax._problem.problem import Problem


class SamplingErrors(NamedTuple):
    """Standard errors in the user's units; None where the expectations are known.

    Attributes:
        upper: of F(x, y).
        gap: of G(x, y) - v(x).
        point: of y*(x), entry by entry.
        slope: of the hyper-gradient, entry by entry.
    """

    upper: float | None = None
    gap: float | None = None
    point: np.ndarray | None = None
    slope: np.ndarray | None = None


def sampling_errors(setting: Float64Problem, found: LowerSolution, active: np.ndarray) -> SamplingErrors:
    """What sampling puts into the numbers of a certificate; `active` are the rows that hold at y*(x).

    A group's y* is one Newton step on the KKT system of the active rows away from the whole sample's.
    """

    def program(
        problem: Problem, data: Data, x: PyTree, y: PyTree, found: LowerSolution, active: Array
    ) -> tuple[Array, Array, Array, Array]:
        zeta, xi = data
        system = implicit.kkt_system(problem, x, found, xi)
        level = level_at(problem, x, found.y, xi)
        push = jax.grad(lambda v: level.lagrangian(v, system.multipliers))(level.start)
        moved = implicit.adjoint(system, active, push)
        own, faces = level.split(system.multipliers + moved.rows)
        there = found._replace(y=level.tree(level.start + moved.y), multipliers=own, faces=faces)
        slope = implicit.upper_gradient_y(problem, x, there.y, zeta)
        solved = implicit.adjoint(implicit.kkt_system(problem, x, there, xi), active, slope)
        total = implicit.total_gradient(problem, x, there, solved, zeta, xi)
        gap = problem.lower(x, y, xi) - problem.lower(x, found.y, xi)
        return problem.upper(x, y, zeta), gap, level.start + moved.y, jax.flatten_util.ravel_pytree(total)[0]

    if not setting.sampled:
        return SamplingErrors()
    upper, gaps, points, slopes = setting.run_on_groups("groups", program, setting.x, setting.y, found, active)
    below = setting.xi.fresh
    return SamplingErrors(
        upper=float(standard_error(upper)),
        gap=float(standard_error(gaps)) if below else None,
        point=standard_error(points) if below else None,
        slope=standard_error(slopes),
    )


def gap_error(setting: Float64Problem, found: LowerSolution) -> float:
    """The standard error of the gap."""

    def program(problem: Problem, data: Data, x: PyTree, y: PyTree, found: LowerSolution) -> Scalar:
        return problem.lower(x, y, data.xi) - problem.lower(x, found.y, data.xi)

    return float(standard_error(setting.run_on_groups("groups below", program, setting.x, setting.y, found)))
