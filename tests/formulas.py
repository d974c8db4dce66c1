"""The values whose gradients the library gives by formula, written down once more, row by row, from the papers.

Nothing here is shared with the library beyond the problem itself, so that differentiating these values checks its
gradients: the saddle function ell and the penalty function Psi of SALVF, the gap function of BiC-GAFFA and the saddle
function of LV-HBA.
"""

import jax
import jax.numpy as jnp


def entries(tree):
    """All numbers of a tree as one vector."""
    return jnp.concatenate([jnp.zeros(0), *(jnp.ravel(leaf) for leaf in jax.tree.leaves(tree))])


def squared_distance(a, b):
    return jnp.sum((entries(a) - entries(b)) ** 2)


def saddle_value(problem, x, z, w, lam, gamma1, gamma2, xi):
    """ell(x, z, w, lam; xi), eq. 2.5b: the augmented Lagrangian at lam minus gamma2/2 ||lam - z||^2."""
    h, mu = entries(problem.constraints(x, w)), entries(lam.inequalities)
    e, nu = entries(problem.equalities(x, w)), entries(lam.equalities)
    inequalities = jnp.sum(jnp.maximum(gamma1 * mu + h, 0.0) ** 2 - gamma1**2 * mu**2) / (2 * gamma1)
    equalities = jnp.sum(e * nu + e**2 / (2 * gamma1))
    return problem.lower(x, w, xi) + inequalities + equalities - gamma2 / 2 * squared_distance(lam, z)


def psi(problem, point, inner, weights, zeta, xi):
    """Psi(x, y, z; zeta, xi) with (w, lam) given, eq. 2.9, and the multipliers nu of the outer term."""
    x, y, z, nu = point
    c1, c2, gamma1, gamma2 = weights
    gap = problem.lower(x, y, xi) - saddle_value(problem, x, z, inner.w, inner.lam, gamma1, gamma2, xi)
    outer = 0.0
    for values, multipliers in (
        (problem.constraints(x, y), nu.inequalities),
        (problem.upper_constraints(x, y), nu.upper),
    ):
        h, m = entries(values), entries(multipliers)
        outer = outer + jnp.sum(jnp.maximum(m + c2 * h, 0.0) ** 2 - m**2) / (2 * c2)
    e, m = entries(problem.equalities(x, y)), entries(nu.equalities)
    return problem.upper(x, y, zeta) + c1 * gap + outer + jnp.sum(m * e + c2 / 2 * e**2)


def proximal_lagrangian(problem, x, y, z, th, g1, xi):
    """G(x, th) + <z, H(x, th)> + ||th - y||^2 / (2 g1), what BiC-GAFFA's th minimises."""
    return problem.lower(x, th, xi) + entries(z) @ entries(problem.rows(x, th)) + squared_distance(th, y) / (2 * g1)


def gap_value(problem, x, y, z, th, g1, g2, xi):
    """BiC-GAFFA's gap(x, y, z; xi) with th given; below the gap where th is not the minimiser."""
    h, e = entries(problem.constraints(x, y)), entries(problem.equalities(x, y))
    centre = entries(z.inequalities)
    lam = jnp.maximum(centre + g2 * h, 0.0)
    inequalities = jnp.sum(lam * h) - jnp.sum((lam - centre) ** 2) / (2 * g2)
    equalities = entries(z.equalities) @ e + g2 / 2 * jnp.sum(e**2)  # at its maximiser z + g2 e
    return problem.lower(x, y, xi) + inequalities + equalities - proximal_lagrangian(problem, x, y, z, th, g1, xi)


def saddle_function(problem, at, inner, g1, g2, xi):
    """LV-HBA's s(x, y, z, th, lam; xi)."""
    along = entries(inner.lam) @ entries(problem.rows(at.x, inner.w))
    near = squared_distance(inner.w, at.y) / (2 * g1) - squared_distance(inner.lam, at.z) / (2 * g2)
    return problem.lower(at.x, inner.w, xi) + along + near
