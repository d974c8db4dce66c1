"""The two polishes of the small route: SQP on the relaxed KKT system, and SQP against the value function.

Both minimise F from a given point in stages, each started from the last one's end, and return wherever they get to;
whether that is any good is judged elsewhere (`candidates.py`).
"""

import functools
from typing import NamedTuple

import numpy as np

from hierax._auto.constants import (
    CUT_SLACK,
    RELAXATIONS,
    SQP_CHANGE,
    SQP_CHANGE_WITH_VALUES,
    SQP_ITERATIONS,
    VALUE_SLACKS,
    VALUE_SQP_ITERATIONS,
)
from hierax._auto.scales import Scales
from hierax._auto.sqp import Evaluated, Stop, slsqp
from hierax._auto.vectors import Values, VectorProblem


class Point(NamedTuple):
    """A point of the small or the penalty route: x, y and the multipliers of the lower level's rows."""

    x: np.ndarray
    y: np.ndarray
    mu: np.ndarray


class Cuts(NamedTuple):
    """Branches of lower-level solutions whose values v_j(x) bound f(x, y) from above, followed from where they were.

    A fixed point w would be a valid cut only where the constraints do not depend on x.
    """

    y: np.ndarray
    mu: np.ndarray

    @staticmethod
    def none(vectors: VectorProblem) -> "Cuts":
        """No branch yet."""
        return Cuts(np.zeros((0, vectors.layout.ny)), np.zeros((0, vectors.layout.rows)))

    def and_also(self, branch: Point) -> "Cuts":
        """One branch more."""
        return Cuts(np.concatenate([self.y, branch.y[None]]), np.concatenate([self.mu, branch.mu[None]]))

    def __bool__(self) -> bool:
        return len(self.y) > 0


def kkt_polish(
    vectors: VectorProblem, scales: Scales, start: Point, cuts: Cuts, relaxations: tuple[float, ...] = RELAXATIONS
) -> Point:
    """min F subject to the upper constraints, the lower level's KKT system with -mu_i row_i <= t, and the cuts.

    t falls from stage to stage.
    """
    system = _KktSystem(vectors, scales, cuts)
    stop = Stop(SQP_ITERATIONS, SQP_CHANGE_WITH_VALUES if cuts else SQP_CHANGE)
    u = system.packed(start)
    for t in relaxations:
        u = slsqp(functools.partial(system.evaluate, t=t), u, system.bounds(), stop)
    return system.unpacked(u)


def value_polish(vectors: VectorProblem, scales: Scales, start: Point, cuts: Cuts, beat: float = np.inf) -> Point:
    """min F subject to the upper and the lower constraints and f <= v_j + e for every cut, e falling.

    Needs no multiplier: it reaches solutions at which the lower level has none, and it chooses y freely among the lower
    level's solutions. F only rises as e falls: a stage that ends above `beat` is the last.
    """
    nx, no_multipliers = vectors.layout.nx, np.zeros(vectors.layout.rows)
    units = np.concatenate([scales.x, scales.y])
    told = vectors.structure.curved & ~vectors.layout.equal

    def evaluate(u: np.ndarray, slack: float) -> Evaluated:
        point = u * units
        value, slope = vectors.at(point[:nx], point[nx:], no_multipliers)
        cut, cut_slope = _cut_rows(vectors, scales, cuts, point[:nx], (value, slope), slack)
        above, equal = vectors.structure.above, vectors.layout.equal
        return Evaluated(
            value.upper / scales.upper,
            slope.upper * units / scales.upper,
            np.concatenate([-value.above[above], -value.rows[told], cut]),
            np.concatenate([-slope.above[above], -slope.rows[told], cut_slope]) * units,
            np.concatenate([value.above_equal, value.rows[equal]]),
            np.concatenate([slope.above_equal, slope.rows[equal]]) * units,
        )

    limits = vectors.x_limits, vectors.y_limits
    bounds = np.concatenate([s.low for s in limits]) / units, np.concatenate([s.high for s in limits]) / units
    u = np.concatenate([start.x, start.y]) / units
    for slack in VALUE_SLACKS:
        stop = Stop(VALUE_SQP_ITERATIONS, SQP_CHANGE_WITH_VALUES)
        u = slsqp(functools.partial(evaluate, slack=slack), u, bounds, stop)
        x, y = np.split(u * units, [nx])
        if vectors.at(x, y, no_multipliers)[0].upper > beat:
            break
    return Point(x, y, no_multipliers)


