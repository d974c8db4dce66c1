"""Descent on phi(x) = F(x, y*(x)): the lower level solved exactly at every x, gradients by implicit differentiation.

For lower levels that look convex with a unique solution. Few evaluations are needed, and what it ends with is as exact
as the lower solves are. Without constraints on the upper level but bounds of X it is L-BFGS-B, else SLSQP, in x alone.
"""

import numpy as np

from hierax._auto.constants import IMPLICIT_STEPS, SQP_CHANGE
from hierax._auto.pieces import PieceDescent
from hierax._auto.space import Space
from hierax._auto.sqp import Evaluated, Progress, Stop, nowhere, quasi_newton, slsqp
from hierax._judge.vectors import Point
from hierax._lower.active_set import Found
from hierax._math.lower_level import SOLVED


class ImplicitDescent:
    """One descent, which remembers the best point that it has seen."""

    def __init__(self, space: Space, start: Point) -> None:
        self.space, self.vectors = space, space.vectors
        assert self.vectors.follower is not None
        self.follower = self.vectors.follower
        self.warm = start
        self.progress = Progress()

    def run(self) -> Point | None:
        """The point it ends with; None where the lower level has no solution at the start, or no unique one."""
        start, bounds = self.warm.x, self.vectors.x_limits
        stop = Stop(IMPLICIT_STEPS, SQP_CHANGE, self.space.deadline)
        first = self._solved(start)
        if first is None or not (self.follower.unique(first) or self.follower.determined(start, first)):
            return None
        if self.space.structure.above.any() or self.vectors.layout.above_equal:
            slsqp(self._evaluated, start, bounds, stop)
        else:
            quasi_newton(self._evaluated, start, bounds, stop)
        best = self.progress.best
        return None if best is None else PieceDescent(self.space).run(best[1])

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
        inside, above = self.vectors.landed(x, self.warm.y)[0], self.space.structure.above
        found = self._solved(inside)
        if found is None:
            return self._nothing(x)
        total = self.follower.total(inside, found)
        self.warm = Point(inside, found.y, found.mu)
        outside = max(np.max(total.above[above], initial=0.0), np.max(np.abs(total.equal), initial=0.0))
        self.progress.note(total.upper, outside, self.warm)
        away = x - inside  # outside of X everything goes on along straight lines
        return Evaluated.of(
            (total.upper + total.slope @ away, total.slope),
            (-total.above[above] - total.above_slopes[above] @ away, -total.above_slopes[above]),
            (total.equal + total.equal_slopes @ away, total.equal_slopes),
        )

    def _nothing(self, x: np.ndarray) -> Evaluated:
        """What a search is told where the lower level has no solution."""
        above, equal = int(self.space.structure.above.sum()), self.vectors.layout.above_equal
        return nowhere(x.size, above, equal)
