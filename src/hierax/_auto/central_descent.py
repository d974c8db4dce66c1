r"""Descent on F(x, y_t(x)) along the lower level's central path, t falling: over kinks that hold other descents.

y_t(x) (`hierax._lower.centred`) is smooth in x, however many rows change sides on the way, and for large t it shows
only the broad shape of F(x, y*(x)): from whichever start, descents that end in different kinks often end at one point
here, and at a lower one. The last word has a descent on F(x, y*(x)) itself.
"""

import numpy as np

from hierax._auto.constants import CENTRAL_FLAT, CENTRAL_INSIDE, CENTRAL_STEPS, CENTRAL_WEIGHTS, SQP_CHANGE_WITH_VALUES
from hierax._auto.implicit import ImplicitDescent, minimised, told_nothing, told_of
from hierax._auto.kkt_route import solved_below
from hierax._auto.space import Space
from hierax._auto.sqp import Evaluated, Progress, Stop
from hierax._engine.vectors import Point
from hierax._lower.centred import Centre
from hierax._math.lower_level import SOLVED


class CentralDescent:
    """One descent, from large t to small t, and its end on F(x, y*(x))."""

    def __init__(self, space: Space, start: Point) -> None:
        self.space, self.vectors = space, space.vectors
        assert self.vectors.follower is not None
        self.follower = self.vectors.follower
        self.inside = self._well_inside(start.y)
        self.warm = Point(start.x, self.inside, np.ones_like(start.mu))
        self.t, self.progress = CENTRAL_WEIGHTS[0], Progress()

    def run(self) -> Point | None:
        """The point it ends with; None where the central path is lost, or its end has no lower-level solution."""
        stop = Stop(CENTRAL_STEPS, SQP_CHANGE_WITH_VALUES, self.space.deadline)
        for t in CENTRAL_WEIGHTS:
            self.t, self.progress = t, Progress()
            minimised(self.space, self._evaluated, self.warm.x, stop, CENTRAL_FLAT)
            if self.progress.best is None:
                return None
            self.warm = self.progress.best[1]
        end, status = solved_below(self.vectors, self.warm.x, self.warm.y)
        if status != SOLVED or self.vectors.follower is None:
            return None
        return ImplicitDescent(self.space, end).run() or end

    def _well_inside(self, y: np.ndarray) -> np.ndarray:
        """y, away from the bounds of Y: by a share of their distance, or of a unit where there is one bound alone."""
        low, high = self.vectors.y_limits
        width = np.where(np.isfinite(high - low), high - low, 1.0)
        return np.clip(y, low + CENTRAL_INSIDE * width, high - CENTRAL_INSIDE * width)

    def _centre(self, x: np.ndarray) -> Centre | None:
        """y_t(x) from the last one; where that does not arrive, from the inside of Y."""
        found = self.follower.centred(x, self.warm.y, self.warm.mu, self.t)
        return found or self.follower.centred(x, self.inside, np.ones_like(self.warm.mu), self.t)

    def _evaluated(self, x: np.ndarray) -> Evaluated:
        inside = self.vectors.landed(x, self.inside)[0]
        found = self._centre(inside)
        if found is None:
            return told_nothing(self.space, x)
        self.warm = Point(inside, found.y, found.mu)
        return told_of(self.space, self.follower.total(inside, found), x - inside, self.progress, self.warm)
