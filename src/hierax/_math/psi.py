r"""The penalty function Psi of the single-level problem, its gradient, the outer multiplier and stationarity.

    Psi(x, y, z) = F(x, y) + c1 (G(x, y) - ell(x, z, w, lam)) + outer(H(x, y))                          eq. 11

with (w, lam) the inner solver's output, held fixed (envelope theorem). Outer term, per inequality H_i of the lower
level and per upper constraint:

    quadratic (the paper's)    c2/2 [H_i]_+^2                          equality: c2/2 e_i^2
    multiplier                 1/(2 c2) ([nu_i + c2 H_i]_+^2 - nu_i^2)  equality: nu_i e_i + c2/2 e_i^2

The quadratic term is the multiplier term at nu = 0, so one formula serves both. The paper's z-gradient has the wrong
sign: E contains -gamma2/2 ||lam - z||^2, hence d_z (G - E) = gamma2 (z - lam).
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PyTree, Scalar

from hierax._base import trees
from hierax._base.trees import move
from hierax._math.lagrangian import blockwise, nonnegative, saddle_gradient_xw
from hierax._problem import sets
from hierax._problem.problem import Multipliers, Problem, Rows


class Weights(NamedTuple):
    """The numbers in Psi."""

    c1: Scalar
    c2: Scalar
    gamma1: Scalar | float
    gamma2: Scalar


class Point(NamedTuple):
    """u = (x, y) together with the envelope's centre z and the outer multiplier nu."""

    x: PyTree
    y: PyTree
    z: Rows
    nu: Multipliers


class Inner(NamedTuple):
    """The inner solver's answer (w, lam)."""

    w: PyTree
    lam: Rows


class PsiGradient(NamedTuple):
    """Gradient of Psi with respect to x, y, z, and the values met on the way."""

    x: PyTree
    y: PyTree
    z: Rows
    upper: Scalar
    lower: Scalar


def all_constraints(problem: Problem, x: PyTree, y: PyTree) -> Multipliers:
    """Values of every constraint the outer level must respect.

        values = (h(x, y), e(x, y), H_up(x, y))

    Args:
        problem: the problem.
        x: the upper variable.
        y: the lower variable.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> hx.extend.all_constraints(problem, 2.0, 3.0)
        Multipliers(inequalities=1.0, equalities=None, upper=None)

    References:
        docs/methods/salvf.md
    """
    return Multipliers(*problem.rows(x, y), problem.upper_constraints(x, y))


def outer_term(values: Multipliers, nu: Multipliers, c2: Scalar) -> Scalar:
    """The outer penalty term as a function of the constraints' values."""
    return trees.total(
        blockwise(
            lambda h, m: (jnp.maximum(m + c2 * h, 0.0) ** 2 - m**2) / (2 * c2),
            lambda e, m: m * e + 0.5 * c2 * e**2,
            values,
            nu,
        )
    )


def push(values: Multipliers, nu: Multipliers, c2: Scalar) -> Multipliers:
    """Derivative of the outer term with respect to the constraints: [nu + c2 H]_+ (equality: nu + c2 e)."""
    return blockwise(lambda h, m: jnp.maximum(m + c2 * h, 0.0), lambda e, m: m + c2 * e, values, nu)


def updated_nu(values: Multipliers, nu: Multipliers, c2: Scalar, tau: Scalar) -> Multipliers:
    """nu <- [nu + tau c2 max(-nu/c2, H)]_+ (equality: nu + tau c2 e)."""
    return blockwise(
        lambda h, m: jnp.maximum(m + tau * jnp.maximum(-m, c2 * h), 0.0), lambda e, m: m + tau * c2 * e, values, nu
    )


def violation(values: Multipliers) -> Multipliers:
    """How much each constraint is violated.

        [h]_+ = max(h, 0),     |e|,     [H_up]_+

    Args:
        values: of the constraints, from `all_constraints`.

    Examples:
        >>> import hierax as hx
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> float(hx.extend.violation(hx.extend.all_constraints(problem, 2.0, 3.0)).inequalities)
        1.0

    References:
        docs/methods/salvf.md
    """
    return blockwise(lambda h: jnp.maximum(h, 0.0), jnp.abs, values)


