"""The small and the penalty route from a prepared problem to its solution; they differ only in how they search."""

import dataclasses
import functools
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from jaxtyping import PyTree

from hierax._auto.budget import Deadline
from hierax._auto.candidates import Candidate, SearchResult, judge, select
from hierax._auto.constants import (
    DESCENT_SHARE,
    DESCENTS,
    FURTHER_STARTS,
    IMPLICIT_ROUTE_SECONDS,
    NEARLY_AS_LOW,
    NO_GAP,
    OWED_TO_VIOLATION,
    PENALTY_ROUTE_SECONDS,
    SAME_PLACE,
    SEARCH_SHARE,
    SMALL_ROUTE_SECONDS,
    STARTS,
    TIGHT_RESIDUAL,
)
from hierax._auto.kkt_route import SmallSearch
from hierax._auto.penalty_route import PenaltySearch
from hierax._auto.referee import setting_of
from hierax._auto.replay import Pieces
from hierax._auto.space import Space
from hierax._auto.verdict import (
    counted,
    ends_of_starts,
    falls_on,
    globality,
    on_the_way_to_infinity,
    status_of,
    without_answer,
)
from hierax._base.blas import one_blas_thread
from hierax._base.errors import InputError
from hierax._base.interrupt import interruptible
from hierax._compile.precision import as_answer
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.programs import raveled, unraveled
from hierax._engine.vectors import Point
from hierax._judge.certificate import Certificate
from hierax._judge.certifying import certificate_in
from hierax._problem.problem import Multipliers
from hierax._run.call import Call, Info
from hierax._run.prepare import Prepared
from hierax._run.progress import Show, progress_bar
from hierax._run.records import History
from hierax._run.solution import Counts, Solution, with_certificate
from hierax._run.starts import Starts
from hierax._run.status import Kind, Reason, Status

if TYPE_CHECKING:
    from hierax._auto.auto import Auto


DEFAULT_STARTS: dict[str | None, int] = {"small": STARTS, "penalty": STARTS, "implicit": 1}
DEFAULT_SECONDS: dict[str | None, float] = {
    "small": SMALL_ROUTE_SECONDS,
    "penalty": PENALTY_ROUTE_SECONDS,
    "implicit": IMPLICIT_ROUTE_SECONDS,
}
Place = tuple[np.ndarray, np.ndarray]
"""x and y as vectors, in the user's units."""


class Search(NamedTuple):
    """A search that has ended: where, and what it found."""

    setting: Float64Problem
    space: Space
    found: SearchResult


def searched(
    prepared: Prepared,
    auto: "Auto",
    seed: int,
    call: Call,
    deadline: Deadline,
    show: Show,
    others: Sequence[Place] = (),
) -> Search:
    """Search by `auto.route`; `others`: starts right after the given one, before those that cover X and Y."""
    setting, small = setting_of(prepared, seed), auto.route == "small"
    further = FURTHER_STARTS if small and auto.starts is None else 0
    space = Space.of(setting, auto.starts or DEFAULT_STARTS[auto.route], seed, deadline, further)
    if others:
        space = space.starting_at(others)
    space = dataclasses.replace(space, seen=_Watch(prepared, space, call).see, pieces=Pieces(call.notes))
    _refuse_nonfinite(space)
    return Search(setting, space, (SmallSearch if small else PenaltySearch)(space).run(show))


def run_deterministic(
    prepared: Prepared,
    auto: "Auto",
    seed: int,
    first_line: str,
    call: Call,
    others: Sequence[Place] = (),
    cut_short: Sequence[Kind] = (),
) -> Solution:
    """The answer of `auto.route`, "small" or "penalty"; `first_line` begins the log, `others` see `searched`.

    `cut_short`: why there is no time for a search, only for an answer.
    """
    begin = call.clock.begin
    starts, seconds = auto.starts or DEFAULT_STARTS[auto.route], auto.seconds or DEFAULT_SECONDS[auto.route]
    with (
        progress_bar(call.progress, call.news, starts, "starts") as show,
        one_blas_thread,
        interruptible() as interrupt,
    ):
        deadline = Deadline(SEARCH_SHARE * seconds, interrupt, begin, list(cut_short))
        setting, space, found = searched(prepared, auto, seed, call, deadline, show, others)
        ended = deadline.kind
        last = dataclasses.replace(space, deadline=deadline.until(DESCENT_SHARE * seconds))
        answer = _Answer(prepared, setting, last, auto.tol, seed, Deadline(seconds, interrupt, begin))
        answer.settle(found, ended)
    compiling = setting.compile_seconds
    x, y = prepared.whole(answer.x, answer.y)
    solution = Solution(
        x=x,
        y=y,
        multipliers=as_answer(answer.multipliers),
        status=answer.status,
        history=_history(found.candidates, space),
        counts=Counts.of_search(time.perf_counter() - begin - compiling, compiling),
        state=None,
        method=dataclasses.replace(auto, starts=starts, seconds=seconds),
        problem=prepared.problem,
        log=(first_line, _starts_made(found, starts), *answer.log),
        tol=auto.tol,
        starts=Starts(tuple(map(answer.in_users_units, ends_of_starts(found, starts))), answer.globality),
    )
    return with_certificate(solution, answer.certificate)


