"""Penalty methods: `Moreau`, `FirstOrderPenalty` and `Barrier`, each a descent on x with inner minimisers.

Moreau (Gao, Ye, Yin, Zeng, Zhang 2023; Liu, Liu, Yao, Zeng, Zhang, ICML 2024): penalty of a Moreau-envelope gap.

    v_g(x, y) = min over th in Y, H(x, th) <= 0 of  G(x, th) + ||th - y||^2 / (2 g)          (multiplier m)
    phi_c(x)  = min over y in Y,  H(x, y) <= 0  of  F(x, y) + c (G(x, y) - v_g(x, y))        (multiplier nu)

G - v_g >= 0 for feasible y, and it is zero exactly at the lower level's solutions (where G is not convex: at points
that its proximal map keeps). v_g is smooth: its gradients are G_x(x, th) + J_x H(x, th)' m and (y - th) / g. Hence

    y <- argmin over y of F(x, y)/c + G(x, y) - <(y - th)/g, y>,  th the minimiser of v_g(x, y),    until y settles
    d  = grad_x F + c (G_x(x, y) - G_x(x, th) - J_x H(x, th)' m) + J_x H(x, y)' nu,      x <- Proj_X(x - eta d)

The first line is the step of Gao et al., which linearises -v_g, taken in y alone; x then follows the gradient of phi_c.
c_k = min(c (k+1)^p, c_last) grows from line search to line search; x and y are off by O(1/c_k).

First-order penalty method (Lu and Mei, SIAM J. Optim. 2024): the lower level as a penalised minimax problem.

    G_m(x, y) = G(x, y) + m (||[H(x, y)]_+||^2 + ||e(x, y)||^2)
    min over x in X, y in Y of max over z in Y of   F(x, y) + r (G_m(x, y) - G_m(x, z)),     r = 1/eps, m = 1/eps^2

with a sequence eps_k = eps tau^k that falls from line search to line search. For given x both inner variables are
minimisers over Y, found by accelerated projected gradients from where they were (`hierax._methods.augmented`):

    z = argmin of G_m(x, .),      y = argmin of F(x, .)/r + G_m(x, .)
    d = grad_x F(x, y) + r (grad_x G_m(x, y) - grad_x G_m(x, z)),      x <- Proj_X(x - eta d)

Only first derivatives of F, G and H enter, apart from a few norms at the start, which give r and m their units: r in
(curvature of F)/sqrt(L_G mu_G), m in L_G, with rows divided by the norms of their gradients.

Barrier (Tsaknakis, Khanduri, Hong, ICASSP 2023; Jiang, Li, Hong, Zhang 2024): the lower level without constraints.

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

import dataclasses
from collections.abc import Callable
from typing import ClassVar, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.constants import FINE, LITTLE, MANY, MUCH, NEGLIGIBLE
from hierax._base.errors import InputError
from hierax._base.settings import COUNT_GIVEN, NOT_NEGATIVE, POSITIVE, POSITIVE_GIVEN, instance_of
from hierax._base.trees import Number, dtype_of, given, or_one, select, size
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact, armijo, cholesky
from hierax._math import lower_level
from hierax._math.hypergradient import MOST, upper_gradient_y
from hierax._math.lower_level import INACCURATE, SOLVED, Level, LowerSolution, RowVector, Vector, reachable
from hierax._math.psi import excess
from hierax._math.spectrum import constraint_scales
from hierax._methods.augmented import accelerated
from hierax._methods.common import SCALES, SEVERAL, SHARE, as_arrays, setting, with_defaults
from hierax._methods.smoothed import Look, Prepared, Round, Smoothed, blank, eta_advice, gap_unit, look_through
from hierax._problem import sets
from hierax._problem.problem import Problem, Rows, scaled
from hierax._run.method import Advice

# Squared Newton decrement, over t, at which y_t is found: its local distance is then 1e-8. `FINE` will do where no step
# lowers the function any more, and `LITTLE` for the next t of the path.
CENTRED = float(np.finfo(float).epsneg)

Function = Callable[[Vector], Scalar]
RowFunction = Callable[[Vector], RowVector]


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
    level = lower_level.level_at(problem, x, y, xi)
    start, inside = interior_point(lower_level.continued_outside(level, problem.y_set), level)
    end = _centred(level.objective, level.rows, jnp.where(inside, start, level.start), t, most, inside)
    rows = level.rows(end.v)
    own, faces = level.split(jnp.where(rows < 0, t / jnp.where(rows < 0, -rows, 1.0), 0.0))
    done = end.decrement <= jnp.where(end.stuck, FINE, CENTRED)
    status = jnp.where(inside, jnp.where(done, SOLVED, INACCURATE), lower_level.INFEASIBLE).astype(jnp.int32)
    value, residual = level.objective(end.v), jnp.sqrt(end.decrement)
    return LowerSolution(level.tree(end.v), own, faces, value, residual, status, end.steps)


def barrier(problem: Problem, x: PyTree, y: PyTree, xi: PyTree, t: Scalar) -> Scalar:
    """G(x, y) - t sum_i log(-r_i(x, y))."""
    level = lower_level.level_at(problem, x, y, xi)
    return level.objective(level.start) - t * jnp.sum(jnp.log(-level.rows(level.start)))


def interior_point(level: Level, true: Level) -> tuple[Vector, Bool[Array, ""]]:
    """A point where all rows of `true` are negative, and whether one was found; `level` continues it outside Y."""
    start = level.start
    rows = level.rows(start)
    units = lower_level.units_at(level, start, rows, jnp.zeros_like(start), reachable(0.0, start.dtype))
    most = jnp.max(rows / units.row, initial=-jnp.inf)
    depth = jnp.where(most > -jnp.inf, jnp.maximum(most, 0.0) + units.length, 1.0)

    def relaxed(w: Vector) -> RowVector:
        return level.rows(w[:-1]) / units.row - w[-1]

    def outside(w: Vector) -> Bool[Array, ""]:
        return ~jnp.all(true.rows(w[:-1]) < 0)

    def body(carry: tuple[Vector, Scalar]) -> tuple[Vector, Scalar]:
        w, t = carry

        def held(w: Vector) -> Scalar:
            away = (w[:-1] - start) / depth
            return w[-1] + 0.5 * t * jnp.vdot(away, away)

        return _centred(held, relaxed, w, t, t, jnp.array(True)).v, LITTLE * t

    def unfinished(carry: tuple[Vector, Scalar]) -> Bool[Array, ""]:
        return outside(carry[0]) & (carry[1] > jnp.finfo(depth.dtype).eps * depth)

    w, _ = jax.lax.while_loop(unfinished, body, (jnp.append(start, depth), depth))
    return w[:-1], ~outside(w)


def _centred(
    objective: Function, rows: RowFunction, start: Vector, t: Scalar, most: Scalar, run: Bool[Array, ""]
) -> _Centre:
    """Newton's method on the barrier function, from a point inside; where that is far from y_t, along the path."""
    one = jnp.ones((), start.dtype)
    unused = lower_level.Units(one[None], one, one, one)  # what the other directions of `newton` are measured in

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

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Round, key: PRNGKeyArray) -> Prepared:
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

    def weight(self, at: Round) -> Scalar:
        """t of a line search."""
        return jnp.maximum(self.t * self.shrink ** at.number.astype(self.t.dtype), self.t_last)

    def look(self, problem: Problem, x: PyTree, inner: PyTree, at: Round) -> Look:
        """F(x, y_t(x)); the distance to y*(x) is the length of the rest of the path, t dy_t/dt, to first order."""
        t = self.weight(at)
        found = central_point(problem, x, inner, at.xi, t, jnp.maximum(t, self.t))
        slope = jax.flatten_util.ravel_pytree(jax.grad(problem.lower, 1)(x, found.y, at.xi))[0]
        distance = jnp.linalg.norm(_solved(problem, x, found.y, t, at, slope))
        return look_through(problem, x, found, found.y, distance, at)

    def slope(self, problem: Problem, x: PyTree, look: Look, at: Round) -> PyTree:
        """d, with one solve by B_yy; the mixed derivative is that of w'B_y in x, w = B_yy^-1 grad_y F."""
        t, y = self.weight(at), look.y
        flat, tree = jax.flatten_util.ravel_pytree(y)
        w = _solved(problem, x, y, t, at, upper_gradient_y(problem, x, y, at.zeta))

        def combined(x: PyTree) -> Scalar:
            _, along = jax.jvp(lambda v: barrier(problem, x, tree(v), at.xi, t), (flat,), (w,))
            return problem.upper(x, y, at.zeta) - along

        return jax.grad(combined)(x)


