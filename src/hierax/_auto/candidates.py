"""Candidates of the small and the penalty route: points, in units, judged by the lower level solved from many starts.

Here is how a point is judged, which candidates may be returned, and which of them is.
"""

from typing import Literal, NamedTuple

import numpy as np

from hierax._auto.constants import (
    ACCEPTED_GAP,
    ACCEPTED_VIOLATION,
    NEARLY_AS_LOW,
    NO_GAP,
    OWED_TO_GAP,
    SAME_PLACE,
    TIGHT,
    TIGHT_RESIDUAL,
)
from hierax._engine.branches import FEASIBLE
from hierax._engine.units import Scale
from hierax._engine.vectors import Point, VectorProblem, kkt_residual
from hierax._judge.point import Judgement, relative_gap
from hierax._math.lower_level import SOLVED

Way = Literal["kkt", "value", "penalty"]


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
        way: how it was found: by a KKT polish, a value polish, or the penalty route.
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
        return self.violation <= ACCEPTED_VIOLATION and self.gap <= (ACCEPTED_GAP if self.on_best_branch else TIGHT)

    @property
    def on_best_branch(self) -> bool:
        """Whether the lower level's best solution is right beside the point."""
        return bool(np.max(np.abs(self.better.y - self.point.y), initial=0.0) <= SAME_PLACE)

    @property
    def tight(self) -> bool:
        """Whether nothing of its F is owed to a tolerance: a gap of e moves y by the square root of e."""
        return max(self.violation, self.gap) <= TIGHT and self.residual <= TIGHT_RESIDUAL


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
    found = vectors.branches(point.x, point.y)
    best = found.best()
    upper, lower = float(values.upper), float(values.lower)
    violation = vectors.violation(point.x, point.y, values)
    judged = Judgement(upper, lower, violation, vectors.upper_violation(values), np.inf)
    if best is None or not np.isfinite(upper) or found.unbounded:
        return Candidate(point, judged, point, np.inf, False, 0, start, way)
    if found.status[0] == SOLVED and found.value[0] <= found.value[best] + NO_GAP:
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
    there = [c for c in tight if np.max(np.abs(c.point.x - best.point.x), initial=0.0) <= SAME_PLACE]
    with_multipliers = [c for c in there if c.way == "kkt" and _as_low_as(best, c, NEARLY_AS_LOW)]
    if with_multipliers:
        return min(with_multipliers, key=lambda c: c.upper)
    return min((c for c in there if _as_low_as(best, c, OWED_TO_GAP)), key=lambda c: max(c.violation, c.gap))


def _as_low_as(best: Candidate, other: Candidate, tolerance: float) -> bool:
    return other.upper <= best.upper + tolerance * (1 + abs(best.upper))
