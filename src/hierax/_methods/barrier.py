"""Barrier (Tsaknakis, Khanduri, Hong, ICASSP 2023; Jiang, Li, Hong, Zhang 2024): the lower level without constraints.

    y_t(x)    = argmin over y of B_t(x, y) = G(x, y) - t sum_i log(-H_i(x, y))            (faces of Y are rows too)
    phi_t(x)  = F(x, y_t(x)),      d = grad_x F - B_xy B_yy^-1 grad_y F                    at y = y_t(x)

y_t is smooth wherever a Slater point exists, whatever rows are active at t = 0, and t / (-H_i) tends to the multiplier.
t is halved after every line search (where f is sampled: every step) until t_last. F(x, y_t(x)) misses F(x, y*(x)) by
O(t). Every y is strictly inside: the inner Newton method never leaves the interior, and starts from a Slater point that
a phase one finds where x has moved the rows. Equalities have no interior and are refused.

The central path of the lower level: y_t(x) = argmin of G(x, .) - t sum_i log(-r_i(x, .)), and a way inside.

The rows r are the constraints and the faces of Y. Newton's method with a line search that never accepts a point where a
row is not negative, so every iterate is strictly inside. Where the start is not, phase one comes first:

    minimise over (v, s)   s + t/2 ||v - start||^2 / a^2 - t sum_i log(s - r_i(v) / u_i),      t = a, a/10, ...

until all rows are negative (u_i: the size of the row's gradient; a: how far the start is outside, plus one length). v
is held near the start as long as that will do. If none of these centres is inside, no Slater point is known, and the
answer is INFEASIBLE. Equalities have no inside: callers refuse them.
"""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base.constants import FINE, LITTLE, MANY
from hierax._base.errors import InputError
from hierax._base.settings import POSITIVE
from hierax._base.trees import Number, dtype_of, or_one, size
from hierax._lower.newton import armijo, cholesky
from hierax._math import lower_level
from hierax._math.hypergradient import MOST, upper_gradient_y
from hierax._methods.common import SHARE, setting, with_defaults
from hierax._methods.smoothed import Look, Prepared, Round, Samples, Smoothed, eta_advice, look_through
from hierax._problem.problem import Problem
from hierax._run.method import Advice

# Squared Newton decrement, over t, at which y_t is found: its local distance is then 1e-8. `FINE` will do where no step
# lowers the function any more, and `LITTLE` for the next t of the path.
CENTRED = 1e-16

Function = Callable[[lower_level.Vector], Scalar]
Rows = Callable[[lower_level.Vector], lower_level.RowVector]


class _Centre(NamedTuple):
    """An iterate of Newton's method.

    Attributes:
        v: the point.
        decrement: the squared Newton decrement over t before the last step; infinite until the last t.
        stuck: whether no step was better.
        damping: of the next factorisation.
        steps: so far.
        t: the weight on the way to the one asked for.
    """

    v: lower_level.Vector
    decrement: Scalar
    stuck: Bool[Array, ""]
    damping: Scalar
    steps: Int[Array, ""]
    t: Scalar


def central_point(
    problem: Problem, x: PyTree, y: PyTree, xi: PyTree, t: Scalar, most: Scalar
) -> lower_level.LowerSolution:
    """y_t(x) from y, with its multipliers t / (-r_i); strictly inside, or INFEASIBLE.

    From a y far from y_t the path is followed from the weight `most`: Newton's method alone takes a number of steps
    that grows like 1/t there.
    """
    level = lower_level.level_at(problem, x, y, xi)
    start, inside = interior_point(lower_level.continued_outside(level, problem.y_set), level)
    end = _centred(level.objective, level.rows, jnp.where(inside, start, level.start), t, most, inside)
    rows = level.rows(end.v)
    own, faces = level.split(jnp.where(rows < 0, t / jnp.where(rows < 0, -rows, 1.0), 0.0))
    done = end.decrement <= jnp.where(end.stuck, FINE, CENTRED)
    return lower_level.LowerSolution(
        y=level.tree(end.v),
        multipliers=own,
        faces=faces,
        value=level.objective(end.v),
        residual=jnp.sqrt(end.decrement),
        status=jnp.where(
            inside, jnp.where(done, lower_level.SOLVED, lower_level.INACCURATE), lower_level.INFEASIBLE
        ).astype(jnp.int32),
        iterations=end.steps,
    )


