"""The searches of the small and the penalty route, and the two routes as lists of them.

From each start the lower level is solved first. Descents on F(x, y*(x)) follow where it looks convex. Searches for KKT
points minimise F over the relaxed KKT system of the lower level; a KKT point need not be a minimum: whenever the
validation finds a better branch of lower-level solutions, its value becomes a cut f <= v_j(x), and the search goes on
from the start, from the point, and from the better branch. Searches against the value function alone need no
multipliers. The best validated point wins.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hierax._auto.candidates import Candidate, Way, chance_of_more, judge, optima, select
from hierax._auto.constants import (
    AGREEING_DESCENTS,
    AGREEING_STARTS,
    CLOSE,
    DENSE_SIZE,
    FURTHER_EVALUATIONS,
    FURTHER_SHARE,
    LIKELY_NEW,
    MOST_CUTS,
    MUCH_LESS,
    NEARBY,
    NEGLIGIBLE,
    RELAXATIONS,
    ROUNDING,
    TIGHT,
    TURNS,
    VIOLATED,
)
from hierax._auto.feasibility import contradiction, feasible_points
from hierax._auto.implicit import ImplicitDescent, central_descent, solved_below
from hierax._auto.penalty import penalised
from hierax._auto.polish import Cuts, kkt_polish, value_polish
from hierax._auto.session import Keeper, Mark, Result, Session
from hierax._auto.space import Passed, Space
from hierax._engine.programs import unraveled
from hierax._engine.vectors import Point, Total, VectorProblem, lowest_on_lines, scan_points
from hierax._judge.point import Judgement
from hierax._math.lower_level import INACCURATE, INFEASIBLE, SOLVED, UNBOUNDED
from hierax._run.progress import Show

LAST_RELAXATIONS = tuple(MUCH_LESS * t for t in RELAXATIONS)  # of polishes from the best point


class NoRoute(Exception):
    """Why a route has no answer."""


class PieceRecord(NamedTuple):
    """What a piece left behind.

    Attributes:
        result: what it returned.
        candidates: what it added to them.
        passed: where its polishes went.
        records: what it reported, and
        marks: of these, for the session.
        evaluations: of the session, afterwards.
        nonconvex_reason: why the lower level is not convex, as far as was known afterwards.
        convex_program: which of two programs solves the lower level; None: neither was needed yet.
    """

    result: Any
    candidates: list[Candidate]
    passed: list[Passed]
    records: list[dict[str, float]]
    marks: list[Mark]
    evaluations: int
    nonconvex_reason: str | None
    convex_program: bool | None


class Hunt(Keeper):
    """What the searches of a call share: the problem, the session, and what was found so far.

    Attributes:
        firsts: the lower level solved at every start so far, and
        statuses: how that ended.
        candidates: in the order of the search.
        descended: starts of descents that led anywhere.
        tried: starts of searches for KKT points.
        at_kinks: whether a descent has ended at a kink, or led nowhere.
        contradiction: why no point satisfies the constraints, where that is proved.
        over: whether no further search makes sense.
    """

    def __init__(self, space: Space, session: Session, show: Show = lambda done, record: None) -> None:
        super().__init__(PieceRecord, Candidate, Point, Judgement, Passed)
        self.space, self.vectors, self.session, self.work = space, space.vectors, session, session.work
        self._show = show
        self.firsts: list[Point] = []
        self.statuses: list[int] = []
        self.candidates: list[Candidate] = []
        self.descended: list[int] = []
        self.tried = 0
        self.at_kinks = self.over = False
        self.contradiction: str | None = None
        self._begun = 0, 0, 0  # candidates, marks and polishes before the present piece

    def run(self, route: "Route") -> None:
        """Search after search, until one of them says that it is over, or the work has to end."""
        for when, search in route:
            if self.over or (self.candidates and self.work.passed):
                return
            if when(self):
                search(self)

    # -- candidates ---------------------------------------------------------------------------------------------------

    def add(self, point: Point, start: int, way: Way = "kkt") -> Candidate:
        """Judge a point, and report it."""
        self.work.evaluations += 1
        self.candidates.append(judge(self.vectors, point, start, way))
        judged = self.candidates[-1].judged
        self._report(point, start, float(judged.upper), float(judged.violation), float(judged.gap))
        return self.candidates[-1]

    def visited(self, start: int, total: Total, point: Point) -> None:
        """Report a point on the way of a long descent."""
        self._report(point, start, total.upper, float(np.max(total.above, initial=0.0)), 0.0)

    def _report(self, point: Point, start: int, upper: float, violation: float, gap: float) -> None:
        record = {"start": start, "upper": self.in_users_units(upper), "violation": violation, "gap": gap}
        self.session.report(record, functools.partial(self.as_given, point))

    def in_users_units(self, upper: float) -> float:
        """F in the user's units."""
        scale = self.vectors.units.upper
        return float(upper * scale.unit + scale.origin)

    def as_given(self, point: Point) -> tuple[Any, Any]:
        """x and y of a point in the user's units and in the precision of the start, inside of X and Y."""
        prepared, vectors = self.session.prepared, self.vectors
        x, y = vectors.programs.landed(point.x * vectors.x_unit, point.y * vectors.y_unit)
        return self.session.as_given(unraveled(prepared.x, x), unraveled(prepared.y, y))

    def show(self, done: int) -> None:
        """Tell the progress bar how many starts are done, and the best candidate so far."""
        best = min((c for c in self.candidates if c.accepted), key=lambda c: c.upper, default=None)
        if best is None:
            self._show(done, None)
        else:
            upper = self.in_users_units(best.upper)
            self._show(done, {"upper": upper, "violation": best.violation, "gap": best.gap})

    @property
    def accepted(self) -> list[Candidate]:
        """Those that may be returned."""
        return [candidate for candidate in self.candidates if candidate.accepted]

    # -- pieces: what an earlier run of the same call has done is taken over ------------------------------------------

    def piece(self, name: str, search: Callable[..., Result], *args: Any) -> Result:
        """A piece of the search, `search(*args)`; it returns numbers, texts, arrays or points."""
        return self.session.piece(name, functools.partial(search, *args), self)

    def begin(self) -> None:
        """A piece begins: what solvers remember from one solve to the next is dropped."""
        self.vectors.forget()
        self._begun = len(self.candidates), len(self.session.marks), len(self.space.passed)

    def record(self, result: Any) -> PieceRecord:
        """What a piece has left behind."""
        candidates, marks, passed = self._begun
        added = self.candidates[candidates:], self.space.passed[passed:]
        told = self.session.records[marks:], self.session.marks[marks:]
        return PieceRecord(result, *added, *told, self.work.evaluations, *self.vectors.remembered())

    def restore(self, record: PieceRecord) -> Any:
        """Take over a piece."""
        self.candidates.extend(record.candidates)
        self.space.passed.extend(Passed((tuple(one.stage[0]), one.stage[1]), *one[1:]) for one in record.passed)
        for one, mark in zip(record.records, record.marks, strict=True):
            self.session.report(one, lambda: (None, None), again=True, mark=mark)
        self.work.evaluations = record.evaluations
        self.vectors.remember(record.nonconvex_reason, record.convex_program)
        return record.result


