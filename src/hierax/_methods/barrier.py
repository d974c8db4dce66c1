r"""Barrier (Tsaknakis, Khanduri, Hong, ICASSP 2023; Jiang, Li, Hong, Zhang 2024): the lower level without constraints.

    y_t(x)    = argmin over y of B_t(x, y) = G(x, y) - t sum_i log(-H_i(x, y))            (faces of Y are rows too)
    phi_t(x)  = F(x, y_t(x)),      d = grad_x F - B_xy B_yy^-1 grad_y F                    at y = y_t(x)

y_t is smooth wherever a Slater point exists, whatever rows are active at t = 0, and t / (-H_i) tends to the multiplier.
t is halved after every line search (where f is sampled: every step) until t_last. F(x, y_t(x)) misses F(x, y*(x)) by
O(t). Every y is strictly inside: the inner Newton method never leaves the interior, and starts from a Slater point that
a phase one finds where x has moved the rows (`hierax._methods.central`). Equalities have no interior and are refused.
"""

import dataclasses
from typing import ClassVar

import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray, PyTree, Scalar

from hierax._base.errors import InputError
from hierax._base.settings import POSITIVE, check_settings, in_interval
from hierax._base.trees import Number, dtype_of, given, or_one, size
from hierax._math.hypergradient import MOST, upper_gradient_y
from hierax._math.lower_level import Vector, continued_outside, layout_of, level_at
from hierax._methods.central import barrier, interior_point
from hierax._methods.central import central_point as centre
from hierax._methods.smoothed import Look, Prepared, Round, Samples, Smoothed, eta_advice, value_noise
from hierax._problem.problem import Problem
from hierax._run.method import Advice

FIRST_SHARE = 0.1  # t of the first line search, in units of G: its curvature times the squared size of y

NO_INTERIOR = (
    "Barrier: no point was found at which every constraint of the lower level, and every bound of Y, holds strictly at "
    "the start x0. The barrier needs one (Slater's condition). Start at another x, or use hx.SALVF() or hx.GAM()."
)


