"""The small route: multi-start SQP, every point validated by the lower level solved from many starts.

From each start the lower level is solved first; from there F is minimised over the relaxed KKT system of the lower
level. A KKT point need not be a minimum: whenever the validation finds a better branch of lower-level solutions, its
value becomes a cut f <= v_j(x), and the search goes on from the start, from the point, and from the better branch. A
second search, against the value function alone, needs no multipliers. The best validated point wins.
"""

import functools
from collections.abc import Callable

import numpy as np

from hierax._auto.agreement import chance_of_more, optima
from hierax._auto.candidates import Candidate, SearchResult, Way, judge, select, shown
from hierax._auto.constants import (
    ACCEPTED_VIOLATION,
    AGREEING_STARTS,
    BEYOND_REPAIR,
    CUT_GAP,
    CUTS_IN_A_ROW,
    DESCENT_STARTS,
    DOUBTFUL_STARTS,
    KKT_STARTS,
    LAST_RELAXATIONS,
    LIKELY_NEW,
    LINE_ROUNDS,
    LINES_AFTER,
    NO_CURVATURE,
    POLISHES_PER_START,
    RELAXATIONS,
    SAME_END,
    SHARPER,
    SIDE_STEP,
    TIGHT,
    VALUE_STARTS_AT_LEAST,
    VALUE_STARTS_AT_MOST,
    VALUE_STARTS_FLAT,
)
from hierax._auto.contradiction import proof_of_contradiction
from hierax._auto.implicit import ImplicitDescent
from hierax._auto.phase_one import feasible_points
from hierax._auto.polish import Cuts, kkt_polish, value_polish
from hierax._auto.replay import Result
from hierax._auto.space import Space
from hierax._engine.scanning import lowest_on_lines, scan_points
from hierax._engine.vectors import Point, VectorProblem
from hierax._math.lower_level import INFEASIBLE, SOLVED, UNBOUNDED
from hierax._run.progress import Show