# -- when a search is made --------------------------------------------------------------------------------------------


def always(hunt: Hunt) -> bool:
    """Whatever was found."""
    return True


def looks_convex(hunt: Hunt) -> bool:
    """The lower level looks convex."""
    return hunt.vectors.bent is None


def not_convex(hunt: Hunt) -> bool:
    """The lower level is not convex."""
    return hunt.vectors.bent is not None


def nothing_solved(hunt: Hunt) -> bool:
    """No start has a solution of the lower level."""
    return SOLVED not in hunt.statuses


def no_feasible_y(hunt: Hunt) -> bool:
    """No start has a feasible y."""
    return set(hunt.statuses) == {INFEASIBLE}


def worth_descents(hunt: Hunt) -> bool:
    """The lower level looks convex, and its functions are not so cheap that polishes take less time."""
    return looks_convex(hunt) and SOLVED in hunt.statuses and hunt.vectors.programs.lanes == 1


def held_by_kinks(hunt: Hunt) -> bool:
    """Descents have ended at kinks, or apart; and the central path can be followed."""
    layout = hunt.vectors.layout
    if not hunt.firsts or layout.ny + layout.rows > DENSE_SIZE:
        return False
    ends = [candidate.upper if candidate.accepted else np.inf for candidate in hunt.candidates]
    return hunt.at_kinks or not (np.isfinite(ends).all() and np.ptp(ends) <= NEGLIGIBLE * (1 + abs(min(ends))))