def barrier(problem: Problem, x: PyTree, y: PyTree, xi: PyTree, t: Scalar) -> Scalar:
    """G(x, y) - t sum_i log(-r_i(x, y))."""
    level = lower_level.level_at(problem, x, y, xi)
    return level.objective(level.start) - t * jnp.sum(jnp.log(-level.rows(level.start)))


def interior_point(level: lower_level.Level, true: lower_level.Level) -> tuple[lower_level.Vector, Bool[Array, ""]]:
    """A point where all rows of `true` are negative, and whether one was found; `level` continues it outside Y."""
    start = level.start
    rows = level.rows(start)
    units = lower_level.units_at(level, start, rows, jnp.zeros_like(start), lower_level.reachable(0.0, start.dtype))
    most = jnp.max(rows / units.row, initial=-jnp.inf)
    depth = jnp.where(most > -jnp.inf, jnp.maximum(most, 0.0) + units.length, 1.0)

    def relaxed(w: lower_level.Vector) -> lower_level.RowVector:
        return level.rows(w[:-1]) / units.row - w[-1]

    def outside(w: lower_level.Vector) -> Bool[Array, ""]:
        return ~jnp.all(true.rows(w[:-1]) < 0)

    def body(carry: tuple[lower_level.Vector, Scalar]) -> tuple[lower_level.Vector, Scalar]:
        w, t = carry

        def held(w: lower_level.Vector) -> Scalar:
            away = (w[:-1] - start) / depth
            return w[-1] + 0.5 * t * jnp.vdot(away, away)

        return _centred(held, relaxed, w, t, t, jnp.array(True)).v, LITTLE * t

    def unfinished(carry: tuple[lower_level.Vector, Scalar]) -> Bool[Array, ""]:
        return outside(carry[0]) & (carry[1] > jnp.finfo(depth.dtype).eps * depth)

    w, _ = jax.lax.while_loop(unfinished, body, (jnp.append(start, depth), depth))
    return w[:-1], ~outside(w)