def _solved(problem: Problem, x: PyTree, y: PyTree, t: Scalar, at: Round, right: Vector) -> Vector:
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
    layout = lower_level.layout_of(problem, x, y)
    if layout.equal.any():
        whose = "Y (a simplex, for example)" if (layout.equal & layout.face).any() else "the lower level"
        raise InputError(
            f"Barrier: {whose} has equality constraints. A set with equalities has no interior, so no logarithmic "
            "barrier. Eliminate them, or use hx.SALVF(), hx.GAM() or hx.BLOCC()."
        )


class Pair(NamedTuple):
    """The two inner problems' solutions: th of the envelope, y of the penalised problem (its multipliers over c)."""

    envelope: LowerSolution
    penalised: LowerSolution


class Moreau(Smoothed):
    r"""Penalty method on the gap G - v_g of the Moreau envelope. Whatever is None is estimated from the problem.

        v_g(x, y) = min {G(x, th) + ||th - y||^2/(2 g) : th in Y, H(x, th) <= 0}      (minimiser th, multiplier m)
        phi_c(x)  = min {F(x, y) + c (G(x, y) - v_g(x, y)) : y in Y, H(x, y) <= 0}    (multiplier nu)

    One step, with y settled at the minimiser of phi_c:

        d = grad_x F + c (grad_x G(x, y) - grad_x G(x, th) - J_x H(x, th)' m) + J_x H(x, y)' nu
        x <- Proj_X(x - eta d)

    Args:
        c: weight of the gap in the first line search, c_k = c (k+1)^p; None: 100 times (curvature of F) / sqrt(L_G
            mu_G), both in y at the start.
        p: exponent of its growth; x and y are off by O(1/c_k).
        c_last: the largest weight; None: 1/sqrt(tolerance of the solver) in the unit of c, where the O(1/c) of the
            penalty and the solver's error, which enters d multiplied by c, are of one size.
        g: parameter of the envelope; None: 10/mu_G, or 1/(2 |mu_G|) where the smallest curvature mu_G of G in y at the
            start is negative. Larger ones let y settle faster.
        lower: solver of the two inner problems, `Exact()`.
        batch_zeta: samples of zeta per step; y belongs to the batch, as in BLOCC.
        eta, batch_xi, smoothness: as in `GAM`.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> sol = hx.solve(problem, 0.5, 0.5, hx.Moreau(), max_steps=30)
        >>> round(float(sol.x), 2)
        0.91

    References:
        Gao, Ye, Yin, Zeng, Zhang: Moreau envelope based difference-of-weakly-convex reformulation and algorithm for
            bilevel programs, arXiv:2306.16761, 2023.
        Liu, Liu, Yao, Zeng, Zhang: Moreau envelope for nonconvex bi-level optimization: a single-loop and
            Hessian-free solution strategy, ICML 2024.
        docs/methods/moreau.md (cost and when to use it)
    """

    c: Number = setting(POSITIVE)
    p: Number = setting(NOT_NEGATIVE, 1.0)
    c_last: Number = setting(POSITIVE)
    g: Number = setting(POSITIVE)
    lower: AbstractLowerSolver = setting(instance_of(AbstractLowerSolver, "hx.Exact()"), Exact(tol=1e-10))

    solves: ClassVar[int] = 2
    sees_zeta: ClassVar[bool] = True
    advice: ClassVar[Advice] = eta_advice("Moreau", "more steps, a larger c or a larger p bring it closer")

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Round, key: PRNGKeyArray) -> Prepared:
        """c and g from the curvatures of F and G in y."""
        dtype = dtype_of(x, y)
        y = sets.project(problem.y_set, y)
        unit, bottom, top, weakest = gap_unit(problem, problem, x, y, at)
        c = given(self.c, MUCH**2 * unit, dtype)
        c_last = jnp.maximum(c, unit / jnp.sqrt(self._tolerance(dtype)))
        g = jnp.where(bottom < -NEGLIGIBLE * top, 0.5, MUCH) / weakest
        method = dataclasses.replace(self, lower=as_arrays(self.lower, dtype))
        method = with_defaults(method, dtype, c=c, c_last=c_last, p=self.p, g=g)
        first = blank(problem, x, y)
        return Prepared(method, Pair(first, first), self.lower.doubts(problem, x, y, at.xi))

    def _tolerance(self, dtype: jnp.dtype) -> Scalar:
        """Of the inner solver, as far as it is known."""
        return reachable(getattr(self.lower, "tol", 0.0), dtype)

    def weight(self, at: Round) -> Scalar:
        """c_k."""
        return jnp.minimum(self.c * (1 + at.number.astype(self.c.dtype)) ** self.p, self.c_last)

    def look(self, problem: Problem, x: PyTree, inner: PyTree, at: Round) -> Look:
        """phi_c at x: th and y in turns until y settles."""
        c = self.weight(at)
        found = self._settled(problem, x, inner, c, at)
        value = self._value(problem, x, found, c, at)
        y, lower = found.penalised.y, problem.lower(x, found.penalised.y, at.xi)
        terms = jnp.abs(problem.upper(x, y, at.zeta)) + 2 * c * (jnp.abs(lower) + self._push(problem, x, y, at))
        return Look(
            value=value,
            noise=10 * jnp.finfo(value.dtype).eps * terms,
            y=y,
            multipliers=found.envelope.multipliers,
            inner=found,
            lower=lower,
            distance=trees.norm(trees.sub(y, found.envelope.y)),
            residual=jnp.maximum(found.envelope.residual, found.penalised.residual),
            status=jnp.maximum(found.envelope.status, found.penalised.status),
        )

    def slope(self, problem: Problem, x: PyTree, look: Look, at: Round) -> PyTree:
        """The gradient of phi_c, by the envelope theorem: both solutions are held fixed."""
        return jax.grad(lambda v: self._value(problem, v, look.inner, self.weight(at), at))(x)

    def _value(self, problem: Problem, x: PyTree, found: Pair, c: Scalar, at: Round) -> Scalar:
        """F + c (G - v_g) with both Lagrangians, so that what is left of violations counts to first order."""
        y, th = found.penalised.y, found.envelope.y
        pull = trees.norm_squared(trees.sub(th, y)) / (2 * self.g)
        envelope = problem.lower(x, th, at.xi) + trees.vdot(found.envelope.multipliers, problem.rows(x, th)) + pull
        held = trees.vdot(found.penalised.multipliers, problem.rows(x, y))
        return problem.upper(x, y, at.zeta) + c * (problem.lower(x, y, at.xi) + held - envelope)

    def _push(self, problem: Problem, x: PyTree, y: PyTree, at: Round) -> Scalar:
        """A typical difference of G: its slope times the size of y."""
        return trees.norm(jax.grad(problem.lower, 1)(x, y, at.xi)) * or_one(trees.norm(y))

    def _settled(self, problem: Problem, x: PyTree, start: Pair, c: Scalar, at: Round) -> Pair:
        """Rounds of (th, y) from the last pair."""
        tol = MUCH * self._tolerance(dtype_of(x, start.penalised.y))

        def solved(pair: Pair, is_envelope: Bool[Array, ""]) -> tuple[Pair, None]:
            """One of the two problems, written as one so that the solver compiles once."""
            y, th = pair.penalised.y, pair.envelope.y
            tied = is_envelope.astype(c.dtype)

            def objective(x: PyTree, v: PyTree, xi: PyTree) -> Scalar:
                near = tied * trees.norm_squared(trees.sub(v, y)) / (2 * self.g)
                along = trees.vdot(trees.sub(y, th), v) / self.g
                return problem.lower(x, v, xi) + near + (1 - tied) * (problem.upper(x, v, at.zeta) / c - along)

            begin = select(is_envelope, pair.envelope, pair.penalised)
            of = dataclasses.replace(problem, lower=objective)
            found = self.lower.solve(of, x, begin.y, at.xi, begin.multipliers)
            found = jax.tree.map(lambda new, old: new.astype(old.dtype), found, begin)
            return Pair(select(is_envelope, found, pair.envelope), select(is_envelope, pair.penalised, found)), None

        def body(carry: tuple[Pair, Scalar, Int[Array, ""]]) -> tuple[Pair, Scalar, Int[Array, ""]]:
            pair, _, count = carry
            new, _ = jax.lax.scan(solved, pair, jnp.array([True, False]))
            way = trees.norm(trees.sub(new.penalised.y, pair.penalised.y))
            return new, way / or_one(trees.norm(new.penalised.y)), count + 1

        def unsettled(carry: tuple[Pair, Scalar, Int[Array, ""]]) -> Bool[Array, ""]:
            return (carry[1] > tol) & (carry[2] < jnp.finfo(tol.dtype).nmant)

        first = start, jnp.full((), jnp.inf, tol.dtype), jnp.zeros((), jnp.int32)
        return jax.lax.while_loop(unsettled, body, first)[0]