def nowhere_yet(hunt: Hunt) -> bool:
    """No descent has led anywhere, although the lower level has solutions."""
    return not hunt.descended and not (hunt.statuses and nothing_solved(hunt))


# -- searches at and from all starts ----------------------------------------------------------------------------------


def first_solves(hunt: Hunt) -> None:
    """The lower level at every start, as far as the time allows: at least at the given one."""

    def solve() -> list[tuple[Point, int]]:
        pairs = [solved_below(hunt.vectors, hunt.space.xs[0], hunt.space.ys[0])]
        hunt.add(pairs[0][0], 0)  # so that there is an answer, however little time is left
        for x, y in zip(hunt.space.xs[1:], hunt.space.ys[1:], strict=True):
            if hunt.work.passed:
                break
            pairs.append(solved_below(hunt.vectors, x, y))
        return pairs

    pairs = hunt.piece("first solves", solve)
    hunt.firsts, hunt.statuses = [first for first, _ in pairs], [status for _, status in pairs]
    hunt.over = nothing_solved(hunt) and UNBOUNDED in hunt.statuses


def proof_of_contradiction(hunt: Hunt) -> None:
    """It is over where it is proved that no point satisfies the constraints of both levels."""

    def prove() -> str | None:
        found = None if hunt.accepted else contradiction(hunt.space, hunt.work)
        return None if found is None else found.text

    hunt.contradiction = hunt.piece("proof of contradiction", prove)
    if hunt.contradiction is not None:
        hunt.over = True
        if not hunt.candidates:
            hunt.add(Point(hunt.space.xs[0], hunt.space.ys[0], np.zeros(hunt.vectors.layout.rows)), 0)


def start_where_feasible(hunt: Hunt) -> None:
    """No start has a lower-level solution: where some x has a feasible y at all, start there; else it is over."""

    def look() -> tuple[list[Point], list[int]]:
        points, least = feasible_points(hunt.space, hunt.work)
        if not points and np.isfinite(least) and not hunt.work.passed:
            return [], [INFEASIBLE] * len(hunt.statuses)
        pairs = [solved_below(hunt.vectors, x, y) for x, y in points]
        return [first for first, _ in pairs] + hunt.firsts, [status for _, status in pairs] + hunt.statuses

    proof_of_contradiction(hunt)
    if not hunt.over:
        hunt.firsts, hunt.statuses = hunt.piece("feasible points", look)
        hunt.over = not hunt.firsts


def first_descents(hunt: Hunt) -> None:
    """Descents on F(x, y*(x)) from a few starts, as long as they lead anywhere."""
    for number in np.flatnonzero(np.array(hunt.statuses) == SOLVED)[: AGREEING_STARTS - 2].tolist():
        if hunt.work.passed or hunt.vectors.follower is None:
            return
        ended, _ = hunt.piece(f"descent {number}", descent, hunt, hunt.firsts[number], number)
        if not ended:
            return
        hunt.descended.append(number)