def _as_given(prepared: Prepared, space: Space, point: Point) -> tuple[PyTree, PyTree]:
    """Arrays of a point in the user's units, inside of X and Y."""
    vectors = space.vectors
    x, y = vectors.programs.landed(point.x * vectors.x_unit, point.y * vectors.y_unit)
    return as_answer(unraveled(prepared.x, x)), as_answer(unraveled(prepared.y, y))


class _Watch:
    """Counts the points that a search judges, tells the callback of them, and ends the search where it is asked to."""

    def __init__(self, prepared: Prepared, space: Space, call: Call) -> None:
        self.prepared, self.space, self.call = prepared, space, call
        self.judged = 0

    def see(self, candidate: Candidate, again: bool = False) -> None:
        """A point was judged; `again`: by an earlier run of the same call, whose callback was told."""
        self.judged += 1
        if self.call.callback is not None and not again and self._callback_stops(candidate):
            self.space.deadline.tell(Kind.STOPPED)
        elif self.call.max_steps is not None and self.judged >= self.call.max_steps:
            self.space.deadline.tell(Kind.MAX_STEPS)

    def _callback_stops(self, candidate: Candidate) -> bool:
        assert self.call.callback is not None
        x, y = self.prepared.whole(*_as_given(self.prepared, self.space, candidate.point))
        scale = self.space.vectors.units.upper
        upper = float(candidate.upper * scale.unit + scale.origin)
        record = {"upper": upper, "violation": candidate.violation, "gap": candidate.gap, "start": candidate.start}
        try:
            return self.call.callback(Info(self.judged, x, y, record)) is True
        except KeyboardInterrupt:
            self.space.deadline.tell(Kind.INTERRUPTED)
            return False