class Barrier(Smoothed):
    r"""Implicit gradients of a lower level with a logarithmic barrier. Whatever is None is estimated from the problem.

        B_t(x, y) = G(x, y) - t sum_i log(-H_i(x, y)),     y_t(x) = argmin over y of B_t(x, y)
        d = grad_x F - B_xy B_yy^-1 grad_y F  at y_t(x),     x <- Proj_X(x - eta d)

    t shrinks from line search to line search; t/(-H_i) estimates the multiplier of row i.

    Args:
        t: weight of the barrier in the first line search, in units of G; None: 0.1 times the curvature of G in y times
            the squared size of y at the start.
        t_last: the smallest weight; None: that unit times the root of the rounding unit (1.5e-8 in double precision).
            F is off by O(t_last).
        shrink: t of a line search over t of the one before, in (0, 1).
        eta, batch_zeta, batch_xi, smoothness: as in `GAM`.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> sol = hx.solve(problem, 0.5, 0.4, hx.Barrier(), max_steps=60)
        >>> round(float(sol.x), 2)
        0.91

    References:
        Tsaknakis, Khanduri, Hong: An implicit gradient method for constrained bilevel problems using barrier
            approximation, ICASSP 2023.
        Jiang, Li, Hong, Zhang: A barrier function approach for bilevel optimization with coupled lower-level
            constraints: formulation, approximation and algorithms, arXiv:2410.10670, 2024.
        docs/methods/barrier.md (cost and when to use it)
    """

    t: Number = None
    t_last: Number = None
    shrink: Number = 0.5

    advice: ClassVar[Advice] = eta_advice("Barrier", "a smaller t_last brings it closer")

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        super().__post_init__()
        inside = in_interval(lambda share: 0 < share < 1, "(0, 1)")
        check_settings(self, {"t": POSITIVE, "t_last": POSITIVE, "shrink": inside})

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Samples, key: PRNGKeyArray) -> Prepared:
        """A Slater point at x0, and the unit of t there."""
        _refuse_equalities(problem, x, y)
        if size(y) > MOST:
            raise InputError(
                f"Barrier: y has more than {MOST} entries, and the Hessian of the barrier is factorised at every step. "
                "Use hx.SALVF()."
            )
        dtype = dtype_of(x, y)
        level = level_at(problem, x, y, at.xi)
        start, inside = interior_point(continued_outside(level, problem.y_set), level)
        unit = _unit(jax.grad(level.objective)(start), jnp.diagonal(jax.hessian(level.objective)(start)), start)
        least = jnp.sqrt(jnp.finfo(dtype).eps)  # half of the digits for t, the other half for y_t
        method = dataclasses.replace(
            self,
            t=given(self.t, FIRST_SHARE * unit, dtype),
            t_last=given(self.t_last, least * unit, dtype),
            shrink=jnp.asarray(self.shrink, dtype),
        )
        return Prepared(method, level.tree(start), {NO_INTERIOR: ~inside})

    def weight(self, this: Round) -> Scalar:
        """t of a line search."""
        return jnp.maximum(self.t * self.shrink ** this.number.astype(self.t.dtype), self.t_last)

    def look(self, problem: Problem, x: PyTree, inner: PyTree, this: Round, at: Samples) -> Look:
        """F(x, y_t(x)); the distance to y*(x) is the length of the rest of the path, t dy_t/dt, to first order."""
        t = self.weight(this)
        found = centre(problem, x, inner, at.xi, t, jnp.maximum(t, self.t))
        slope = jax.flatten_util.ravel_pytree(jax.grad(problem.lower, 1)(x, found.y, at.xi))[0]
        return Look(
            value=problem.upper(x, found.y, at.zeta),
            noise=value_noise(problem, x, found.y, at.zeta, found.residual),
            y=found.y,
            multipliers=found.multipliers,
            inner=found.y,
            lower=found.value,
            distance=jnp.linalg.norm(_solved(problem, x, found.y, t, at, slope)),
            residual=found.residual,
            status=found.status,
        )

    def slope(self, problem: Problem, x: PyTree, look: Look, this: Round, at: Samples) -> PyTree:
        """d, with one solve by B_yy; the mixed derivative is that of w'B_y in x, w = B_yy^-1 grad_y F."""
        t, y = self.weight(this), look.y
        flat, tree = jax.flatten_util.ravel_pytree(y)
        w = _solved(problem, x, y, t, at, upper_gradient_y(problem, x, y, at.zeta))

        def combined(x: PyTree) -> Scalar:
            _, along = jax.jvp(lambda v: barrier(problem, x, tree(v), at.xi, t), (flat,), (w,))
            return problem.upper(x, y, at.zeta) - along

        return jax.grad(combined)(x)


def _solved(problem: Problem, x: PyTree, y: PyTree, t: Scalar, at: Samples, right: Vector) -> Vector:
    """B_yy^-1 times a vector."""
    flat, tree = jax.flatten_util.ravel_pytree(y)
    hessian = jax.hessian(lambda v: barrier(problem, x, tree(v), at.xi, t))(flat)
    return jnp.linalg.solve(hessian, right)


def _unit(slope: Vector, curvatures: Vector, y: Vector) -> Scalar:
    """A typical difference of G: curvature times squared size of y, or of what the gradient pushes y if that is more;
    for a G without curvature its slope times the size of y.
    """
    curvature, steep, length = jnp.max(jnp.abs(curvatures)), jnp.linalg.norm(slope), or_one(jnp.linalg.norm(y))
    pushed = jnp.maximum(length, steep / or_one(curvature))
    return or_one(jnp.where(curvature > 0, curvature * pushed**2, steep * length))


def _refuse_equalities(problem: Problem, x: PyTree, y: PyTree) -> None:
    """Equalities, of the problem or of Y (a simplex), leave no interior."""
    layout = layout_of(problem, x, y)
    if layout.equal.any():
        whose = "Y (a simplex, for example)" if (layout.equal & layout.face).any() else "the lower level"
        raise InputError(
            f"Barrier: {whose} has equality constraints. A set with equalities has no interior, so no logarithmic "
            "barrier. Eliminate them, or use hx.SALVF(), hx.GAM() or hx.BLOCC()."
        )
