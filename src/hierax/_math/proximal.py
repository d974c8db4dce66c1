r"""The proximal Lagrangian value function of LV-HBA (Yao, Yu, Zeng, Zhang, ICLR 2024), and its gradients.

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

from hierax._problem.problem import Problem, Rows


class Centre(NamedTuple):
    """Where the value function is taken: x, and the centres y and z of its proximal terms."""

    x: PyTree
    y: PyTree
    z: Rows


class Saddle(NamedTuple):
    """The inner pair: th minimises, lam maximises."""

    th: PyTree
    lam: Rows


class OuterGradient(NamedTuple):
    """Gradient of F/c + G - v, and the values of F and G met on the way."""

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
) -> OuterGradient:
    """d_x, d_y, d_z of F/c + G - v; both G-terms share the batch xi."""
    x, y, z = at
    th, lam = inner

    def above(x: PyTree, y: PyTree) -> tuple[Scalar, tuple[Scalar, Scalar]]:
        upper, lower = problem.upper(x, y, zeta), problem.lower(x, y, xi)
        return upper / c + lower, (upper, lower)

    (above_x, above_y), (upper, lower) = jax.grad(above, (0, 1), has_aux=True)(x, y)
    _, pull_back = jax.vjp(lambda v: problem.rows(v, th), x)
    (along,) = pull_back(lam)
    below = jax.grad(problem.lower)(x, th, xi)
    return OuterGradient(
        x=jax.tree.map(lambda a, b, d: a - b - d, above_x, below, along),
        y=jax.tree.map(lambda a, b, d: a - (b - d) / g1, above_y, y, th),
        z=jax.tree.map(lambda a, b: (a - b) / g2, z, lam),
        upper=upper,
        lower=lower,
    )
