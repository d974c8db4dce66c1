"""Problems whose expectations are known, from the prepared problem to its solution.

The small, the penalty and the implicit route differ only in their searches (`searches.py`). `converged` and
`best_of_branches` are said only where the certificate of the returned point says yes.
"""

import dataclasses
import itertools

import numpy as np

from hierax._auto import constants as const
from hierax._auto import session as sessions
from hierax._auto.descents import solved_below
from hierax._auto.hunt import Candidate, Hunt, Space, judge, optima, select, times_met
from hierax._auto.searches import ROUTES, go_down_from, run
from hierax._auto.session import Session
from hierax._base.constants import LITTLE
from hierax._base.text import entries
from hierax._compile.checked import refuse_nonfinite
from hierax._compile.configuration import one_blas_thread
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.programs import FEASIBLE, raveled
from hierax._engine.vectors import Point, VectorProblem
from hierax._judge.certificate import Certificate
from hierax._judge.certifying import as_stated, certificate_in
from hierax._lower.linear import OutOfTime
from hierax._math.lower_level import INFEASIBLE, SOLVED, UNBOUNDED
from hierax._math.scatter import chance_of_more, most_left
from hierax._problem.problem import Problem
from hierax._run.call import progress_bar
from hierax._run.solution import Kind, Reason, Solution, Starts, Status, lowest_of_starts


def run_deterministic(session: Session, all_starts: bool = True) -> Solution:
    """The answer of a route that is a list of searches; `all_starts`: whether further starts may be added."""
    auto, work = session.auto, session.work
    assert auto.route is not None and auto.starts is not None
    further = 3 * const.STARTS if auto.route == "small" and all_starts else 0
    with progress_bar(session.call.progress, session.call.news, auto.starts, "starts") as show, one_blas_thread:
        problem = sessions.float64_problem(session.prepared, session.seed, open_kinks=True)
        problem = dataclasses.replace(problem, stop=work.late)
        session.compiles(problem.bound)
        space = Space.of(problem, auto.starts, session.seed, further, lambda: work.passed)
        _refuse_nonfinite(space, session.prepared.problem)
        for again in range(const.TURNS):
            hunt = Hunt(space, session, show, again)
            run(hunt, ROUTES[auto.route])
            session.ended, share, work.share = work.ended, work.share, 0.5 * (1 + const.SEARCH_SHARE)
            try:
                best, status, certificate = _settled(problem, hunt)
            except OutOfTime:
                best, status, certificate = _left_off(hunt)
            if certificate is None or work.passed or not _has_unknown_below(certificate, auto.tol):
                break
            space.vectors.meet(raveled(certificate.reference.y) / space.vectors.y_unit)
            session.log.append("The certificate found a lower solution below than the search knew: searched again.")
            work.share = share
        work.closing = True
    vectors, point = hunt.vectors, best.point._replace(mu=best.better.mu)
    upper = hunt.in_users_units(best.upper)
    global_words = "" if certificate is None else globality(hunt.candidates, upper, best.upper, vectors.upper_unit)
    session.log += _counted(hunt.candidates, auto.starts) + [global_words] * bool(global_words)
    ends = map(hunt.in_users_units, ends_of_starts(hunt.candidates, auto.starts))
    mu = point.mu * vectors.lower_unit / vectors.row_units(point.x, point.y)
    multipliers = sessions.multipliers_of(problem, mu, certificate)
    starts = Starts(tuple(ends), global_words)
    certificate = certificate and as_stated(problem, certificate)
    return session.solution(hunt.as_given(point), multipliers, status, certificate, starts, upper)


def _has_unknown_below(certificate: Certificate, tol: float) -> bool:
    """Whether the certificate has found a solution of the lower level that is better than the one the search took."""
    return (certificate.lower_gap or 0.0) > certificate.gap_range.within(tol)


