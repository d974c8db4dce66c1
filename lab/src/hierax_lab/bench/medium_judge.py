"""The judge of `hierax bench medium`: what a returned point is worth, by lower solutions from outside hierax."""

from typing import NamedTuple

import numpy as np

from hierax import Sampler
from hierax_lab.bench.medium_case import Bounds, Functions
from hierax_lab.bench.medium_lower import Unsolved
from hierax_lab.bench.medium_phi import Phi, outside

LIMIT = 1e-4  # violation, lower gap and descent beyond which a claim to have solved a problem is false
NOISY_LIMIT = 1e-2  # of gap and descent where samples are all that can be seen of F and G
RADIUS = 0.01  # of the descent test, as a share of the width of X or of 1 + |x_i|
EVALUATIONS = 20  # of phi, in the descent test


class Judged(NamedTuple):
    """What the judge says of a point (x, y).

    Attributes:
        upper: F(x, y*(x)) with y* from outside; infinite where the lower level has no solution at x.
        violation: the largest of X, of the upper rows at (x, y*(x)), and of the lower level's rows at (x, y).
        gap: (G(x, y) - v(x)) / (1 + |v(x)|).
    """

    upper: float
    violation: float
    gap: float


class Judge:
    """The judge of one case."""

    def __init__(self, functions: Functions) -> None:
        self.functions, self.case = functions, functions.case

    @property
    def limit(self) -> float:
        """What a claim may miss by, relative to 1 + |value|."""
        return NOISY_LIMIT if isinstance(self.case.problem.zeta, Sampler) else LIMIT

    def __call__(self, x: np.ndarray, y: np.ndarray) -> Judged:
        """Judge a point."""
        f = self.functions
        if not (np.isfinite(x).all() and np.isfinite(y).all()):
            return Judged(np.inf, np.inf, np.inf)
        try:
            best = Phi(f).lower_solution(x)
        except Unsolved:
            return Judged(np.inf, np.inf, np.inf)
        rows, equal = f.rows(x, y)[0], f.equal(x, y)[0]
        below = max(np.max(rows, initial=0.0), np.max(np.abs(equal), initial=0.0), self.case.y_bounds.beyond(y))
        above = max(np.max(f.upper_rows(x, best)[0], initial=0.0), outside(self.case, x))
        value = float(f.lower(x, best)[0])
        gap = (float(f.lower(x, y)[0]) - value) / (1 + abs(value))
        return Judged(float(f.upper(x, best)[0]), float(max(below, above)), gap)

    def start(self) -> float | None:
        """F at x0; None where x0 is not feasible above or below."""
        x = self.functions.x0
        judged = self(x, self.functions.y0)
        if not np.isfinite(judged.upper):
            return None
        rows = self.functions.upper_rows(x, Phi(self.functions).lower_solution(x))[0]
        return judged.upper if max(np.max(rows, initial=0.0), outside(self.case, x)) <= LIMIT else None

    def descent(self, x: np.ndarray) -> float:
        """By how much a few steps of a quasi-Newton method lower F(x, y*(x)) close to x, relative to 1 + |F|."""
        low, high = self.case.x_bounds
        width = np.where(np.isfinite(high - low), high - low, 1 + np.abs(x))
        inside = np.clip(x, low, high)
        near = Bounds(np.maximum(low, inside - RADIUS * width), np.minimum(high, inside + RADIUS * width))
        phi = Phi(self.functions, evaluations=EVALUATIONS)
        value = phi(inside).value
        phi.minimised(inside, near)
        return max(0.0, value - phi.best[0]) / (1 + abs(value))

    def false_claim(self, judged: Judged, descent: float) -> bool:
        """Whether a point that is claimed to be a solution is none."""
        return bool(judged.violation > LIMIT or judged.gap > self.limit or descent > self.limit)
