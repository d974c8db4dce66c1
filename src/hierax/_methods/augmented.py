"""ALM, the lower solver of IG-AL: the classical augmented Lagrangian method with accelerated projected gradients.

    y  <- argmin over y in Y of  G(x, y) + sum_i ([mu_i + rho r_i(x, y)]_+^2 - mu_i^2) / (2 rho)
    mu <- [mu + rho r(x, y)]_+                                             (equalities: without [.]_+)

The minimisation is Nesterov's method (`accelerated`); it ends when its gradient is small against the last change of mu.
rho grows where mu settles slowly. First derivatives only, apart from norms. It is meant for rows whose gradients are
constant (`Exact` is the general solver).

Nesterov's accelerated projected gradients, restarted whenever they go uphill.

    v+ = Proj_Y(w - f'(w) / L),    w = v + (momentum - 1)/(next momentum) (v - v before)

L is doubled where the quadratic bound f(v+) <= f(w) + <f'(w), v+ - w> + L/2 ||v+ - w||^2 fails. Ends where the gradient
mapping L ||w - v+|| is small enough. First derivatives only.
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree, Scalar

from hierax._base.constants import LITTLE, MANY, MUCH
from hierax._base.settings import COUNT_GIVEN, POSITIVE_GIVEN, check_settings
from hierax._base.trees import Number, or_one
from hierax._lower.base import AbstractLowerSolver, compiled_where_called, completed
from hierax._math.lower_level import INACCURATE, SOLVED, LowerSolution, RowVector, Vector, level_at, reachable
from hierax._math.spectrum import hessian_product, jacobian_norm, power_iteration
from hierax._problem import sets
from hierax._problem.problem import Problem, Rows

Map = Callable[[Vector], Array]


class Descent(NamedTuple):
    """The iterate and the one before, the momentum, L, the last gradient mapping's norm, and the number of steps."""

    v: Vector
    before: Vector
    momentum: Scalar
    smooth: Scalar
    mapped: Scalar
    steps: Int[Array, ""]


