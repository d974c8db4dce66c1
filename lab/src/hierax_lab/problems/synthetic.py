"""A stochastic bilevel problem with ellipsoids that move with x, half of them active at a planted solution.

It has what the theory asks for (strong convexity below, coupled nonlinear constraints, strict complementarity), at any
size, with the solution known up to rounding; see `ellipsoids` for how solutions are planted.
"""

import dataclasses
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hierax import Box, InputError, Problem, Sampler
from hierax.problems.example import Example, Known
from hierax.problems.noise import batch_mean, gaussian, linear_term
from hierax_lab.problems.ellipsoids import (
    Ellipsoids,
    Matrix,
    Vector,
    planted_multipliers,
    planted_slack,
    random_direction,
    random_ellipsoids,
    random_factor,
)

SOURCE = "hierax: random bilevel problem with quadratic objectives and coupled ellipsoids around a planted solution."

N_X, N_Y, P = 10, 20, 5
X_BOUND, Y_BOUND = 2.0, 10.0


class _Data(NamedTuple):
    """The problem's numbers, named as in `synthetic`, and its planted solution."""

    factor: Matrix  # R, A = R'R
    linear: Vector  # b
    coupling: Matrix  # C
    shift: Matrix  # M
    ellipsoids: Ellipsoids  # Q, a, r
    slopes: Matrix  # d
    target_x: Vector  # x_t
    target_y: Vector  # y_t
    x: Vector
    y: Vector
    multipliers: Vector


def synthetic(
    sigma: float = 0.5,
    noise: Literal["additive", "multiplicative"] = "additive",
    seed: int = 0,
    *,
    nx: int = N_X,
    ny: int = N_Y,
    p: int = P,
) -> Example:
    """A strongly convex lower level whose constraints are coupled with x; by default n_x = 10, n_y = 20, p = 5.

        min_{x in [-2,2]^nx}  F(x, y*(x)) = 1/2 ||y - y_t||^2 + 1/2 ||x - x_t||^2
        y*(x) = argmin_{y in [-10,10]^ny} { G(x, y) = 1/2 y'Ay - (b + Cx)'y  :  H(x, y) <= 0 }
        H_i(x, y) = 1/2 sum_k Q_ik (y - Mx - a_i)_k^2 - r_i - d_i'x

    A = R'R has eigenvalues from 1 to 5. H is jointly convex in (x, y), and y = Mx satisfies H < 0 for every x in the
    box. Centre and radius of the ellipsoids move with x, so J_x H is not constant and the mixed derivatives of H do not
    vanish.

    The solution is planted: x*, y* and lam* are drawn, and r, b and x_t are set so that the first ceil(p/2) constraints
    are active with multipliers between 0.5 and 1.5, the others are between -1 and -0.5, y* satisfies the KKT conditions
    at x*, and the hyper-gradient at x* vanishes. That half of the constraints are active, with strict complementarity,
    is thus a choice; everything else is as drawn. No other local minimiser is known (seed 0 in the default size:
    searched from random starts in the tests). No bound of X or Y is active at the solution.

    Noise, zero-mean and independent between the two levels:

    - additive: f = F + <zeta, (x, y)>, g = G + <xi, (x, y)>, entries N(0, sigma^2);
    - multiplicative: the data are random, with factors uniform, of mean 1 and standard deviation sigma:
      g = 1/2 sum_k (1 + u_k) (Ry)_k^2 - sum_k (1 + v_k) (b + Cx)_k y_k with xi = (u, v), and
      f = 1/2 sum_k (1 + u_k) (x - x_t)_k^2 + 1/2 sum_k (1 + v_k) (y - y_t)_k^2 with zeta = (u, v).
      The noise does not vanish at the solution, but it changes with the point. Samples of g are convex in y for
      sigma < 1/sqrt(3).

    Args:
        sigma: standard deviation of the noise, see above; 0 gives the deterministic problem.
        noise: "additive" or "multiplicative".
        seed: seed of the data.
        nx: dimension of x.
        ny: dimension of y, at least 2.
        p: number of ellipsoids, at most 2 ny (the normals of the active ones must be linearly independent).

    Returns:
        The example, with one solution.

    Examples:
        >>> from hierax_lab.problems import synthetic
        >>> len(synthetic(sigma=0.0).solutions)
        1

    References:
        docs/start/which-method.md (problems with planted solutions)
    """
    if nx < 1 or ny < 2 or not 1 <= (p + 1) // 2 <= ny:
        raise InputError(f"nx={nx}, ny={ny}, p={p}: needs nx >= 1, ny >= 2 and p in 1..2 ny={2 * ny}")
    data = _plant(np.random.default_rng(seed), nx, ny, p)
    if noise == "additive":
        zeta, xi = gaussian(sigma, nx + ny), gaussian(sigma, nx + ny)
    elif noise == "multiplicative":
        zeta, xi = _uniform(sigma, nx + ny), _uniform(sigma, 2 * ny)
    else:
        raise InputError(f'noise={noise!r} is not one of "additive", "multiplicative"')

    def upper(x: Array, y: Array, zeta: Array | None) -> Array:
        target_x, target_y = jnp.asarray(data.target_x, x.dtype), jnp.asarray(data.target_y, y.dtype)
        terms = 0.5 * jnp.concatenate([x - target_x, y - target_y]) ** 2
        value = jnp.sum(terms)
        if zeta is None:
            return value
        return value + (linear_term(zeta, x, y) if noise == "additive" else jnp.vdot(batch_mean(zeta, y), terms))

    def lower(x: Array, y: Array, xi: Array | None) -> Array:
        factor, linear, coupling = (jnp.asarray(part, y.dtype) for part in (data.factor, data.linear, data.coupling))
        terms = jnp.concatenate([0.5 * (factor @ y) ** 2, -(linear + coupling @ x) * y])
        value = jnp.sum(terms)
        if xi is None:
            return value
        return value + (linear_term(xi, x, y) if noise == "additive" else jnp.vdot(batch_mean(xi, y), terms))

    def constraints(x: Array, y: Array) -> Array:
        shift, slopes = jnp.asarray(data.shift, y.dtype), jnp.asarray(data.slopes, y.dtype)
        return data.ellipsoids.values(y - shift @ x) - slopes @ x

    x_set, y_set = Box(-X_BOUND, X_BOUND), Box(-Y_BOUND, Y_BOUND)
    problem = Problem(upper, lower, constraints, x_set=x_set, y_set=y_set, zeta=zeta, xi=xi)
    value = 0.5 * np.sum((data.x - data.target_x) ** 2) + 0.5 * np.sum((data.y - data.target_y) ** 2)
    known = Known(x=data.x, y=data.y, multipliers=data.multipliers, upper=float(value))
    return Example(problem, x0=np.zeros(nx), y0=np.zeros(ny), solutions=[known], source=SOURCE)


