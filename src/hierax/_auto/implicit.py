"""Descent on phi(x) = F(x, y*(x)): the lower level solved exactly at every x, gradients by implicit differentiation.

For lower levels that look convex with a unique solution. Few evaluations are needed, and what it ends with is as exact
as the lower solves are. Without constraints on the upper level but bounds of X it is L-BFGS-B, else SLSQP, in x alone.
"""

import warnings

import numpy as np

from hierax._auto.constants import IMPLICIT_STEPS, RUN_OFF, SQP_CHANGE
from hierax._auto.space import Space
from hierax._auto.sqp import Evaluated, LeftOff, Stop, slsqp
from hierax._base.lazy import lazy
from hierax._judge.local_model import Linearised, response
from hierax._judge.vectors import Point
from hierax._math.lower_level import SOLVED

scipy_optimize = lazy("scipy.optimize")


class ImplicitDescent:
    """One descent, which remembers the best point that it has seen."""

    def __init__(self, space: Space, start: Point) -> None:
        self.space, self.vectors = space, space.vectors
        self.warm = start
        self.best: tuple[float, Point] | None = None

    def run(self) -> Point | None:
        """The point it ends with; None where the lower level has no solution at the start, or no unique one."""
        start, bounds = self.warm.x, self.vectors.x_limits
        stop = Stop(IMPLICIT_STEPS, SQP_CHANGE, self.space.deadline)
        if self._at(start) is None:
            return None
        constrained = self.space.structure.above.any() or self._evaluated(start).equal.size
        if constrained:
            slsqp(self._evaluated, start, bounds, stop)
        else:
            self._quasi_newton(start, stop)
        return None if self.best is None else self.best[1]

    def _quasi_newton(self, start: np.ndarray, stop: Stop) -> None:
        def value(x: np.ndarray) -> tuple[float, np.ndarray]:
            if stop.deadline.passed:
                raise LeftOff
            found = self._evaluated(x)
            return float(found.value), found.slope

        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                scipy_optimize.minimize(
                    value,
                    start,
                    jac=True,
                    method="L-BFGS-B",
                    bounds=np.stack(self.vectors.x_limits, axis=1),
                    options={"maxiter": stop.iterations, "ftol": 1e-15, "gtol": 1e-11, "maxls": 30},
                )
        except LeftOff:
            pass

    def _at(self, x: np.ndarray) -> tuple[Linearised, np.ndarray] | None:
        """The problem at the lower level's solution, and dy*/dx; None where there is none."""
        found = self.vectors.followed(x, self.warm.y[None], self.warm.mu[None])
        if found.status[0] != SOLVED:
            return None
        point = Point(x.copy(), found.y[0], found.mu[0])
        at = Linearised(self.vectors, point, *self.vectors.at(*point))
        moved = response(at, at.active).y
        return None if moved is None else (at, moved)

    def _evaluated(self, x: np.ndarray) -> Evaluated:
        """phi, the upper constraints, and their gradients in x."""
        found, above = self._at(x), self.space.structure.above
        if found is None:
            none = np.zeros((int(above.sum()), x.size))
            return Evaluated(RUN_OFF, np.zeros(x.size), np.zeros(len(none)), none, np.zeros(0), np.zeros((0, x.size)))
        at, moved = found
        self.warm = at.point
        value = float(at.values.upper)
        violation = self.vectors.violation(at.point.x, at.point.y, at.values)
        merit = value + RUN_OFF * max(violation - 1e-9, 0.0)
        if self.best is None or merit < self.best[0]:
            self.best = merit, at.point

        def total(slopes: np.ndarray) -> np.ndarray:
            return slopes[..., : x.size] + slopes[..., x.size :] @ moved

        return Evaluated(
            value,
            total(at.slopes.upper),
            -at.values.above[above],
            -total(at.slopes.above[above]),
            at.values.above_equal,
            total(at.slopes.above_equal),
        )