class SmallSearch:
    """One search: its problem, its clock, and the candidates so far."""

    def __init__(self, space: Space) -> None:
        self.space, self.vectors, self.deadline = space, space.vectors, space.deadline
        self.candidates: list[Candidate] = []
        self.tried = 0  # starts that were run to an end
        self.descended: list[int] = []  # starts of descents

    def run(self, show: Show) -> SearchResult:
        """Search from every start, against the value function from a few, then once more from the best point."""
        pairs = self._piece("first solves", self._first_solves)
        firsts, statuses = [first for first, _ in pairs], np.array([status for _, status in pairs])
        if SOLVED not in statuses and UNBOUNDED in statuses:
            return SearchResult(self.candidates, statuses)
        if SOLVED not in statuses:
            contradiction = proof_of_contradiction(self.space, self.candidates)
            if contradiction is not None:
                return SearchResult(self.candidates, statuses, contradiction)
            firsts, statuses = self._piece(
                "feasible points", functools.partial(self._from_feasible_points, firsts, statuses)
            )
            if not firsts:
                return SearchResult(self.candidates, statuses)
        elif self.vectors.bent is None and self.vectors.programs.lanes == 1:
            self._descend(firsts, statuses)
        for number, first in enumerate(firsts):
            if number == DOUBTFUL_STARTS:
                contradiction = proof_of_contradiction(self.space, self.candidates)
                if contradiction is not None or self._piece("contradiction", self._no_point_satisfies_all):
                    return SearchResult(self.candidates, statuses, contradiction)
            if self.deadline.passed or self._all_agree(number):
                break
            if number == LINES_AFTER and len(optima(self.candidates)) > 1:
                self._piece("along lines, early", self._look_along_lines)
            self._piece(f"start {number}", functools.partial(self._search_kkt_points, first, number))
            self.tried = number + 1
            show(self.tried, shown(self.candidates, self.vectors.units.upper))
        for number in self._starts_for_values(np.flatnonzero(statuses == SOLVED).tolist()):
            if not self.deadline.passed:
                below = functools.partial(self._search_below_values, firsts[number], number)
                self._piece(f"values from start {number}", below)
        self._piece("along lines", self._look_along_lines)
        self._piece("aside", self._look_aside)
        self._start_further(show)
        self._piece("last digits", self._refine)
        return SearchResult(self.candidates, statuses)

    def _piece(self, name: str, work: Callable[[], Result]) -> Result:
        return self.space.pieces.do(name, self.space, self.candidates, work)

    def _no_point_satisfies_all(self) -> bool:
        """Whether nothing was accepted so far, and the constraints of both levels exclude each other."""
        if any(candidate.accepted for candidate in self.candidates) or self.deadline.passed:
            return False
        points, least = feasible_points(self.space)
        return not points and BEYOND_REPAIR < least < np.inf and not self.deadline.passed

    def _descend(self, firsts: list[Point], statuses: np.ndarray) -> None:
        """Descents on F(x, y*(x)) from the first starts: cheaper than a search for KKT points but for tiny problems."""
        for number in np.flatnonzero(statuses == SOLVED)[:DESCENT_STARTS].tolist():
            if self.deadline.passed or self.vectors.follower is None:
                return
            work = functools.partial(self._descent, firsts[number], number)
            if not self._piece(f"descent from start {number}", work):
                return
            self.descended.append(number)

    def _descent(self, first: Point, number: int) -> bool:
        """One descent; whether it led anywhere."""
        ended = ImplicitDescent(self.space, first).run()
        if ended is not None:
            self._add(ended, number, "kkt")
        return ended is not None

    def _all_agree(self, starts: int) -> bool:
        """Whether enough starts have all ended at one optimum, of a problem whose lower level looks convex."""
        if self.vectors.bent is not None:
            return False
        enough = starts >= AGREEING_STARTS
        if not enough and not (starts >= KKT_STARTS and len(self.descended) >= DESCENT_STARTS):
            return False
        found = optima(self.candidates)
        return len(found) == 1 and {*range(starts), *self.descended} <= {end.start for end in found[0]}

    def _first_solves(self) -> list[tuple[Point, int]]:
        """The lower level at every start, as far as the time allows: at least at the given one."""
        pairs = [solved_below(self.vectors, self.space.xs[0], self.space.ys[0])]
        self._add(pairs[0][0], 0, "kkt")  # so that there is an answer, however little time is left
        for x, y in zip(self.space.xs[1:], self.space.ys[1:], strict=True):
            if self.deadline.passed:
                break
            pairs.append(solved_below(self.vectors, x, y))
        return pairs

    def _from_feasible_points(self, firsts: list[Point], statuses: np.ndarray) -> tuple[list[Point], np.ndarray]:
        """No start has a lower-level solution: where some x has a feasible y at all, start there; else nowhere."""
        points, least = feasible_points(self.space)
        if not points and np.isfinite(least) and not self.deadline.passed:
            return [], np.full(len(statuses), INFEASIBLE)
        pairs = [solved_below(self.vectors, x, y) for x, y in points]
        more = [first for first, _ in pairs]
        return [*more, *firsts], np.array([*(status for _, status in pairs), *statuses])

    def _add(self, point: Point, start: int, way: Way) -> Candidate:
        known = next((one for one in self.candidates if one.point is point), None)  # where another start ended too
        candidate = judge(self.vectors, point, start, way) if known is None else known._replace(start=start, way=way)
        self.candidates.append(candidate)
        self.space.seen(candidate)
        return candidate

    def go_down_from(self, point: Point, number: int) -> None:
        """Descents from a point that is better than the best so far."""
        self._add(point, number, "kkt")
        if self.vectors.bent is None and not self.deadline.passed:
            found = ImplicitDescent(self.space, point, to_rounding=True).run()
            if (found is not None and self._add(found, number, "kkt").tight) or self.vectors.programs.large:
                return
        self._search_kkt_points(point, number, LAST_RELAXATIONS)
        if not self.deadline.passed:
            self._search_below_values(point, number)

    # -- from one start -----------------------------------------------------------------------------------------------

    def _search_kkt_points(self, first: Point, number: int, relaxations: tuple[float, ...] = RELAXATIONS) -> None:
        """Polish, and again with a cut for every better branch found."""
        waiting: list[tuple[Point, Cuts]] = [(first, Cuts.none(self.space))]
        polishes = 0
        while waiting and polishes < POLISHES_PER_START and not self.deadline.passed:
            start, cuts = waiting.pop(0)
            found = self._add(kkt_polish(self.space, start, cuts, relaxations), number, "kkt")
            polishes += 1
            if TIGHT < found.gap < np.inf and found.on_best_branch:  # t was too large for the units of f
                sharper = (relaxations[-1] * SHARPER * TIGHT / found.gap,)
                found = self._add(kkt_polish(self.space, found.point, cuts, sharper), number, "kkt")
                polishes += 1
            if _needs_a_cut(found) and len(cuts.y) < CUTS_IN_A_ROW:
                more = cuts.and_also(found.better)
                waiting += [(place, more) for place in (first, found.point, found.better)]

    def _search_below_values(self, first: Point, number: int) -> None:
        """Minimise against the value function; where the validation finds a better branch, again with it."""
        best = select(self.candidates)
        beat = np.inf if best is None or not best.tight else best.upper
        cuts = Cuts.none(self.space).and_also(first)
        found = self._add(value_polish(self.space, first, cuts, beat), number, "value")
        if not found.accepted and ACCEPTED_VIOLATION < found.violation <= BEYOND_REPAIR and found.upper < beat:
            again = cuts.and_also(found.better) if np.isfinite(found.gap) else cuts  # it ended a little outside
            found = self._add(value_polish(self.space, found.point, again, beat), number, "value")
        if not CUT_GAP < found.gap < np.inf or found.upper > beat:
            return
        cuts = cuts.and_also(found.better)
        for place in (found.point, found.better):
            if not self.deadline.passed and not self.candidates[-1].accepted:
                self._add(value_polish(self.space, place, cuts, beat), number, "value")

    # -- after all starts ---------------------------------------------------------------------------------------------

    def _starts_for_values(self, solved: list[int]) -> list[int]:
        """Starts for the value function, of those with a lower-level solution.

        First that of the best point, then those that ended nowhere, then the others.
        """
        best = select(self.candidates)
        arrived = {c.start for c in self.candidates if c.accepted}
        solved = [number for number in solved if number < self.tried]
        order = sorted(solved, key=lambda number: (best is None or number != best.start, number in arrived))
        if len(arrived) < self.tried:
            return order[:VALUE_STARTS_AT_MOST]
        if best is not None and _flat_below(self.vectors, best.point):
            return order[:VALUE_STARTS_FLAT]
        return [] if self._kkt_points_are_enough() else order[:VALUE_STARTS_AT_LEAST]

    def _kkt_points_are_enough(self) -> bool:
        """Whether the lower level looks convex, so that every KKT point of it is a solution."""
        branches = max(candidate.branches for candidate in self.candidates)
        return self.vectors.bent is None and branches == 1 and all(c.confirmed for c in self.candidates if c.accepted)

    def _start_further(self, show: Show) -> None:
        """Further starts, as long as one of them may well end somewhere new."""
        for number, (x, y) in enumerate(self.space.further, len(self.space.xs)):
            if self.deadline.passed or chance_of_more(optima(self.candidates)) <= LIKELY_NEW:
                return
            self._piece(f"start {number}", functools.partial(self._search_from, x, y, number))
            show(number + 1, shown(self.candidates, self.vectors.units.upper))

    def _search_from(self, x: np.ndarray, y: np.ndarray, number: int) -> None:
        """A further start."""
        first, status = solved_below(self.vectors, x, y)
        if status == SOLVED:
            self._search_kkt_points(first, number)

    def _look_along_lines(self) -> None:
        """Look at F(x, y*(x)) along every entry of x, and go down from where it is lower than at the best point."""
        if not scan_points(self.vectors.layout.nx) or self._all_agree(self.tried):
            return
        for _ in range(LINE_ROUNDS):
            best = select(self.candidates)
            lower = None if best is None else self._lower_along_lines(best)
            if best is None or lower is None or self.deadline.passed:
                return
            self.go_down_from(lower, best.start)

    def _lower_along_lines(self, best: Candidate) -> Point | None:
        """The best feasible point after every entry of x was set to the best of a grid; None: the point itself."""
        lowest, found = best.upper - SAME_END * (1 + abs(best.upper)), None

        def value(x: np.ndarray) -> float:
            nonlocal lowest, found
            if self.deadline.passed:
                return np.inf
            branches = self.vectors.branches(x, best.point.y, best.point.mu)
            chosen = branches.best()
            if chosen is None:
                return np.inf
            point = Point(x, branches.y[chosen], branches.mu[chosen])
            values = self.vectors.values(*point)
            if not self.vectors.violation(point.x, point.y, values) <= ACCEPTED_VIOLATION:
                return np.inf
            if values.upper < lowest:
                lowest, found = float(values.upper), point
            return float(values.upper)

        xs, limits = self.space.xs, self.vectors.x_limits
        low = np.where(np.isfinite(limits.low), limits.low, np.min(xs, axis=0))
        high = np.where(np.isfinite(limits.high), limits.high, np.max(xs, axis=0))
        lowest_on_lines(value, best.point.x, low, high)
        return found

    def _look_aside(self) -> None:
        """Look at both sides of the best point, where F may have an inflection, and go on from where it is lower."""
        best = select(self.candidates)
        if best is None:
            return
        signs = np.random.default_rng(0).choice([-1.0, 1.0], self.vectors.layout.nx)
        for side in (SIDE_STEP, -SIDE_STEP):
            x = np.clip(best.point.x + side * signs, *self.vectors.x_limits)
            first, status = solved_below(self.vectors, x, best.point.y)
            if status != SOLVED or self.deadline.passed:
                continue
            values, _ = self.vectors.at(*first)
            feasible = self.vectors.violation(first.x, first.y, values) <= ACCEPTED_VIOLATION
            if values.upper < best.upper and feasible:
                self._search_below_values(first, best.start)

    def _refine(self) -> None:
        """Once more from the best point, to the last digits."""
        best = select(self.candidates)
        if best is None or self.deadline.passed:
            return
        self._search_kkt_points(best.point, best.start, LAST_RELAXATIONS)
        if best.way == "value" or not best.tight:
            self._search_below_values(best.point, best.start)


