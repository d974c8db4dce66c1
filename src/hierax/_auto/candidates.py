"""Candidates of the small and the penalty route: points, in units, judged by the lower level solved from many starts.

Here is how a point is judged, which candidates may be returned, which of them is, and which are the same optimum. F
alone does not tell the latter: its unit is what it changes over the whole of X, and local optima of a function with
small valleys differ by far less. So ends are the same where F is equal to rounding, or where F and x are close.
"""

from typing import Literal, NamedTuple

import numpy as np

from hierax._auto.constants import AGREE, CLOSE, NEARLY_AS_LOW, NEGLIGIBLE, ROUNDING, SAME_PLACE, TIGHT
from hierax._engine.programs import FEASIBLE, Branches
from hierax._engine.traced import Scale
from hierax._engine.vectors import Point, VectorProblem, kkt_residual
from hierax._judge.point import Judgement, relative_gap
from hierax._lower.linear import OutOfTime
from hierax._math.lower_level import SOLVED

Way = Literal["kkt", "value"]


class Candidate(NamedTuple):
    """A point and what is known of it.

    Attributes:
        point: the point.
        judged: F, violation, and the gap to the best lower-level solution found (infinite where there is none).
        better: that solution at the point's x.
        residual: KKT residual of the point's own y with that solution's multipliers.
        confirmed: whether its value is that of a KKT point.
        branches: how many different values the lower level's local solutions at its x have.
        start: number of the start it came from.
        way: how it was found: with multipliers (a KKT polish, a descent), or by a value polish.
    """

    point: Point
    judged: Judgement
    better: Point
    residual: float
    confirmed: bool
    branches: int
    start: int
    way: Way

    @property
    def upper(self) -> float:
        """F(x, y) of the candidate."""
        return float(self.judged.upper)

    @property
    def violation(self) -> float:
        """The largest violation."""
        return float(self.judged.violation)

    @property
    def gap(self) -> float:
        """(f - v) / (1 + |v|)."""
        return float(self.judged.gap)

    @property
    def accepted(self) -> bool:
        """Whether it may be returned as an answer: where another branch is better, however little, it may not."""
        return self.violation <= CLOSE and self.gap <= (NEGLIGIBLE if self.on_best_branch else TIGHT)

    @property
    def on_best_branch(self) -> bool:
        """Whether the lower level's best solution is right beside the point."""
        return bool(np.max(np.abs(self.better.y - self.point.y), initial=0.0) <= SAME_PLACE)

    @property
    def tight(self) -> bool:
        """Whether nothing of its F is owed to a tolerance: a gap of e moves y by the square root of e."""
        return max(self.violation, self.gap) <= TIGHT and self.residual <= NEGLIGIBLE


class SearchResult(NamedTuple):
    """What a search found.

    Attributes:
        candidates: in the order of the search.
        lower_statuses: how the lower level ended at the starts.
        contradiction: why no point satisfies the constraints, in words, where that is proved.
    """

    candidates: list[Candidate]
    lower_statuses: np.ndarray
    contradiction: str | None = None


def judge(vectors: VectorProblem, point: Point, start: int, way: Way) -> Candidate:
    """Solve the lower level at the point's x from many starts, its y among them."""
    values = vectors.values(*point)
    try:
        found = vectors.branches(point.x, point.y)
    except OutOfTime:
        found = Branches.none(point.y.size, point.mu.size, point.x.size)
    best = found.best()
    upper, lower = float(values.upper), float(values.lower)
    violation = vectors.violation(point.x, point.y, values)
    judged = Judgement(upper, lower, violation, vectors.upper_violation(values), np.inf)
    if best is None or not np.isfinite(upper) or found.unbounded:
        return Candidate(point, judged, point, np.inf, False, 0, start, way)
    if found.status[0] == SOLVED and found.value[0] <= found.value[best] + ROUNDING:
        best = 0  # that which was reached from y: where it is as good as the best, F chose it
    value = float(found.value[best])
    confirmed = bool(found.status[best] == SOLVED)
    if violation <= FEASIBLE and lower < value:  # the point itself is the best that is known
        confirmed &= -relative_gap(lower, value) <= FEASIBLE
        value = lower
    better = Point(point.x, found.y[best], found.mu[best])
    judged = judged._replace(gap=relative_gap(lower, value))
    residual = kkt_residual(vectors.values(point.x, point.y, better.mu), better.mu, vectors.layout)
    return Candidate(point, judged, better, residual, confirmed, found.different_values(), start, way)


