r"""The envelope E(x, z) with lam eliminated: a plain minimisation over w.

For fixed w the maximum over lam of ell is a concave, piecewise quadratic problem in one variable per constraint. Its
solution and value, with 1/g' = 1/gamma1 + 1/gamma2 and z >= 0, gamma2 > 0, are

    lam*   = max(z + H(x, w)/gamma2, gamma2 z/(gamma1 + gamma2))          (equalities: z + e/gamma2)
    E(x,z) = min over w in Y of G(x, w) + A_{g'}(x, w, z)

so the envelope of an augmented Lagrangian is an augmented Lagrangian with a smaller penalty parameter.
"""

import jax.numpy as jnp
from jaxtyping import PyTree, Scalar

from hierax._math.lagrangian import augmented_lagrangian, blockwise, is_plain
from hierax._problem.problem import Problem, Rows


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
        lambda h, m: jnp.maximum(m + h / gamma2, gamma2 * m / (gamma1 + gamma2)),
        lambda e, m: m + e / gamma2,
        values,
        z,
    )


def eliminated_value(
    problem: Problem, x: PyTree, z: Rows, w: PyTree, gamma1: Scalar | float, gamma2: Scalar, xi: PyTree
) -> Scalar:
    """max over lam of ell(x, z, w, lam) = G(x, w) + A_{g'}(x, w, z)."""
    return augmented_lagrangian(problem, x, w, z, joint_gamma(gamma1, gamma2), xi)