def solved_below(vectors: VectorProblem, x: np.ndarray, y: np.ndarray) -> tuple[Point, int]:
    """The lower level solved at x, and how that ended; where there is no solution, (x, y) itself."""
    found = vectors.branches(x, y)
    best = found.best()
    if best is None:
        status = INFEASIBLE if (found.status == INFEASIBLE).all() else int(np.max(found.status))
        return Point(x, y, np.zeros(vectors.layout.rows)), status
    return Point(x, found.y[best], found.mu[best]), UNBOUNDED if found.unbounded else SOLVED


def _needs_a_cut(candidate: Candidate) -> bool:
    """Whether another branch is better: by a little, a point that owes its F to this counts for nothing."""
    least = CUT_GAP if candidate.on_best_branch else TIGHT
    return least < candidate.gap < np.inf


def _flat_below(vectors: VectorProblem, point: Point) -> bool:
    """Whether the lower level has no curvature in some direction: its solutions may jump, and then F does."""
    _, slopes = vectors.at(*point)
    hessian = slopes.stationarity[:, vectors.layout.nx :]
    finite = np.isfinite(hessian).all()
    sizes = np.abs(np.linalg.eigvalsh(0.5 * (hessian + hessian.T))) if finite else np.zeros(1)
    return bool(np.min(sizes) <= NO_CURVATURE * np.max(sizes))
