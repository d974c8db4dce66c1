"""Inner solvers as SALVF uses them: one interface for SALM, which lives on batches of xi, and for exact solvers.

With SALM the inner problem is the envelope's, at (x, z) with gamma2 > 0. With an exact solver (`Exact`, `Conic`)
gamma2 = 0: the envelope is the value function itself, it does not depend on z, and z stands for lam.
"""

import dataclasses
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree, Scalar

from hierax._base.constants import MUCH
from hierax._base.errors import InputError
from hierax._base.settings import POSITIVE, Size, Staircase, check_setting, is_number, size_at
from hierax._base.trees import Number, given
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.salm import SALM, START_ROUNDS, InnerSolution
from hierax._math.lower_level import SOLVED
from hierax._math.psi import joint_gamma
from hierax._math.spectrum import Curvature
from hierax._problem import samples
from hierax._problem.problem import Problem, Rows


class Gammas(NamedTuple):
    """The parameters of the envelope: gamma1 of the augmented Lagrangian (inf: the plain one), gamma2 of the proximal
    term.
    """

    gamma1: Scalar | float
    gamma2: Scalar


class ExactInner(eqx.Module):
    """A deterministic solver of the lower level, on all of xi; `state` is SALVF's. SALM has most of it otherwise."""

    solver: PyTree

    def check(self, gamma2: Number, repair: object) -> None:
        """Refuse settings of SALVF that do not fit: gamma2 is 0, and a repair by steps of SALM needs SALM."""
        name = type(self.solver).__name__
        if gamma2 is not None and not eqx.is_array(gamma2) and not (is_number(gamma2) and float(gamma2) == 0.0):
            raise InputError(f"SALVF(gamma2={gamma2}): with inner={name}() gamma2 is 0; leave it unset.")
        if isinstance(repair, int) and repair:
            raise InputError(f"SALVF(repair={repair}): steps need inner=hx.SALM(); give repair=hx.{name}().")

    def costs(self, batch_xi: int) -> tuple[int, int, int]:
        """Batches of xi per step, samples in each, and batches of the first lower solve; a gradient each.

        `batch_xi`: the size where none is set.
        """
        return 0, batch_xi, 0

    def settles(self) -> bool:
        """Whether its answer is close to the solution by default, as the control variate needs."""
        return True

    def filled(self, at: Curvature, gammas: Gammas, dtype: jnp.dtype) -> SALM | AbstractLowerSolver:
        """The solver with every unset number from the norms of the problem (docs/methods/salvf.md)."""
        return self.solver

    def first_solve(
        self, problem: Problem, x: PyTree, y: PyTree, plan: PyTree, key: PRNGKeyArray, gammas: Gammas
    ) -> tuple[PyTree, Rows]:
        """The lower level at x before the first step, from y."""
        found = self.solver.solve(problem, x, y, samples.whole(problem.xi, key))
        return found.y, found.multipliers

    def solve(self, problem: Problem, state: PyTree, plan: PyTree, gammas: Gammas) -> tuple[InnerSolution, Array | int]:
        """(w, lam) at (x_k, z_k), warm from the last ones, and the status of an exact solve."""
        found = self.solver.solve(problem, state.point.x, state.w, samples.whole(problem.xi, state.key), state.lam)
        return InnerSolution(found.y, found.multipliers, found.residual), found.status

    def control_step(self, smoothness: Scalar) -> Scalar:
        """The step t of the gradient mapping by which the control variate enters: SALM's longest, 1/L_w."""
        return 1 / smoothness

    def zero_residual(self, w: PyTree, smoothness: Scalar) -> PyTree:
        """Zeros like the residual of `solve`; that of an exact solver is a number."""
        return jnp.zeros_like(smoothness)

    def doubts(self, problem: Problem, x: PyTree, y: PyTree, key: PRNGKeyArray) -> dict[str, Bool[Array, ""]]:
        """Reasons why the solver does not fit the problem, each with a flag."""
        return self.solver.doubts(problem, x, y, samples.whole(problem.xi, key))

    def stiffness(self, gammas: Gammas) -> Scalar | float:
        """The gamma of the augmented Lagrangian that the solver descends on."""
        return gammas.gamma1

    def shortened(self, share: Scalar) -> "ExactInner":
        """With steps of `share` times the estimated length, where it makes steps."""
        return self

    def unset(self) -> SALM | AbstractLowerSolver:
        """The solver with its estimated numbers unset again."""
        return self.solver

    def step_limits(self, able: PyTree) -> dict[str, tuple[Scalar, Scalar]]:
        """Its steps against the longest stable ones, which `able`, the same solver filled anew, knows."""
        return {}


