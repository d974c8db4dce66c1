"""The regularised gap function of BiC-GAFFA (Yao, Yin, Zeng, Zhang, NeurIPS 2024), and its gradients.

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

from typing import NamedTuple

import jax
from jaxtyping import PyTree, Scalar

from hierax._base import trees
from hierax._base.trees import move
from hierax._math.psi import nonnegative
from hierax._problem.problem import Problem, Rows


class Centre(NamedTuple):
    """Where a value function or a gap is taken: x, and the centres y and z of its proximal terms."""

    x: PyTree
    y: PyTree
    z: Rows


class Saddle(NamedTuple):
    """The inner pair: th minimises, lam maximises."""

    th: PyTree
    lam: Rows


class OuterGradient(NamedTuple):
    """Gradient of F/c + G - v, or of F/c + gap, and the values of F and G met on the way."""

    x: PyTree
    y: PyTree
    z: Rows
    upper: Scalar
    lower: Scalar


def inner_gradient(problem: Problem, at: Centre, inner: Saddle, g1: Scalar, g2: Scalar, xi: PyTree) -> Saddle:
    """d_th s = grad_y G(x, th) + J_y H' lam + (th - y)/g1, to descend; d_lam s = H(x, th) - (lam - z)/g2, to ascend."""
    x, y, z = at
    th, lam = inner
    values, pull_back = jax.vjp(lambda v: problem.rows(x, v), th)
    (along,) = pull_back(lam)
    slope = jax.grad(problem.lower, 1)(x, th, xi)
    return Saddle(
        jax.tree.map(lambda a, b, c, d: a + b + (c - d) / g1, slope, along, th, y),
        jax.tree.map(lambda a, b, c: a - (b - c) / g2, values, lam, z),
    )


def outer_gradient(
    problem: Problem,
    at: Centre,
    inner: Saddle,
    c: Scalar,
    g1: Scalar,
    g2: Scalar,
    zeta: PyTree,
    xi: PyTree,
    above: Rows | None = None,
) -> OuterGradient:
    """d_x, d_y, d_z of F/c + G - v; both G-terms share xi. With `above`, of F/c + G + <above, H(x, y)> - v."""
    x, y, z = at
    th, lam = inner

    def weighted(x: PyTree, y: PyTree) -> tuple[Scalar, tuple[Scalar, Scalar]]:
        upper, lower = problem.upper(x, y, zeta), problem.lower(x, y, xi)
        return upper / c + lower, (upper, lower)

    gradients, (upper, lower) = jax.grad(weighted, (0, 1), has_aux=True)(x, y)
    if above is not None:
        gradients = trees.add(gradients, jax.vjp(problem.rows, x, y)[1](above))
    (along,) = jax.vjp(lambda v: problem.rows(v, th), x)[1](lam)
    below = jax.grad(problem.lower)(x, th, xi)
    return OuterGradient(
        x=jax.tree.map(lambda a, b, d: a - b - d, gradients[0], below, along),
        y=jax.tree.map(lambda a, b, d: a - (b - d) / g1, gradients[1], y, th),
        z=jax.tree.map(lambda a, b: (a - b) / g2, z, lam),
        upper=upper,
        lower=lower,
    )


def best_multiplier(values: Rows, z: Rows, g2: Scalar) -> Rows:
    """The lam of the gap's maximum: [z + g2 H]_+ (equalities: z + g2 e)."""
    return nonnegative(move(z, -g2, values))


def gap_gradient(
    problem: Problem, at: Centre, th: PyTree, c: Scalar, g1: Scalar, g2: Scalar, zeta: PyTree, xi: PyTree
) -> OuterGradient:
    """Gradient of F/c + gap; both G-terms share the batch xi. Costs one gradient of f and two of g."""
    lam = best_multiplier(problem.rows(at.x, at.y), at.z, g2)
    d = outer_gradient(problem, at, Saddle(th, at.z), c, g1, g2, zeta, xi, lam)
    return d._replace(z=jax.tree.map(lambda a, b, h: (a - b) / g2 - h, lam, at.z, problem.rows(at.x, th)))
