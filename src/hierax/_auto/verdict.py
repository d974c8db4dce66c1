"""What a search of the small or the penalty route says: the status of its answer, and the log in words.

`converged` and `best_of_branches` are said only where the certificate of the returned point says yes.
"""

import itertools

import numpy as np

from hierax._auto.agreement import chance_of_more, most_left, optima
from hierax._auto.candidates import Candidate, SearchResult
from hierax._auto.constants import (
    BEYOND_REPAIR,
    FAR_AWAY,
    FAR_FALL,
    FAR_GAP,
    LISTED_OPTIMA,
    OPTIMAL_BELOW,
    STRETCHES,
)
from hierax._auto.space import Space
from hierax._base.text import entries
from hierax._engine.branches import FEASIBLE
from hierax._engine.vectors import VectorProblem
from hierax._judge.certificate import Certificate
from hierax._math.lower_level import INFEASIBLE, SOLVED, UNBOUNDED
from hierax._run.starts import lowest_of_starts
from hierax._run.status import Kind, Reason, Status

ENDED = {
    Kind.SECONDS: Reason.SEARCH_OUT_OF_TIME,
    Kind.INTERRUPTED: Reason.SEARCH_INTERRUPTED,
    Kind.STOPPED: Reason.SEARCH_STOPPED,
    Kind.MAX_STEPS: Reason.SEARCH_OUT_OF_STEPS,
}


def status_of(certificate: Certificate, tol: float, judged: int, ended: Kind | None) -> Status:
    """The status of an answer with its certificate; `ended`: why the search was not complete."""
    verdict = certificate.verdict(tol)
    if verdict == "yes":
        if certificate.not_convex is None:
            return Reason.CERTIFIED.status(judged, tol=tol)
        return Reason.CERTIFIED_AMONG_BRANCHES.status(judged, tol=tol, why=certificate.not_convex)
    objection = certificate.reasons(tol)[0]
    if ended is not None:
        return ENDED[ended].status(judged, objection=objection)
    if verdict == "unknown" and certificate.degenerate:
        return Reason.DEGENERATE.status(judged, objection=objection)
    if verdict == "unknown":
        return Reason.UNDECIDED.status(judged, objection=objection)
    return Reason.OBJECTED.status(judged, tol=tol, objection=objection)


def without_answer(found: SearchResult, ended: Kind | None, vectors: VectorProblem) -> tuple[Candidate, Status]:
    """Nothing was accepted: what comes nearest, and why."""

    def badness(candidate: Candidate) -> float:
        badness = max(candidate.violation, candidate.gap)
        return badness if np.isfinite(badness) else np.inf

    judged, statuses = len(found.candidates), found.lower_statuses
    nearest = min(found.candidates, key=badness)
    if found.contradiction is not None:
        return nearest, Reason.CONTRADICTION.status(judged, proof=found.contradiction)
    below = [candidate for candidate in found.candidates if candidate.gap <= OPTIMAL_BELOW]
    least = min(below, key=lambda candidate: candidate.violation, default=None)
    beyond = None if least is None else _beyond_above(vectors, least)
    if ended is not None:
        text = "no point passed the validation yet."
        return nearest, ENDED[ended].status(judged, objection=text if beyond is None else f"{text} {beyond}")
    if statuses.size and (statuses == INFEASIBLE).all():
        return nearest, Reason.NO_FEASIBLE_Y.status(judged)
    if SOLVED not in statuses and UNBOUNDED in statuses:
        return nearest, Reason.LOWER_FALLS_FOR_EVER.status(judged)
    if least is not None and beyond is not None:
        return least, Reason.NO_FEASIBLE_X.status(judged, nearest=beyond)
    return nearest, Reason.NOTHING_VALIDATED.status(judged, violation=nearest.violation, gap=nearest.gap)


def _beyond_above(vectors: VectorProblem, nearest: Candidate) -> str | None:
    """Which upper constraint the nearest solution of the lower level violates most; None: none worth mention."""
    if not float(nearest.judged.upper_violation) > BEYOND_REPAIR:
        return None
    x, y, _ = nearest.point
    own = slice(vectors.layout.own_above)
    worst = int(np.argmax(vectors.values(*nearest.point).above[own]))
    raw, _ = vectors.programs.at(*vectors.programs.landed(x * vectors.x_unit, y * vectors.y_unit))
    name = entries("upper_constraints", vectors.programs.setting.shapes("upper_constraints"))[worst]
    return f"At the nearest of the lower level's solutions {name} is violated by {float(raw.above[worst]):.3g}."