def descent(hunt: Hunt, first: Point, number: int) -> tuple[bool, bool]:
    """One descent: whether it led anywhere, and whether it ended at a kink."""
    visited = functools.partial(hunt.visited, number) if hunt.vectors.programs.large else None
    one = ImplicitDescent(hunt.space, hunt.work, first, visited=visited)
    ended = one.run()
    if ended is not None:
        hunt.add(ended, number)
    return ended is not None, one.at_kink


def descents_in_turn(hunt: Hunt) -> None:
    """Descents from one start after another, until several have ended at the lowest F, or their work is done."""
    _descents(hunt, list(zip(hunt.space.xs, hunt.space.ys, strict=True)), "descent")


def descents_where_feasible(hunt: Hunt) -> None:
    """No start has a feasible y: descents from where both levels have one; without a look nothing is claimed."""
    layout, least = hunt.vectors.layout, np.inf
    points: list[tuple[np.ndarray, np.ndarray]] = []
    if layout.nx + layout.ny <= DENSE_SIZE:
        points, least = hunt.piece("feasible points", feasible_points, hunt.space, hunt.work)
    if points:
        _descents(hunt, points, "feasible descent")
    elif not np.isfinite(least) or hunt.work.passed:
        hunt.statuses = [INACCURATE]


def _descents(hunt: Hunt, starts: list[tuple[np.ndarray, np.ndarray]], name: str) -> None:
    begun, most = hunt.work.evaluations, np.inf
    layout = hunt.vectors.layout
    least = FURTHER_EVALUATIONS if layout.ny + layout.rows <= DENSE_SIZE else 0
    for number, (x, y) in enumerate(starts):
        if number and (hunt.work.passed or _descents_agree(hunt) or hunt.work.evaluations > most):
            return
        first, status, ended, at_kink = hunt.piece(f"{name} {number}", _solved_and_descended, hunt, x, y, number)
        hunt.at_kinks |= at_kink or (status == SOLVED and not ended)
        hunt.descended += [number] if ended else []
        hunt.firsts.append(first)
        hunt.statuses.append(status)
        hunt.show(number + 1)
        if number == 0 and not hunt.accepted:
            proof_of_contradiction(hunt)
        if hunt.over:
            return
        if most == np.inf and hunt.accepted:
            took = hunt.work.evaluations - begun
            most = hunt.work.evaluations + max(least, FURTHER_SHARE * took)


def _solved_and_descended(hunt: Hunt, x: np.ndarray, y: np.ndarray, number: int) -> tuple[Point, int, bool, bool]:
    """From one start: its point below, how the lower level ended there, and what `descent` says."""
    first, status = solved_below(hunt.vectors, x, y)
    ended = at_kink = False
    if status == SOLVED and hunt.vectors.follower is not None:
        ended, at_kink = descent(hunt, first, number)
    if not ended and (status == SOLVED or not hunt.candidates):
        hunt.add(first, number)
    return first, status, ended, at_kink


def _descents_agree(hunt: Hunt) -> bool:
    """Whether enough descents have ended at the lowest F that was found."""
    lowest = min((candidate.upper for candidate in hunt.accepted), default=np.inf)
    low = lowest + NEGLIGIBLE * (1 + abs(lowest))
    return len({candidate.start for candidate in hunt.accepted if candidate.upper <= low}) >= AGREEING_DESCENTS


def descents_alone(hunt: Hunt) -> None:
    """Descents from one start after another; where none leads anywhere another route is needed."""
    if not_convex(hunt):
        raise NoRoute(f"the lower level is {hunt.vectors.bent}")
    descents_in_turn(hunt)
    unsolved = nothing_solved(hunt) and not {UNBOUNDED, INFEASIBLE} & set(hunt.statuses)
    if not hunt.accepted and hunt.contradiction is None and (unsolved or not hunt.descended) and not hunt.work.passed:
        raise NoRoute("the lower level at the start was not solved, or has no unique solution")


