"""A look along every coordinate, one after the other, for functions with many local minima.

A local solver ends in the valley where it starts, and random starts hit the deepest of many valleys rarely: of seven
per coordinate, one start in 7^n. Where the valleys lie along the coordinates, n scans of a line find what they miss.
"""

from collections.abc import Callable

import numpy as np

LOOKS = 200  # evaluations of a scan in all: 10 to 20 ms
FEWEST, MOST = 15, 41  # points of a line: with fewer a scan sees no valleys, more are not needed


def scan_points(coordinates: int) -> int:
    """How many points of each line a scan looks at; none where there are too many lines."""
    points = min(LOOKS // max(coordinates, 1), MOST)
    return points if points >= FEWEST else 0


def lowest_on_lines(
    value: Callable[[np.ndarray], float], point: np.ndarray, low: np.ndarray, high: np.ndarray
) -> np.ndarray:
    """The point after each entry in turn was set to the best of a grid between its two ends, where that is lower.

    Examples:
        >>> def valleys(y):
        ...     return float(np.sum(y**2 - np.cos(2 * np.pi * y)))
        >>> lowest_on_lines(valleys, np.array([2.0, -1.0]), np.full(2, -3.0), np.full(2, 3.0)).round(3)
        array([0., 0.])
    """
    for i in range(point.size):
        point = lowest_on_line(value, point, i, low[i], high[i])
    return point


def lowest_on_line(
    value: Callable[[np.ndarray], float], point: np.ndarray, i: int, low: float, high: float
) -> np.ndarray:
    """The point itself, or with its i-th entry from a grid between the two ends where that is lower."""
    best, least = point, value(point)
    for entry in np.linspace(low, high, scan_points(point.size)):
        there = point.copy()
        there[i] = entry
        found = value(there)
        if found < least:
            best, least = there, found
    return best