def psi_gradient(
    problem: Problem,
    point: Point,
    inner: Inner,
    weights: Weights,
    zeta: PyTree,
    xi: PyTree,
    control_step: Scalar | None = None,
) -> PsiGradient:
    """Gradient of Psi, eq. 12; both g-terms share the batch xi. Costs one gradient of f and two of g.

    With `control_step` the free control variate is subtracted from the y-gradient: c1 d_w ell(x, w; xi), which has
    mean zero at the inner solution and the same noise as c1 grad_y g(x, y; xi). On the boundary of Y only its
    tangential part has mean zero, so it enters as the gradient mapping (w - Proj_Y(w - t d_w ell)) / t, t the step.
    """
    x, y, z, nu = point
    c1, c2, gamma1, gamma2 = weights

    def above(x: PyTree, y: PyTree) -> tuple[Scalar, tuple[Scalar, Scalar]]:
        upper, lower = problem.upper(x, y, zeta), problem.lower(x, y, xi)
        return upper + c1 * lower + outer_term(all_constraints(problem, x, y), nu, c2), (upper, lower)

    (d_x, d_y), (upper, lower) = jax.grad(above, (0, 1), has_aux=True)(x, y)
    below_x, below_w = saddle_gradient_xw(problem, x, inner.w, inner.lam, gamma1, xi)
    d_x = move(d_x, c1, below_x)
    if control_step is not None:
        d_y = move(d_y, c1, gradient_mapping(problem.y_set, inner.w, below_w, control_step))
    d_z = jax.tree.map(lambda a, b: c1 * gamma2 * (a - b), z, inner.lam)
    return PsiGradient(d_x, d_y, d_z, upper, lower)


def gradient_mapping(convex_set: PyTree, point: PyTree, gradient: PyTree, step: Scalar) -> PyTree:
    """How far a projected gradient step moves a point, over the length of the step.

        r(u) = (u - Proj(u - step gradient)) / step

    It is zero exactly at the points that are stationary over the set.

    Args:
        convex_set: a set, or a tree of sets.
        point: u.
        gradient: shaped like u.
        step: a number > 0.

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> hx.extend.gradient_mapping(hx.NonNegative(), jnp.array([1.0, 0.0]), jnp.array([2.0, 2.0]), 0.5)
        Array([2., 0.], dtype=float32)

    References:
        Beck: First-order methods in optimization, SIAM 2017, section 10.3.
        docs/methods/salvf.md (stationarity)
    """
    landed = sets.project(convex_set, move(point, step, gradient))
    return jax.tree.map(lambda a, b: (a - b) / step, point, landed)


def stationarity(
    problem: Problem, point: Point, gradient: PsiGradient, step: Scalar, top: Rows | None = None
) -> Scalar:
    """||u - Proj_U(u - step grad Psi(u))|| / step for u = (x, y, z); `step` is 1/L_Psi, whatever the optimiser's.

    `top` bounds z from above, where the run had such a bound.
    """
    landed = nonnegative(move(point.z, step, gradient.z), top)
    return trees.norm(
        (
            gradient_mapping(problem.x_set, point.x, gradient.x, step),
            gradient_mapping(problem.y_set, point.y, gradient.y, step),
            jax.tree.map(lambda a, b: (a - b) / step, point.z, landed),
        )
    )


def psi_stationarity(
    problem: Problem,
    point: Point,
    w: PyTree,
    lam: Rows,
    *,
    c1: Scalar | float,
    c2: Scalar | float,
    gamma1: Scalar | float,
    gamma2: Scalar | float,
    step: Scalar | float,
) -> Scalar:
    """How far a point of a run of SALVF is from stationary for Psi, without noise, for a given inner solution.

        ||u - Proj(u - step grad Psi(u))|| / step,     u = (x, y, z)

    The problem is taken in its own units: `SALVF.scales` are not applied.

    Args:
        problem: the problem; its sources are not asked.
        point: `state.point` of a run: x, y, z and nu.
        w: the inner solution w at (x, z), for example the exact one.
        lam: its multipliers.
        c1: the weight of the value function's gap.
        c2: the weight of the outer term.
        gamma1: of the augmented Lagrangian.
        gamma2: of the proximal term around z.
        step: 1/L_Psi, whatever step the method makes.

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> from hierax.problems import toy, toy_inner_solution
        >>> problem = toy(0.0).problem
        >>> sol = hx.solve(problem, 1.4, 0.5, hx.SALVF(), max_steps=5)
        >>> point = sol.state.run.state.point
        >>> w, lam = toy_inner_solution(point.x, point.z.inequalities, 1.0, 1.0)
        >>> found = hx.extend.psi_stationarity(
        ...     problem, point, w, hx.extend.Rows(lam, None), c1=5.0, c2=100.0, gamma1=1.0, gamma2=1.0, step=1e-2
        ... )
        >>> bool(found > 0)
        True

    References:
        docs/methods/salvf.md (stationarity)
    """
    weights = Weights(*(jnp.asarray(number) for number in (c1, c2, gamma1, gamma2)))
    gradient = psi_gradient(problem, point, Inner(w, lam), weights, None, None)
    return stationarity(problem, point, gradient, jnp.asarray(step))
