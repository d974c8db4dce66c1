r"""A problem as the host sees it: NumPy vectors in units, its lower level solved and differentiated.

The unknowns are x, y and mu, the multipliers of the lower level's rows in the order of `hierax._math.lower_level`, all
divided by their units, so that tolerances may be absolute. With K the KKT system of the lower level on its active rows
and U a function of (x, y), K (a, b) = (U_y, 0) gives

    dU(x, y*(x))/dx = U_x - a'L_yx - b'r_x,

one system per function whatever the number of x, and no second derivative in x. `Linearised` is the problem near a
solution of its lower level: with L = G + mu.r, the response on active rows A solves

    L_yy dy + r_A' dmu = -L_yx dx,     r_A dy = -r_x dx.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from hierax._base.constants import LOWER_STARTS, MANY
from hierax._engine.float64_problem import FEW, ROUNDING
from hierax._engine.programs import BY_TABLE, CLOSE, FEASIBLE, Branches, Functions, Programs, Units, Values, raveled
from hierax._engine.programs import Point as Point
from hierax._engine.segments import FLAT, SEGMENTS, not_convex
from hierax._lower.active_set import Found, Level, Tracker, centre
from hierax._lower.linear import SMALL_ORDER, KKTSystem, Matrices, OutOfTime, SecondDerivatives, Stop, System, stiffness
from hierax._lower.sliding import slid
from hierax._math.hypergradient import MOST as MAX_ORDER
from hierax._math.lower_level import SOLVED
from hierax._math.scatter import Cube, scattered, unit_cube
from hierax._problem.sets import Bounds

STIFF = 1e6  # in units: where y answers to a push by more than this, it is not unique
SCAN_LOOKS = 200  # points of all grids of a scan: 10 to 20 ms
FEWEST = 15  # points of a line: with fewer a scan sees no valleys, many more are not needed
MAX_DENSE = 600  # entries of y, up to which singular values of its matrices are computed
CUT = 0.05  # difference in G, in units, up to which other local solutions of the lower level are in the way
MAX_SYSTEMS = BY_TABLE  # systems by products for the response to x: entries of x, or rows, whichever are fewer
MAX_NUMBERS = MAX_ORDER * MAX_ORDER  # of a matrix that is formed where they are large: 16 million took 15 seconds


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


# -- y*(x) followed ---------------------------------------------------------------------------------------------------


class Uppers(NamedTuple):
    """Functions of the upper level at a point, or derivatives of them, one line each.

    Attributes:
        upper: F.
        above: the upper constraints, then the faces of X.
        equal: the equalities of X.
    """

    upper: np.ndarray
    above: np.ndarray
    equal: np.ndarray

    @staticmethod
    def cut(lines: np.ndarray, above: int) -> "Uppers":
        """Those that stand one after another; `above` is how many lines there are of the second kind."""
        return Uppers(lines[0], lines[1 : 1 + above], lines[1 + above :])


class Total(NamedTuple):
    """Functions of the upper level at (x, y*(x)), and their derivatives in x through y*."""

    values: Uppers
    slopes: Uppers

    @property
    def finite(self) -> bool:
        """Whether all derivatives are known."""
        return all(bool(np.isfinite(part).all()) for part in self.slopes)


def through(functions: Functions, point: Point, system: System) -> tuple[Total, np.ndarray]:
    """The upper level at a solution of the lower one, and the adjoints of its functions.

    Not a number where a system is not solved.
    """
    x, y, mu = point
    values, direct = functions.upper(x, y)
    in_y = direct[:, x.size :]
    pushed = np.flatnonzero(in_y.any(axis=1))
    adjoints = np.zeros((len(in_y), y.size + mu.size))
    if pushed.size:
        adjoints[pushed] = np.concatenate(system.solve(in_y[pushed].T.copy(), np.zeros((mu.size, pushed.size)))).T
    with np.errstate(invalid="ignore"):  # slopes may be infinite
        slopes = direct[:, : x.size] - functions.pulled(x, y, mu, adjoints)
    return Total(*(Uppers.cut(lines, functions.layout.above) for lines in (values, slopes))), adjoints


class Follower:
    """Follows the solution of a lower level that looks convex."""

    def __init__(
        self,
        functions: Functions,
        landed: Callable[[np.ndarray], np.ndarray],
        from_afar: Callable[..., Iterator[Branches]],
    ) -> None:
        """`landed`: the nearest point of Y; `from_afar`: the lower level from anywhere, the last one is the end."""
        self.functions, self.layout, self._landed, self._from_afar = functions, functions.layout, landed, from_afar
        self._tracker = Tracker()

    def forget(self) -> None:
        """Drop what earlier solves leave to later ones."""
        self._tracker = Tracker()
        self.functions.formed = 0

    def solve(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Found | None:
        """The lower level's solution at x (inside X) from near y and mu; None where it was not reached."""
        return self._tracker.solve(self._level(x), y, mu)

    def solve_from_anywhere(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Found | None:
        """The same, where need be by way of solvers that arrive more often."""
        found = self.solve(x, y, mu)
        for there in () if found is not None else self._from_afar(x, y, mu):
            found = self.solve(x, there.y[0], there.mu[0]) if there.status[0] == SOLVED else None
            if found is not None:
                break
        return found

    def held(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, active: np.ndarray) -> Found | None:
        """y and mu at x with the given rows active, whatever their signs; None where the steps do not arrive."""
        return self._tracker.held(self._level(x), y, mu, active)

    def centred(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, t: float) -> Found | None:
        """The point of the lower level's central path at x and t, from near y and mu; None where it is not reached."""
        return centre(self._level(x), y, mu, t)

    def _level(self, x: np.ndarray) -> Level:
        return self.functions.level(x, self._landed)

    def unique(self, found: Found) -> bool:
        """Whether y* is the only solution nearby: it answers to a push in a bounded way."""
        return stiffness(found.system) <= STIFF

    def determined(self, x: np.ndarray, found: Found) -> bool:
        """Whether the upper level sees only what is unique of y*, as total flows where the flows are not."""
        in_y = self.functions.upper(x, found.y)[1][:, x.size :]
        answers, _ = found.system.solve(in_y.T.copy(), np.zeros((found.mu.size, len(in_y))))
        return bool(np.max(np.abs(answers), initial=0.0) <= STIFF * max(1.0, np.max(np.abs(in_y), initial=0.0)))

    def total(self, x: np.ndarray, found: Found) -> Total:
        """The upper level at x and y*(x), or at a point of the central path; NaN where a system is not solved."""
        return through(self.functions, Point(x, found.y, found.mu), found.system)[0]

    def sides(self, x: np.ndarray, found: Found, which: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """By how much each of some rows keeps to its side, with derivatives in x: mu of active rows, -r of others."""
        active, ny = found.system.active[which], found.y.size
        values = np.where(active, found.mu[which], -found.slopes.rows[which])
        of_y, of_rows = np.zeros((ny, which.size)), np.zeros((found.mu.size, which.size))
        of_y[:, ~active] = -found.system.matrices.gradients(which[~active]).T
        of_rows[which[active], np.flatnonzero(active)] = 1.0
        adjoints = np.concatenate(found.system.solve(of_y, of_rows)).T
        adjoints[np.flatnonzero(~active), ny + which[~active]] += 1.0
        count = 1 + self.layout.above + self.layout.above_equal  # adjoints that a program takes: zeros fill the last
        filled = np.concatenate([adjoints, np.zeros((-which.size % count, adjoints.shape[1]))])
        blocks = filled.reshape(-1, count, filled.shape[1])
        parts = [self.functions.pulled(x, found.y, found.mu, block) for block in blocks]
        return values, -np.concatenate([np.zeros((0, x.size)), *parts])[: which.size]


# -- values and derivatives -------------------------------------------------------------------------------------------


class InUnits:
    """The problem in units: values and derivatives, and points that cover its sets."""

    def __init__(self, programs: Programs, units: Units, y: np.ndarray, stop: Stop) -> None:
        self.programs, self.units, self.layout, self._stop = programs, units, programs.layout, stop
        self.x_unit, self.y_unit = raveled(units.x), raveled(units.y)
        self.upper_unit, self.lower_unit = float(units.upper.unit), float(units.lower.unit)
        self.x_limits = Bounds(*(side / self.x_unit for side in programs.x_limits))
        self.y_limits = Bounds(*(side / self.y_unit for side in programs.y_limits))
        self._centre = raveled(programs.setting.x) / self.x_unit, y / self.y_unit

    @functools.cached_property
    def functions(self) -> Functions:
        """The problem inside of X and Y."""
        return self.programs.functions(self.units, self._stop)

    def landed(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The nearest points of X and Y."""
        x, y = self.programs.landed(x * self.x_unit, y * self.y_unit)
        return x / self.x_unit, y / self.y_unit

    def cover_x(self, x: np.ndarray, cube: Cube) -> np.ndarray:
        """Points that cover X, x first."""
        points = scattered(x, *self.x_limits, cube, np)
        return np.array([self.landed(one, self._centre[1])[0] for one in points])

    def cover_y(self, y: np.ndarray, cube: Cube) -> np.ndarray:
        """Points that cover Y, y first."""
        points = scattered(y, *self.y_limits, cube, np)
        return np.array([self.landed(self._centre[0], one)[1] for one in points])

    def table(self, point: np.ndarray) -> np.ndarray:
        """One line per function, its value and its derivatives in (x, y), at x, y and mu one after another.

        Outside of X and Y those of the nearest point, continued along straight lines.
        """
        x, y, mu = np.split(point, [self.layout.nx, self.layout.nx + self.layout.ny])
        if self.programs.entrywise:
            at = np.clip(x, *self.x_limits), np.clip(y, *self.y_limits)
        else:
            at = self.landed(x, y)
        inside = np.concatenate([*at, mu])
        lines, away = self.functions.lines(inside), (point - inside)[: x.size + y.size]
        if away.any():
            lines = lines.copy()
            with np.errstate(invalid="ignore"):  # slopes may be infinite
                lines[:, 0] += lines[:, 1:] @ away
        return lines

    def at(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> tuple[Values, Values]:
        """Values and Jacobians; outside of X and Y those of the nearest point, continued along straight lines."""
        lines = self.table(np.concatenate([x, y, mu]))
        return self.layout.cut(lines[:, 0]), self.layout.cut(lines[:, 1:])

    def values(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Values:
        """Values alone; outside of X and Y like `at` where that is quick, else those of the nearest point."""
        if self.programs.by_table:
            return self.at(x, y, mu)[0]
        return self.functions.values(*self.landed(x, y), mu)

    def upper_slopes(self, x: np.ndarray, y: np.ndarray) -> Uppers:
        """Derivatives of the upper level's functions in (x, y)."""
        return Uppers.cut(self.functions.upper(x, y)[1], self.layout.above)

    def lower_slope(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The gradient of G in (x, y), at the nearest point of X and Y."""
        there = self.functions.slopes(*self.landed(x, y), np.zeros(self.layout.rows))
        return np.concatenate([there.along_x, there.gradient])

    def violation(self, x: np.ndarray, y: np.ndarray, values: Values) -> float:
        """The largest violation of anything."""
        rows = self.layout.beyond(values.rows), values.above, np.abs(values.above_equal)
        (low, high), (low_y, high_y) = self.x_limits, self.y_limits
        sides = low - x, x - high, low_y - y, y - high_y
        worst = max(float(np.max(part, initial=0.0)) for part in (*rows, *sides))
        return worst if all(np.isfinite(part).all() for part in rows) else np.inf

    def row_units(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """The unit of every row of the lower level.

        Those of faces of Y are seen at two points in both units; 1 where they are zero, up to rounding, at both.
        """
        found, largest = np.ones(self.layout.rows), np.full(self.layout.rows, ROUNDING)
        own, equal = ~self.layout.face, self.layout.equal
        for aside in (1.0, -1.0):
            at = self.landed(x, y + aside)
            ours = self.values(*at, np.zeros(found.size)).rows
            theirs = self.programs.raw_values(at[0] * self.x_unit, at[1] * self.y_unit).rows
            clearer = np.isfinite(ours) & np.isfinite(theirs) & (np.abs(ours) > largest)
            found[clearer], largest[clearer] = theirs[clearer] / ours[clearer], np.abs(ours[clearer])
        found[own & ~equal] = raveled(self.units.rows.inequalities)
        found[own & equal] = raveled(self.units.rows.equalities)
        return found


# -- the lower level solved -------------------------------------------------------------------------------------------


class VectorProblem(InUnits):
    """The problem in units with its lower level solved, from points that cover Y."""

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
        super().__init__(programs, units, y, stop)
        self._seed = seed
        self._looked_at = self._centre[0][None] if xs is None else xs / self.x_unit

    @functools.cached_property
    def lower_starts(self) -> np.ndarray:
        """Points that cover Y."""
        return self.cover_y(self._centre[1], unit_cube(self.layout.ny, LOWER_STARTS - 1, self._seed))

    def meet(self, y: np.ndarray) -> None:
        """From now on the lower level, which is not convex, is solved from y as well."""
        self.bent = "not convex: it has a solution that its other starts did not lead to"
        self.lower_starts = np.concatenate([y[None], self.lower_starts])[:LOWER_STARTS]

    @functools.cached_property
    def bent(self) -> str | None:
        """Why the lower level is not convex, as far as a few points show; None where it looks convex."""
        if self.programs.hand is not None:
            return None
        if self.programs.large:
            setting = self.programs.setting
            return not_convex(setting, setting.y, self._seed)
        first, *others = self._looked_at
        small = self.programs.lanes > 1
        looks = self.lower_starts if self._moderate else self.lower_starts[:FEW]
        found = bent_below(self, first, looks)
        for x in others if small else others[:FEW]:
            found = found or bent_below(self, x, looks[: 2 * FEW if small else 1])
        return found

    @property
    def looks(self) -> int:
        """At how many points its convexity was looked at."""
        return SEGMENTS if self.programs.large else LOWER_STARTS if self._moderate else FEW

    @property
    def _moderate(self) -> bool:
        """Larger lower levels are solved once, or from fewer starts if not convex."""
        return self.layout.ny + self.layout.rows <= 2 * SMALL_ORDER

    @property
    def starts_below(self) -> int:
        """From how many points the lower level is solved: few are enough for a large one that looks convex."""
        if not self.programs.large and (self.programs.lanes > 1 or (self._moderate and self.bent is not None)):
            return LOWER_STARTS
        if self.bent is not None:
            return LOWER_STARTS // FEW
        return FEW if self._moderate and not self.programs.large else 1

    @functools.cached_property
    def newton(self) -> Follower:
        """Newton steps on the lower level's KKT system, whether it is convex or not."""

        def landed(y: np.ndarray) -> np.ndarray:
            if self.programs.entrywise:
                return np.clip(y, *self.y_limits)
            return self.landed(self._centre[0], y)[1]

        return Follower(self.functions, landed, lambda x, y, mu: self.functions.from_afar(x, y, mu, self.bent is None))

    @property
    def follower(self) -> Follower | None:
        """Follows y*(x) as x moves; None where the lower level is not convex."""
        return self.newton if self.bent is None else None

    def forget(self) -> None:
        """Drop what solves of the lower level leave to the next ones: these depend on their arguments alone."""
        self.newton.forget()

    def branches(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray | None = None) -> Branches:
        """The lower level at x from y and mu, and from the points that cover Y: `starts_below` in all.

        The solution of a convex lower level that is unique is the only one, from wherever it was found. Without mu, y
        is no solution that is followed: then one of the points is the best on lines through Y.
        """
        multipliers = np.zeros(self.layout.rows) if mu is None else mu
        follower = self.follower
        if follower is not None:
            found = follower.solve(x, y, multipliers)
            if found is not None and not follower.unique(found):
                found = _lower_solution(self, x, found) or found
            if found is not None and follower.unique(found) and self._convex_at(found):
                return Branches.one(self.layout, found.y, found.mu, found.slopes, SOLVED)
        scanned = [] if mu is not None else _scanned(self, x, y)
        several = [] if self.starts_below == 1 else [*scanned, self.lower_starts]
        points = np.concatenate([y[None], *several])[: self.starts_below]
        every = np.zeros((len(points), self.layout.rows))
        every[0] = multipliers
        return self.followed(x, points, every)

    def branches_in_time(self, x: np.ndarray, y: np.ndarray) -> Branches:
        """The same without mu; none where the time is up before they are known."""
        try:
            return self.branches(x, y)
        except OutOfTime:
            return Branches.none(self.layout)

    def _convex_at(self, found: Found) -> bool:
        """Whether L is convex in y at a solution; where it is not, the lower level never counts as convex again."""
        matrices = found.system.matrices
        if isinstance(matrices, Matrices) and not matrices.convex(0.5 * FLAT):
            self.bent = "not convex: the lower level has a negative curvature at a solution"
        return self.bent is None

    def followed(self, x: np.ndarray, points: np.ndarray, mu: np.ndarray) -> Branches:
        """The lower level at x from each of the points and multipliers: by the follower, or else by what arrives."""
        follower, convex = self.follower, self.bent is None
        if follower is None or not (self.programs.lanes == 1 or len(points) == 1):
            return self.functions.branches(x, points, mu, convex)
        solve = follower.solve_from_anywhere if self.programs.large else follower.solve
        every = []
        for y, multipliers in zip(points, mu, strict=True):
            found = solve(x, y, multipliers)
            if found is None:
                every.append(self.functions.branches(x, y[None], multipliers[None], convex))
            else:
                every.append(Branches.one(self.layout, found.y, found.mu, found.slopes, SOLVED))
        return Branches.joined(every)

    def structure(self, xs: np.ndarray) -> Structure:
        """Which rows are mere bounds, and which are none at all, as far as Jacobians at a few points show."""
        layout, above = self.layout, np.arange(self.layout.above)
        if self.programs.large:
            rows = np.ones(layout.rows, bool)
            return Structure(rows, rows, above >= 0)
        last = np.arange(-FEW, 0)
        points = zip(xs[last % len(xs)], self.lower_starts[last], strict=True)
        slopes = [self.at(x, y, np.zeros(layout.rows))[1] for x, y in points]
        of_rows = np.max([np.count_nonzero(slope.rows, axis=1) for slope in slopes], axis=0)
        of_above = np.max([np.count_nonzero(slope.above, axis=1) for slope in slopes], axis=0)
        live = ~layout.face | (of_rows > 0)
        curved = live & ~(layout.face & (of_rows == 1) & ~layout.equal)
        return Structure(live, curved, (of_above > 1) | (above < layout.own_above))


def bent_below(vectors: VectorProblem, x: np.ndarray, looks: np.ndarray) -> str | None:
    """Why the lower level at x is not convex, as far as some points of Y show; None where nothing was found."""
    none = np.zeros(vectors.layout.rows)
    for y in looks:
        matrices = vectors.functions.matrices(x, y, none)
        if not isinstance(matrices, Matrices) or not matrices.finite or matrices.convex(0.5 * FLAT):
            continue
        curvatures = np.linalg.eigvalsh(0.5 * (matrices.hessian + matrices.hessian.T))
        if curvatures[0] < -FLAT * max(np.abs(curvatures).max(), 1.0):
            return f"not convex: the lower objective has a negative curvature ({curvatures[0]:.2g} in units)"
    own = ~vectors.layout.face
    rows = [(vectors.values(x, y, none).rows, y) for y in looks if own.any()]
    for (first, y), (second, z) in itertools.pairwise(rows):
        middle = vectors.values(x, 0.5 * (y + z), none).rows
        excess = middle - 0.5 * (first + second)
        size = FLAT * (1 + np.abs(first) + np.abs(second))
        wrong = own & np.where(vectors.layout.equal, np.abs(excess) > size, excess > size)
        if wrong.any():
            return f"not convex: row {int(np.flatnonzero(wrong)[0])} of the lower level lies above its chord"
    return None


# -- scans ------------------------------------------------------------------------------------------------------------


def scan_points(coordinates: int, least: int = FEW) -> int:
    """How many points of each line a scan looks at; none where there are fewer lines than `least`, or too many."""
    points = min(SCAN_LOOKS // max(coordinates, 1), FEW * FEWEST)
    return points if points >= FEWEST and coordinates >= least else 0


def lowest_on_lines(
    value: Callable[[np.ndarray], float], point: np.ndarray, low: np.ndarray, high: np.ndarray, points: int
) -> np.ndarray:
    """The point after each entry in turn was set to the best of `points` between its two ends, where that is lower.

    A local solver ends in the valley where it starts, and random starts hit the deepest of many valleys rarely: of
    seven per coordinate, one start in 7^n. Where the valleys lie along the coordinates, n scans of a line find what
    they miss.

    Examples:
        >>> def valleys(y):
        ...     return float(np.sum(y**2 - np.cos(2 * np.pi * y)))
        >>> lowest_on_lines(valleys, np.array([2.0, -1.0, 1.0]), np.full(3, -3.0), np.full(3, 3.0), 45).round(3)
        array([0., 0., 0.])
    """
    best, least = point, value(point)
    for i in range(point.size):
        line = np.linspace(low[i], high[i], points)
        places = np.tile(best, (points + FEW, 1))
        places[:points, i] = line
        values = np.array([value(one) for one in places[:points]])
        bottoms = _bottoms(line, values)
        places[points : points + bottoms.size, i] = bottoms
        found = np.append(values, [value(one) for one in places[points : points + bottoms.size]])
        lowest = int(np.argmin(found))
        if found[lowest] < least:
            best, least = places[lowest], float(found[lowest])
    return best


def _bottoms(line: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Where parabolas through three neighbours have their lowest points, in the deepest valleys of a line.

    A grid that is no finer than needed to see a narrow valley sees its walls, and not how deep it is.
    """
    left, middle, right = (values[k : len(values) - 2 + k] for k in range(3))
    inside = np.flatnonzero(np.isfinite(left) & np.isfinite(middle) & np.isfinite(right))
    left, middle, right = left[inside], middle[inside], right[inside]
    bend = left + right - 2 * middle
    valleys = np.flatnonzero((middle <= left) & (middle <= right) & (bend > 0))
    deepest = valleys[np.argsort(middle[valleys], kind="stable")][:FEW]
    shift = 0.5 * (left - right)[deepest] / bend[deepest]
    return line[1 + inside[deepest]] + shift * (line[1] - line[0])


# -- the problem linearised --------------------------------------------------------------------------------------------


class Response(NamedTuple):
    """How y* answers to x where nothing is weakly active.

    Attributes:
        y: dy/dx; None where the lower level is flat along its active rows, so that y* is not unique, or not known.
        mu: dmu/dx, of the active rows.
        dependent: whether active rows depend on each other as functions of y, but not of (x, y): only some of them stay
            active when x moves.
    """

    y: np.ndarray | None
    mu: np.ndarray
    dependent: bool


@dataclasses.dataclass(frozen=True)
class Linearised:
    """The problem near a solution of the lower level.

    Attributes:
        vectors: the problem.
        point: x, y*(x) and the multipliers.
        values: all functions there; upper constraints may be followed by cuts (`with_cuts`).
        slopes: of the upper level's functions, in (x, y).
    """

    vectors: VectorProblem
    point: Point
    values: Values
    slopes: Uppers
    _kept: dict[bytes, Response] = dataclasses.field(default_factory=dict, repr=False)

    @staticmethod
    def at(vectors: VectorProblem, point: Point) -> "Linearised":
        """At a point inside of X and Y."""
        return Linearised(vectors, point, vectors.values(*point), vectors.upper_slopes(point.x, point.y))

    @functools.cached_property
    def matrices(self) -> SecondDerivatives:
        """Of second order, in y."""
        return self.vectors.functions.matrices(*self.point)

    @functools.cached_property
    def mixed(self) -> np.ndarray | None:
        """The derivatives in x of the gradient of L in y, then of the rows; None where x has too many entries."""
        by_factors = isinstance(self.matrices, Matrices)
        most = MAX_NUMBERS // max(self.point.y.size, 1) if by_factors else MAX_SYSTEMS
        if self.vectors.programs.large and self.vectors.layout.nx > most:
            return None
        return self.vectors.functions.mixed(*self.point)

    def row_slopes(self, which: np.ndarray) -> np.ndarray:
        """The Jacobian in (x, y) of some rows (a mask)."""
        from_y = self.matrices.gradients(np.flatnonzero(which))
        of_x = np.zeros((which.size, self.point.x.size)) if self.mixed is None else self.mixed[self.point.y.size :]
        return np.concatenate([of_x[which], from_y], axis=1)

    @property
    def hessian(self) -> np.ndarray:
        """Of L in y, formed."""
        assert isinstance(self.matrices, Matrices)
        found = self.matrices.hessian
        return found if isinstance(found, np.ndarray) else found.toarray()

    @property
    def dense(self) -> bool:
        """Whether singular values of the matrices may be computed."""
        return isinstance(self.matrices, Matrices) and self.point.y.size <= MAX_DENSE

    @property
    def active(self) -> np.ndarray:
        """Equalities, and rows whose multiplier is larger than their slack."""
        return self.vectors.layout.equal | (np.abs(self.point.mu) > np.abs(self.values.rows))

    @functools.cached_property
    def margins(self) -> np.ndarray:
        """How clearly every row is active or not: zero where it is weakly active; infinite for equalities."""
        moves = self.matrices.along(np.random.default_rng(0).normal(size=self.point.y.size)) != 0
        if self.mixed is not None:
            moves |= self.mixed[self.point.y.size :].any(axis=1)
        clear = np.maximum(np.abs(self.values.rows), np.abs(self.point.mu))
        return np.where(self.vectors.layout.equal | ~moves, np.inf, clear)

    @functools.cached_property
    def radii(self) -> np.ndarray:
        """Lengths that x may move until, to first order, every row changes sides; infinite for those that never do.

        Where the response of y* to x is not known, the rows' margins.
        """
        active, answer, (x, y, mu) = self.active, self.response(self.active), self.point
        if answer.y is not None and self.mixed is not None:
            moves = np.abs(self.mixed[y.size :] + self.matrices.along(answer.y)).sum(axis=1)
            moves[active] = np.abs(answer.mu).sum(axis=1)
        else:
            few = self.mixed is None and mu.size <= MAX_SYSTEMS
            system, follower = self.regular_system(active) if few else None, self.vectors.follower
            if system is None or follower is None:
                return self.margins
            found = Found(y, mu, self.vectors.functions.slopes(*self.point), system)
            moves = np.abs(follower.sides(x, found, np.arange(mu.size))[1]).sum(axis=1)
        distance = np.where(active, np.abs(mu), np.abs(self.values.rows))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.vectors.layout.equal | (moves <= ROUNDING), np.inf, distance / moves)

    def response(self, active: np.ndarray) -> Response:
        """dy*/dx and dmu/dx on one active set, dependent rows counted once."""
        key = active.tobytes()
        if key not in self._kept:
            self._kept[key] = self._response(active)
        return self._kept[key]

    def _response(self, active: np.ndarray) -> Response:
        ny, unknown = self.point.y.size, Response(None, np.zeros((int(active.sum()), self.point.x.size)), False)
        system = None if self.mixed is None else self.regular_system(active)
        if self.mixed is not None and system is not None:
            dy, dmu = system.solve(-self.mixed[:ny], -self.mixed[ny:])
            if np.isfinite(dy).all():
                return Response(dy, dmu[active], False)
        return self._by_singular_values(active, self.mixed) if self.dense and self.mixed is not None else unknown

    def _by_singular_values(self, active: np.ndarray, mixed: np.ndarray) -> Response:
        nx, ny, hessian, rows = self.point.x.size, self.point.y.size, self.hessian, self.row_slopes(active)
        mixed, rows_y = mixed[:ny], rows[:, nx:]
        rank, inverse = np.linalg.matrix_rank(rows_y, rtol=ROUNDING), np.linalg.pinv(rows_y, rcond=ROUNDING)
        free = np.linalg.svd(rows_y, full_matrices=True)[2][rank:].T
        # Else a row follows from the others, whatever x does.
        dependent = bool(rank < len(rows) and rank < np.linalg.matrix_rank(rows, rtol=ROUNDING))
        moved = -inverse @ rows[:, :nx]
        reduced = free.T @ hessian @ free
        curvatures = np.abs(np.linalg.eigvalsh(0.5 * (reduced + reduced.T)))
        if np.min(curvatures, initial=np.inf) <= ROUNDING * max(1.0, np.abs(hessian).max()):
            return Response(None, np.zeros((len(rows), nx)), dependent)
        dy = moved + free @ np.linalg.solve(reduced, -free.T @ (mixed + hessian @ moved))
        dmu = -inverse.T @ (mixed + hessian @ dy)
        return Response(dy, dmu, dependent)

    def regular_system(self, active: np.ndarray) -> KKTSystem | None:
        """The KKT system on some rows; None where y* or the multipliers are not unique, or nearly so."""
        if isinstance(self.matrices, Matrices) and not self.matrices.finite:
            return None
        system = KKTSystem(self.matrices, active)
        if system.doubled:
            return None
        by_factors = isinstance(self.matrices, Matrices)
        if not by_factors and system.independent(MAX_ORDER, MAX_NUMBERS) is not True:
            return None
        return system if stiffness(system, push_rows=True) <= STIFF else None

    def with_cuts(self, branches: Branches) -> "Linearised":
        """The same with a further upper constraint, G(x, y) <= v_j(x), for every other local solution that is as good.

        Where x moves so that such a solution becomes better, y stops being one.
        """
        value = float(self.values.lower)
        kept: list[int] = []
        for j in np.flatnonzero((branches.status == SOLVED) & (np.abs(branches.value - value) <= CUT)):
            known = np.concatenate([self.point.y[None], branches.y[kept]])
            if np.all(np.max(np.abs(branches.y[j] - known), axis=1, initial=0.0) > CLOSE):
                kept.append(int(j))
        if not kept:
            return self
        there = self.vectors.functions.slopes(self.point.x, self.point.y, np.zeros_like(self.point.mu))
        slopes = np.tile(np.concatenate([there.along_x, there.gradient]), (len(kept), 1))
        slopes[:, : self.point.x.size] -= branches.slope[kept]
        values = self.values._replace(above=np.concatenate([self.values.above, value - branches.value[kept]]))
        steep = self.slopes._replace(above=np.concatenate([self.slopes.above, slopes]))
        return dataclasses.replace(self, values=values, slopes=steep)


def _lower_solution(vectors: VectorProblem, x: np.ndarray, found: Found) -> Found | None:
    """The solution that is lower by so little that no residual told it from the one found; None: there is none."""
    y = moved_down(vectors, x, found.y, found.mu)
    if y is found.y:
        return None
    rows = vectors.functions.slopes(x, y, found.mu).rows
    return vectors.newton.held(x, y, found.mu, vectors.layout.equal | (found.mu > 0) | (rows > -FEASIBLE))


def moved_down(vectors: VectorProblem, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> np.ndarray:
    """Where G is lower than at y, by more than rounding and less than residuals tell, and no row worse; else y."""
    by_hand = vectors.programs.hand is not None or vectors.programs.large
    matrices = None if by_hand else vectors.functions.matrices(x, y, mu)
    if not isinstance(matrices, Matrices):
        return y
    here = vectors.functions.slopes(x, y, np.zeros(mu.size))
    by_x = np.abs(vectors.functions.mixed(x, y, mu)[: y.size]).sum(axis=1)
    unsure = FEW * FEASIBLE * float(np.max(by_x, initial=0.0))  # x may be off by so much
    move = slid(matrices, here.gradient, unsure, here.rows, mu, vectors.layout.equal)
    if not move.any():
        return y
    moved = vectors.landed(x, y + move)[1]
    there = vectors.functions.slopes(x, moved, np.zeros(mu.size))
    worse, before = (np.max(vectors.layout.beyond(at.rows), initial=0.0) for at in (there, here))
    size = abs(here.value) + abs(float(vectors.units.lower.origin) / vectors.lower_unit)
    lower = here.value - there.value > MANY * np.finfo(float).eps * size
    return moved if lower and worse <= before + ROUNDING else y


def _scanned(vectors: VectorProblem, x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    """Another point to solve a lower level from that is not convex: the best on lines through Y, from y on."""
    if vectors.bent is None or not scan_points(vectors.layout.ny):
        return []
    none, beyond = np.zeros(vectors.layout.rows), vectors.layout.beyond
    allowed = max(float(np.max(beyond(vectors.values(x, y, none).rows), initial=0.0)), FEASIBLE)

    def value(there: np.ndarray) -> float:
        values = vectors.values(x, there, none)
        fine = np.max(beyond(values.rows), initial=0.0) <= allowed and np.isfinite(values.lower)
        return float(values.lower) if fine else np.inf

    cover = np.min(vectors.lower_starts, axis=0), np.max(vectors.lower_starts, axis=0)
    low, high = (np.where(np.isfinite(end), end, far) for end, far in zip(vectors.y_limits, cover, strict=True))
    found = lowest_on_lines(value, y, low, high, scan_points(vectors.layout.ny))
    return [] if np.array_equal(found, y) else [found[None]]
