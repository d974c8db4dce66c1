"""Local solutions of the lower level at one x, as NumPy arrays: which is the best, and how many are different."""

from typing import NamedTuple

import numpy as np

from hierax._math.lower_level import SOLVED, UNBOUNDED

FEASIBLE = 1e-6  # violation, in units of the rows, up to which a solution of the lower level counts as feasible
DIFFERENT_VALUES = 1e-4  # difference, in units of f, from which local solutions of the lower level count as different


class Branches(NamedTuple):
    """What was found from each of many starts (leading axis): `hierax._lower.exact.Branches` on the host.

    Attributes:
        y: the points.
        mu: multipliers of all rows, faces of Y included.
        value: f, corrected to first order for the violation that is left.
        violation: the largest, in the units of the rows.
        status: of each; only SOLVED ones are KKT points.
        slope: gradient of the value in x.
    """

    y: np.ndarray
    mu: np.ndarray
    value: np.ndarray
    violation: np.ndarray
    status: np.ndarray
    slope: np.ndarray

    @staticmethod
    def joined(parts: "list[Branches]") -> "Branches":
        """Those of several solves."""
        return Branches(*(np.concatenate(part) for part in zip(*parts, strict=True)))

    @staticmethod
    def none(entries: int, rows: int, parameters: int) -> "Branches":
        """Those of no start."""
        nothing = np.zeros(0)
        return Branches(
            np.zeros((0, entries)), np.zeros((0, rows)), nothing, nothing, nothing, np.zeros((0, parameters))
        )

    @property
    def unbounded(self) -> bool:
        """Whether f falls without limit from some start."""
        return bool((self.status == UNBOUNDED).any())

    def first(self, count: int) -> "Branches":
        """Those of the first starts."""
        return Branches(*(part[:count] for part in self))

    def best(self) -> int | None:
        """The branch of lowest value: among the solved ones, or else the feasible ones; None where there is none."""
        feasible = (self.violation <= FEASIBLE) & np.isfinite(self.value)
        for usable in (feasible & (self.status == SOLVED), feasible):
            if usable.any():
                return int(np.argmin(np.where(usable, self.value, np.inf)))
        return None

    def different_values(self) -> int:
        """How many different values the solved branches have."""
        values = np.sort(self.value[(self.status == SOLVED) & (self.violation <= FEASIBLE)])
        return int(values.size > 0) + int(np.sum(np.diff(values) > DIFFERENT_VALUES * (1 + np.abs(values[1:]))))
