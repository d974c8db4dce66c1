"""The descent test: lower solves at points around x, which refute a point whatever its derivatives say.

It catches maxima, concave kinks, active sets that the derivatives could not know of, and scales that are wrong. It also
measures what F(x, y*(x)) changes around x, against which everything about the upper level is judged.
"""

import functools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from hierax._base.constants import LOWER_STARTS
from hierax._engine.linearised import Linearised
from hierax._engine.programs import Values
from hierax._engine.vectors import Point, VectorProblem, kkt_residual
from hierax._judge.bending import bends_down
from hierax._judge.gain import adjoint_slopes
from hierax._lower.linear import Matrices, OutOfTime, gradients
from hierax._math.lower_level import SOLVED

STEPS = (0.1, 0.01, 0.001)  # distances, in lengths of x
COORDINATES = 6  # entries of x up to which every one is moved by itself
BENT = 10  # entries of x up to which the Hessian of F(x, y*(x)) is formed from differences of gradients
PRODUCTS_UP_TO = (200, 600)  # entries of x, of y and rows, up to which it is told by products where x has more
EVERY_ENTRY = 10_000  # entries of y up to which every one of few entries of x is moved by itself
RANDOM = 2  # directions at random
OPPOSITE = 1e-3  # share of a step by which two looks may miss being opposite to each other
SAME_VALUE = 1e-7  # difference in f, in its unit, of solutions of the lower level that are equally good
NEWTON_STEPS, NEWTON_SIZE = 8, 400  # on the KKT system of points that are compared, up to this many unknowns
ROUNDED, RISE = 1e-14, 1e3  # residual at which they end, and how many times it may rise on the way
BACK = 2  # Newton steps back to active upper constraints
FLAT = 1e-12  # relative singular values of that system below this are directions along which nothing is told
ALLOWED = 1e-6  # violation of upper constraints, in units, of points that are compared


class Look(NamedTuple):
    """A point at a distance from x: what F is there, compared with x.

    Attributes:
        step: the distance, in lengths of x (zero: another solution of the lower level at x).
        change: of F, in its unit, plus what upper constraints that are violated there cost.
        point: the point.
    """

    step: float
    change: float
    point: Point


class Around(NamedTuple):
    """What the descent test saw.

    Attributes:
        looks: every point.
        slope: the largest change of F per length of x that was seen close by.
        curvature: the largest second difference, per squared length.
        complete: whether the time was enough for all directions.
    """

    looks: list[Look]
    slope: float
    curvature: float
    complete: bool


def look_around(at: Linearised, nu: np.ndarray, towards: np.ndarray, seed: int, stop: Callable[[], bool]) -> Around:
    """Solve the lower level on both sides of x along several directions; `towards` is the most promising."""
    base, around = _Base(at, nu), Around([], 0.0, 0.0, True)
    gradients_along = dict[int, np.ndarray]()
    try:
        around.looks.extend(base.compared(0.0, found) for found in _other_solutions(at, nu))
        for entry, direction in _directions(base, towards, seed, gradients_along, stop):
            if stop():
                return around._replace(complete=False)
            sides = [[_look(base, direction * side, step) for step in STEPS] for side in (1.0, -1.0)]
            around.looks.extend(one for side in sides for one in side if one is not None)
            around.looks.extend([] if base.surface is None else _along_rows(base, direction))
            steep, bent, pairs = weighed(sides, at.point.x)
            around = around._replace(slope=max(around.slope, steep), curvature=max(around.curvature, bent))
            if entry is not None and at.vectors.layout.nx <= BENT and pairs:
                first, second = pairs[-1]
                gradients_along[entry] = _difference(at.vectors, first.point, second.point, 2 * first.step)
    except OutOfTime:
        return around._replace(complete=False)
    return around


def weighed(sides: list[list[Look | None]], x: np.ndarray) -> tuple[float, float, list[tuple[Look, Look]]]:
    """Slope and curvature of F that both sides of a direction show, and the pairs of looks around x that say so.

    Only pairs that X has left on either side of x, as far from it: the slope at a bound is no curvature.
    """
    pairs = [
        (a, b)
        for a, b in zip(*sides, strict=True)
        if a is not None and b is not None and a.step >= STEPS[1]
        if np.max(np.abs(a.point.x + b.point.x - 2 * x), initial=0.0) <= OPPOSITE * a.step
    ]
    bent = min((abs(a.change + b.change) / a.step**2 for a, b in pairs), default=0.0)
    return max(_steepness(side) for side in sides), 0.0 if any(_jumps(side) for side in sides) else bent, pairs


