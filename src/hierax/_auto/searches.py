"""The searches of the small, the penalty and the implicit route, and these routes as lists of them.

From each start the lower level is solved first. Descents on F(x, y*(x)) follow where it looks convex. Searches for KKT
points minimise F over the relaxed KKT system of the lower level; a KKT point need not be a minimum: whenever the
validation finds a better branch of lower-level solutions, its value becomes a cut f <= v_j(x), and the search goes on
from the start, from the point, and from the better branch. Searches against the value function alone need no
multipliers. The best validated point wins.
"""

import contextlib
import functools
from collections.abc import Callable

import numpy as np

from hierax._auto import constants as const
from hierax._auto.descents import Cuts, central_descent, descent, kkt_polish, solved_below, value_polish
from hierax._auto.feasibility import contradiction, feasible_points
from hierax._auto.hunt import Candidate, Hunt, optima, select, times_met
from hierax._base.constants import LITTLE
from hierax._engine.float64_problem import FEW
from hierax._engine.programs import FEASIBLE
from hierax._engine.vectors import Point, VectorProblem, lowest_on_lines, scan_points
from hierax._lower.linear import OutOfTime
from hierax._math.lower_level import INACCURATE, INFEASIBLE, SOLVED, UNBOUNDED
from hierax._math.scatter import chance_of_more

LAST_RELAXATIONS = tuple(LITTLE * t for t in const.RELAXATIONS)  # of polishes from the best point


class NoRoute(Exception):
    """Why a route has no answer."""


# -- when a search is made --------------------------------------------------------------------------------------------


def always(hunt: Hunt) -> bool:
    """Whatever was found."""
    return True


def looks_convex(hunt: Hunt) -> bool:
    """The lower level looks convex."""
    return hunt.vectors.bent is None


def nothing_solved(hunt: Hunt) -> bool:
    """No start has a solution of the lower level."""
    return bool(hunt.statuses) and SOLVED not in hunt.statuses


def no_feasible_y(hunt: Hunt) -> bool:
    """No start has a feasible y."""
    return set(hunt.statuses) == {INFEASIBLE}


def ended_apart(hunt: Hunt) -> bool:
    """At most half of the descents have ended at the lowest F, or few; and the central path can be followed."""
    alike, ends = len(_lowest_starts(hunt)), len({candidate.start for candidate in hunt.accepted})
    return bool(hunt.firsts) and _moderate_below(hunt) and (2 * alike <= ends or not _descents_agree(hunt))


def nowhere_yet(hunt: Hunt) -> bool:
    """No descent has led anywhere, although the lower level has solutions."""
    return not hunt.descended and not nothing_solved(hunt)


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
    if hunt.over:  # it may have a solution at some x: y (x - 1/2), for one
        hunt.piece("where it is stationary", _where_stationary, hunt)


def _where_stationary(hunt: Hunt) -> None:
    """A point at which the lower level is stationary, near the given start."""
    start = Point(hunt.space.xs[0], hunt.space.ys[0], np.zeros(hunt.vectors.layout.rows))
    hunt.add(kkt_polish(hunt.space, hunt.work, start, (), const.RELAXATIONS), 0)


def proof_of_contradiction(hunt: Hunt) -> None:
    """It is over where it is proved that no point satisfies the constraints of both levels."""
    hunt.contradiction = hunt.piece("proof of contradiction", contradiction, hunt.space, hunt.work)
    hunt.over |= hunt.contradiction is not None


def start_where_feasible(hunt: Hunt) -> None:
    """No start has a lower-level solution: where some x has a feasible y at all, start there; else it is over."""
    proof_of_contradiction(hunt)
    layout = hunt.vectors.layout
    points, least = list[tuple[np.ndarray, np.ndarray]](), np.inf
    if hunt.over:
        return
    if layout.nx + layout.ny <= const.DENSE_SIZE:
        points, least = hunt.piece("feasible points", feasible_points, hunt.space, hunt.work)
    if points:
        hunt.firsts, hunt.statuses = [], []
        _descents(hunt, points, "feasible descent")
    elif np.isfinite(least) and not hunt.work.passed:
        hunt.statuses, hunt.over = [INFEASIBLE], True
    else:  # nothing is claimed without a look
        hunt.statuses = [INACCURATE] * len(hunt.statuses)


def descents_in_turn(hunt: Hunt) -> None:
    """Descents from one start after another, until several have ended at the lowest F, or their work is done."""
    _descents(hunt, list(zip(hunt.space.xs, hunt.space.ys, strict=True)), "descent")


