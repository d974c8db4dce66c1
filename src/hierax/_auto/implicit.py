"""Descent on phi(x) = F(x, y*(x)): the lower level solved exactly at every x, gradients by implicit differentiation.

For lower levels that look convex with a unique solution. Few evaluations are needed, and what it ends with is as exact
as the lower solves are. Without constraints on the upper level but bounds of X it is L-BFGS-B, else SLSQP, in x alone.

The central descent minimises F(x, y_t(x)) instead, t falling: y_t(x) (`hierax._lower.centred`) is smooth in x, however
many rows change sides on the way, and for large t it shows only the broad shape of phi. From whichever start, descents
that end in different kinks often end at one point here, and at a lower one. The last word has a descent on phi itself.
"""

from collections.abc import Callable

import numpy as np

from hierax._auto.constants import DESCENT_ITERATIONS, NEGLIGIBLE, ROUNDING, SQP_CHANGE, SQP_ITERATIONS
from hierax._auto.pieces import PieceDescent
from hierax._auto.session import Work
from hierax._auto.space import Space
from hierax._auto.sqp import Evaluated, Progress, Stop, nowhere, quasi_newton, slsqp
from hierax._engine.following import Total
from hierax._engine.vectors import Point, VectorProblem
from hierax._lower.active_set import Found
from hierax._lower.centred import Centre
from hierax._math.lower_level import INFEASIBLE, SOLVED, UNBOUNDED

CENTRAL_PATH = tuple(np.geomspace(1.0, NEGLIGIBLE, 9))
"""Values of t of a central descent, in units of G; with eight of them (1 to 1e-5) descents from two starts of four
problems (60 y, 100 to 160 rows) ended within 1 % of each other, 20 to 40 % below descents on F(x, y*(x))."""


class ImplicitDescent:
    """One descent, which remembers the best point that it has seen.

    Args:
        space: the problem.
        work: what it may spend.
        start: where it begins.
        to_rounding: whether it goes on to the last digits, for a point that a certificate objects to: the unit of F may
            be so large that what F changes around its minimum is less than any other tolerance.
    """

    def __init__(self, space: Space, work: Work, start: Point, to_rounding: bool = False) -> None:
        self.space, self.vectors, self.work = space, space.vectors, work
        assert self.vectors.follower is not None
        self.follower = self.vectors.follower
        self.warm = start
        self.progress = Progress(0.0) if to_rounding else Progress()
        self.flat = 0.0 if to_rounding else SQP_CHANGE
        self.at_kink = False  # whether it ended at a kink

    def run(self) -> Point | None:
        """The point it ends with; None where the lower level has no solution at the start, or no unique one."""
        start = self.warm.x
        first = self._solved(start)
        if first is None or not (self.follower.unique(first) or self.follower.determined(start, first)):
            return None
        _minimise(self.space, self._evaluated, start, Stop(DESCENT_ITERATIONS, SQP_CHANGE, self.work), self.flat)
        if self.progress.best is None:
            return None
        along_kinks = PieceDescent(self.space, self.work)
        ended = along_kinks.run(self.progress.best[1])
        self.at_kink = along_kinks.at_kink
        return ended

    def _solved(self, x: np.ndarray) -> Found | None:
        """The lower level's solution at x; None where there is none."""
        found = self.follower.solve(x, self.warm.y, self.warm.mu)
        if found is None:
            solved = self.vectors.solved(x, self.warm.y[None], self.warm.mu[None])
            if solved.status[0] != SOLVED:
                return None
            found = self.follower.solve(x, solved.y[0], solved.mu[0])
        return found

    def _evaluated(self, x: np.ndarray) -> Evaluated:
        """phi, the upper constraints, and their gradients in x."""
        inside = self.vectors.landed(x, self.warm.y)[0]
        found = self._solved(inside)
        if found is None:
            return _shown_nothing(self.space, x)
        self.warm = Point(inside, found.y, found.mu)
        return _shown(self.space, self.follower.total(inside, found), x - inside, self.progress, self.warm)


