"""Stationarity of SALVF's penalty function Psi at the end of a run, with its inner problem solved exactly.

The history of a run has the same measure from the run's own batches and inner loops; this one is free of their errors.
"""

from typing import Any

import jax
import jax.flatten_util
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from hierax._judge.numbers import Part, standard_error
from hierax._judge.psi import Penalty
from hierax._judge.setting import Setting, doubled
from hierax._lower.base import AbstractLowerSolver
from hierax._math.envelope import best_multiplier, eliminated_value
from hierax._math.lower_level import MEANING, SOLVED
from hierax._math.psi import Inner, Point, psi_gradient, stationarity
from hierax._problem.problem import Problem, scaled


def of_psi(setting: Setting, solver: AbstractLowerSolver, state: Any | None) -> Part:
    """||u - Proj_U(u - grad Psi(u) / L)|| L at u = (x, y, z), z and nu those that the run ended with."""
    if state is None:
        return Part({}, {"stationarity": "belongs to a run: sol.certificate, or certify(..., state=sol.state)"})
    penalty = state.psi_penalty()
    if penalty is None:
        return Part({}, {"stationarity": f"Psi is SALVF's, not {type(state.method).__name__}'s"})
    penalty, exact = doubled(penalty), state.method.exact

    def program(
        problem: Problem, solver: AbstractLowerSolver, x: PyTree, y: PyTree, penalty: Penalty, zeta: PyTree, xi: PyTree
    ) -> tuple[Scalar, Inner, Array]:
        problem = scaled(problem, penalty.scales)
        inner, status = _inner(problem, solver, x, y, penalty, xi, exact)
        point = Point(x, y, penalty.z, penalty.nu)
        gradient = psi_gradient(problem, point, inner, penalty.weights, zeta, xi)
        return stationarity(problem, point, gradient, 1 / penalty.smoothness), inner, status

    def grouped(problem: Problem, x: PyTree, y: PyTree, penalty: Penalty, inner: Inner, data: Any) -> Array:
        problem, (fixed, groups) = scaled(problem, penalty.scales), data

        def one(group: dict[str, PyTree]) -> Array:
            batches, point = fixed | group, Point(x, y, penalty.z, penalty.nu)
            gradient = psi_gradient(problem, point, inner, penalty.weights, batches["zeta"], batches["xi"])
            return jax.flatten_util.ravel_pytree((gradient.x, gradient.y))[0]

        return jax.lax.map(one, groups)

    batches = (setting.zeta.rows, setting.xi.rows)
    arguments = (solver, setting.x, setting.y, penalty, *batches)
    value, inner, status = setting.bound.run("Psi", program, *arguments, static=exact)
    numbers, notes = {"stationarity": float(value)}, {}
    if int(status) != SOLVED:
        notes["stationarity"] = f"the inner problem of Psi: {MEANING[int(status)]}"
    if setting.sampled:
        gradients = setting.bound.run("groups of Psi", grouped, setting.x, setting.y, penalty, inner, setting.batches())
        numbers["stationarity_se"] = float(np.linalg.norm(standard_error(gradients)))
    return Part(numbers, notes)


def _inner(
    problem: Problem, solver: AbstractLowerSolver, x: PyTree, y: PyTree, penalty: Penalty, xi: PyTree, exact: bool
) -> tuple[Inner, Array]:
    """The saddle point (w, lam) at (x, z): y*(x) itself where gamma2 = 0, else from the envelope without lam."""
    if exact:
        found = solver.solve(problem, x, y, xi)
        return Inner(found.y, found.multipliers), found.status
    gammas = penalty.weights.gamma1, penalty.weights.gamma2

    def envelope(x: PyTree, w: PyTree, xi: PyTree) -> Scalar:
        return eliminated_value(problem, x, penalty.z, w, *gammas, xi)

    free = Problem(problem.upper, envelope, y_set=problem.y_set)
    found = solver.solve(free, x, y, xi)
    return Inner(found.y, best_multiplier(problem.rows(x, found.y), penalty.z, *gammas)), found.status
