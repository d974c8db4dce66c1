"""The penalty function Psi of the single-level problem, its gradient, the outer multiplier and stationarity.

    Psi(x, y, z) = F(x, y) + c1 (G(x, y) - ell(x, z, w, lam)) + outer(H(x, y))                          eq. 2.9

with (w, lam) the inner solver's output, held fixed (envelope theorem). Outer term, per inequality H_i of the lower
level and per upper constraint:

    quadratic (the paper's)    c2/2 [H_i]_+^2                          equality: c2/2 e_i^2
    multiplier                 1/(2 c2) ([nu_i + c2 H_i]_+^2 - nu_i^2)  equality: nu_i e_i + c2/2 e_i^2

The quadratic term is the multiplier term at nu = 0, so one formula serves both. The paper's z-gradient has the wrong
sign: E contains -gamma2/2 ||lam - z||^2, hence d_z (G - E) = gamma2 (z - lam).

Augmented Lagrangian of the lower level and the saddle function of its envelope.

    A(x, y, z)           = 1/(2 gamma1) sum_i ([gamma1 z_i + H_i(x, y)]_+^2 - gamma1^2 z_i^2)       inequalities
    A_e(x, y, z)         = sum_i (e_i z_i + e_i^2 / (2 gamma1))                                      equalities
    L(x, y, z)           = G(x, y) + A(x, y, z)                                                      eq. 2.1
    ell(x, z, w, lam)    = L(x, w, lam) - gamma2/2 ||lam - z||^2                                     eq. 2.5b

The main text of the paper prints A without -gamma1^2 z^2; its own gradient and concavity lemma need the term. All
gradients are given by formula and use vector-Jacobian products of the constraints only; the tests compare them with
automatic differentiation of the values.

gamma1 = inf is the plain Lagrangian G + <z, H>, the limit that the paper's appendix compares with. It is another form
and no other number, so it is decided while a program is traced: gamma1 is then `_base.trees.INFINITE`.

The envelope E(x, z) with lam eliminated: a plain minimisation over w.

For fixed w the maximum over lam of ell is a concave, piecewise quadratic problem in one variable per constraint. Its
solution and value, with 1/g' = 1/gamma1 + 1/gamma2 and z >= 0, gamma2 > 0, are

    lam*   = max(z + H(x, w)/gamma2, gamma2 z/(gamma1 + gamma2))          (equalities: z + e/gamma2)
    E(x,z) = min over w in Y of G(x, w) + A_{g'}(x, w, z)

so the envelope of an augmented Lagrangian is an augmented Lagrangian with a smaller penalty parameter.

The regularised gap function of BiC-GAFFA (Yao, Yin, Zeng, Zhang, NeurIPS 2024), and its gradients.

    gap(x, y, z) = max over lam >= 0 of G(x, y) + <lam, H(x, y)> - ||lam - z||^2 / (2 g2)
                 - min over th in Y  of G(x, th) + <z, H(x, th)> + ||th - y||^2 / (2 g1)

It is >= 0 for z >= 0, and zero exactly where y solves the lower level at x with the multiplier z. The maximiser is
known, lam = [z + g2 H(x, y)]_+; with th held at the minimiser (envelope theorem)

    d_x gap = grad_x G(x, y) + J_x H(x, y)' lam - grad_x G(x, th) - J_x H(x, th)' z
    d_y gap = grad_y G(x, y) + J_y H(x, y)' lam - (y - th)/g1
    d_z gap = (lam - z)/g2 - H(x, th).

H stands for inequalities and equalities; for the latter lam = z + g2 e, free in sign. The gradients are given by
formula and use vector-Jacobian products of the constraints only; the tests compare them with automatic differentiation.

The proximal Lagrangian value function of LV-HBA (Yao, Yu, Zeng, Zhang, ICLR 2024), and its gradients.

    s(x, y, z, th, lam) = G(x, th) + lam'H(x, th) + ||th - y||^2 / (2 g1) - ||lam - z||^2 / (2 g2)
    v(x, y, z)          = min over th in Y of max over lam in Z of s(x, y, z, th, lam)

With (th, lam) held at the saddle point the gradients of the single-level objective F/c + G - v are (envelope theorem)

    d_x = grad_x F/c + grad_x G(x, y) - grad_x G(x, th) - J_x H(x, th)' lam
    d_y = grad_y F/c + grad_y G(x, y) - (y - th)/g1
    d_z = (z - lam)/g2.

H stands for inequalities and equalities; the latter's multipliers are free in sign. Every gradient is given by formula
and uses vector-Jacobian products of the constraints only; the tests compare them with automatic differentiation.
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from hierax._base import trees
from hierax._base.trees import INFINITE, Infinite, move
from hierax._problem import sets
from hierax._problem.problem import Multipliers, Problem, Rows

R = TypeVar("R", Rows, Multipliers)


def is_plain(gamma1: Scalar | float) -> bool:
    """Whether the plain Lagrangian is meant."""
    return isinstance(gamma1, Infinite)


def blockwise(inequality: Callable[..., PyTree], equality: Callable[..., PyTree], *rows: R) -> R:
    """Apply one function to every array of inequalities (also the upper level's) and another to those of equalities."""
    functions = (inequality, equality, inequality)
    blocks = zip(functions, zip(*rows, strict=True), strict=False)
    return type(rows[0])(*(jax.tree.map(function, *block) for function, block in blocks))


def nonnegative(rows: Rows, top: Rows | Scalar | None = None) -> Rows:
    """Project multipliers on their cone: [.]_+ for inequalities, nothing for equalities; with `top`, on its part below.

    The part is a box, the paper's Z: [0, top] for inequalities, [-top, top] for equalities; `top` is one number for
    each row, or one for all of them.
    """
    if top is None:
        return blockwise(lambda a: jnp.maximum(a, 0.0), lambda a: a, rows)
    tops: Rows = top if isinstance(top, Rows) else jax.tree.map(lambda _: top, rows)
    return blockwise(lambda a, t: jnp.clip(a, 0.0, t), lambda a, t: jnp.clip(a, -t, t), rows, tops)


def augmented_term(values: Rows, z: Rows, gamma1: Scalar | float) -> Scalar:
    """A (and A_e) as a function of the constraints' values."""
    if is_plain(gamma1):
        return trees.total(jax.tree.map(jnp.multiply, values, z))
    return outer_term(values, z, 1 / gamma1)


def shifted_multiplier(values: Rows, lam: Rows, gamma1: Scalar | float) -> Rows:
    """mu = [gamma1 lam + H]_+ / gamma1 (equalities: lam + e/gamma1): the derivative of A with respect to H."""
    return lam if is_plain(gamma1) else push(values, lam, 1 / gamma1)


def augmented_lagrangian(problem: Problem, x: PyTree, y: PyTree, z: Rows, gamma1: Scalar | float, xi: PyTree) -> Scalar:
    """L(x, y, z; xi), eq. 2.1."""
    return problem.lower(x, y, xi) + augmented_term(problem.rows(x, y), z, gamma1)


def saddle_value(
    problem: Problem, x: PyTree, z: Rows, w: PyTree, lam: Rows, gamma1: Scalar | float, gamma2: Scalar, xi: PyTree
) -> Scalar:
    """ell(x, z, w, lam; xi), eq. 2.5b."""
    away = trees.norm_squared(trees.sub(lam, z))
    return augmented_lagrangian(problem, x, w, lam, gamma1, xi) - 0.5 * gamma2 * away


class Inner(NamedTuple):
    """A point of the lower level that an inner solver gives, or derivatives: w (or th) minimises, lam maximises."""

    w: PyTree
    lam: Rows


def saddle_gradient(
    problem: Problem, x: PyTree, z: Rows, w: PyTree, lam: Rows, gamma1: Scalar | float, gamma2: Scalar, xi: PyTree
) -> Inner:
    """d_w ell = grad_y g + J_y H^T mu and d_lam ell = max(-gamma1 lam, H) - gamma2 (lam - z)."""
    values, pull_back = jax.vjp(lambda v: problem.rows(x, v), w)
    (along,) = pull_back(shifted_multiplier(values, lam, gamma1))
    d_w = trees.add(jax.grad(problem.lower, 1)(x, w, xi), along)

    def of_inequality(h: Array, m: Array, c: Array) -> Array:
        return (h if is_plain(gamma1) else jnp.maximum(-gamma1 * m, h)) - gamma2 * (m - c)

    return Inner(d_w, blockwise(of_inequality, lambda e, m, c: e - gamma2 * (m - c), values, lam, z))


def saddle_gradient_xw(
    problem: Problem, x: PyTree, w: PyTree, lam: Rows, gamma1: Scalar | float, xi: PyTree
) -> tuple[PyTree, PyTree]:
    """d_x ell = grad_x g + J_x H^T mu and d_w ell at (x, w), from one reverse pass."""
    values, pull_back = jax.vjp(problem.rows, x, w)
    along = pull_back(shifted_multiplier(values, lam, gamma1))
    return trees.add(jax.grad(problem.lower, (0, 1))(x, w, xi), along)


def joint_gamma(gamma1: Scalar | float, gamma2: Scalar | float) -> Scalar:
    """g' with 1/g' = 1/gamma1 + 1/gamma2; gamma2 = inf, as a form too, makes of the envelope the dual function D."""
    if is_plain(gamma1) or is_plain(gamma2):
        return gamma2 if is_plain(gamma1) else gamma1  # type: ignore[return-value]
    return gamma1 * gamma2 / (gamma1 + gamma2)  # type: ignore[return-value]


def best_multiplier(values: Rows, z: Rows, gamma1: Scalar | float, gamma2: Scalar | float) -> Rows:
    """The lam that maximises ell for the given constraint values.

    For gamma2 = inf it is z. The two branches of the maximum meet where gamma1 lam + H = 0. An equality's term is
    linear in lam beyond the proximal one, so it has a single branch, lam = z + e/gamma2.
    """
    if is_plain(gamma2):
        return z
    return blockwise(
        lambda h, m: jnp.maximum(m + h / gamma2, gamma2 * m / (gamma1 + gamma2)), lambda e, m: m + e / gamma2, values, z
    )


def eliminated_value(
    problem: Problem, x: PyTree, z: Rows, w: PyTree, gamma1: Scalar | float, gamma2: Scalar | float, xi: PyTree
) -> Scalar:
    """max over lam of ell(x, z, w, lam) = G(x, w) + A_{g'}(x, w, z)."""
    return augmented_lagrangian(problem, x, w, z, joint_gamma(gamma1, gamma2), xi)


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


class Iterate(NamedTuple):
    """The point of a method: x, y and the multiplier z (None where the method has none).

    Attributes:
        x: the upper variable.
        y: the lower variable.
        z: the multiplier of the lower level's constraints.

    Examples:
        >>> import hierax as hx
        >>> hx.extend.Iterate(0.5, 0.2)
        Iterate(x=0.5, y=0.2, z=None)
    """

    x: PyTree
    y: PyTree
    z: PyTree = None


class PsiGradient(NamedTuple):
    """Gradient of Psi, of F/c + G - v or of F/c + gap with respect to x, y, z, and the values of F and G met."""

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


def outer_term(values: R, nu: R, c2: Scalar | float) -> Scalar:
    """The outer penalty term as a function of the constraints' values."""

    def of_inequality(h: Array, m: Array) -> Array:
        return (jnp.maximum(m + c2 * h, 0.0) ** 2 - m**2) / (2 * c2)

    return trees.total(blockwise(of_inequality, lambda e, m: m * e + 0.5 * c2 * e**2, values, nu))


def push(values: R, nu: R, c2: Scalar | float) -> R:
    """Derivative of the outer term with respect to the constraints: [nu + c2 H]_+ (equality: nu + c2 e)."""
    return blockwise(lambda h, m: jnp.maximum(m + c2 * h, 0.0), lambda e, m: m + c2 * e, values, nu)


def updated_nu(values: R, nu: R, c2: Scalar, tau: Scalar) -> R:
    """nu <- [nu + tau c2 max(-nu/c2, H)]_+ (equality: nu + tau c2 e)."""
    return blockwise(
        lambda h, m: jnp.maximum(m + tau * jnp.maximum(-m, c2 * h), 0.0), lambda e, m: m + tau * c2 * e, values, nu
    )


def excess(values: Rows) -> Rows:
    """By how much the rows of the lower level are violated, with the sign of the equalities: [h]_+ and e."""
    return blockwise(lambda h: jnp.maximum(h, 0.0), lambda e: e, values)


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


def psi_value(problem: Problem, point: Point, inner: Inner, weights: Weights, zeta: PyTree, xi: PyTree) -> Scalar:
    """Psi(x, y, z; zeta, xi) for a given inner point, eq. 2.9."""
    x, y, z, nu = point
    gap = problem.lower(x, y, xi) - saddle_value(problem, x, z, *inner, weights.gamma1, weights.gamma2, xi)
    return problem.upper(x, y, zeta) + weights.c1 * gap + outer_term(all_constraints(problem, x, y), nu, weights.c2)


def psi_gradient(
    problem: Problem,
    point: Point,
    inner: Inner,
    weights: Weights,
    zeta: PyTree,
    xi: PyTree,
    control: Scalar | None = None,
) -> PsiGradient:
    """Gradient of Psi, eq. 2.10; both g-terms share the batch xi. Costs one gradient of f and two of g.

    With `control` the free control variate is subtracted from the y-gradient: c1 d_w ell(x, w; xi), which has
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
    if control is not None:
        d_y = move(d_y, c1, gradient_mapping(problem.y_set, inner.w, below_w, control))
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
    of_x = gradient_mapping(problem.x_set, point.x, gradient.x, step)
    of_y = gradient_mapping(problem.y_set, point.y, gradient.y, step)
    return trees.norm((of_x, of_y, jax.tree.map(lambda a, b: (a - b) / step, point.z, landed)))


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


# -- gap functions of single-loop methods -----------------------------------------------------------------------------


def inner_gradient(problem: Problem, at: Iterate, inner: Inner, g1: Scalar, g2: Scalar, xi: PyTree) -> Inner:
    """d_th s = grad_y G(x, th) + J_y H' lam + (th - y)/g1, to descend; d_lam s = H(x, th) - (lam - z)/g2, to ascend."""
    x, y, z = at
    plain = saddle_gradient(problem, x, z, *inner, INFINITE, 1 / g2, xi)
    return Inner(jax.tree.map(lambda a, b, c: a + (b - c) / g1, plain.w, inner.w, y), plain.lam)


def outer_gradient(
    problem: Problem,
    at: Iterate,
    inner: Inner,
    c: Scalar,
    g1: Scalar,
    g2: Scalar,
    zeta: PyTree,
    xi: PyTree,
    above: Rows | None = None,
) -> PsiGradient:
    """d_x, d_y, d_z of F/c + G - v; both G-terms share xi. With `above`, of F/c + G + <above, H(x, y)> - v."""
    x, y, z = at
    th, lam = inner

    def weighted(x: PyTree, y: PyTree) -> tuple[Scalar, tuple[Scalar, Scalar]]:
        upper, lower = problem.upper(x, y, zeta), problem.lower(x, y, xi)
        return upper / c + lower, (upper, lower)

    gradients, (upper, lower) = jax.grad(weighted, (0, 1), has_aux=True)(x, y)
    if above is not None:
        gradients = trees.add(gradients, jax.vjp(problem.rows, x, y)[1](above))
    below, _ = saddle_gradient_xw(problem, x, th, lam, INFINITE, xi)
    d_y = jax.tree.map(lambda a, b, d: a - (b - d) / g1, gradients[1], y, th)
    d_z = jax.tree.map(lambda a, b: (a - b) / g2, z, lam)
    return PsiGradient(trees.sub(gradients[0], below), d_y, d_z, upper, lower)


def gap_gradient(
    problem: Problem, at: Iterate, th: PyTree, c: Scalar, g1: Scalar, g2: Scalar, zeta: PyTree, xi: PyTree
) -> PsiGradient:
    """Gradient of F/c + gap; both G-terms share the batch xi. Costs one gradient of f and two of g."""
    lam = nonnegative(move(at.z, -g2, problem.rows(at.x, at.y)))
    d = outer_gradient(problem, at, Inner(th, at.z), c, g1, g2, zeta, xi, lam)
    return d._replace(z=jax.tree.map(lambda a, b, h: (a - b) / g2 - h, lam, at.z, problem.rows(at.x, th)))
