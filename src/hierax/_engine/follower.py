r"""y*(x) followed as x moves, and gradients through it: the lower level of a problem in units, solved on the host.

With K the KKT system of the lower level on its active rows and U a function of (x, y), K (a, b) = (U_y, 0) gives

    dU(x, y*(x))/dx = U_x - a'L_yx - b'r_x,

one system per function whatever the number of x, and no second derivative in x. What is asked of a problem is
`Functions`. Small problems take it from the table of all derivatives, larger ones from programs that each return no
more than is asked for, the largest from products with second derivatives; NumPy functions by hand do as well.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base.imports import lazy
from hierax._engine.branches import Branches
from hierax._engine.columns import Columns, Places, SparseColumns
from hierax._engine.float64_problem import Data, HostProgram
from hierax._engine.programs import Layout, Programs, Trees, Values, forward, joined, raveled, upper_rows
from hierax._engine.units import Units, in_units
from hierax._lower.active_set import Found, Level, Slopes, Tracker
from hierax._lower.centred import Centre, centre
from hierax._lower.exact import RUNNING, State, begun, continued
from hierax._lower.linear import Matrices, OutOfTime, Products, SecondDerivatives, Stop, gradients, stiffness
from hierax._lower.newton import conjugate_gradients
from hierax._math.lower_level import SOLVED, continued_outside, level_at
from hierax._math.spectrum import extreme_eigenvalues
from hierax._problem import sets
from hierax._problem.problem import Problem

sparse = lazy("scipy.sparse")

BATCHED_DIRECTIONS = 64  # directions at a time
FLAT = 1e7  # in units: where y answers to a push by more than this, it is not unique
SOLVED_BY_PRODUCTS = 1e-8  # KKT residual, in units, that MINRES reaches
STEPS_AT_ONCE, MAX_LOOP_STEPS = 5, 200  # Newton steps from afar between two looks at the clock, and of one solve
CENTRAL_PATH_ENDS = (1e-9, 1e-12, 1e-14)  # in units: until the active rows are clear from one of them
CLOSE = 1e-3  # residual from afar at which the active set method is tried


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

    @property
    def finite(self) -> bool:
        """Whether all derivatives are known."""
        return all(bool(np.isfinite(part).all()) for part in (self.slope, self.above_slopes, self.equal_slopes))


class Functions(Protocol):
    """A problem in units, as the follower asks for it. mu are multipliers of all rows of the lower level.

    Functions of the upper level are F, the upper constraints and, where `with_faces`, the faces of X, then the
    equalities of X: `count` in all.
    """

    with_faces: bool
    count: int

    def slopes(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Slopes:
        """G, the gradients of L = G + mu.rows, and the rows."""

    def matrices(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> SecondDerivatives:
        """The Jacobian of the rows in y, and the Hessian of L in y."""

    def mixed(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> np.ndarray:
        """The derivatives in x of the gradient of L in y, then of the rows."""

    def upper(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The functions of the upper level, and their derivatives in y."""

    def pulled(
        self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, weights: np.ndarray, adjoints: np.ndarray
    ) -> np.ndarray:
        """Derivatives in x of weighted functions of the upper level, less what adjoints (a, b) pull back from below."""

    def from_afar(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Iterator[Branches]:
        """The lower level from anywhere, by a compiled loop that arrives more often: the last one is its end."""

    def forget(self) -> None:
        """Drop what earlier points say of later ones."""


class Follower:
    """Follows the solution of a lower level that looks convex."""

    def __init__(
        self,
        functions: Functions,
        layout: Layout,
        landed: Callable[[np.ndarray], np.ndarray],
        by_table: bool,
        solved: float | None = None,
    ) -> None:
        """`landed`: the nearest point of Y; `solved`: KKT residual that counts as solved (None: of direct solvers)."""
        self.functions, self.layout, self._landed, self._by_table = functions, layout, landed, by_table
        self._solved = {} if solved is None else {"solved": solved}
        self._tracker = Tracker()

    def forget(self) -> None:
        """Drop what earlier solves leave to later ones."""
        self._tracker = Tracker()
        self.functions.forget()

    def solve(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Found | None:
        """The lower level's solution at x (inside X) from near y and mu; None where it was not reached."""
        with np.errstate(over="ignore", invalid="ignore"):
            return self._tracker.solve(self._level(x), y, mu)

    def solve_from_anywhere(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Found | None:
        """The same, where need be by way of the compiled program."""
        found = self.solve(x, y, mu)
        for there in () if found is not None else self.functions.from_afar(x, y, mu):
            found = self.solve(x, there.y[0], there.mu[0]) if there.status[0] == SOLVED else None
            if found is not None:
                break
        return found

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
            functools.partial(self.functions.slopes, x),
            functools.partial(self.functions.matrices, x),
            self._landed,
            by_last_system=not self._by_table,
            **self._solved,
        )

    def unique(self, found: Found) -> bool:
        """Whether y* is the only solution nearby: it answers to a push in a bounded way."""
        return stiffness(found.system) <= FLAT

    def determined(self, x: np.ndarray, found: Found) -> bool:
        """Whether the upper level sees only what is unique of y*, as total flows where the flows are not."""
        _, in_y = self.functions.upper(x, found.y)
        answers, _ = found.system.solve(in_y.T.copy(), np.zeros((found.mu.size, len(in_y))))
        return bool(np.max(np.abs(answers), initial=0.0) <= FLAT * max(1.0, np.max(np.abs(in_y), initial=0.0)))

    def total(self, x: np.ndarray, found: Found | Centre) -> Total:
        """The upper level at x and y*(x), or at a point of the central path; NaN where a system is not solved."""
        values, in_y = self.functions.upper(x, found.y)
        pushed = np.flatnonzero(in_y.any(axis=1))
        adjoints = np.zeros((len(in_y), found.y.size + found.mu.size))
        if pushed.size:
            none = np.zeros((found.mu.size, pushed.size))
            adjoints[pushed] = np.concatenate(found.system.solve(in_y[pushed].T.copy(), none)).T
        slopes = self.functions.pulled(x, found.y, found.mu, np.eye(len(in_y)), adjoints)
        rows, row_slopes, above = self._with_all_faces(values, slopes)
        return Total(float(values[0]), slopes[0], rows, row_slopes, values[above:], slopes[above:])

    def _with_all_faces(self, values: np.ndarray, slopes: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        """Upper constraints and faces of X, mere bounds as rows far from zero; and where the equalities begin."""
        above = 1 + (self.layout.above if self.functions.with_faces else self.layout.own_above)
        rows, row_slopes = np.full(self.layout.above, -np.inf), np.zeros((self.layout.above, slopes.shape[1]))
        rows[: above - 1], row_slopes[: above - 1] = values[1:above], slopes[1:above]
        return rows, row_slopes, above

    def upper_slopes(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Derivatives in (x, y) of F, of the upper constraints and faces of X, and of the equalities of X."""
        values, in_y = self.functions.upper(x, y)
        none, rows = np.zeros((len(in_y), y.size + self.layout.rows)), np.zeros(self.layout.rows)
        slopes = np.concatenate([self.functions.pulled(x, y, rows, np.eye(len(in_y)), none), in_y], axis=1)
        _, row_slopes, above = self._with_all_faces(values, slopes)
        return slopes[0], row_slopes, slopes[above:]

    def sides(self, x: np.ndarray, found: Found, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By how much each of some rows keeps to its side, with derivatives in x: mu of active rows, -r of others."""
        active, ny = found.system.active[which], found.y.size
        values = np.where(active, found.mu[which], -found.slopes.rows[which])
        of_y, of_rows = np.zeros((ny, which.size)), np.zeros((found.mu.size, which.size))
        of_y[:, ~active] = -gradients(found.system.matrices, which[~active]).T
        of_rows[which[active], np.flatnonzero(active)] = 1.0
        adjoints = np.concatenate(found.system.solve(of_y, of_rows)).T
        adjoints[np.flatnonzero(~active), ny + which[~active]] += 1.0
        count = self.functions.count
        slopes = np.zeros((which.size, x.size))
        for first in range(0, which.size, count):
            part = adjoints[first : first + count]
            filled = np.concatenate([part, np.zeros((count - len(part), part.shape[1]))])
            pulled = self.functions.pulled(x, found.y, found.mu, np.zeros((count, count)), filled)
            slopes[first : first + count] = pulled[: len(part)]
        return values, slopes


# -- from the table of all derivatives --------------------------------------------------------------------------------


class FromTable:
    """What the table of all derivatives says, of small problems."""

    with_faces = True

    def __init__(self, layout: Layout, table: HostProgram, from_afar: Callable[..., Iterator[Branches]]) -> None:
        self._program, self._layout, self.from_afar = table, layout, from_afar
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

    def mixed(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> np.ndarray:
        table, (_, _, rows, stationarity) = self._lines(x, y, mu), self._layout.parts
        return np.concatenate([table[stationarity, 1 : 1 + x.size], table[rows, 1 : 1 + x.size]])

    def upper(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, slopes = self._table(x, y, np.zeros(self._layout.rows))
        stacked = np.concatenate([slopes.upper[None], slopes.above, slopes.above_equal])
        return np.concatenate([values.upper[None], values.above, values.above_equal]), stacked[:, x.size :]

    def pulled(
        self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, weights: np.ndarray, adjoints: np.ndarray
    ) -> np.ndarray:
        _, slopes = self._table(x, y, mu)
        stacked = np.concatenate([slopes.upper[None], slopes.above, slopes.above_equal])
        below = np.concatenate([slopes.stationarity, slopes.rows])
        with np.errstate(over="ignore", invalid="ignore"):  # slopes may be infinite: then nothing is known
            return weights @ stacked[:, : x.size] - adjoints @ below[:, : x.size]


# -- from programs ----------------------------------------------------------------------------------------------------


class FromPrograms:
    """What programs return that are each compiled when they are first asked for."""

    def __init__(self, programs: Programs, units: Units, from_afar: Callable[..., Iterator[Branches]]) -> None:
        self._programs, self._units, self.from_afar = programs, units, from_afar
        problem, layout = programs.setting.bound.problem, programs.layout
        self.with_faces = not sets.all_entrywise(problem.x_set)
        self.count = 1 + (layout.above if self.with_faces else layout.own_above) + layout.above_equal

    def forget(self) -> None:
        """Drop what earlier points say of later ones."""
        if "_columns" in self.__dict__:
            self._columns.forget()

    def _ready(self, name: str, program: Callable[..., PyTree], *more: PyTree) -> HostProgram:
        """A program of x, y and more, in units."""
        programs = self._programs
        x, y = raveled(programs.setting.x), raveled(programs.setting.y)
        fixed = programs.trees, self._units
        return programs.setting.ready(name, program, *fixed, x, y, *more).given(*fixed)

    @property
    def _multipliers(self) -> np.ndarray:
        return np.zeros(self._programs.layout.rows)

    @functools.cached_property
    def _slopes(self) -> HostProgram:
        return self._programs.slopes.given(self._programs.trees, self._units)

    @functools.cached_property
    def _upper(self) -> HostProgram:
        return self._ready("upper", functools.partial(_upper_table, self.with_faces))

    @functools.cached_property
    def _pulled(self) -> HostProgram:
        adjoints = np.zeros((self.count, self._programs.layout.ny + self._programs.layout.rows))
        program = functools.partial(_pulled_back, self.with_faces)
        return self._ready("pulled", program, self._multipliers, np.eye(self.count), adjoints)

    @functools.cached_property
    def _mixed(self) -> HostProgram:
        return self._ready("mixed", _mixed, self._multipliers)

    @functools.cached_property
    def _rows(self) -> np.ndarray:
        """The rows whose Jacobian is computed: faces of a Y that bounds entries alone are known."""
        layout = self._programs.layout
        bounded = sets.all_entrywise(self._programs.setting.bound.problem.y_set)
        return np.flatnonzero(~layout.face) if bounded else np.arange(layout.rows)

    @functools.cached_property
    def _columns(self) -> Columns:
        """The Jacobian of these rows, below it the Hessian of L."""
        which = tuple(self._rows.tolist())
        name, jacobian = ("matrices", jax.jacfwd) if self._programs.little_data else ("matrices in blocks", _in_blocks)
        every = self._ready(name, functools.partial(_matrices, which, jacobian), self._multipliers)

        return Columns(every, self._along)

    def _along(self, directions: np.ndarray) -> HostProgram:
        """The program for the Jacobian of these rows and the Hessian of L along as many directions."""
        which = tuple(self._rows.tolist())
        return self._ready("columns", functools.partial(_along, which), self._multipliers, directions)

    @functools.cached_property
    def _of_faces(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The faces of Y that bound one entry each: rows, entries and slopes, from three points that tell them."""
        layout = self._programs.layout
        if self._rows.size == layout.rows:
            return np.zeros(0, int), np.zeros(0, int), np.zeros(0)
        numbers, x = 1.0 + np.arange(layout.ny), raveled(self._programs.setting.x)
        points = 0 * numbers, 0 * numbers + 1, numbers
        here, ones, counted = (self.slopes(x, y, self._multipliers).rows for y in points)
        rows = np.flatnonzero(layout.face & (ones != here))
        slopes = (ones - here)[rows]
        return rows, np.round((counted - here)[rows] / slopes).astype(int) - 1, slopes

    def slopes(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Slopes:
        numbers = self._slopes(x, y, mu)
        along_x, gradient, rows = np.split(numbers[1:], [x.size, x.size + y.size])
        return Slopes(float(numbers[0]), along_x, gradient, rows)

    def matrices(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> SecondDerivatives:
        table, (faces, entries, slopes) = self._columns.at(x, y, mu), self._of_faces
        jacobian = np.zeros((mu.size, y.size))
        jacobian[faces, entries] = slopes
        jacobian[self._rows] = table[: self._rows.size]
        return Matrices(jacobian, table[self._rows.size :])

    def mixed(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> np.ndarray:
        return self._mixed(x, y, mu)

    def upper(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        table = self._upper(x, y)
        return table[:, 0], table[:, 1:]

    def pulled(
        self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, weights: np.ndarray, adjoints: np.ndarray
    ) -> np.ndarray:
        return self._pulled(x, y, mu, weights, adjoints)


class FromLarge(FromPrograms):
    """The same for matrices that do not fit as dense ones: sparse, where they have few entries, else by products."""

    def __init__(self, programs: Programs, units: Units, stop: Stop) -> None:
        super().__init__(programs, units, self._approached)
        self._stop = stop
        self._sparse = SparseColumns(
            self._along, programs.layout.ny, programs.setting.once("places of entries", Places)
        )

    def forget(self) -> None:
        """Nothing is kept but the places of entries, which every matrix is compared with."""

    @functools.cached_property
    def _product(self) -> HostProgram:
        layout = self._programs.layout
        return self._ready("product", _product, self._multipliers, np.zeros(layout.ny), np.zeros(layout.rows))

    @functools.cached_property
    def _advance(self) -> HostProgram:
        state = self._begun(raveled(self._programs.setting.y), self._multipliers)
        return self._ready("steps from afar", _advance, state, np.zeros(()), np.zeros((), np.int32))

    def matrices(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> SecondDerivatives:
        if self._stop():
            raise OutOfTime
        table = self._sparse.at(x, y, mu)
        if table is not None:
            faces, entries, slopes = self._of_faces
            own = table[: self._rows.size].tocoo()
            places = np.concatenate([self._rows[own.row], faces]), np.concatenate([own.col, entries])
            jacobian = sparse.csr_array((np.concatenate([own.data, slopes]), places), shape=(mu.size, y.size))
            return Matrices(jacobian, table[self._rows.size :])

        def product(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            both = self._product(x, y, mu, a, b)
            return both[: y.size], both[y.size :]

        return Products(product, y.size, mu.size, self._stop)

    def _begun(self, y: np.ndarray, mu: np.ndarray) -> State:
        programs = self._programs
        return programs.setting.run("begin from afar", _begin, programs.trees, self._units, y, mu, quick=True)

    def _approached(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Iterator[Branches]:
        """By an interior point method where matrices are sparse, else (and where that fails) by the loop of `Exact`."""
        if isinstance(self.matrices(x, y, mu), Matrices):
            parts = functools.partial(self.slopes, x), functools.partial(self.matrices, x)
            level = Level(self._programs.layout.equal, *parts, lambda y: y, solved=SOLVED_BY_PRODUCTS)
            at, weights = y, np.ones_like(mu)
            for t in CENTRAL_PATH_ENDS:
                try:
                    found = centre(level, at, weights, t)
                except RuntimeError:  # a singular system
                    found = None
                if found is None:
                    break
                at, weights = found.y, found.mu
                yield self._branch(x, at, weights, SOLVED)
        yield from self._by_loop(x, y, mu)

    def _by_loop(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Iterator[Branches]:
        """The loop of `Exact`, a few steps at a time so that the clock is looked at: where it is close, and its end."""
        state, shown = self._begun(y, mu), False
        while int(state.status) == RUNNING:
            if self._stop():
                raise OutOfTime
            until = np.asarray(int(state.steps) + STEPS_AT_ONCE, np.int32)
            state = self._advance(x, y, state, np.asarray(0.1 * SOLVED_BY_PRODUCTS), until)
            if not shown and float(state.residual) <= CLOSE:
                shown = True
                yield self._branch(x, np.asarray(state.v), np.asarray(state.mu), SOLVED)
        yield self._branch(x, np.asarray(state.v), np.asarray(state.mu), int(state.status))

    def _branch(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, status: int) -> Branches:
        there = self.slopes(x, y, mu)
        beyond = np.where(self._programs.layout.equal, np.abs(there.rows), np.maximum(there.rows, 0.0))
        parts = y, mu, there.value, np.max(beyond, initial=0.0), status, there.along_x
        return Branches(*(np.asarray(part)[None] for part in parts))

    def least_curvature(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, free: np.ndarray) -> float:
        """About the smallest eigenvalue of L_yy on some entries (Lanczos: never below it)."""
        programs = self._programs
        at = programs.trees, self._units, x, y, mu, free
        return float(programs.setting.run("least curvature", _least_curvature, *at))


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
    directions: Array,
) -> Array:
    """The same matrix times each of some directions, one line for each."""
    problem = in_units(problem, units)
    _, push = jax.linearize(lambda y: _below(which, problem, data, trees, x, y, mu), y)
    return jax.lax.map(push, directions, batch_size=BATCHED_DIRECTIONS)


def _of_upper(with_faces: bool, problem: Problem, data: Data, trees: Trees, x: Array, y: Array) -> Array:
    """F, the upper constraints, and what X asks of x, where it is more than bounds."""
    at = trees.x_of(x), trees.y_of(y)
    rows = upper_rows(problem, *at) if with_faces else joined(problem.upper_constraints(*at))
    equal = joined(sets.faces(problem.x_set, at[0]).equalities)
    return jnp.concatenate([problem.upper(*at, data.zeta)[None], rows, equal])


def _upper_table(
    with_faces: bool, problem: Problem, data: Data, trees: Trees, units: Units, x: Array, y: Array
) -> Array:
    """One line per function of the upper level: its value, then its derivatives in y."""
    problem = in_units(problem, units)

    def functions(y: Array) -> Array:
        return _of_upper(with_faces, problem, data, trees, x, y)

    return jnp.concatenate([functions(y)[:, None], jax.jacrev(functions)(y)], axis=1)


def _pulled_back(
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


def _mixed(problem: Problem, data: Data, trees: Trees, units: Units, x: Array, y: Array, mu: Array) -> Array:
    """The derivatives in x of grad_y L, then of the rows."""
    problem = in_units(problem, units)
    _, push = jax.linearize(lambda x: _lagrangian_slope_and_rows(problem, data, trees, x, y, mu), x)
    return jax.lax.map(push, jnp.eye(x.size, dtype=x.dtype), batch_size=BATCHED_DIRECTIONS).T


def _lagrangian_slope_and_rows(problem: Problem, data: Data, trees: Trees, x: Array, y: Array, mu: Array) -> Array:
    """grad_y L, then the rows."""
    level = level_at(problem, trees.x_of(x), trees.y_of(y), data.xi)
    rows, pull = jax.vjp(level.rows, level.start)
    return jnp.concatenate([jax.grad(level.objective)(level.start) + pull(mu)[0], rows])


def _product(
    problem: Problem, data: Data, trees: Trees, units: Units, x: Array, y: Array, mu: Array, a: Array, b: Array
) -> Array:
    """H a + J'b, then J a."""
    level = level_at(in_units(problem, units), trees.x_of(x), trees.y_of(y), data.xi)

    def slope(v: Array) -> Array:
        return jax.grad(lambda u: level.lagrangian(u, mu))(v)

    _, pull = jax.vjp(level.rows, level.start)
    curved = jax.jvp(slope, (level.start,), (a,))[1]
    return jnp.concatenate([curved + pull(b)[0], jax.jvp(level.rows, (level.start,), (a,))[1]])


def _begin(problem: Problem, data: Data, trees: Trees, units: Units, y: Array, mu: Array) -> State:
    del data
    y_set = in_units(problem, units).y_set
    return begun(jax.flatten_util.ravel_pytree(sets.project(y_set, trees.y_of(y)))[0], mu)


def _advance(
    problem: Problem, data: Data, trees: Trees, units: Units, x: Array, y: Array, state: State, tol: Array, until: Array
) -> State:
    """A few Newton steps of the loop that started at y."""
    problem = in_units(problem, units)
    start = sets.project(problem.y_set, trees.y_of(y))
    level = continued_outside(level_at(problem, trees.x_of(x), start, data.xi), problem.y_set)
    return continued(level, state, level.start, tol, MAX_LOOP_STEPS, conjugate_gradients, until)


def _least_curvature(
    problem: Problem, data: Data, trees: Trees, units: Units, x: Array, y: Array, mu: Array, free: Array
) -> Array:
    level = level_at(in_units(problem, units), trees.x_of(x), trees.y_of(y), data.xi)

    def slope(v: Array) -> Array:
        return jax.grad(lambda u: level.lagrangian(u, mu))(v)

    def product(u: Array) -> Array:
        curved = jax.jvp(slope, (level.start,), (jnp.where(free, u, 0.0),))[1]
        return jnp.where(free, curved, u)

    return extreme_eigenvalues(product, level.start)[0]
