r"""Searches from one point: descents on phi(x) = F(x, y*(x)), and SLSQP over x and y together (polishes).

Descents solve the lower level exactly at every x, with gradients by implicit differentiation. They are for lower
levels that look convex with a unique solution. Few evaluations are needed, and what they end with is as exact as the
lower solves are. Without constraints on the upper level but bounds of X it is L-BFGS-B, else SLSQP, in x alone.

Along kinks: phi is smooth as long as the lower level's active rows A stay the same. With A held, y_A(x) and mu_A(x)
follow from equations alone, and

    min F(x, y_A(x))   subject to   mu_i(x) >= 0 for i in A,   r_i(x, y_A(x)) <= 0 for the others

is a smooth problem on one piece of x-space. At its solution some of these constraints bind, and the best move over all
choices for them (`hierax._judge.gain`) names the next piece, or none. Where a quasi-Newton method zigzags across
kinks, this follows them.

The central descent minimises F(x, y_t(x)) instead, t falling: y_t(x) (`hierax._lower.active_set`) is smooth in x,
however many rows change sides on the way, and for large t it shows only the broad shape of phi. From whichever start,
descents that end in different kinks often end at one point here, and at a lower one. The last word has a descent on phi
itself.

The polishes: SQP on the relaxed KKT system, and SQP against the value function. Both minimise F from a given point in
stages, each started from the last one's end, and return wherever they get to; whether that is any good is judged
elsewhere (`hunt.py`).
"""

import functools
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from hierax._auto import constants as const
from hierax._auto.hunt import Passed, Space
from hierax._auto.session import Work
from hierax._base.constants import LITTLE
from hierax._base.imports import lazy
from hierax._compile.configuration import SharedContext
from hierax._engine.by_hand import VectorsByHand
from hierax._engine.programs import Branches
from hierax._engine.vectors import Linearised, Point, Total, VectorProblem
from hierax._judge.gain import gain
from hierax._lower.active_set import Found
from hierax._lower.linear import OutOfTime
from hierax._math.lower_level import INACCURATE, SOLVED, UNBOUNDED

scipy_linalg, scipy_optimize = lazy("scipy.linalg"), lazy("scipy.optimize")

CENTRAL_PATH = tuple(np.geomspace(1.0, const.NEGLIGIBLE, 9))
"""Values of t of a central descent, in units of G; with eight of them (1 to 1e-5) descents from two starts of four
problems (60 y, 100 to 160 rows) ended within 1 % of each other, 20 to 40 % below descents on F(x, y*(x))."""


# -- SciPy's SLSQP and L-BFGS-B ---------------------------------------------------------------------------------------


without_runtime_warnings = SharedContext(  # filters of warnings are those of all threads
    functools.partial(warnings.catch_warnings, action="ignore", category=RuntimeWarning)
)


Evaluate = Callable[[np.ndarray], np.ndarray]
"""An objective, inequalities >= 0 and equalities = 0 at a point: a line for each, its value, then its derivatives."""


class SearchAborted(Exception):
    """The iterates run away, or the work has to end: SLSQP has no way to stop on its own."""


def minimise(
    evaluate: Evaluate,
    start: np.ndarray,
    bounds: tuple[np.ndarray, np.ndarray],
    work: Work,
    equalities: int,
    iterations: int = const.SQP_ITERATIONS,
    change: float = const.SQP_CHANGE,
) -> np.ndarray:
    """The last iterate of SLSQP, or of L-BFGS-B where there is nothing but an objective; the caller judges it.

    SLSQP ends at a `change` of the objective, L-BFGS-B where the projected gradient is as small.
    """
    known: list[tuple[np.ndarray, bytes, np.ndarray]] = []  # the latest point, which SLSQP asks for in four calls

    def at(u: np.ndarray) -> np.ndarray:
        text = u.tobytes()
        if not known or known[0][1] != text:
            if not np.all(np.abs(u) < const.RUN_OFF) or (known and work.passed):
                raise SearchAborted
            work.evaluations += 1
            lines = np.nan_to_num(evaluate(u), nan=const.RUN_OFF, posinf=const.RUN_OFF, neginf=-const.RUN_OFF)
            known[:] = [(u.copy(), text, lines)]
        return known[0][2]

    start = np.clip(start, *bounds)
    options: dict[str, Any] = {"method": "L-BFGS-B"}
    options["options"] = {"maxiter": iterations, "ftol": const.NEGLIGIBLE * change, "gtol": change, "maxls": 30}
    try:
        if len(at(start)) > 1:
            equal = len(at(start)) - equalities
            kinds = {"ineq": np.arange(1, equal), "eq": equal + _independent(at(start)[equal:, 1:])}
            options = {"method": "SLSQP", "options": {"maxiter": iterations, "ftol": change}}
            options["constraints"] = [
                {"type": kind, "fun": lambda u, rows=rows: at(u)[rows, 0], "jac": lambda u, rows=rows: at(u)[rows, 1:]}
                for kind, rows in kinds.items()
                if rows.size
            ]
        with without_runtime_warnings:
            found = scipy_optimize.minimize(
                lambda u: float(at(u)[0, 0]),
                start,
                jac=lambda u: at(u)[0, 1:],
                bounds=np.stack(bounds, axis=1),
                **options,
            )
    except SearchAborted:
        return known[0][0] if known else start
    return found.x if np.isfinite(found.x).all() else known[0][0]


