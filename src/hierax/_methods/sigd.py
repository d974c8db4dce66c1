r"""SIGD (Khanduri, Tsaknakis, Zhang, Liu, Liu, Zhang, Hong, ICML 2023): smoothed implicit gradients.

    y_q(x)   = argmin over y of G(x, y) + q'y  subject to A y <= b + B x,      q random, ||q|| <= sigma
    phi_q(x) = F(x, y_q(x)),    d = its implicit gradient on the active rows,   x <- Proj_X(x - eta d)

y*(x) has kinks where a constraint is weakly active. With a random linear term in the lower objective complementarity is
strict with probability one, and phi_q has a gradient wherever the run is. q is drawn anew for every line search, and is
the same within one: Armijo's rule compares values of one function (where f is sampled: a q for every step). y_q is off
by at most sigma / mu_G. The stochastic form, [S]SIGD, takes f on a batch.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.settings import POSITIVE, check_settings
from hierax._base.trees import Number, dtype_of, given, or_one
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math.kkt_residual import reachable
from hierax._math.lower_level import LowerSolution
from hierax._math.spectrum import hessian_product, power_iteration
from hierax._methods.implicit_gradient import LinearRows
from hierax._methods.smoothed import Prepared, Round, Samples, eta_advice
from hierax._problem.problem import Problem
from hierax._run.method import Advice

SHARE = 1e-5  # sigma in units of what moves y by its own size: its bias is then of this order, far above the solver's
ABOVE_TOL = 100.0  # ... and never less than this many times the tolerance of the solver


class SIGD(LinearRows):
    r"""Implicit gradients of a randomly perturbed lower level. Whatever is None is estimated from the problem.

        y_q(x) = argmin over y of {G(x, y) + q'y : A y <= b + B x},     q uniform in the ball of radius sigma
        d = grad_x F + (dy_q/dx)' grad_y F,     x <- Proj_X(x - eta d)

    with dy_q/dx from the KKT system of the active rows, as in `GAM`.

    Args:
        sigma: bound of the perturbation q, in units of grad_y G; x and y are off by O(sigma). None: 1e-5 times the
            curvature of G in y times the size of y at the start (more in single precision).
        lower: solver of the lower level, `Exact()`, `Conic()` or `ALM()`; its tolerance must be far below sigma.
        eta, batch_zeta, batch_xi, smoothness: as in `GAM`.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> sol = hx.solve(problem, 0.5, 0.5, hx.SIGD(), max_steps=30)
        >>> round(float(sol.x), 2)
        0.91

    References:
        Khanduri, Tsaknakis, Zhang, Liu, Liu, Zhang, Hong: Linearly constrained bilevel optimization: a smoothed
            implicit gradient approach, ICML 2023.
        docs/methods/sigd.md (cost and when to use it)
    """

    sigma: Number = None
    lower: AbstractLowerSolver = Exact(tol=1e-10)

    advice: ClassVar[Advice] = eta_advice("SIGD", "a smaller sigma brings it closer")

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        super().__post_init__()
        check_settings(self, {"sigma": POSITIVE})

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Samples, key: PRNGKeyArray) -> Prepared:
        """sigma from the curvature of G and the size of y; the assumptions are looked at."""
        dtype = dtype_of(x, y)
        curved, _ = power_iteration(hessian_product(lambda v: problem.lower(x, v, at.xi), y), y)
        push = trees.norm(jax.grad(problem.lower, 1)(x, y, at.xi))
        unit = or_one(jnp.maximum(or_one(curved) * trees.norm(y), push))
        share = jnp.maximum(SHARE, ABOVE_TOL * reachable(getattr(self.lower, "tol", 0.0), dtype))
        filled = dataclasses.replace(self, sigma=given(self.sigma, share * unit, dtype))
        return super(SIGD, filled).prepared(problem, x, y, at, key)

    def perturbation(self, y: PyTree, this: Round) -> PyTree:
        """q of a line search: uniform in the ball of radius sigma."""
        flat, tree = jax.flatten_util.ravel_pytree(y)
        draw = jax.random.normal(
            jax.random.fold_in(jax.random.fold_in(this.key, 7), this.number), (flat.size + 2,), flat.dtype
        )
        # The first n of n + 2 entries of a uniform point of the sphere are uniform in the ball.
        return tree(self.sigma.astype(flat.dtype) * draw[:-2] / jnp.linalg.norm(draw))

    def seen(self, problem: Problem, y: PyTree, this: Round) -> Problem:
        """With G + q'y in the place of G."""
        q = self.perturbation(y, this)
        return dataclasses.replace(problem, lower=lambda x, y, xi: problem.lower(x, y, xi) + trees.vdot(q, y))

    def offset(self, problem: Problem, x: PyTree, found: LowerSolution, this: Round, at: Samples) -> Scalar:
        """How far q moves y where no row holds it: ||q|| over the curvature of G along q."""
        q = self.perturbation(found.y, this)
        size = or_one(trees.norm(q))
        bent = hessian_product(lambda v: problem.lower(x, v, at.xi), found.y)(q)
        return size / or_one(trees.vdot(q, bent) / size**2)
