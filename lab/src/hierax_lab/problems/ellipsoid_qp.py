"""A strongly convex quadratic over ellipsoids, to test solvers of the lower level at any size.

The solution is planted (see `ellipsoids`). The upper level is there for form's sake: x does not enter the lower one.
"""

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hierax import Box, InputError, Problem
from hierax.problems.example import Example, Known
from hierax.problems.noise import batch_mean, gaussian
from hierax_lab.problems.ellipsoids import (
    planted_multipliers,
    planted_slack,
    random_direction,
    random_ellipsoids,
    random_factor,
)

SOURCE = "hierax: random quadratic problem over ellipsoids with a planted solution, for rates of inner solvers."


def ellipsoid_qp(n: int, p: int, sigma: float = 0.3, seed: int = 0) -> Example:
    """A lower level with a quadratic objective and p ellipsoids in n dimensions; x only takes part in the upper level.

        min_{x in [-1,1]}  1/2 x^2 + 1/2 ||y*||^2
        y* = argmin_{y in [-10,10]^n} { 1/2 y'Ay - b'y  :  1/2 sum_k Q_ik (y_k - a_ik)^2 <= r_i, i = 1..p }

    A has equally spaced eigenvalues from 1 to 10 in a random basis, Q_ik is uniform in [0.5, 1.5] and ||a_i|| = 1. The
    solution is planted: y* of norm 1 and multipliers lam* are drawn, r and b are set so that they satisfy the KKT
    conditions. The first m = ceil(p/2) constraints are active with lam_i* uniform in [5/m, 15/m] (their sum is near 10,
    so that they add as much curvature as A has); the others have H_i(y*) between -1 and -0.5. No bound of Y is active,
    and y = 0 is strictly feasible. The noise is additive: g = G + <xi, y>, xi ~ N(0, sigma^2 I_n).

    Args:
        n: dimension of y, at least 2.
        p: number of ellipsoids, at most 2n (the normals of the active ones must be linearly independent).
        sigma: standard deviation of the gradient noise per coordinate; 0 gives the deterministic problem.
        seed: seed of the data.

    Returns:
        The example, with one solution.

    Examples:
        >>> import numpy as np
        >>> from hierax_lab.problems import ellipsoid_qp
        >>> (known,) = ellipsoid_qp(4, 2).solutions
        >>> round(float(np.linalg.norm(known.y)), 6)
        1.0

    References:
        docs/start/which-method.md (problems with planted solutions)
    """
    active = (p + 1) // 2
    if n < 2:
        raise InputError(f"n={n} must be at least 2: the centres are drawn orthogonal to a given vector")
    if not 1 <= active <= n:
        raise InputError(f"p={p} must lie in 1..2n={2 * n}: ceil(p/2) constraints with independent normals are active")
    rng = np.random.default_rng(seed)
    factor = random_factor(rng, n, largest=10.0)
    matrix = factor.T @ factor
    y = random_direction(rng, n, norm=1.0)
    ellipsoids = random_ellipsoids(rng, y, planted_slack(rng, p, active))
    multipliers = planted_multipliers(rng, p, active, mean=10.0 / active)
    linear = matrix @ y + ellipsoids.jacobian(y).T @ multipliers

    def lower(x: Array, y: Array, xi: Array | None) -> Array:
        del x
        a, b = jnp.asarray(matrix, y.dtype), jnp.asarray(linear, y.dtype)
        value = 0.5 * jnp.vdot(y, a @ y) - jnp.vdot(b, y)
        return value if xi is None else value + jnp.vdot(batch_mean(xi, y), y)

    problem = Problem(
        upper=lambda x, y, zeta: 0.5 * x**2 + 0.5 * jnp.vdot(y, y),
        lower=lower,
        constraints=lambda x, y: ellipsoids.values(y),
        x_set=Box(-1.0, 1.0),
        y_set=Box(-10.0, 10.0),
        xi=gaussian(sigma, n),
    )
    known = Known(x=np.zeros(()), y=y, multipliers=multipliers, upper=float(0.5 * y @ y))
    return Example(problem, x0=np.asarray(0.5), y0=np.zeros(n), solutions=[known], source=SOURCE)
