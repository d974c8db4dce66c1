"""What a search of the small or the penalty route says: the status of its answer, and the log in words.

`converged` and `best_of_branches` are said only where the certificate of the returned point says yes.
"""

import itertools

import numpy as np

from hierax._auto.candidates import Candidate, chance_of_more, most_left, optima
from hierax._auto.constants import FAR_AWAY, FAR_FALL, NEARLY_OPTIMAL, STRETCH, VIOLATED
from hierax._auto.implicit import solved_below
from hierax._auto.searches import Hunt
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


def without_answer(hunt: Hunt, ended: Kind | None) -> tuple[Candidate, Status]:
    """Nothing was accepted: what comes nearest, and why."""

    def badness(candidate: Candidate) -> float:
        badness = max(candidate.violation, candidate.gap)
        return badness if np.isfinite(badness) else np.inf

    judged, statuses = len(hunt.candidates), hunt.statuses
    nearest = min(hunt.candidates, key=badness)
    if hunt.contradiction is not None:
        return nearest, Reason.CONTRADICTION.status(judged, proof=hunt.contradiction)
    below = [candidate for candidate in hunt.candidates if candidate.gap <= NEARLY_OPTIMAL]
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
    if not float(nearest.judged.upper_violation) > VIOLATED:
        return None
    x, y, _ = nearest.point
    own = slice(vectors.layout.own_above)
    worst = int(np.argmax(vectors.values(*nearest.point).above[own]))
    raw, _ = vectors.programs.at(*vectors.programs.landed(x * vectors.x_unit, y * vectors.y_unit))
    name = entries("upper_constraints", vectors.programs.setting.shapes("upper_constraints"))[worst]
    return f"At the nearest of the lower level's solutions {name} is violated by {float(raw.above[worst]):.3g}."


def on_the_way_to_infinity(candidates: list[Candidate]) -> Candidate | None:
    """A point far away that satisfies everything, relative to how far it is, and whose F beats all others."""
    far = []
    for candidate in candidates:
        x, y, _ = candidate.point
        reach = max(np.max(np.abs(x)), np.max(np.abs(y)))
        if reach > FAR_AWAY and candidate.violation <= FEASIBLE * reach and candidate.gap <= NEARLY_OPTIMAL:
            far.append(candidate)
    lowest = min(far, key=lambda candidate: candidate.upper, default=None)
    if lowest is None or not np.isfinite(lowest.upper):
        return None
    others = [candidate.upper for candidate in candidates if candidate.accepted]
    fallen = lowest.upper < -FAR_FALL
    return lowest if fallen and lowest.upper <= min([lowest.upper, *others]) else None


def falls_on(hunt: Hunt, far: Candidate) -> bool:
    """Whether F goes on to fall beyond a point far away, along the ray from the start: twice as far every time.

    Else the point may be an optimum that is far from the start, or the end of a search that was cut short. Places too
    far out for the lower level's solver say nothing, but one at least must.
    """
    x0, y0, vectors = hunt.space.xs[0], hunt.space.ys[0], hunt.vectors
    seen = [far.upper]
    for power in range(1, 4):
        stretch = STRETCH**power
        further = vectors.landed(x0 + stretch * (far.point.x - x0), y0 + stretch * (far.better.y - y0))
        there, status = solved_below(vectors, *further)
        values = vectors.values(*there)
        reach = max(1.0, np.max(np.abs(there.x), initial=0.0), np.max(np.abs(further[1]), initial=0.0))
        fine = status == SOLVED and vectors.violation(there.x, there.y, values) <= FEASIBLE * reach
        if fine and np.isfinite(values.upper):
            seen.append(float(values.upper))
    return len(seen) > 1 and all(later <= 2 * before for before, later in itertools.pairwise(seen))


def counted(candidates: list[Candidate]) -> str:
    """How many points were judged."""
    accepted = [candidate for candidate in candidates if candidate.accepted]
    tight = sum(candidate.tight for candidate in accepted)
    return f"{len(candidates)} points judged, {len(accepted)} of them pass the validation ({tight} of those tightly)."


def ends_of_starts(candidates: list[Candidate], count: int = 0) -> tuple[float, ...]:
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
        listed = ", ".join(f"{value + (other - upper) * unit:.6g}" for other in others[:4])
        more = f" and {len(others[4:])} more" if others[4:] else ""
        text += f"; others to F = {listed}{more}"
    new, chance = "That another start would end somewhere new has a chance", chance_of_more(every)
    if chance > 0:
        return f"{text}. {new} of about {chance:.0%} (Good-Turing)."
    return f"{text}. {new} below {most_left(every):.0%} (95 % confidence)."
