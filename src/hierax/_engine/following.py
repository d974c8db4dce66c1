r"""y*(x) followed as x moves, and gradients through it: the lower level of `vectors.py` for `hierax._lower.active_set`.

With K the KKT system of the lower level on its active rows and U a function of (x, y), K (a, b) = (U_y, 0) gives

    dU(x, y*(x))/dx = U_x - a'L_yx - b'r_x,

one system per function whatever the number of x, and no second derivative in x. Small problems take what is needed from
the table of all derivatives; for larger ones four programs are compiled that each return no more than is asked for.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._engine.columns import Columns
from hierax._engine.float64_problem import Data, HostProgram
from hierax._engine.programs import Layout, Programs, Trees, Values, forward, joined, raveled, upper_rows
from hierax._engine.table import Table
from hierax._engine.units import Units, in_units
from hierax._lower.active_set import Found, Level, Slopes, Tracker
from hierax._lower.centred import Centre, centre
from hierax._lower.kkt_systems import Matrices
from hierax._math.lower_level import level_at
from hierax._problem import sets
from hierax._problem.problem import Problem

WAYS = 64  # directions at a time
FLAT = 1e7  # in units: where y answers to a push by so much, it is not unique


class Total(NamedTuple):
    """Functions of the upper level at (x, y*(x)), and their derivatives in x through y*.

    Attributes:
        upper: F.
        slope: its gradient.
        above: the upper constraints, then the faces of X.
        above_slopes: their Jacobian.
        equal: the equalities of X.
        equal_slopes: their Jacobian.
    """

    upper: float
    slope: np.ndarray
    above: np.ndarray
    above_slopes: np.ndarray
    equal: np.ndarray
    equal_slopes: np.ndarray


class Follower:
    """Follows the solution of a lower level that looks convex."""

    def __init__(self, programs: Programs, units: Units, table: Table) -> None:
        self.programs, self.units, self.layout = programs, units, programs.layout
        self._tracker = Tracker()
        self._y_unit = raveled(units.y)
        self._box = [bound / self._y_unit for bound in programs.y_limits]
        self._source: _FromTable | _FromPrograms = (
            _FromTable(programs.layout, table) if programs.by_table else _FromPrograms(programs, units)
        )

    def forget(self) -> None:
        """Drop what earlier solves leave to later ones."""
        self._tracker = Tracker()
        self._source.forget()

    def solve(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Found | None:
        """The lower level's solution at x (inside X) from near y and mu; None where it was not reached."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self._tracker.solve(self._level(x), y, mu)

    def held(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, active: np.ndarray) -> Found | None:
        """y and mu at x with the given rows active, whatever their signs; None where the steps do not arrive."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self._tracker.held(self._level(x), y, mu, active)

    def centred(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, t: float) -> Centre | None:
        """The point of the lower level's central path at x and t, from near y and mu; None where it is not reached."""
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            return centre(self._level(x), y, mu, t)

    def _level(self, x: np.ndarray) -> Level:
        return Level(
            self.layout.equal,
            functools.partial(self._source.slopes, x),
            functools.partial(self._source.matrices, x),
            self._landed,
            by_last_system=not self.programs.by_table,
        )

    def _landed(self, y: np.ndarray) -> np.ndarray:
        if self.programs.entrywise:
            return np.minimum(np.maximum(y, self._box[0]), self._box[1])
        anywhere = raveled(self.programs.trees.x)
        return self.programs.landed(anywhere, y * self._y_unit)[1] / self._y_unit

    def unique(self, found: Found) -> bool:
        """Whether y* is the only solution nearby: it answers to a push in a bounded way."""
        return found.system.stiffness() <= FLAT

    def determined(self, x: np.ndarray, found: Found) -> bool:
        """Whether the upper level sees only what is unique of y*, as total flows where the flows are not."""
        _, in_y = self._source.upper(x, found.y)
        answers, _ = found.system.solve(in_y.T.copy(), np.zeros((found.mu.size, len(in_y))))
        return bool(np.max(np.abs(answers), initial=0.0) <= FLAT * max(1.0, np.max(np.abs(in_y), initial=0.0)))

    def total(self, x: np.ndarray, found: Found | Centre) -> Total:
        """The upper level at x and y*(x), or at a point of the central path."""
        values, in_y = self._source.upper(x, found.y)
        pushed = np.flatnonzero(in_y.any(axis=1))
        adjoints = np.zeros((len(in_y), found.y.size + found.mu.size))
        if pushed.size:
            none = np.zeros((found.mu.size, pushed.size))
            adjoints[pushed] = np.concatenate(found.system.solve(in_y[pushed].T.copy(), none)).T
        slopes = self._source.pulled(x, found, np.eye(len(in_y)), adjoints)
        above = 1 + self.layout.above if self._source.with_faces else 1 + self.layout.own_above
        rows, places = np.full(self.layout.above, -np.inf), slice(above - 1)
        row_slopes = np.zeros((self.layout.above, x.size))
        rows[places], row_slopes[places] = values[1:above], slopes[1:above]
        return Total(float(values[0]), slopes[0], rows, row_slopes, values[above:], slopes[above:])

    def sides(self, x: np.ndarray, found: Found, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By how much each of some rows keeps to its side, with derivatives in x: mu of active rows, -r of others."""
        active, ny = found.system.active[which], found.y.size
        values = np.where(active, found.mu[which], -found.slopes.rows[which])
        of_y, of_rows = np.zeros((ny, which.size)), np.zeros((found.mu.size, which.size))
        of_y[:, ~active] = -found.system.matrices.jacobian[which[~active]].T
        of_rows[which[active], np.flatnonzero(active)] = 1.0
        adjoints = np.concatenate(found.system.solve(of_y, of_rows)).T
        adjoints[np.flatnonzero(~active), ny + which[~active]] += 1.0
        count = self._source.count
        slopes = np.zeros((which.size, x.size))
        for first in range(0, which.size, count):
            part = adjoints[first : first + count]
            filled = np.concatenate([part, np.zeros((count - len(part), part.shape[1]))])
            slopes[first : first + count] = self._source.pulled(x, found, np.zeros((count, count)), filled)[: len(part)]
        return values, slopes


class _FromTable:
    """What the table of all derivatives says."""

    with_faces = True

    def __init__(self, layout: Layout, table: Table) -> None:
        self._program, self._layout = table.raw, layout
        self.count = 1 + layout.above + layout.above_equal
        self._last: tuple[bytes, np.ndarray] | None = None

    def forget(self) -> None:
        """Nothing that earlier points say of later ones is kept."""

    def _lines(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> np.ndarray:
        point = np.concatenate([x, y, mu])
        key = point.tobytes()
        if self._last is None or self._last[0] != key:
            self._last = key, self._program(point)
        return self._last[1]

    def _table(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> tuple[Values[np.ndarray], Values[np.ndarray]]:
        table = self._lines(x, y, mu)
        return self._layout.cut(table[:, 0]), self._layout.cut(table[:, 1:])

    def slopes(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Slopes:
        table, (_, _, rows, stationarity) = self._lines(x, y, mu), self._layout.parts
        along_x = table[1, 1 : 1 + x.size] + mu @ table[rows, 1 : 1 + x.size]
        return Slopes(float(table[1, 0]), along_x, table[stationarity, 0], table[rows, 0])

    def matrices(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Matrices:
        table, (_, _, rows, stationarity) = self._lines(x, y, mu), self._layout.parts
        return Matrices(table[rows, 1 + x.size :], table[stationarity, 1 + x.size :])

    def upper(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, slopes = self._table(x, y, np.zeros(self._layout.rows))
        stacked = np.concatenate([slopes.upper[None], slopes.above, slopes.above_equal])
        return np.concatenate([values.upper[None], values.above, values.above_equal]), stacked[:, x.size :]

    def pulled(self, x: np.ndarray, found: Found | Centre, weights: np.ndarray, adjoints: np.ndarray) -> np.ndarray:
        _, slopes = self._table(x, found.y, found.mu)
        stacked = np.concatenate([slopes.upper[None], slopes.above, slopes.above_equal])
        below = np.concatenate([slopes.stationarity, slopes.rows])
        return weights @ stacked[:, : x.size] - adjoints @ below[:, : x.size]


class _FromPrograms:
    """What four programs return, and a fifth where the matrices have few entries (`columns.py`)."""

    def __init__(self, programs: Programs, units: Units) -> None:
        self._programs = programs
        setting, layout = programs.setting, programs.layout
        problem = setting.bound.problem
        self.with_faces = not sets.all_entrywise(problem.x_set)
        self._bounded = sets.all_entrywise(problem.y_set)
        x, y = raveled(setting.x), raveled(setting.y)
        fixed, point = (programs.trees, units), (programs.trees, units, x, y)
        self._slopes = programs.slopes.given(*fixed)
        rows = np.flatnonzero(~layout.face) if self._bounded else np.arange(layout.rows)
        self._rows = rows
        name, jacobian = ("matrices", jax.jacfwd) if programs.little_data else ("matrices in blocks", _in_blocks)
        matrices = functools.partial(_matrices, tuple(rows.tolist()), jacobian)
        every = setting.ready(name, matrices, *point, np.zeros(layout.rows)).given(*fixed)
        self._matrices = Columns(every, functools.partial(self._along, point, rows))
        self._upper = setting.ready("upper", functools.partial(upper_table, self.with_faces), *point).given(*fixed)
        self.count = len(self._upper(x, y))
        weights, adjoints = np.eye(self.count), np.zeros((self.count, layout.ny + layout.rows))
        pulled = functools.partial(pulled_back, self.with_faces)
        ready = setting.ready("pulled", pulled, *point, np.zeros(layout.rows), weights, adjoints)
        self._pulled = ready.given(*fixed)
        self._jacobian = self._of_faces(x) if self._bounded else np.zeros((layout.rows, layout.ny))

    def forget(self) -> None:
        """Drop what earlier points say of later ones."""
        self._matrices.forget()

    def _along(self, point: tuple[PyTree, ...], rows: np.ndarray, ways: np.ndarray) -> HostProgram:
        """The program for derivatives along as many directions as there are ways."""
        along = functools.partial(_along, tuple(rows.tolist()))
        setting, multipliers = self._programs.setting, np.zeros(self._programs.layout.rows)
        return setting.ready("columns", along, *point, multipliers, ways).given(*point[:2])

    def _of_faces(self, x: np.ndarray) -> np.ndarray:
        """The Jacobian of the faces of Y, each of which bounds one entry: from three points that tell the entries."""
        layout, none = self._programs.layout, np.zeros(self._programs.layout.rows)
        numbers = 1.0 + np.arange(layout.ny)
        here, ones, counted = (self.slopes(x, y, none).rows for y in (0 * numbers, 0 * numbers + 1, numbers))
        found = np.zeros((layout.rows, layout.ny))
        for row in np.flatnonzero(layout.face & (ones != here)):
            slope = ones[row] - here[row]
            found[row, round((counted[row] - here[row]) / slope) - 1] = slope
        return found

    def slopes(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Slopes:
        numbers = self._slopes(x, y, mu)
        along_x, gradient, rows = np.split(numbers[1:], [x.size, x.size + y.size])
        return Slopes(float(numbers[0]), along_x, gradient, rows)

    def matrices(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Matrices:
        table = self._matrices.at(x, y, mu)
        jacobian = self._jacobian.copy()
        jacobian[self._rows] = table[: self._rows.size]
        return Matrices(jacobian, table[self._rows.size :])

    def upper(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        table = self._upper(x, y)
        return table[:, 0], table[:, 1:]

    def pulled(self, x: np.ndarray, found: Found | Centre, weights: np.ndarray, adjoints: np.ndarray) -> np.ndarray:
        return self._pulled(x, found.y, found.mu, weights, adjoints)


# -- programs ---------------------------------------------------------------------------------------------------------


def _below(which: tuple[int, ...], problem: Problem, data: Data, trees: Trees, x: Array, y: Array, mu: Array) -> Array:
    """Some rows, and the gradient of L in y."""
    level = level_at(problem, trees.x_of(x), trees.y_of(y), data.xi)
    rows, pull = jax.vjp(level.rows, level.start)
    return jnp.concatenate([rows[np.array(which, int)], jax.grad(level.objective)(level.start) + pull(mu)[0]])


def _in_blocks(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    return functools.partial(forward, function)


def _matrices(
    which: tuple[int, ...],
    jacobian: Callable[[Callable[[Array], Array]], Callable[[Array], Array]],
    problem: Problem,
    data: Data,
    trees: Trees,
    units: Units,
    x: Array,
    y: Array,
    mu: Array,
) -> Array:
    """The Jacobian of some rows in y, and below it the Hessian of L."""
    problem = in_units(problem, units)
    return jacobian(lambda y: _below(which, problem, data, trees, x, y, mu))(y)


def _along(
    which: tuple[int, ...],
    problem: Problem,
    data: Data,
    trees: Trees,
    units: Units,
    x: Array,
    y: Array,
    mu: Array,
    ways: Array,
) -> Array:
    """The same matrix times each of the ways, one line for each."""
    problem = in_units(problem, units)
    _, push = jax.linearize(lambda y: _below(which, problem, data, trees, x, y, mu), y)
    return jax.lax.map(push, ways, batch_size=WAYS)


def _of_upper(with_faces: bool, problem: Problem, data: Data, trees: Trees, x: Array, y: Array) -> Array:
    """F, the upper constraints, and what X asks of x, where it is more than bounds."""
    at = trees.x_of(x), trees.y_of(y)
    rows = upper_rows(problem, *at) if with_faces else joined(problem.upper_constraints(*at))
    equal = joined(sets.faces(problem.x_set, at[0]).equalities)
    return jnp.concatenate([problem.upper(*at, data.zeta)[None], rows, equal])


def upper_table(
    with_faces: bool, problem: Problem, data: Data, trees: Trees, units: Units, x: Array, y: Array
) -> Array:
    """One line per function of the upper level: its value, then its derivatives in y."""
    problem = in_units(problem, units)

    def functions(y: Array) -> Array:
        return _of_upper(with_faces, problem, data, trees, x, y)

    return jnp.concatenate([functions(y)[:, None], jax.jacrev(functions)(y)], axis=1)


def pulled_back(
    with_faces: bool,
    problem: Problem,
    data: Data,
    trees: Trees,
    units: Units,
    x: Array,
    y: Array,
    mu: Array,
    weights: Array,
    adjoints: Array,
) -> Array:
    """Derivatives in x of weighted functions of the upper level, less what the adjoints pull back from below."""
    problem = in_units(problem, units)

    def everything(x: Array) -> Array:
        level = level_at(problem, trees.x_of(x), trees.y_of(y), data.xi)
        rows, pull = jax.vjp(level.rows, level.start)
        below = jnp.concatenate([jax.grad(level.objective)(level.start) + pull(mu)[0], rows])
        return weights @ _of_upper(with_faces, problem, data, trees, x, y) - adjoints @ below

    return jax.jacrev(everything)(x)
