"""The small and the penalty route from a prepared problem to its solution; they differ only in their searches."""

import functools

import numpy as np

from hierax._auto.candidates import Candidate, judge, select
from hierax._auto.constants import (
    MUCH_LESS,
    NEARLY_AS_LOW,
    NEGLIGIBLE,
    ROUNDING,
    SAME_PLACE,
    SEARCH_SHARE,
    STARTS,
    TURNS,
)
from hierax._auto.searches import ROUTES, Hunt, go_down_from
from hierax._auto.session import Session, float64_problem
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
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.programs import raveled, unraveled
from hierax._engine.vectors import Point
from hierax._judge.certificate import Certificate
from hierax._judge.certifying import certificate_in
from hierax._problem.problem import Multipliers
from hierax._run.progress import progress_bar
from hierax._run.solution import Solution
from hierax._run.starts import Starts
from hierax._run.status import Reason, Status


def run_deterministic(session: Session, all_starts: bool = True) -> Solution:
    """The answer of the session's route, "small" or "penalty"; `all_starts`: whether further ones may be added."""
    auto, work = session.auto, session.work
    assert auto.route is not None and auto.starts is not None
    further = 3 * STARTS if auto.route == "small" and all_starts else 0
    with progress_bar(session.call.progress, session.call.news, auto.starts, "starts") as show, one_blas_thread:
        problem = float64_problem(session.prepared, session.seed)
        session.compiles(problem.bound)
        hunt = Hunt(Space.of(problem, auto.starts, session.seed, further), session, show)
        _refuse_nonfinite(hunt.space)
        hunt.run(ROUTES[auto.route])
        session.ended = work.ended
        work.share = 0.5 * (1 + SEARCH_SHARE)
        answer = _Answer(problem, hunt)
        point, status = answer.settle()
        upper = hunt.in_users_units(float(hunt.vectors.values(*point).upper))
        session.log += [_starts_made(hunt.candidates, auto.starts), counted(hunt.candidates)]
        session.log += [answer.globality] if answer.globality else []
    ends = tuple(map(hunt.in_users_units, ends_of_starts(hunt.candidates, auto.starts)))
    starts = Starts(ends, answer.globality)
    return session.solution(hunt.as_given(point), answer.multipliers(point), status, answer.certificate, starts, upper)


class _Answer:
    """The point that a search returns, its certificate, its status, and what the log says of it."""

    def __init__(self, problem: Float64Problem, hunt: Hunt) -> None:
        self.problem, self.hunt, self.session = problem, hunt, hunt.session
        self.tol = hunt.session.auto.tol
        self.certificate: Certificate | None = None
        self.globality = ""

    def settle(self) -> tuple[Point, Status]:
        """Choose the point, certify it, and go on downhill from it as long as its certificate objects."""
        hunt, ended = self.hunt, self.session.ended
        far, best = on_the_way_to_infinity(hunt.candidates), select(hunt.candidates)
        if far is not None and falls_on(hunt, far):
            upper = hunt.in_users_units(far.upper)
            return far.point, Reason.FALLS_FOR_EVER.status(len(hunt.candidates), upper=upper)
        if best is None:
            best, status = without_answer(hunt, ended)
        else:
            best, certificate = self._downhill(best)
            self.certificate = certificate
            status = status_of(certificate, self.tol, len(hunt.candidates), ended)
            value, unit = hunt.in_users_units(best.upper), hunt.vectors.upper_unit
            self.globality = globality(hunt.candidates, value, best.upper, unit)
        return best.point._replace(mu=best.better.mu), status

    def _downhill(self, best: Candidate) -> tuple[Candidate, Certificate]:
        """The best point, or a lower one that its certificate led to."""
        best = self._settled(best)
        certificate = self._certified(best.point)
        for turn in range(TURNS):
            if certificate.verdict(self.tol) != "no" or self.hunt.work.passed:
                break
            lower = certificate.better(self.tol)
            place = best.point if lower is None else self._in_space(lower.point, certificate)
            search = Hunt(self.hunt.space, self.session)
            search.piece(f"downhill {turn}", functools.partial(go_down_from, search, place, best.start))
            self.hunt.candidates.extend(search.candidates)
            new = select([best, *search.candidates])
            if new is None or new is best:
                break
            best = self._settled(new)
            certificate = self._certified(best.point)
        return best, certificate

    def _settled(self, best: Candidate) -> Candidate:
        """The candidate with the lower level's own solution as its y, where F may owe something to a gap or violation.

        Where no y keeps the rows strictly, a violation e moves y by the square root of e: F is lower than at any y that
        keeps them, and is not the problem's. There the solution is taken although its F is higher.
        """
        vectors = self.hunt.vectors
        vectors.forget()
        if best.confirmed and best.gap <= ROUNDING and best.residual <= NEGLIGIBLE:
            return best
        exact = judge(vectors, best.better, best.start, best.way)
        as_low = best.confirmed and exact.upper <= best.upper + NEARLY_AS_LOW * (1 + abs(best.upper))
        apart = np.max(np.abs(exact.point.y - best.point.y), initial=0.0)
        nearby = apart <= SAME_PLACE and exact.violation <= MUCH_LESS * best.violation
        return exact if exact.accepted and (as_low or nearby) else best

    def _certified(self, point: Point) -> Certificate:
        there = self.problem.at(*self.hunt.as_given(point))
        return certificate_in(there, seed=self.session.seed, stop=lambda: self.hunt.work.over)

    def _in_space(self, point: Point, certificate: Certificate) -> Point:
        """A point in the certificate's units, in those of the search."""
        vectors = self.hunt.vectors
        x_unit, y_unit = (raveled(tree) for tree in certificate.lengths)
        x, y = point.x * x_unit / vectors.x_unit, point.y * y_unit / vectors.y_unit
        solved = vectors.branches(x, y)
        best = solved.best()
        return Point(x, y, np.zeros(vectors.layout.rows)) if best is None else Point(x, solved.y[best], solved.mu[best])

    def multipliers(self, point: Point) -> Multipliers:
        """Those of a point, in the user's units."""
        vectors = self.hunt.vectors
        mu = point.mu * vectors.lower_unit / vectors.row_units(point.x, point.y)
        own, _ = self.problem.layout().split(mu)
        upper = self.certificate.upper_multipliers if self.certificate is not None else None
        if upper is None:
            upper = unraveled(self.problem.shapes("upper_constraints"), np.zeros(vectors.layout.own_above))
        return Multipliers(own.inequalities, own.equalities, upper)


def _starts_made(candidates: list[Candidate], starts: int) -> str:
    """How many starts there were, those that were added on the way apart."""
    further = max((candidate.start for candidate in candidates), default=0) + 1 - starts
    return f"{starts} starts, the given one first" + (f", and {further} further ones." if further > 0 else ".")


def _refuse_nonfinite(space: Space) -> None:
    """Raise where a function or its gradient is not finite at the start."""
    vectors = space.vectors
    values, slopes = vectors.at(space.xs[0], space.ys[0], np.zeros(vectors.layout.rows))
    names = {"upper": "upper", "lower": "lower", "above": "upper_constraints", "rows": "constraints"}
    for field, name in names.items():
        for part, what in ((getattr(values, field), name), (getattr(slopes, field), f"the gradient of {name}")):
            if not np.isfinite(part).all():
                raise InputError(
                    f"{what} is not finite at (x0, y0); start from a point where every function is finite."
                )
