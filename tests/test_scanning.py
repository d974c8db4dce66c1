"""The look along coordinates: what it finds alone; certificates that need it are in test_certificate.py.

Unit tests of hierax._engine.vectors.
"""

import numpy as np

from hierax._engine.vectors import FEWEST, SCAN_LOOKS, lowest_on_lines, scan_points


def test_valleys_along_the_coordinates():
    looks = []

    def valleys(y):
        looks.append(y)
        return float(np.sum(y**2 + 3 * (1 - np.cos(2 * np.pi * y))))

    low, high = np.full(4, -5.0), np.full(4, 5.0)
    found = lowest_on_lines(valleys, np.array([3.0, -2.0, 1.0, 0.05]), low, high, scan_points(4))
    assert np.max(np.abs(found)) <= 0.051 and len(looks) <= SCAN_LOOKS + 1  # an entry that no grid point beats stays
    start = np.array([0.01, 0.0, 0.0, 0.0])
    assert lowest_on_lines(valleys, start, low, high, scan_points(4))[1:].tolist() == [0.0, 0.0, 0.0]
    assert lowest_on_lines(lambda y: np.inf, start, low, high, scan_points(4)) is start  # nowhere feasible


def test_too_many_coordinates_are_not_scanned_nor_too_few():
    assert scan_points(2) == 0 < scan_points(3) and scan_points(1, least=1) > 0
    assert scan_points(SCAN_LOOKS // FEWEST) >= FEWEST and scan_points(SCAN_LOOKS) == 0
