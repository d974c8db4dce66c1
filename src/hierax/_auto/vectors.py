"""A problem as the small route sees it: NumPy vectors in, values and derivatives out, two compiled programs.

Everything is in double precision and on all of the data. The unknowns are x, y and mu, the multipliers of the lower
level's rows in the order of `hierax._math.lower_level`.
"""

import itertools
from typing import Any, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base.trees import size
from hierax._judge.setting import Data, Setting
from hierax._lower.exact import Branches, Exact
from hierax._math.lower_level import level_at
from hierax._math.lower_level import raveled as raveled_rows
from hierax._math.scatter import Cube, cover, unit_cube
from hierax._problem import sets
from hierax._problem.problem import Problem

Numbers = Any
"""An array: NumPy's on the host, JAX's inside a program."""

POOL = 24  # starts of every lower solve: a single batch shape, so a single program


class Values(NamedTuple):
    """All functions at (x, y, mu) and their Jacobians in (x, y).

    Attributes:
        upper: F.
        lower: f.
        above: upper constraints, then the inequalities of X.
        above_equal: the equalities of X.
        rows: of the lower level.
        stationarity: grad_y (f + mu.rows).
    """

    upper: Numbers
    lower: Numbers
    above: Numbers
    above_equal: Numbers
    rows: Numbers
    stationarity: Numbers


def raveled(tree: PyTree) -> np.ndarray:
    """The tree as one vector, without compiling anything."""
    return np.concatenate([np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(tree)])


def unraveled(like: PyTree, vector: np.ndarray) -> PyTree:
    """A vector in the structure of a tree, likewise."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])
    return jax.tree.unflatten(
        structure, [vector[end - leaf.size : end].reshape(leaf.shape) for end, leaf in zip(ends, leaves, strict=True)]
    )


class Flat:
    """The compiled problem, and what is known of its structure."""

    def __init__(self, setting: Setting, starts: int, seed: int) -> None:
        self.setting = setting
        self.x0, self.y0 = (raveled(tree) for tree in (setting.x, setting.y))
        self.nx, self.ny = self.x0.size, self.y0.size
        problem = setting.bound.problem
        layout = setting.layout()
        self.equal, mu = layout.equal, np.zeros(layout.equal.size)
        self.trees = (setting.x, setting.y)
        cubes = (
            unit_cube(self.ny, POOL - 1, seed),
            unit_cube(self.nx, starts - 1, seed + 1),
            unit_cube(self.ny, starts - 1, seed + 2),
        )
        boxes, points = setting.run("spread", _spread, setting.x, setting.y, *cubes, quick=True)
        self.pool, self.xs, self.ys = (np.asarray(part) for part in points)
        self.x_bounds, self.y_bounds = (tuple(np.asarray(side) for side in box) for box in boxes)
        self._nothing = np.zeros((POOL, mu.size))
        self._values = setting.ready("values", _table, self.x0, self.y0, mu, *self.trees)
        self._branches = setting.ready("branches", _branches, self.x0, self.pool, self._nothing, *self.trees)
        faces = jax.eval_shape(lambda x: sets.faces(problem.x_set, x), setting.x)
        self.own_above = size(setting.shapes("upper_constraints"))  # upper constraints, before the faces of X
        self.above_count = self.own_above + size(faces.inequalities)
        counts = (1, 1, self.above_count, size(faces.equalities), mu.size, self.ny)  # of the parts of `Values`
        self._parts = [slice(low, high) for low, high in itertools.pairwise(np.cumsum([0, *counts])[2:])]
        self._look_at_structure(layout.face)

    def _look_at_structure(self, face: np.ndarray) -> None:
        """Which rows are mere bounds (kept by the boxes), and which are none at all (bounds at infinity)."""
        looks = [self.at(x, y, np.zeros(self.equal.size))[1] for x, y in zip(self.xs[-3:], self.pool[-3:], strict=True)]
        single = np.all([np.count_nonzero(look.rows, axis=1) == 1 for look in looks], axis=0)
        nothing = np.all([~look.rows.any(axis=1) for look in looks], axis=0)
        above = np.all([np.count_nonzero(look.above, axis=1) <= 1 for look in looks], axis=0)
        self.live = ~(face & nothing)
        self.curved = self.live & ~(face & single & ~self.equal)  # rows that boxes do not keep
        self.above = ~(above & (np.arange(above.size) >= self.own_above))

    def at(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> tuple[Values, Values]:
        """Values and Jacobians."""
        table = np.asarray(self._values(x, y, mu, *self.trees))
        return self._cut(table[:, 0]), self._cut(table[:, 1:])

    def _cut(self, table: np.ndarray) -> Values:
        return Values(table[0], table[1], *(table[part] for part in self._parts))

    def branches(self, x: np.ndarray, points: np.ndarray, mu: np.ndarray | None = None) -> Branches:
        """The lower level at x from up to POOL points: completed by the pool's, or repeated where mu is given.

        Without mu the result always has POOL entries; with it as many as there are points.
        """
        count = len(points)
        if mu is None:
            points = np.concatenate([points, self.pool])[:POOL]
            return _unpacked(self._branches(x, points, self._nothing, *self.trees), self.ny, self.equal.size, POOL)
        turns = np.arange(POOL) % count
        return _unpacked(self._branches(x, points[turns], mu[turns], *self.trees), self.ny, self.equal.size, count)

    def violation(self, x: np.ndarray, y: np.ndarray, values: Values) -> float:
        """The largest violation of anything, in the user's units."""
        rows = np.where(self.equal, np.abs(values.rows), values.rows)
        (x_low, x_high), (y_low, y_high) = self.x_bounds, self.y_bounds
        parts = (rows, values.above, np.abs(values.above_equal), x_low - x, x - x_high, y_low - y, y - y_high)
        worst = max(float(np.max(part, initial=0.0)) for part in parts)
        return worst if all(np.isfinite(part).all() for part in parts[:3]) else np.inf