def _descents(hunt: Hunt, starts: list[tuple[np.ndarray, np.ndarray]], name: str) -> None:
    begun, most = hunt.work.evaluations, np.inf
    least = const.DESCENT_ITERATIONS if _moderate_below(hunt) else 0
    for number, (x, y) in enumerate(starts):
        if number and (hunt.work.passed or _descents_agree(hunt) or hunt.work.evaluations > most):
            return
        left = int(min(most - hunt.work.evaluations + 1, const.DESCENT_ITERATIONS))
        first, status, ended = hunt.piece(f"{name} {number}", _solved_and_descended, hunt, x, y, number, left)
        hunt.descended |= ended
        hunt.firsts.append(first)
        hunt.statuses.append(status)
        hunt.show(number + 1)
        if number == 0 and not hunt.accepted:
            proof_of_contradiction(hunt)
        if hunt.over:
            return
        if most == np.inf and hunt.accepted:
            took = hunt.work.evaluations - begun
            most = hunt.work.evaluations + max(least, 2 * took)


def _solved_and_descended(
    hunt: Hunt, x: np.ndarray, y: np.ndarray, number: int, iterations: int
) -> tuple[Point, int, bool]:
    """From one start: its point below, how that ended, and whether a descent led anywhere."""
    first, status = solved_below(hunt.vectors, x, y)
    ended = False
    if status == SOLVED and looks_convex(hunt):
        visited = functools.partial(hunt.visited, number) if hunt.vectors.programs.large else None
        end = descent(hunt.space, hunt.work, first, iterations, visited=visited)
        ended = end is not None
        if end is not None:
            hunt.add(end, number)
    if not ended and (status == SOLVED or not hunt.candidates):
        hunt.add(first, number)
    return first, status, ended


def _descents_agree(hunt: Hunt) -> bool:
    """Whether enough descents have ended at the lowest F."""
    return len(_lowest_starts(hunt)) >= const.AGREEING_DESCENTS


def _lowest_starts(hunt: Hunt) -> set[int]:
    """The starts whose descents have ended at the lowest F that was found."""
    low = hunt.lowest + const.NEGLIGIBLE * (1 + abs(hunt.lowest))
    return {candidate.start for candidate in hunt.accepted if candidate.upper <= low}


def descents_alone(hunt: Hunt) -> None:
    """Descents from one start after another; where none leads anywhere another route is needed."""
    if not looks_convex(hunt):
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
        lowest = hunt.lowest
        if hunt.work.passed or not looks_convex(hunt):
            return
        upper = hunt.piece(f"central {number}", search, first, number)
        if not upper < lowest - const.NEGLIGIBLE * (1 + abs(lowest)):
            return
        hunt.descended = True


def _starts_agree(hunt: Hunt) -> bool:
    """Whether enough starts have all ended at one optimum, of a problem whose lower level looks convex."""
    if not looks_convex(hunt) or hunt.tried < const.AGREEING_STARTS:
        return False
    found = optima(hunt.candidates)
    return len(found) == 1 and {*range(hunt.tried)} <= {end.start for end in found[0]}


def kkt_searches(hunt: Hunt, enough: Callable[[Hunt], bool] = _starts_agree) -> None:
    """Searches for KKT points from every start, until enough of them agree."""
    for number, first in enumerate(hunt.firsts):
        if number == 1 and not hunt.accepted:
            proof_of_contradiction(hunt)
            hunt.over = hunt.over or hunt.piece("contradiction", _no_point_satisfies_all, hunt)
        if hunt.over or hunt.work.passed or enough(hunt):
            return
        if number == const.TURNS and len(optima(hunt.candidates)) > 1:
            along_lines(hunt, "along lines, early")
        hunt.piece(f"start {number}", search_kkt_points, hunt, first, number)
        hunt.tried = number + 1
        hunt.show(hunt.tried)


def _no_point_satisfies_all(hunt: Hunt) -> bool:
    """Whether the constraints of both levels exclude each other, as far as a search shows."""
    if hunt.work.passed:
        return False
    points, least = feasible_points(hunt.space, hunt.work)
    return not points and const.NOTICEABLE < least < np.inf and not hunt.work.passed