class SampledInner(ExactInner):
    """SALM."""

    def check(self, gamma2: Number, repair: object) -> None:
        check_setting("SALVF", "gamma2", gamma2, POSITIVE)

    def costs(self, batch_xi: int) -> tuple[int, int, int]:
        steps = self.solver.count
        return steps, size_at(self.solver.batch, 0) or batch_xi, START_ROUNDS * steps

    def settles(self) -> bool:
        return self.solver.warm and self.solver.count >= MUCH

    def filled(self, at: Curvature, gammas: Gammas, dtype: jnp.dtype) -> SALM:
        """eta = 1/mu_G, rho = 1/gamma2, capped by 1/L_w and L_w/||J||^2."""
        salm, tiny = self.solver, jnp.finfo(dtype).tiny
        lower, weakest = jnp.maximum(at.lower_yy, tiny), jnp.maximum(at.lower_yy_min, tiny)
        square = at.jacobian_y**2
        curved = lower + square / self.stiffness(gammas) + at.constraint_yy  # L_w
        stiff = (curved > tiny) & (square > tiny)
        return dataclasses.replace(
            salm,
            eta=salm.eta if callable(salm.eta) else given(salm.eta, 1 / weakest, dtype),
            rho=salm.rho if callable(salm.rho) else given(salm.rho, 1 / gammas.gamma2, dtype),
            eta_max=given(salm.eta_max, 1 / curved, dtype),
            rho_max=given(salm.rho_max, jnp.where(stiff, curved / jnp.where(stiff, square, 1.0), 1.0), dtype),
        )

    def first_solve(
        self, problem: Problem, x: PyTree, y: PyTree, plan: PyTree, key: PRNGKeyArray, gammas: Gammas
    ) -> tuple[PyTree, Rows]:
        """A bounded number of SALM's rounds on the planned batches."""
        return self.solver.solve_in_rounds(problem, x, y, plan, *gammas)

    def solve(self, problem: Problem, state: PyTree, plan: PyTree, gammas: Gammas) -> tuple[InnerSolution, Array | int]:
        x, y, z, _ = state.point
        begin = state.w if self.solver.warm else y
        return self.solver.solve(problem, x, z, begin, state.lam, plan, *gammas, state.step), SOLVED

    def control_step(self, smoothness: Scalar) -> Scalar:
        return self.solver.eta_max

    def zero_residual(self, w: PyTree, smoothness: Scalar) -> PyTree:
        return jax.tree.map(jnp.zeros_like, w)

    def doubts(self, problem: Problem, x: PyTree, y: PyTree, key: PRNGKeyArray) -> dict[str, Bool[Array, ""]]:
        return {}

    def stiffness(self, gammas: Gammas) -> Scalar | float:
        return joint_gamma(*gammas) if self.solver.dual_free else gammas.gamma1

    def shortened(self, share: Scalar) -> "SampledInner":
        salm = self.solver
        return SampledInner(dataclasses.replace(salm, eta_max=share * salm.eta_max, rho_max=share * salm.rho_max))

    def repaired(self, problem: Problem, state: PyTree, steps: int, gammas: Gammas) -> tuple[PyTree, Rows]:
        """(y', z') after further steps with gamma2 = 0, the paper's eq. 15 (`check` refuses it for exact solvers)."""
        solver, lam = dataclasses.replace(self.solver, steps=steps, warm=True, dual_free=False), state.lam
        size = size_at(solver.batch, 0) or 1
        plan = samples.plan(problem.xi, jax.random.fold_in(state.key, 2), state.step, steps, size)
        none = jnp.zeros_like(gammas.gamma2)
        found = solver.solve(problem, state.point.x, lam, state.point.y, lam, plan, gammas.gamma1, none, state.step)
        return found.w, found.lam

    def unset(self) -> SALM:
        return dataclasses.replace(self.solver, eta=None, rho=None, eta_max=None, rho_max=None)

    def step_limits(self, able: PyTree) -> dict[str, tuple[Scalar, Scalar]]:
        first, _ = self.solver.rates(0, jnp.zeros_like(able.eta_max))
        name = "eta(0, 0)" if callable(self.solver.eta) else f"eta/{1 + self.solver.offset:g}"
        return {f"first lower step {name}": (first, 2 * able.eta_max)}


def inner_of(solver: object, step: int | None = None) -> ExactInner:
    """The inner solver behind SALVF's interface, with the sizes of an outer step (None: staircases stay)."""
    if isinstance(solver, SALM):
        return SampledInner(solver if step is None else solver.at(step))
    if isinstance(solver, AbstractLowerSolver):
        return ExactInner(solver)
    raise InputError(f"SALVF(inner): needs hx.SALM(), hx.Exact() or hx.Conic(), got {type(solver).__name__}.")


def sizes_of(solver: SALM | AbstractLowerSolver) -> tuple[Size, ...]:
    """What may change with the outer step: numbers of inner steps and of samples."""
    return (solver.steps, solver.batch) if isinstance(solver, SALM) else ()


def with_batch(solver: SALM | AbstractLowerSolver, size: int | Staircase) -> SALM | AbstractLowerSolver:
    """The solver with its batch size filled in, where it has one that is unset."""
    return dataclasses.replace(solver, batch=solver.batch or size) if isinstance(solver, SALM) else solver