def _uniform(sigma: float, size: int) -> Sampler | None:
    """Vectors of independent uniform entries, mean 0 and standard deviation sigma; None for sigma = 0."""
    # Bounded on purpose: a factor 1 + noise stays positive for sigma < 1/sqrt(3).
    half_width = 3**0.5 * sigma

    def draw(key: Array, n: int) -> Array:
        return jax.random.uniform(key, (n, size), minval=-half_width, maxval=half_width)

    normal = gaussian(sigma, size)
    return normal and dataclasses.replace(normal, draw=draw)


def _plant(rng: np.random.Generator, nx: int = N_X, ny: int = N_Y, p: int = P) -> _Data:
    """Draw the data and the solution, and fit r, b and x_t to the solution."""
    active = (p + 1) // 2
    x = rng.uniform(-1.0, 1.0, nx)
    offset = random_direction(rng, ny, norm=2.0)  # y* - Mx*
    factor = random_factor(rng, ny, largest=5.0)
    coupling = 2.0 * rng.standard_normal((ny, nx)) / np.sqrt(ny)
    shift = 0.5 * rng.standard_normal((ny, nx)) / np.sqrt(ny)
    y = shift @ x + offset

    # Lower level: levels r make H(x*, y*) = -slack, b makes the gradient of the Lagrangian vanish.
    slack = planted_slack(rng, p, active)
    multipliers = planted_multipliers(rng, p, active, mean=1.0)
    centred = random_ellipsoids(rng, offset, slack)
    depth = centred.levels - 0.5 * np.sum(centred.weights * centred.centres**2, axis=1)  # -H(x*, Mx*) > 0
    slopes = rng.standard_normal((p, nx))
    # |d_i'(x - x*)| <= ||d_i||_1 (2 + 1) < depth_i for every x in the box: y = Mx stays strictly feasible.
    slopes *= 0.3 * (depth / np.sum(np.abs(slopes), axis=1))[:, None]
    ellipsoids = centred._replace(levels=centred.levels - slopes @ x)
    matrix, normals = factor.T @ factor, ellipsoids.jacobian(offset)
    linear = matrix @ y - coupling @ x + normals.T @ multipliers

    # Upper level: y*(x) is smooth near x*; differentiate the KKT system of the active constraints, then choose x_t so
    # that grad_x F + (dy*/dx)' grad_y F = 0.
    curvature = multipliers @ ellipsoids.weights
    hessian = matrix + np.diag(curvature)
    mixed = -coupling - curvature[:, None] * shift
    normals_x = -normals @ shift - slopes
    kkt = np.block([[hessian, normals[:active].T], [normals[:active], np.zeros((active, active))]])
    dy_dx = -np.linalg.solve(kkt, np.concatenate([mixed, normals_x[:active]]))[:ny]
    target_y = y + random_direction(rng, ny, norm=2.0)
    target_x = x + dy_dx.T @ (y - target_y)
    return _Data(factor, linear, coupling, shift, ellipsoids, slopes, target_x, target_y, x, y, multipliers)