def value_searches(hunt: Hunt) -> None:
    """Searches against the value function: from the best point's start, from those that ended nowhere, from others."""
    best, arrived = select(hunt.candidates), {c.start for c in hunt.accepted}
    solved = [number for number in range(hunt.tried) if hunt.statuses[number] == SOLVED]
    order = sorted(solved, key=lambda number: (best is None or number != best.start, number in arrived))
    doubtful = len(arrived) < hunt.tried or (best is not None and _flat_below(hunt.vectors, best.point))
    single = max(candidate.branches for candidate in hunt.candidates) == 1
    every_kkt_point_solves = looks_convex(hunt) and single and all(c.confirmed for c in hunt.accepted)
    for number in order[: const.TURNS if doubtful else 0 if every_kkt_point_solves else 1]:
        if not hunt.work.passed:
            hunt.piece(f"values from start {number}", search_below_values, hunt, hunt.firsts[number], number)


def _flat_below(vectors: VectorProblem, point: Point) -> bool:
    """Whether the lower level has no curvature in some direction: its solutions may jump, and then F does."""
    _, slopes = vectors.at(*point)
    hessian = slopes.stationarity[:, vectors.layout.nx :]
    finite = np.isfinite(hessian).all()
    sizes = np.abs(np.linalg.eigvalsh(0.5 * (hessian + hessian.T))) if finite else np.zeros(1)
    return bool(np.min(sizes) <= const.ROUNDING * np.max(sizes))


def along_lines(hunt: Hunt, name: str = "along lines") -> None:
    """Look at F(x, y*(x)) along every entry of x, and go down from where it is lower than at the best point.

    Starts cover few entries well enough, unless the lower level is not convex: then F may be lowest where it has ties.
    """
    points = scan_points(hunt.vectors.layout.nx, FEW if looks_convex(hunt) else 1)

    def look() -> None:
        for _ in range(const.TURNS if points and not _starts_agree(hunt) else 0):
            best = select(hunt.candidates)
            lower = None if best is None else _lower_along_lines(hunt, best, points)
            if best is None or lower is None or hunt.work.passed:
                return
            go_down_from(hunt, lower, best.start)

    hunt.piece(name, look)


def _lower_along_lines(hunt: Hunt, best: Candidate, points: int) -> Point | None:
    """The best feasible point after every entry of x was set to the best of a grid; None: the point itself."""
    lowest, found = best.upper - const.NEGLIGIBLE * (1 + abs(best.upper)), None
    vectors, xs = hunt.vectors, hunt.space.xs

    def value(x: np.ndarray) -> float:
        nonlocal lowest, found
        if hunt.work.passed:
            return np.inf
        hunt.work.evaluations += 1
        here = np.inf
        for point in vectors.branches(x, best.point.y, best.point.mu).ties(x):
            values = vectors.values(*point)
            if values.upper < here and vectors.violation(point.x, point.y, values) <= FEASIBLE:
                here = float(values.upper)
                if here < lowest:
                    lowest, found = here, point
        return here

    low = np.where(np.isfinite(vectors.x_limits.lower), vectors.x_limits.lower, np.min(xs, axis=0))
    high = np.where(np.isfinite(vectors.x_limits.upper), vectors.x_limits.upper, np.max(xs, axis=0))
    lowest_on_lines(value, best.point.x, low, high, points)
    return found


def aside(hunt: Hunt) -> None:
    """Both sides of the best point, where F may have an inflection."""

    def look() -> None:
        best = select(hunt.candidates)
        if best is None:
            return
        signs = np.random.default_rng(0).choice([-1.0, 1.0], hunt.vectors.layout.nx)
        for side in (const.NEARBY, -const.NEARBY):
            x = np.clip(best.point.x + side * signs, *hunt.vectors.x_limits)
            first, status = solved_below(hunt.vectors, x, best.point.y)
            if status != SOLVED or hunt.work.passed:
                continue
            values = hunt.vectors.values(*first)
            if values.upper < best.upper and hunt.vectors.violation(first.x, first.y, values) <= FEASIBLE:
                go_down_from(hunt, first, best.start)

    hunt.piece("aside", look)


def further_starts(hunt: Hunt) -> None:
    """Further starts, as long as one of them may well end somewhere new."""

    def search(x: np.ndarray, y: np.ndarray, number: int) -> None:
        first, status = solved_below(hunt.vectors, x, y)
        if status == SOLVED:
            search_kkt_points(hunt, first, number)

    for number, (x, y) in enumerate(hunt.space.further, len(hunt.space.xs)):
        if hunt.work.passed or chance_of_more(times_met(optima(hunt.candidates))) <= LITTLE:
            return
        hunt.piece(f"start {number}", search, x, y, number)
        hunt.show(number + 1)