def _centred(
    objective: Function, rows: Rows, start: lower_level.Vector, t: Scalar, most: Scalar, run: Bool[Array, ""]
) -> _Centre:
    """Newton's method on the barrier function, from a point inside; where that is far from y_t, along the path."""
    one = jnp.ones((), start.dtype)
    unused = lower_level.Units(one[None], one, one, one)  # what the other directions of `newton` are measured in

    def body(state: _Centre) -> _Centre:
        now = state.t

        def value(v: lower_level.Vector) -> tuple[Scalar, Scalar]:
            slack = -rows(v)
            logs, at = jnp.log(slack), objective(v)
            inside = jnp.all(slack > 0)
            return jnp.where(inside, at - now * jnp.sum(logs), jnp.nan), jnp.abs(at) + now * jnp.sum(jnp.abs(logs))

        slope, curved = jax.linearize(jax.grad(lambda v: value(v)[0]), state.v)
        direction, failed = cholesky(curved, slope, state.damping, unused, state.v)
        fall = -jnp.vdot(slope, direction)
        decrement = jnp.where(failed, jnp.inf, jnp.abs(fall) / now)
        astray = (state.steps == 0) & (decrement > 1) & (most > t)
        # From a start so far from y_t the path is followed, beginning at the largest t.
        v, stuck = armijo(value, state.v, value(state.v), direction, -fall)
        # The decrement belongs to the point before the step, and the point after it is quadratically closer.
        arrived = (now > t) & ((decrement <= LITTLE) | stuck)
        return _Centre(
            v=jnp.where(astray, state.v, v),
            decrement=jnp.where(now > t, jnp.inf, decrement),
            stuck=stuck & ~failed & ~astray & ~(now > t),
            damping=jnp.where(failed, jnp.maximum(10 * state.damping, 1e-8), 0.1 * state.damping),
            steps=state.steps + 1,
            t=jnp.where(astray, most, jnp.where(arrived, jnp.maximum(LITTLE * now, t), now)),
        )

    def unfinished(state: _Centre) -> Bool[Array, ""]:
        return run & (state.decrement > CENTRED) & ~state.stuck & (state.steps < MANY)

    begin = _Centre(start, jnp.inf * one, jnp.array(False), 0 * one, jnp.zeros((), jnp.int32), t)
    return jax.lax.while_loop(unfinished, body, begin)


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

    t: Number = setting(POSITIVE)
    t_last: Number = setting(POSITIVE)
    shrink: Number = setting(SHARE, 0.5)

    advice: ClassVar[Advice] = eta_advice("Barrier", "a smaller t_last brings it closer")

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Samples, key: PRNGKeyArray) -> Prepared:
        """A Slater point at x0, and the unit of t there."""
        _refuse_equalities(problem, x, y)
        if size(y) > MOST:
            raise InputError(
                f"Barrier: y has more than {MOST} entries, and the Hessian of the barrier is factorised at every step. "
                "Use hx.SALVF()."
            )
        level = lower_level.level_at(problem, x, y, at.xi)
        start, inside = interior_point(lower_level.continued_outside(level, problem.y_set), level)
        unit = _unit(jax.grad(level.objective)(start), jnp.diagonal(jax.hessian(level.objective)(start)), start)
        dtype = dtype_of(x, y)
        least = jnp.sqrt(jnp.finfo(dtype).eps)  # half of the digits for t, the other half for y_t
        method = with_defaults(self, dtype, t=LITTLE * unit, t_last=least * unit, shrink=self.shrink)
        return Prepared(method, level.tree(start), {NO_INTERIOR: ~inside})

    def weight(self, this: Round) -> Scalar:
        """t of a line search."""
        return jnp.maximum(self.t * self.shrink ** this.number.astype(self.t.dtype), self.t_last)

    def look(self, problem: Problem, x: PyTree, inner: PyTree, this: Round, at: Samples) -> Look:
        """F(x, y_t(x)); the distance to y*(x) is the length of the rest of the path, t dy_t/dt, to first order."""
        t = self.weight(this)
        found = central_point(problem, x, inner, at.xi, t, jnp.maximum(t, self.t))
        slope = jax.flatten_util.ravel_pytree(jax.grad(problem.lower, 1)(x, found.y, at.xi))[0]
        distance = jnp.linalg.norm(_solved(problem, x, found.y, t, at, slope))
        return look_through(problem, x, found, found.y, distance, at)

    def slope(self, problem: Problem, x: PyTree, look: Look, this: Round, at: Samples) -> PyTree:
        """d, with one solve by B_yy; the mixed derivative is that of w'B_y in x, w = B_yy^-1 grad_y F."""
        t, y = self.weight(this), look.y
        flat, tree = jax.flatten_util.ravel_pytree(y)
        w = _solved(problem, x, y, t, at, upper_gradient_y(problem, x, y, at.zeta))

        def combined(x: PyTree) -> Scalar:
            _, along = jax.jvp(lambda v: barrier(problem, x, tree(v), at.xi, t), (flat,), (w,))
            return problem.upper(x, y, at.zeta) - along

        return jax.grad(combined)(x)


def _solved(
    problem: Problem, x: PyTree, y: PyTree, t: Scalar, at: Samples, right: lower_level.Vector
) -> lower_level.Vector:
    """B_yy^-1 times a vector."""
    flat, tree = jax.flatten_util.ravel_pytree(y)
    hessian = jax.hessian(lambda v: barrier(problem, x, tree(v), at.xi, t))(flat)
    return jnp.linalg.solve(hessian, right)


def _unit(slope: lower_level.Vector, curvatures: lower_level.Vector, y: lower_level.Vector) -> Scalar:
    """A typical difference of G: curvature times squared size of y, or of what the gradient pushes y if that is more;
    for a G without curvature its slope times the size of y.
    """
    curvature, steep, length = jnp.max(jnp.abs(curvatures)), jnp.linalg.norm(slope), or_one(jnp.linalg.norm(y))
    pushed = jnp.maximum(length, steep / or_one(curvature))
    return or_one(jnp.where(curvature > 0, curvature * pushed**2, steep * length))


def _refuse_equalities(problem: Problem, x: PyTree, y: PyTree) -> None:
    """Equalities, of the problem or of Y (a simplex), leave no interior."""
    layout = lower_level.layout_of(problem, x, y)
    if layout.equal.any():
        whose = "Y (a simplex, for example)" if (layout.equal & layout.face).any() else "the lower level"
        raise InputError(
            f"Barrier: {whose} has equality constraints. A set with equalities has no interior, so no logarithmic "
            "barrier. Eliminate them, or use hx.SALVF(), hx.GAM() or hx.BLOCC()."
        )
