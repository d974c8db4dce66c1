r"""Moreau (Gao, Ye, Yin, Zeng, Zhang 2023; Liu, Liu, Yao, Zeng, Zhang, ICML 2024): penalty of a Moreau-envelope gap.

    v_g(x, y) = min over th in Y, H(x, th) <= 0 of  G(x, th) + ||th - y||^2 / (2 g)          (multiplier m)
    phi_c(x)  = min over y in Y,  H(x, y) <= 0  of  F(x, y) + c (G(x, y) - v_g(x, y))        (multiplier nu)

G - v_g >= 0 for feasible y, and it is zero exactly at the lower level's solutions (where G is not convex: at points
that its proximal map keeps). v_g is smooth: its gradients are G_x(x, th) + J_x H(x, th)' m and (y - th) / g. Hence

    y <- argmin over y of F(x, y)/c + G(x, y) - <(y - th)/g, y>,  th the minimiser of v_g(x, y),    until y settles
    d  = grad_x F + c (G_x(x, y) - G_x(x, th) - J_x H(x, th)' m) + J_x H(x, y)' nu,      x <- Proj_X(x - eta d)

The first line is the step of Gao et al., which linearises -v_g, taken in y alone; x then follows the gradient of phi_c.
c_k = min(c (k+1)^p, c_last) grows from line search to line search; x and y are off by O(1/c_k).
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.settings import NOT_NEGATIVE, POSITIVE, check_settings, instance_of
from hierax._base.trees import Number, dtype_of, given, or_one, select
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.exact import Exact
from hierax._math import spectrum as estimate
from hierax._math.convexity import lower_curvatures
from hierax._math.lower_level import LowerSolution, reachable
from hierax._methods import common
from hierax._methods.common import as_arrays
from hierax._methods.smoothed import Look, Prepared, Round, Samples, Smoothed, blank, eta_advice
from hierax._problem import sets
from hierax._problem.problem import Problem
from hierax._run.method import Advice

G_FACTOR = 10.0  # g in units of 1 / mu_G: a round then brings y ten times closer to the minimiser
MAX_ROUNDS = 30  # of (th, y)
SETTLED = 10.0  # times the solver's tolerance: rounds end where y moves by less


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

    c: Number = None
    p: Number = 1.0
    c_last: Number = None
    g: Number = None
    lower: AbstractLowerSolver = Exact(tol=1e-10)

    solves: ClassVar[int] = 2
    sees_zeta: ClassVar[bool] = True
    advice: ClassVar[Advice] = eta_advice("Moreau", "more steps, a larger c or a larger p bring it closer")

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        super().__post_init__()
        check_settings(self, {"c": POSITIVE, "p": NOT_NEGATIVE, "c_last": POSITIVE, "g": POSITIVE})
        check_settings(self, {"lower": instance_of(AbstractLowerSolver, "hx.Exact()")})

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Samples, key: PRNGKeyArray) -> Prepared:
        """c and g from the curvatures of F and G in y."""
        dtype = dtype_of(x, y)
        y = sets.project(problem.y_set, y)
        seen = estimate.curvature(problem, x, y, common.no_multipliers(problem, x, y), at.zeta, at.xi)
        bottom, top = lower_curvatures(problem, x, y, at.xi)
        top = or_one(jnp.abs(top))
        weakest = jnp.maximum(jnp.abs(bottom), common.NEGLIGIBLE * top)
        unit = or_one(common.upper_curvature(seen)) / jnp.sqrt(top * weakest)
        c = given(self.c, common.GAP_WEIGHT * unit, dtype)
        method = dataclasses.replace(
            self,
            c=c,
            c_last=given(self.c_last, jnp.maximum(c, unit / jnp.sqrt(self._tolerance(dtype))), dtype),
            p=jnp.asarray(self.p, dtype),
            g=given(self.g, jnp.where(bottom < -common.NEGLIGIBLE * top, 0.5, G_FACTOR) / weakest, dtype),
            lower=as_arrays(self.lower, dtype),
        )
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
        tol = SETTLED * self._tolerance(dtype_of(x, start.penalised.y))

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
            return (carry[1] > tol) & (carry[2] < MAX_ROUNDS)

        first = start, jnp.full((), jnp.inf, tol.dtype), jnp.zeros((), jnp.int32)
        return jax.lax.while_loop(unsettled, body, first)[0]
