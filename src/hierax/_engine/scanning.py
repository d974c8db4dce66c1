"""A look along every coordinate, one after the other, for functions with many local minima.

A local solver ends in the valley where it starts, and random starts hit the deepest of many valleys rarely: of seven
per coordinate, one start in 7^n. Where the valleys lie along the coordinates, n scans of a line find what they miss.
"""

from collections.abc import Callable

import numpy as np

LOOKS = 200  # points of all grids of a scan: 10 to 20 ms
FEW_LINES = 3  # fewer coordinates are covered by a dozen random starts
VALLEYS = 3  # of each line, whose bottoms are looked at between the points
FEWEST, MOST = 15, 41  # points of a line: with fewer a scan sees no valleys, more are not needed


def scan_points(coordinates: int) -> int:
    """How many points of each line a scan looks at; none where there are too few or too many lines."""
    points = min(LOOKS // max(coordinates, 1), MOST)
    return points if points >= FEWEST and coordinates >= FEW_LINES else 0


def lowest_on_lines(
    value: Callable[[np.ndarray], float], point: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """The point after each entry in turn was set to the best of a grid between its two ends, where that is lower.

    Examples:
        >>> def valleys(y):
        ...     return float(np.sum(y**2 - np.cos(2 * np.pi * y)))
        >>> lowest_on_lines(valleys, np.array([2.0, -1.0, 1.0]), np.full(3, -3.0), np.full(3, 3.0)).round(3)
        array([0., 0., 0.])
    """
    points = scan_points(point.size)
    best, least = point, value(point)
    for i in range(point.size if points else 0):
        line = np.linspace(low[i], high[i], points)

        def along(entry: float, i: int = i, on: np.ndarray = best) -> float:
            return value(_moved(on, i, entry))

        values = np.array([along(entry) for entry in line])
        bottoms = _bottoms(line, values)
        places, found = np.append(line, bottoms), np.append(values, [along(entry) for entry in bottoms])
        lowest = int(np.argmin(found))
        if found[lowest] < least:
            best, least = _moved(best, i, places[lowest]), float(found[lowest])
    return best


def _moved(point: np.ndarray, i: int, entry: float) -> np.ndarray:
    moved = point.copy()
    moved[i] = entry
    return moved


def _bottoms(line: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Where parabolas through three neighbours have their lowest points, in the deepest valleys of a line.

    A grid that is no finer than needed to see a narrow valley sees its walls, and not how deep it is.
    """
    left, middle, right = (values[k : len(values) - 2 + k] for k in range(3))
    inside = np.flatnonzero(np.isfinite(left) & np.isfinite(middle) & np.isfinite(right))
    left, middle, right = left[inside], middle[inside], right[inside]
    bend = left + right - 2 * middle
    valleys = np.flatnonzero((middle <= left) & (middle <= right) & (bend > 0))
    deepest = valleys[np.argsort(middle[valleys], kind="stable")][:VALLEYS]
    shift = 0.5 * (left - right)[deepest] / bend[deepest]
    return line[1 + inside[deepest]] + shift * (line[1] - line[0])