def central_descents(hunt: Hunt) -> None:
    """Descents along the central path, from one start after another as long as each finds a lower F."""

    def search(first: Point, number: int) -> float:
        ended = central_descent(hunt.space, hunt.work, first)
        found = None if ended is None else hunt.add(ended, number)
        return found.upper if found is not None and found.accepted else np.inf

    for number, first in enumerate(hunt.firsts):
        lowest = min((one.upper for one in hunt.accepted), default=np.inf)
        if hunt.work.passed or hunt.vectors.follower is None:
            return
        upper = hunt.piece(f"central {number}", search, first, number)
        if not upper < lowest - NEGLIGIBLE * (1 + abs(lowest)):
            return
        hunt.descended.append(number)


def kkt_searches(hunt: Hunt) -> None:
    """Searches for KKT points from every start, until enough of them agree."""
    for number, first in enumerate(hunt.firsts):
        if number == 1 and not hunt.accepted:
            proof_of_contradiction(hunt)
            if hunt.over or hunt.piece("contradiction", _no_point_satisfies_all, hunt):
                hunt.over = True
                return
        if hunt.work.passed or _starts_agree(hunt, number):
            return
        if number == TURNS and len(optima(hunt.candidates)) > 1:
            hunt.piece("along lines, early", _look_along_lines, hunt)
        hunt.piece(f"start {number}", search_kkt_points, hunt, first, number)
        hunt.tried = number + 1
        hunt.show(hunt.tried)


def _no_point_satisfies_all(hunt: Hunt) -> bool:
    """Whether the constraints of both levels exclude each other, as far as a search shows."""
    if hunt.work.passed:
        return False
    points, least = feasible_points(hunt.space, hunt.work)
    return not points and VIOLATED < least < np.inf and not hunt.work.passed


def _starts_agree(hunt: Hunt, starts: int) -> bool:
    """Whether enough starts have all ended at one optimum, of a problem whose lower level looks convex."""
    if not_convex(hunt) or starts < 2 or starts + len(hunt.descended) < AGREEING_STARTS:
        return False
    found = optima(hunt.candidates)
    return len(found) == 1 and {*range(starts), *hunt.descended} <= {end.start for end in found[0]}


def value_searches(hunt: Hunt) -> None:
    """Searches against the value function: from the best point's start, from those that ended nowhere, from others."""
    best, arrived = select(hunt.candidates), {c.start for c in hunt.accepted}
    solved = [number for number in range(hunt.tried) if hunt.statuses[number] == SOLVED]
    order = sorted(solved, key=lambda number: (best is None or number != best.start, number in arrived))
    doubtful = len(arrived) < hunt.tried or (best is not None and _flat_below(hunt.vectors, best.point))
    single = max(candidate.branches for candidate in hunt.candidates) == 1
    every_kkt_point_solves = looks_convex(hunt) and single and all(c.confirmed for c in hunt.accepted)
    for number in order[: TURNS if doubtful else 0 if every_kkt_point_solves else 1]:
        if not hunt.work.passed:
            hunt.piece(f"values from start {number}", search_below_values, hunt, hunt.firsts[number], number)


def _flat_below(vectors: VectorProblem, point: Point) -> bool:
    """Whether the lower level has no curvature in some direction: its solutions may jump, and then F does."""
    _, slopes = vectors.at(*point)
    hessian = slopes.stationarity[:, vectors.layout.nx :]
    finite = np.isfinite(hessian).all()
    sizes = np.abs(np.linalg.eigvalsh(0.5 * (hessian + hessian.T))) if finite else np.zeros(1)
    return bool(np.min(sizes) <= ROUNDING * np.max(sizes))


def along_lines(hunt: Hunt) -> None:
    """F(x, y*(x)) along every entry of x."""
    hunt.piece("along lines", _look_along_lines, hunt)


