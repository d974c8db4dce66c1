"""A problem as the host sees it: NumPy vectors in, values and derivatives out, everything in units (`units.py`).

The unknowns are x, y and mu, the multipliers of the lower level's rows in the order of `hierax._math.lower_level`, all
divided by their units, so that tolerances may be absolute.
"""

import functools
import itertools
from typing import NamedTuple

import numpy as np

from hierax._base.constants import LOWER_STARTS
from hierax._engine.branches import FEASIBLE, Branches
from hierax._engine.float64_problem import HostProgram
from hierax._engine.following import Follower
from hierax._engine.programs import Layout, Limits, Programs, Values, raveled
from hierax._engine.scanning import lowest_on_lines, scan_points
from hierax._engine.table import Table
from hierax._engine.units import Units
from hierax._lower.active_set import Found
from hierax._math.lower_level import SOLVED
from hierax._math.scatter import Cube, scattered, unit_cube

BENT = 1e-7  # curvature down, in units, beyond rounding
OTHER_LOOKS = 6  # points of Y at which a small lower level is looked at for convexity, at other x than the given one
MANY_LOOKS = 300  # entries of y and rows up to which a lower level is looked at from everywhere ...
MANY_LOOKS_NUMBERS = 2_000_000  # ... and numbers that its functions go through: a look takes about 0.02 s there
LARGE_LOOKS = 3  # points at which a larger lower level is looked at for convexity
STRUCTURE_LOOKS = 3  # points at which Jacobians are looked at for entries that are always zero
MODERATE, FEWER_STARTS = 100, 8  # larger lower levels than that are solved once, or from so many starts if not convex


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


class Point(NamedTuple):
    """A point in units: x, y and the multipliers of the lower level's rows."""

    x: np.ndarray
    y: np.ndarray
    mu: np.ndarray


class VectorProblem:
    """The problem in units, with points that cover Y for its lower level."""

    def __init__(
        self, programs: Programs, units: Units, y: np.ndarray, seed: int, xs: np.ndarray | None = None
    ) -> None:
        """`y` is the centre of the cover; at `xs` the lower level should be convex to count as that.

        Both in the user's units; None: the setting's x alone.
        """
        self.programs, self.units, self.layout = programs, units, programs.layout
        self.x_unit, self.y_unit = raveled(units.x), raveled(units.y)
        self.x_limits = Limits(*(bound / self.x_unit for bound in programs.x_limits))
        self.y_limits = Limits(*(bound / self.y_unit for bound in programs.y_limits))
        self.table = Table(programs, units)
        self.lower_starts = self.cover_y(y / self.y_unit, unit_cube(self.layout.ny, LOWER_STARTS - 1, seed))
        xs = raveled(programs.setting.x)[None] if xs is None else xs
        self._looked_at = xs / self.x_unit
        self._branches: HostProgram | None = None  # compiled when it is needed
        self._convex_program: bool | None = None  # which one it is

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
        return np.array([self.landed(one, self.lower_starts[0])[0] for one in points])

    def cover_y(self, y: np.ndarray, cube: Cube) -> np.ndarray:
        """Points that cover Y, y first."""
        points = scattered(y, *self.y_limits, cube, np)
        anywhere = raveled(self.programs.trees.x) / self.x_unit
        return np.array([self.landed(anywhere, one)[1] for one in points])

    @property
    def starts_below(self) -> int:
        """From how many points the lower level is solved: few are enough for a large one that looks convex."""
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
        numbers = self.programs.values(self.programs.trees, self.units, *self.landed(x, y), mu)
        return self.layout.cut(numbers)

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
        points = np.concatenate([y[None], *scanned, self.lower_starts])[: self.starts_below]
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

    @functools.cached_property
    def _follower(self) -> Follower:
        return Follower(self.programs, self.units, self.table)

    def _convex_at(self, found: Found) -> bool:
        """Whether L is convex in y at a solution; where it is not, the lower level never counts as convex again."""
        hessian = found.system.matrices.hessian
        if not _clearly_convex(hessian):
            curvature = np.linalg.eigvalsh(0.5 * (hessian + hessian.T))[0]
            self.bent = f"not convex: the lower level has a negative curvature ({curvature:.2g} in units)"
        return self.bent is None

    def followed(self, x: np.ndarray, points: np.ndarray, mu: np.ndarray) -> Branches:
        """The lower level at x from each of the points and multipliers."""
        if self.follower is not None and (self.programs.lanes == 1 or len(points) == 1):
            return Branches.joined([self._followed(self.follower, x, *start) for start in zip(points, mu, strict=True)])
        return self.solved(x, points, mu)

    def _followed(self, follower: Follower, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Branches:
        """From one point: by a few steps of the follower, or else by the program that always arrives."""
        found = follower.solve(x, y, mu)
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
        """The unit of every row of the lower level; 1 for rows that depend on nothing at this point."""
        ours = self.at(x, y, np.zeros(self.layout.rows))[1].rows
        theirs = self.programs.at(*self.programs.landed(x * self.x_unit, y * self.y_unit))[1].rows
        theirs = theirs * np.concatenate([self.x_unit, self.y_unit])
        largest = np.argmax(np.abs(ours), axis=1)[:, None]
        ours, theirs = (np.take_along_axis(part, largest, axis=1)[:, 0] for part in (ours, theirs))
        return np.where(ours != 0, theirs / np.where(ours != 0, ours, 1.0), 1.0)

    def structure(self, xs: np.ndarray) -> Structure:
        """Which rows are mere bounds, and which are none at all, as far as Jacobians at a few points show."""
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
        if not np.isfinite(hessian).all() or _clearly_convex(hessian):
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


def _clearly_convex(hessian: np.ndarray) -> bool:
    """Whether the Hessian, with a little added, has a Cholesky factorisation: quicker than all eigenvalues."""
    try:
        np.linalg.cholesky(
            0.5 * (hessian + hessian.T) + 0.5 * BENT * max(1.0, np.abs(np.diag(hessian)).max()) * np.eye(len(hessian))
        )
    except np.linalg.LinAlgError:
        return False
    return True


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
