r"""The lower level by a primal-dual active set method on the host: a few linear systems from a good start.

For convex lower levels. With the rows r, their multipliers mu and L = G + mu.r, a step solves

    L_yy dy + r_A' dmu_A = -L_y (with mu_i = 0 for inactive rows),     r_A + r_A' dy = 0

for the rows A that the last point names active, mu_i + r_i > 0, and the equalities; it is a semismooth Newton step on
the KKT conditions (Hintermueller, Ito and Kunisch, 2003). Near a solution one or two steps are enough.
Factorisations are kept as long as the active rows and the derivatives do. Nothing guarantees that it arrives from
afar: whoever calls it has `Exact` for where it does not.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hierax._lower.linear import KKTSystem, SecondDerivatives

MAX_STEPS = 40
MAX_HELD_STEPS = 12  # where the active rows are given
SOLVED = 1e-9  # KKT residual, in units
SHARPER = 1e-2  # share of the residual that counts as solved, for which one step more is worth making
QUADRATIC = 1e-6  # what a step with the right active rows leaves of the residual of a quadratic program, at most
MAX_STALLED_STEPS, LESS = 8, 0.9  # steps in a row that leave more than this share of the least residual so far
SHORTEST = 1e-2  # share of a step that is tried, at least
STILL = 1e-9  # relative change of the residual by a step with the same active rows that leads nowhere
MAX_RETURNS = 3  # times that an active set may come back: more will come back for ever
CHORD = 0.1  # what a step by the last system must leave of the residual, at most, for another one
HOPELESS = 1e6  # growth of the residual, in units, from which no step comes back


class Slopes(NamedTuple):
    """What is needed at every point.

    Attributes:
        value: G.
        along_x: gradient of L in x.
        gradient: gradient of L in y.
        rows: of the lower level.
    """

    value: float
    along_x: np.ndarray
    gradient: np.ndarray
    rows: np.ndarray


class Level(NamedTuple):
    """A lower level at one x, in units.

    Attributes:
        equal: which rows are equalities.
        slopes: (y, mu) -> Slopes.
        matrices: (y, mu) -> second derivatives.
        landed: y -> the nearest point of Y, where functions are evaluated.
        by_last_system: whether slopes are so much quicker than matrices that it pays to try the last system first.
        solved: KKT residual, in units, that counts as solved.
    """

    equal: np.ndarray
    slopes: Callable[[np.ndarray, np.ndarray], Slopes]
    matrices: Callable[[np.ndarray, np.ndarray], SecondDerivatives]
    landed: Callable[[np.ndarray], np.ndarray]
    by_last_system: bool = False
    solved: float = SOLVED

    @property
    def sharper(self) -> float:
        """The residual below which no step more is worth making."""
        return SHARPER * self.solved


class Found(NamedTuple):
    """A solution, with the factorised KKT system there.

    Attributes:
        y: the point.
        mu: its multipliers.
        slopes: what is known there.
        system: the KKT system on its active rows.
    """

    y: np.ndarray
    mu: np.ndarray
    slopes: Slopes
    system: KKTSystem


def residual(slopes: Slopes, mu: np.ndarray, equal: np.ndarray) -> float:
    """Largest entry of the KKT conditions, in units: slope, violation, complementarity, sign of mu."""
    rows = slopes.rows
    of_rows = np.where(equal, rows, np.maximum(rows, 0.0))
    of_pairs = np.where(equal, 0.0, mu * rows), np.where(equal, 0.0, np.minimum(mu, 0.0))
    return float(np.max(np.abs(np.concatenate([slopes.gradient, of_rows, *of_pairs])), initial=0.0))


class Tracker:
    """Solves one lower level after another, each from where the last one ended, and keeps what can be used again."""

    def __init__(self) -> None:
        self._system: KKTSystem | None = None
        self._known: tuple[Level, SecondDerivatives] | None = (
            None  # the derivatives of second order, and where they belong
        )
        self._quadratic = False  # whether they were the same at two points of one level ...
        self._constant = False  # ... and of two levels
        self._never: set[str] = set()  # which of these turned out to be a coincidence

    def solve(self, level: Level, y: np.ndarray, mu: np.ndarray) -> Found | None:
        """The solution from y and mu; None where the steps do not arrive."""
        y = level.landed(y)
        slopes = level.slopes(y, mu)
        first = left = residual(slopes, mu, level.equal)
        active = level.equal | (mu + slopes.rows > 0)
        if level.by_last_system and not self._quadratic:
            y, mu, slopes, left = self._by_last_system(level, _There(y, mu, slopes, left), active)
        seen, again, sharpened = {active.tobytes()}, 0, False
        least, stalled = left, 0
        for _ in range(MAX_STEPS):
            hopeless = not np.isfinite(left) or left > HOPELESS * (1 + first)
            if hopeless or again > MAX_RETURNS or stalled > MAX_STALLED_STEPS:
                return None
            if left <= level.solved and (left <= level.sharper or sharpened):
                return Found(y, mu, slopes, self._system_at(level, y, mu, active))
            sharpened = left <= level.solved
            step = _step(level, self._system_at(level, y, mu, active), mu, slopes)
            if not np.isfinite(step.dy).all():
                return None
            there, before = _after(level, step, y, mu, 1.0), left
            if np.array_equal(step.active, active):
                there = _shortened(level, step, y, mu, there, before)
                self._doubt(there.left <= max(QUADRATIC * before, level.sharper))
                if abs(there.left - before) <= STILL * before:  # the next step would be the same one again
                    return None
            else:
                again += step.active.tobytes() in seen
                seen.add(step.active.tobytes())
            y, mu, slopes, left = there
            active = step.active
            stalled = 0 if left < LESS * least else stalled + 1
            least = min(least, left)
        return None

    def _by_last_system(self, level: Level, at: "_There", active: np.ndarray) -> "_There":
        """Steps by the system of the last solution, as long as they take the residual down fast: no new matrices."""
        system = self._system
        if system is None or not np.array_equal(system.active, active):
            return at
        while level.sharper < at.left < np.inf:
            step = _step(level, system, at.mu, at.slopes)
            there = _after(level, step, at.y, at.mu, 1.0)
            if not np.array_equal(step.active, active) or not there.left <= CHORD * at.left:
                break
            at = there
        return at

    def held(self, level: Level, y: np.ndarray, mu: np.ndarray, active: np.ndarray) -> Found | None:
        """The point at which the given rows are zero and L is stationary, without a look at signs."""
        mu = np.where(active, mu, 0.0)
        slopes, sharpened = level.slopes(y, mu), False
        for _ in range(MAX_HELD_STEPS):
            left = max(np.max(np.abs(slopes.gradient)), np.max(np.abs(slopes.rows[active]), initial=0.0))
            if not np.isfinite(left):
                return None
            system = self._system_at(level, y, mu, active)
            if left <= level.solved and (left <= level.sharper or sharpened):
                return Found(y, mu, slopes, system)
            sharpened = left <= level.solved
            dy, dmu = system.solve(-slopes.gradient, np.where(active, -slopes.rows, 0.0))
            y, mu = y + dy, mu + dmu
            slopes = level.slopes(y, mu)
        return None

    def _doubt(self, at_once: bool) -> None:
        """A step with the right active rows solves a quadratic program at once; where it did not, there is none."""
        if self._constant and not at_once:
            self._constant = False
            self._never.add("constant")
        elif self._quadratic and not at_once:
            self._quadratic = False
            self._never.add("quadratic")

    def _matrices_at(self, level: Level, y: np.ndarray, mu: np.ndarray) -> SecondDerivatives:
        """Derivatives of second order; the last ones where they are known to be the same."""
        if self._known is None:
            matrices = level.matrices(y, mu)
        else:
            last_level, last = self._known
            if self._constant or (self._quadratic and last_level is level):
                return last
            matrices = level.matrices(y, mu)
            if "quadratic" not in self._never and matrices.same(last):
                self._quadratic, matrices = True, last
                self._constant = last_level is not level and "constant" not in self._never
        self._known = level, matrices
        return matrices

    def _system_at(self, level: Level, y: np.ndarray, mu: np.ndarray, active: np.ndarray) -> KKTSystem:
        """The KKT system on the active rows; the last one where nothing has changed."""
        matrices, last = self._matrices_at(level, y, mu), self._system
        if last is None or matrices is not last.matrices or not np.array_equal(active, last.active):
            self._system = matrices.system(active)
        assert self._system is not None
        return self._system


class _Step(NamedTuple):
    """Changes of y and mu, and the rows that are active after all of them."""

    dy: np.ndarray
    dmu: np.ndarray
    active: np.ndarray


class _There(NamedTuple):
    """A point, its multipliers, what is known there, and its KKT residual."""

    y: np.ndarray
    mu: np.ndarray
    slopes: Slopes
    left: float


def _step(level: Level, system: KKTSystem, mu: np.ndarray, slopes: Slopes) -> _Step:
    active, matrices = system.active, system.matrices
    left_out = np.where(active, 0.0, mu)
    gradient = slopes.gradient - matrices.back(left_out) if left_out.any() else slopes.gradient
    dy, dmu = system.solve(-gradient, np.where(active, -slopes.rows, 0.0))
    dmu = np.where(active, dmu, -mu)
    ahead = slopes.rows + matrices.along(dy)
    return _Step(dy, dmu, level.equal | (np.where(active, mu + dmu, ahead) > 0))


def _after(level: Level, step: _Step, y: np.ndarray, mu: np.ndarray, share: float) -> _There:
    """The point after a share of a step."""
    y, mu = level.landed(y + share * step.dy), mu + share * step.dmu
    mu = np.where(level.equal, mu, np.maximum(mu, 0.0))
    slopes = level.slopes(y, mu)
    return _There(y, mu, slopes, residual(slopes, mu, level.equal))


def _shortened(level: Level, step: _Step, y: np.ndarray, mu: np.ndarray, there: _There, before: float) -> _There:
    """Where the active rows stay the same a step of Newton's method should not make things worse: halved until so."""
    best, share = there, 1.0
    while not best.left < before and share > SHORTEST:
        share *= 0.5
        best = _after(level, step, y, mu, share)
    return best if best.left < before else there
