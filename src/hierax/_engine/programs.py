"""The compiled problem on the host: NumPy vectors in, values and derivatives out, in the user's units or in others.

Everything is in double precision and on all of the data. `Functions` says what is asked of a problem. Small problems
take it from the table of all derivatives, larger ones from programs that each return no more than is asked for, the
largest (`large`) from sparse matrices or from products with second derivatives; NumPy functions by hand do as well.
"""

import dataclasses
import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree, Scalar

from hierax._base.constants import CHUNK_SECONDS, FINE, LITTLE_DATA, LOWER_STARTS, MANY, NEGLIGIBLE, SHOWN_TOLERANCE
from hierax._base.text import numbers_of
from hierax._base.trees import size
from hierax._engine.columns import BINS, TANGENTS, Along, Places
from hierax._engine.float64_problem import FEW, Data, Float64Problem, HostProgram, upper_faces
from hierax._lower import active_set
from hierax._lower.active_set import Level, Slopes, centre
from hierax._lower.exact import Exact, State, begun, conjugate_gradients, continued
from hierax._lower.linear import CONVERGED, SAME, Matrices, OutOfTime, Products, SecondDerivatives, Stop
from hierax._math import lower_level
from hierax._math.hypergradient import MOST as MAX_ORDER
from hierax._math.lower_level import RUNNING, SOLVED, UNBOUNDED, continued_outside, level_at
from hierax._math.lower_level import unraveled as unraveled
from hierax._math.spectrum import extreme_eigenvalues
from hierax._problem import sets
from hierax._problem.problem import Multipliers, Problem, scaled

if TYPE_CHECKING:
    from hierax._engine.by_hand import HandMade

BY_TABLE = 60  # entries of x and y, and rows, up to which the table of all derivatives is as quick as anything
SIDE_BY_SIDE_NUMBERS = 20_000
"""Numbers of data up to which many starts of a lower level of half the size of a table run as one batch. All of them
take as many steps as the slowest: with 131,072 numbers one call took 44 s, and one start after another 2 s."""
FEASIBLE = FINE  # violation, in units of the rows, up to which a solution of the lower level counts as feasible
DIFFERENT_VALUES = SHOWN_TOLERANCE  # in units of f: from this difference on, solutions of the lower level differ
CLOSE = NEGLIGIBLE  # in units: points nearer than this are one, and a residual below it is near a solution

raveled = numbers_of  # the tree as one vector, without compiling anything

Jacobian = Callable[[Callable[[Array], Array]], Callable[[Array], Array]]
"""`jax.jacfwd`, or what does the same."""


class Values(NamedTuple):
    """All functions at (x, y, mu), or their Jacobians in (x, y).

    Attributes:
        upper: F.
        lower: f.
        above: upper constraints, then the inequalities of X.
        above_equal: the equalities of X.
        rows: of the lower level.
        stationarity: grad_y (f + mu.rows).
    """

    upper: np.ndarray
    lower: np.ndarray
    above: np.ndarray
    above_equal: np.ndarray
    rows: np.ndarray
    stationarity: np.ndarray


class Layout(NamedTuple):
    """Where everything stands in the vectors.

    Attributes:
        nx: entries of x.
        ny: entries of y.
        equal: which rows of the lower level are equalities.
        face: which of them are faces of Y.
        own_above: how many upper constraints there are, which stand before the faces of X.
        above: how many there are with those faces; bounds on single entries of x do not count.
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

    def cut(self, table: np.ndarray) -> Values:
        """A table with one line per function, by name."""
        return Values(table[0], table[1], *(table[part] for part in self.parts))

    def beyond(self, rows: np.ndarray) -> np.ndarray:
        """By how much every row of the lower level is violated."""
        return np.where(self.equal, np.abs(rows), np.maximum(rows, 0.0))

    def kkt_residual(self, values: Values, mu: np.ndarray) -> float:
        """Largest entry of the lower level's KKT system, in units: slope, violation, complementarity, sign of mu."""
        return active_set.residual(values.stationarity, values.rows, mu, self.equal)


