"""A problem as the small and the penalty route see it: NumPy vectors in, values and derivatives out.

Everything is in double precision and on all of the data. The unknowns are x, y and mu, the multipliers of the lower
level's rows in the order of `hierax._math.lower_level`. Three small programs are compiled: the points that cover X and
Y, all functions with their Jacobians, and the lower level solved from many starts. Not for problems whose matrices do
not fit.
"""

import itertools
from typing import Generic, NamedTuple, TypeVar

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._auto.branches import Branches
from hierax._auto.constants import STRUCTURE_LOOKS
from hierax._base.constants import LOWER_STARTS
from hierax._base.trees import size
from hierax._judge.setting import Data, Setting
from hierax._lower.exact import Exact
from hierax._math.lower_level import level_at
from hierax._math.scatter import Cube, cover, unit_cube
from hierax._problem import sets
from hierax._problem.problem import Problem

Vector = TypeVar("Vector", np.ndarray, Array)
"""NumPy's arrays on the host, JAX's inside a program."""


class Trees(NamedTuple):
    """The start as trees, which give programs the structure of x and y."""

    x: PyTree
    y: PyTree

    def x_of(self, vector: Array) -> PyTree:
        """x as the problem's functions take it."""
        return jax.flatten_util.ravel_pytree(self.x)[1](vector)

    def y_of(self, vector: Array) -> PyTree:
        """y likewise."""
        return jax.flatten_util.ravel_pytree(self.y)[1](vector)


class Values(NamedTuple, Generic[Vector]):
    """All functions at (x, y, mu), or their Jacobians in (x, y).

    Attributes:
        upper: F.
        lower: f.
        above: upper constraints, then the inequalities of X.
        above_equal: the equalities of X.
        rows: of the lower level.
        stationarity: grad_y (f + mu.rows).
    """

    upper: Vector
    lower: Vector
    above: Vector
    above_equal: Vector
    rows: Vector
    stationarity: Vector


class Limits(NamedTuple):
    """The smallest box around a set, infinite where there is none."""

    low: np.ndarray
    high: np.ndarray


class Cover(NamedTuple):
    """Points that cover X and Y, the given one first: starts (xs, ys), and starts of lower solves."""

    lower_starts: np.ndarray
    xs: np.ndarray
    ys: np.ndarray


class Layout(NamedTuple):
    """Where everything stands in the vectors.

    Attributes:
        x0: the start.
        y0: likewise.
        equal: which rows of the lower level are equalities.
        face: which of them are faces of Y.
        own_above: how many upper constraints there are, which stand before the faces of X.
        above: how many there are with those faces.
        parts: the slices of `Values` after F and f.
    """

    x0: np.ndarray
    y0: np.ndarray
    equal: np.ndarray
    face: np.ndarray
    own_above: int
    above: int
    parts: tuple[slice, ...]

    @property
    def nx(self) -> int:
        """Entries of x."""
        return self.x0.size

    @property
    def ny(self) -> int:
        """Entries of y."""
        return self.y0.size

    @property
    def rows(self) -> int:
        """Rows of the lower level."""
        return self.equal.size

    def cut(self, table: np.ndarray) -> Values[np.ndarray]:
        """A table with one line per function, by name."""
        return Values(table[0], table[1], *(table[part] for part in self.parts))


class Structure(NamedTuple):
    """Which constraints a solver that keeps boxes by itself has to be told of.

    Attributes:
        live: rows of the lower level that constrain at all (no bounds at infinity).
        curved: those of them that the box around Y does not keep.
        above: upper constraints and faces of X that the box around X does not keep.
    """

    live: np.ndarray
    curved: np.ndarray
    above: np.ndarray


