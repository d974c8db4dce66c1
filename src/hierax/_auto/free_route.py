"""The implicit route: descent on F(x, y*(x)) for convex lower levels that are too large for matrices.

y*(x) and the gradient through it come from products alone (`hierax._engine.matrix_free`); the search over x is the same
as on the small and the penalty route, in lengths of x and units of F. What the certificate leads to further down is
followed. Where the lower level is not solved at the start the route has no answer, and the large route takes over.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hierax._auto.constants import (
    DENSE_SIZE,
    DESCENT_ITERATIONS,
    FAR_AWAY,
    FAR_FALL,
    ROUNDING,
    SMALL_ROUTE_SIZE,
    SQP_CHANGE,
    TURNS,
)
from hierax._auto.deterministic import status_of
from hierax._auto.implicit import descend
from hierax._auto.searches import NoRoute
from hierax._auto.session import Keeper, Mark, Session, float64_problem, multipliers_of
from hierax._auto.sqp import Progress, SearchAborted, Stop
from hierax._base.blas import one_blas_thread
from hierax._engine.branches import FEASIBLE
from hierax._engine.following import Total
from hierax._engine.matrix_free import Answer, FreeFollower
from hierax._engine.programs import Limits, raveled, unraveled
from hierax._engine.vectors import Point
from hierax._judge.certificate import Certificate
from hierax._judge.certifying import certificate_in
from hierax._judge.free_above import x_lengths
from hierax._lower.krylov import OutOfTime
from hierax._math.lower_level import MEANING
from hierax._math.scatter import scattered, unit_cube
from hierax._run.progress import Show, progress_bar
from hierax._run.solution import Solution
from hierax._run.starts import Starts, lowest_of_starts
from hierax._run.status import Reason, Status


class PhiByProducts:
    """phi by products alone, in lengths of x and in units of what F changes over them at the start of a descent."""

    def __init__(
        self, follower: FreeFollower, lengths: np.ndarray, seen: Callable[[float, float, Point], None]
    ) -> None:
        self.follower, self.lengths, self._seen = follower, lengths, seen
        self.x_limits = Limits(*(bound / lengths for bound in follower.x_limits))
        layout = follower.layout
        self.rows = layout.above if follower.with_faces else layout.own_above, layout.above_equal
        self.unit, self.origin = 1.0, 0.0  # of F
        self._near: Answer | None = None

    def begin(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> None:
        """Solve the lower level at the start of a descent, in the user's units. Raises `NoRoute` and `OutOfTime`."""
        first = self.follower.solve(x, y, mu)
        if not first.solved:
            raise NoRoute(f"the lower level at the start was {MEANING[first.status]}")
        total = self.follower.total(x, first)
        if total is None:
            raise NoRoute("the adjoint system at the start was not solved by MINRES")
        if total.above.size > SMALL_ROUTE_SIZE or (total.above.size and x.size > DENSE_SIZE):
            raise NoRoute("too many upper constraints, or with them entries of x, for matrices")
        unit = float(np.abs(total.slope * self.lengths).sum())
        self.unit, self.origin, self._near = unit if np.isfinite(unit) and unit > 0 else 1.0, total.upper, first

    def landed(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The nearest points of X and Y."""
        x, y = self.follower.landed(x * self.lengths, y)
        return x / self.lengths, y

    def at(self, x: np.ndarray, warm: Point) -> tuple[Point, Total] | None:
        """The point at x, and the upper level there."""
        here = x * self.lengths
        try:
            found = self.follower.solve(here, warm.y, warm.mu, self._near)
            total = self.follower.total(here, found) if found.solved else None
        except OutOfTime:
            raise SearchAborted from None
        if total is None:
            return None
        self._near, point = found, Point(x, found.y, found.mu)
        self._seen(total.upper, float(max(np.max(total.above, initial=0.0), 0.0)), point)
        slopes = total.above_slopes * self.lengths
        sizes = np.abs(slopes).sum(axis=1)
        sizes = np.where(sizes > 0, sizes, 1.0)
        return point, Total(
            (total.upper - self.origin) / self.unit,
            total.slope * self.lengths / self.unit,
            total.above / sizes,
            slopes / sizes[:, None],
            total.equal,
            total.equal_slopes * self.lengths,
        )


class Descended(NamedTuple):
    """What came of a descent.

    Attributes:
        end: F and the point; None: there is none.
        no_route: why there is no way from its start; empty: there is.
    """

    end: tuple[float, Point] | None
    no_route: str


class DescentRecord(NamedTuple):
    """A descent in a checkpoint: what came of it, what it reported, and what all descents have spent then."""

    descended: Descended
    records: list[dict[str, float]]
    marks: list[Mark]
    solves: int
    evaluations: int


class FreeRoute(Keeper):
    """The descents of one problem, and the certificate of the best point."""

    def __init__(self, session: Session) -> None:
        super().__init__(DescentRecord, Descended, Point)
        self.session, self.work, self.prepared = session, session.work, session.prepared
        self.problem = float64_problem(self.prepared, session.seed)
        session.compiles(self.problem.bound)
        self.follower = FreeFollower(self.problem, lambda: self.work.passed)
        self.lengths = x_lengths(self.follower, raveled(self.problem.x))
        self.best: tuple[float, Point] | None = None
        self.certificate: Certificate | None = None
        self._start = self._descents = self._begun = 0

    def run(self, show: Show) -> None:
        """From every start; then on from what the certificate found to be lower."""
        assert self.session.auto.starts is not None
        x, y = self.follower.landed(raveled(self.problem.x), raveled(self.problem.y))
        cube = unit_cube(x.size, self.session.auto.starts - 1, self.session.seed + 1)
        low, high = self.follower.x_limits
        for start in scattered(x, low, high, cube, np):
            if self._start and self.work.passed:
                break
            place, _ = self.follower.landed(start, y)
            self._descend(place, y, np.zeros(self.follower.layout.rows))
            self._start += 1
            show(self._start, None if self.best is None else {"upper": self.best[0]})
        self.session.ended = self.work.ended
        self._certify()
        for _ in range(TURNS):
            lower = None if self.certificate is None else self.certificate.better(self.session.auto.tol)
            if lower is None or self.work.passed:
                break
            before = self.best
            self._descend(lower.point.x * self.lengths, lower.point.y, lower.point.mu)
            self.session.ended = self.work.ended
            if self.best is before:
                break
            self._certify()

    def _descend(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> None:
        """One descent; the best end of all is kept."""
        found = self.session.piece(f"descent {self._descents}", functools.partial(self._descended, x, y, mu), self)
        self._descents += 1
        if found.no_route and self.best is None and self._start + 1 >= (self.session.auto.starts or 1):
            raise NoRoute(found.no_route)
        if found.end is not None and (self.best is None or found.end[0] < self.best[0]):
            self.best = found.end

    def _descended(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Descended:
        phi, progress = PhiByProducts(self.follower, self.lengths, self._see), Progress()
        try:
            phi.begin(x, y, mu)
        except NoRoute as why:
            return Descended(None, str(why))
        except OutOfTime:
            return Descended(None, "")
        stop = Stop(DESCENT_ITERATIONS, SQP_CHANGE, self.work)
        point = descend(phi, Point(x / self.lengths, y, mu), stop, ROUNDING, progress)
        if point is None or progress.best is None:
            return Descended(None, "")
        return Descended((progress.best[0] * phi.unit + phi.origin, point), "")

    def _see(self, upper: float, violation: float, point: Point) -> None:
        """A point was evaluated."""
        record = {"start": self._start, "upper": upper, "violation": violation}
        self.session.report(record, functools.partial(self.as_given, point))

    def begin(self) -> None:
        """A descent depends on its arguments alone."""
        self._begun = len(self.session.records)

    def record(self, result: Descended) -> DescentRecord:
        """What is kept of a descent."""
        records, marks = self.session.records[self._begun :], self.session.marks[self._begun :]
        return DescentRecord(result, records, marks, self.follower.solves, self.work.evaluations)

    def restore(self, record: DescentRecord) -> Descended:
        """Take over a descent."""
        for one, mark in zip(record.records, record.marks, strict=True):
            self.session.report(one, lambda: (None, None), again=True, mark=mark)
        self.follower.solves, self.work.evaluations = record.solves, record.evaluations
        return record.descended

    def as_given(self, point: Point) -> tuple[object, object]:
        """A point in the user's units and in the precision of the start, inside of X and Y."""
        both = unraveled(self.prepared.x, point.x * self.lengths), unraveled(self.prepared.y, point.y)
        return self.session.as_given(*both)

    def _certify(self) -> None:
        if self.best is not None:
            there = self.problem.at(*self.as_given(self.best[1]))
            self.certificate = certificate_in(there, seed=self.session.seed, stop=lambda: self.work.over)

    def solution(self) -> Solution:
        """The best point with its certificate."""
        if self.best is None or self.certificate is None:
            raise NoRoute("no point was reached in the time")
        (upper, point), session, starts = self.best, self.session, self.session.auto.starts or 1
        points = len(session.records)
        session.log += [
            f"{starts} starts, the given one first.",
            f"{points} points, {self.follower.solves} lower solves, each to a KKT residual of 1e-8.",
        ]
        valid = [(int(one["start"]), one["upper"]) for one in session.records if one["violation"] <= FEASIBLE]
        ends = [(start, value) for start, value in valid if start < self._start]  # others: on from the certificate
        said = Starts(lowest_of_starts(ends, starts), "The lowest F on the way of each start's descent.")
        multipliers = multipliers_of(self.problem, point.mu, self.certificate)
        status = self._status(upper, point)
        return session.solution(self.as_given(point), multipliers, status, self.certificate, said, upper)

    def _status(self, upper: float, point: Point) -> Status:
        """How the route ended."""
        judged = len(self.session.records)
        fallen = self.session.records[0]["upper"] - upper
        if np.max(np.abs(point.x), initial=0.0) > FAR_AWAY and fallen > FAR_FALL * (1 + abs(upper + fallen)):
            return Reason.FALLS_FOR_EVER.status(judged, upper=upper)
        assert self.certificate is not None
        return status_of(self.certificate, self.session.auto.tol, judged, self.session.ended)


def run_implicit(session: Session) -> Solution:
    """The answer of the route. Raises `NoRoute` where it has none."""
    assert session.auto.starts is not None
    with one_blas_thread:
        route = FreeRoute(session)
        with progress_bar(session.call.progress, session.call.news, session.auto.starts, "starts") as show:
            route.run(show)
        return route.solution()
