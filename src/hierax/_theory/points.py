"""Points around a start and within the sets, at which a problem is looked at; and whether the sets are bounded."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.flatten_util
import numpy as np
from jaxtyping import PyTree

from hierax._engine.float64_problem import Data, Float64Problem
from hierax._problem import sets
from hierax._problem.problem import Problem

FAR = 1e6  # lengths from the start at which a bounded set has been left in every direction
NEAR = 0.1  # share of the reach within which a quarter of the points is drawn


class Looks(NamedTuple):
    """Points on a leading axis, the start among them, and whether X and Y were seen to be bounded."""

    x: PyTree
    y: PyTree
    x_bounded: bool
    y_bounded: bool


def points_around(setting: Float64Problem, count: int, radius: float, rng: np.random.Generator) -> Looks:
    """`count` points of X x Y; a set without bounds is looked at as far as `radius` lengths of the start."""
    (x, y), bounded = zip(*(_block(setting, name, count, radius, rng) for name in ("x", "y")), strict=True)
    return Looks(x, y, *bounded)


def _block(
    setting: Float64Problem, name: str, count: int, radius: float, rng: np.random.Generator
) -> tuple[PyTree, bool]:
    start = getattr(setting, name)
    flat = _flat(start)
    length = 1 + float(np.max(np.abs(flat)))
    away = rng.standard_normal((count, flat.size))
    away /= np.linalg.norm(away, axis=1, keepdims=True)
    farthest = np.max(np.abs(_projected(setting, name, flat + FAR * length * away) - flat))
    bounded = bool(farthest < 1e-2 * FAR * length / np.sqrt(flat.size))
    reach = float(farthest) * np.sqrt(flat.size) if bounded else radius * length
    far = reach * rng.uniform(size=count)
    kind = rng.integers(4, size=count)  # anew for x and y: one may be far out without the other
    far[kind == 0] *= NEAR
    if bounded:  # far points land on the boundary, in corners of a box; every fourth does so in x and y at once
        far[(kind == 1) | (np.arange(count) % 4 == 1)] = FAR * reach
    drawn = flat + far[:, None] * away
    drawn[0] = flat
    return _trees(start, _projected(setting, name, drawn)), bounded


def _projected(setting: Float64Problem, name: str, rows: np.ndarray) -> np.ndarray:
    """Flat points, projected on X or Y."""

    def program(problem: Problem, data: Data, points: PyTree) -> PyTree:
        return jax.vmap(lambda point: sets.project(getattr(problem, f"{name}_set"), point))(points)

    landed = setting.run(f"theory: into {name}", program, _trees(getattr(setting, name), rows), quick=True)
    leaves = [np.reshape(leaf, (len(rows), -1)) for leaf in jax.tree.leaves(landed)]
    return np.concatenate(leaves, axis=1)


def _flat(tree: PyTree) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def _trees(like: PyTree, rows: np.ndarray) -> PyTree:
    """Flat points as one tree with a leading axis."""
    leaves, form = jax.tree.flatten(like)
    cuts = np.cumsum([np.size(leaf) for leaf in leaves])[:-1]
    parts = zip(np.split(rows, cuts, axis=1), leaves, strict=True)
    return jax.tree.unflatten(form, [np.reshape(part, (len(rows), *np.shape(leaf))) for part, leaf in parts])
