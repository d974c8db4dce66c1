r"""What GAM, SIGD and IG-AL share: the gradient of F(x, y*(x)) through the KKT system of the lower level.

The derivative is that of `hierax._math.hypergradient`, with the one active set that the solution shows; GAM looks at
further sets where it is in doubt. SIGD and IG-AL are stated for linear constraints A y <= b + B x, so rows that are not
affine in (x, y) are refused: their second derivatives are looked at, at sampled points, before the first step.
"""

import dataclasses
from collections.abc import Mapping

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree, Scalar

from hierax._base.errors import InputError
from hierax._base.settings import check_settings, instance_of
from hierax._base.trees import dtype_of
from hierax._lower.base import AbstractLowerSolver
from hierax._math import hypergradient as hyper
from hierax._math.convexity import affine_rows, lower_curvatures
from hierax._math.lower_level import SOLVED, LowerSolution
from hierax._methods.common import NOT_CONVEX_SHARE, as_arrays
from hierax._methods.smoothed import Look, Prepared, Round, Samples, Smoothed, blank, value_noise
from hierax._problem.problem import Problem

TOO_LARGE = (
    "{0}: the KKT matrix of the lower level is larger than {1} x {1} (entries of y plus constraints plus bounds of Y), "
    "and {0} factorises it at every step. Use hx.SALVF()."
)
FLAT_LOWER_LEVEL = (
    "{}: the KKT system of the lower level is singular at the start because the lower objective is flat along the "
    "active constraints: y*(x) is not unique and has no derivative. Use hx.SALVF(), hx.LVHBA() or hx.BiCGAFFA(), or "
    "add a small multiple of the squared norm of y to the lower objective."
)
DEPENDENT_ROWS = (
    "{}: the KKT system of the lower level is singular at the start because the gradients of its active constraints "
    "(active bounds of Y included) are linearly dependent: LICQ fails, and multipliers are not unique. Start at "
    "another x, drop redundant constraints, or use hx.SALVF()."
)
NOT_AFFINE = (
    "{}: a constraint of the lower level, or a face of Y, is not affine in (x, y): its second derivative does not "
    "vanish near the start. The published method is for linear constraints. Use hx.GAM(), which differentiates the "
    "same system, hx.Barrier() or hx.SALVF()."
)
NOT_STRONGLY_CONVEX = (
    "{}: the lower objective is not strongly convex in y at the start (its smallest curvature is about zero, or "
    "negative), which the published method assumes. Use hx.GAM(), which needs curvature along the active constraints "
    "only, hx.SALVF(), or add a small multiple of the squared norm of y to the lower objective."
)


class ImplicitGradient(Smoothed):
    """Base of GAM, SIGD and IG-AL; `inner` of a look is the lower level's solution."""

    lower: eqx.AbstractVar[AbstractLowerSolver]

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        super().__post_init__()
        check_settings(self, {"lower": instance_of(AbstractLowerSolver, "hx.Exact(), hx.ALM() or hx.Conic()")})

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Samples, key: PRNGKeyArray) -> Prepared:
        """Nothing is estimated; a system that is too large is refused."""
        if not hyper.fits(problem, x, y):
            raise InputError(TOO_LARGE.format(type(self).__name__, hyper.MOST))
        method = dataclasses.replace(self, lower=as_arrays(self.lower, dtype_of(x, y)))
        return Prepared(method, blank(problem, x, y), {})

    def doubts_at(self, problem: Problem, x: PyTree, look: Look, at: Samples) -> Mapping[str, Bool[Array, ""]]:
        """Those of the solver, and a KKT system without a solution."""
        system = hyper.kkt_system(problem, x, look.inner, at.xi)
        solved = hyper.adjoint(system, hyper.active_rows(system), jnp.ones_like(system.hessian[0]))
        singular, name = solved.singular & (look.status == SOLVED), type(self).__name__
        return self.lower.doubts(problem, x, look.y, at.xi) | {
            FLAT_LOWER_LEVEL.format(name): singular & solved.flat,
            DEPENDENT_ROWS.format(name): singular & ~solved.flat,
        }

    def seen(self, problem: Problem, y: PyTree, this: Round) -> Problem:
        """The problem with the lower level that is solved in this line search."""
        return problem

    def look(self, problem: Problem, x: PyTree, inner: PyTree, this: Round, at: Samples) -> Look:
        """F at the solution of the lower level."""
        found = self.lower.solve(self.seen(problem, inner.y, this), x, inner.y, at.xi, inner.multipliers)
        return Look(
            value=problem.upper(x, found.y, at.zeta),
            noise=value_noise(problem, x, found.y, at.zeta, found.residual),
            y=found.y,
            multipliers=found.multipliers,
            inner=found,
            lower=problem.lower(x, found.y, at.xi),
            distance=self.offset(problem, x, found, this, at),
            residual=found.residual,
            status=found.status,
        )

    def offset(self, problem: Problem, x: PyTree, found: LowerSolution, this: Round, at: Samples) -> Scalar:
        """How far the method itself keeps y from the lower level's solution."""
        return jnp.zeros_like(found.residual)

    def slope(self, problem: Problem, x: PyTree, look: Look, this: Round, at: Samples) -> PyTree:
        """The implicit gradient; a linear term in y changes the solution, but not the system that is differentiated."""
        return hyper.hypergradient(problem, x, solution_of(look), at.zeta, at.xi).gradient


class LinearRows(ImplicitGradient):
    """Base of SIGD and IG-AL, which assume affine rows and a strongly convex lower objective."""

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Samples, key: PRNGKeyArray) -> Prepared:
        """Nothing is estimated; the assumptions are looked at."""
        name, (bottom, top) = type(self).__name__, lower_curvatures(problem, x, y, at.xi)
        doubts = {
            NOT_AFFINE.format(name): ~affine_rows(problem, x, y, jax.random.fold_in(key, 6)),
            NOT_STRONGLY_CONVEX.format(name): ~(bottom > NOT_CONVEX_SHARE * jnp.abs(top)),
        }
        return super().prepared(problem, x, y, at, key)._replace(doubts=doubts)


def solution_of(look: Look) -> LowerSolution:
    """The lower level's solution at the point of a look, which may have been moved."""
    return look.inner._replace(y=look.y, multipliers=look.multipliers)