class VectorProblem:
    """The compiled problem, the points that cover its sets, and what is known of its structure."""

    def __init__(self, setting: Setting, starts: int, seed: int) -> None:
        self.setting = setting
        self.layout = layout = _layout(setting)
        self.trees = Trees(setting.x, setting.y)
        cubes = (
            unit_cube(layout.ny, LOWER_STARTS - 1, seed),
            unit_cube(layout.nx, starts - 1, seed + 1),
            unit_cube(layout.ny, starts - 1, seed + 2),
        )
        boxes, points = setting.run("cover", _cover, self.trees, *cubes, quick=True)
        self.cover = Cover(*points)
        self.x_limits, self.y_limits = (Limits(*box) for box in boxes)
        no_multipliers = np.zeros((LOWER_STARTS, layout.rows))
        self._values = setting.ready("values", _table, self.trees, layout.x0, layout.y0, no_multipliers[0])
        self._branches = setting.ready(
            "branches", _branches, self.trees, layout.x0, self.cover.lower_starts, no_multipliers
        )
        self.structure = self._structure()

    def _structure(self) -> Structure:
        """Which rows are mere bounds, and which are none at all, as far as Jacobians at a few points show."""
        layout, no_multipliers = self.layout, np.zeros(self.layout.rows)
        last = np.arange(-STRUCTURE_LOOKS, 0)
        xs, ys = (points[last % len(points)] for points in (self.cover.xs, self.cover.lower_starts))
        slopes = [self.at(x, y, no_multipliers)[1] for x, y in zip(xs, ys, strict=True)]
        single = np.all([np.count_nonzero(slope.rows, axis=1) == 1 for slope in slopes], axis=0)
        nothing = np.all([~slope.rows.any(axis=1) for slope in slopes], axis=0)
        bounds_above = np.all([np.count_nonzero(slope.above, axis=1) <= 1 for slope in slopes], axis=0)
        live = ~(layout.face & nothing)
        return Structure(
            live=live,
            curved=live & ~(layout.face & single & ~layout.equal),
            above=~(bounds_above & (np.arange(layout.above) >= layout.own_above)),
        )

    def at(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> tuple[Values[np.ndarray], Values[np.ndarray]]:
        """Values and Jacobians."""
        table = self._values(self.trees, x, y, mu)
        return self.layout.cut(table[:, 0]), self.layout.cut(table[:, 1:])

    def branches(self, x: np.ndarray, y: np.ndarray) -> Branches:
        """The lower level at x from y and from the points that cover Y, LOWER_STARTS in all."""
        points = np.concatenate([y[None], self.cover.lower_starts])[:LOWER_STARTS]
        return self._solved(x, points, np.zeros((LOWER_STARTS, self.layout.rows)))

    def followed(self, x: np.ndarray, points: np.ndarray, mu: np.ndarray) -> Branches:
        """The lower level at x from up to LOWER_STARTS known solutions, which are repeated to fill the one program."""
        turns = np.arange(LOWER_STARTS) % len(points)
        return self._solved(x, points[turns], mu[turns]).first(len(points))

    def _solved(self, x: np.ndarray, points: np.ndarray, mu: np.ndarray) -> Branches:
        lines = self._branches(self.trees, x, points, mu)
        ny, end = self.layout.ny, self.layout.ny + self.layout.rows
        value, violation, status = lines[:, end : end + 3].T
        return Branches(lines[:, :ny], lines[:, ny:end], value, violation, status.astype(int), lines[:, end + 3 :])

    def violation(self, x: np.ndarray, y: np.ndarray, values: Values[np.ndarray]) -> float:
        """The largest violation of anything, in the user's units."""
        rows = np.where(self.layout.equal, np.abs(values.rows), values.rows)
        outside = [side for v, limits in ((x, self.x_limits), (y, self.y_limits)) for side in _outside(v, limits)]
        parts = (rows, values.above, np.abs(values.above_equal), *outside)
        worst = max(float(np.max(part, initial=0.0)) for part in parts)
        return worst if all(np.isfinite(part).all() for part in parts[:3]) else np.inf

    def upper_violation(self, values: Values[np.ndarray]) -> float:
        """The largest violation of an upper constraint."""
        return float(np.max(values.above[: self.layout.own_above], initial=0.0))


def _outside(v: np.ndarray, limits: Limits) -> tuple[np.ndarray, np.ndarray]:
    return limits.low - v, v - limits.high


def _layout(setting: Setting) -> Layout:
    x_set, rows = setting.bound.problem.x_set, setting.layout()
    faces = jax.eval_shape(lambda x: sets.faces(x_set, x), setting.x)
    own_above = sum(row.size for row in jax.tree.leaves(setting.shapes("upper_constraints")))
    above = own_above + size(faces.inequalities)
    x0, y0 = raveled(setting.x), raveled(setting.y)
    counts = (1, 1, above, size(faces.equalities), rows.equal.size, y0.size)
    ends = np.cumsum([0, *counts])[2:]
    parts = tuple(slice(low, high) for low, high in itertools.pairwise(ends))
    return Layout(x0, y0, rows.equal, rows.face, own_above, above, parts)


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


# -- programs ---------------------------------------------------------------------------------------------------------


def _cover(
    problem: Problem, data: Data, start: Trees, lower_starts: Cube, xs: Cube, ys: Cube
) -> tuple[tuple[sets.Bounds, sets.Bounds], tuple[Array, Array, Array]]:
    """The boxes around X and Y, and the points that cover them."""
    del data
    boxes = sets.bounds(problem.x_set, start.x), sets.bounds(problem.y_set, start.y)
    points = (
        cover(problem.y_set, start.y, lower_starts),
        cover(problem.x_set, start.x, xs),
        cover(problem.y_set, start.y, ys),
    )
    return boxes, points


def upper_rows(problem: Problem, x: PyTree, y: PyTree) -> Array:
    """The upper constraints, then the inequalities of X."""
    return _joined((problem.upper_constraints(x, y), sets.faces(problem.x_set, x).inequalities))


def _joined(tree: PyTree) -> Array:
    return jnp.concatenate([jnp.zeros(0), *(jnp.ravel(leaf) for leaf in jax.tree.leaves(tree))])


def _functions(problem: Problem, data: Data, x: PyTree, y: PyTree, mu: Array) -> Values[Array]:
    """All functions at a point, each as a vector."""
    level = level_at(problem, x, y, data.xi)
    rows, pull = jax.vjp(level.rows, level.start)
    lower, slope = jax.value_and_grad(level.objective)(level.start)
    return Values(
        problem.upper(x, y, data.zeta)[None],
        lower[None],
        upper_rows(problem, x, y),
        _joined(sets.faces(problem.x_set, x).equalities),
        rows,
        slope + pull(mu)[0],
    )


def _table(problem: Problem, data: Data, trees: Trees, x: Array, y: Array, mu: Array) -> Array:
    """One line per function: its value, then its derivatives in (x, y).

    A single array, because every array that a program returns costs as much as a small problem's functions.
    """

    def values(point: Array) -> Array:
        x_now, y_now = trees.x_of(point[: x.size]), trees.y_of(point[x.size :])
        return jnp.concatenate(_functions(problem, data, x_now, y_now, mu))

    point = jnp.concatenate([x, y])
    return jnp.concatenate([values(point)[:, None], jax.jacfwd(values)(point)], axis=1)


def _branches(problem: Problem, data: Data, trees: Trees, x: Array, points: Array, mu: Array) -> Array:
    """One line per start of the lower level, again as a single array: point, multipliers, and the numbers."""
    found = Exact(starts=LOWER_STARTS).branches(problem, trees.x_of(x), trees.y, data.xi, points, mu)
    return jnp.concatenate([part if part.ndim == 2 else part[:, None].astype(x.dtype) for part in found], axis=1)
