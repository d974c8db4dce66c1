"""The small route: multi-start SQP, every point validated by the lower level solved from many starts.

From each start the lower level is solved first; from there F is minimised over the relaxed KKT system of the lower
level. A KKT point need not be a minimum: whenever the validation finds a better branch of lower-level solutions, its
value becomes a cut f <= v_j(x), and the search goes on from the start, from the point, and from the better branch. A
second search, against the value function alone, needs no multipliers. The best validated point wins.
"""

import time
from typing import NamedTuple

import numpy as np

from hierax._auto.polish import RELAXED, Cuts, Point, Scales, kkt_polish, no_cuts, value_polish
from hierax._auto.vectors import Flat
from hierax._lower.exact import Branches
from hierax._math.lower_level import INFEASIBLE, SOLVED, UNBOUNDED
from hierax._run.progress import Show

FEASIBLE = 1e-6  # violation of a lower-level solution that counts as feasible
DIFFERENT = 1e-4  # relative difference of values of different local solutions
CUT = 1e-5  # relative gap above which a branch becomes a cut: a smaller one is no other branch, only t
BESIDE = 1e-2  # distance, in units of y, of points of the same branch
DEEP, SOLVES = 3, 6  # cuts in a row, and polishes, per start
ASIDE = 0.3  # step to either side of the best point, in units of x
FEW, SOME, MORE = 1, 3, 5  # starts of value polishes: where all arrived, likewise with a flat lower level, where not
FLAT = 1e-9  # relative curvature that counts as none
ACCEPTED = (1e-6, 1e-5)  # violation and relative gap of a point that may win ...
TIGHT = 1e-7  # ... unless one with both below this is ...
NEAR = 1e-2  # ... this close in F
OWED = 1e-3  # relative difference in F that tight points without multipliers owe to their gaps
LAST = (1e-3, 1e-6, 1e-9)


class Judged(NamedTuple):
    """A point with what the validation says of it.

    Attributes:
        point: the point.
        upper: F.
        violation: the largest, in the user's units.
        gap: (f - v) / (1 + |v|); infinite where no lower-level solution was found.
        value: v.
        better: the best lower-level solution found at its x.
        sure: whether v is that of a KKT point.
        kinds: how many different values the lower level's local solutions at its x have.
        start: number of the start it came from.
        way: "kkt" or "value".
    """

    point: Point
    upper: float
    violation: float
    gap: float
    value: float
    better: Point
    sure: bool
    kinds: int
    start: int
    way: str


class Search(NamedTuple):
    """What a search found: the points in the order of the search, and the lower level's statuses at the starts."""

    points: list[Judged]
    statuses: np.ndarray
    timed_out: bool


def lowest(found: Branches) -> int | None:
    """The branch of lowest value: among the solved ones, or else among the feasible ones; None where there is none."""
    for usable in ((found.status == SOLVED) & (found.violation <= FEASIBLE), found.violation <= FEASIBLE):
        if (usable & np.isfinite(found.value)).any():
            return int(np.argmin(np.where(usable & np.isfinite(found.value), found.value, np.inf)))
    return None


def kinds(found: Branches) -> int:
    """How many different values the solved branches have."""
    values = np.sort(found.value[(found.status == SOLVED) & (found.violation <= FEASIBLE)])
    return int(values.size > 0) + int(np.sum(np.diff(values) > DIFFERENT * (1 + np.abs(values[1:]))))


def judge(flat: Flat, point: Point, start: int, way: str) -> Judged:
    """Solve the lower level at the point's x from many starts, its y among them."""
    values, _ = flat.at(*point)
    found = flat.branches(point.x, point.y[None])
    best = lowest(found)
    violation, upper = flat.violation(point.x, point.y, values), float(values.upper)
    if best is None or not np.isfinite(upper) or (found.status == UNBOUNDED).any():
        return Judged(point, upper, violation, np.inf, np.nan, point, False, 0, start, way)
    value = float(found.value[best])
    sure = bool(found.status[best] == SOLVED)
    if violation <= FEASIBLE and values.lower < value:  # the point itself is the best that is known
        sure &= value - float(values.lower) <= FEASIBLE * (1 + abs(value))
        value = float(values.lower)
    gap = (float(values.lower) - value) / (1 + abs(value))
    better = Point(point.x, found.v[best], found.mu[best])
    return Judged(point, upper, violation, gap, value, better, sure, kinds(found), start, way)


