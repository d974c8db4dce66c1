"""The descent test: lower solves at points around x, which refute a point whatever its derivatives say.

It catches maxima, concave kinks, active sets that the derivatives could not know of, and scales that are wrong. It also
measures what F(x, y*(x)) changes around x, against which everything about the upper level is judged.
"""

import functools
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hierax._engine.float64_problem import ROUNDING
from hierax._engine.programs import FEASIBLE
from hierax._engine.vectors import MAX_DENSE, Linearised, Point, Uppers, VectorProblem
from hierax._judge.gain import total_slopes
from hierax._judge.measuring import FEW_ENTRIES, NOISE, STEPS
from hierax._lower.linear import SAME, OutOfTime, Stop
from hierax._math.lower_level import SOLVED

EVERY_ENTRY = 10_000  # entries of y up to which few entries of x are moved one by one
LANCZOS_STEPS = 10


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
        both_sides: the change of F on the side where it is larger, at each of `STEPS`; one line per direction.
        complete: whether the time was enough for all directions.
    """

    looks: list[Look]
    slope: float
    curvature: float
    both_sides: list[list[float]]
    complete: bool


def look_around(at: Linearised, nu: np.ndarray, towards: np.ndarray, seed: int, stop: Stop) -> Around:
    """Solve the lower level on both sides of x along several directions; `towards` is the most promising."""
    base, looks, slope, curvature, complete = _Base(at, nu), list[Look | None](), 0.0, 0.0, True
    both_sides = list[list[float]]()
    try:
        looks += [base.compared(0.0, found) for found in base.other_solutions()]
        for direction in _directions(base, towards, seed, stop):
            if stop():
                raise OutOfTime
            sides = [[base.look(direction, side * step, False) for step in STEPS] for side in (1.0, -1.0)]
            signed = [] if base.surface is None else [side * step for side in (1.0, -1.0) for step in STEPS]
            looks += [*sides[0], *sides[1], *(base.look(direction, step, True) for step in signed)]
            pairs = [[np.inf if one is None else one.change for one in pair] for pair in zip(*sides, strict=True)]
            both_sides.append([max(pair) for pair in pairs])
            steep, bent = _steep_and_bent(sides, at.point.x)
            slope, curvature = max(slope, steep), max(curvature, bent)
    except OutOfTime:
        complete = False
    return Around([look for look in looks if look is not None], slope, curvature, both_sides, complete)


def _steep_and_bent(sides: list[list[Look | None]], x: np.ndarray) -> tuple[float, float]:
    """Slope and curvature of F that both sides of a direction show.

    Curvature only by pairs that X has left on either side of x, as far from it: the slope at a bound is no curvature.
    Where F is as far off at the shortest step as at the longest, it jumps: only the height of that counts.
    """
    steep, jumps = 0.0, False
    for side in sides:
        changes = [(abs(one.change), one.step) for one in side if one is not None]
        jump = len(changes) > 1 and changes[-1][0] > 0.5 * changes[0][0]
        rates = [min(changes)[0]] if jump else [change / step for change, step in changes]
        steep, jumps = max([steep, *rates]), jumps or jump
    bent = [
        abs(a.change + b.change) / a.step**2
        for a, b in zip(*sides, strict=True)
        if a is not None and b is not None and a.step >= STEPS[1]
        if np.max(np.abs(a.point.x + b.point.x - 2 * x), initial=0.0) <= STEPS[-1] * a.step
    ]
    return steep, 0.0 if jumps else min(bent, default=0.0)


def _directions(base: "_Base", towards: np.ndarray, seed: int, stop: Stop) -> Iterator[np.ndarray]:
    """Directions of largest entry one: single entries, towards, two at random, and where F(x, y*(x)) bends down."""
    layout, rng = base.at.vectors.layout, np.random.default_rng(seed)
    nx, few = layout.nx, layout.nx <= FEW_ENTRIES and layout.ny <= EVERY_ENTRY
    if few or nx == 1:
        yield from np.eye(nx)
    if nx == 1:
        return
    longest = np.max(np.abs(towards), initial=0.0)
    if longest > 0:
        yield towards / longest
    yield from rng.choice([-1.0, 1.0], (2, nx))
    if few or max(nx, layout.ny + layout.rows) <= MAX_DENSE:
        yield from base.bends_down(rng.normal(size=nx), stop)


class _Base:
    """F at the point, with which the looks are compared.

    Lower solves end at a small KKT residual; where G is nearly flat, y and F may be off by much more than that. So
    points that seem lower are compared after Newton steps on the lower level's KKT system: at both of them.
    """

    def __init__(self, at: Linearised, nu: np.ndarray) -> None:
        self.at, self.nu, self.vectors, self.point = at, nu, at.vectors, at.point
        self.value = float(at.values.upper)

    @functools.cached_property
    def _settled(self) -> float:
        """F after Newton steps, where that is lower."""
        return min(self._merit(settled(self.vectors, self.point)), self.value)

    @functools.cached_property
    def _slopes(self) -> Uppers | None:
        """Derivatives of the upper level's functions through y*(x)."""
        return total_slopes(self.at, self.at.active)

    @functools.cached_property
    def surface(self) -> tuple[np.ndarray, np.ndarray] | None:
        """The upper constraints that are active, and what takes their values back to zero; None: there are none."""
        active = np.flatnonzero(self.at.values.above[: self.vectors.layout.own_above] >= -FEASIBLE)
        slopes = self._slopes if active.size else None
        if slopes is None or not np.isfinite(slopes.above[active]).all():
            return None
        return active, np.linalg.pinv(slopes.above[active], rcond=SAME)

    def tangent(self, direction: np.ndarray) -> np.ndarray:
        """What bounds, active upper constraints and faces of X leave of a direction."""
        at, (low, high), slopes = self.at, self.vectors.x_limits, self._slopes
        free = (at.point.x > low + STEPS[1]) & (at.point.x < high - STEPS[1])
        direction = np.where(free, direction, 0.0)
        if slopes is None:
            return direction
        active = np.flatnonzero(at.values.above[: self.vectors.layout.above] >= -FEASIBLE)
        rows = np.where(free, np.concatenate([slopes.above[active], slopes.equal]), 0.0)
        rows = rows[np.isfinite(rows).all(axis=1)]
        return direction - np.linalg.pinv(rows, rcond=SAME) @ (rows @ direction)

    def _merit(self, point: Point) -> float:
        """F plus twice what violations of active upper constraints are worth; infinite where another is violated."""
        values = self.vectors.values(*point)
        beyond, nu = np.maximum(values.above, 0.0), self.nu[: len(values.above)]  # more nu are of other solutions
        wrong = np.any((beyond > FEASIBLE) & (nu == 0)) or np.any(np.abs(values.above_equal) > FEASIBLE)
        merit = np.inf if wrong else float(values.upper + 2 * nu @ beyond)
        return merit if np.isfinite(merit) else np.inf

    def _solved(self, x: np.ndarray) -> tuple[float, Point] | None:
        """The solution of the lower level at x that is best for F, with its merit; None: there is none."""
        found = self.vectors.branches(x, self.point.y, self.point.mu)
        points = [] if found.unbounded else found.ties(x, NOISE)
        return min(((self._merit(point), point) for point in points), key=lambda one: one[0], default=None)

    def other_solutions(self) -> list[tuple[float, Point]]:
        """Other solutions of the lower level at x itself: its best, and along flat directions, where there are any."""
        at, best = self.at, self._solved(self.point.x)
        found = [] if best is None else [best]
        if not at.dense or at.response(at.active).y is not None:
            return found
        (x, y, mu), held = self.point, np.concatenate([at.row_slopes(at.active)[:, self.point.x.size :], at.hessian])
        _, sizes, right = np.linalg.svd(held, full_matrices=True)
        flat = right[int(np.sum(sizes > ROUNDING * max(1.0, sizes.max(initial=0.0)))) :]
        moves = [side * step * one for one in flat[:FEW_ENTRIES] for step in STEPS[:2] for side in (1.0, -1.0)]
        if moves:
            solved = self.vectors.followed(x, y + np.array(moves), np.tile(mu, (len(moves), 1)))
            as_good = (solved.status == SOLVED) & (solved.value <= float(at.values.lower) + NOISE)
            points = [Point(x, solved.y[i], solved.mu[i]) for i in np.flatnonzero(as_good)]
            found += [(self._merit(point), point) for point in points]
        return found

    def gradient(self, x: np.ndarray) -> np.ndarray | None:
        """That of F(x, y*(x)), or of the upper constraints' Lagrangian, near the point; None where there is none."""
        found = self._solved(x)
        there = None if found is None else Linearised.at(self.vectors, found[1])
        slopes = None if there is None else total_slopes(there, there.active)
        return None if slopes is None else slopes.upper + self.nu[: self.vectors.layout.above] @ slopes.above

    def bends_down(self, first: np.ndarray, stop: Stop) -> list[np.ndarray]:
        """The direction in which F(x, y*(x)) bends down most, as far as a few steps of Lanczos from `first` tell.

        `hierax._math.spectrum` does the same inside of programs. Second derivatives times a direction are differences
        of gradients here, each of which takes a solve of the lower level. None where one is not to be had.
        """
        vector, least, x = self.tangent(first), 0.0, self.point.x
        basis = products = np.zeros((0, x.size))
        while len(basis) < LANCZOS_STEPS and np.linalg.norm(vector) > least:
            vector = vector / np.linalg.norm(vector)
            step = STEPS[1] * vector / np.max(np.abs(vector))
            up, down = (None, None) if stop() else (self.gradient(x + step), self.gradient(x - step))
            if up is None or down is None or not np.isfinite(up - down).all():
                return []
            product = self.tangent(up - down) / (2 * np.linalg.norm(step))
            basis, products = np.vstack([basis, vector]), np.vstack([products, product])
            vector, least = product, ROUNDING * float(np.linalg.norm(product))
            for _ in range(2):  # rounding of the first time
                vector = vector - (basis @ vector) @ basis
        if not len(basis):
            return []
        small = basis @ products.T
        down = np.linalg.eigh(0.5 * (small + small.T))[1][:, 0] @ basis
        return [down / np.max(np.abs(down))]

    def compared(self, step: float, found: tuple[float, Point]) -> Look | None:
        """A look at a point, whose merit comes with it; None where it may not be compared."""
        merit, point = found
        if merit >= self.value:
            return Look(step, merit - self.value, point) if np.isfinite(merit) else None
        closer = settled(self.vectors, point)
        there = self._merit(closer)
        merit, point = (there, closer) if np.isfinite(there) else found
        return Look(step, merit - self._settled, point)

    def look(self, direction: np.ndarray, step: float, back: bool) -> Look | None:
        """A step along a direction, and `back` to the active upper constraints, which may be curved.

        None where it leaves X at once, or nothing there may be compared.
        """
        x, _ = self.vectors.landed(self.point.x + step * direction, self.point.y)
        for _ in range(2 if back else 0):
            solved = self._solved(x)
            if solved is None or self.surface is None:
                break
            active, inverse = self.surface
            x, _ = self.vectors.landed(x - inverse @ self.vectors.values(*solved[1]).above[active], self.point.y)
        moved, step = np.max(np.abs(x - self.point.x), initial=0.0), abs(step)
        found = self._solved(x) if step <= 3 * moved and moved <= 3 * step else None
        return None if found is None else self.compared(step, found)


def settled(vectors: VectorProblem, point: Point) -> Point:
    """A solution of the lower level after Newton steps on the KKT system of its active rows, where they arrive."""
    x, y, mu = point
    values, layout = vectors.values(*point), vectors.layout
    active = layout.equal | (np.abs(mu) > np.abs(values.rows))
    if vectors.programs.large or layout.ny + active.sum() > MAX_DENSE:
        return point
    found = vectors.newton.held(x, y, mu, active)
    if found is None:
        return point
    closer = Point(x, vectors.landed(x, found.y)[1], found.mu)
    left = layout.kkt_residual(vectors.values(*closer), closer.mu)
    return closer if left < layout.kkt_residual(values, mu) else point
