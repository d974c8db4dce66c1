"""Augmented Lagrangian of the lower level and the saddle function of its envelope.

    A(x, y, z)           = 1/(2 gamma1) sum_i ([gamma1 z_i + H_i(x, y)]_+^2 - gamma1^2 z_i^2)       inequalities
    A_e(x, y, z)         = sum_i (e_i z_i + e_i^2 / (2 gamma1))                                      equalities
    L(x, y, z)           = G(x, y) + A(x, y, z)                                                      eq. 3
    ell(x, z, w, lam)    = L(x, w, lam) - gamma2/2 ||lam - z||^2                                     eq. 7

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
"""

from collections.abc import Callable
from typing import NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import PyTree, Scalar

from hierax._base import trees
from hierax._base.trees import Infinite
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
    return trees.total(
        blockwise(
            lambda h, m: (jnp.maximum(gamma1 * m + h, 0.0) ** 2 - (gamma1 * m) ** 2) / (2 * gamma1),
            lambda e, m: e * m + e**2 / (2 * gamma1),
            values,
            z,
        )
    )


def shifted_multiplier(values: Rows, lam: Rows, gamma1: Scalar | float) -> Rows:
    """mu = [gamma1 lam + H]_+ / gamma1 (equalities: lam + e/gamma1): the derivative of A with respect to H."""
    if is_plain(gamma1):
        return lam
    return blockwise(lambda h, m: jnp.maximum(gamma1 * m + h, 0.0) / gamma1, lambda e, m: m + e / gamma1, values, lam)


def augmented_lagrangian(problem: Problem, x: PyTree, y: PyTree, z: Rows, gamma1: Scalar | float, xi: PyTree) -> Scalar:
    """L(x, y, z; xi), eq. 3."""
    return problem.lower(x, y, xi) + augmented_term(problem.rows(x, y), z, gamma1)


class SaddleGradient(NamedTuple):
    """Derivatives of ell that an inner step needs, and the constraints' values they were made from."""

    w: PyTree
    lam: Rows
    values: Rows


def saddle_gradient(
    problem: Problem, x: PyTree, z: Rows, w: PyTree, lam: Rows, gamma1: Scalar | float, gamma2: Scalar, xi: PyTree
) -> SaddleGradient:
    """d_w ell = grad_y g + J_y H^T mu and d_lam ell = max(-gamma1 lam, H) - gamma2 (lam - z)."""
    values, pull_back = jax.vjp(lambda v: problem.rows(x, v), w)
    (along,) = pull_back(shifted_multiplier(values, lam, gamma1))
    d_w = trees.add(jax.grad(problem.lower, 1)(x, w, xi), along)
    plain = is_plain(gamma1)
    d_lam = blockwise(
        lambda h, m, c: (h if plain else jnp.maximum(-gamma1 * m, h)) - gamma2 * (m - c),
        lambda e, m, c: e - gamma2 * (m - c),
        values,
        lam,
        z,
    )
    return SaddleGradient(d_w, d_lam, values)


def saddle_gradient_xw(
    problem: Problem, x: PyTree, w: PyTree, lam: Rows, gamma1: Scalar | float, xi: PyTree
) -> tuple[PyTree, PyTree]:
    """d_x ell = grad_x g + J_x H^T mu and d_w ell at (x, w), from one reverse pass."""
    values, pull_back = jax.vjp(problem.rows, x, w)
    along = pull_back(shifted_multiplier(values, lam, gamma1))
    return trees.add(jax.grad(problem.lower, (0, 1))(x, w, xi), along)


def joint_gamma(gamma1: Scalar | float, gamma2: Scalar) -> Scalar:
    """g' with 1/g' = 1/gamma1 + 1/gamma2."""
    if is_plain(gamma1):
        return gamma2
    return gamma1 * gamma2 / (gamma1 + gamma2)


def best_multiplier(values: Rows, z: Rows, gamma1: Scalar | float, gamma2: Scalar) -> Rows:
    """The lam that maximises ell for the given constraint values.

    The two branches of the maximum meet where gamma1 lam + H = 0. An equality's term is linear in lam beyond the
    proximal one, so it has a single branch, lam = z + e/gamma2.
    """
    return blockwise(
        lambda h, m: jnp.maximum(m + h / gamma2, gamma2 * m / (gamma1 + gamma2)), lambda e, m: m + e / gamma2, values, z
    )


def eliminated_value(
    problem: Problem, x: PyTree, z: Rows, w: PyTree, gamma1: Scalar | float, gamma2: Scalar, xi: PyTree
) -> Scalar:
    """max over lam of ell(x, z, w, lam) = G(x, w) + A_{g'}(x, w, z)."""
    return augmented_lagrangian(problem, x, w, z, joint_gamma(gamma1, gamma2), xi)