def scales_of(flat: Flat) -> Scales:
    """Units of the variables from their bounds or their size; those of F and f from their gradients at the starts."""

    def widths(bounds: tuple[np.ndarray, ...], at: np.ndarray) -> np.ndarray:
        half = 0.5 * (bounds[1] - bounds[0])
        size = np.where(np.isfinite(half) & (half > 0), half, 1 + np.abs(at))
        return np.minimum(size, 10 * (1 + np.abs(at)))

    x, y = widths(flat.x_bounds, flat.x0), widths(flat.y_bounds, flat.y0)
    both, nothing = np.concatenate([x, y]), np.zeros(flat.equal.size)
    slopes = [flat.at(a, b, nothing)[1] for a, b in zip(flat.xs, flat.ys, strict=True)]

    def typical(gradients: list[np.ndarray]) -> float:
        with np.errstate(over="ignore", invalid="ignore"):
            norms = [norm for norm in (np.linalg.norm(both * g) for g in gradients) if np.isfinite(norm)]
        return float(np.clip(np.median(norms), 1e-3, 1e6)) if norms else 1.0

    return Scales(x, y, typical([s.upper for s in slopes]), typical([s.lower for s in slopes]))


class SmallSearch:
    """One search: its starts, its clock, and the points so far."""

    def __init__(self, flat: Flat, seconds: float) -> None:
        self.flat = flat
        self.scales = scales_of(flat)
        self.end = time.perf_counter() + seconds
        self.points: list[Judged] = []

    @property
    def late(self) -> bool:
        """Whether the time is up."""
        return time.perf_counter() > self.end

    def run(self, show: Show) -> Search:
        """Search from every start, against the value function from a few, then once more from the best point."""
        firsts, statuses = zip(
            *(self._first(*start) for start in zip(self.flat.xs, self.flat.ys, strict=True)), strict=True
        )
        if all(status == UNBOUNDED for status in statuses):
            self._add(firsts[0], 0, "kkt")
            return Search(self.points, np.asarray(statuses), False)
        for number, first in enumerate(firsts):
            if not self.late:
                self._kkt(first, number)
                show(number + 1, shown(self.points))
        for number in self._promising([number for number, status in enumerate(statuses) if status == SOLVED]):
            if not self.late:
                self._value(firsts[number], number)
        self._step_aside()
        best = select(self.points, self.scales)
        if best is not None and not self.late:
            self._kkt(best.point, best.start, LAST)
            if best.way == "value" or not tight(best):
                self._value(best.point, best.start)
        return Search(self.points, np.asarray(statuses), self.late)

    def _step_aside(self) -> None:
        """Look at both sides of the best point, where F may have an inflection, and go on from where it is lower."""
        best = select(self.points, self.scales)
        if best is None:
            return
        signs = np.random.default_rng(0).choice([-1.0, 1.0], self.flat.nx)
        for side in (ASIDE, -ASIDE):
            x = np.clip(best.point.x + side * signs * self.scales.x, *self.flat.x_bounds)
            first, status = self._first(x, best.point.y)
            if status != SOLVED or self.late:
                continue
            values, _ = self.flat.at(*first)
            if values.upper < best.upper and self.flat.violation(first.x, first.y, values) <= ACCEPTED[0]:
                self._value(first, best.start)

    def _promising(self, solved: list[int]) -> list[int]:
        """Starts for the value function, of those with a lower-level solution.

        First that of the best point, then those that ended nowhere, then the others.
        """
        best = select(self.points, self.scales)
        arrived = {p.start for p in self.points if accepted(p)}
        order = sorted(solved, key=lambda number: (best is None or number != best.start, number in arrived))
        if len(arrived) < len(self.flat.xs):
            return order[:MORE]
        return order[: SOME if best is not None and self._flat_below(best.point) else FEW]

    def _flat_below(self, point: Point) -> bool:
        """Whether the lower level has no curvature in some direction: its solutions may jump, and then F does."""
        _, slopes = self.flat.at(*point)
        curved = slopes.stationarity[:, self.flat.nx :]
        sizes = np.abs(np.linalg.eigvalsh(0.5 * (curved + curved.T))) if np.isfinite(curved).all() else np.zeros(1)
        return bool(sizes.min() <= FLAT * sizes.max())

    def _first(self, x: np.ndarray, y: np.ndarray) -> tuple[Point, int]:
        """The lower level solved at a start's x; where there is no solution, the start itself."""
        found = self.flat.branches(x, y[None])
        best = lowest(found)
        if best is None:
            status = INFEASIBLE if (found.status == INFEASIBLE).all() else int(np.max(found.status))
            return Point(x, y, np.zeros(self.flat.equal.size)), status
        status = UNBOUNDED if (found.status == UNBOUNDED).any() else SOLVED
        return Point(x, found.v[best], found.mu[best]), status

    def _add(self, point: Point, number: int, way: str) -> Judged:
        judged = judge(self.flat, point, number, way)
        self.points.append(judged)
        return judged

    def _kkt(self, first: Point, number: int, relaxed: tuple[float, ...] = RELAXED) -> None:
        """Polish, and again with a cut for every better branch found."""
        waiting: list[tuple[Point, Cuts]] = [(first, no_cuts(self.flat))]
        solves = 0
        while waiting and solves < SOLVES and not self.late:
            start, cuts = waiting.pop(0)
            judged = self._add(kkt_polish(self.flat, self.scales, start, cuts, relaxed), number, "kkt")
            solves += 1
            if TIGHT < judged.gap < np.inf and self._same_branch(judged):  # t was too large for the units of f
                sharper = (relaxed[-1] * 0.1 * TIGHT / judged.gap,)
                judged = self._add(kkt_polish(self.flat, self.scales, judged.point, cuts, sharper), number, "kkt")
                solves += 1
            if CUT < judged.gap < np.inf and len(cuts.v) < DEEP:
                more = cuts.and_also(judged.better.y, judged.better.mu)
                waiting += [(place, more) for place in (first, judged.point, judged.better)]

    def _same_branch(self, judged: Judged) -> bool:
        """Whether the lower level's best solution is right beside the point."""
        return bool(np.max(np.abs(judged.better.y - judged.point.y) / self.scales.y) <= BESIDE)

    def _value(self, first: Point, number: int) -> None:
        """Minimise against the value function; where the validation finds a better branch, again with it."""
        best = select(self.points, self.scales)
        beat = np.inf if best is None or not tight(best) else best.upper
        cuts = no_cuts(self.flat).and_also(first.y, first.mu)
        judged = self._add(value_polish(self.flat, self.scales, first, cuts, beat), number, "value")
        if not CUT < judged.gap < np.inf or judged.upper > beat:
            return
        cuts = cuts.and_also(judged.better.y, judged.better.mu)
        for place in (judged.point, judged.better):
            if not self.late and not accepted(self.points[-1]):
                self._add(value_polish(self.flat, self.scales, place, cuts, beat), number, "value")


