"""Descent on phi(x) = F(x, y*(x)): the lower level solved exactly at every x, gradients by implicit differentiation.

For lower levels that look convex with a unique solution. Few evaluations are needed, and what it ends with is as exact
as the lower solves are. Without constraints on the upper level but bounds of X it is L-BFGS-B, else SLSQP, in x alone.

The central descent minimises F(x, y_t(x)) instead, t falling: y_t(x) (`hierax._lower.centred`) is smooth in x, however
many rows change sides on the way, and for large t it shows only the broad shape of phi. From whichever start, descents
that end in different kinks often end at one point here, and at a lower one. The last word has a descent on phi itself.
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np

from hierax._auto.constants import DESCENT_ITERATIONS, NEGLIGIBLE, ROUNDING, SQP_CHANGE, SQP_ITERATIONS
from hierax._auto.pieces import PieceDescent
from hierax._auto.session import Work
from hierax._auto.space import Space
from hierax._auto.sqp import Evaluated, Progress, SearchAborted, Stop, nowhere, quasi_newton, slsqp
from hierax._engine.programs import Limits
from hierax._engine.vectors import Point, Total, VectorProblem
from hierax._lower.active_set import Found
from hierax._lower.centred import Centre
from hierax._lower.linear import OutOfTime
from hierax._math.lower_level import INACCURATE, INFEASIBLE, SOLVED, UNBOUNDED

CENTRAL_PATH = tuple(np.geomspace(1.0, NEGLIGIBLE, 9))
"""Values of t of a central descent, in units of G; with eight of them (1 to 1e-5) descents from two starts of four
problems (60 y, 100 to 160 rows) ended within 1 % of each other, 20 to 40 % below descents on F(x, y*(x))."""


Visited = Callable[[Total, Point], None]
"""Is told of the upper level at a point, in units."""


class Phi(Protocol):
    """phi(x) = F(x, y*(x)) and the upper constraints, however the lower level is solved.

    Attributes:
        x_limits: the box around X.
        rows: how many inequalities and equalities of the upper level a search is shown.
    """

    @property
    def x_limits(self) -> Limits: ...
    @property
    def rows(self) -> tuple[int, int]: ...
    def landed(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The nearest points of X and Y."""

    def at(self, x: np.ndarray, warm: Point) -> tuple[Point, Total] | None:
        """The point at x, found from a point nearby, with all values and derivatives; None: there is none."""


def descend(phi: Phi, start: Point, stop: Stop, flat: float, progress: Progress) -> Point | None:
    """The best point of a search over x: SLSQP where the upper level has constraints beside bounds, else L-BFGS-B.

    L-BFGS-B ends where the projected gradient is `flat`; `progress` ends either where it gets nowhere.
    """
    warm = start

    def evaluate(x: np.ndarray) -> Evaluated:
        nonlocal warm
        inside = phi.landed(x, warm.y)[0]
        found = phi.at(inside, warm)
        if found is None:
            return nowhere(x.size, *phi.rows)
        warm, total = found
        outside = max(np.max(total.above, initial=0.0), np.max(np.abs(total.equal), initial=0.0))
        progress.note(total.upper, outside, warm)
        away = x - inside  # outside of X everything goes on along straight lines
        return Evaluated.of(
            (total.upper + total.slope @ away, total.slope),
            (-total.above - total.above_slopes @ away, -total.above_slopes),
            (total.equal + total.equal_slopes @ away, total.equal_slopes),
        )

    if any(phi.rows):
        slsqp(evaluate, start.x, phi.x_limits, stop)
    else:
        quasi_newton(evaluate, start.x, phi.x_limits, stop, flat)
    return None if progress.best is None else progress.best[1]