class Point(NamedTuple):
    """A point in units: x, y and the multipliers of the lower level's rows."""

    x: np.ndarray
    y: np.ndarray
    mu: np.ndarray


class Branches(NamedTuple):
    """Local solutions of the lower level at one x, from each of many starts (leading axis).

    Attributes:
        y: the points.
        mu: multipliers of all rows, faces of Y included.
        value: f, corrected to first order for the violation that is left.
        violation: the largest, in the units of the rows.
        status: of each; only SOLVED ones are KKT points.
        slope: gradient of the value in x.
    """

    y: np.ndarray
    mu: np.ndarray
    value: np.ndarray
    violation: np.ndarray
    status: np.ndarray
    slope: np.ndarray

    @staticmethod
    def one(layout: Layout, y: np.ndarray, mu: np.ndarray, there: Slopes, status: int) -> "Branches":
        """A single point, with what is known there."""
        value = there.value + mu @ np.where(layout.equal, there.rows, np.maximum(there.rows, 0.0))
        violation = np.max(layout.beyond(there.rows), initial=0.0)
        return Branches(*(np.asarray(part)[None] for part in (y, mu, value, violation, status, there.along_x)))

    @staticmethod
    def read(layout: Layout, line: np.ndarray) -> "Branches":
        """One of the lines that the program `branches` returns."""
        sizes = layout.ny, layout.rows, 1, 1, layout.nx, layout.ny
        y, mu, status, value, along_x, gradient, rows, _ = np.split(line, np.cumsum((*sizes, layout.rows)))
        return Branches.one(layout, y, mu, Slopes(float(value[0]), along_x, gradient, rows), int(status[0]))

    @staticmethod
    def joined(parts: "list[Branches]") -> "Branches":
        """Those of several solves."""
        return Branches(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    @staticmethod
    def none(layout: Layout) -> "Branches":
        """Those of no start."""
        shapes = (layout.ny,), (layout.rows,), (), (), (), (layout.nx,)
        return Branches(*(np.zeros((0, *shape)) for shape in shapes))

    @property
    def unbounded(self) -> bool:
        """Whether f falls without limit from some start."""
        return bool((self.status == UNBOUNDED).any())

    def best(self) -> int | None:
        """The branch of lowest value: among the solved ones, or else the feasible ones; None where there is none."""
        feasible = (self.violation <= FEASIBLE) & np.isfinite(self.value)
        for usable in (feasible & (self.status == SOLVED), feasible):
            if usable.any():
                return int(np.argmin(np.where(usable, self.value, np.inf)))
        return None

    def ties(self, x: np.ndarray, most: float = FEASIBLE) -> list[Point]:
        """The branches at x that are as low as the best one up to `most`, the same one once."""
        best = self.best()
        if best is None:
            return []
        close = self.value <= self.value[best] + most * (1 + abs(self.value[best]))
        places = np.flatnonzero(close & (self.violation <= FEASIBLE) & (self.status == self.status[best]))
        if places.size > 1:  # NumPy takes a second to compare a single long row with none
            places = places[np.unique(np.round(self.y[places] / FEASIBLE), axis=0, return_index=True)[1]]
        return [Point(x, self.y[i], self.mu[i]) for i in places]

    def places(self) -> list[list[int]]:
        """The solved branches, those at one place together."""
        found: list[list[int]] = []
        for i in map(int, np.flatnonzero(self.status == SOLVED)):
            near = (place for place in found if np.max(np.abs(self.y[i] - self.y[place[0]]), initial=0.0) <= NEGLIGIBLE)
            home = next(near, None)
            found.append([i]) if home is None else home.append(i)
        return found

    def different_values(self) -> int:
        """How many different values the solved branches have."""
        values = np.sort(self.value[(self.status == SOLVED) & (self.violation <= FEASIBLE)])
        return int(values.size > 0) + int(np.sum(np.diff(values) > DIFFERENT_VALUES * (1 + np.abs(values[1:]))))


# -- what is traced ---------------------------------------------------------------------------------------------------


class Scale(NamedTuple):
    """(value - origin) / unit is of order one."""

    unit: Scalar | np.ndarray
    origin: Scalar | np.ndarray


class Units(NamedTuple):
    """Everything that a problem is measured in; a tree of arrays, so that programs take it as an argument.

    Attributes:
        x: length of every entry of x.
        y: likewise.
        upper: of F.
        lower: of G.
        rows: of the constraints.
    """

    x: PyTree
    y: PyTree
    upper: Scale
    lower: Scale
    rows: Multipliers


def in_units(problem: Problem, units: Units) -> Problem:
    """The problem of x / lengths and y / lengths, all of whose values are in units (inside programs)."""

    def at(x: PyTree, y: PyTree) -> tuple[PyTree, PyTree]:
        return jax.tree.map(jnp.multiply, x, units.x), jax.tree.map(jnp.multiply, y, units.y)

    moved = dataclasses.replace(
        problem,
        upper=lambda x, y, zeta: (problem.upper(*at(x, y), zeta) - units.upper.origin) / units.upper.unit,
        lower=lambda x, y, xi: (problem.lower(*at(x, y), xi) - units.lower.origin) / units.lower.unit,
        constraints=lambda x, y: problem.constraints(*at(x, y)),
        equalities=lambda x, y: problem.equalities(*at(x, y)),
        upper_constraints=lambda x, y: problem.upper_constraints(*at(x, y)),
        x_set=sets.in_units(problem.x_set, units.x),
        y_set=sets.in_units(problem.y_set, units.y),
    )
    return scaled(moved, units.rows)


class Trees(NamedTuple):
    """The start as trees, which give programs the structure of x and y."""

    x: PyTree
    y: PyTree


class Traced(NamedTuple):
    """A problem in units as functions of vectors, inside a program."""

    problem: Problem
    data: Data
    trees: Trees

    def level(self, x: Array, y: Array) -> lower_level.Level:
        """The lower level at x, started at y."""
        return level_at(self.problem, unraveled(self.trees.x, x), unraveled(self.trees.y, y), self.data.xi)

    def upper(self, x: Array, y: Array) -> Array:
        """F, the upper constraints with the faces of X, and the equalities of X."""
        at = unraveled(self.trees.x, x), unraveled(self.trees.y, y)
        value, faces = self.problem.upper(*at, self.data.zeta), upper_faces(self.problem.x_set, at[0])
        rows = self.problem.upper_constraints(*at), faces.inequalities, faces.equalities
        return lower_level.raveled((value, rows), y.dtype)

    def lower(self, x: Array, y: Array, mu: Array) -> Array:
        """The gradient of L = G + mu.rows in y, then the rows."""
        level = self.level(x, y)
        rows, pull = jax.vjp(level.rows, level.start)
        return jnp.concatenate([jax.grad(level.objective)(level.start) + pull(mu)[0], rows])

    def nearest(self, y: Array) -> Array:
        """The nearest point of Y."""
        return lower_level.raveled(sets.project(self.problem.y_set, unraveled(self.trees.y, y)), y.dtype)

    def land(self, x: Array, y: Array) -> Array:
        """The nearest points of X and Y, one after the other."""
        landed = lower_level.raveled(sets.project(self.problem.x_set, unraveled(self.trees.x, x)), x.dtype)
        return jnp.concatenate([landed, self.nearest(y)])

    def values(self, x: Array, y: Array, mu: Array) -> Array:
        """All functions, in the order of `Values`."""
        level, upper = self.level(x, y), self.upper(x, y)
        rows, pull = jax.vjp(level.rows, level.start)
        lower, slope = jax.value_and_grad(level.objective)(level.start)
        return jnp.concatenate([upper[:1], lower[None], upper[1:], rows, slope + pull(mu)[0]])

    def table(self, jacobian: Jacobian, everything: Array) -> Array:
        """One line per function: its value, then its derivatives in (x, y); `everything` are x, y and mu."""
        nx, n = size(self.trees.x), size(self.trees)

        def functions(point: Array) -> Array:
            return self.values(point[:nx], point[nx:], everything[n:])

        point = everything[:n]
        return jnp.concatenate([functions(point)[:, None], jacobian(functions)(point)], axis=1)

    def slopes(self, x: Array, y: Array, mu: Array) -> Array:
        """G, the gradient of L in x and in y, and the rows, one after the other."""

        def lagrangian(x: Array, y: Array) -> tuple[Array, tuple[Array, Array]]:
            level = self.level(x, y)
            value, rows = level.objective(level.start), level.rows(level.start)
            return value + mu @ rows, (value, rows)

        (of_x, of_y), (value, rows) = jax.grad(lagrangian, (0, 1), has_aux=True)(x, y)
        return jnp.concatenate([value[None], of_x, of_y, rows])

    def along(self, x: Array, y: Array, mu: Array, directions: Array) -> Array:
        """The derivatives of `lower` along directions of y, one line for each."""
        return _pushed(lambda y: self.lower(x, y, mu), y, directions)

    def matrices(self, jacobian: Jacobian, x: Array, y: Array, mu: Array) -> Array:
        """The Hessian of L in y, and below it the Jacobian of the rows."""
        return jacobian(lambda y: self.lower(x, y, mu))(y)

    def mixed(self, x: Array, y: Array, mu: Array) -> Array:
        """The derivatives in x of the gradient of L in y, then of the rows."""
        return in_blocks(lambda x: self.lower(x, y, mu))(x)

    def upper_table(self, x: Array, y: Array) -> Array:
        """One line per function of the upper level: its value, then its derivatives in (x, y)."""
        return jnp.concatenate([self.upper(x, y)[:, None], *jax.jacrev(self.upper, (0, 1))(x, y)], axis=1)

    def pulled_back(self, x: Array, y: Array, mu: Array, adjoints: Array) -> Array:
        """Each of the adjoints times the derivatives in x of `lower`."""
        return jax.jacrev(lambda x: adjoints @ self.lower(x, y, mu))(x)

    def product(self, x: Array, y: Array, mu: Array, a: Array, b: Array) -> Array:
        """H a + J'b, then J a."""
        return jax.jvp(lambda y, mu: self.lower(x, y, mu), (y, mu), (a, b))[1]

    def least_curvature(self, x: Array, y: Array, mu: Array, free: Array) -> Array:
        """About the smallest eigenvalue of L_yy on some entries (Lanczos: never below it)."""

        def times(u: Array) -> Array:
            _, both = jax.jvp(lambda y: self.lower(x, y, mu), (y,), (jnp.where(free, u, 0.0),))
            return jnp.where(free, both[: y.size], u)

        return extreme_eigenvalues(times, y)[0]


def sizes(traced: Traced, x: Array, y: Array) -> tuple[Array, Array, Array]:
    """F, G and the typical size of its curvature; norms of the gradients of upper functions, and of the rows."""
    level = traced.level(x, y)
    gradient = jax.grad(level.objective)(level.start)
    found = lower_level.units_at(level, level.start, level.rows(level.start), gradient, jnp.asarray(1e-8))
    squares = sum(jnp.sum(part**2, axis=1) for part in jax.jacrev(traced.upper, (0, 1))(x, y))
    values = traced.upper(x, y)[0], level.objective(level.start), found.curvature
    return jnp.stack(values), jnp.sqrt(squares), found.row


def boxes(setting: Float64Problem) -> tuple[sets.Bounds, sets.Bounds]:
    """The boxes around X and Y."""

    def program(problem: Problem, data: Data, x: PyTree, y: PyTree) -> tuple[sets.Bounds, sets.Bounds]:
        return sets.bounds(problem.x_set, x), sets.bounds(problem.y_set, y)

    return setting.once("boxes", lambda: setting.run("boxes", program, setting.x, setting.y, quick=True))


def _pushed(function: Callable[[Array], Array], at: Array, directions: Array) -> Array:
    """The derivatives of a function along some directions, one line for each."""
    _, push = jax.linearize(function, at)
    return jax.lax.map(push, directions, batch_size=TANGENTS)


def in_blocks(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """The same as `jax.jacfwd`, for functions of much data: a few tangents at a time."""
    return lambda at: _pushed(function, at, jnp.eye(at.size, dtype=at.dtype)).T


def branches(starts: int, traced: Traced, x: Array, points: Array, mu: Array, until: Array, loops: Array) -> Array:
    """One line per start of the lower level: point, multipliers, status, what `Traced.slopes` returns there, and the
    numbers of its loop, which goes on from those in `loops` (begins, where these are zero) to the Newton step `until`.

    With `starts` > 1 Newton steps take negative curvature into account.
    """
    level = continued_outside(traced.level(x, lower_level.raveled(traced.trees.y, x.dtype)), traced.problem.y_set)

    def one(point: Array, mu: Array, loop: Array) -> Array:
        start = traced.nearest(point)
        beginning = begun(start, mu)
        numbers = jnp.where(loop.any(), loop, lower_level.raveled(beginning, x.dtype))
        state = jax.tree.map(lambda a, b: a.astype(b.dtype), unraveled(beginning, numbers), beginning)
        state = Exact(starts=starts).went_on(level, state, start, until)
        landed, after = traced.nearest(state.v), lower_level.raveled(state, x.dtype)
        there = traced.slopes(x, landed, state.mu)
        return jnp.concatenate([landed, state.mu, state.status[None].astype(x.dtype), there, after])

    return jax.vmap(one)(points, mu, loops)


def begin(traced: Traced, y: Array, mu: Array) -> State:
    """The state of the loop of `Exact` that starts at y."""
    return begun(traced.nearest(y), mu)


def advance(traced: Traced, x: Array, y: Array, state: State, tol: Array, until: Array) -> State:
    """A few Newton steps of the loop that started at y."""
    level = continued_outside(traced.level(x, traced.nearest(y)), traced.problem.y_set)
    return continued(level, state, level.start, tol, Exact().max_steps, conjugate_gradients, until)


# -- the compiled problem ----------------------------------------------------------------------------------------------


class Programs:
    """The compiled problem: what all `VectorProblem`s of a setting share.

    Where the same problem is there by `hand`, nothing is compiled.

    Attributes:
        large: whether the matrices of the problem are too large to be formed, or are there by hand.
        by_table: whether it is so small that nothing less than the table of all derivatives is worth a program.
        lanes: how many starts of the lower level are solved side by side.
        entrywise: whether X and Y are boxes.
        x_limits: the smallest box around X, infinite where there is none.
        y_limits: likewise around Y.
    """

    def __init__(self, setting: Float64Problem, hand: "HandMade | None" = None) -> None:
        self.setting, self.hand = setting, hand
        problem = setting.bound.problem
        self.layout = layout = setting.once("places", lambda: layout_in(setting))
        self.trees, self.raw = Trees(setting.x, setting.y), raw_units(setting)
        self.numbers = setting.once("numbers", lambda: setting.numbers)
        self.little_data = self.numbers <= LITTLE_DATA
        self.large = hand is not None or not fits(setting)
        self.by_table = hand is None and self.little_data and layout.nx + layout.ny + layout.rows <= BY_TABLE
        together = self.numbers <= SIDE_BY_SIDE_NUMBERS and layout.ny + layout.rows <= BY_TABLE // 2
        self.lanes = LOWER_STARTS if together else 1
        self.x_groups = sets.shared_units(problem.x_set, setting.x)
        self.y_groups = sets.shared_units(problem.y_set, setting.y)
        self.x_limits, self.y_limits = boxes(setting)
        self.entrywise = sets.all_entrywise(problem.x_set) and sets.all_entrywise(problem.y_set)

    def functions(self, units: Units, stop: Stop = lambda: False) -> "Functions":
        """The problem in units; where `stop` says so, long solves raise `OutOfTime`."""
        if self.hand is not None:
            return self.hand.in_units(self, units)
        if self.large:
            return LargeFunctions(self, units, stop)
        return FunctionsByTable(self, units) if self.by_table else Functions(self, units)

    @functools.cached_property
    def raw_functions(self) -> "Functions":
        """The problem in the user's units."""
        return self.functions(self.raw)

    def at(self, x: np.ndarray, y: np.ndarray) -> tuple[Values, Values]:
        """Values and Jacobians in the user's units, without multipliers."""
        return self.raw_functions.at(x, y, np.zeros(self.layout.rows))

    def raw_values(self, x: np.ndarray, y: np.ndarray) -> Values:
        """All functions in the user's units, without multipliers."""
        return self.raw_functions.values(x, y, np.zeros(self.layout.rows))

    def landed(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The nearest points of X and Y, in the user's units."""
        x, y = np.clip(x, *self.x_limits), np.clip(y, *self.y_limits)
        if not self.entrywise:
            x, y = np.split(self.raw_functions.call("land", Traced.land, x, y), [x.size])
        return x, y


def fits(setting: Float64Problem) -> bool:
    """Whether the matrices of the problem are small enough to be formed."""
    rows, nx, ny = setting.layout().equal.size, size(setting.x), size(setting.y)
    return ny + min(rows, ny) <= MAX_ORDER and nx <= MAX_ORDER


def _in_units(program: Callable[..., PyTree]) -> Callable[..., PyTree]:
    """A program of `Traced` as a `Float64Problem` compiles it."""

    def whole(problem: Problem, data: Data, trees: Trees, units: Units, *args: PyTree) -> PyTree:
        return program(Traced(in_units(problem, units), data, trees), *args)

    return whole


def raw_units(setting: Float64Problem) -> Units:
    """Units of one: everything as the user measures it."""
    none = Scale(np.ones(()), np.zeros(()))
    rows = jax.tree.map(lambda row: np.ones(row.shape), setting.shapes())
    x, y = (jax.tree.map(np.ones_like, tree) for tree in (setting.x, setting.y))
    return Units(x, y, none, none, rows)


def layout_in(setting: Float64Problem) -> Layout:
    """Where everything of a setting's problem stands in vectors."""
    x_set, rows = setting.bound.problem.x_set, setting.layout()
    faces = jax.eval_shape(lambda x: upper_faces(x_set, x), setting.x)
    own_above = size(setting.shapes().upper)
    above = own_above + size(faces.inequalities)
    nx, ny = size(setting.x), size(setting.y)
    ends = np.cumsum([2, above, size(faces.equalities), rows.equal.size, ny])
    parts = tuple(slice(low, high) for low, high in itertools.pairwise(ends))
    return Layout(nx, ny, rows.equal, rows.face, own_above, above, parts)


# -- functions in units -----------------------------------------------------------------------------------------------


class Functions:
    """A problem in units, by programs that are each compiled when they are first asked for.

    mu are multipliers of all rows of the lower level, L = G + mu.rows. Functions of the upper level are F, the upper
    constraints with the faces of X, then the equalities of X.

    Attributes:
        formed: matrices so far, which say how later ones are formed; whoever sets it to zero makes that forgotten.
    """

    solved = active_set.SOLVED_RESIDUAL
    """KKT residual that counts as solved."""

    costly = True
    """Whether matrices cost more than slopes."""

    def __init__(self, programs: Programs, units: Units) -> None:
        self.programs, self.units, self.layout = programs, units, programs.layout
        self._compiled: dict[str, HostProgram] = {}
        self._last: tuple[bytes, np.ndarray] | None = None  # the point and the lines of the last table
        self._places = programs.setting.once("places of entries", Places)
        self._along: Along = lambda *at: self.call(f"along {len(at[-1])}", Traced.along, *at)
        self.formed = 0
        self._piece = 1  # Newton steps of the lower level's loops at once: the more the quicker they are

    def call(self, name: str, program: Callable[..., PyTree], *args: PyTree) -> PyTree:
        """A program of `Traced` by its name, compiled at its first call."""
        if name not in self._compiled:
            fixed = self.programs.trees, self.units
            self._compiled[name] = self.programs.setting.ready(name, _in_units(program), *args, fixed=fixed)
        return self._compiled[name](*args)

    def lines(self, point: np.ndarray) -> np.ndarray:
        """One line per function: its value, then its derivatives in (x, y), at x, y and mu one after another."""
        key = point.tobytes()
        if self._last is None or self._last[0] != key:
            little = self.programs.little_data
            name, jacobian = ("values", jax.jacfwd) if little else ("values in blocks", in_blocks)
            self._last = key, self.call(name, lambda traced, point: traced.table(jacobian, point), point)
        return self._last[1]

    def at(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> tuple[Values, Values]:
        """Values and Jacobians, from the table of all derivatives."""
        lines = self.lines(np.concatenate([x, y, mu]))
        return self.layout.cut(lines[:, 0]), self.layout.cut(lines[:, 1:])

    def values(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Values:
        """All functions."""
        return self.layout.cut(self.call("functions", Traced.values, x, y, mu))

    def slopes(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Slopes:
        """G, the gradients of L, and the rows."""
        numbers = self.call("slopes", Traced.slopes, x, y, mu)
        along_x, gradient, rows = np.split(numbers[1:], [x.size, x.size + y.size])
        return Slopes(float(numbers[0]), along_x, gradient, rows)

    def matrices(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> SecondDerivatives:
        """The Jacobian of the rows in y, and the Hessian of L in y.

        Where they keep changing and there are few entries, columns that share no row are computed together.
        """
        self.formed += 1
        few = self._places.at(self._along, x, y, mu) if y.size > 2 * BINS and self.formed > FEW else None
        if few is not None:
            both = few.toarray()
        else:
            name, jacobian = ("matrices", jax.jacfwd) if self.programs.little_data else ("in blocks", in_blocks)
            both = self.call(name, lambda traced, *at: traced.matrices(jacobian, *at), x, y, mu)
        return Matrices(both[y.size :], both[: y.size])

    def mixed(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> np.ndarray:
        """The derivatives in x of the gradient of L in y, then of the rows."""
        return self.call("mixed", Traced.mixed, x, y, mu)

    def upper(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The functions of the upper level, and their derivatives in (x, y)."""
        table = self.call("upper", Traced.upper_table, x, y)
        return table[:, 0], table[:, 1:]

    def pulled(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, adjoints: np.ndarray) -> np.ndarray:
        """Each of the adjoints (a, b) times the derivatives in x of (the gradient of L in y, the rows)."""
        return self.call("pulled", Traced.pulled_back, x, y, mu, adjoints)

    def least_curvature(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, free: np.ndarray) -> float:
        """About the smallest eigenvalue of L_yy on some entries, never below it."""
        return float(self.call("least curvature", Traced.least_curvature, x, y, mu, free))

    def sizes(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """F, G and the typical size of its curvature; norms of the gradients of upper functions, and of the rows."""
        return self.call("sizes", sizes, x, y)

    def branches(self, x: np.ndarray, points: np.ndarray, mu: np.ndarray, convex: bool) -> Branches:
        """The lower level solved at x from each of the points and multipliers.

        Where the starts are solved one after another, levels that look `convex` have a program that is quicker.
        """
        lanes, found, layout = self.programs.lanes, [], self.layout
        name, starts = ("branches of a convex level", 1) if convex and lanes == 1 else ("branches", LOWER_STARTS)
        like = np.zeros(layout.ny), np.zeros(layout.rows)
        numbers = self.programs.setting.once("numbers of a loop", lambda: size(jax.eval_shape(begun, *like)))
        for first in range(0, len(points), lanes):
            turns = first + np.arange(lanes) % min(lanes, len(points) - first)
            loops, until, status = np.zeros((lanes, numbers)), 0, np.full(lanes, RUNNING)
            while (status == RUNNING).any():  # in pieces that are short, so that the clock is looked at
                until += self._piece
                begin = time.perf_counter() - self.programs.setting.bound.compile_seconds
                step = np.asarray(until, np.int32)
                lines = self.call(name, functools.partial(branches, starts), x, points[turns], mu[turns], step, loops)
                loops, status = lines[:, -numbers:], lines[:, layout.ny + layout.rows]
                seconds = time.perf_counter() - self.programs.setting.bound.compile_seconds - begin
                self._piece = max(1, self._piece // 2) if seconds > CHUNK_SECONDS else min(2 * self._piece, MANY)
            found += [Branches.read(layout, line) for line in lines[: len(points) - first]]
        return Branches.joined(found)

    def level(self, x: np.ndarray, landed: Callable[[np.ndarray], np.ndarray]) -> Level:
        """The lower level at x, for the solvers on the host; `landed`: the nearest point of Y."""
        slopes, matrices = functools.partial(self.slopes, x), functools.partial(self.matrices, x)
        return Level(self.layout.equal, slopes, matrices, landed, self.solved, self.costly)

    def from_afar(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, convex: bool = True) -> Iterator[Branches]:
        """The lower level from anywhere, by solvers that arrive more often than a follower: the last one is the end."""
        yield self.branches(x, y[None], mu[None], convex)


class FunctionsByTable(Functions):
    """Those of a small problem, from the table of all derivatives."""

    costly = False

    def values(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Values:
        return self.at(x, y, mu)[0]

    def slopes(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Slopes:
        values, slopes = self.at(x, y, mu)
        along_x = slopes.lower[: x.size] + mu @ slopes.rows[:, : x.size]
        return Slopes(float(values.lower), along_x, values.stationarity, values.rows)

    def matrices(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Matrices:
        _, slopes = self.at(x, y, mu)
        return Matrices(slopes.rows[:, x.size :], slopes.stationarity[:, x.size :])

    def mixed(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> np.ndarray:
        _, slopes = self.at(x, y, mu)
        return np.concatenate([slopes.stationarity, slopes.rows])[:, : x.size]

    def upper(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, slopes = self.at(x, y, np.zeros(self.layout.rows))
        both = [np.concatenate([[one.upper], one.above, one.above_equal]) for one in (values, slopes)]
        return both[0], both[1]

    def pulled(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, adjoints: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore", invalid="ignore"):  # slopes may be infinite: then nothing is known
            return adjoints @ self.mixed(x, y, mu)


class LargeFunctions(Functions):
    """Those whose matrices do not fit as dense ones: sparse, where they have few entries, else by products."""

    solved = CONVERGED

    def __init__(self, programs: Programs, units: Units, stop: Stop) -> None:
        super().__init__(programs, units)
        self._stop = stop

    def matrices(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> SecondDerivatives:
        if self._stop():
            raise OutOfTime
        both = self._places.at(self._along, x, y, mu)
        if both is not None:
            return Matrices(both[y.size :], both[: y.size])

        def product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            both = self.call("product", Traced.product, x, y, mu, a, b)
            return both[: y.size], both[y.size :]

        return Products(product, y.size, mu.size, self._stop)

    def branches(self, x: np.ndarray, points: np.ndarray, mu: np.ndarray, convex: bool) -> Branches:
        return Branches.joined([list(self.from_afar(x, *one, convex))[-1] for one in zip(points, mu, strict=True)])

    def from_afar(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, convex: bool = True) -> Iterator[Branches]:
        """By an interior point method where matrices are sparse, else (and where that fails) by the loop of `Exact`."""
        del convex
        if isinstance(self.matrices(x, y, mu), Matrices):
            try:  # there the active rows are clear
                found = centre(self.level(x, lambda y: y), y, np.ones_like(mu), SAME)
            except RuntimeError:  # a singular system
                found = None
            if found is not None:
                yield Branches.one(self.layout, found.y, found.mu, found.slopes, SOLVED)
        yield from self._by_loop(x, y, mu)

    def _by_loop(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Iterator[Branches]:
        """The loop of `Exact`, a few steps at a time so that the clock is looked at: where it is close, and its end."""
        state, shown = self.call("begin from afar", begin, y, mu), False
        tol = np.asarray(0.1 * self.solved)
        while int(state.status) == RUNNING:
            if self._stop():
                raise OutOfTime
            until = np.asarray(int(state.steps) + FEW, np.int32)
            state = self.call("steps from afar", advance, x, y, state, tol, until)
            if not shown and float(state.residual) <= CLOSE:
                shown = True
                yield self._reached(x, state, SOLVED)
        yield self._reached(x, state, int(state.status))

    def _reached(self, x: np.ndarray, state: State, status: int) -> Branches:
        y, mu = np.asarray(state.v), np.asarray(state.mu)
        return Branches.one(self.layout, y, mu, self.slopes(x, y, mu), status)
