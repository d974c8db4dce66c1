"""Random convex quadratic problems over ellipsoids, made around a planted solution.

Choosing the solution first and the data to fit it (instead of solving for random data) gives references that are exact
up to rounding, whatever the size, and strict complementarity for every seed.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float64

Matrix = Float64[np.ndarray, "rows columns"]
Vector = Float64[np.ndarray, " entries"]


class Ellipsoids(NamedTuple):
    """The p functions H_i(y) = 1/2 sum_k Q_ik (y_k - a_ik)^2 - r_i; an ellipsoid is {y: H_i(y) <= 0}.

    Attributes:
        weights: Q > 0, shape (p, n).
        centres: a, shape (p, n).
        levels: r, shape (p,).
    """

    weights: Matrix
    centres: Matrix
    levels: Vector

    def values(self, y: ArrayLike) -> Array:
        """H(y), in JAX and in the dtype of y."""
        dtype = jnp.result_type(y)
        weights, centres, levels = (jnp.asarray(part, dtype) for part in self)
        return 0.5 * jnp.sum(weights * (jnp.asarray(y)[None, :] - centres) ** 2, axis=1) - levels

    def jacobian(self, y: Vector) -> Matrix:
        """The rows grad H_i(y), in NumPy."""
        return self.weights * (y - self.centres)


def random_direction(rng: np.random.Generator, n: int, norm: float) -> Vector:
    """A vector of the given Euclidean norm with a uniformly distributed direction."""
    direction = rng.standard_normal(n)
    return norm * direction / np.linalg.norm(direction)


def random_factor(rng: np.random.Generator, n: int, largest: float) -> Matrix:
    """R such that the eigenvalues of A = R'R are n equally spaced numbers from 1 to `largest`, in a random basis."""
    basis, _ = np.linalg.qr(rng.standard_normal((n, n)))
    return np.sqrt(np.linspace(1.0, largest, n))[:, None] * basis.T


def random_ellipsoids(rng: np.random.Generator, y: Vector, slack: Vector) -> Ellipsoids:
    """Ellipsoids with H(y) = -slack, weights uniform in [0.5, 1.5] and centres at distance 1 from the origin; n >= 2.

    The centres are drawn orthogonal to (Q_ik y_k)_k. Then H_i(0) = -1/2 sum_k Q_ik y_k^2 - slack_i < 0: for every seed
    the origin lies inside all ellipsoids, and a Slater point exists.
    """
    n, p = y.size, slack.size
    weights = rng.uniform(0.5, 1.5, (p, n))
    weighted = weights * y
    centres = rng.standard_normal((p, n))
    centres -= weighted * (np.sum(weighted * centres, axis=1) / np.sum(weighted**2, axis=1))[:, None]
    centres /= np.linalg.norm(centres, axis=1, keepdims=True)
    levels = 0.5 * np.sum(weights * (y - centres) ** 2, axis=1) + slack
    return Ellipsoids(weights, centres, levels)


def planted_slack(rng: np.random.Generator, p: int, active: int) -> Vector:
    """Zero for the first `active` constraints, uniform in [0.5, 1] for the others."""
    return np.concatenate([np.zeros(active), rng.uniform(0.5, 1.0, p - active)])


def planted_multipliers(rng: np.random.Generator, p: int, active: int, mean: float) -> Vector:
    """Uniform in [mean/2, 3 mean/2] for the first `active` constraints, zero for the others."""
    return np.concatenate([mean * rng.uniform(0.5, 1.5, active), np.zeros(p - active)])