def _settled(problem: Float64Problem, hunt: Hunt) -> tuple[Candidate, Status, Certificate | None]:
    """The point that is returned, its status, and its certificate where it was made."""
    judged, ended = len(hunt.candidates), hunt.session.ended
    far, best = on_the_way_to_infinity(hunt.candidates), select(hunt.candidates)
    if far is not None and falls_on(hunt, far):
        far = far._replace(better=far.point)
        return far, Reason.FALLS_FOR_EVER.status(judged, upper=hunt.in_users_units(far.upper)), None
    if best is None:
        return *without_answer(hunt, ended), None
    best, certificate = _downhill(problem, hunt, best)
    return best, status_of(certificate, hunt.session.auto.tol, len(hunt.candidates), ended), certificate


def _left_off(hunt: Hunt) -> tuple[Candidate, Status, None]:
    """The same where there was no time to settle anything: the best point so far, without a certificate."""
    hunt.work.closing, best = True, select(hunt.candidates)
    ended = hunt.session.ended = hunt.session.ended or hunt.work.ended
    if best is None:
        return *without_answer(hunt, ended), None
    assert ended is not None
    return best, ENDED[ended].status(len(hunt.candidates), objection="it was not made for want of time."), None


def _downhill(problem: Float64Problem, hunt: Hunt, best: Candidate) -> tuple[Candidate, Certificate]:
    """The best point, or a lower one that its certificate led to, and the certificate."""
    session, vectors = hunt.session, hunt.vectors

    def certified(candidate: Candidate) -> tuple[Candidate, Certificate]:
        candidate = _with_own_y(hunt, candidate)
        there = problem.at(*hunt.as_given(candidate.point))
        return candidate, certificate_in(there, seed=session.seed, stop=lambda: hunt.work.over, known=hunt.below())

    best, certificate = certified(best)
    for turn in range(const.TURNS):
        if certificate.verdict(session.auto.tol) != "no" or hunt.work.passed:
            break
        lower = certificate.better(session.auto.tol)
        place = best.point
        if lower is not None:
            x_unit, y_unit = (raveled(tree) for tree in certificate.lengths)
            place, _ = solved_below(
                vectors, lower.point.x * x_unit / vectors.x_unit, lower.point.y * y_unit / vectors.y_unit
            )
        before = len(hunt.candidates)
        hunt.piece(f"downhill {turn}", go_down_from, hunt, place, best.start)
        new = select([best, *hunt.candidates[before:]])
        if new is None or new is best:
            break
        best, certificate = certified(new)
    return best, certificate


def _with_own_y(hunt: Hunt, best: Candidate) -> Candidate:
    """The candidate with the lower level's own solution as its y, where F may owe something to a gap or violation.

    Where no y keeps the rows strictly, a violation e moves y by the square root of e: F is lower than at any y that
    keeps them, and is not the problem's. There the solution is taken although its F is higher.
    """
    hunt.vectors.forget()
    if best.confirmed and best.gap <= const.ROUNDING and best.residual <= const.NEGLIGIBLE:
        return best
    exact = judge(hunt.vectors, best.better, best.start, best.way)
    as_low = best.confirmed and exact.upper <= best.upper + const.NEAR * (1 + abs(best.upper))
    apart = np.max(np.abs(exact.point.y - best.point.y), initial=0.0)
    nearby = apart <= const.NEAR and exact.violation <= LITTLE * best.violation
    return exact if exact.accepted and (as_low or nearby) else best


def _refuse_nonfinite(space: Space, problem: Problem) -> None:
    """Raise where a function or its gradient is not finite at the start."""
    vectors = space.vectors
    values = vectors.values(space.xs[0], space.ys[0], np.zeros(vectors.layout.rows))
    upper, above, _ = vectors.upper_slopes(space.xs[0], space.ys[0])
    parts = {
        "upper": (values.upper, upper),
        "lower": (values.lower, vectors.lower_slope(space.xs[0], space.ys[0])),
        "upper_constraints": (values.above[: vectors.layout.own_above], above),
        "constraints": (values.rows[~vectors.layout.face], values.stationarity),
    }
    fine = {name: np.isfinite(found).all() for name, (found, _) in parts.items()}
    fine |= {f"the gradient of {name}": np.isfinite(slope).all() for name, (_, slope) in parts.items()}
    refuse_nonfinite(fine, problem)


