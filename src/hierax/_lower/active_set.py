r"""Convex lower levels on the host: an active set method for y*(x), and points of the central path.

**Active set method** (`Tracker`): with the rows r, their multipliers mu and L = G + mu.r, a step solves

    L_yy dy + r_A' dmu_A = -L_y (with mu_i = 0 for inactive rows),     r_A + r_A' dy = 0

for the rows A that the last point names active, mu_i + r_i > 0, and the equalities; it is a semismooth Newton step on
the KKT conditions (Hintermueller, Ito and Kunisch, 2003). Near a solution one or two steps are enough.
Factorisations are kept as long as the active rows and the derivatives do. Nothing guarantees that it arrives from
afar: whoever calls it has `Exact` for where it does not.

**Central path** (`centre`), by a primal-dual interior point method: with slacks s > 0 and mu > 0, y_t(x) solves

    L_y = 0,     r + s = 0,     mu_i s_i = t   (and r = 0 for equalities),

so it lies inside, moves smoothly with x whichever rows are active, and tends to y*(x) as t falls. A Newton step
eliminates ds and dmu (`hierax._lower.linear.CentralSystem`); derivatives through y_t solve with the same matrix.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hierax._base.constants import MUCH, NEGLIGIBLE
from hierax._lower.linear import ROUNDING, SAME, CentralSystem, KKTSystem, SecondDerivatives, System

MAX_STEPS = 60
SOLVED_RESIDUAL = ROUNDING  # KKT residual, in units, of a solution
FAR = 1 / ROUNDING  # slack of rows that are not looked at


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
        solved: KKT residual, in units, that counts as solved.
        costly: whether matrices cost more than slopes: then the last system is tried before a new one.
    """

    equal: np.ndarray
    slopes: Callable[[np.ndarray, np.ndarray], Slopes]
    matrices: Callable[[np.ndarray, np.ndarray], SecondDerivatives]
    landed: Callable[[np.ndarray], np.ndarray]
    solved: float = SOLVED_RESIDUAL
    costly: bool = False

    @property
    def sharper(self) -> float:
        """The residual below which no step more is worth making."""
        return self.solved / MUCH**2


class Found(NamedTuple):
    """A solution, or a point of the central path, with the factorised system of its derivatives.

    Attributes:
        y: the point.
        mu: its multipliers.
        slopes: what is known there.
        system: the KKT system on its active rows, or that of the path.
    """

    y: np.ndarray
    mu: np.ndarray
    slopes: Slopes
    system: System


def residual(gradient: np.ndarray, rows: np.ndarray, mu: np.ndarray, equal: np.ndarray) -> float:
    """Largest entry of the KKT conditions, in units: gradient of L, violation, complementarity, sign of mu."""
    of_rows = np.where(equal, rows, np.maximum(rows, 0.0))
    of_pairs = np.where(equal, 0.0, mu * rows), np.where(equal, 0.0, np.minimum(mu, 0.0))
    return float(np.max(np.abs(np.concatenate([gradient, of_rows, *of_pairs])), initial=0.0))


