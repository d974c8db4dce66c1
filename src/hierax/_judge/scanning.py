"""A look along every coordinate, one after the other, for functions with many local minima.

A local solver ends in the valley where it starts, and random starts hit the deepest of many valleys rarely: of seven
per coordinate, one start in 7^n. Where the valleys lie along the coordinates, n scans of a line find what they miss.
"""

from collections.abc import Callable

import numpy as np

LOOKS = 200  # evaluations of a scan in all: 10 to 20 ms
FEW_LINES = 3  # fewer coordinates are covered by a dozen random starts
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
    best, least = point, value(point)
    for i in range(point.size):
        for entry in np.linspace(low[i], high[i], scan_points(point.size)):
            there = best.copy()
            there[i] = entry
            found = value(there)
            if found < least:
                best, least = there, found
    return best
