"""A problem as the host sees it: NumPy vectors in, values and derivatives out, everything in units (`units.py`).

The unknowns are x, y and mu, the multipliers of the lower level's rows in the order of `hierax._math.lower_level`, all
divided by their units, so that tolerances may be absolute.
"""

import functools
import itertools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hierax._base.constants import LOWER_STARTS
from hierax._engine.branches import FEASIBLE, Branches
from hierax._engine.float64_problem import HostProgram
from hierax._engine.follower import SOLVED_BY_PRODUCTS, Follower, FromLarge, FromPrograms, FromTable, Functions
from hierax._engine.programs import Layout, Limits, Programs, Values, raveled
from hierax._engine.scanning import lowest_on_lines, scan_points
from hierax._engine.segments import not_convex
from hierax._engine.units import Units
from hierax._lower.active_set import Found
from hierax._lower.linear import Matrices, Stop
from hierax._math.lower_level import SOLVED
from hierax._math.scatter import Cube, scattered, unit_cube
from hierax._problem import sets

BENT = 1e-7  # curvature down, in units, beyond rounding
OTHER_LOOKS = 6  # points of Y at which a small lower level is looked at for convexity, at other x than the given one
MANY_LOOKS = 300  # entries of y and rows up to which a lower level is looked at from everywhere ...
MANY_LOOKS_NUMBERS = 2_000_000  # ... and numbers that its functions go through: a look takes about 0.02 s there
LARGE_LOOKS = 3  # points at which a larger lower level is looked at for convexity
STRUCTURE_LOOKS = 3  # points at which Jacobians are looked at for entries that are always zero
MODERATE, FEWER_STARTS = 100, 8  # larger lower levels are solved once, or from this many starts if not convex
ROW_UNIT_ASIDE = (0.0, 0.7, -1.3)  # lengths beside a point at which rows are compared in both units


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


class Table:
    """All functions and their Jacobians, in units: what the small route asks for thousands of times.

    One line per function, in the order of `Layout`: its value, then its derivatives in (x, y). x, y and the multipliers
    come in one vector, and units stay on the device, because every array that is handed over takes as long as a small
    problem's functions.
    """

    def __init__(self, programs: Programs, units: Units) -> None:
        self._programs, self._entries = programs, programs.layout.nx + programs.layout.ny
        self.raw = programs.table.given(programs.trees, units)  # wherever it is asked for
        free = np.full(programs.layout.rows, np.inf)
        self._units = np.concatenate([raveled(units.x), raveled(units.y)])
        x, y = programs.x_limits, programs.y_limits
        self._low = np.concatenate([np.concatenate([x.low, y.low]) / self._units, -free])
        self._high = np.concatenate([np.concatenate([x.high, y.high]) / self._units, free])

    def __call__(self, point: np.ndarray) -> np.ndarray:
        """The lines at x, y and mu, one after another.

        Outside of X and Y those of the nearest point, continued along straight lines.
        """
        inside = np.minimum(np.maximum(point, self._low), self._high)
        if not self._programs.entrywise:
            n, nx = self._entries, self._programs.layout.nx
            x, y = np.split(inside[:n] * self._units, [nx])
            inside[:n] = np.concatenate(self._programs.landed(x, y)) / self._units
        lines = self.raw(inside)
        away = (point - inside)[: self._entries]
        if away.any():
            lines = lines.copy()
            with np.errstate(invalid="ignore"):  # slopes may be infinite
                lines[:, 0] += lines[:, 1:] @ away
        return lines


class Point(NamedTuple):
    """A point in units: x, y and the multipliers of the lower level's rows."""

    x: np.ndarray
    y: np.ndarray
    mu: np.ndarray