def _independent(slopes: np.ndarray) -> np.ndarray:
    """Places of equalities whose gradients are independent: SLSQP gives up where one follows from the others."""
    if not len(slopes):
        return np.zeros(0, int)
    _, triangle, order = scipy_linalg.qr(slopes.T, mode="economic", pivoting=True)
    sizes = np.abs(np.diag(triangle))
    return np.sort(order[: int(np.sum(sizes > const.ROUNDING * max(sizes[0], np.finfo(float).tiny)))])


# -- phi, and its kin -------------------------------------------------------------------------------------------------

Visited = Callable[[Total, Point], None]
"""Is told of the upper level at a point, in units."""


class Phi:
    """phi(x) = F(x, y*(x)) and the upper constraints, in units; `visited` is told of every point."""

    def __init__(
        self, vectors: VectorProblem | VectorsByHand, above: np.ndarray, visited: Visited | None = None
    ) -> None:
        """`above`: which upper constraints and faces of X the box around X does not keep."""
        assert vectors.follower is not None
        self.vectors, self.follower, self.above, self._visited = vectors, vectors.follower, above, visited
        self.inequalities = int(above.sum())

    def solved(self, x: np.ndarray, warm: Point) -> Found | None:
        """The lower level at x, from a point nearby; None where it has no solution."""
        return self.follower.solve_from_anywhere(x, warm.y, warm.mu)

    def sides(self, x: np.ndarray, found: Found) -> tuple[np.ndarray, np.ndarray]:
        """More that has to be >= 0, with derivatives in x."""
        return np.zeros(0), np.zeros((0, x.size))

    def at(self, x: np.ndarray, warm: Point) -> tuple[Point, Total] | None:
        """The point at x, and the upper level there; None where there is none."""
        try:
            found = self.solved(x, warm)
            total = None if found is None else self.follower.total(x, found)
        except OutOfTime:
            raise SearchAborted from None
        if found is None or total is None or not total.finite:
            return None
        point = Point(x, found.y, found.mu)
        if self._visited is not None:
            self._visited(total, point)
        sides = zip(total, self.sides(x, found), strict=True)
        return point, Total(
            *(part._replace(above=np.concatenate([part.above[self.above], -side])) for part, side in sides)
        )

    def minimised(
        self, start: Point, work: Work, iterations: int, change: float, least: float = LITTLE * const.ROUNDING
    ) -> Point | None:
        """The best point of a search over x; it ends where many evaluations in a row gain less than `least`."""
        best: Point | None = None
        warm, lowest, stalled, wall = start, np.inf, 0, const.RUN_OFF

        def evaluate(x: np.ndarray) -> np.ndarray:
            nonlocal warm, best, lowest, stalled, wall
            inside = self.vectors.landed(x, warm.y)[0]
            found = self.at(inside, warm)
            if found is None:
                lines = np.zeros((1 + self.inequalities + self.vectors.layout.above_equal, 1 + x.size))
                lines[0, 0] = wall
                return lines
            warm, ((upper, above, equal), total) = found
            wall = float(upper) + 1.0  # higher ones would make the line search take tiny steps
            violation = max(np.max(above, initial=0.0), np.max(np.abs(equal), initial=0.0))
            merit = upper + const.RUN_OFF * max(violation - const.ROUNDING, 0.0)
            stalled = 0 if merit < lowest - least else stalled + 1
            if best is None or merit < lowest:
                lowest, best = merit, warm
            if stalled > const.MAX_STALLED_EVALUATIONS:
                raise SearchAborted
            values = np.concatenate([[upper], -above, equal])
            slopes = np.concatenate([total.upper[None], -total.above, total.equal])
            values += slopes @ (x - inside)  # outside of X everything goes on along straight lines
            return np.concatenate([values[:, None], slopes], axis=1)

        minimise(evaluate, start.x, self.vectors.x_limits, work, self.vectors.layout.above_equal, iterations, change)
        return best


