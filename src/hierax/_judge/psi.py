"""Stationarity of SALVF's penalty function Psi at the end of a run, with its inner problem solved exactly.

The history of a run has the same measure from the run's own batches and inner loops; this one is free of their errors.
What Psi was made of comes from the run as a plain `Penalty`: no method is known here.
"""

from typing import Literal, NamedTuple, Protocol, runtime_checkable

import jax
import jax.flatten_util
import numpy as np
from jaxtyping import Array, Int, PyTree, Scalar

from hierax._base.trees import INFINITE
from hierax._compile.configuration import doubled_on_host
from hierax._engine.float64_problem import Data, Float64Problem, standard_error
from hierax._judge.measuring import Notes, Numbers
from hierax._lower.base import AbstractLowerSolver
from hierax._math.lower_level import MEANING, SOLVED
from hierax._math.psi import Inner, Point, Weights, best_multiplier, eliminated_value, psi_gradient, stationarity
from hierax._problem.problem import Multipliers, Problem, Rows, scaled

Kind = Literal["value", "envelope", "dual"]
"""What an inner problem is: the lower level itself (gamma2 = 0), E's, or D's (lam = z)."""


class Penalty(NamedTuple):
    """What Psi needs of a run beside (x, y).

    Attributes:
        weights: c1, c2, gamma1 and gamma2; gamma2 = 0 where the inner problem is the lower level itself.
        scales: what the constraints were divided by.
        smoothness: L_Psi, the inverse of the step that stationarity is measured with.
        z: centre of the envelope.
        nu: multipliers of the outer term.
        top: bounds of z from above; None: there are none.
    """

    weights: Weights
    scales: Multipliers
    smoothness: Scalar
    z: Rows
    nu: Multipliers
    top: Rows | None = None


@runtime_checkable
class RunState(Protocol):
    """What is asked of the state of a run, so that this room need not know what else is in it."""

    @property
    def method_name(self) -> str:
        """The name of the method's class."""

    def psi_penalty(self) -> Penalty | None:
        """What Psi was made of; None for methods without Psi."""


def of_psi(setting: Float64Problem, solver: AbstractLowerSolver, state: RunState, notes: Notes) -> Numbers:
    """||u - Proj_U(u - grad Psi(u) / L)|| L at u = (x, y, z), z and nu those that the run ended with."""
    made_of = state.psi_penalty()
    if made_of is None:
        notes["stationarity"] = f"Psi is SALVF's, not {state.method_name}'s"
        return {}
    penalty = doubled_on_host(made_of)
    exact = float(penalty.weights.gamma2) == 0.0

    def program(
        problem: Problem, data: Data, solver: AbstractLowerSolver, x: PyTree, y: PyTree, penalty: Penalty
    ) -> tuple[Scalar, Inner, Int[Array, ""]]:
        problem = scaled(problem, penalty.scales)
        kind: Kind = "value" if exact else "envelope"
        inner, status = saddle_point(problem, solver, x, y, penalty.z, penalty.weights, data.xi, kind)
        point = Point(x, y, penalty.z, penalty.nu)
        gradient = psi_gradient(problem, point, inner, penalty.weights, *data)
        return stationarity(problem, point, gradient, 1 / penalty.smoothness, penalty.top), inner, status

    def on_group(problem: Problem, data: Data, x: PyTree, y: PyTree, penalty: Penalty, inner: Inner) -> Array:
        point = Point(x, y, penalty.z, penalty.nu)
        gradient = psi_gradient(scaled(problem, penalty.scales), point, inner, penalty.weights, *data)
        return jax.flatten_util.ravel_pytree((gradient.x, gradient.y))[0]

    value, inner, status = setting.run("Psi", program, solver, setting.x, setting.y, penalty, static=exact)
    numbers = {"stationarity": float(value)}
    if int(status) != SOLVED:
        notes["stationarity"] = f"the inner problem of Psi: {MEANING[int(status)]}"
    if setting.sampled:
        gradients = setting.run_on_groups("groups of Psi", on_group, setting.x, setting.y, penalty, inner)
        numbers["stationarity_se"] = float(np.linalg.norm(standard_error(gradients)))
    return numbers


def saddle_point(
    of: Problem, solver: AbstractLowerSolver, x: PyTree, y: PyTree, z: Rows, weights: Weights, xi: PyTree, kind: Kind
) -> tuple[Inner, Int[Array, ""]]:
    """The saddle point (w, lam) at (x, z), E's from the envelope without lam; and whether it is one."""
    if kind == "value":
        found = solver.solve(of, x, y, xi)
        return Inner(found.y, found.multipliers), found.status
    gammas = weights.gamma1, INFINITE if kind == "dual" else weights.gamma2

    def envelope(x: PyTree, w: PyTree, xi: PyTree) -> Scalar:
        return eliminated_value(of, x, z, w, *gammas, xi)

    found = solver.solve(Problem(of.upper, envelope, y_set=of.y_set), x, y, xi)
    return Inner(found.y, best_multiplier(of.rows(x, found.y), z, *gammas)), found.status
