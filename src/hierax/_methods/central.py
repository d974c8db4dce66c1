r"""The central path of the lower level: y_t(x) = argmin of G(x, .) - t sum_i log(-r_i(x, .)), and a way inside.

The rows r are the constraints and the faces of Y. Newton's method with a line search that never accepts a point where a
row is not negative, so every iterate is strictly inside. Where the start is not, phase one comes first:

    minimise over (v, s)   s + t/2 ||v - start||^2 / a^2 - t sum_i log(s - r_i(v) / u_i),      t = a, a/10, ...

until all rows are negative (u_i: the size of the row's gradient; a: how far the start is outside, plus one length). v
is held near the start as long as that will do. If none of these centres is inside, no Slater point is known, and the
answer is INFEASIBLE. Equalities have no inside: callers refuse them.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PyTree, Scalar

from hierax._lower.newton import armijo, cholesky
from hierax._math.kkt_residual import Units, reachable, units_at
from hierax._math.lower_level import (
    INACCURATE,
    INFEASIBLE,
    SOLVED,
    Level,
    LowerSolution,
    RowVector,
    Vector,
    continued_outside,
    level_at,
)
from hierax._problem.problem import Problem

CENTRED = 1e-16  # squared Newton decrement, over t, at which y_t is found: its local distance is then 1e-8
NEARLY = 1e-6  # the same, where no step lowers the function any more
CLOSE = 0.1  # the same, at which the path goes on to the next t
SHRINKAGE = 0.1  # t over the one before, on the path and in phase one
MAX_NEWTON_STEPS = 300
MAX_PHASES = 12  # values of t in phase one

Function = Callable[[Vector], Scalar]
Rows = Callable[[Vector], RowVector]


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

    v: Vector
    decrement: Scalar
    stuck: Bool[Array, ""]
    damping: Scalar
    steps: Int[Array, ""]
    t: Scalar


def central_point(problem: Problem, x: PyTree, y: PyTree, xi: PyTree, t: Scalar, most: Scalar) -> LowerSolution:
    """y_t(x) from y, with its multipliers t / (-r_i); strictly inside, or INFEASIBLE.

    From a y far from y_t the path is followed from the weight `most`: Newton's method alone takes a number of steps
    that grows like 1/t there.
    """
    level = level_at(problem, x, y, xi)
    start, inside = interior_point(continued_outside(level, problem.y_set), level)
    end = _centred(level.objective, level.rows, jnp.where(inside, start, level.start), t, most, inside)
    rows = level.rows(end.v)
    own, faces = level.split(jnp.where(rows < 0, t / jnp.where(rows < 0, -rows, 1.0), 0.0))
    done = end.decrement <= jnp.where(end.stuck, NEARLY, CENTRED)
    return LowerSolution(
        y=level.tree(end.v),
        multipliers=own,
        faces=faces,
        value=level.objective(end.v),
        residual=jnp.sqrt(end.decrement),
        status=jnp.where(inside, jnp.where(done, SOLVED, INACCURATE), INFEASIBLE).astype(jnp.int32),
        iterations=end.steps,
    )


def barrier(problem: Problem, x: PyTree, y: PyTree, xi: PyTree, t: Scalar) -> Scalar:
    """G(x, y) - t sum_i log(-r_i(x, y))."""
    level = level_at(problem, x, y, xi)
    return level.objective(level.start) - t * jnp.sum(jnp.log(-level.rows(level.start)))


def interior_point(level: Level, true: Level) -> tuple[Vector, Bool[Array, ""]]:
    """A point where all rows of `true` are negative, and whether one was found; `level` continues it outside Y."""
    start = level.start
    rows = level.rows(start)
    units = units_at(level, start, rows, jnp.zeros_like(start), reachable(0.0, start.dtype))
    most = jnp.max(rows / units.row, initial=-jnp.inf)
    depth = jnp.where(most > -jnp.inf, jnp.maximum(most, 0.0) + units.length, 1.0)

    def relaxed(w: Vector) -> RowVector:
        return level.rows(w[:-1]) / units.row - w[-1]

    def outside(w: Vector) -> Bool[Array, ""]:
        return ~jnp.all(true.rows(w[:-1]) < 0)

    def body(carry: tuple[Vector, Scalar, Int[Array, ""]]) -> tuple[Vector, Scalar, Int[Array, ""]]:
        w, t, phase = carry

        def held(w: Vector) -> Scalar:
            away = (w[:-1] - start) / depth
            return w[-1] + 0.5 * t * jnp.vdot(away, away)

        return _centred(held, relaxed, w, t, t, jnp.array(True)).v, SHRINKAGE * t, phase + 1

    first = jnp.append(start, depth), depth, jnp.zeros((), jnp.int32)
    w, _, _ = jax.lax.while_loop(lambda carry: outside(carry[0]) & (carry[2] < MAX_PHASES), body, first)
    return w[:-1], ~outside(w)


def _centred(objective: Function, rows: Rows, start: Vector, t: Scalar, most: Scalar, run: Bool[Array, ""]) -> _Centre:
    """Newton's method on the barrier function, from a point inside; where that is far from y_t, along the path."""
    one = jnp.ones((), start.dtype)
    unused = Units(one[None], one, one, one)  # what the other directions of `newton` are measured in

    def body(state: _Centre) -> _Centre:
        now = state.t

        def value(v: Vector) -> tuple[Scalar, Scalar]:
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
        arrived = (now > t) & ((decrement <= CLOSE) | stuck)
        return _Centre(
            v=jnp.where(astray, state.v, v),
            decrement=jnp.where(now > t, jnp.inf, decrement),
            stuck=stuck & ~failed & ~astray & ~(now > t),
            damping=jnp.where(failed, jnp.maximum(10 * state.damping, 1e-8), 0.1 * state.damping),
            steps=state.steps + 1,
            t=jnp.where(astray, most, jnp.where(arrived, jnp.maximum(SHRINKAGE * now, t), now)),
        )

    def unfinished(state: _Centre) -> Bool[Array, ""]:
        return run & (state.decrement > CENTRED) & ~state.stuck & (state.steps < MAX_NEWTON_STEPS)

    begin = _Centre(start, jnp.inf * one, jnp.array(False), 0 * one, jnp.zeros((), jnp.int32), t)
    return jax.lax.while_loop(unfinished, body, begin)