class CentredPhi(Phi):
    """F(x, y_t(x)) on the central path; `inside` is a point well inside of Y."""

    def __init__(self, space: Space, t: float, inside: np.ndarray) -> None:
        super().__init__(space.vectors, space.structure.above)
        self.t, self.inside = t, inside

    def solved(self, x: np.ndarray, warm: Point) -> Found | None:
        """y_t(x) from the last one; where that does not arrive, from the inside of Y."""
        found = self.follower.centred(x, warm.y, warm.mu, self.t)
        return found or self.follower.centred(x, self.inside, np.ones_like(warm.mu), self.t)


class PieceOfPhi(Phi):
    """F(x, y_A(x)) with the active rows A held, and what keeps x on the piece."""

    def __init__(self, space: Space, at: Linearised, active: np.ndarray) -> None:
        super().__init__(space.vectors, space.structure.above)
        self.active = active
        near = np.argsort(at.radii, kind="stable")[: const.SMALL_ROUTE_SIZE]
        changed = np.flatnonzero((active != at.active) & ~self.vectors.layout.equal)
        self.near = np.union1d(near[at.radii[near] <= const.NEARBY], changed)
        self.inequalities += self.near.size

    def solved(self, x: np.ndarray, warm: Point) -> Found | None:
        """y and mu with the given rows active; the search ends where they are lost."""
        found = self.follower.held(x, warm.y, warm.mu, self.active)
        if found is None:
            raise SearchAborted
        return found

    def sides(self, x: np.ndarray, found: Found) -> tuple[np.ndarray, np.ndarray]:
        """By how much rows nearby keep to their sides."""
        return self.follower.sides(x, found, self.near)


# -- descents ---------------------------------------------------------------------------------------------------------


def descent(
    space: Space,
    work: Work,
    start: Point,
    iterations: int = const.DESCENT_ITERATIONS,
    to_rounding: bool = False,
    visited: Visited | None = None,
) -> Point | None:
    """One descent on phi, then along kinks: the point it ends with.

    None where the lower level has no solution at the start, or no unique one.

    Args:
        space: the problem.
        work: what it may spend.
        start: where it begins.
        iterations: how many it may make.
        to_rounding: whether it goes on to the last digits, for a point that a certificate objects to: the unit of F may
            be so large that what F changes around its minimum is less than any other tolerance.
        visited: is told of every point on the way.
    """
    phi = Phi(space.vectors, space.structure.above, visited)
    try:
        first = phi.follower.solve_from_anywhere(start.x, start.y, start.mu)
        if first is None or not (phi.follower.unique(first) or phi.follower.determined(start.x, first)):
            return None
    except OutOfTime:
        return None
    limits = (0.0, 0.0) if to_rounding else (const.SQP_CHANGE, LITTLE * const.ROUNDING)
    best = phi.minimised(start, work, iterations, *limits)
    return None if best is None else along_kinks(space, work, best)


def along_kinks(space: Space, work: Work, start: Point) -> Point:
    """The best point found piece after piece; the start where no piece leads down."""
    vectors = space.vectors
    best, lowest = start, float(vectors.values(*start).upper)
    if start.x.size > const.SMALL_ROUTE_SIZE or vectors.programs.large:
        return best
    at = Linearised.at(vectors, best)
    if not np.any(at.radii <= const.NEAR):
        return best
    active = at.active
    for _ in range(const.DESCENT_ITERATIONS):
        if work.passed:
            break
        end = _end_of_piece(space, work, at, active)
        if end is None:
            break
        upper = float(vectors.values(*end).upper)
        if upper < lowest - const.ROUNDING * (1 + abs(lowest)):
            lowest, best, at = upper, end, Linearised.at(vectors, end)
        elif not np.array_equal(active, at.active):
            break
        move = gain(at, const.ROUNDING, at.radii <= const.NEGLIGIBLE)
        if move.active is None or not move.decrease > const.ROUNDING or np.array_equal(move.active, active):
            break
        active = move.active
    return best