# -- what a search says: the status of its answer, and the log in words -----------------------------------------------

ENDED = {reason.kind: reason for reason in Reason if reason.name.startswith("SEARCH_")}


def status_of(certificate: Certificate, tol: float, judged: int, ended: Kind | None) -> Status:
    """The status of an answer with its certificate; `ended`: why the search was not complete."""
    verdict, branches, notes = certificate.verdict(tol), certificate.not_convex, certificate.notes
    if verdict == "yes":
        reason = Reason.CERTIFIED if branches is None else Reason.CERTIFIED_AMONG_BRANCHES
    elif ended is not None:
        reason = ENDED[ended]
    elif verdict == "unknown":
        reason = Reason.DEGENERATE if certificate.degenerate else Reason.UNDECIDED
    else:
        reason = Reason.OBJECTED
    objection = next(iter(certificate.reasons(tol)), None)
    doubt = f"; {notes['convexity']}" if "convexity" in notes else ""
    return reason.status(judged, tol=tol, why=branches, doubt=doubt, objection=objection)


def without_answer(hunt: Hunt, ended: Kind | None) -> tuple[Candidate, Status]:
    """Nothing was accepted: what comes nearest, and why."""
    judged, statuses = len(hunt.candidates), hunt.statuses
    nearest = min(hunt.candidates, key=lambda one: np.nan_to_num(max(one.violation, one.gap), nan=np.inf))
    if hunt.contradiction is not None:
        return nearest, Reason.CONTRADICTION.status(judged, proof=hunt.contradiction)
    below = [candidate for candidate in hunt.candidates if candidate.gap <= const.NEGLIGIBLE]
    least = min(below, key=lambda candidate: candidate.violation, default=None)
    beyond = None if least is None else _beyond_above(hunt.vectors, least)
    if ended is not None:
        text = "no point passed the validation yet."
        return nearest, ENDED[ended].status(judged, objection=text if beyond is None else f"{text} {beyond}")
    if statuses and set(statuses) == {INFEASIBLE}:
        return nearest, Reason.NO_FEASIBLE_Y.status(judged)
    if SOLVED not in statuses and UNBOUNDED in statuses:
        return nearest, Reason.LOWER_FALLS_FOR_EVER.status(judged)
    if least is not None and beyond is not None:
        return least, Reason.NO_FEASIBLE_X.status(judged, nearest=beyond)
    return nearest, Reason.NOTHING_VALIDATED.status(judged, violation=nearest.violation, gap=nearest.gap)


def _beyond_above(vectors: VectorProblem, nearest: Candidate) -> str | None:
    """Which upper constraint the nearest solution of the lower level violates most; None: none worth mention."""
    values, (x, y, _) = vectors.values(*nearest.point), nearest.point
    own = values.above[: vectors.layout.own_above]
    if not np.max(own, initial=0.0) > const.NOTICEABLE:
        return None
    worst = int(np.argmax(own))
    raw = vectors.programs.raw_values(*vectors.programs.landed(x * vectors.x_unit, y * vectors.y_unit))
    name = entries("upper_constraints", vectors.programs.setting.shapes().upper)[worst]
    return f"At the nearest of the lower level's solutions {name} is violated by {float(raw.above[worst]):.3g}."