class VectorProblem:
    """The problem in units, with points that cover Y for its lower level."""

    def __init__(
        self,
        programs: Programs,
        units: Units,
        y: np.ndarray,
        seed: int,
        xs: np.ndarray | None = None,
        stop: Stop = lambda: False,
    ) -> None:
        """`y` is the centre of the cover; at `xs` the lower level should be convex to count as that.

        Both in the user's units; None: the setting's x alone. Where `stop` says so, long solves raise `OutOfTime`.
        """
        self.programs, self.units, self.layout = programs, units, programs.layout
        self.x_unit, self.y_unit = raveled(units.x), raveled(units.y)
        self.x_limits = Limits(*(bound / self.x_unit for bound in programs.x_limits))
        self.y_limits = Limits(*(bound / self.y_unit for bound in programs.y_limits))
        self._centre, self._seed, self._stop = y / self.y_unit, seed, stop
        xs = raveled(programs.setting.x)[None] if xs is None else xs
        self._looked_at = xs / self.x_unit
        self._branches: HostProgram | None = None  # compiled when it is needed
        self._convex_program: bool | None = None  # which one it is

    @functools.cached_property
    def table(self) -> Table:
        """All functions and their Jacobians."""
        return Table(self.programs, self.units)

    @functools.cached_property
    def lower_starts(self) -> np.ndarray:
        """Points that cover Y."""
        return self.cover_y(self._centre, unit_cube(self.layout.ny, LOWER_STARTS - 1, self._seed))

    def forget(self) -> None:
        """Drop what solves of the lower level leave to the next ones: these depend on their arguments alone."""
        if "_follower" in self.__dict__:
            self._follower.forget()

    def remembered(self) -> tuple[str | None, bool | None]:
        """What was learnt of the lower level: why it is not convex, and which program solves it (None: none yet)."""
        return self.bent, self._convex_program

    def remember(self, bent: str | None, convex_program: bool | None) -> None:
        """Take over what another run has `remembered`."""
        self.bent = bent
        if convex_program is not None and convex_program != self._convex_program:
            self._choose_program(convex_program)

    def _choose_program(self, convex: bool) -> HostProgram:
        """The program that solves the lower level from now on."""
        self._convex_program = convex
        self._branches = self.programs.branches(convex).given(self.programs.trees, self.units)
        return self._branches

    @property
    def upper_unit(self) -> float:
        """The unit of F."""
        return float(self.units.upper.unit)

    @property
    def lower_unit(self) -> float:
        """The unit of f."""
        return float(self.units.lower.unit)

    @functools.cached_property
    def bent(self) -> str | None:
        """Why the lower level is not convex, as far as a few points show; None where it looks convex."""
        if self.programs.hand is not None:
            return None
        if self.programs.large:
            setting = self.programs.setting
            return not_convex(setting, setting.y, self._seed)
        first, *others = self._looked_at
        few = OTHER_LOOKS if self.programs.lanes > 1 else 1
        many = self.layout.ny + self.layout.rows <= MANY_LOOKS and self.programs.numbers <= MANY_LOOKS_NUMBERS
        looks = self.lower_starts[: LOWER_STARTS if many else LARGE_LOOKS]
        found = bent_below(self, first, looks)
        for x in others if self.programs.lanes > 1 else others[:LARGE_LOOKS]:
            found = found or bent_below(self, x, looks[:few])
        return found

    def cover_x(self, x: np.ndarray, cube: Cube) -> np.ndarray:
        """Points that cover X, x first."""
        points = scattered(x, *self.x_limits, cube, np)
        return np.array([self.landed(one, self._centre)[0] for one in points])

    def cover_y(self, y: np.ndarray, cube: Cube) -> np.ndarray:
        """Points that cover Y, y first."""
        points = scattered(y, *self.y_limits, cube, np)
        anywhere = raveled(self.programs.trees.x) / self.x_unit
        return np.array([self.landed(anywhere, one)[1] for one in points])

    @property
    def starts_below(self) -> int:
        """From how many points the lower level is solved: few are enough for a large one that looks convex."""
        if self.programs.large:
            return 1 if self.bent is None else FEWER_STARTS
        moderate = self.layout.ny + self.layout.rows <= MODERATE
        if self.programs.lanes > 1 or (moderate and self.bent is not None):
            return LOWER_STARTS
        return FEWER_STARTS if self.bent is not None else 3 if moderate else 1

    def landed(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The nearest points of X and Y."""
        x, y = self.programs.landed(x * self.x_unit, y * self.y_unit)
        return x / self.x_unit, y / self.y_unit

    def at(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> tuple[Values[np.ndarray], Values[np.ndarray]]:
        """Values and Jacobians; outside of X and Y those of the nearest point, continued along straight lines."""
        lines = self.table(np.concatenate([x, y, mu]))
        return self.layout.cut(lines[:, 0]), self.layout.cut(lines[:, 1:])

    def values(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Values[np.ndarray]:
        """Values alone, at the nearest point of X and Y."""
        if self.programs.by_table:
            return self.layout.cut(self.table(np.concatenate([x, y, mu]))[:, 0])
        return self.programs.values_in(self.units, *self.landed(x, y), mu)

    def branches(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray | None = None) -> Branches:
        """The lower level at x from y and mu, and from the points that cover Y: `starts_below` in all.

        The solution of a convex lower level that is unique is the only one, from wherever it was found. Without mu, y
        is no solution that is followed: then one of the points is the best on lines through Y.
        """
        multipliers = np.zeros(self.layout.rows) if mu is None else mu
        follower = self.follower
        if follower is not None:
            found = follower.solve(x, y, multipliers)
            if found is not None and follower.unique(found) and self._convex_at(found):
                return self._branch(found)
        scanned = [] if mu is not None else self._scanned(x, y)
        several = [] if self.starts_below == 1 else [*scanned, self.lower_starts]
        points = np.concatenate([y[None], *several])[: self.starts_below]
        every = np.zeros((len(points), self.layout.rows))
        every[0] = multipliers
        return self.followed(x, points, every)

    def _scanned(self, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
        """Another point to solve a lower level from that is not convex: the best on lines through Y, from y on."""
        if self.bent is None or not scan_points(self.layout.ny):
            return []
        none = np.zeros(self.layout.rows)
        allowed = max(float(np.max(beyond(self.values(x, y, none), self.layout), initial=0.0)), FEASIBLE)

        def value(there: np.ndarray) -> float:
            values = self.values(x, there, none)
            fine = np.max(beyond(values, self.layout), initial=0.0) <= allowed and np.isfinite(values.lower)
            return float(values.lower) if fine else np.inf

        ends = self.y_limits.low, self.y_limits.high
        cover = np.min(self.lower_starts, axis=0), np.max(self.lower_starts, axis=0)
        low, high = (np.where(np.isfinite(end), end, reach) for end, reach in zip(ends, cover, strict=True))
        found = lowest_on_lines(value, y, low, high)
        return [] if np.array_equal(found, y) else [found[None]]

    @property
    def follower(self) -> Follower | None:
        """Follows y*(x) as x moves; None where the lower level is not convex."""
        return self._follower if self.bent is None else None

    @property
    def functions(self) -> Functions:
        """The problem as the follower asks for it."""
        return self._follower.functions

    def upper_slopes(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Derivatives in (x, y) of F, of the upper constraints and faces of X, and of the equalities of X."""
        return self._follower.upper_slopes(x, y)

    def lower_slope(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The gradient of G in (x, y), at the nearest point of X and Y."""
        there = self.functions.slopes(*self.landed(x, y), np.zeros(self.layout.rows))
        return np.concatenate([there.along_x, there.gradient])

    @functools.cached_property
    def _follower(self) -> Follower:
        functions: Functions
        if self.programs.hand is not None:
            return Follower(self.programs.hand.in_units(self.layout, self.units), self.layout, self._landed_y, False)
        if self.programs.by_table:
            functions = FromTable(self.layout, self.table.raw, self._from_afar)
        elif self.programs.large:
            functions = FromLarge(self.programs, self.units, self._stop)
        else:
            functions = FromPrograms(self.programs, self.units, self._from_afar)
        solved = SOLVED_BY_PRODUCTS if self.programs.large else None
        return Follower(functions, self.layout, self._landed_y, self.programs.by_table, solved)

    def _from_afar(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Iterator[Branches]:
        """The lower level from one point, by the compiled program."""
        yield self.solved(x, y[None], mu[None])

    def _landed_y(self, y: np.ndarray) -> np.ndarray:
        """The nearest point of Y."""
        if self.programs.entrywise:
            return np.minimum(np.maximum(y, self.y_limits.low), self.y_limits.high)
        return self.landed(raveled(self.programs.trees.x) / self.x_unit, y)[1]

    def _convex_at(self, found: Found) -> bool:
        """Whether L is convex in y at a solution; where it is not, the lower level never counts as convex again."""
        matrices = found.system.matrices
        if isinstance(matrices, Matrices) and not matrices.convex(0.5 * BENT):
            self.bent = "not convex: the lower level has a negative curvature at a solution"
            if isinstance(matrices.hessian, np.ndarray):
                curvature = np.linalg.eigvalsh(0.5 * (matrices.hessian + matrices.hessian.T))[0]
                self.bent = f"not convex: the lower level has a negative curvature ({curvature:.2g} in units)"
        return self.bent is None

    def followed(self, x: np.ndarray, points: np.ndarray, mu: np.ndarray) -> Branches:
        """The lower level at x from each of the points and multipliers."""
        if self.follower is not None and (self.programs.lanes == 1 or len(points) == 1):
            return Branches.joined([self._followed(self.follower, x, *start) for start in zip(points, mu, strict=True)])
        return self.solved(x, points, mu)

    def _followed(self, follower: Follower, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Branches:
        """From one point: by a few steps of the follower, or else by the program that always arrives."""
        found = follower.solve_from_anywhere(x, y, mu) if self.programs.large else follower.solve(x, y, mu)
        return self.solved(x, y[None], mu[None]) if found is None else self._branch(found)

    def _branch(self, found: Found) -> Branches:
        """A solution as the only branch."""
        rows = found.slopes.rows
        beyond = np.where(self.layout.equal, rows, np.maximum(rows, 0.0))
        numbers = found.slopes.value + found.mu @ beyond, np.max(np.abs(beyond), initial=0.0), SOLVED
        value, violation, status = (np.array([number]) for number in numbers)
        return Branches(found.y[None], found.mu[None], value, violation, status, found.slopes.along_x[None])

    def solved(self, x: np.ndarray, points: np.ndarray, mu: np.ndarray) -> Branches:
        """The lower level at x from each of the points and multipliers, by the compiled program."""
        if self.programs.large:
            ends = [list(self._follower.functions.from_afar(x, *one))[-1] for one in zip(points, mu, strict=True)]
            return Branches.joined(ends)
        program = self._branches or self._choose_program(self.bent is None)
        lanes, found = self.programs.lanes, []
        for first in range(0, len(points), lanes):
            turns = first + np.arange(lanes) % min(lanes, len(points) - first)
            lines = program(x, points[turns], mu[turns])
            found.append(lines[: len(points) - first])
        lines = np.concatenate(found)
        ny, end = self.layout.ny, self.layout.ny + self.layout.rows
        value, violation, status = lines[:, end : end + 3].T
        return Branches(lines[:, :ny], lines[:, ny:end], value, violation, status.astype(int), lines[:, end + 3 :])

    def violation(self, x: np.ndarray, y: np.ndarray, values: Values[np.ndarray]) -> float:
        """The largest violation of anything."""
        rows = np.where(self.layout.equal, np.abs(values.rows), values.rows)
        outside = [side for v, limits in ((x, self.x_limits), (y, self.y_limits)) for side in _outside(v, limits)]
        parts = (rows, values.above, np.abs(values.above_equal), *outside)
        worst = max(float(np.max(part, initial=0.0)) for part in parts)
        return worst if all(np.isfinite(part).all() for part in parts[:3]) else np.inf

    def upper_violation(self, values: Values[np.ndarray]) -> float:
        """The largest violation of an upper constraint."""
        return float(np.max(values.above[: self.layout.own_above], initial=0.0))

    def row_units(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The unit of every row of the lower level, as its values in both units tell; 1 where they are always zero."""
        none, found, largest = np.zeros(self.layout.rows), np.ones(self.layout.rows), np.zeros(self.layout.rows)
        for aside in ROW_UNIT_ASIDE:
            at = self.landed(x + aside, y - 0.6 * aside)
            ours, theirs = (
                self.values(*at, none).rows,
                self.programs.raw_values(at[0] * self.x_unit, at[1] * self.y_unit).rows,
            )
            clearer = np.isfinite(ours) & np.isfinite(theirs) & (np.abs(ours) > largest)
            found, largest = (
                np.where(clearer, theirs / np.where(clearer, ours, 1.0), found),
                np.where(clearer, np.abs(ours), largest),
            )
        return found

    def structure(self, xs: np.ndarray) -> Structure:
        """Which rows are mere bounds, and which are none at all, as far as Jacobians at a few points show."""
        if self.programs.large:
            problem, rows = self.programs.setting.bound.problem, np.ones(self.layout.rows, bool)
            above = np.arange(self.layout.above) < self.layout.own_above
            return Structure(rows, rows, above | (not sets.all_entrywise(problem.x_set)))
        layout, no_multipliers = self.layout, np.zeros(self.layout.rows)
        last = np.arange(-STRUCTURE_LOOKS, 0)
        ys = self.lower_starts[last % len(self.lower_starts)]
        slopes = [self.at(x, y, no_multipliers)[1] for x, y in zip(xs[last % len(xs)], ys, strict=True)]
        single = np.all([np.count_nonzero(slope.rows, axis=1) == 1 for slope in slopes], axis=0)
        nothing = np.all([~slope.rows.any(axis=1) for slope in slopes], axis=0)
        bounds_above = np.all([np.count_nonzero(slope.above, axis=1) <= 1 for slope in slopes], axis=0)
        live = ~(layout.face & nothing)
        return Structure(
            live=live,
            curved=live & ~(layout.face & single & ~layout.equal),
            above=~(bounds_above & (np.arange(layout.above) >= layout.own_above)),
        )


def bent_below(vectors: VectorProblem, x: np.ndarray, looks: np.ndarray) -> str | None:
    """Why the lower level at x is not convex, as far as some points of Y show; None where nothing was found."""
    nx, none = vectors.layout.nx, np.zeros(vectors.layout.rows)
    tables = [vectors.at(x, y, none) for y in looks]
    for _, slopes in tables:
        hessian = slopes.stationarity[:, nx:]
        if not np.isfinite(hessian).all() or Matrices(hessian[:0], hessian).convex(0.5 * BENT):
            continue
        curvatures = np.linalg.eigvalsh(0.5 * (hessian + hessian.T))
        if curvatures[0] < -BENT * max(np.abs(curvatures).max(), 1.0):
            return f"not convex: the lower objective has a negative curvature ({curvatures[0]:.2g} in units)"
    own = ~vectors.layout.face
    for (first, y), (second, z) in itertools.pairwise(zip((values.rows for values, _ in tables), looks, strict=True)):
        middle = vectors.values(x, 0.5 * (y + z), none).rows
        excess = middle - 0.5 * (first + second)
        size = BENT * (1 + np.abs(first) + np.abs(second))
        wrong = own & np.where(vectors.layout.equal, np.abs(excess) > size, excess > size)
        if wrong.any():
            return f"not convex: row {int(np.flatnonzero(wrong)[0])} of the lower level lies above its chord"
    return None


def beyond(values: Values[np.ndarray], layout: Layout) -> np.ndarray:
    """By how much every row of the lower level is violated."""
    return np.where(layout.equal, np.abs(values.rows), np.maximum(values.rows, 0.0))


def kkt_residual(values: Values[np.ndarray], mu: np.ndarray, layout: Layout) -> float:
    """Largest entry of the lower level's KKT system, in units: slope, violation, complementarity, sign of mu."""
    free = layout.equal
    parts = (
        np.abs(values.stationarity),
        beyond(values, layout),
        np.where(free, 0.0, np.abs(mu * values.rows)),
        np.where(free, 0.0, np.maximum(-mu, 0.0)),
    )
    return float(max(np.max(part, initial=0.0) for part in parts))


def _outside(v: np.ndarray, limits: Limits) -> tuple[np.ndarray, np.ndarray]:
    return limits.low - v, v - limits.high
