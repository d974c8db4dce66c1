"""What sampled problems are in truth: expectations by quadrature or exact moments, lower levels solved, best points.

NumPy and SciPy alone; nothing here is computed by hierax.
"""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hierax.extend import lazy

optimize = lazy("scipy.optimize")
special = lazy("scipy.special")

PANELS, ORDER = 200, 20
"""Panels of the quadrature and Gauss-Legendre nodes in each: doubling both changes no F here by more than 1e-10."""

TAIL = 1e-14
"""Probability that the quadrature leaves out on each side."""

GRID = 401
"""Points of the grid from which the best x of a problem with one x is searched."""

NEWTON_STEPS, NEWTON_SLOPE, ROUNDING = 100, 1e-10, 1e-13
"""Steps of Newton's method at most, the slope at which it ends, and by how much rounding may raise a value."""

BEYOND = 1e3
"""Price of a violation while the best point is searched: far above the multiplier of every constraint here."""


class Truth(NamedTuple):
    """A sampled problem without its samples.

    Attributes:
        phi: F(x, y*(x)) in expectation (of a finite data set: over all its rows), at a vector x.
        bounds: of every entry of x.
        x0: the start.
        above: the upper constraints at x; None: there are none. Feasible where <= 0.
        starts: further points from which the best one is searched, where x has more than one entry.
    """

    phi: Callable[[np.ndarray], float]
    bounds: np.ndarray
    x0: np.ndarray
    above: Callable[[np.ndarray], float] | None = None
    starts: int = 6

    def violation(self, x: np.ndarray) -> float:
        """By how much x violates its bounds and the upper constraints."""
        low, high = self.bounds.T
        beyond = float(np.max(np.maximum(low - x, x - high), initial=0.0))
        return beyond if self.above is None else max(beyond, self.above(x))

    def best(self) -> tuple[np.ndarray, float]:
        """The best x and F there: a fine grid and Brent's method, or descents from several starts."""

        def priced(x: np.ndarray) -> float:
            return self.phi(x) + (0.0 if self.above is None else BEYOND * max(self.above(x), 0.0))

        low, high = self.bounds.T
        if self.x0.size == 1:
            grid = np.linspace(low[0], high[0], GRID)
            values = [priced(np.array([x])) for x in grid]
            at = int(np.argmin(values))
            around = grid[max(at - 1, 0)], grid[min(at + 1, GRID - 1)]
            found = optimize.minimize_scalar(
                lambda x: priced(np.array([x])), bounds=around, method="bounded", options={"xatol": 1e-10}
            )
            ends = [(float(found.fun), np.array([found.x])), (values[at], grid[at : at + 1])]
        else:
            rng = np.random.default_rng(0)
            points = [self.x0, *(low + (high - low) * rng.random((self.starts, self.x0.size)))]
            runs = [optimize.minimize(priced, x, bounds=self.bounds, options={"maxfun": 10**5}) for x in points]
            ends = [(float(run.fun), run.x) for run in runs]
        value, x = min(ends, key=lambda end: end[0])
        return x, value


class Weighted(NamedTuple):
    """Points and weights of a quadrature."""

    points: np.ndarray
    weights: np.ndarray

    def mean(self, values: np.ndarray) -> float:
        """The expectation of a function whose values at the points are given."""
        return float(self.weights @ values)


def quadrature(distribution: object) -> Weighted:
    """Of a continuous distribution of `scipy.stats` with a smooth density."""
    low, high = distribution.ppf(TAIL), distribution.isf(TAIL)  # type: ignore[attr-defined]
    nodes, weights = np.polynomial.legendre.leggauss(ORDER)
    edges = np.linspace(low, high, PANELS + 1)
    half = (edges[1:] - edges[:-1])[:, None] / 2
    points = (edges[:-1, None] + half * (1 + nodes)).ravel()
    mass = (half * weights).ravel() * distribution.pdf(points)  # type: ignore[attr-defined]
    return Weighted(points, mass / mass.sum())


def rows(points: np.ndarray) -> Weighted:
    """A finite data set as a quadrature."""
    return Weighted(points, np.full(len(points), 1 / len(points)))


def root(slope: Callable[[float], float], low: float, high: float) -> float:
    """Where an increasing function is zero in an interval; the nearer end where it is not."""
    if slope(low) >= 0:
        return low
    if slope(high) <= 0:
        return high
    return float(optimize.brentq(slope, low, high, xtol=1e-13, rtol=1e-14))


def kept(function: Callable[[float], float]) -> Callable[[float], float]:
    """The function with its values kept."""
    return functools.lru_cache(maxsize=4096)(function)


def softplus(u: np.ndarray, width: float) -> np.ndarray:
    """max(u, 0) with its kink rounded over a width."""
    return width * np.logaddexp(u / width, 0.0)


def in_ball(matrix: np.ndarray, slope: np.ndarray, radius: float) -> np.ndarray:
    """The y that minimises y'My/2 - c'y over |y| <= radius."""
    values, vectors = np.linalg.eigh(matrix)
    along = vectors.T @ slope

    def excess(shift: float) -> float:
        return float(radius - np.linalg.norm(along / (values + shift)))

    shift = 0.0 if excess(0.0) >= 0 else root(excess, 0.0, float(np.linalg.norm(slope)) / radius)
    return vectors @ (along / (values + shift))


class Robust(NamedTuple):
    """Penalties of a regression with residuals that count as sqrt(1 + r^2), on data sets: F on `above`, G on `below`.

    G(x, y) = mean sqrt(1 + (a'y - b)^2) + sum exp(x_i) y_i^2 / 2,    F(y) = mean sqrt(1 + (a'y - b)^2)
    """

    above: tuple[np.ndarray, np.ndarray]
    below: tuple[np.ndarray, np.ndarray]

    def lower(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The lower solution by Newton's method from y, and the Hessian of G there."""
        a, b = self.below
        price = np.exp(x)
        value, step = np.inf, np.zeros_like(y)
        for _ in range(NEWTON_STEPS):
            residual = a @ (y - step) - b
            length = np.sqrt(1 + residual**2)
            there = float(length.mean() + price @ (y - step) ** 2 / 2)
            if there > value + ROUNDING * abs(value):
                step = step / 2
                continue
            y, value = y - step, there
            slope = a.T @ (residual / length) / len(b) + price * y
            hessian = (a * (length**-3)[:, None]).T @ a / len(b) + np.diag(price)
            if np.linalg.norm(slope) <= NEWTON_SLOPE:
                break
            step = np.linalg.solve(hessian, slope)
        return y, hessian

    def phi(self, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """F(x, y*(x)), its gradient by the implicit function theorem, and y*(x)."""
        y, hessian = self.lower(x, y)
        a, b = self.above
        residual = a @ y - b
        length = np.sqrt(1 + residual**2)
        slope = np.linalg.solve(hessian, a.T @ (residual / length) / len(b))
        return float(length.mean()), -np.exp(x) * y * slope, y