class PhiInUnits:
    """phi in units, by the follower of the problem.

    With `path`, t and a point well inside of Y, it is F(x, y_t(x)) instead. `visited` is told of every point.
    """

    def __init__(
        self, space: Space, path: tuple[float, np.ndarray] | None = None, visited: Visited | None = None
    ) -> None:
        self.vectors, self.above, self._path, self._visited = space.vectors, space.structure.above, path, visited
        assert self.vectors.follower is not None
        self.follower = self.vectors.follower
        self.x_limits, self.landed = self.vectors.x_limits, self.vectors.landed
        self.rows = int(self.above.sum()), self.vectors.layout.above_equal

    def at(self, x: np.ndarray, warm: Point) -> tuple[Point, Total] | None:
        """The point at x, and the upper level there."""
        found = self.solved(x, warm) if self._path is None else self._centre(x, warm, *self._path)
        if found is None:
            return None
        try:
            total = self.follower.total(x, found)
        except OutOfTime:
            raise SearchAborted from None
        point = Point(x, found.y, found.mu)
        if not total.finite:
            return None
        if self._visited is not None:
            self._visited(total, point)
        total = total._replace(above=total.above[self.above], above_slopes=total.above_slopes[self.above])
        return point, total

    def solved(self, x: np.ndarray, warm: Point) -> Found | None:
        """The lower level's solution at x; None where there is none."""
        try:
            return self.follower.solve_from_anywhere(x, warm.y, warm.mu)
        except OutOfTime:
            raise SearchAborted from None

    def _centre(self, x: np.ndarray, warm: Point, t: float, inside: np.ndarray) -> Centre | None:
        """y_t(x) from the last one; where that does not arrive, from the inside of Y."""
        found = self.follower.centred(x, warm.y, warm.mu, t)
        return found or self.follower.centred(x, inside, np.ones_like(warm.mu), t)


class ImplicitDescent:
    """One descent on phi, then along kinks.

    Args:
        space: the problem.
        work: what it may spend.
        start: where it begins.
        to_rounding: whether it goes on to the last digits, for a point that a certificate objects to: the unit of F may
            be so large that what F changes around its minimum is less than any other tolerance.
        visited: is told of every point on the way.
    """

    def __init__(
        self, space: Space, work: Work, start: Point, to_rounding: bool = False, visited: Visited | None = None
    ) -> None:
        self.space, self.work, self.start = space, work, start
        self.phi = PhiInUnits(space, visited=visited)
        self.progress = Progress(0.0) if to_rounding else Progress()
        self.flat = 0.0 if to_rounding else SQP_CHANGE
        self.at_kink = False  # whether it ended at a kink

    def run(self) -> Point | None:
        """The point it ends with; None where the lower level has no solution at the start, or no unique one."""
        x, follower = self.start.x, self.phi.follower
        try:
            first = self.phi.solved(x, self.start)
            if first is None or not (follower.unique(first) or follower.determined(x, first)):
                return None
        except (SearchAborted, OutOfTime):
            return None
        stop = Stop(DESCENT_ITERATIONS, SQP_CHANGE, self.work)
        best = descend(self.phi, self.start, stop, self.flat, self.progress)
        if best is None:
            return None
        along_kinks = PieceDescent(self.space, self.work)
        ended = along_kinks.run(best)
        self.at_kink = along_kinks.at_kink
        return ended


def central_descent(space: Space, work: Work, start: Point) -> Point | None:
    """The end of a descent along the central path; None where the path is lost, or the end has no solution below."""
    low, high = space.vectors.y_limits
    away = 0.05 * np.where(np.isfinite(high - low), high - low, 1.0)
    inside = np.clip(start.y, low + away, high - away)
    point = Point(start.x, inside, np.ones_like(start.mu))
    for t in CENTRAL_PATH:
        stop = Stop(SQP_ITERATIONS, ROUNDING, work)
        best = descend(PhiInUnits(space, (t, inside)), point, stop, NEGLIGIBLE, Progress())
        if best is None:
            return None
        point = best
    end, status = solved_below(space.vectors, point.x, point.y)
    if status != SOLVED or space.vectors.follower is None:
        return None
    return ImplicitDescent(space, work, end).run() or end


def solved_below(vectors: VectorProblem, x: np.ndarray, y: np.ndarray) -> tuple[Point, int]:
    """The lower level solved at x, and how that ended; where there is no solution, (x, y) itself."""
    try:
        found = vectors.branches(x, y)
    except OutOfTime:
        return Point(x, y, np.zeros(vectors.layout.rows)), INACCURATE
    best = found.best()
    if best is None:
        status = INFEASIBLE if (found.status == INFEASIBLE).all() else int(np.max(found.status))
        return Point(x, y, np.zeros(vectors.layout.rows)), status
    return Point(x, found.y[best], found.mu[best]), UNBOUNDED if found.unbounded else SOLVED
