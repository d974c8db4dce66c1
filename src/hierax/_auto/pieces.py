r"""Descent along kinks: phi(x) = F(x, y*(x)) is smooth as long as the lower level's active rows A stay the same.

With A held, y_A(x) and mu_A(x) follow from equations alone, and

    min F(x, y_A(x))   subject to   mu_i(x) >= 0 for i in A,   r_i(x, y_A(x)) <= 0 for the others

is a smooth problem on one piece of x-space. At its solution some of these constraints bind, and the best move over all
choices for them (`hierax._judge.gain`) names the next piece, or none. Where a quasi-Newton method zigzags across
kinks, this follows them.
"""

import numpy as np

from hierax._auto.constants import (
    DESCENT_ITERATIONS,
    NEARBY,
    NEGLIGIBLE,
    ROUNDING,
    SAME_PLACE,
    SMALL_ROUTE_SIZE,
    SQP_CHANGE,
    SQP_ITERATIONS,
)
from hierax._auto.session import Work
from hierax._auto.space import Space
from hierax._auto.sqp import Evaluated, Progress, SearchAborted, Stop, slsqp
from hierax._engine.linearised import Linearised
from hierax._engine.vectors import Point
from hierax._judge.gain import gain


class PieceDescent:
    """From a point on or near a kink, piece after piece."""

    def __init__(self, space: Space, work: Work) -> None:
        self.space, self.vectors, self.work = space, space.vectors, work
        assert self.vectors.follower is not None
        self.follower = self.vectors.follower
        self.at_kink = False  # whether it ended at one

    def run(self, start: Point) -> Point:
        """The best point found; the start itself where no piece leads down."""
        best, lowest = start, float(self.vectors.values(*start).upper)
        if start.x.size > SMALL_ROUTE_SIZE or self.vectors.programs.large:
            return best
        at = self._at(best)
        if not np.any(at.radii <= SAME_PLACE):
            return best
        active = at.active
        for _ in range(DESCENT_ITERATIONS):
            if self.work.passed:
                break
            found = self._minimised(at, active)
            if found is None or not found[0] < lowest - ROUNDING * (1 + abs(lowest)):
                if not np.array_equal(active, at.active) or found is None:
                    break
            else:
                (lowest, best), at = found, self._at(found[1])
            move = gain(at, ROUNDING, at.radii <= NEGLIGIBLE)
            if move.active is None or not move.decrease > ROUNDING or np.array_equal(move.active, active):
                break
            active = move.active
        self.at_kink = bool(np.any(at.radii <= NEGLIGIBLE))
        return best

    def _at(self, point: Point) -> Linearised:
        return Linearised.at(self.vectors, point)

    def _minimised(self, at: Linearised, active: np.ndarray) -> tuple[float, Point] | None:
        """F and the point at the end of one piece; None where the lower level does not have it there."""
        piece = _Piece(self.space, at, active)
        stop = Stop(SQP_ITERATIONS, SQP_CHANGE, self.work)
        slsqp(piece.evaluate, at.point.x, self.vectors.x_limits, stop)
        if piece.progress.best is None:
            return None
        x, y, mu = piece.progress.best[1]
        found = self.follower.solve(x, y, np.maximum(mu, 0.0))
        if found is None:
            return None
        point = Point(x, found.y, found.mu)
        values = self.vectors.values(*point)
        shown = np.concatenate([values.above[self.space.structure.above], np.abs(values.above_equal)])
        return (float(values.upper), point) if np.max(shown, initial=0.0) <= ROUNDING else None


class _Piece:
    """One smooth problem in x."""

    def __init__(self, space: Space, at: Linearised, active: np.ndarray) -> None:
        self.space, self.vectors, self.active = space, space.vectors, active
        assert self.vectors.follower is not None
        self.follower = self.vectors.follower
        self.warm, self.progress = at.point, Progress()
        near = np.argsort(np.where(at.radii <= NEARBY, at.radii, np.inf), kind="stable")[:SMALL_ROUTE_SIZE]
        near = near[at.radii[near] <= NEARBY]
        changed = np.flatnonzero((active != at.active) & ~self.vectors.layout.equal)
        self.near = np.union1d(near, changed)

    def evaluate(self, x: np.ndarray) -> Evaluated:
        """F, the upper constraints and what keeps x on the piece, with their gradients."""
        inside = self.vectors.landed(x, self.warm.y)[0]
        found = self.follower.held(inside, self.warm.y, self.warm.mu, self.active)
        if found is None:
            raise SearchAborted
        self.warm = Point(inside, found.y, found.mu)
        total, above = self.follower.total(inside, found), self.space.structure.above
        values, slopes = self.follower.sides(inside, found, self.near)
        parts = (total.above[above], np.abs(total.equal), -values)
        self.progress.note(total.upper, max(np.max(part, initial=0.0) for part in parts), self.warm)
        away = x - inside
        shown = np.concatenate([-total.above[above] - total.above_slopes[above] @ away, values + slopes @ away])
        return Evaluated.of(
            (total.upper + total.slope @ away, total.slope),
            (shown, np.concatenate([-total.above_slopes[above], slopes])),
            (total.equal + total.equal_slopes @ away, total.equal_slopes),
        )
