"""Many points from one: quasi-random points that cover a set (or its surroundings where the set has no end), and
normal points around a given one. The random numbers are drawn on the host, the points made inside compiled programs.
"""

from types import ModuleType
from typing import NamedTuple, TypeVar

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, PyTree

from hierax._base.constants import FINE, MANY, MUCH
from hierax._base.imports import lazy
from hierax._problem import sets

Points = TypeVar("Points", np.ndarray, Array)
"""NumPy's arrays on the host, JAX's inside programs."""

special = lazy("scipy.special")
qmc = lazy("scipy.stats.qmc")


class Cube(NamedTuple):
    """Quasi-random numbers for points of n entries.

    Attributes:
        place: points of the open unit cube.
        away: normal numbers, those of a point all multiplied by a distance between a third and ten.
    """

    place: Float[ArrayLike, "count n"]
    away: Float[ArrayLike, "count n"]


def unit_cube(n: int, count: int, seed: int = 0) -> Cube:
    """Scrambled Sobol points."""
    if n >= MANY:
        points = np.random.default_rng(seed).uniform(FINE, 1 - FINE, (count, n + 1))
    else:
        sobol = qmc.Sobol(n + 1, scramble=True, rng=np.random.default_rng(seed))
        points = np.clip(sobol.random_base2(int(np.ceil(np.log2(max(count, 2)))))[:count], FINE, 1 - FINE)
    near = MUCH**-0.5
    distance = near * (MUCH / near) ** points[:, :1]
    return Cube(points[:, 1:], distance * special.ndtri(points[:, 1:]))


def scattered(flat: Points, low: Points, high: Points, cube: Cube, xp: ModuleType) -> Points:
    """The vector itself first, then one point of the box [low, high] for each point of the cube.

    Entries with two finite bounds are uniform between them. Others are normal around the vector's own entry, at
    distances from a third to ten times 1 + |entry| (the same for all entries of a point), reflected at a single bound.
    `xp` is NumPy, or JAX's inside programs.
    """
    place, away = (xp.asarray(part, flat.dtype) for part in cube)
    low, high = low[None], high[None]
    closed = xp.isfinite(low) & xp.isfinite(high)
    around = flat[None] + (1 + xp.abs(flat))[None] * away
    around = xp.where(around < low, 2 * low - around, around)
    around = xp.where(around > high, 2 * high - around, around)
    inside = xp.where(closed, low, 0.0) + place * (xp.where(closed, high, 0.0) - xp.where(closed, low, 0.0))
    return xp.concatenate([flat[None], xp.where(closed, inside, around)])


def cover(convex_set: PyTree, tree: PyTree, cube: Cube) -> Float[Array, "count+1 n"]:
    """Raveled points of a set, for programs: the tree itself first, then one for each point of the cube."""
    flat, unravel = jax.flatten_util.ravel_pytree(tree)
    points = scattered(flat, *sets.bounds(convex_set, tree), cube, jnp)

    def land(point: Array) -> Array:
        return jax.flatten_util.ravel_pytree(sets.project(convex_set, unravel(point)))[0]

    return jnp.concatenate([flat[None], jax.vmap(land)(points[1:])])


def normal_around(tree: PyTree, radius: np.ndarray, rng: np.random.Generator) -> PyTree:
    """Normal points around a tree of NumPy arrays; `radius` (its last axis is 1) is relative to one plus its size.

    The axes of `radius` before the last come in front of every leaf.
    """
    leaves, structure = jax.tree.flatten(tree)
    flat = np.concatenate([np.ravel(np.asarray(leaf)) for leaf in leaves])
    scale = 1.0 + float(np.sqrt(np.mean(np.square(flat))))
    spread = flat + radius * scale * rng.standard_normal((*radius.shape[:-1], flat.size))
    parts = np.split(spread, np.cumsum([np.size(leaf) for leaf in leaves])[:-1], axis=-1)
    shaped = [part.reshape(*radius.shape[:-1], *np.shape(leaf)) for part, leaf in zip(parts, leaves, strict=True)]
    return jax.tree.unflatten(structure, shaped)


def chance_of_more(met: list[int]) -> float:
    """The chance that another start ends at a place that none has met, by Good and Turing.

    `met` is how many starts ended at each place. The chance is about the share of starts whose place no other met.
    """
    return met.count(1) / sum(met) if met else 1.0


def most_left(starts: int) -> float:
    """That chance, at most, with 95 % confidence, where every place was met again.

    Such a place has not been met by n starts, which a chance above 1 - 0.05^(1/n) would make unlikely: that three
    starts agree says little.
    """
    return float(1 - 0.05 ** (1 / starts))