def shown(candidates: list[Candidate], scale: Scale) -> dict[str, float] | None:
    """The best candidate so far, for the progress bar; `scale`: that of F."""
    best = min((c for c in candidates if c.accepted), key=lambda c: c.upper, default=None)
    if best is None:
        return None
    upper = float(best.upper * scale.unit + scale.origin)
    return {"upper": upper, "violation": best.violation, "gap": best.gap}


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
    tight = [c for c in accepted if c.tight and _as_low_as(lowest, c, NEARLY_AS_LOW)]
    if not tight:
        return lowest
    best = min(tight, key=lambda c: c.upper)
    there = [c for c in tight if _near(c, best)]
    with_multipliers = [c for c in there if c.way == "kkt" and _as_low_as(best, c, NEARLY_AS_LOW)]
    if with_multipliers:
        return min(with_multipliers, key=lambda c: c.upper)
    return min((c for c in there if _as_low_as(best, c, AGREE)), key=lambda c: max(c.violation, c.gap))


def _as_low_as(best: Candidate, other: Candidate, tolerance: float) -> bool:
    return other.upper <= best.upper + tolerance * (1 + abs(best.upper))


# -- optima ------------------------------------------------------------------------------------------------------------

Optimum = list[Candidate]
"""The ends of those starts that arrived at it, the lowest first."""


def optima(candidates: list[Candidate]) -> list[Optimum]:
    """The ends of all starts with an accepted point, grouped, those with the lowest F first."""
    found: list[Optimum] = []
    for end in sorted(_ends(candidates).values(), key=lambda candidate: candidate.upper):
        for optimum in found:
            if any(_same(end, other) for other in optimum):
                optimum.append(end)
                break
        else:
            found.append([end])
    return found


def chance_of_more(found: list[Optimum]) -> float:
    """The chance that another start ends at an optimum that none has met, by Good and Turing.

    It is about the share of starts whose optimum no other start has met. Where ends differ in F, an optimum is a place:
    functions with symmetries have several with the same F, and the best of all may be the one not met yet. (Ends along
    a valley of equal F are then places of their own: rather too doubtful than too sure.)
    """
    ends = sum(map(len, found))
    met = [len(place) for optimum in found for place in _places(optimum)] if len(found) > 1 else [ends]
    return met.count(1) / ends if ends else 1.0


def most_left(found: list[Optimum]) -> float:
    """The chance that another start ends somewhere new, at most, with 95 % confidence, where every place was met again.

    Such a place has not been met by n starts, which a chance above 1 - 0.05^(1/n) would make unlikely: that three
    starts agree says little.
    """
    return float(1 - 0.05 ** (1 / sum(map(len, found))))


def _places(optimum: Optimum) -> list[Optimum]:
    """The ends at one optimum by where they are."""
    places: list[Optimum] = []
    for end in optimum:
        for place in places:
            if _near(end, place[0]):
                place.append(end)
                break
        else:
            places.append([end])
    return places


def _ends(candidates: list[Candidate]) -> dict[int, Candidate]:
    """The accepted point with the lowest F of every start."""
    ends: dict[int, Candidate] = {}
    for candidate in candidates:
        if candidate.accepted and (candidate.start not in ends or candidate.upper < ends[candidate.start].upper):
            ends[candidate.start] = candidate
    return ends


def _same(one: Candidate, other: Candidate) -> bool:
    apart, size = abs(one.upper - other.upper), 1 + abs(one.upper)
    return apart <= (AGREE if _near(one, other) else TIGHT) * size


def _near(one: Candidate, other: Candidate) -> bool:
    return bool(np.max(np.abs(one.point.x - other.point.x), initial=0.0) <= SAME_PLACE)
