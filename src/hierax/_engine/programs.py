"""The compiled problem, in the user's units or in others: what the host's view of it (`vectors.py`) is made of.

Everything is in double precision and on all of the data. Three small programs are compiled, and shared by the routes of
`Auto` and the certificate: the points that cover X and Y, all functions with their Jacobians, and the lower level
solved from many starts. Where matrices do not fit (`large`) neither the table nor the last one is compiled.
"""

import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base.constants import LITTLE_DATA, LOWER_STARTS
from hierax._base.trees import size
from hierax._engine.float64_problem import Data, Float64Problem, HostProgram
from hierax._engine.units import RowUnits, Scale, Units, in_units
from hierax._lower.exact import Exact
from hierax._math.hypergradient import MOST as MAX_ORDER
from hierax._math.lower_level import level_at
from hierax._problem import sets
from hierax._problem.problem import Problem

if TYPE_CHECKING:
    from hierax._engine.by_hand import HandMade

BY_TABLE = 60  # entries of x and y, and rows, up to which the table of all derivatives is as quick as anything
BLOCK = 16  # tangents through much data at a time
SIDE_BY_SIDE, SIDE_BY_SIDE_NUMBERS = 30, 20_000
"""Entries of y and rows, and numbers of data, up to which many starts of the lower level run as one batch. All of them
take as many steps as the slowest: with 131,072 numbers one call took 44 s, and one start after another 2 s."""

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


class Layout(NamedTuple):
    """Where everything stands in the vectors.

    Attributes:
        nx: entries of x.
        ny: entries of y.
        equal: which rows of the lower level are equalities.
        face: which of them are faces of Y.
        own_above: how many upper constraints there are, which stand before the faces of X.
        above: how many there are with those faces.
        parts: the slices of `Values` after F and f.
    """

    nx: int
    ny: int
    equal: np.ndarray
    face: np.ndarray
    own_above: int
    above: int
    parts: tuple[slice, ...]

    @property
    def rows(self) -> int:
        """Rows of the lower level."""
        return self.equal.size

    @property
    def above_equal(self) -> int:
        """Equalities of X."""
        return self.parts[1].stop - self.parts[1].start

    def cut(self, table: np.ndarray) -> Values[np.ndarray]:
        """A table with one line per function, by name."""
        return Values(table[0], table[1], *(table[part] for part in self.parts))