def _end_of_piece(space: Space, work: Work, at: Linearised, active: np.ndarray) -> Point | None:
    """The end of one piece; None where the lower level does not have it there."""
    piece = PieceOfPhi(space, at, active)
    best = piece.minimised(at.point, work, const.SQP_ITERATIONS, const.SQP_CHANGE)
    found = None if best is None else piece.follower.solve(best.x, best.y, np.maximum(best.mu, 0.0))
    if best is None or found is None:
        return None
    point = Point(best.x, found.y, found.mu)
    values = space.vectors.values(*point)
    shown = np.concatenate([values.above[space.structure.above], np.abs(values.above_equal)])
    return point if np.max(shown, initial=0.0) <= const.ROUNDING else None


def central_descent(space: Space, work: Work, start: Point) -> Point | None:
    """The end of a descent along the central path; None where the path is lost, or the end has no solution below."""
    low, high = space.vectors.y_limits
    away = 0.05 * np.where(np.isfinite(high - low), high - low, 1.0)
    inside = np.clip(start.y, low + away, high - away)
    point: Point | None = Point(start.x, inside, np.ones_like(start.mu))
    for t in CENTRAL_PATH:
        if point is not None:
            point = CentredPhi(space, t, inside).minimised(point, work, const.SQP_ITERATIONS, const.NEGLIGIBLE)
    if point is None:
        return None
    end, status = solved_below(space.vectors, point.x, point.y)
    if status != SOLVED or space.vectors.follower is None:
        return None
    return descent(space, work, end) or end


def solved_below(vectors: VectorProblem, x: np.ndarray, y: np.ndarray) -> tuple[Point, int]:
    """The lower level solved at x, and how that ended; where there is no solution, (x, y) itself."""
    found = vectors.branches_in_time(x, y)
    best = found.best()
    if best is None:
        return Point(x, y, np.zeros(vectors.layout.rows)), int(np.max(found.status, initial=INACCURATE))
    return Point(x, found.y[best], found.mu[best]), UNBOUNDED if found.unbounded else SOLVED


# -- polishes ---------------------------------------------------------------------------------------------------------

Cuts = tuple[Point, ...]
"""Branches of lower-level solutions whose values v_j(x) bound f(x, y) from above, followed from where they were.

A fixed point w would be a valid cut only where the constraints do not depend on x.
"""


def kkt_polish(space: Space, work: Work, start: Point, cuts: Cuts, relaxations: tuple[float, ...]) -> Point:
    """min F subject to the upper constraints, the lower level's KKT system with -mu_i row_i <= t, and the cuts.

    t falls from stage to stage. Where a polish is between two stages determines it: one that arrives where another
    has been ends where that one did.
    """
    system, way = System(space, cuts, with_multipliers=True), list[Passed]()
    u, change = system.packed(start), const.ROUNDING if cuts else const.SQP_CHANGE
    for stage in range(len(relaxations) + 1):
        if stage:
            relaxed = functools.partial(system.evaluate, t=relaxations[stage - 1])
            u = minimise(relaxed, u, system.bounds, work, system.equalities, change=change)
        way.append(Passed((relaxations, stage), system.determining(u), system.unpacked(u)))
        known = next((one.end for one in space.passed if one.is_at(way[-1])), None)
        if known is not None:
            break
    end = known or way[-1].end
    if not work.passed:
        space.passed.extend(one._replace(end=end) for one in way)
    return end


