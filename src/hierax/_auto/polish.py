"""The two polishes of the small route: SQP on the relaxed KKT system, and SQP against the value function."""

import functools
from typing import NamedTuple

import numpy as np

from hierax._auto.sqp import Evaluated, slsqp
from hierax._auto.vectors import Flat, Numbers

RELAXED = (1e-1, 1e-4, 1e-8)  # bounds on -mu_i row_i, one after another
WITHIN = (1e-2, 1e-5, 1e-8)  # distances of f from the value function, in units of f
SLACK = 1e-7  # of a value cut beside the KKT system
ITERATIONS = 60
ENOUGH = 1e-12  # change of F, in its unit, at which a stage ends ...
NOISE = 1e-9  # ... and where value functions take part, which are known to about this accuracy


class Scales(NamedTuple):
    """Units: of x and y entry by entry, of F, and of f."""

    x: np.ndarray
    y: np.ndarray
    upper: float
    lower: float


class Point(NamedTuple):
    """A point of the small route: x, y and the multipliers of the lower level's rows."""

    x: Numbers
    y: Numbers
    mu: Numbers


class Cuts(NamedTuple):
    """Branches of lower-level solutions whose values v_j(x) bound f(x, y) from above, followed from where they were.

    A fixed point w would be a valid cut only where the constraints do not depend on x.
    """

    v: Numbers
    mu: Numbers

    def and_also(self, v: Numbers, mu: Numbers) -> "Cuts":
        """One branch more."""
        return Cuts(np.concatenate([self.v, v[None]]), np.concatenate([self.mu, mu[None]]))


def no_cuts(flat: Flat) -> Cuts:
    """No branch yet."""
    return Cuts(np.zeros((0, flat.ny)), np.zeros((0, flat.equal.size)))


def _cut_rows(
    flat: Flat, scales: Scales, cuts: Cuts, x: np.ndarray, value: np.ndarray, slope: np.ndarray, slack: float
) -> tuple[Numbers, Numbers]:
    """(v_j(x) - f)/unit + slack >= 0, with Jacobians in (x, y)."""
    found = flat.branches(x, cuts.v, cuts.mu)
    level = np.zeros((len(cuts.v), flat.nx + flat.ny))
    level[:, : flat.nx] = found.slope
    return (found.value - value) / scales.lower + slack, (level - slope) / scales.lower


def kkt_polish(flat: Flat, scales: Scales, start: Point, cuts: Cuts, relaxed: tuple[float, ...] = RELAXED) -> Point:
    """min F subject to the upper constraints, the lower level's KKT system with -mu_i row_i <= t, and the cuts.

    t falls from stage to stage, each started from the last one's end.
    """
    live, curved, nx = flat.live, flat.curved, flat.nx
    equal, n = flat.equal[live], flat.nx + flat.ny
    units = np.concatenate([scales.x, scales.y, np.full(live.sum(), scales.lower)])
    pairs = np.flatnonzero(~equal)  # complementary pairs, among the live rows
    count = n + live.sum()

    def evaluate(u: np.ndarray, t: float) -> Evaluated:
        point, mu = u * units, np.zeros(live.size)
        x, y = point[:nx], point[nx:n]
        mu[live] = point[n:]
        value, slope = flat.at(x, y, mu)

        def wide(part: np.ndarray) -> np.ndarray:
            whole = np.zeros((len(part), count))
            whole[:, :n] = part
            return whole * units

        both = -u[n:][pairs] * value.rows[live][pairs]
        both_slope = wide(-u[n:][pairs, None] * slope.rows[live][pairs])
        both_slope[np.arange(pairs.size), n + pairs] = -value.rows[live][pairs]
        above = [-value.above[flat.above], -value.rows[curved & ~flat.equal], t - both]
        above_slope = [wide(-slope.above[flat.above]), wide(-slope.rows[curved & ~flat.equal]), -both_slope]
        if len(cuts.v):
            more, more_slope = _cut_rows(flat, scales, cuts, x, value.lower, slope.lower, SLACK)
            above.append(more)
            above_slope.append(wide(more_slope))
        balance = scales.y / scales.lower
        balance_slope = wide(balance[:, None] * slope.stationarity)
        balance_slope[:, n:] = balance[:, None] * slope.rows[live][:, nx:].T * scales.lower
        return Evaluated(
            value.upper / scales.upper,
            wide(slope.upper[None])[0] / scales.upper,
            np.concatenate(above),
            np.concatenate(above_slope),
            np.concatenate([value.above_equal, value.rows[flat.equal], balance * value.stationarity]),
            np.concatenate([wide(slope.above_equal), wide(slope.rows[flat.equal]), balance_slope]),
        )

    low = np.concatenate([flat.x_bounds[0], flat.y_bounds[0], np.where(equal, -np.inf, 0.0)]) / units
    high = np.concatenate([flat.x_bounds[1], flat.y_bounds[1], np.full(live.sum(), np.inf)]) / units
    u = np.concatenate([start.x, start.y, start.mu[live]]) / units
    for t in relaxed:
        u = slsqp(functools.partial(evaluate, t=t), u, (low, high), ITERATIONS, NOISE if len(cuts.v) else ENOUGH)
    mu = np.zeros(live.size)
    mu[live] = (u * units)[n:]
    return Point((u * units)[:nx], (u * units)[nx:n], mu)


def value_polish(flat: Flat, scales: Scales, start: Point, cuts: Cuts, beat: float = np.inf) -> Point:
    """min F subject to the upper and the lower constraints and f <= v_j + e for every cut, e falling.

    Needs no multiplier: it reaches solutions at which the lower level has none, and it chooses y freely among the lower
    level's solutions. F only rises as e falls: a stage that ends above `beat` is the last.
    """
    curved, nx = flat.curved, flat.nx
    units, nothing = np.concatenate([scales.x, scales.y]), np.zeros(flat.equal.size)

    def evaluate(u: np.ndarray, slack: float) -> Evaluated:
        point = u * units
        value, slope = flat.at(point[:nx], point[nx:], nothing)
        cut, cut_slope = _cut_rows(flat, scales, cuts, point[:nx], value.lower, slope.lower, slack)
        rows = curved & ~flat.equal
        return Evaluated(
            value.upper / scales.upper,
            slope.upper * units / scales.upper,
            np.concatenate([-value.above[flat.above], -value.rows[rows], cut]),
            np.concatenate([-slope.above[flat.above], -slope.rows[rows], cut_slope]) * units,
            np.concatenate([value.above_equal, value.rows[flat.equal]]),
            np.concatenate([slope.above_equal, slope.rows[flat.equal]]) * units,
        )

    low, high = (np.concatenate([a, b]) / units for a, b in zip(flat.x_bounds, flat.y_bounds, strict=True))
    u = np.concatenate([start.x, start.y]) / units
    for slack in WITHIN:
        u = slsqp(functools.partial(evaluate, slack=slack), u, (low, high), ITERATIONS // 2, NOISE)
        point = u * units
        if flat.at(point[:nx], point[nx:], nothing)[0].upper > beat:
            break
    return Point((u * units)[:nx], (u * units)[nx:], nothing)
