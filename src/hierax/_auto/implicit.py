"""Descent on phi(x) = F(x, y*(x)): the lower level solved exactly at every x, gradients by implicit differentiation.

For lower levels that look convex with a unique solution. Few evaluations are needed, and what it ends with is as exact
as the lower solves are. Without constraints on the upper level but bounds of X it is L-BFGS-B, else SLSQP, in x alone.
"""

from collections.abc import Callable

import numpy as np

from hierax._auto.constants import IMPLICIT_STEPS, SQP_CHANGE
from hierax._auto.pieces import PieceDescent
from hierax._auto.space import Space
from hierax._auto.sqp import Evaluated, Progress, Stop, nowhere, quasi_newton, slsqp
from hierax._engine.follower import Total
from hierax._engine.vectors import Point
from hierax._lower.active_set import Found

FLAT, ROUNDING = 1e-11, 1e-16  # slopes, in units, at which a descent ends


class ImplicitDescent:
    """One descent, which remembers the best point that it has seen.

    Args:
        space: the problem.
        start: where it begins.
        to_rounding: whether it goes on to the last digits, for a point that a certificate objects to: the unit of F may
            be so large that what F changes around its minimum is less than any other tolerance.
    """

    def __init__(self, space: Space, start: Point, to_rounding: bool = False) -> None:
        self.space, self.vectors = space, space.vectors
        assert self.vectors.follower is not None
        self.follower = self.vectors.follower
        self.warm = start
        self.progress = Progress(0.0) if to_rounding else Progress()
        self.flat = ROUNDING if to_rounding else FLAT
        self.at_kink = False  # whether it ended at a kink

    def run(self) -> Point | None:
        """The point it ends with; None where the lower level has no solution at the start, or no unique one."""
        start, stop = self.warm.x, Stop(IMPLICIT_STEPS, SQP_CHANGE, self.space.deadline)
        first = self._solved(start)
        if first is None or not (self.follower.unique(first) or self.follower.determined(start, first)):
            return None
        minimised(self.space, self._evaluated, start, stop, self.flat)
        if self.progress.best is None:
            return None
        along_kinks = PieceDescent(self.space)
        ended = along_kinks.run(self.progress.best[1])
        self.at_kink = along_kinks.at_kink
        return ended

    def _solved(self, x: np.ndarray) -> Found | None:
        """The lower level's solution at x; None where there is none."""
        return self.follower.solve_from_anywhere(x, self.warm.y, self.warm.mu)

    def _evaluated(self, x: np.ndarray) -> Evaluated:
        """phi, the upper constraints, and their gradients in x."""
        inside = self.vectors.landed(x, self.warm.y)[0]
        found = self._solved(inside)
        if found is None:
            return told_nothing(self.space, x)
        total = self.follower.total(inside, found)
        if not total.finite:
            return told_nothing(self.space, x)
        self.warm = Point(inside, found.y, found.mu)
        return told_of(self.space, total, x - inside, self.progress, self.warm)


def minimised(
    space: Space, evaluate: Callable[[np.ndarray], Evaluated], start: np.ndarray, stop: Stop, flat: float = FLAT
) -> None:
    """A search over x: SLSQP where the upper level has constraints beside bounds, else L-BFGS-B down to `flat`."""
    if space.structure.above.any() or space.vectors.layout.above_equal:
        slsqp(evaluate, start, space.vectors.x_limits, stop)
    else:
        quasi_newton(evaluate, start, space.vectors.x_limits, stop, flat)


def told_of(space: Space, total: Total, away: np.ndarray, progress: Progress, point: Point) -> Evaluated:
    """What a search over x is told of the upper level at a point, which `progress` notes.

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


def told_nothing(space: Space, x: np.ndarray) -> Evaluated:
    """What it is told where the lower level has no solution."""
    return nowhere(x.size, int(space.structure.above.sum()), space.vectors.layout.above_equal)
