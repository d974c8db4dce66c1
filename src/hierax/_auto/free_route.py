"""The implicit route: descent on F(x, y*(x)) for convex lower levels that are too large for matrices.

y*(x) and the gradient through it come from products alone (`hierax._judge.matrix_free`); the search over x is the same
as on the small and the penalty route, in lengths of x and units of F. What the certificate leads to further down is
followed. Where the lower level is not solved at the start the route has no answer, and the large route takes over.
"""

import dataclasses
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import PyTree

from hierax._auto.budget import Deadline
from hierax._auto.constants import (
    DESCENTS,
    FAR_AWAY,
    FAR_FALL,
    IMPLICIT_FLAT,
    IMPLICIT_ROUTE_SECONDS,
    IMPLICIT_STEPS,
    MOST_UPPER_ROWS,
    RUN_OFF,
    SEARCH_SHARE,
    SQP_CHANGE,
    SQP_VARIABLES,
)
from hierax._auto.referee import setting_of
from hierax._auto.sqp import Evaluated, LeftOff, Progress, Stop, nowhere, quasi_newton, slsqp
from hierax._auto.verdict import status_of
from hierax._base.blas import one_blas_thread
from hierax._base.interrupt import interruptible
from hierax._compile.precision import as_answer
from hierax._judge.branches import FEASIBLE
from hierax._judge.certificate import Certificate
from hierax._judge.certifying import certificate_in
from hierax._judge.following import Total
from hierax._judge.free_above import x_lengths
from hierax._judge.matrix_free import Answer, FreeFollower
from hierax._judge.programs import raveled, unraveled
from hierax._judge.vectors import Point
from hierax._lower.krylov import OutOfTime
from hierax._math.lower_level import MEANING
from hierax._math.scatter import scattered, unit_cube
from hierax._problem.problem import Multipliers
from hierax._run.call import Call, Info
from hierax._run.prepare import Prepared
from hierax._run.progress import Show, progress_bar
from hierax._run.records import History
from hierax._run.solution import Counts, Solution, with_certificate
from hierax._run.starts import Starts, lowest_of_starts
from hierax._run.status import Kind, Reason, Status

if TYPE_CHECKING:
    from hierax._auto.auto import Auto


class NoRoute(Exception):
    """Why this route has no answer."""


class _Scales(NamedTuple):
    """The units of a descent: lengths of x, what F changes over them at the start, and F there."""

    x: np.ndarray
    unit: float
    origin: float