def on_the_way_to_infinity(candidates: list[Candidate]) -> Candidate | None:
    """A point far away that satisfies everything, relative to how far it is, and whose F beats all others.

    Far away, and far below, is where a unit counts for nothing.
    """
    far = []
    for one in candidates:
        reach = np.max(np.abs(np.concatenate(one.point[:2])))
        feasible = one.violation <= FEASIBLE * reach and one.gap <= const.NEGLIGIBLE
        if feasible and const.NEGLIGIBLE * reach > 1 and const.NOTICEABLE * one.upper < -1 and np.isfinite(one.upper):
            far.append(one)
    lowest = min(far, key=lambda candidate: candidate.upper, default=None)
    others = [candidate.upper for candidate in candidates if candidate.accepted]
    return None if lowest is None or lowest.upper > min(others, default=np.inf) else lowest


def falls_on(hunt: Hunt, far: Candidate) -> bool:
    """Whether F goes on to fall beyond a point far away, along the ray from the start: twice as far every time.

    Else the point may be an optimum that is far from the start, or the end of a search that was cut short. Places too
    far out for the lower level's solver say nothing, but one at least must.
    """
    x0, y0, vectors = hunt.space.xs[0], hunt.space.ys[0], hunt.vectors
    seen = [far.upper]
    for stretch in const.STRETCHES:
        further = vectors.landed(x0 + stretch * (far.point.x - x0), y0 + stretch * (far.better.y - y0))
        found = vectors.branches(*further)
        best = found.best()
        if best is None or found.status[best] != SOLVED:  # starts near x0 may count as run off on the way there
            continue
        there = Point(further[0], found.y[best], found.mu[best])
        values = vectors.values(*there)
        reach = max(1.0, np.max(np.abs(there.x), initial=0.0), np.max(np.abs(further[1]), initial=0.0))
        fine = vectors.violation(there.x, there.y, values) <= FEASIBLE * reach
        if fine and np.isfinite(values.upper):
            seen.append(float(values.upper))
    return len(seen) > 1 and all(later <= 2 * before for before, later in itertools.pairwise(seen))


def _counted(candidates: list[Candidate], starts: int) -> list[str]:
    """How many starts there were, those that were added on the way apart, and how many points were judged."""
    further = max((candidate.start for candidate in candidates), default=0) + 1 - starts
    accepted = [candidate for candidate in candidates if candidate.accepted]
    tight = sum(candidate.tight for candidate in accepted)
    return [
        f"{starts} starts, the given one first" + (f", and {further} further ones." if further > 0 else "."),
        f"{len(candidates)} points judged, {len(accepted)} of them pass the validation ({tight} of those tightly).",
    ]


def ends_of_starts(candidates: list[Candidate], count: int) -> tuple[float, ...]:
    """The lowest F, in units, of the accepted candidates of every start; NaN where a start led to none."""
    ends = [(candidate.start, candidate.upper) for candidate in candidates if candidate.accepted]
    return lowest_of_starts(ends, max([count, *(start + 1 for start, _ in ends)]))


def globality(candidates: list[Candidate], value: float, upper: float, unit: float) -> str:
    """How many starts agree with F = `value` (`upper` in units of F), what else was found, and what may be left."""
    every = optima(candidates)
    same = next((optimum for optimum in every if any(end.upper == upper for end in optimum)), every[0] if every else [])
    text = f"Globality: {sum(map(len, every))} starts ran to an end, {len(same)} of them to F = {value:.6g}"
    others = [optimum[0].upper for optimum in every if optimum is not same]
    if others:
        listed = ", ".join(f"{value + (other - upper) * unit:.6g}" for other in others[: const.LISTED])
        more = f" and {len(others[const.LISTED :])} more" if others[const.LISTED :] else ""
        text += f"; others to F = {listed}{more}"
    new, chance = "That another start would end somewhere new has a chance", chance_of_more(times_met(every))
    if chance > 0:
        return f"{text}. {new} of about {chance:.0%} (Good-Turing)."
    return f"{text}. {new} below {most_left(sum(map(len, every))):.0%} (95 % confidence)."