def shown(points: list[Judged]) -> dict[str, float] | None:
    """The best point so far, for the progress bar."""
    best = min(filter(accepted, points), key=lambda p: p.upper, default=None)
    return None if best is None else {name: getattr(best, name) for name in ("upper", "violation", "gap")}


def accepted(point: Judged) -> bool:
    """Whether a point may win."""
    return point.violation <= ACCEPTED[0] and point.gap <= ACCEPTED[1]


def tight(point: Judged) -> bool:
    """Whether nothing of its F is owed to a tolerance."""
    return max(point.violation, point.gap) <= TIGHT


def select(points: list[Judged], scales: Scales) -> Judged | None:
    """The lowest F among accepted points; a tight point instead where one is nearly as low.

    Value polishes use up their tolerance: the lowest F of all may owe its last digits to a gap, and a gap e moves y by
    the square root of e. So of the points of one local optimum a KKT point is preferred, where there is one, and else
    the tightest. Points without multipliers, on the other hand, may never get tight.
    """
    fine = [p for p in points if accepted(p)]
    if not fine:
        return None
    best = min(fine, key=lambda p: p.upper)
    close = [p for p in fine if tight(p) and p.upper <= best.upper + NEAR * (1 + abs(best.upper))]
    if not close:
        return best
    best = min(close, key=lambda p: p.upper)

    def beside(p: Judged, most: float) -> bool:
        near = np.max(np.abs(p.point.x - best.point.x) / scales.x, initial=0.0) <= BESIDE
        return bool(near) and p.upper <= best.upper + most * (1 + abs(best.upper))

    known = [p for p in close if p.way == "kkt" and beside(p, NEAR)]
    if known:
        return min(known, key=lambda p: p.upper)
    return min((p for p in close if beside(p, OWED)), key=lambda p: max(p.violation, p.gap))