def polishes_instead(hunt: Hunt) -> None:
    """Both kinds of polishes until several end at the lowest F; of problems that are too large for SLSQP, none."""
    if _dense(hunt):
        if not hunt.firsts:
            first_solves(hunt)
        kkt_searches(hunt, _descents_agree)
        value_searches(hunt)
    elif not hunt.accepted:
        raise NoRoute("no descent led to a point that passes, and the KKT system is too large for SLSQP")


# -- searches from one point ------------------------------------------------------------------------------------------


def _dense(hunt: Hunt) -> bool:
    """Whether SLSQP takes the KKT system."""
    layout = hunt.vectors.layout
    return bool(layout.nx + layout.ny + hunt.space.structure.live.sum() <= const.DENSE_SIZE)


def _moderate_below(hunt: Hunt) -> bool:
    """Whether the lower level is no larger than what SLSQP takes."""
    return hunt.vectors.layout.ny + hunt.vectors.layout.rows <= const.DENSE_SIZE


def go_down_from(hunt: Hunt, point: Point, number: int) -> None:
    """On from a point that is better than the best so far."""
    hunt.add(point, number)
    if looks_convex(hunt) and not hunt.work.passed:
        found = descent(hunt.space, hunt.work, point, to_rounding=True)
        if found is not None and hunt.add(found, number).tight:
            return
    if _dense(hunt):
        search_kkt_points(hunt, point, number, LAST_RELAXATIONS)
        if not hunt.work.passed:
            search_below_values(hunt, point, number)


def search_kkt_points(
    hunt: Hunt, first: Point, number: int, relaxations: tuple[float, ...] = const.RELAXATIONS
) -> None:
    """Polish, and again with a cut for every better branch found."""
    waiting: list[tuple[Point, Cuts]] = [(first, ())]
    polishes = 0
    while waiting and polishes < 2 * const.MOST_CUTS and not hunt.work.passed:
        start, cuts = waiting.pop(0)
        found = hunt.add(kkt_polish(hunt.space, hunt.work, start, cuts, relaxations), number)
        polishes += 1
        if const.TIGHT < found.gap < np.inf and found.on_best_branch:  # t was too large for the units of f
            sharper = (relaxations[-1] * LITTLE * const.TIGHT / found.gap,)
            found = hunt.add(kkt_polish(hunt.space, hunt.work, found.point, cuts, sharper), number)
            polishes += 1
        # Where another branch is better by a little, a point that owes its F to this counts for nothing.
        least = const.NEGLIGIBLE if found.on_best_branch else const.TIGHT
        if least < found.gap < np.inf and len(cuts) < const.MOST_CUTS:
            waiting += [(place, (*cuts, found.better)) for place in (first, found.point, found.better)]


def search_below_values(hunt: Hunt, first: Point, number: int) -> None:
    """Minimise against the value function; where the validation finds a better branch, again with it."""
    best = select(hunt.candidates)
    beat = np.inf if best is None or not best.tight else best.upper

    def polished(place: Point, cuts: Cuts) -> Candidate:
        return hunt.add(value_polish(hunt.space, hunt.work, place, cuts, beat), number, "value")

    cuts: Cuts = (first,)
    found = polished(first, cuts)
    slightly_outside = not found.accepted and FEASIBLE < found.violation <= const.NOTICEABLE
    if slightly_outside and found.upper < beat:
        found = polished(found.point, (*cuts, found.better) if np.isfinite(found.gap) else cuts)
    if not const.NEGLIGIBLE < found.gap < np.inf or found.upper > beat:
        return
    cuts = (*cuts, found.better)
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
        (always, kkt_searches),
        (always, value_searches),
        (always, along_lines),
        (always, aside),
        (always, further_starts),
    ),
    "penalty": (
        (looks_convex, descents_in_turn),
        (no_feasible_y, start_where_feasible),
        (ended_apart, central_descents),
        (nowhere_yet, polishes_instead),
    ),
    "implicit": ((always, descents_alone),),
}


def run(hunt: Hunt, route: Route) -> None:
    """Search after search, until one of them says that it is over, or the work has to end."""
    with contextlib.suppress(OutOfTime):
        for when, search in route:
            if hunt.over or (hunt.candidates and hunt.work.passed):
                break
            if when(hunt):
                search(hunt)
    if not hunt.candidates:
        hunt.add(Point(hunt.space.xs[0], hunt.space.ys[0], np.zeros(hunt.vectors.layout.rows)), 0)