def on_the_way_to_infinity(found: SearchResult) -> Candidate | None:
    """A point far away that satisfies everything, relative to how far it is, and whose F beats all others."""
    far = []
    for candidate in found.candidates:
        x, y, _ = candidate.point
        reach = max(np.max(np.abs(x)), np.max(np.abs(y)))
        if reach > FAR_AWAY and candidate.violation <= FEASIBLE * reach and candidate.gap <= FAR_GAP:
            far.append(candidate)
    lowest = min(far, key=lambda candidate: candidate.upper, default=None)
    if lowest is None or not np.isfinite(lowest.upper):
        return None
    others = [candidate.upper for candidate in found.candidates if candidate.accepted]
    fallen = lowest.upper < -FAR_FALL * FAR_AWAY
    return lowest if fallen and lowest.upper <= min([lowest.upper, *others]) else None


def falls_on(space: Space, far: Candidate) -> bool:
    """Whether F goes on to fall beyond a point far away, along the ray from the start: twice as far every time.

    Else the point may be an optimum that is far from the start, or the end of a search that was cut short. Places too
    far out for the lower level's solver say nothing, but one at least must.
    """
    x0, y0 = space.xs[0], space.ys[0]
    seen = [far.upper]
    for stretch in STRETCHES:
        further = x0 + stretch * (far.point.x - x0), y0 + stretch * (far.better.y - y0)
        upper = _solved_at(space.vectors, *space.vectors.landed(*further))
        if upper is not None:
            seen.append(upper)
    return len(seen) > 1 and all(later <= 2 * before for before, later in itertools.pairwise(seen))


def _solved_at(vectors: VectorProblem, x: np.ndarray, y: np.ndarray) -> float | None:
    """F at the lower level's solution at x; None where there is none, or it violates something."""
    found = vectors.branches(x, y)
    best = found.best()
    if best is None or found.status[best] != SOLVED:
        return None
    values = vectors.values(x, found.y[best], found.mu[best])
    reach = max(1.0, np.max(np.abs(x), initial=0.0), np.max(np.abs(y), initial=0.0))
    fine = vectors.violation(x, found.y[best], values) <= FEASIBLE * reach and np.isfinite(values.upper)
    return float(values.upper) if fine else None


def counted(found: SearchResult) -> str:
    """How many points were judged."""
    accepted = [candidate for candidate in found.candidates if candidate.accepted]
    tight = sum(candidate.tight for candidate in accepted)
    return (
        f"{len(found.candidates)} points judged, {len(accepted)} of them pass the validation ({tight} of those "
        "tightly)."
    )


def ends_of_starts(found: SearchResult, count: int = 0) -> tuple[float, ...]:
    """The lowest F, in units, of the accepted candidates of every start; NaN where a start led to none."""
    ends = [(candidate.start, candidate.upper) for candidate in found.candidates if candidate.accepted]
    return lowest_of_starts(ends, max([count, *(start + 1 for start, _ in ends)]))


def globality(found: SearchResult, value: float, upper: float, unit: float) -> str:
    """How many starts agree with F = `value` (`upper` in units of F), what else was found, and what may be left."""
    every = optima(found.candidates)
    same = next((optimum for optimum in every if any(end.upper == upper for end in optimum)), every[0] if every else [])
    text = f"Globality: {sum(map(len, every))} starts ran to an end, {len(same)} of them to F = {value:.6g}"
    others = [optimum[0].upper for optimum in every if optimum is not same]
    if others:
        listed = ", ".join(f"{value + (other - upper) * unit:.6g}" for other in others[:LISTED_OPTIMA])
        more = f" and {len(others) - LISTED_OPTIMA} more" if len(others) > LISTED_OPTIMA else ""
        text += f"; others to F = {listed}{more}"
    new, chance = "That another start would end somewhere new has a chance", chance_of_more(every)
    if chance > 0:
        return f"{text}. {new} of about {chance:.0%} (Good-Turing)."
    return f"{text}. {new} below {most_left(every):.0%} (95 % confidence)."