def _jumps(side: list[Look | None]) -> bool:
    """Whether F is as far off at the shortest step as at the longest."""
    changes = [abs(one.change) for one in side if one is not None]
    return len(changes) > 1 and changes[-1] > 0.5 * changes[0]


def _steepness(side: list[Look | None]) -> float:
    """The change of F per length of x on one side; of a jump, only its height."""
    changes = [(abs(one.change), one.step) for one in side if one is not None]
    if _jumps(side):
        return min(change for change, _ in changes)
    return max((change / step for change, step in changes), default=0.0)


def refuting(around: Around, allowed: float, radius: float, rounding: float) -> Look | None:
    """The point within the radius at which F is lowest, where it is lower than the allowed slope and rounding explain.

    All changes of F are in the units of `allowed` and `rounding`.
    """
    lower = [
        look
        for look in around.looks
        if look.step <= radius and -look.change > allowed * max(look.step, STEPS[-1]) + rounding
    ]
    return min(lower, key=lambda look: look.change, default=None)


def _directions(
    base: "_Base", towards: np.ndarray, seed: int, gradients: dict[int, np.ndarray], stop: Callable[[], bool]
) -> Iterator[tuple[int | None, np.ndarray]]:
    """Directions of largest entry one (and the entry that is moved by itself).

    `gradients` is filled on the way with differences of gradients along single entries: the last direction is that in
    which F(x, y*(x)) bends down most. Where there are too many entries for that, or upper constraints are active, a few
    products tell it: with the Lagrangian, along the constraints.
    """
    nx, layout = base.at.vectors.layout.nx, base.at.vectors.layout
    if nx <= COORDINATES and (layout.ny <= EVERY_ENTRY or nx == 1):
        yield from ((i, np.eye(nx)[i]) for i in range(nx))
    longest = np.max(np.abs(towards), initial=0.0)
    if longest > 0 and nx > 1:
        yield None, towards / longest
    if nx > 1:
        rng = np.random.default_rng(seed)
        yield from ((None, rng.choice([-1.0, 1.0], nx)) for _ in range(RANDOM))
    if nx > 1 and len(gradients) == nx:
        hessian = np.stack([gradients[i] for i in range(nx)])
        if np.isfinite(hessian).all():
            down = np.linalg.eigh(0.5 * (hessian + hessian.T))[1][:, 0]
            yield None, down / np.max(np.abs(down))
    few = 1 if base.surface is not None else COORDINATES
    if few < nx <= PRODUCTS_UP_TO[0] and layout.ny + layout.rows <= PRODUCTS_UP_TO[1]:
        bent = bends_down(base.gradient, base.at.point.x, base.tangent, seed, stop)
        if bent is not None:
            yield None, bent / np.max(np.abs(bent))


def _difference(vectors: VectorProblem, first: Point, second: Point, apart: float) -> np.ndarray:
    """The change of the gradient of F(x, y*(x)) between two points, per length; NaN where there is none."""
    none = np.zeros(vectors.layout.above)
    ends = _gradient(vectors, first, none), _gradient(vectors, second, none)
    if ends[0] is None or ends[1] is None:
        return np.full(vectors.layout.nx, np.nan)
    return (ends[0] - ends[1]) / apart


def _gradient(vectors: VectorProblem, point: Point, nu: np.ndarray) -> np.ndarray | None:
    """The gradient of F(x, y*(x)) with multipliers of upper constraints, at a point; None where y* is not unique."""
    there = Linearised.at(vectors, point)
    if vectors.programs.large:
        found = adjoint_slopes(there, there.active)
        return None if found is None else found[0].upper + nu @ found[0].above
    return _total(there, there.slopes.upper + nu @ there.slopes.above)


def _total(at: Linearised, slopes: np.ndarray) -> np.ndarray | None:
    """Derivatives in x of functions of x and y*(x), from those in (x, y); None where y* is not unique."""
    nx, answer = at.vectors.layout.nx, at.response(at.active)
    return None if answer.y is None else slopes[..., :nx] + slopes[..., nx:] @ answer.y


