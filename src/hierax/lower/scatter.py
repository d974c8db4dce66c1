"""Many starts from one: quasi-random points that cover a set, or the surroundings where the set has no end."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Float, PyTree
from scipy.stats import qmc

from hierax import sets

NEAR, FAR = 10**-0.5, 10.0  # distances of the points from the start, in units of 1 + |entry|, where there are no bounds
MOST_SOBOL = 1000  # dimensions; beyond, plain random numbers (a sequence would be longer than its use)


def scattered(
    convex_set: PyTree, tree: PyTree, cube: Float[np.ndarray, "count n+1"] | Array
) -> Float[Array, "count+1 n"]:
    """Raveled points: the tree itself first, then one for each point of the unit cube (`unit_cube`).

    Entries with two finite bounds are uniform between them. Others are normal around the tree's own entry, at
    distances from a third to ten times 1 + |entry| (the same for all entries of a point), reflected at a single bound.
    """
    flat, unravel = jax.flatten_util.ravel_pytree(tree)
    cube = jnp.asarray(cube, flat.dtype)
    distance, place = NEAR * (FAR / NEAR) ** cube[:, :1], cube[:, 1:]
    low, high = sets.bounds(convex_set, tree)
    closed = jnp.isfinite(low) & jnp.isfinite(high)
    around = flat + distance * (1 + jnp.abs(flat)) * ndtri(place)
    around = jnp.where(around < low, 2 * low - around, around)
    around = jnp.where(around > high, 2 * high - around, around)
    inside = jnp.where(closed, low, 0.0) + place * jnp.where(closed, high - low, 0.0)
    points = jnp.where(closed, inside, around)

    def land(point: Array) -> Array:
        return jax.flatten_util.ravel_pytree(sets.project(convex_set, unravel(point)))[0]

    return jnp.concatenate([flat[None], jax.vmap(land)(points)])


def unit_cube(dimensions: int, count: int, seed: int = 0) -> np.ndarray:
    """Points that cover the open unit cube."""
    if dimensions > MOST_SOBOL:
        return np.random.default_rng(seed).uniform(1e-6, 1 - 1e-6, (count, dimensions))
    sobol = qmc.Sobol(dimensions, scramble=True, rng=np.random.default_rng(seed))
    return np.clip(sobol.random_base2(int(np.ceil(np.log2(max(count, 2)))))[:count], 1e-6, 1 - 1e-6)