class Tracker:
    """Solves one lower level after another, each from where the last one ended, and keeps what can be used again."""

    def __init__(self) -> None:
        self._system: KKTSystem | None = None
        self._known: tuple[Level, SecondDerivatives] | None = None  # the last derivatives, and where they belong
        self._alike = 0  # how far they are taken on: 1 within their level, 2 to the next one as well
        self._trusted = 2  # how far at most: less where that turned out to be a coincidence

    @np.errstate(over="ignore", invalid="ignore")
    def solve(self, level: Level, y: np.ndarray, mu: np.ndarray) -> Found | None:
        """The solution from y and mu; None where the steps do not arrive."""
        here = _at(level, level.landed(y), mu)
        active = level.equal | (mu + here.slopes.rows > 0)
        best, stalled, sharpened, again = here.left, 0, False, level.costly
        hopeless = (1 + here.left) / np.sqrt(SAME)  # no step comes back from there: the system is nearly singular
        for _ in range(MAX_STEPS):
            if not here.left <= hopeless or stalled > MUCH:  # steps in which the residual did not fall to half
                return None
            done = here.left <= level.solved and (here.left <= level.sharper or sharpened)
            last = None if done or not again else self._system
            again = last is not None and np.array_equal(active, last.active)
            system = last if last and again else self._system_at(level, here.y, here.mu, active)
            if done:
                return Found(here.y, here.mu, here.slopes, system)
            dy, dmu, ahead = _step(level, system, here)
            if not np.isfinite(dy).all():
                return None
            after = functools.partial(_after, level, here, dy, dmu)
            there = after(1.0)
            good = there.left * MUCH <= here.left and np.array_equal(ahead, active)
            if again and not good:
                again = False
                continue
            again, sharpened = level.costly and good, here.left <= level.solved
            if np.array_equal(ahead, active):  # a step of Newton's method, then, should not make things worse
                fine = functools.partial(_better, here)
                there = there if fine(there) else _halved(after, 0.5, fine) or there
                if self._alike and there.left > max(np.sqrt(SAME) * here.left, level.sharper):
                    self._alike = self._trusted = self._alike - 1  # a quadratic program would be solved now
                if abs(there.left - here.left) <= SAME * here.left:  # the next step would be the same one again
                    return None
            here, active = there, ahead
            best, stalled = (here.left, 0) if here.left < 0.5 * best else (best, stalled + 1)
        return None

    def held(self, level: Level, y: np.ndarray, mu: np.ndarray, active: np.ndarray) -> Found | None:
        """The point at which the given rows are zero and L is stationary, without a look at signs and other rows."""

        def slopes(y: np.ndarray, mu: np.ndarray) -> Slopes:
            there = level.slopes(y, mu)
            return there._replace(rows=np.where(active, there.rows, -FAR))

        equations = level._replace(equal=active, slopes=slopes, landed=lambda y: y)
        found = self.solve(equations, y, np.where(active, mu, 0.0))
        return found and found._replace(slopes=level.slopes(found.y, found.mu))

    def _system_at(self, level: Level, y: np.ndarray, mu: np.ndarray, active: np.ndarray) -> KKTSystem:
        """The KKT system on the active rows; the last one where nothing has changed."""
        matrices, last = self._matrices_at(level, y, mu), self._system
        if last is None or matrices is not last.matrices or not np.array_equal(active, last.active):
            self._system = last = KKTSystem(matrices, active)
        return last

    def _matrices_at(self, level: Level, y: np.ndarray, mu: np.ndarray) -> SecondDerivatives:
        """Derivatives of second order; the last ones where they are the same."""
        last_level, last = self._known or (level, None)
        how_far = 1 if last_level is level else 2
        if last is not None and self._alike >= how_far:
            return last
        matrices = level.matrices(y, mu)
        if last is not None and matrices.same(last):
            matrices, self._alike = last, min(how_far, self._trusted)
        self._known = level, matrices
        return matrices


class _There(NamedTuple):
    """A point on the way, its multipliers, the slacks of a central path, what is known there, and its residual."""

    y: np.ndarray
    s: np.ndarray
    mu: np.ndarray
    slopes: Slopes
    left: float


def _at(level: Level, y: np.ndarray, mu: np.ndarray) -> _There:
    slopes = level.slopes(y, mu)
    return _There(y, np.zeros(0), mu, slopes, residual(slopes.gradient, slopes.rows, mu, level.equal))


