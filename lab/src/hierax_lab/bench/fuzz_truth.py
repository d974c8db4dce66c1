"""What a claim about a case of `fuzz_families` is worth, by NumPy alone.

A point is false where y is far from every solution of the lower level, or where F is lower within a small radius. The
tolerances are far wider than what hierax promises: what is called false here is false by any reading. A minimum of F
over x that is only local is no false claim; it is counted apart.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

import hierax as hx

DISTANCE = 0.02  # between y and the nearest solution of the lower level; Y is 2 to 6 wide
TIE = 2e-3  # minima whose G differs by less count as solutions of the lower level when a y is judged
EXACT_TIE = 1e-9  # the same where F is compared
RADIUS = 0.01  # of x within which a lower F is looked for
DESCENT = 2e-4  # part of the range of F over X by which F must be lower there
Y_ERROR = 2e-4  # of y, which may change F without a fault of x
GLOBAL = 1e-3  # part of the range of F by which a global minimum may be missed
X_POINTS = 1001  # of the grid of x
CHUNK = 200  # points of x that are worked on at once

Point = tuple[np.ndarray, np.ndarray]  # x and y
Followers = Callable[[np.ndarray, float], np.ndarray]  # (x of k points, tie) -> y of shape (k, solutions, m), or NaN


class Fault(NamedTuple):
    """Why a claim is false, empty where it is true; whether the point is a minimum, but not the global one."""

    words: str
    missed: bool = False


@dataclasses.dataclass(frozen=True)
class FamilyCase:
    """A problem, and what is true about it.

    Attributes:
        parameters: the numbers that were drawn.
        problem: as hierax gets it.
        fault: what is wrong with the claim that (x, y) solves it.
        start: x0 and y0 for `hx.solve`; None: it is not asked.
        best: F at the global optimum, where it is known.
        points: by name, points that `hx.certify` is asked about.
        seed: of `hx.solve`.
    """

    parameters: dict[str, Any]
    problem: hx.Problem
    fault: Callable[[np.ndarray, np.ndarray], Fault]
    start: Point | None = None
    best: float | None = None
    points: dict[str, Point] = dataclasses.field(default_factory=dict)
    seed: int = 0


@dataclasses.dataclass(frozen=True)
class OneX:
    """A problem with one x whose lower solutions are known for every x.

    Attributes:
        upper: F of k points (x, y), of shapes (k,) and (k, m).
        followers: the solutions of the lower level.
        x_bounds: of X.
    """

    upper: Callable[[np.ndarray, np.ndarray], np.ndarray]
    followers: Followers
    x_bounds: tuple[float, float]

    def phi(self, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The least F over the lower solutions at every x, and where."""
        y = self.followers(x, EXACT_TIE)
        values = np.stack([self.upper(x, y[:, i]) for i in range(y.shape[1])], axis=1)
        best = np.where(np.isnan(values), np.inf, values).argmin(1)
        rows = np.arange(len(x))
        return values[rows, best], y[rows, best]

    @functools.cached_property
    def _search(self) -> tuple[float, float, np.ndarray, np.ndarray]:
        """Range of F over X, its global minimum, and where."""
        x = np.linspace(*self.x_bounds, X_POINTS)
        values, _ = self.phi(x)
        extent, near, width = float(np.ptp(values)), x[values.argmin()], x[1] - x[0]
        for _ in range(3):
            x = np.clip(np.linspace(near - width, near + width, 101), *self.x_bounds)
            values, y = self.phi(x)
            near, width = x[values.argmin()], width / 25.0
        return extent, float(values.min()), np.array([near]), y[values.argmin()]

    @property
    def best(self) -> float:
        """F at the global optimum."""
        return self._search[1]

    @property
    def point(self) -> Point:
        """The global optimum."""
        return self._search[2:]

    def fault(self, x: np.ndarray, y: np.ndarray) -> Fault:
        """What is wrong with the claim that (x, y) is a solution."""
        low, high = self.x_bounds
        if not (np.isfinite(x).all() and np.isfinite(y).all() and low - 1e-3 <= x[0] <= high + 1e-3):
            return Fault(f"x = {x} is not in X, or y = {y} is not finite")
        x = np.clip(x, low, high)
        away = float(np.nanmin(np.linalg.norm(self.followers(x, TIE)[0] - y, axis=-1)))
        if away > DISTANCE:
            return Fault(f"y is {away:.3g} from every solution of the lower level")
        extent, best, _, _ = self._search
        value = self.upper(x, y[None])[0]
        nudged = np.abs(self.upper(x.repeat(len(y)), y + Y_ERROR * np.eye(len(y))) - value).sum()
        around = np.clip(x + RADIUS * np.array([-1.0, -0.5, -0.25, 0.25, 0.5, 1.0]), low, high)
        lower = self.phi(around)[0]
        if value - lower.min() > DESCENT * extent + nudged:
            return Fault(f"F = {value:.6g} is {lower.min():.6g} at x = {around[lower.argmin()]:.6g}, {RADIUS:g} away")
        return Fault("", bool(value - best > GLOBAL * extent + nudged))


def separable(parts: Sequence[Callable[[np.ndarray, np.ndarray], np.ndarray]], grid: np.ndarray) -> Followers:
    """The solutions of a lower level whose G is a sum of functions of (x, y_i), by a grid of every y_i.

    Of every y_i the best minimum, and the second where it ties.
    """

    def followers(x: np.ndarray, tie: float) -> np.ndarray:
        entries = []
        for part in parts:
            chunks = [_two_minima(part, x[i : i + CHUNK], grid, tie) for i in range(0, len(x), CHUNK)]
            entries.append(np.concatenate(chunks))
        choices = itertools.product(range(2), repeat=len(parts))
        return np.stack(
            [np.stack([one[:, k] for one, k in zip(entries, choice, strict=True)], -1) for choice in choices], 1
        )

    return followers


def _two_minima(part: Callable, x: np.ndarray, grid: np.ndarray, tie: float) -> np.ndarray:
    """The two lowest minima on the grid, moved to the bottom of the parabola through three points; NaN: no tie."""
    values = part(x[:, None], grid[None, :])
    padded = np.pad(values, ((0, 0), (1, 1)), constant_values=np.inf)
    minima = np.where((values <= padded[:, :-2]) & (values < padded[:, 2:]), values, np.inf)
    rows, found = np.arange(len(x)), np.zeros((len(x), 2))
    for i in range(2):
        lowest = minima.argmin(1)
        found[:, i] = np.where(np.isfinite(minima[rows, lowest]), _bottom(values, grid, rows, lowest), np.nan)
        minima[rows, lowest] = np.inf
    there = part(x[:, None], found)
    swapped = there[:, 1] < there[:, 0]
    found[swapped], there[swapped] = found[swapped, ::-1], there[swapped, ::-1]
    found[~(there[:, 1] <= there[:, 0] + tie), 1] = np.nan
    return found


def _bottom(values: np.ndarray, grid: np.ndarray, rows: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The bottom of the parabola through a grid minimum and its neighbours; the minimum itself at an end."""
    inner = np.clip(at, 1, len(grid) - 2)
    y, left, right = grid[inner], grid[inner - 1] - grid[inner], grid[inner + 1] - grid[inner]
    here = values[rows, inner]
    down, up = (values[rows, inner - 1] - here) / left, (values[rows, inner + 1] - here) / right
    bend = (up - down) / (right - left)
    with np.errstate(all="ignore"):
        bottom = y - 0.5 * (down - bend * left) / bend
    return np.where(at == inner, np.clip(bottom, y + left, y + right), grid[at])