# Gradients of the inner problems end at this part of the slope of F over r: d is then off by as much.
INNER_TOL = LITTLE * NEGLIGIBLE


class Inner(NamedTuple):
    """z, y, and whether the last solves of both arrived."""

    z: PyTree
    y: PyTree
    residual: Scalar


class FirstOrderPenalty(Smoothed):
    r"""Penalty method of first order: squared constraints inside a penalised value gap.

        min over x in X, y in Y of max over z in Y of  F(x, y) + r_k (G_m(x, y) - G_m(x, z)),
        G_m = G + m_k (||[H]_+||^2 + ||e||^2),     r_k = r/eps_k,   m_k = m/eps_k^2

    One step, with z the minimiser of G_m(x, .) and y that of F(x, .)/r_k + G_m(x, .) over Y:

        d = grad_x F(x, y) + r_k (grad_x G_m(x, y) - grad_x G_m(x, z)),     x <- Proj_X(x - eta d)

    Args:
        r: r_k = r / eps_k; None: (curvature of F) / sqrt(L_G mu_G), both in y at the start.
        m: m_k = m / eps_k^2, for rows divided by `scales`; None: 0.01 L_G.
        eps: eps_k of the first line search.
        tau: factor of eps_k from one line search to the next, in (0, 1).
        eps_last: the smallest eps_k; x and y are off by O(eps_last), and constraints are violated by O(eps_last^2).
            None: 1e-3, or the fourth root of the rounding unit if that is more (0.02 in single precision).
        inner_steps: accelerated gradient steps per inner problem at most.
        scales: divisors of the constraints; None: the norms of their gradients in y at the start.
        batch_zeta: samples of zeta per step; y belongs to the batch, as in BLOCC.
        eta, batch_xi, smoothness: as in `GAM`.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> sol = hx.solve(problem, 0.5, 0.5, hx.FirstOrderPenalty(eps_last=1e-2), max_steps=30)
        >>> round(float(sol.x), 1)
        0.9

    References:
        Lu, Mei: First-order penalty methods for bilevel optimization, SIAM Journal on Optimization 34, 2024.
        docs/methods/first-order-penalty.md (cost and when to use it)
    """

    r: Number = setting(POSITIVE)
    m: Number = setting(POSITIVE)
    eps: Number = setting(POSITIVE_GIVEN, 0.1)
    tau: Number = setting(SHARE, 0.5)
    eps_last: Number = setting(POSITIVE)
    inner_steps: int = setting(COUNT_GIVEN, 20_000, static=True)
    scales: PyTree = setting(SCALES)

    solves: ClassVar[int] = 2
    sees_zeta: ClassVar[bool] = True
    advice: ClassVar[Advice] = eta_advice("FirstOrderPenalty", "a smaller eps_last brings it closer")

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Round, key: PRNGKeyArray) -> Prepared:
        """r, m and the scales of the rows from the norms at (x0, y0)."""
        dtype = dtype_of(x, y)
        y = sets.project(problem.y_set, y)
        scales = as_arrays(self.scales or constraint_scales(problem, x, y, jax.random.fold_in(key, 1)), dtype)
        unit, _, top, _ = gap_unit(problem, scaled(problem, scales), x, y, at)
        numbers = {"r": unit, "m": 1 / MUCH**2 * top, "eps": self.eps, "tau": self.tau}
        last = jnp.maximum(NEGLIGIBLE, jnp.finfo(dtype).eps ** 0.25)
        method = with_defaults(dataclasses.replace(self, scales=scales), dtype, **numbers, eps_last=last)
        return Prepared(method, Inner(y, y, jnp.zeros((), dtype)), {})

    def weights(self, at: Round) -> tuple[Scalar, Scalar]:
        """r_k and m_k."""
        eps = jnp.maximum(self.eps * self.tau ** at.number.astype(self.eps.dtype), self.eps_last)
        return self.r / eps, self.m / eps**2

    def look(self, problem: Problem, x: PyTree, inner: PyTree, at: Round) -> Look:
        """phi_r at x: z, then y, each from where it was."""
        problem = scaled(problem, self.scales)
        r, m = self.weights(at)
        found = self._solved(problem, x, inner, r, m, at)
        value, upper = _value(problem, x, found, r, m, at)
        lower = problem.lower(x, found.y, at.xi)
        push = jax.tree.map(lambda h: 2 * m * h, excess(problem.rows(x, found.z)))
        user = jax.tree.map(jnp.divide, push, Rows(self.scales.inequalities, self.scales.equalities))
        # The inner minima are reached up to the square of what is left of their gradients.
        steep = trees.norm(jax.grad(problem.upper, 1)(x, found.y, at.zeta)) * or_one(trees.norm(found.y))
        rough = 10 * jnp.finfo(value.dtype).eps * (jnp.abs(upper) + steep + 2 * r * jnp.abs(lower))
        return Look(
            value=value,
            noise=rough + INNER_TOL**2 * steep * found.residual,
            y=found.y,
            multipliers=user,
            inner=found,
            lower=lower,
            distance=trees.norm(trees.sub(found.y, found.z)),
            residual=found.residual,
            status=jnp.where(found.residual <= 1, SOLVED, INACCURATE).astype(jnp.int32),
        )

    def slope(self, problem: Problem, x: PyTree, look: Look, at: Round) -> PyTree:
        """The gradient of phi_r, by the envelope theorem: both minimisers are held fixed."""
        of, (r, m) = scaled(problem, self.scales), self.weights(at)
        return jax.grad(lambda v: _value(of, v, look.inner, r, m, at)[0])(x)

    def _solved(self, problem: Problem, x: PyTree, start: Inner, r: Scalar, m: Scalar, at: Round) -> Inner:
        """Both inner problems; written as one, so that the loop compiles once."""
        first, tree = jax.flatten_util.ravel_pytree(start.y)
        slope = trees.norm(jax.grad(problem.upper, 1)(x, start.y, at.zeta))
        enough = INNER_TOL * or_one(slope) / r

        def project(v: Vector) -> Vector:
            return jax.flatten_util.ravel_pytree(sets.project(problem.y_set, tree(v)))[0]

        def visit(_: None, which: tuple[Bool[Array, ""], Vector]) -> tuple[None, tuple[Vector, Scalar]]:
            is_y, begin = which

            def function(v: Vector) -> Scalar:
                y = tree(v)
                return is_y.astype(r.dtype) * problem.upper(x, y, at.zeta) / r + _penalised(problem, x, y, m, at.xi)

            # The first L is that of one violated row, and of G; it is doubled where that is too little.
            end = accelerated(function, project, begin, SEVERAL * m, enough, self.inner_steps)
            return None, (end.v, end.mapped)

        begins = jnp.stack([jax.flatten_util.ravel_pytree(start.z)[0], first])
        _, (ends, mapped) = jax.lax.scan(visit, None, (jnp.array([False, True]), begins))
        return Inner(tree(ends[0]), tree(ends[1]), jnp.max(mapped) / enough)


def _penalised(problem: Problem, x: PyTree, y: PyTree, m: Scalar, xi: PyTree) -> Scalar:
    """G_m."""
    return problem.lower(x, y, xi) + m * trees.norm_squared(excess(problem.rows(x, y)))


def _value(problem: Problem, x: PyTree, at_x: Inner, r: Scalar, m: Scalar, at: Round) -> tuple[Scalar, Scalar]:
    """F(x, y) + r (G_m(x, y) - G_m(x, z)), and F(x, y)."""
    upper = problem.upper(x, at_x.y, at.zeta)
    gap = _penalised(problem, x, at_x.y, m, at.xi) - _penalised(problem, x, at_x.z, m, at.xi)
    return upper + r * gap, upper