def _look_along_lines(hunt: Hunt) -> None:
    """Look at F(x, y*(x)) along every entry of x, and go down from where it is lower than at the best point."""
    if not scan_points(hunt.vectors.layout.nx) or _starts_agree(hunt, hunt.tried):
        return
    for _ in range(TURNS):
        best = select(hunt.candidates)
        lower = None if best is None else _lower_along_lines(hunt, best)
        if best is None or lower is None or hunt.work.passed:
            return
        go_down_from(hunt, lower, best.start)


def _lower_along_lines(hunt: Hunt, best: Candidate) -> Point | None:
    """The best feasible point after every entry of x was set to the best of a grid; None: the point itself."""
    lowest, found = best.upper - NEGLIGIBLE * (1 + abs(best.upper)), None
    vectors, xs = hunt.vectors, hunt.space.xs

    def value(x: np.ndarray) -> float:
        nonlocal lowest, found
        if hunt.work.passed:
            return np.inf
        hunt.work.evaluations += 1
        branches = vectors.branches(x, best.point.y, best.point.mu)
        chosen = branches.best()
        if chosen is None:
            return np.inf
        point = Point(x, branches.y[chosen], branches.mu[chosen])
        values = vectors.values(*point)
        if not vectors.violation(point.x, point.y, values) <= CLOSE:
            return np.inf
        if values.upper < lowest:
            lowest, found = float(values.upper), point
        return float(values.upper)

    low = np.where(np.isfinite(vectors.x_limits.low), vectors.x_limits.low, np.min(xs, axis=0))
    high = np.where(np.isfinite(vectors.x_limits.high), vectors.x_limits.high, np.max(xs, axis=0))
    lowest_on_lines(value, best.point.x, low, high)
    return found


def aside(hunt: Hunt) -> None:
    """Both sides of the best point, where F may have an inflection."""

    def look() -> None:
        best = select(hunt.candidates)
        if best is None:
            return
        signs = np.random.default_rng(0).choice([-1.0, 1.0], hunt.vectors.layout.nx)
        for side in (NEARBY, -NEARBY):
            x = np.clip(best.point.x + side * signs, *hunt.vectors.x_limits)
            first, status = solved_below(hunt.vectors, x, best.point.y)
            if status != SOLVED or hunt.work.passed:
                continue
            values = hunt.vectors.values(*first)
            if values.upper < best.upper and hunt.vectors.violation(first.x, first.y, values) <= CLOSE:
                search_below_values(hunt, first, best.start)

    hunt.piece("aside", look)


def further_starts(hunt: Hunt) -> None:
    """Further starts, as long as one of them may well end somewhere new."""

    def search(x: np.ndarray, y: np.ndarray, number: int) -> None:
        first, status = solved_below(hunt.vectors, x, y)
        if status == SOLVED:
            search_kkt_points(hunt, first, number)

    for number, (x, y) in enumerate(hunt.space.further, len(hunt.space.xs)):
        if hunt.work.passed or chance_of_more(optima(hunt.candidates)) <= LIKELY_NEW:
            return
        hunt.piece(f"start {number}", search, x, y, number)
        hunt.show(number + 1)


def penalised_descents(hunt: Hunt) -> None:
    """Descents with the value function as a penalty, until several have ended at the lowest F."""

    def search(x: np.ndarray, y: np.ndarray, number: int) -> None:
        for point in penalised(hunt.space, hunt.work, x, y):
            hunt.add(point, number)

    for number, (x, y) in enumerate(zip(hunt.space.xs, hunt.space.ys, strict=True)):
        if number and (hunt.work.passed or _descents_agree(hunt)):
            return
        hunt.piece(f"penalty {number}", search, x, y, number)
        hunt.descended.append(number)
        hunt.show(number + 1)


def polishes_instead(hunt: Hunt) -> None:
    """Both kinds of polishes from all starts; of problems that are too large for SLSQP, none."""
    if _dense(hunt):
        first_solves(hunt)
        kkt_searches(hunt)
        value_searches(hunt)
    elif not hunt.accepted:
        raise NoRoute("no descent led to a point that passes, and the KKT system is too large for SLSQP")


