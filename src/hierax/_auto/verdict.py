"""What a search of the small or the penalty route says: the point it returns, the status, and the log in words."""

from typing import Any, NamedTuple

import numpy as np

from hierax._auto.kkt_route import Judged, Search, accepted, select, tight
from hierax._auto.polish import Point
from hierax._auto.vectors import POOL, Flat
from hierax._math.lower_level import INFEASIBLE, UNBOUNDED

SAME = 1e-3  # relative difference in F of points that agree
FAR = 1e5  # lengths: a point out there belongs to a search that ran off
STEEP = 1e3  # multipliers beyond this, in units of f per row, stand for none
LISTED = 4  # other local optima named in the log


class Verdict(NamedTuple):
    """How a search ended."""

    point: Point
    name: str
    message: str
    log: list[str]


def verdict(flat: Flat, search: Any, found: Search, log: list[str]) -> Verdict:
    """Choose the point, name the status, and complete the log."""
    best = select(found.points, search.scales)
    log = [*log, _counted(found)]
    if found.timed_out:
        log.append("The time was up before the search was complete; Auto(seconds=...) gives it more.")
    away = _run_off(found, search)
    if away is not None:
        return _end(away, "unbounded_upper", UNBOUNDED_ABOVE.format(upper=away.upper), log)
    if best is None:
        return _nothing(found, log)
    log.append(_agreement(found, best))
    log.append(
        f"F = {best.upper:.8g}, largest violation {best.violation:.2g}, lower gap {best.gap:.2g} (1 + |v|) against the "
        f"best of {POOL} lower solves at the returned x."
    )
    if not best.sure or np.max(np.abs(best.better.mu), initial=0.0) > STEEP * search.scales.lower:
        return _end(best, "no_multiplier", NO_MULTIPLIER, log)
    kinds = max(point.kinds for point in found.points)
    if kinds > 1:
        return _end(best, "best_of_branches", BRANCHES.format(kinds=kinds, pool=POOL), log)
    return _end(best, "converged", CONVERGED.format(upper=best.upper), log)


CONVERGED = "converged: F = {upper:.8g}, validated by the lower level solved from many starts."
BRANCHES = (
    "best_of_branches: the lower level is not convex ({kinds} different local solutions at one x); y is the best of "
    "{pool} solves, which samples cannot prove to be the global one. Another seed draws other starts."
)
NO_MULTIPLIER = (
    "no_multiplier: the lower level has no multipliers at the returned point (its constraints are degenerate there). "
    "y was compared with other solutions of the lower level, but no KKT system confirms it."
)
UNBOUNDED_ABOVE = (
    "unbounded_upper: F fell to {upper:.3g} along points that satisfy everything, without an end in sight. Bound X (or "
    "Y), or check the sign of the upper objective."
)
NO_LOWER = (
    "infeasible: at none of the starts has the lower level a feasible y. Check the constraints' signs (feasible is "
    "h <= 0), or restrict X to where there is one."
)
NO_UPPER = (
    "infeasible: no point that solves the lower level satisfies the upper constraints; the least violation found is "
    "{violation:.3g}. Check their signs (feasible is <= 0), or give more starts or another seed."
)
NO_BOUND = (
    "unbounded_lower: the lower objective falls without limit at every start. Bound Y, or add a term that grows in "
    "every direction of y."
)
NOT_CERTIFIED = (
    "not_certified: no point passed the validation; the nearest (violation {violation:.3g}, lower gap {gap:.3g}) is "
    "returned. Try another start or seed, more starts, or more seconds."
)


def _end(judged: Judged, name: str, message: str, log: list[str]) -> Verdict:
    """The verdict on a point, with the multipliers of the lower level's best solution at its x."""
    return Verdict(judged.point._replace(mu=judged.better.mu), name, message, [*log, message])


def _nothing(found: Search, log: list[str]) -> Verdict:
    """Nothing was accepted: say why, and return what comes nearest."""

    def badness(point: Judged) -> float:
        badness = max(point.violation, point.gap)
        return badness if np.isfinite(badness) else np.inf

    nearest = min(found.points, key=badness)
    if found.statuses.size and (found.statuses == INFEASIBLE).all():
        return _end(nearest, "infeasible", NO_LOWER, log)
    if found.statuses.size and (found.statuses == UNBOUNDED).all():
        return _end(nearest, "unbounded_lower", NO_BOUND, log)
    below = [point for point in found.points if point.gap <= 1e-4]
    if below and min(point.violation for point in below) > 1e-3:
        least = min(below, key=lambda point: point.violation)
        return _end(least, "infeasible", NO_UPPER.format(violation=least.violation), log)
    return _end(nearest, "not_certified", NOT_CERTIFIED.format(violation=nearest.violation, gap=nearest.gap), log)


def _run_off(found: Search, search: Any) -> Judged | None:
    """A point far away that satisfies everything, relative to how far it is, and whose F beats all others."""
    candidates = []
    for point in found.points:
        reach = max(np.max(np.abs(point.point.x) / search.scales.x), np.max(np.abs(point.point.y) / search.scales.y))
        if reach > FAR and point.violation <= 1e-6 * reach and point.gap <= 1e-4:
            candidates.append(point)
    lowest = min(candidates, key=lambda point: point.upper, default=None)
    if (
        lowest is None
        or not np.isfinite(lowest.upper)
        or lowest.upper > min(p.upper for p in found.points if accepted(p) or p in candidates)
    ):
        return None
    return lowest if lowest.upper < -FAR * search.scales.upper * 1e-2 else None


def _counted(found: Search) -> str:
    fine = [point for point in found.points if accepted(point)]
    close = sum(tight(point) for point in fine)
    return f"{len(found.points)} points judged, {len(fine)} of them pass the validation ({close} of those tightly)."


def _agreement(found: Search, best: Judged) -> str:
    """How many starts agree with the best point, and what else was found."""
    values: dict[int, list[float]] = {}
    for point in found.points:
        if accepted(point):
            values.setdefault(point.start, []).append(point.upper)
    ends = np.array([min(own) for own in values.values()])
    same = np.abs(ends - best.upper) <= SAME * (1 + abs(best.upper))
    text = f"{int(same.sum())} of {len(ends)} starts that arrived agree on F = {best.upper:.6g}"
    others: list[float] = []
    for value in np.sort(ends[~same & (ends > best.upper)]):
        if not others or value - others[-1] > SAME * (1 + abs(value)):
            others.append(float(value))
    if not others:
        return f"{text}."
    shown = ", ".join(f"{value:.6g}" for value in others[:LISTED])
    more = f" and {len(others) - LISTED} more" if len(others) > LISTED else ""
    return f"{text}; other local optima: F = {shown}{more}."
