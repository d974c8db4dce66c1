"""What a search of the small or the penalty route says: the point it returns, the status, and the log in words."""

from typing import NamedTuple

import numpy as np

from hierax._auto.candidates import Candidate, SearchResult, select
from hierax._auto.constants import (
    AGREE,
    BEYOND_REPAIR,
    FAR_AWAY,
    FAR_FALL,
    FAR_GAP,
    FEASIBLE,
    LISTED_OPTIMA,
    OPTIMAL_BELOW,
    STEEP,
)
from hierax._auto.polish import Point
from hierax._base.constants import LOWER_STARTS
from hierax._math.lower_level import INFEASIBLE, UNBOUNDED
from hierax._run.status import Reason, Status


class Verdict(NamedTuple):
    """How a search ended."""

    point: Point
    status: Status
    log: tuple[str, ...]


def verdict(found: SearchResult) -> Verdict:
    """Choose the point, name the status, and tell of the search."""
    log = [_counted(found)]
    if found.timed_out:
        log.append("The time was up before the search was complete; Auto(seconds=...) gives it more.")
    candidate, best = _on_the_way_to_infinity(found), select(found.candidates, found.scales)
    if candidate is not None:
        status = Reason.FALLS_FOR_EVER.status(len(found.candidates), upper=candidate.upper)
    elif best is not None:
        candidate, status = best, _status(found, best)
        log += [_agreement(found, best), _numbers(best)]
    else:
        candidate, status = _nearest(found)
    point = candidate.point._replace(mu=candidate.better.mu)  # the multipliers of the lower level's best solution
    return Verdict(point, status, (*log, status.message))


def _status(found: SearchResult, best: Candidate) -> Status:
    """The status of an accepted point."""
    judged = len(found.candidates)
    steep = np.max(np.abs(best.better.mu), initial=0.0) > STEEP * found.scales.lower
    if not best.confirmed or steep:
        return Reason.DEGENERATE.status(judged)
    branches = max(candidate.branches for candidate in found.candidates)
    if branches > 1:
        return Reason.SEVERAL_BRANCHES.status(judged, kinds=branches, solves=LOWER_STARTS)
    return Reason.VALIDATED.status(judged, upper=best.upper)


def _nearest(found: SearchResult) -> tuple[Candidate, Status]:
    """Nothing was accepted: what comes nearest, and why."""

    def badness(candidate: Candidate) -> float:
        badness = max(candidate.violation, candidate.gap)
        return badness if np.isfinite(badness) else np.inf

    judged, statuses = len(found.candidates), found.lower_statuses
    nearest = min(found.candidates, key=badness)
    if statuses.size and (statuses == INFEASIBLE).all():
        return nearest, Reason.NO_FEASIBLE_Y.status(judged)
    if statuses.size and (statuses == UNBOUNDED).all():
        return nearest, Reason.LOWER_FALLS_FOR_EVER.status(judged)
    below = [candidate for candidate in found.candidates if candidate.gap <= OPTIMAL_BELOW]
    least = min(below, key=lambda candidate: candidate.violation, default=None)
    if least is not None and least.violation > BEYOND_REPAIR:
        return least, Reason.NO_FEASIBLE_X.status(judged, violation=least.violation)
    return nearest, Reason.NOTHING_VALIDATED.status(judged, violation=nearest.violation, gap=nearest.gap)


def _on_the_way_to_infinity(found: SearchResult) -> Candidate | None:
    """A point far away that satisfies everything, relative to how far it is, and whose F beats all others."""
    scales, far = found.scales, []
    for candidate in found.candidates:
        x, y, _ = candidate.point
        reach = max(np.max(np.abs(x) / scales.x), np.max(np.abs(y) / scales.y))
        if reach > FAR_AWAY and candidate.violation <= FEASIBLE * reach and candidate.gap <= FAR_GAP:
            far.append(candidate)
    lowest = min(far, key=lambda candidate: candidate.upper, default=None)
    if lowest is None or not np.isfinite(lowest.upper):
        return None
    others = [candidate.upper for candidate in found.candidates if candidate.accepted]
    fallen = lowest.upper < -FAR_FALL * FAR_AWAY * scales.upper
    return lowest if fallen and lowest.upper <= min([lowest.upper, *others]) else None


def _counted(found: SearchResult) -> str:
    accepted = [candidate for candidate in found.candidates if candidate.accepted]
    tight = sum(candidate.tight for candidate in accepted)
    return (
        f"{len(found.candidates)} points judged, {len(accepted)} of them pass the validation ({tight} of those "
        "tightly)."
    )


def _numbers(best: Candidate) -> str:
    return (
        f"F = {best.upper:.8g}, largest violation {best.violation:.2g}, lower gap {best.gap:.2g} (1 + |v|) against the "
        f"best of {LOWER_STARTS} lower solves at the returned x."
    )


def _agreement(found: SearchResult, best: Candidate) -> str:
    """How many starts agree with the best point, and what else was found."""
    values: dict[int, list[float]] = {}
    for candidate in found.candidates:
        if candidate.accepted:
            values.setdefault(candidate.start, []).append(candidate.upper)
    ends = np.array([min(own) for own in values.values()])
    same = np.abs(ends - best.upper) <= AGREE * (1 + abs(best.upper))
    text = f"{int(same.sum())} of {len(ends)} starts that arrived agree on F = {best.upper:.6g}"
    others: list[float] = []
    for value in np.sort(ends[~same & (ends > best.upper)]):
        if not others or value - others[-1] > AGREE * (1 + abs(value)):
            others.append(float(value))
    if not others:
        return f"{text}."
    listed = ", ".join(f"{value:.6g}" for value in others[:LISTED_OPTIMA])
    more = f" and {len(others) - LISTED_OPTIMA} more" if len(others) > LISTED_OPTIMA else ""
    return f"{text}; other local optima: F = {listed}{more}."
