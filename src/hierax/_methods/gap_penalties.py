"""Moreau (Gao, Ye, Yin, Zeng, Zhang 2023; Liu, Liu, Yao, Zeng, Zhang, ICML 2024): penalty of a Moreau-envelope gap.

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
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.constants import MUCH, NEGLIGIBLE
from hierax._base.settings import COUNT_GIVEN, NOT_NEGATIVE, POSITIVE, POSITIVE_GIVEN, instance_of
from hierax._base.trees import Number, dtype_of, given, or_one, select
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math.lower_level import INACCURATE, SOLVED, LowerSolution, Vector, reachable
from hierax._math.psi import blockwise
from hierax._math.spectrum import constraint_scales
from hierax._methods.augmented import accelerated
from hierax._methods.common import SCALES, SHARE, as_arrays, setting, with_defaults
from hierax._methods.smoothed import Look, Prepared, Round, Samples, Smoothed, blank, eta_advice, gap_unit
from hierax._problem import sets
from hierax._problem.problem import Problem, Rows, scaled
from hierax._run.method import Advice


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

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Samples, key: PRNGKeyArray) -> Prepared:
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

    def weight(self, this: Round) -> Scalar:
        """c_k."""
        return jnp.minimum(self.c * (1 + this.number.astype(self.c.dtype)) ** self.p, self.c_last)

    def look(self, problem: Problem, x: PyTree, inner: PyTree, this: Round, at: Samples) -> Look:
        """phi_c at x: th and y in turns until y settles."""
        c = self.weight(this)
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

    def slope(self, problem: Problem, x: PyTree, look: Look, this: Round, at: Samples) -> PyTree:
        """The gradient of phi_c, by the envelope theorem: both solutions are held fixed."""
        return jax.grad(lambda v: self._value(problem, v, look.inner, self.weight(this), at))(x)

    def _value(self, problem: Problem, x: PyTree, found: Pair, c: Scalar, at: Samples) -> Scalar:
        """F + c (G - v_g) with both Lagrangians, so that what is left of violations counts to first order."""
        y, th = found.penalised.y, found.envelope.y
        pull = trees.norm_squared(trees.sub(th, y)) / (2 * self.g)
        envelope = problem.lower(x, th, at.xi) + trees.vdot(found.envelope.multipliers, problem.rows(x, th)) + pull
        held = trees.vdot(found.penalised.multipliers, problem.rows(x, y))
        return problem.upper(x, y, at.zeta) + c * (problem.lower(x, y, at.xi) + held - envelope)

    def _push(self, problem: Problem, x: PyTree, y: PyTree, at: Samples) -> Scalar:
        """A typical difference of G: its slope times the size of y."""
        return trees.norm(jax.grad(problem.lower, 1)(x, y, at.xi)) * or_one(trees.norm(y))

    def _settled(self, problem: Problem, x: PyTree, start: Pair, c: Scalar, at: Samples) -> Pair:
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


FIRST_L = 3.0  # L of the first inner step, in units of m: that of one violated row, and of G (doubled where it is more)
INNER_TOL = 1e-4  # gradients of the inner problems end at this part of the slope of F over r: d is then off by as much


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

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Samples, key: PRNGKeyArray) -> Prepared:
        """r, m and the scales of the rows from the norms at (x0, y0)."""
        dtype = dtype_of(x, y)
        y = sets.project(problem.y_set, y)
        scales = self.scales
        if scales is None:
            scales = constraint_scales(problem, x, y, jax.random.fold_in(key, 1))
        scales = as_arrays(scales, dtype)
        unit, _, top, _ = gap_unit(problem, scaled(problem, scales), x, y, at)
        numbers = {"r": unit, "m": 1 / MUCH**2 * top, "eps": self.eps, "tau": self.tau}
        last = jnp.maximum(NEGLIGIBLE, jnp.finfo(dtype).eps ** 0.25)
        method = with_defaults(dataclasses.replace(self, scales=scales), dtype, **numbers, eps_last=last)
        return Prepared(method, Inner(y, y, jnp.zeros((), dtype)), {})

    def weights(self, this: Round) -> tuple[Scalar, Scalar]:
        """r_k and m_k."""
        eps = jnp.maximum(self.eps * self.tau ** this.number.astype(self.eps.dtype), self.eps_last)
        return self.r / eps, self.m / eps**2

    def look(self, problem: Problem, x: PyTree, inner: PyTree, this: Round, at: Samples) -> Look:
        """phi_r at x: z, then y, each from where it was."""
        problem = scaled(problem, self.scales)
        r, m = self.weights(this)
        found = self._solved(problem, x, inner, r, m, at)
        value, upper = _value(problem, x, found, r, m, at)
        lower = problem.lower(x, found.y, at.xi)
        push = jax.tree.map(lambda h: 2 * m * h, _excess(problem.rows(x, found.z)))
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

    def slope(self, problem: Problem, x: PyTree, look: Look, this: Round, at: Samples) -> PyTree:
        """The gradient of phi_r, by the envelope theorem: both minimisers are held fixed."""
        of, (r, m) = scaled(problem, self.scales), self.weights(this)
        return jax.grad(lambda v: _value(of, v, look.inner, r, m, at)[0])(x)

    def _solved(self, problem: Problem, x: PyTree, start: Inner, r: Scalar, m: Scalar, at: Samples) -> Inner:
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

            end = accelerated(function, project, begin, FIRST_L * m, enough, self.inner_steps)
            return None, (end.v, end.mapped)

        begins = jnp.stack([jax.flatten_util.ravel_pytree(start.z)[0], first])
        _, (ends, mapped) = jax.lax.scan(visit, None, (jnp.array([False, True]), begins))
        return Inner(tree(ends[0]), tree(ends[1]), jnp.max(mapped) / enough)


def _excess(rows: Rows) -> Rows:
    """[H]_+ and e."""
    return blockwise(lambda h: jnp.maximum(h, 0.0), lambda e: e, rows)


def _penalised(problem: Problem, x: PyTree, y: PyTree, m: Scalar, xi: PyTree) -> Scalar:
    """G_m."""
    return problem.lower(x, y, xi) + m * trees.norm_squared(_excess(problem.rows(x, y)))


def _value(problem: Problem, x: PyTree, at_x: Inner, r: Scalar, m: Scalar, at: Samples) -> tuple[Scalar, Scalar]:
    """F(x, y) + r (G_m(x, y) - G_m(x, z)), and F(x, y)."""
    upper = problem.upper(x, at_x.y, at.zeta)
    gap = _penalised(problem, x, at_x.y, m, at.xi) - _penalised(problem, x, at_x.z, m, at.xi)
    return upper + r * gap, upper