def accelerated(function: Map, project: Map, start: Vector, smooth: Scalar, enough: Scalar, max_steps: int) -> Descent:
    """Minimise the function over the set from `start`, with L = `smooth` at first."""
    eps = jnp.finfo(start.dtype).eps

    def body(state: Descent) -> Descent:
        following = 0.5 + jnp.sqrt(0.25 + state.momentum**2)
        ahead = state.v + (state.momentum - 1) / following * (state.v - state.before)
        here, slope = jax.value_and_grad(function)(ahead)
        v = project(ahead - slope / state.smooth)
        gone = v - ahead
        square, reached = jnp.vdot(gone, gone), function(v)
        bound = here + jnp.vdot(slope, gone) + 0.5 * state.smooth * square
        # Near the minimum values differ by rounding alone, which cancelling terms enlarge; a bound that fails by it
        # doubles L again and again, and the steps die out.
        fits = reached <= bound + MANY * eps * (jnp.abs(here) + jnp.abs(reached))
        uphill = jnp.vdot(gone, v - state.v) < 0
        return Descent(
            v=jnp.where(fits, v, state.v),
            before=state.v,
            momentum=jnp.where(fits & ~uphill, following, 1.0),
            smooth=jnp.where(fits, 1.0, 2.0) * state.smooth,
            mapped=jnp.where(fits, state.smooth * jnp.sqrt(square), jnp.inf),
            steps=state.steps + 1,
        )

    def unfinished(state: Descent) -> Bool[Array, ""]:
        return (state.mapped > enough) & (state.steps < max_steps)

    one = jnp.ones((), start.dtype)
    begin = Descent(start, start, one, smooth, jnp.inf * one, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(unfinished, body, begin)


SLOW = 0.25  # rho is divided by this where the change of mu fell by less than this factor


class _State(NamedTuple):
    """The iterate, its multipliers, rho, the last change of mu as a length, the residual, and the gradient steps."""

    v: Vector
    mu: RowVector
    rho: Scalar
    missed: Scalar
    residual: Scalar
    steps: Int[Array, ""]


class ALM(AbstractLowerSolver):
    """Augmented Lagrangian method with a first-order core, for convex lower levels with affine rows.

        y  <- argmin over y in Y of  G(x, y) + sum_i ([mu_i + rho r_i(x, y)]_+^2 - mu_i^2)/(2 rho)
        mu <- [mu + rho r(x, y)]_+     (equalities: without [.]_+)

    with Nesterov's accelerated projected gradients in y; rho grows where mu settles slowly.

    It never says INFEASIBLE or UNBOUNDED, only that it did not arrive.

    Args:
        tol: SOLVED where both the gradient mapping over the curvature of G and the violation, as lengths, are at most
            this share of the size of y; in single precision at least 200 times the rounding unit.
        max_steps: bound on the number of gradient steps.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: y**2, lower=lambda x, y, xi: (y - 2.0 * x) ** 2, constraints=lambda x, y: y - x
        ... )
        >>> found = hx.ALM(tol=1e-6).solve(problem, 1.0, 0.0)
        >>> [round(float(value), 3) for value in (found.y, found.multipliers.inequalities)]
        [1.0, 2.0]

    References:
        Bertsekas: Constrained optimization and Lagrange multiplier methods, Academic Press 1982.
        docs/methods/ig-al.md, docs/methods/lower-solvers.md
    """

    tol: Number = 1e-9
    max_steps: int = eqx.field(static=True, default=20_000)

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        check_settings(self, {"tol": POSITIVE_GIVEN, "max_steps": COUNT_GIVEN})

    @compiled_where_called
    def solve(
        self, problem: Problem, x: PyTree, y: PyTree, xi: PyTree = None, multipliers: Rows | None = None
    ) -> LowerSolution:
        """y*(x) and its multipliers on the batch xi, from y and, where given, good multipliers."""
        x, y = jax.tree.map(jnp.asarray, (x, y))
        level = level_at(problem, x, sets.project(problem.y_set, y), xi)
        start, tol = level.start, reachable(self.tol, level.start.dtype)
        own = np.flatnonzero(~level.face)  # the faces of Y are left to its projection
        equal = level.equal[own]
        # Rows are divided by the norms of their gradients, and multipliers multiplied.
        norms = or_one(jnp.linalg.norm(jax.jacrev(lambda v: level.rows(v)[own])(start), axis=1))
        curved = or_one(power_iteration(hessian_product(level.objective, start), start)[0])
        steep = or_one(jacobian_norm(lambda v: level.rows(v)[own] / norms, start) ** 2)

        def project(v: Vector) -> Vector:
            return jax.flatten_util.ravel_pytree(sets.project(problem.y_set, level.tree(v)))[0]

        def body(state: _State) -> _State:
            """y for this mu, then the next mu."""

            def shifted(v: Vector) -> RowVector:
                mu = state.mu + state.rho * level.rows(v)[own] / norms
                return jnp.where(equal, mu, jnp.maximum(mu, 0.0))

            def value(v: Vector) -> Scalar:
                return level.objective(v) + jnp.sum(shifted(v) ** 2) / (2 * state.rho)

            length = or_one(jnp.linalg.norm(state.v))
            enough = jnp.maximum(LITTLE * jnp.minimum(state.missed, length), 0.3 * tol * length)
            smooth = curved + state.rho * steep
            found = accelerated(value, project, state.v, smooth, enough * curved, self.max_steps)
            mu = shifted(found.v)
            missed = jnp.max(jnp.abs(mu - state.mu), initial=0.0) / state.rho
            slow = (missed > SLOW * state.missed) & (missed > 0.1 * tol * length)
            left = jnp.maximum(found.mapped / curved, missed) / or_one(jnp.linalg.norm(found.v))
            rho = jnp.where(slow, state.rho / SLOW, state.rho)
            return _State(found.v, mu, rho, missed, left, state.steps + found.steps)

        def unfinished(state: _State) -> Bool[Array, ""]:
            return (state.residual > tol) & (state.steps < self.max_steps)

        mu = jnp.zeros(level.equal.size, start.dtype)
        if multipliers is not None:
            mu = level.signed(level.multipliers(multipliers))
        far = jnp.full((), jnp.inf, start.dtype)
        begin = _State(start, mu[own] * norms, MUCH * curved / steep, far, far, jnp.zeros((), jnp.int32))
        end = jax.lax.while_loop(unfinished, body, begin)
        landed = level_at(problem, x, level.tree(end.v), xi)
        multiplied = completed(landed, jnp.zeros_like(mu).at[own].set(end.mu / norms), landed.face)
        status = jnp.where(end.residual <= tol, SOLVED, INACCURATE).astype(jnp.int32)
        value = level.objective(end.v)
        return LowerSolution(level.tree(end.v), *level.split(multiplied), value, end.residual, status, end.steps)