class Programs:
    """The compiled problem in the user's units: what all `VectorProblem`s of a setting share.

    Where the same problem is there by `hand`, nothing is compiled.
    """

    def __init__(self, setting: Float64Problem, hand: "HandMade | None" = None) -> None:
        self.setting, self.hand = setting, hand
        self.layout = layout = setting.once("places", lambda: layout_in(setting))
        self.trees = Trees(setting.x, setting.y)
        self.raw = raw_units(setting)
        x, y = raveled(setting.x), raveled(setting.y)
        self.numbers = setting.once("numbers", lambda: setting.numbers)
        self.little_data = self.numbers <= LITTLE_DATA
        together = self.numbers <= SIDE_BY_SIDE_NUMBERS and layout.ny + layout.rows <= SIDE_BY_SIDE
        self.lanes = LOWER_STARTS if together else 1
        problem = setting.bound.problem
        self.x_groups, self.y_groups = (
            sets.shared_units(convex, tree)
            for convex, tree in zip((problem.x_set, problem.y_set), self.trees, strict=True)
        )
        found = setting.once("boxes", lambda: setting.run("boxes", boxes, self.trees, quick=True))
        self.x_limits, self.y_limits = (Limits(*box) for box in found)
        self.entrywise = sets.all_entrywise(problem.x_set) and sets.all_entrywise(problem.y_set)
        self._land = None if self.entrywise else setting.ready("land", land, self.trees, x, y).given(self.trees)

    @functools.cached_property
    def table(self) -> HostProgram:
        """The program of all functions and their Jacobians."""
        name, table = ("values", _table) if self.little_data else ("values by parts", _table_by_parts)
        point = np.concatenate([raveled(self.setting.x), raveled(self.setting.y), np.zeros(self.layout.rows)])
        return self.setting.ready(name, table, self.trees, self.raw, point)

    @functools.cached_property
    def _raw_table(self) -> HostProgram:
        return self.table.given(self.trees, self.raw)

    def at(self, x: np.ndarray, y: np.ndarray) -> tuple[Values[np.ndarray], Values[np.ndarray]]:
        """Values and Jacobians in the user's units, without multipliers."""
        table = self._raw_table(np.concatenate([x, y, np.zeros(self.layout.rows)]))
        return self.layout.cut(table[:, 0]), self.layout.cut(table[:, 1:])

    def raw_values(self, x: np.ndarray, y: np.ndarray) -> Values[np.ndarray]:
        """All functions in the user's units, without multipliers."""
        if self.by_table:
            return self.at(x, y)[0]
        return self.values_in(self.raw, x, y, np.zeros(self.layout.rows))

    def values_in(self, units: Units, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Values[np.ndarray]:
        """All functions in units."""
        if self.hand is not None:
            return self.hand.in_units(self.layout, units).values(x, y, mu)
        return self.layout.cut(self.values(self.trees, units, x, y, mu))

    @functools.cached_property
    def large(self) -> bool:
        """Whether the matrices of the problem are too large to be formed, or are there by hand."""
        ny, rows = self.layout.ny, self.layout.rows
        return self.hand is not None or ny + min(rows, ny) > MAX_ORDER or self.layout.nx > MAX_ORDER

    @property
    def by_table(self) -> bool:
        """Whether the problem is so small that nothing less than the table is worth a program of its own."""
        return self.hand is None and self.little_data and self.layout.nx + self.layout.ny + self.layout.rows <= BY_TABLE

    @functools.cached_property
    def slopes(self) -> HostProgram:
        """The program of G, the gradient of L in x and in y, and the rows."""
        x, y = raveled(self.setting.x), raveled(self.setting.y)
        return self.setting.ready("slopes", _slopes, self.trees, self.raw, x, y, np.zeros(self.layout.rows))

    @functools.cached_property
    def values(self) -> HostProgram:
        """The program of all functions, without derivatives."""
        x, y = raveled(self.setting.x), raveled(self.setting.y)
        return self.setting.ready("functions", _values, self.trees, self.raw, x, y, np.zeros(self.layout.rows))

    def branches(self, convex: bool) -> HostProgram:
        """The program that solves the lower level from `lanes` starts; a quicker one for large and convex ones."""
        y = raveled(self.setting.y)
        points, mu = np.tile(y, (self.lanes, 1)), np.zeros((self.lanes, self.layout.rows))
        args = self.trees, self.raw, raveled(self.setting.x), points, mu
        if convex and self.lanes == 1:
            return self.setting.ready("branches of a convex level", functools.partial(_branches, 1), *args)
        return self.setting.ready("branches", functools.partial(_branches, LOWER_STARTS), *args)

    def landed(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The nearest points of X and Y, in the user's units."""
        x, y = np.clip(x, *self.x_limits), np.clip(y, *self.y_limits)
        if self._land is not None:
            x, y = np.split(self._land(x, y), [x.size])
        return x, y


def raw_units(setting: Float64Problem) -> Units:
    """Units of one: everything as the user measures it."""
    none = Scale(np.ones(()), np.zeros(()))
    rows = RowUnits(*(jax.tree.map(_ones, setting.shapes(name)) for name in RowUnits._fields))
    x, y = (jax.tree.map(np.ones_like, tree) for tree in (setting.x, setting.y))
    return Units(x, y, none, none, rows)


def layout_in(setting: Float64Problem) -> Layout:
    """Where everything of a setting's problem stands in vectors."""
    x_set, rows = setting.bound.problem.x_set, setting.layout()
    faces = jax.eval_shape(lambda x: sets.faces(x_set, x), setting.x)
    own_above = sum(row.size for row in jax.tree.leaves(setting.shapes("upper_constraints")))
    above = own_above + size(faces.inequalities)
    nx, ny = size(setting.x), size(setting.y)
    counts = (1, 1, above, size(faces.equalities), rows.equal.size, ny)
    ends = np.cumsum([0, *counts])[2:]
    parts = tuple(slice(low, high) for low, high in itertools.pairwise(ends))
    return Layout(nx, ny, rows.equal, rows.face, own_above, above, parts)


def raveled(tree: PyTree) -> np.ndarray:
    """The tree as one vector, without compiling anything."""
    return np.concatenate([np.zeros(0), *(np.ravel(np.asarray(leaf)) for leaf in jax.tree.leaves(tree))])


def unraveled(like: PyTree, vector: np.ndarray) -> PyTree:
    """A vector in the structure of a tree, likewise."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])
    return jax.tree.unflatten(
        structure, [vector[end - leaf.size : end].reshape(leaf.shape) for end, leaf in zip(ends, leaves, strict=True)]
    )


def _ones(row: jax.ShapeDtypeStruct) -> np.ndarray:
    return np.ones(row.shape)


# -- programs ---------------------------------------------------------------------------------------------------------


def boxes(problem: Problem, data: Data, start: Trees) -> tuple[sets.Bounds, sets.Bounds]:
    """The boxes around X and Y."""
    del data
    return sets.bounds(problem.x_set, start.x), sets.bounds(problem.y_set, start.y)


def land(problem: Problem, data: Data, trees: Trees, x: Array, y: Array) -> Array:
    """The nearest points of X and Y, one after the other."""
    del data
    landed = sets.project(problem.x_set, trees.x_of(x)), sets.project(problem.y_set, trees.y_of(y))
    return jnp.concatenate([jax.flatten_util.ravel_pytree(part)[0] for part in landed])


def upper_rows(problem: Problem, x: PyTree, y: PyTree) -> Array:
    """The upper constraints, then the inequalities of X."""
    return joined((problem.upper_constraints(x, y), sets.faces(problem.x_set, x).inequalities))


def joined(tree: PyTree) -> Array:
    """All leaves of a tree as one vector."""
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
        joined(sets.faces(problem.x_set, x).equalities),
        rows,
        slope + pull(mu)[0],
    )


def _values(problem: Problem, data: Data, trees: Trees, units: Units, x: Array, y: Array, mu: Array) -> Array:
    """All functions, one after the other."""
    return jnp.concatenate(_functions(in_units(problem, units), data, trees.x_of(x), trees.y_of(y), mu))


def _table(problem: Problem, data: Data, trees: Trees, units: Units, everything: Array) -> Array:
    """One line per function: its value, then its derivatives in (x, y); `everything` are x, y and mu.

    Single arrays, because every array that a program takes or returns costs as much as a small problem's functions.
    """
    problem = in_units(problem, units)
    nx, ny = size(trees.x), size(trees.y)
    point, mu = everything[: nx + ny], everything[nx + ny :]

    def values(point: Array) -> Array:
        x_now, y_now = trees.x_of(point[:nx]), trees.y_of(point[nx:])
        return jnp.concatenate(_functions(problem, data, x_now, y_now, mu))

    return jnp.concatenate([values(point)[:, None], jax.jacfwd(values)(point)], axis=1)


def _table_by_parts(problem: Problem, data: Data, trees: Trees, units: Units, everything: Array) -> Array:
    """The same for much data: F and f take one pass back through it each, not one forth for every variable.

    More operations, so that it takes longer to compile; a few tangents at a time (`forward`).
    """
    problem = in_units(problem, units)
    nx, ny = size(trees.x), size(trees.y)
    point, mu = everything[: nx + ny], everything[nx + ny :]

    def functions(point: Array) -> Values[Array]:
        return _functions(problem, data, trees.x_of(point[:nx]), trees.y_of(point[nx:]), mu)

    def lines(part: Callable[[Array], Array], jacobian: Callable[..., PyTree]) -> Array:
        return jnp.concatenate([part(point)[:, None], jacobian(part)(point)], axis=1)

    above = lines(lambda point: jnp.concatenate(functions(point)[:2]), jax.jacrev)
    below = lines(lambda point: jnp.concatenate(functions(point)[2:]), lambda part: functools.partial(forward, part))
    return jnp.concatenate([above, below])


def forward(function: Callable[[Array], Array], at: Array) -> Array:
    """The Jacobian of a function of much data, BLOCK tangents at a time: all at once would not fit into memory."""
    _, push = jax.linearize(function, at)
    return jax.lax.map(push, jnp.eye(at.size, dtype=at.dtype), batch_size=BLOCK).T


def _branches(
    starts: int, problem: Problem, data: Data, trees: Trees, units: Units, x: Array, points: Array, mu: Array
) -> Array:
    """One line per start of the lower level, again as a single array: point, multipliers, and the numbers.

    With `starts` > 1 Newton steps take negative curvature into account.
    """
    problem = in_units(problem, units)
    found = Exact(starts=starts).branches(problem, trees.x_of(x), trees.y, data.xi, points, mu)
    return jnp.concatenate([part if part.ndim == 2 else part[:, None].astype(x.dtype) for part in found], axis=1)


def _slopes(problem: Problem, data: Data, trees: Trees, units: Units, x: Array, y: Array, mu: Array) -> Array:
    """G, the gradient of L in x and in y, and the rows, one after the other."""
    problem = in_units(problem, units)

    def lagrangian(x: Array, y: Array) -> tuple[Array, tuple[Array, Array]]:
        level = level_at(problem, trees.x_of(x), trees.y_of(y), data.xi)
        value, rows = level.objective(level.start), level.rows(level.start)
        return value + mu @ rows, (value, rows)

    (of_x, of_y), (value, rows) = jax.grad(lagrangian, (0, 1), has_aux=True)(x, y)
    return jnp.concatenate([value[None], of_x, of_y, rows])
