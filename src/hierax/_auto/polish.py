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
from hierax._auto.space import Space
from hierax._auto.sqp import Evaluated, Stop, slsqp
from hierax._judge.programs import Values
from hierax._judge.vectors import Point


class Cuts(NamedTuple):
    """Branches of lower-level solutions whose values v_j(x) bound f(x, y) from above, followed from where they were.

    A fixed point w would be a valid cut only where the constraints do not depend on x.
    """

    y: np.ndarray
    mu: np.ndarray

    @staticmethod
    def none(space: Space) -> "Cuts":
        """No branch yet."""
        layout = space.vectors.layout
        return Cuts(np.zeros((0, layout.ny)), np.zeros((0, layout.rows)))

    def and_also(self, branch: Point) -> "Cuts":
        """One branch more."""
        return Cuts(np.concatenate([self.y, branch.y[None]]), np.concatenate([self.mu, branch.mu[None]]))

    def __bool__(self) -> bool:
        return len(self.y) > 0


def kkt_polish(space: Space, start: Point, cuts: Cuts, relaxations: tuple[float, ...] = RELAXATIONS) -> Point:
    """min F subject to the upper constraints, the lower level's KKT system with -mu_i row_i <= t, and the cuts.

    t falls from stage to stage.
    """
    system = _KktSystem(space, cuts)
    stop = Stop(SQP_ITERATIONS, SQP_CHANGE_WITH_VALUES if cuts else SQP_CHANGE, space.deadline)
    u = system.packed(start)
    for t in relaxations:
        u = slsqp(functools.partial(system.evaluate, t=t), u, system.bounds(), stop)
    return system.unpacked(u)


def value_polish(space: Space, start: Point, cuts: Cuts, beat: float = np.inf) -> Point:
    """min F subject to the upper and the lower constraints and f <= v_j + e for every cut, e falling.

    Needs no multiplier: it reaches solutions at which the lower level has none, and it chooses y freely among the lower
    level's solutions. F only rises as e falls: a stage that ends above `beat` is the last.
    """
    vectors, nx, no_multipliers = space.vectors, space.vectors.layout.nx, np.zeros(space.vectors.layout.rows)
    told = space.structure.curved & ~vectors.layout.equal

    def evaluate(u: np.ndarray, slack: float) -> Evaluated:
        value, slope = vectors.at(u[:nx], u[nx:], no_multipliers)
        cut, cut_slope = _cut_rows(space, cuts, u[:nx], (value, slope), slack)
        above, equal = space.structure.above, vectors.layout.equal
        return Evaluated(
            value.upper,
            slope.upper,
            np.concatenate([-value.above[above], -value.rows[told], cut]),
            np.concatenate([-slope.above[above], -slope.rows[told], cut_slope]),
            np.concatenate([value.above_equal, value.rows[equal]]),
            np.concatenate([slope.above_equal, slope.rows[equal]]),
        )

    limits = vectors.x_limits, vectors.y_limits
    bounds = np.concatenate([s.low for s in limits]), np.concatenate([s.high for s in limits])
    u = np.concatenate([start.x, start.y])
    for slack in VALUE_SLACKS:
        stop = Stop(VALUE_SQP_ITERATIONS, SQP_CHANGE_WITH_VALUES, space.deadline)
        u = slsqp(functools.partial(evaluate, slack=slack), u, bounds, stop)
        if vectors.at(u[:nx], u[nx:], no_multipliers)[0].upper > beat:
            break
    return Point(u[:nx], u[nx:], no_multipliers)


def _cut_rows(
    space: Space, cuts: Cuts, x: np.ndarray, here: tuple[Values[np.ndarray], Values[np.ndarray]], slack: float
) -> tuple[np.ndarray, np.ndarray]:
    """v_j(x) - f + slack >= 0, with Jacobians in (x, y); `here` are values and Jacobians at (x, y)."""
    value, slope = here
    layout = space.vectors.layout
    found = space.vectors.followed(x, cuts.y, cuts.mu)
    level = np.zeros((len(cuts.y), layout.nx + layout.ny))
    level[:, : layout.nx] = found.slope
    return found.value - value.lower + slack, level - slope.lower


class _KktSystem:
    """min F over the relaxed KKT system of the lower level, as SLSQP sees it.

    The unknowns u are x, y and the multipliers of the live rows.
    """

    def __init__(self, space: Space, cuts: Cuts) -> None:
        self.space, self.vectors, self.cuts = space, space.vectors, cuts
        self.live = space.structure.live
        self.pairs = np.flatnonzero(~self.vectors.layout.equal[self.live])  # complementary pairs, among the live rows
        self.n = self.vectors.layout.nx + self.vectors.layout.ny

    def packed(self, point: Point) -> np.ndarray:
        """A point as the unknowns."""
        return np.concatenate([point.x, point.y, point.mu[self.live]])

    def unpacked(self, u: np.ndarray) -> Point:
        """The unknowns as a point."""
        x, y, live = np.split(u, [self.vectors.layout.nx, self.n])
        mu = np.zeros(self.live.size)
        mu[self.live] = live
        return Point(x, y, mu)

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The boxes around X and Y, and the multipliers' signs."""
        x, y, equal = self.vectors.x_limits, self.vectors.y_limits, self.vectors.layout.equal[self.live]
        low = np.concatenate([x.low, y.low, np.where(equal, -np.inf, 0.0)])
        high = np.concatenate([x.high, y.high, np.full(equal.size, np.inf)])
        return low, high

    def evaluate(self, u: np.ndarray, t: float) -> Evaluated:
        """Everything at u."""
        vectors, structure = self.vectors, self.space.structure
        point = self.unpacked(u)
        value, slope = vectors.at(*point)
        above, equal = structure.above, vectors.layout.equal
        told = structure.curved & ~equal
        products, products_slope = self._complementarity(u, value, slope)
        inequalities = [-value.above[above], -value.rows[told], t - products]
        inequality_slopes = [self._wide(-slope.above[above]), self._wide(-slope.rows[told]), -products_slope]
        if self.cuts:
            cut, cut_slope = _cut_rows(self.space, self.cuts, point.x, (value, slope), CUT_SLACK)
            inequalities.append(cut)
            inequality_slopes.append(self._wide(cut_slope))
        stationarity_slope = self._wide(slope.stationarity)
        stationarity_slope[:, self.n :] = slope.rows[self.live][:, vectors.layout.nx :].T
        return Evaluated(
            value.upper,
            self._wide(slope.upper[None])[0],
            np.concatenate(inequalities),
            np.concatenate(inequality_slopes),
            np.concatenate([value.above_equal, value.rows[equal], value.stationarity]),
            np.concatenate([self._wide(slope.above_equal), self._wide(slope.rows[equal]), stationarity_slope]),
        )

    def _complementarity(
        self, u: np.ndarray, value: Values[np.ndarray], slope: Values[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """-mu_i row_i of every inequality, with Jacobians in u."""
        mu, rows = u[self.n :][self.pairs], value.rows[self.live][self.pairs]
        products_slope = self._wide(-mu[:, None] * slope.rows[self.live][self.pairs])
        products_slope[np.arange(self.pairs.size), self.n + self.pairs] = -rows
        return -mu * rows, products_slope

    def _wide(self, jacobian: np.ndarray) -> np.ndarray:
        """A Jacobian in (x, y) as one in u."""
        whole = np.zeros((len(jacobian), self.n + int(self.live.sum())))
        whole[:, : self.n] = jacobian
        return whole
