"""The table of all functions and their Jacobians, in units: what the small route asks for thousands of times.

One line per function, in the order of `hierax._engine.programs.Layout`: its value, then its derivatives in (x, y). x, y
and the multipliers come in one vector, and units stay on the device, because every array that is handed over takes as
long as a small problem's functions.
"""

import numpy as np

from hierax._engine.programs import Programs, raveled
from hierax._engine.units import Units


class Table:
    """All functions of a problem, whose points are in units."""

    def __init__(self, programs: Programs, units: Units) -> None:
        self._programs, self._entries = programs, programs.layout.nx + programs.layout.ny
        self.raw = programs.table.given(programs.trees, units)  # wherever it is asked for
        free = np.full(programs.layout.rows, np.inf)
        self._units = np.concatenate([raveled(units.x), raveled(units.y)])
        x, y = programs.x_limits, programs.y_limits
        self._low = np.concatenate([np.concatenate([x.low, y.low]) / self._units, -free])
        self._high = np.concatenate([np.concatenate([x.high, y.high]) / self._units, free])

    def __call__(self, point: np.ndarray) -> np.ndarray:
        """The lines at x, y and mu, one after another.

        Outside of X and Y those of the nearest point, continued along straight lines.
        """
        inside = np.minimum(np.maximum(point, self._low), self._high)
        if not self._programs.entrywise:
            n, nx = self._entries, self._programs.layout.nx
            x, y = np.split(inside[:n] * self._units, [nx])
            inside[:n] = np.concatenate(self._programs.landed(x, y)) / self._units
        lines = self.raw(inside)
        away = (point - inside)[: self._entries]
        if away.any():
            lines = lines.copy()
            lines[:, 0] += lines[:, 1:] @ away
        return lines