# -- searches from one point ------------------------------------------------------------------------------------------


def _dense(hunt: Hunt) -> bool:
    """Whether SLSQP takes the KKT system."""
    layout = hunt.vectors.layout
    return bool(layout.nx + layout.ny + hunt.space.structure.live.sum() <= DENSE_SIZE)


def go_down_from(hunt: Hunt, point: Point, number: int) -> None:
    """On from a point that is better than the best so far."""
    hunt.add(point, number)
    if looks_convex(hunt) and not hunt.work.passed:
        found = ImplicitDescent(hunt.space, hunt.work, point, to_rounding=True).run()
        if found is not None and hunt.add(found, number).tight:
            return
    if _dense(hunt):
        search_kkt_points(hunt, point, number, LAST_RELAXATIONS)
        if not hunt.work.passed:
            search_below_values(hunt, point, number)


def search_kkt_points(hunt: Hunt, first: Point, number: int, relaxations: tuple[float, ...] = RELAXATIONS) -> None:
    """Polish, and again with a cut for every better branch found."""
    waiting: list[tuple[Point, Cuts]] = [(first, Cuts.none(hunt.space))]
    polishes = 0
    while waiting and polishes < 2 * MOST_CUTS and not hunt.work.passed:
        start, cuts = waiting.pop(0)
        found = hunt.add(kkt_polish(hunt.space, hunt.work, start, cuts, relaxations), number)
        polishes += 1
        if TIGHT < found.gap < np.inf and found.on_best_branch:  # t was too large for the units of f
            sharper = (relaxations[-1] * MUCH_LESS * TIGHT / found.gap,)
            found = hunt.add(kkt_polish(hunt.space, hunt.work, found.point, cuts, sharper), number)
            polishes += 1
        # Where another branch is better by a little, a point that owes its F to this counts for nothing.
        least = NEGLIGIBLE if found.on_best_branch else TIGHT
        if least < found.gap < np.inf and len(cuts.y) < MOST_CUTS:
            more = cuts.and_also(found.better)
            waiting += [(place, more) for place in (first, found.point, found.better)]


def search_below_values(hunt: Hunt, first: Point, number: int) -> None:
    """Minimise against the value function; where the validation finds a better branch, again with it."""
    best = select(hunt.candidates)
    beat = np.inf if best is None or not best.tight else best.upper

    def polished(place: Point, cuts: Cuts) -> Candidate:
        return hunt.add(value_polish(hunt.space, hunt.work, place, cuts, beat), number, "value")

    cuts = Cuts.none(hunt.space).and_also(first)
    found = polished(first, cuts)
    if not found.accepted and CLOSE < found.violation <= VIOLATED and found.upper < beat:  # it ended a little outside
        found = polished(found.point, cuts.and_also(found.better) if np.isfinite(found.gap) else cuts)
    if not NEGLIGIBLE < found.gap < np.inf or found.upper > beat:
        return
    cuts = cuts.and_also(found.better)
    for place in (found.point, found.better):
        if not hunt.work.passed and not hunt.candidates[-1].accepted:
            polished(place, cuts)


# -- the routes -------------------------------------------------------------------------------------------------------

Route = tuple[tuple[Callable[[Hunt], bool], Callable[[Hunt], None]], ...]
"""When, and which search, in their order."""

ROUTES: dict[str, Route] = {
    "small": (
        (always, first_solves),
        (nothing_solved, start_where_feasible),
        (worth_descents, first_descents),
        (always, kkt_searches),
        (always, value_searches),
        (always, along_lines),
        (always, aside),
        (always, further_starts),
    ),
    "penalty": (
        (looks_convex, descents_in_turn),
        (not_convex, proof_of_contradiction),
        (not_convex, penalised_descents),
        (no_feasible_y, descents_where_feasible),
        (held_by_kinks, central_descents),
        (nowhere_yet, polishes_instead),
    ),
    "implicit": ((always, descents_alone),),
}