class FreeDescent:
    """One descent, which remembers the best point that it has seen (x in lengths)."""

    def __init__(
        self,
        follower: FreeFollower,
        lengths: np.ndarray,
        deadline: Deadline,
        seen: Callable[[float, float, Point], None],
    ) -> None:
        self.follower, self.deadline, self._seen = follower, deadline, seen
        self.scales = _Scales(lengths, 1.0, 0.0)
        self.progress = Progress()
        self._near: Answer | None = None

    def run(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Point | None:
        """The best point from a start in the user's units; None where the time was up before there was any.

        Raises `NoRoute` where the lower level or the adjoint system is not solved at the start.
        """
        try:
            first = self.follower.solve(x, y, mu)
            if not first.solved:
                raise NoRoute(f"the lower level at the start was {MEANING[first.status]}")
            total = self.follower.total(x, first)
        except OutOfTime:
            return None
        if total is None:
            raise NoRoute("the adjoint system at the start was not solved by MINRES")
        if not total.above.size <= MOST_UPPER_ROWS or (total.above.size and x.size > SQP_VARIABLES):
            raise NoRoute("too many upper constraints, or with them entries of x, for matrices")
        self._near = first
        unit = float(np.abs(total.slope * self.scales.x).sum())
        self.scales = _Scales(self.scales.x, unit if np.isfinite(unit) and unit > 0 else 1.0, total.upper)
        stop = Stop(IMPLICIT_STEPS, SQP_CHANGE, self.deadline)
        limits = self.follower.x_limits
        bounds = limits.low / self.scales.x, limits.high / self.scales.x
        if total.above.size or total.equal.size:
            slsqp(self._evaluated, x / self.scales.x, bounds, stop)
        else:
            quasi_newton(self._evaluated, x / self.scales.x, bounds, stop, IMPLICIT_FLAT)
        return None if self.progress.best is None else self.progress.best[1]

    def _evaluated(self, u: np.ndarray) -> Evaluated:
        """phi, the upper constraints, and their gradients, in units."""
        if not np.all(np.abs(u) < RUN_OFF):
            raise LeftOff
        assert self._near is not None
        inside, _ = self.follower.landed(u * self.scales.x, self._near.y)
        try:
            found = self.follower.solve(inside, self._near.y, self._near.mu, self._near)
            total = self.follower.total(inside, found) if found.solved else None
        except OutOfTime:
            raise LeftOff from None
        if total is None:
            return self._nothing(u)
        self._near = found
        return self._in_units(total, inside, found, u)

    def _in_units(self, total: Total, inside: np.ndarray, found: Answer, u: np.ndarray) -> Evaluated:
        lengths, unit, origin = self.scales
        sizes = np.abs(total.above_slopes * lengths).sum(axis=1)
        sizes = np.where(sizes > 0, sizes, 1.0)
        value, slope = (total.upper - origin) / unit, total.slope * lengths / unit
        above, above_slope = total.above / sizes, total.above_slopes * lengths / sizes[:, None]
        outside = max(np.max(above, initial=0.0), np.max(np.abs(total.equal), initial=0.0))
        point = Point(inside / lengths, found.y, found.mu)
        self._seen(total.upper, float(max(np.max(total.above, initial=0.0), 0.0)), point)
        self.progress.note(value, outside, point)
        away = u - point.x  # outside of X everything goes on along straight lines
        equal_slope = total.equal_slopes * lengths
        return Evaluated.of(
            (value + slope @ away, slope),
            (-above - above_slope @ away, -above_slope),
            (total.equal + equal_slope @ away, equal_slope),
        )

    def _nothing(self, u: np.ndarray) -> Evaluated:
        """What a search is told where the lower level has no solution, or an unclear one."""
        layout = self.follower.layout
        above = layout.above if self.follower.with_faces else layout.own_above
        return nowhere(u.size, above, layout.above_equal)


class Descended(NamedTuple):
    """What came of a descent.

    Attributes:
        end: F and the point; None: there is none.
        no_route: why there is no way from its start; empty: there is.
        records: start, F and violation of its points.
        solves: of the lower level.
    """

    end: tuple[float, Point] | None
    no_route: str
    records: list[tuple[int, float, float]]
    solves: int


class FreeRoute:
    """The descents of one problem, and the certificate of the best point."""

    def __init__(self, prepared: Prepared, auto: "Auto", seed: int, call: Call, deadline: Deadline) -> None:
        self.prepared, self.auto, self.seed, self.call, self.deadline = prepared, auto, seed, call, deadline
        assert auto.seconds is not None
        self.search = deadline.until(SEARCH_SHARE * auto.seconds)
        self.setting = setting_of(prepared, seed)
        self.follower = FreeFollower(self.setting, lambda: self.search.passed)
        self.starts = auto.starts or 1
        self.lengths = x_lengths(self.follower, raveled(self.setting.x))
        self.records: list[tuple[int, float, float]] = []  # start, F and violation of every point
        self.best: tuple[float, Point] | None = None
        self.certificate: Certificate | None = None
        self._start = self._descents = 0
        self.ended: Kind | None = None  # why the search was not complete

    def run(self, show: Show) -> None:
        """From every start; then on from what the certificate found to be lower."""
        x, y = self.follower.landed(raveled(self.setting.x), raveled(self.setting.y))
        cube = unit_cube(x.size, self.starts - 1, self.seed + 1)
        low, high = self.follower.x_limits
        for start in scattered(x, low, high, cube, np):
            if self._start and self.search.passed:
                break
            place, _ = self.follower.landed(start, y)
            self._descend(place, y, np.zeros(self.follower.layout.rows))
            self._start += 1
            self.ended = self.search.kind
            show(self._start, None if self.best is None else {"upper": self.best[0]})
        self._certify()
        for _ in range(DESCENTS):
            lower = None if self.certificate is None else self.certificate.better(self.auto.tol)
            if lower is None or self.search.passed:
                break
            before = self.best
            self._descend(lower.point.x * self.lengths, lower.point.y, lower.point.mu)
            self.ended = self.search.kind
            if self.best is before:
                break
            self._certify()

    def _descend(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> None:
        """One descent, or what came of it in an earlier run of the same call."""
        name, notes = f"descent {self._descents}", self.call.notes
        self._descents += 1
        ended: Descended | None = notes.take(name, (Descended, Point))
        if ended is None:
            before, solves = len(self.records), self.follower.solves
            end, why = self._descended(x, y, mu)
            records = self.records[before:]
            ended = Descended(end, why, records, self.follower.solves - solves)
            if not self.search.passed:
                notes.put(name, ended)
        else:
            self.records += ended.records
            self.follower.solves += ended.solves
            self._look_at_steps()
        if ended.no_route and self.best is None and self._start + 1 >= self.starts:
            raise NoRoute(ended.no_route)
        if ended.end is not None and (self.best is None or ended.end[0] < self.best[0]):
            self.best = ended.end

    def _descended(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> tuple[tuple[float, Point] | None, str]:
        """F and the point at the end of a descent, None where there is none; and why there is no route from here."""
        descent = FreeDescent(self.follower, self.lengths, self.search, self._see)
        try:
            point = descent.run(x, y, mu)
        except NoRoute as why:
            return None, str(why)
        if point is None or descent.progress.best is None:
            return None, ""
        return (descent.progress.best[0] * descent.scales.unit + descent.scales.origin, point), ""

    def _see(self, upper: float, violation: float, point: Point) -> None:
        """A point was evaluated: told to the callback, which may end the search."""
        self.records.append((self._start, upper, violation))
        if self.call.callback is not None:
            x, y = self.prepared.whole(*self.trees(point))
            record = {"upper": upper, "violation": violation, "start": self._start}
            try:
                if self.call.callback(Info(len(self.records), x, y, record)) is True:
                    self.search.tell(Kind.STOPPED)
            except KeyboardInterrupt:
                self.search.tell(Kind.INTERRUPTED)
        self._look_at_steps()

    def _look_at_steps(self) -> None:
        """End the search where it has seen as many points as it may."""
        if self.call.max_steps is not None and len(self.records) >= self.call.max_steps:
            self.search.tell(Kind.MAX_STEPS)

    def trees(self, point: Point) -> tuple[PyTree, PyTree]:
        """The arrays of a point in the user's units, inside of X and Y."""
        x, y = self.follower.landed(point.x * self.lengths, point.y)
        return as_answer(unraveled(self.prepared.x, x)), as_answer(unraveled(self.prepared.y, y))

    def _certify(self) -> None:
        if self.best is not None:
            there = self.setting.at(*self.trees(self.best[1]))
            self.certificate = certificate_in(there, seed=self.seed, stop=lambda: self.deadline.passed)

    def status(self) -> Status:
        """How the route ended."""
        judged = len(self.records)
        if self.best is None or self.certificate is None:
            raise NoRoute("no point was reached in the time")
        upper, point = self.best
        fallen = self.records[0][1] - upper
        if np.max(np.abs(point.x), initial=0.0) > FAR_AWAY and fallen > FAR_FALL * FAR_AWAY * (1 + abs(upper + fallen)):
            return Reason.FALLS_FOR_EVER.status(judged, upper=upper)
        return status_of(self.certificate, self.auto.tol, judged, self.ended)

    def multipliers(self) -> Multipliers:
        """Of the best point."""
        assert self.best is not None
        own, _ = self.setting.layout().split(self.best[1].mu)
        upper = None if self.certificate is None else self.certificate.upper_multipliers
        if upper is None:
            shapes = self.setting.shapes("upper_constraints")
            upper = unraveled(shapes, np.zeros(self.follower.layout.own_above))
        return as_answer(Multipliers(own.inequalities, own.equalities, upper))

    def ends(self) -> Starts:
        """The lowest F of every start's descent, among its points that keep the upper constraints."""
        valid = [(start, upper) for start, upper, violation in self.records if violation <= FEASIBLE]
        own = [(start, upper) for start, upper in valid if start < self._start]  # others: on from the certificate
        return Starts(lowest_of_starts(own, self.starts), "The lowest F on the way of each start's descent.")

    def history(self) -> History:
        """A record of every point."""
        start, upper, violation = (np.array(column) for column in zip(*self.records, strict=True))
        steps = np.arange(1, len(self.records) + 1)
        return History({"step": steps, "start": start, "upper": upper, "violation": violation})


def run_implicit(prepared: Prepared, auto: "Auto", seed: int, first_line: str, call: Call) -> Solution:
    """The answer of the route. Raises `NoRoute` where it has none."""
    begin = call.clock.begin
    auto = dataclasses.replace(auto, seconds=auto.seconds or IMPLICIT_ROUTE_SECONDS)
    assert auto.seconds is not None
    with (
        one_blas_thread,
        interruptible() as interrupt,
    ):
        route = FreeRoute(prepared, auto, seed, call, Deadline(auto.seconds, interrupt, begin))
        with progress_bar(call.progress, call.news, route.starts, "starts") as show:
            route.run(show)
        status = route.status()
    assert route.best is not None
    compiling = route.setting.compile_seconds
    x, y = prepared.whole(*route.trees(route.best[1]))
    solves = f"{len(route.records)} points, {route.follower.solves} lower solves, each to a KKT residual of 1e-8."
    solution = Solution(
        x=x,
        y=y,
        multipliers=route.multipliers(),
        status=status,
        history=route.history(),
        counts=Counts.of_search(time.perf_counter() - begin - compiling, compiling),
        state=None,
        method=dataclasses.replace(auto, starts=route.starts),
        problem=prepared.problem,
        log=(first_line, f"{route.starts} starts, the given one first.", solves, status.message),
        tol=auto.tol,
        starts=route.ends(),
    )
    return with_certificate(solution, route.certificate)