class _Answer:
    """The point that a search returns, its certificate, its status, and what the log says of it."""

    def __init__(
        self, prepared: Prepared, setting: Float64Problem, space: Space, tol: float, seed: int, deadline: Deadline
    ) -> None:
        self.prepared, self.setting, self.space = prepared, setting, space
        self.tol, self.seed, self.deadline = tol, seed, deadline
        self.certificate: Certificate | None = None
        self.globality = ""
        self.log: list[str] = []

    def settle(self, found: SearchResult, ended: Kind | None) -> None:
        """Choose the point, certify it, and go on downhill from it as long as its certificate objects.

        `ended`: why the search was not complete.
        """
        far, best = on_the_way_to_infinity(found), select(found.candidates)
        if far is not None and falls_on(self.space, far):
            status = Reason.FALLS_FOR_EVER.status(len(found.candidates), upper=self.in_users_units(far.upper))
            self._take(far.point, status)
        elif best is None:
            nearest, status = without_answer(found, ended, self.space.vectors)
            self._take(nearest.point._replace(mu=nearest.better.mu), status)
        else:
            best = self._downhill(found, best)
            assert self.certificate is not None
            status = status_of(self.certificate, self.tol, len(found.candidates), ended)
            self._take(best.point._replace(mu=best.better.mu), status)
            unit = self.space.vectors.upper_unit
            self.globality = globality(found, self.in_users_units(best.upper), best.upper, unit)
            self.log.append(self.globality)
        self.log = [counted(found), *self.log, status.message]

    def _downhill(self, found: SearchResult, best: Candidate) -> Candidate:
        """The best point, or a lower one that its certificate led to."""
        best = self._settled(best)
        self.certificate = self._certified(best.point)
        for turn in range(DESCENTS):
            if self.certificate.verdict(self.tol) != "no" or self.space.deadline.passed:
                break
            search = SmallSearch(self.space)
            down = functools.partial(self._go_down, search, best)
            self.space.pieces.do(f"downhill {turn}", self.space, search.candidates, down)
            found.candidates.extend(search.candidates)
            new = select([best, *search.candidates])
            if new is None or new is best:
                break
            best = self._settled(new)
            self.certificate = self._certified(best.point)
        return best

    def _go_down(self, search: SmallSearch, best: Candidate) -> None:
        """On from a lower point that the certificate has found."""
        assert self.certificate is not None
        lower = self.certificate.better(self.tol)
        search.go_down_from(best.point if lower is None else self._in_space(lower.point), best.start)

    def _settled(self, best: Candidate) -> Candidate:
        """The candidate with the lower level's own solution as its y, where F may owe something to a gap or violation.

        Where no y keeps the rows strictly, a violation e moves y by the square root of e: F is lower than at any y that
        keeps them, and is not the problem's. There the solution is taken although its F is higher.
        """
        self.space.vectors.forget()
        if best.confirmed and best.gap <= NO_GAP and best.residual <= TIGHT_RESIDUAL:
            return best
        exact = judge(self.space.vectors, best.better, best.start, best.way)
        as_low = best.confirmed and exact.upper <= best.upper + NEARLY_AS_LOW * (1 + abs(best.upper))
        apart = np.max(np.abs(exact.point.y - best.point.y), initial=0.0)
        nearby = apart <= SAME_PLACE and exact.violation <= OWED_TO_VIOLATION * best.violation
        return exact if exact.accepted and (as_low or nearby) else best

    def _certified(self, point: Point) -> Certificate:
        x, y = self._trees(point)
        lengths = self.space.known_lengths
        return certificate_in(self.setting.at(x, y), seed=self.seed, stop=lambda: self.deadline.passed, lengths=lengths)

    def _in_space(self, point: Point) -> Point:
        """A point in the certificate's units, in those of the search."""
        vectors = self.space.vectors
        assert self.certificate is not None
        x_unit, y_unit = (raveled(tree) for tree in self.certificate.lengths)
        x, y = point.x * x_unit / vectors.x_unit, point.y * y_unit / vectors.y_unit
        solved = vectors.branches(x, y)
        best = solved.best()
        return Point(x, y, np.zeros(vectors.layout.rows)) if best is None else Point(x, solved.y[best], solved.mu[best])

    def in_users_units(self, upper: float) -> float:
        """F in the user's units."""
        scale = self.space.vectors.units.upper
        return float(upper * scale.unit + scale.origin)

    def _trees(self, point: Point) -> tuple[PyTree, PyTree]:
        return _as_given(self.prepared, self.space, point)

    def _take(self, point: Point, status: Status) -> None:
        """Keep a point, in the user's units, with its multipliers."""
        vectors = self.space.vectors
        self.x, self.y = self._trees(point)
        mu = point.mu * vectors.lower_unit / vectors.row_units(point.x, point.y)
        own, _ = self.setting.layout().split(mu)
        upper = self.certificate.upper_multipliers if self.certificate is not None else None
        if upper is None:
            shapes = self.setting.shapes("upper_constraints")
            upper = unraveled(shapes, np.zeros(vectors.layout.own_above))
        self.multipliers = Multipliers(own.inequalities, own.equalities, upper)
        self.status = status


def _starts_made(found: SearchResult, starts: int) -> str:
    """How many starts there were, those that were added on the way apart."""
    further = max((candidate.start for candidate in found.candidates), default=0) + 1 - starts
    return f"{starts} starts, the given one first" + (f", and {further} further ones." if further > 0 else ".")


def _refuse_nonfinite(space: Space) -> None:
    """Raise where a function or its gradient is not finite at the start."""
    vectors = space.vectors
    values = vectors.values(space.xs[0], space.ys[0], np.zeros(vectors.layout.rows))
    upper, above, _ = vectors.upper_slopes(space.xs[0], space.ys[0])
    lower = vectors.lower_slope(space.xs[0], space.ys[0])
    parts = {
        "upper": (values.upper, upper),
        "lower": (values.lower, lower),
        "upper_constraints": (values.above[: vectors.layout.own_above], above),
        "constraints": (values.rows, values.stationarity),
    }
    for name, (found, slope) in parts.items():
        for part, what in ((found, name), (slope, f"the gradient of {name}")):
            if not np.isfinite(part).all():
                raise InputError(
                    f"{what} is not finite at (x0, y0); start from a point where every function is finite."
                )


def _history(candidates: list[Candidate], space: Space) -> History:
    names = ("start", "upper", "violation", "gap")
    columns = {name: np.array([getattr(candidate, name) for candidate in candidates]) for name in names}
    scale = space.vectors.units.upper
    columns["upper"] = columns["upper"] * float(scale.unit) + float(scale.origin)
    return History({"step": np.arange(1, len(candidates) + 1), **columns})
