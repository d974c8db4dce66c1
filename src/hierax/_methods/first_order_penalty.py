r"""First-order penalty method (Lu and Mei, SIAM J. Optim. 2024): the lower level as a penalised minimax problem.

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

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.settings import COUNT_GIVEN, POSITIVE, POSITIVE_GIVEN, check_settings, in_interval
from hierax._base.trees import Number, dtype_of, given, or_one
from hierax._math import spectrum as estimate
from hierax._math.convexity import lower_curvatures
from hierax._math.lagrangian import blockwise
from hierax._math.lower_level import INACCURATE, SOLVED, Vector
from hierax._methods import common
from hierax._methods.augmented import accelerated
from hierax._methods.common import as_arrays
from hierax._methods.smoothed import Look, Prepared, Round, Samples, Smoothed, eta_advice
from hierax._problem import sets
from hierax._problem.problem import Problem, Rows, scaled
from hierax._run.method import Advice

M_FACTOR = 1e-2  # m eps^2 in units of L_G
LAST_EPS = 1e-3  # eps_last, if the precision allows: rounding enters d multiplied by r m, which grows like eps^-3
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

    r: Number = None
    m: Number = None
    eps: Number = 0.1
    tau: Number = 0.5
    eps_last: Number = None
    inner_steps: int = eqx.field(static=True, default=20_000)
    scales: PyTree = None

    solves: ClassVar[int] = 2
    sees_zeta: ClassVar[bool] = True
    advice: ClassVar[Advice] = eta_advice("FirstOrderPenalty", "a smaller eps_last brings it closer")

    def __post_init__(self) -> None:
        """Refuse settings that no problem could make right."""
        super().__post_init__()
        rules = {"r": POSITIVE, "m": POSITIVE, "eps": POSITIVE_GIVEN, "eps_last": POSITIVE}
        inside = in_interval(lambda share: 0 < share < 1, "(0, 1)")
        check_settings(self, rules | {"tau": inside, "inner_steps": COUNT_GIVEN, "scales": common.SCALES})

    def prepared(self, problem: Problem, x: PyTree, y: PyTree, at: Samples, key: PRNGKeyArray) -> Prepared:
        """r, m and the scales of the rows from the norms at (x0, y0)."""
        dtype = dtype_of(x, y)
        y = sets.project(problem.y_set, y)
        scales = self.scales
        if scales is None:
            scales = estimate.constraint_scales(problem, x, y, jax.random.fold_in(key, 1))
        scales = as_arrays(scales, dtype)
        rescaled = scaled(problem, scales)
        seen = estimate.curvature(rescaled, x, y, common.no_multipliers(problem, x, y), at.zeta, at.xi)
        bottom, top = lower_curvatures(problem, x, y, at.xi)
        top = or_one(jnp.abs(top))
        mean = jnp.sqrt(top * jnp.maximum(jnp.abs(bottom), common.NEGLIGIBLE * top))
        method = dataclasses.replace(
            self,
            r=given(self.r, or_one(common.upper_curvature(seen)) / mean, dtype),
            m=given(self.m, M_FACTOR * top, dtype),
            scales=scales,
            eps=jnp.asarray(self.eps, dtype),
            tau=jnp.asarray(self.tau, dtype),
            eps_last=given(self.eps_last, jnp.maximum(LAST_EPS, jnp.finfo(dtype).eps ** 0.25), dtype),
        )
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