class CentralDescent:
    """One descent, from large t to small t, and its end on F(x, y*(x))."""

    def __init__(self, space: Space, work: Work, start: Point) -> None:
        self.space, self.vectors, self.work = space, space.vectors, work
        assert self.vectors.follower is not None
        self.follower = self.vectors.follower
        self.inside = self._well_inside(start.y)
        self.warm = Point(start.x, self.inside, np.ones_like(start.mu))
        self.t, self.progress = CENTRAL_PATH[0], Progress()

    def run(self) -> Point | None:
        """The point it ends with; None where the central path is lost, or its end has no lower-level solution."""
        for t in CENTRAL_PATH:
            self.t, self.progress = t, Progress()
            stop = Stop(SQP_ITERATIONS, ROUNDING, self.work)
            _minimise(self.space, self._evaluated, self.warm.x, stop, NEGLIGIBLE)
            if self.progress.best is None:
                return None
            self.warm = self.progress.best[1]
        end, status = solved_below(self.vectors, self.warm.x, self.warm.y)
        if status != SOLVED or self.vectors.follower is None:
            return None
        return ImplicitDescent(self.space, self.work, end).run() or end

    def _well_inside(self, y: np.ndarray) -> np.ndarray:
        """y, away from the bounds of Y: by a share of their distance, or of a unit where there is one bound alone."""
        low, high = self.vectors.y_limits
        away = 0.05 * np.where(np.isfinite(high - low), high - low, 1.0)
        return np.clip(y, low + away, high - away)

    def _centre(self, x: np.ndarray) -> Centre | None:
        """y_t(x) from the last one; where that does not arrive, from the inside of Y."""
        found = self.follower.centred(x, self.warm.y, self.warm.mu, self.t)
        return found or self.follower.centred(x, self.inside, np.ones_like(self.warm.mu), self.t)

    def _evaluated(self, x: np.ndarray) -> Evaluated:
        inside = self.vectors.landed(x, self.inside)[0]
        found = self._centre(inside)
        if found is None:
            return _shown_nothing(self.space, x)
        self.warm = Point(inside, found.y, found.mu)
        return _shown(self.space, self.follower.total(inside, found), x - inside, self.progress, self.warm)


def solved_below(vectors: VectorProblem, x: np.ndarray, y: np.ndarray) -> tuple[Point, int]:
    """The lower level solved at x, and how that ended; where there is no solution, (x, y) itself."""
    found = vectors.branches(x, y)
    best = found.best()
    if best is None:
        status = INFEASIBLE if (found.status == INFEASIBLE).all() else int(np.max(found.status))
        return Point(x, y, np.zeros(vectors.layout.rows)), status
    return Point(x, found.y[best], found.mu[best]), UNBOUNDED if found.unbounded else SOLVED


def _minimise(
    space: Space, evaluate: Callable[[np.ndarray], Evaluated], start: np.ndarray, stop: Stop, flat: float
) -> None:
    """A search over x: SLSQP where the upper level has constraints beside bounds, else L-BFGS-B down to `flat`."""
    if space.structure.above.any() or space.vectors.layout.above_equal:
        slsqp(evaluate, start, space.vectors.x_limits, stop)
    else:
        quasi_newton(evaluate, start, space.vectors.x_limits, stop, flat)


def _shown(space: Space, total: Total, away: np.ndarray, progress: Progress, point: Point) -> Evaluated:
    """What a search over x is shown of the upper level at a point, which `progress` notes.

    `away`: how far x is outside of X, where everything goes on along straight lines.
    """
    above = space.structure.above
    outside = max(np.max(total.above[above], initial=0.0), np.max(np.abs(total.equal), initial=0.0))
    progress.note(total.upper, outside, point)
    return Evaluated.of(
        (total.upper + total.slope @ away, total.slope),
        (-total.above[above] - total.above_slopes[above] @ away, -total.above_slopes[above]),
        (total.equal + total.equal_slopes @ away, total.equal_slopes),
    )


def _shown_nothing(space: Space, x: np.ndarray) -> Evaluated:
    """What it is shown where the lower level has no solution."""
    return nowhere(x.size, int(space.structure.above.sum()), space.vectors.layout.above_equal)