def _unpacked(table: Array, ny: int, rows: int, count: int) -> Branches:
    lines: Numbers = np.asarray(table)[:count]
    end = ny + rows
    parts: list[Numbers] = [lines[:, :ny], lines[:, ny:end], lines[:, end], lines[:, end + 1]]
    parts += [lines[:, end + 2].astype(int), lines[:, end + 3 :]]
    return Branches(*parts)


def _spread(problem: Problem, data: Data, x: PyTree, y: PyTree, pool: Cube, xs: Cube, ys: Cube) -> tuple[tuple, tuple]:
    """The boxes around X and Y, and the points that cover them."""
    boxes = sets.bounds(problem.x_set, x), sets.bounds(problem.y_set, y)
    points = tuple(
        cover(convex, tree, cube)
        for convex, tree, cube in ((problem.y_set, y, pool), (problem.x_set, x, xs), (problem.y_set, y, ys))
    )
    return boxes, points


def _functions(
    problem: Problem, data: Data, x: Numbers, y: Numbers, mu: Numbers, x_like: PyTree, y_like: PyTree
) -> Values:
    """All functions at a point, each as a vector."""
    (_, x_tree), (_, y_tree) = jax.flatten_util.ravel_pytree(x_like), jax.flatten_util.ravel_pytree(y_like)

    at_x, at_y = x_tree(x), y_tree(y)
    level, face = level_at(problem, at_x, at_y, data.xi), sets.faces(problem.x_set, at_x)
    rows, pull = jax.vjp(level.rows, y)
    lower, slope = jax.value_and_grad(level.objective)(y)
    return Values(
        problem.upper(at_x, at_y, data.zeta)[None],
        lower[None],
        raveled_rows((problem.upper_constraints(at_x, at_y), face.inequalities), y.dtype),
        raveled_rows(face.equalities, y.dtype),
        rows,
        slope + pull(mu)[0],
    )


def _table(problem: Problem, data: Data, x: Array, y: Array, *rest: PyTree) -> Array:
    """One line per function: its value, then its derivatives in (x, y). A single array, because every array that a
    program returns costs as much as a small problem's functions.
    """

    def values(point: Array) -> Array:
        return jnp.concatenate(_functions(problem, data, point[: x.size], point[x.size :], *rest))

    point = jnp.concatenate([x, y])
    return jnp.concatenate([values(point)[:, None], jax.jacfwd(values)(point)], axis=1)


def _branches(
    problem: Problem, data: Data, x: Array, points: Array, mu: Array, x_like: PyTree, y_like: PyTree
) -> Array:
    _, x_tree = jax.flatten_util.ravel_pytree(x_like)
    found = Exact(starts=POOL).branches(problem, x_tree(x), y_like, data.xi, points, mu)
    return jnp.concatenate([part if part.ndim == 2 else part[:, None].astype(x.dtype) for part in found], axis=1)
