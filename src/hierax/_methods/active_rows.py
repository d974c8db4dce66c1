r"""What SIGD and IG-AL share: the implicit gradient on the active rows of a lower level with affine constraints.

The derivative is GAM's (`hierax._math.hypergradient`), with the one active set that the solution shows. Both methods
are stated for linear constraints A y <= b + B x, so rows that are not affine in (x, y) are refused: their second
derivatives are looked at, at sampled points, before the first step.
"""

import abc
from collections.abc import Mapping

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree, Scalar

from hierax._base.errors import InputError
from hierax._base.settings import check_settings, instance_of
from hierax._lower.base import AbstractLowerSolver
from hierax._math import hypergradient as hyper
from hierax._math.convexity import affine_rows, lower_curvatures
from hierax._math.lower_level import LowerSolution
from hierax._methods import singular_kkt
from hierax._methods.smoothed import Look, Round, Samples, Smoothed, blank, value_noise
from hierax._problem.problem import Problem

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
FLAT = 1e-6  # smallest curvature of G in y, as a part of the largest, that counts as none


class ActiveRows(Smoothed):
    """Base of SIGD and IG-AL; `inner` of a look is the lower level's solution. A subclass has a setting `lower`."""

    @property
    @abc.abstractmethod
    def solver(self) -> AbstractLowerSolver:
        """The solver of the lower level."""

    @abc.abstractmethod
    def seen(self, problem: Problem, y: PyTree, this: Round) -> Problem:
        """The problem with the lower level that is solved in this line search."""

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        super().__post_init__()
        check_settings(self, {"lower": instance_of(AbstractLowerSolver, "hx.Exact(), hx.ALM() or hx.Conic()")})

    def first_inner(self, problem: Problem, x: PyTree, y: PyTree) -> LowerSolution:
        """What the first solve starts from: y0 and no multipliers. Refuses what is too large."""
        if not hyper.fits(problem, x, y):
            raise InputError(singular_kkt.too_large(type(self).__name__))
        return blank(problem, x, y)

    def assumptions(
        self, problem: Problem, x: PyTree, y: PyTree, at: Samples, key: PRNGKeyArray
    ) -> dict[str, Bool[Array, ""]]:
        """Reasons to refuse: rows that bend, and a lower objective that is flat."""
        name = type(self).__name__
        bottom, top = lower_curvatures(problem, x, y, at.xi)
        return {
            NOT_AFFINE.format(name): ~affine_rows(problem, x, y, jax.random.fold_in(key, 6)),
            NOT_STRONGLY_CONVEX.format(name): ~(bottom > FLAT * jnp.abs(top)),
        }

    def doubts_at(self, problem: Problem, x: PyTree, look: Look, at: Samples) -> Mapping[str, Bool[Array, ""]]:
        """Those of the solver, and a KKT system without a solution."""
        singular = singular_kkt.doubts(type(self).__name__, problem, x, look.inner, at.xi)
        return self.solver.doubts(problem, x, look.y, at.xi) | singular

    def look(self, problem: Problem, x: PyTree, inner: PyTree, this: Round, at: Samples) -> Look:
        """F at the solution of the lower level."""
        found = self.solver.solve(self.seen(problem, inner.y, this), x, inner.y, at.xi, inner.multipliers)
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
        found = look.inner._replace(y=look.y, multipliers=look.multipliers)
        return hyper.hypergradient(problem, x, found, at.zeta, at.xi).gradient
