r"""Points on the central path of a convex lower level, by a primal-dual interior point method on the host.

With the rows r of inequalities, slacks s > 0 and multipliers mu > 0, y_t(x) solves

    L_y = 0,     r + s = 0,     mu_i s_i = t   (and r = 0 for equalities),

so it lies inside, moves smoothly with x whichever rows are active, and tends to y*(x) as t falls. A Newton step
eliminates ds and dmu; what is left is a system of the order of y and the equalities. `System` solves with the same
matrix for derivatives through y_t, in the form that `hierax._lower.linear.System` has for those through y*.
"""

from typing import NamedTuple

import numpy as np

from hierax._base.imports import lazy
from hierax._lower.active_set import Level, Slopes
from hierax._lower.linear import Matrices, SecondDerivatives

sparse = lazy("scipy.sparse")

MAX_STEPS = 60  # Newton steps
SOLVED = 1e-9  # largest entry of the three conditions, in units, over 1 + t
INSIDE = 0.995  # share of the way to s = 0 or mu = 0 that a step may go
GROWTH = 10.0  # by which a step may make the conditions worse
CLOSER = 0.1  # share of the mean of mu_i s_i that a step aims at, as long as it is more than t
SHORTEST = 1e-3  # share of a step that is tried, at least


class System:
    """[[L_yy, r_y'], [r_y, -s/mu]] (zero instead of s/mu for equalities), factorised after elimination of dmu."""

    def __init__(self, matrices: SecondDerivatives, equal: np.ndarray, ratio: np.ndarray) -> None:
        """`ratio`: mu / s of the inequalities, in the order of all rows; anything for equalities."""
        assert isinstance(matrices, Matrices)
        self.matrices, self.equal, self.ratio = matrices, equal, np.where(equal, 0.0, ratio)
        jacobian, ny = matrices.jacobian, matrices.hessian.shape[0]
        weighted = (
            self.ratio[:, None] * jacobian
            if isinstance(jacobian, np.ndarray)
            else sparse.diags_array(self.ratio) @ jacobian
        )
        held = Matrices(jacobian[equal], matrices.hessian + jacobian.T @ weighted)
        self._solve = held.factorised(np.arange(ny), np.arange(held.jacobian.shape[0]))

    def solve(self, of_y: np.ndarray, of_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(dy, dmu) for right-hand sides in the last axis's place."""
        jacobian, ny = self.matrices.jacobian, self.matrices.hessian.shape[0]
        pushed = (of_rows.T * self.ratio).T
        solved = self._solve(np.concatenate([of_y + jacobian.T @ pushed, of_rows[self.equal]]))
        dy = solved[:ny]
        dmu = ((jacobian @ dy).T * self.ratio).T - pushed
        dmu[self.equal] = solved[ny:]
        return dy, dmu


class Centre(NamedTuple):
    """y_t(x), its multipliers, what is known there, and the system that its derivatives solve."""

    y: np.ndarray
    mu: np.ndarray
    slopes: Slopes
    system: System


class _Iterate(NamedTuple):
    """A point on the way, with the largest entry of the conditions."""

    y: np.ndarray
    s: np.ndarray
    mu: np.ndarray
    slopes: Slopes
    left: float


def centre(level: Level, y: np.ndarray, mu: np.ndarray, t: float) -> Centre | None:
    """The point of the central path at t, from near y and mu; None where the steps do not arrive."""
    slopes = level.slopes(y, mu)
    s = np.where(level.equal, 1.0, np.maximum(-slopes.rows, np.sqrt(t) * 0.1))
    mu = np.where(level.equal, mu, np.maximum(mu, t / np.maximum(s, 1.0)))
    here = _iterate(level, y, s, mu, t)
    for _ in range(MAX_STEPS):
        if not np.isfinite(here.left):
            return None
        system = System(level.matrices(here.y, here.mu), level.equal, here.mu / here.s)
        if here.left <= min(SOLVED * (1 + t), 10 * t):
            return Centre(here.y, here.mu, here.slopes, system)
        pairs = (here.mu * here.s)[~level.equal]
        there = _after_step(level, here, system, t, max(t, CLOSER * float(np.mean(pairs)) if pairs.size else t))
        if there is None:
            return None
        here = there
    return None


def _iterate(level: Level, y: np.ndarray, s: np.ndarray, mu: np.ndarray, t: float) -> _Iterate:
    slopes = level.slopes(y, mu)
    of_rows = np.where(level.equal, slopes.rows, slopes.rows + s)
    of_pairs = np.where(level.equal, 0.0, mu * s - t)
    left = float(np.max(np.abs(np.concatenate([slopes.gradient, of_rows, of_pairs])), initial=0.0))
    return _Iterate(y, s, mu, slopes, left)


def _after_step(level: Level, here: _Iterate, system: System, t: float, aim: float) -> _Iterate | None:
    """One Newton step towards mu_i s_i = aim that keeps s and mu positive and makes the conditions hardly worse."""
    equal, (y, s, mu, slopes, left) = level.equal, here
    of_rows = np.where(equal, -slopes.rows, -slopes.rows - aim / mu)  # s is eliminated: mu_i s_i = aim to first order
    dy, dmu = system.solve(-slopes.gradient, of_rows)
    ds = np.where(equal, 0.0, -(slopes.rows + s) - system.matrices.jacobian @ dy)
    share = min(1.0, _longest(s, ds, equal), _longest(mu, dmu, equal))
    while share >= SHORTEST:
        there = _iterate(level, y + share * dy, s + share * ds, mu + share * dmu, t)
        if there.left <= GROWTH * left:
            return there
        share *= 0.5
    return None


def _longest(values: np.ndarray, change: np.ndarray, equal: np.ndarray) -> float:
    """The longest share of a change that keeps values positive."""
    falling = ~equal & (change < 0)
    return float(np.min(-INSIDE * values[falling] / change[falling], initial=np.inf))
