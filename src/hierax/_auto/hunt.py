"""What all searches of the small and the penalty route share: the problem in units, and the points that were judged.

The units come from the start, the sets and the points that cover them: the search does the same whatever units the
user chose. Candidates are judged by the lower level solved from many starts. Here is how, which of them may be
returned, which of them is, and which are the same optimum. F alone does not tell the latter: its unit is what it
changes over the whole of X, and local optima of a function with small valleys differ by far less. So ends are the same
where F is equal to rounding, or where F and x are close.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from hierax._auto import constants as const
from hierax._auto.session import Result, Session
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.lengths import lengths_at, units_at
from hierax._engine.programs import FEASIBLE, Programs, raveled, unraveled
from hierax._engine.settling import settled
from hierax._engine.vectors import Point, Structure, Total, VectorProblem, moved_down
from hierax._judge.point import relative_gap
from hierax._lower.linear import Stop
from hierax._math.lower_level import SOLVED
from hierax._math.scatter import unit_cube
from hierax._run.call import Show

Way = Literal["kkt", "value"]


class Passed(NamedTuple):
    """A point that a polish passed after a stage, and its end.

    Attributes:
        stage: the relaxations of the polish, and how many of them were done.
        here: the unknowns there, and the values and slopes of its cuts.
        end: of the polish.
    """

    stage: tuple[tuple[float, ...], int]
    here: np.ndarray
    end: Point

    @np.errstate(invalid="ignore")  # of those that have run off nothing is known
    def is_at(self, other: "Passed") -> bool:
        """Whether both are after the same stage, and at the same place."""
        alike = self.stage == other.stage and self.here.shape == other.here.shape
        return alike and bool(np.max(np.abs(self.here - other.here)) <= FEASIBLE)


@dataclasses.dataclass(frozen=True)
class Space:
    """A search's problem in units.

    Attributes:
        vectors: the problem.
        xs: starts of x, the given one first.
        ys: starts of y.
        structure: which constraints are mere bounds.
        further: starts (x, y) for a search whose first ones end in many places.
        passed: where polishes went, so that none is run twice.
    """

    vectors: VectorProblem
    xs: np.ndarray
    ys: np.ndarray
    structure: Structure
    further: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    passed: list[Passed] = dataclasses.field(default_factory=list)

    @staticmethod
    def of(problem: Float64Problem, starts: int, seed: int, further: int, stop: Stop) -> "Space":
        """The space around the problem's point; where `stop` says so, long lower solves are left off."""
        programs = Programs(problem)
        x, y = programs.landed(raveled(problem.x), raveled(problem.y))
        lengths = np.concatenate([part.values for part in lengths_at(programs, x, y)])
        roughly = VectorProblem(programs, units_at(programs, lengths, [(x, y)]), y, seed)

        def cover(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
            cubes = unit_cube(x.size, count, seed), unit_cube(y.size, count, seed + 1)
            return roughly.cover_x(x / roughly.x_unit, cubes[0]), roughly.cover_y(y / roughly.y_unit, cubes[1])

        xs, ys = cover(starts - 1, seed + 1)
        points = [(a * roughly.x_unit, b * roughly.y_unit) for a, b in zip(xs, ys, strict=True)]
        at = np.array([x for x, _ in points])
        vectors = VectorProblem(programs, units_at(programs, lengths, points), y, seed, at, stop)
        more = zip(*(part[1:] for part in cover(further, seed + starts)), strict=True) if further else ()
        return Space(vectors, xs, ys, vectors.structure(xs), tuple(more))

    def box(self, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The boxes around X and Y, and these bounds of more unknowns behind x and y."""
        x, y = self.vectors.x_limits, self.vectors.y_limits
        return np.concatenate([x.lower, y.lower, low]), np.concatenate([x.upper, y.upper, high])


# -- candidates --------------------------------------------------------------------------------------------------------


class Candidate(NamedTuple):
    """A point and what is known of it.

    Attributes:
        point: the point.
        upper: F there.
        violation: the largest.
        gap: (f - v) / (1 + |v|), v of the best lower-level solution found; infinite where there is none.
        better: that solution at the point's x.
        residual: KKT residual of the point's own y with that solution's multipliers.
        confirmed: whether its value is that of a KKT point.
        branches: how many different values the lower level's local solutions at its x have.
        start: number of the start it came from.
        way: how it was found: with multipliers (a KKT polish, a descent), or by a value polish.
    """

    point: Point
    upper: float
    violation: float
    gap: float
    better: Point
    residual: float
    confirmed: bool
    branches: int
    start: int
    way: Way

    @property
    def accepted(self) -> bool:
        """Whether it may be returned as an answer: where another branch is better, however little, it may not."""
        return self.violation <= FEASIBLE and self.gap <= (const.NEGLIGIBLE if self.on_best_branch else const.TIGHT)

    @property
    def on_best_branch(self) -> bool:
        """Whether the lower level's best solution is right beside the point."""
        return bool(np.max(np.abs(self.better.y - self.point.y), initial=0.0) <= const.NEAR)

    @property
    def tight(self) -> bool:
        """Whether nothing of its F is owed to a tolerance: a gap of e moves y by the square root of e."""
        return max(self.violation, self.gap) <= const.TIGHT and self.residual <= const.NEGLIGIBLE


def judge(vectors: VectorProblem, point: Point, start: int, way: Way) -> Candidate:
    """Solve the lower level at the point's x from many starts, its y among them."""
    values, found = vectors.values(*point), vectors.branches_in_time(point.x, point.y)
    if vectors.bent is not None:
        found, _ = settled(vectors, point.x, found)
    best, upper, lower = found.best(), float(values.upper), float(values.lower)
    violation = vectors.violation(point.x, point.y, values)
    unsolved = Candidate(point, upper, violation, np.inf, point, np.inf, False, 0, start, way)
    if best is None or not np.isfinite(upper) or found.unbounded:
        return unsolved
    if found.status[0] == SOLVED and found.value[0] <= found.value[best] + const.ROUNDING:
        best = 0  # that which was reached from y: where it is as good as the best, F chose it
    value, confirmed = float(found.value[best]), bool(found.status[best] == SOLVED)
    if violation <= FEASIBLE and lower < value:  # the point itself is the best that is known
        confirmed &= -relative_gap(lower, value) <= FEASIBLE
        value = lower
    better = Point(point.x, found.y[best], found.mu[best])
    gap = relative_gap(lower, value)
    if gap <= const.NEGLIGIBLE:  # G may be lower elsewhere by less than any gap tells
        gap = max(gap, float(np.max(np.abs(moved_down(vectors, point.x, point.y, better.mu) - point.y), initial=0.0)))
    return unsolved._replace(
        gap=gap,
        better=better,
        residual=vectors.layout.kkt_residual(vectors.values(point.x, point.y, better.mu), better.mu),
        confirmed=confirmed,
        branches=found.different_values(),
    )


def select(candidates: list[Candidate]) -> Candidate | None:
    """The lowest F among accepted candidates; a tight one instead where it is nearly as low.

    Value polishes use up their tolerance: the lowest F of all may owe its last digits to a gap, and a gap e moves y by
    the square root of e. So of the candidates of one local optimum a KKT point is preferred, where there is one, and
    else the tightest. Points without multipliers, on the other hand, may never get tight.
    """
    accepted = [c for c in candidates if c.accepted]
    if not accepted:
        return None
    lowest = min(accepted, key=lambda c: c.upper)
    tight = [c for c in accepted if c.tight and _as_low_as(lowest, c, const.NEAR)]
    if not tight:
        return lowest
    best = min(tight, key=lambda c: c.upper)
    there = [c for c in tight if _near(c, best)]
    with_multipliers = [c for c in there if c.way == "kkt" and _as_low_as(best, c, const.NEAR)]
    if with_multipliers:
        return min(with_multipliers, key=lambda c: c.upper)
    return min((c for c in there if _as_low_as(best, c, const.NOTICEABLE)), key=lambda c: max(c.violation, c.gap))


def _as_low_as(best: Candidate, other: Candidate, tolerance: float) -> bool:
    return other.upper <= best.upper + tolerance * (1 + abs(best.upper))


# -- optima ------------------------------------------------------------------------------------------------------------

Optimum = list[Candidate]
"""The ends of those starts that arrived at it, the lowest first."""


def optima(candidates: list[Candidate]) -> list[Optimum]:
    """The ends of all starts with an accepted point, grouped, those with the lowest F first."""
    falling = sorted((c for c in candidates if c.accepted), key=lambda c: c.upper, reverse=True)
    lowest = {candidate.start: candidate for candidate in falling}  # of every start: the last one is the lowest
    ends = sorted(lowest.values(), key=lambda candidate: candidate.upper)
    return _grouped(ends, lambda end, optimum: any(_same(end, other) for other in optimum))


def _grouped(ends: list[Candidate], belongs: Callable[[Candidate, Optimum], bool]) -> list[Optimum]:
    """Ends that belong together, each in the first group that it belongs to."""
    groups: list[Optimum] = []
    for end in ends:
        home = next((group for group in groups if belongs(end, group)), None)
        if home is None:
            groups.append([end])
        else:
            home.append(end)
    return groups


def times_met(found: list[Optimum]) -> list[int]:
    """How many starts ended at each optimum.

    Where ends differ in F, an optimum is a place: functions with symmetries have several with the same F, and the best
    of all may be the one not met yet. (Ends along a valley of equal F are then places of their own: rather too doubtful
    than too sure.)
    """
    places = [place for optimum in found for place in _grouped(optimum, lambda end, place: _near(end, place[0]))]
    return [len(place) for place in (places if len(found) > 1 else found)]


def _same(one: Candidate, other: Candidate) -> bool:
    apart, size = abs(one.upper - other.upper), 1 + abs(one.upper)
    return apart <= (const.NOTICEABLE if _near(one, other) else const.TIGHT) * size


def _near(one: Candidate, other: Candidate) -> bool:
    return bool(np.max(np.abs(one.point.x - other.point.x), initial=0.0) <= const.NEAR)


# -- what the searches of a call share ---------------------------------------------------------------------------------


class Hunt:
    """The problem, the session, and what was found so far.

    Attributes:
        firsts: the lower level solved at every start so far, and
        statuses: how that ended.
        candidates: in the order of the search.
        descended: whether a descent has led anywhere.
        tried: starts of searches for KKT points.
        contradiction: why no point satisfies the constraints, where that is proved.
        over: whether no further search makes sense.
    """

    def __init__(self, space: Space, session: Session, show: Show = lambda done, record: None, again: int = 0) -> None:
        """`again`: how often all of it was done before, knowing less of the lower level."""
        self.space, self.vectors, self.session, self.work = space, space.vectors, session, session.work
        self._show, self.again = show, again
        self.firsts: list[Point] = []
        self.statuses: list[int] = []
        self.candidates: list[Candidate] = []
        self.tried = 0
        self.descended = self.over = False
        self.contradiction: str | None = None

    @property
    def accepted(self) -> list[Candidate]:
        """Those candidates that may be returned."""
        return [candidate for candidate in self.candidates if candidate.accepted]

    @property
    def lowest(self) -> float:
        """F of the lowest of them."""
        return min((candidate.upper for candidate in self.accepted), default=np.inf)

    def add(self, point: Point, start: int, way: Way = "kkt") -> Candidate:
        """Judge a point, and report it."""
        self.work.evaluations += 1
        found = judge(self.vectors, point, start, way)
        self.candidates.append(found)
        self._report(point, start, found.upper, found.violation, found.gap)
        return found

    def visited(self, start: int, total: Total, point: Point) -> None:
        """Report a point on the way of a long descent."""
        self._report(point, start, float(total.values.upper), float(np.max(total.values.above, initial=0.0)), 0.0)

    def _report(self, point: Point, start: int, upper: float, violation: float, gap: float) -> None:
        record = {"start": start, "upper": self.in_users_units(upper), "violation": violation, "gap": gap}
        self.session.report(record, functools.partial(self.as_given, point))

    def below(self) -> list[np.ndarray]:
        """A few solutions of lower levels that the search met, the given y first, in the user's units."""
        met = [self.space.ys[0]]
        for candidate in self.candidates:
            if all(np.max(np.abs(candidate.better.y - y)) > const.NEAR for y in met) and len(met) < const.STARTS:
                met.append(candidate.better.y)
        return [y * self.vectors.y_unit for y in met]

    def in_users_units(self, upper: float) -> float:
        """F in the user's units."""
        scale = self.vectors.units.upper
        return float(upper * scale.unit + scale.origin)

    def as_given(self, point: Point) -> tuple[Any, Any]:
        """x and y of a point in the user's units and in the precision of the start, inside of X and Y."""
        prepared, vectors = self.session.prepared, self.vectors
        x, y = vectors.programs.landed(point.x * vectors.x_unit, point.y * vectors.y_unit)
        return prepared.inside(unraveled(prepared.x, x), unraveled(prepared.y, y))

    def show(self, done: int) -> None:
        """Tell the progress bar how many starts are done, and the best candidate so far."""
        best = min(self.accepted, key=lambda c: c.upper, default=None)
        numbers = best and {"upper": self.in_users_units(best.upper), "violation": best.violation, "gap": best.gap}
        self._show(done, numbers)

    def piece(self, name: str, search: Callable[..., Result], *args: Any) -> Result:
        """A piece of the search, `search(*args)`, or what an earlier run of the same call has found by it.

        It returns numbers, texts, arrays or points. What solvers remember from one solve to the next is dropped before.
        """
        candidates, passed = len(self.candidates), len(self.space.passed)

        def do() -> tuple[Any, ...]:
            self.vectors.forget()
            result = search(*args)
            return result, self.candidates[candidates:], self.space.passed[passed:], self.vectors.bent

        name = f"{name}, again {self.again}" if self.again else name
        found = self.session.piece(name, do, (Candidate, Point, Passed))
        result: Result
        result, self.candidates[candidates:], self.space.passed[passed:], self.vectors.bent = found
        return result