def _step(level: Level, system: KKTSystem, here: _There) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Changes of y and mu, and the rows that are active after all of them."""
    active, matrices, mu, slopes = system.active, system.matrices, here.mu, here.slopes
    left_out = np.where(active, 0.0, mu)
    gradient = slopes.gradient - matrices.back(left_out) if left_out.any() else slopes.gradient
    dy, dmu = system.solve(-gradient, np.where(active, -slopes.rows, 0.0))
    dmu = np.where(active, dmu, -mu)
    ahead = slopes.rows + matrices.along(dy)
    return dy, dmu, level.equal | (np.where(active, mu + dmu, ahead) > 0)


def _after(level: Level, here: _There, dy: np.ndarray, dmu: np.ndarray, share: float) -> _There:
    """The point after a share of a step."""
    mu = here.mu + share * dmu
    return _at(level, level.landed(here.y + share * dy), np.where(level.equal, mu, np.maximum(mu, 0.0)))


def _better(here: _There, there: _There) -> bool:
    """Whether the residual is smaller; without rows it is enough that G is (from afar its gradient may grow first)."""
    return there.left < here.left or (not here.mu.size and there.slopes.value < here.slopes.value)


def _halved(after: Callable[[float], _There], share: float, fine: Callable[[_There], bool]) -> _There | None:
    """The point after the first of a share of a step, half of it, ... that is fine; None: none is."""
    while share >= NEGLIGIBLE:
        if fine(there := after(share)):
            return there
        share *= 0.5
    return None


# -- the central path -------------------------------------------------------------------------------------------------


@np.errstate(over="ignore", invalid="ignore", divide="ignore")
def centre(level: Level, y: np.ndarray, mu: np.ndarray, t: float) -> Found | None:
    """The point of the central path at t, from near y and mu; None where the steps do not arrive."""
    slopes = level.slopes(y, mu)
    s = np.where(level.equal, 1.0, np.maximum(-slopes.rows, np.sqrt(t) / MUCH))
    mu = np.where(level.equal, mu, np.maximum(mu, t / np.maximum(s, 1.0)))
    here = _iterate(level, y, s, mu, t)
    for _ in range(MAX_STEPS):
        if not np.isfinite(here.left):
            return None
        system = CentralSystem(level.matrices(here.y, here.mu), level.equal, here.mu / here.s)
        if here.left <= min(SOLVED_RESIDUAL * (1 + t), MUCH * t):
            return Found(here.y, here.mu, here.slopes, system)
        pairs = (here.mu * here.s)[~level.equal]
        there = _after_step(level, here, system, t, max(t, float(np.mean(pairs)) / MUCH if pairs.size else t))
        if there is None:
            return None
        here = there
    return None


def _iterate(level: Level, y: np.ndarray, s: np.ndarray, mu: np.ndarray, t: float) -> _There:
    slopes = level.slopes(y, mu)
    of_rows = np.where(level.equal, slopes.rows, slopes.rows + s)
    of_pairs = np.where(level.equal, 0.0, mu * s - t)
    left = float(np.max(np.abs(np.concatenate([slopes.gradient, of_rows, of_pairs])), initial=0.0))
    return _There(y, s, mu, slopes, left)


def _after_step(level: Level, here: _There, system: CentralSystem, t: float, aim: float) -> _There | None:
    """One Newton step towards mu_i s_i = aim that keeps s and mu positive and makes the conditions hardly worse."""
    equal, (y, s, mu, slopes, left) = level.equal, here
    of_rows = np.where(equal, -slopes.rows, -slopes.rows - aim / mu)  # s is eliminated: mu_i s_i = aim to first order
    dy, dmu = system.solve(-slopes.gradient, of_rows)
    ds = np.where(equal, 0.0, -(slopes.rows + s) - system.matrices.jacobian @ dy)
    share = min(1.0, _longest(s, ds, equal), _longest(mu, dmu, equal))

    def after(share: float) -> _There:
        return _iterate(level, y + share * dy, s + share * ds, mu + share * dmu, t)

    return _halved(after, share, lambda there: there.left <= MUCH * left)


def _longest(values: np.ndarray, change: np.ndarray, equal: np.ndarray) -> float:
    """The longest share of a change that keeps values positive, nearly all of the way to the first zero."""
    falling = ~equal & (change < 0)
    return float(np.min(-(1 - NEGLIGIBLE) * values[falling] / change[falling], initial=np.inf))