def value_polish(space: Space, work: Work, start: Point, cuts: Cuts, beat: float) -> Point:
    """min F subject to the upper and the lower constraints and f <= v_j + e for every cut, e falling.

    Needs no multiplier: it reaches solutions at which the lower level has none, and it chooses y freely among the lower
    level's solutions. F only rises as e falls: a stage that ends above `beat` is the last.
    """
    system = System(space, cuts, with_multipliers=False)
    u = system.packed(start)
    for t in const.RELAXATIONS:
        slackened = functools.partial(system.evaluate, t=max(LITTLE * t, const.RELAXATIONS[-1]))
        u = minimise(slackened, u, system.bounds, work, system.equalities, const.SQP_ITERATIONS // 2, const.ROUNDING)
        if space.vectors.values(*system.unpacked(u)).upper > beat:
            break
    return system.unpacked(u)


class System:
    """min F over the constraints of both levels, as SLSQP sees it: with the lower level's relaxed KKT system, or not.

    The unknowns u are x, y and the multipliers of the live rows. The lines are first F, then the inequalities: upper
    ones, rows of the lower level, complementary pairs, cuts; then the equalities: those of X, rows of the lower level,
    and stationarity.

    Attributes:
        bounds: the boxes around X and Y, and the multipliers' signs.
        parts: slices of the lines of every kind.
        equalities: how many there are.
    """

    def __init__(self, space: Space, cuts: Cuts, with_multipliers: bool) -> None:
        self.vectors, self._cuts, self._with_multipliers = space.vectors, cuts, with_multipliers
        layout, structure = space.vectors.layout, space.structure
        self._n, self._live = layout.nx + layout.ny, structure.live & with_multipliers
        self._pairs = np.flatnonzero(~layout.equal[self._live])  # complementary pairs, among the live rows
        equal = layout.equal[self._live]
        self.bounds = space.box(np.where(equal, -np.inf, 0.0), np.full(equal.size, np.inf))
        above, above_equal, rows, stationarity = (np.arange(part.start, part.stop) for part in layout.parts)
        kinds = {  # where the lines stand in the table of all functions; cuts are not in it
            "upper": np.zeros(1, int),
            "above": above[structure.above],
            "rows": rows[structure.curved & ~layout.equal],
            "pairs": rows[self._live & ~layout.equal],
            "cuts": np.zeros(len(cuts), int),
            "above_equal": above_equal,
            "equal": rows[layout.equal],
            "stationarity": stationarity[: layout.ny * with_multipliers],
        }
        ends = np.cumsum([kind.size for kind in kinds.values()])
        self.parts = {name: slice(end - kinds[name].size, end) for name, end in zip(kinds, ends, strict=True)}
        self._places = np.concatenate([*kinds.values()])
        self.equalities = self._places.size - self.parts["cuts"].stop
        self._signs = np.ones(self._places.size)
        self._signs[1 : self.parts["rows"].stop] = -1.0

    def packed(self, point: Point) -> np.ndarray:
        """A point as the unknowns."""
        return np.concatenate([point.x, point.y, point.mu[self._live]])

    def unpacked(self, u: np.ndarray) -> Point:
        """The unknowns as a point."""
        mu = np.zeros(self._live.size)
        mu[self._live] = u[self._n :]
        x, y = np.split(u[: self._n], [self.vectors.layout.nx])
        return Point(x, y, mu)

    def _followed(self, x: np.ndarray) -> Branches:
        """The branches of the cuts at x."""
        return self.vectors.followed(x, np.array([cut.y for cut in self._cuts]), np.array([c.mu for c in self._cuts]))

    def determining(self, u: np.ndarray) -> np.ndarray:
        """What determines how a polish goes on: the unknowns, and the values and slopes of the cuts."""
        if not self._cuts:
            return u
        found = self._followed(u[: self.vectors.layout.nx])
        return np.concatenate([u, found.value, found.slope.ravel()])

    def evaluate(self, u: np.ndarray, t: float) -> np.ndarray:
        """Everything at u; t relaxes the complementary pairs or, without multipliers, the cuts."""
        layout, parts, n = self.vectors.layout, self.parts, self._n
        table = self.vectors.table(np.concatenate(self.unpacked(u)))
        factors = self._signs.copy()
        factors[parts["pairs"]] = u[n:][self._pairs]  # t + mu_i row_i >= 0
        found = np.zeros((factors.size, 1 + u.size))
        found[:, : 1 + n] = factors[:, None] * table[self._places]
        if self._with_multipliers:
            rows = table[layout.parts[2]][self._live]
            found[parts["pairs"], 0] += t
            found[np.arange(factors.size)[parts["pairs"]], 1 + n + self._pairs] = rows[self._pairs, 0]
            found[parts["stationarity"], 1 + n :] = rows[:, 1 + layout.nx :].T
        if self._cuts:  # v_j(x) - f >= 0
            branches, lines = self._followed(u[: layout.nx]), found[parts["cuts"], : 1 + n]
            lines[:] = -table[1]
            lines[:, 0] += branches.value + (0.0 if self._with_multipliers else t)
            lines[:, 1 : 1 + layout.nx] += branches.slope
        return found
