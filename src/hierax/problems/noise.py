"""Noise of the examples: sources of zero-mean vectors and the linear term that turns them into gradient noise.

All examples are affine in their noise, so the mean of the noise gives the exact problem.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike

from hierax._base.errors import InputError
from hierax._problem.samples import Sampler


def gaussian(sigma: float, size: int) -> Sampler | None:
    """Vectors of N(0, sigma^2 I_size); None (no noise, exact) for sigma = 0."""
    if sigma < 0:
        raise InputError(f"sigma={sigma} is a standard deviation: it must be >= 0 (0 for the exact problem)")

    def draw(key: Array, n: int) -> Array:
        # Single precision is enough for noise, and twice as fast to draw.
        return sigma * jax.random.normal(key, (n, size), jnp.float32)

    # The examples are affine in their noise, so the batch that holds the mean gives the expectation.
    return Sampler(draw, exact=np.zeros((1, size))) if sigma > 0 else None


def batch_mean(batch: ArrayLike, like: ArrayLike) -> Array:
    """The mean over the leading axis, in the dtype of `like`."""
    return jnp.mean(jnp.asarray(batch, jnp.result_type(like)), axis=0)


def linear_term(batch: ArrayLike, x: ArrayLike, y: ArrayLike) -> Array:
    """<mean of the batch, (x, y)>: adds the batch's mean to the gradient with respect to (x, y)."""
    mean, n_x = batch_mean(batch, y), jnp.size(x)
    # Sums of products fuse with what surrounds them; dot products of such small vectors would be calls of their own.
    return jnp.sum(mean[:n_x] * jnp.ravel(x)) + jnp.sum(mean[n_x:] * jnp.ravel(y))