def _cut_rows(
    vectors: VectorProblem,
    scales: Scales,
    cuts: Cuts,
    x: np.ndarray,
    here: tuple[Values[np.ndarray], Values[np.ndarray]],
    slack: float,
) -> tuple[np.ndarray, np.ndarray]:
    """(v_j(x) - f)/unit + slack >= 0, with Jacobians in (x, y); `here` are values and Jacobians at (x, y)."""
    value, slope = here
    found = vectors.followed(x, cuts.y, cuts.mu)
    level = np.zeros((len(cuts.y), vectors.layout.nx + vectors.layout.ny))
    level[:, : vectors.layout.nx] = found.slope
    return (found.value - value.lower) / scales.lower + slack, (level - slope.lower) / scales.lower


class _KktSystem:
    """min F over the relaxed KKT system of the lower level, as SLSQP sees it.

    The unknowns u are x, y and the multipliers of the live rows, each in its unit.
    """

    def __init__(self, vectors: VectorProblem, scales: Scales, cuts: Cuts) -> None:
        self.vectors, self.scales, self.cuts = vectors, scales, cuts
        self.live = vectors.structure.live
        multiplier_units = np.full(self.live.sum(), scales.lower)
        self.units = np.concatenate([scales.x, scales.y, multiplier_units])
        self.pairs = np.flatnonzero(~vectors.layout.equal[self.live])  # complementary pairs, among the live rows
        self.n = vectors.layout.nx + vectors.layout.ny

    def packed(self, point: Point) -> np.ndarray:
        """A point as the unknowns."""
        return np.concatenate([point.x, point.y, point.mu[self.live]]) / self.units

    def unpacked(self, u: np.ndarray) -> Point:
        """The unknowns as a point."""
        x, y, live = np.split(u * self.units, [self.vectors.layout.nx, self.n])
        mu = np.zeros(self.live.size)
        mu[self.live] = live
        return Point(x, y, mu)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The boxes around X and Y, and the multipliers' signs."""
        x, y, equal = self.vectors.x_limits, self.vectors.y_limits, self.vectors.layout.equal[self.live]
        low = np.concatenate([x.low, y.low, np.where(equal, -np.inf, 0.0)])
        high = np.concatenate([x.high, y.high, np.full(equal.size, np.inf)])
        return low / self.units, high / self.units

    def evaluate(self, u: np.ndarray, t: float) -> Evaluated:
        """Everything at u."""
        vectors, scales = self.vectors, self.scales
        point = self.unpacked(u)
        value, slope = vectors.at(*point)
        above, equal = vectors.structure.above, vectors.layout.equal
        told = vectors.structure.curved & ~equal
        products, products_slope = self._complementarity(u, value, slope)
        inequalities = [-value.above[above], -value.rows[told], t - products]
        inequality_slopes = [self._wide(-slope.above[above]), self._wide(-slope.rows[told]), -products_slope]
        if self.cuts:
            cut, cut_slope = _cut_rows(vectors, scales, self.cuts, point.x, (value, slope), CUT_SLACK)
            inequalities.append(cut)
            inequality_slopes.append(self._wide(cut_slope))
        unit = scales.y / scales.lower
        stationarity_slope = self._wide(unit[:, None] * slope.stationarity)
        in_y = slope.rows[self.live][:, vectors.layout.nx :]
        stationarity_slope[:, self.n :] = unit[:, None] * in_y.T * scales.lower
        return Evaluated(
            value.upper / scales.upper,
            self._wide(slope.upper[None])[0] / scales.upper,
            np.concatenate(inequalities),
            np.concatenate(inequality_slopes),
            np.concatenate([value.above_equal, value.rows[equal], unit * value.stationarity]),
            np.concatenate([self._wide(slope.above_equal), self._wide(slope.rows[equal]), stationarity_slope]),
        )

    def _complementarity(
        self, u: np.ndarray, value: Values[np.ndarray], slope: Values[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """-mu_i row_i of every inequality, the multipliers in their unit, with Jacobians in u."""
        mu, rows = u[self.n :][self.pairs], value.rows[self.live][self.pairs]
        products_slope = self._wide(-mu[:, None] * slope.rows[self.live][self.pairs])
        products_slope[np.arange(self.pairs.size), self.n + self.pairs] = -rows
        return -mu * rows, products_slope

    def _wide(self, jacobian: np.ndarray) -> np.ndarray:
        """A Jacobian in (x, y) as one in u."""
        whole = np.zeros((len(jacobian), self.units.size))
        whole[:, : self.n] = jacobian
        return whole * self.units