class _Base:
    """F at the point, with which the looks are compared.

    Lower solves end at a small KKT residual; where G is nearly flat, y and F may be off by much more than that. So
    points that seem lower are compared after Newton steps on the lower level's KKT system: at both of them.
    """

    def __init__(self, at: Linearised, nu: np.ndarray) -> None:
        self.at, self.nu = at, nu
        self.value = float(at.values.upper)

    @functools.cached_property
    def _settled(self) -> float:
        """F after Newton steps, where that is lower."""
        merit = _merit(self.at.vectors, settled(self.at.vectors, self.at.point), self.nu)
        return self.value if merit is None else min(merit, self.value)

    @functools.cached_property
    def surface(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The upper constraints that are active, and what takes their values back to zero; None: there are none."""
        own = self.at.vectors.layout.own_above
        active = np.flatnonzero(self.at.values.above[:own] >= -ALLOWED)
        slopes = _total(self.at, self.at.slopes.above[active]) if active.size else None
        if slopes is None or not np.isfinite(slopes).all():
            return None
        return active, np.linalg.pinv(slopes, rcond=FLAT)

    def tangent(self, direction: np.ndarray) -> np.ndarray:
        """What bounds, active upper constraints and faces of X leave of a direction."""
        at, (low, high) = self.at, self.at.vectors.x_limits
        free = (at.point.x > low + STEPS[1]) & (at.point.x < high - STEPS[1])
        above = slice(at.vectors.layout.above)
        active = (at.values.above[above] >= -ALLOWED) & (np.count_nonzero(at.slopes.above[above], axis=1) > 1)
        rows = _total(at, np.concatenate([at.slopes.above[above][active], at.slopes.above_equal]))
        direction = np.where(free, direction, 0.0)
        if rows is None or not len(rows) or not np.isfinite(rows).all():
            return direction
        rows = np.where(free, rows, 0.0)
        return direction - np.linalg.pinv(rows, rcond=FLAT) @ (rows @ direction)

    def gradient(self, x: np.ndarray) -> np.ndarray | None:
        """That of F(x, y*(x)), or of the upper constraints' Lagrangian, near the point; None where there is none."""
        vectors = self.at.vectors
        found = vectors.branches(x, self.at.point.y, self.at.point.mu)
        best = found.best()
        if best is None:
            return None
        return _gradient(vectors, Point(x, found.y[best], found.mu[best]), self.nu[: vectors.layout.above])

    def compared(self, step: float, found: tuple[float, Point]) -> Look:
        """A look at a point, whose F (with violations' costs) comes with it."""
        merit, point = found
        if merit < self.value:
            closer = settled(self.at.vectors, point)
            there = _merit(self.at.vectors, closer, self.nu)
            merit, point = found if there is None else (there, closer)
            return Look(step, merit - self._settled, point)
        return Look(step, merit - self.value, point)


def settled(vectors: VectorProblem, point: Point) -> Point:
    """A solution of the lower level after Newton steps on the KKT system of its active rows, as far as they help.

    The residual may rise on the way, as it does where G is nearly flat. Along directions in which G is flat the steps
    do not move: there F chooses.
    """
    best, least, first = point, np.inf, np.inf
    for turn in range(NEWTON_STEPS + 1):
        values = vectors.values(*point)
        residual = kkt_residual(values, point.mu, vectors.layout)
        first = residual if turn == 0 else first
        if residual < least:
            best, least = point, residual
        if not ROUNDED < residual <= RISE * first:
            break
        moved = _newton(vectors, point, values)
        if moved is None:
            break
        point = moved
    return best


def _newton(vectors: VectorProblem, point: Point, values: Values[np.ndarray]) -> Point | None:
    """One step from a point with its values; None where the system is too large or not finite."""
    layout = vectors.layout
    active = layout.equal | (np.abs(point.mu) > np.abs(values.rows))
    if layout.ny + active.sum() > NEWTON_SIZE or vectors.programs.large:
        return None
    matrices = vectors.functions.matrices(*point)
    assert isinstance(matrices, Matrices)
    rows, hessian = gradients(matrices, np.flatnonzero(active)), np.asarray(matrices.hessian)
    system = np.block([[hessian, rows.T], [rows, np.zeros((len(rows), len(rows)))]])
    wanted = -np.concatenate([values.stationarity, values.rows[active]])
    if not (np.isfinite(system).all() and np.isfinite(wanted).all()):
        return None
    move = np.linalg.lstsq(system, wanted, rcond=FLAT)[0]
    mu = point.mu.copy()
    mu[active] += move[layout.ny :]
    return Point(point.x, vectors.landed(point.x, point.y + move[: layout.ny])[1], mu)


def _look(base: _Base, direction: np.ndarray, step: float) -> Look | None:
    """A step along a direction; None where it leaves X at once, or nothing there may be compared."""
    at = base.at
    x, _ = at.vectors.landed(at.point.x + step * direction, at.point.y)
    moved = np.max(np.abs(x - at.point.x), initial=0.0)
    if moved < 0.3 * step:
        return None
    found = best_response(at.vectors, at.point._replace(x=x), base.nu)
    return None if found is None else base.compared(step, found)


def _along_rows(base: _Base, direction: np.ndarray) -> list[Look]:
    """Steps along a direction and back to the active upper constraints, which may be curved: on both sides."""
    assert base.surface is not None
    (active, back), vectors, near = base.surface, base.at.vectors, base.at.point
    found = []
    for step in (side * step for side in (1.0, -1.0) for step in STEPS):
        x, _ = vectors.landed(near.x + step * direction, near.y)
        for _ in range(BACK):
            solved = vectors.branches(x, near.y, near.mu)
            best = solved.best()
            if best is None:
                break
            beyond = vectors.values(x, solved.y[best], solved.mu[best]).above[active]
            x, _ = vectors.landed(x - back @ beyond, near.y)
        moved = np.max(np.abs(x - near.x), initial=0.0)
        there = (
            best_response(vectors, near._replace(x=x), base.nu) if 0.3 * abs(step) <= moved <= 3 * abs(step) else None
        )
        if there is not None:
            found.append(base.compared(abs(step), there))
    return found


def best_response(vectors: VectorProblem, near: Point, nu: np.ndarray) -> tuple[float, Point] | None:
    """The solution of the lower level at a point's x that is best for F, and F with violations' costs there."""
    found = vectors.branches(near.x, near.y, near.mu)
    best = found.best()
    if best is None or found.unbounded:
        return None
    equal = (found.status == SOLVED) & (found.value <= found.value[best] + SAME_VALUE)
    equal[best] = True
    different = _different(found.y, np.flatnonzero(equal))
    points = [Point(near.x, found.y[i], found.mu[i]) for i in different]
    merits = [(merit, point) for point in points if (merit := _merit(vectors, point, nu)) is not None]
    return min(merits, key=lambda one: one[0], default=None)


def _different(ys: np.ndarray, places: np.ndarray) -> list[int]:
    """One place for each different point."""
    kept: list[int] = []
    for i in places:
        if all(np.max(np.abs(ys[i] - ys[j]), initial=0.0) > 1e-6 for j in kept):
            kept.append(int(i))
    return kept


def _other_solutions(at: Linearised, nu: np.ndarray) -> list[tuple[float, Point]]:
    """Other solutions of the lower level at x itself: its best, and along flat directions, where there are any."""
    best = best_response(at.vectors, at.point, nu)
    found = [] if best is None else [best]
    if not at.dense or at.response(at.active).y is not None:
        return found
    held = np.concatenate([at.row_slopes(at.active)[:, at.point.x.size :], at.hessian])
    _, sizes, right = np.linalg.svd(held, full_matrices=True)
    flat = right[int(np.sum(sizes > 1e-9 * max(1.0, sizes.max(initial=0.0)))) :]
    starts = [
        at.point.y + side * step * one for one in flat[: LOWER_STARTS // 4] for step in STEPS[:2] for side in (1, -1)
    ]
    if not starts:
        return found
    points = np.array(starts)
    solved = at.vectors.followed(at.point.x, points, np.tile(at.point.mu, (len(points), 1)))
    limit = float(at.values.lower) + SAME_VALUE
    for i in np.flatnonzero((solved.status == SOLVED) & (solved.value <= limit)):
        point = Point(at.point.x, solved.y[i], solved.mu[i])
        merit = _merit(at.vectors, point, nu)
        if merit is not None:
            found.append((merit, point))
    return found


def _merit(vectors: VectorProblem, point: Point, nu: np.ndarray) -> float | None:
    """F plus twice what violations of active upper constraints are worth; None where another one is violated."""
    values = vectors.values(*point)
    beyond, nu = np.maximum(values.above, 0.0), nu[: len(values.above)]  # beyond them nu has values of other solutions
    if np.any((beyond > ALLOWED) & (nu == 0)) or np.any(np.abs(values.above_equal) > ALLOWED):
        return None
    merit = float(values.upper + 2 * nu @ beyond)
    return merit if np.isfinite(merit) else None
