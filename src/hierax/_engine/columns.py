"""Jacobians with few entries: columns that share no row come from one tangent (Curtis, Powell and Reid, 1974).

Where entries are not zero is seen at one point, not proved. So every Jacobian made in this way is compared with the
function's own derivative along one direction at random: an entry at a new place shows there, whichever column its
number went to, and the places are looked for again.

Reference: A. R. Curtis, M. J. D. Powell and J. K. Reid, On the estimation of sparse Jacobian matrices, IMA Journal of
Applied Mathematics 13 (1974).
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hierax._base.imports import lazy
from hierax._engine.float64_problem import FEW, ROUNDING
from hierax._math.lower_level import PROBES

if TYPE_CHECKING:
    from scipy.sparse import csr_array

sparse = lazy("scipy.sparse")

TANGENTS = PROBES  # directions that are pushed through a program at a time: all at once may not fit into memory
THROWS = 8  # of columns into bins, by which entries are looked for
BINS = THROWS * TANGENTS  # tangents of a sparse Jacobian are fewer

Along = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""The derivatives at (x, y, mu) along directions of y, the last argument's lines: one line for each."""


class Places:
    """Where the entries of a Jacobian are, once that is known, by which it is made as a sparse matrix.

    Nothing of its whole size is formed. `too_dense`: it is not worth knowing.
    """

    def __init__(self) -> None:
        self.groups: _Groups | None = None
        self.too_dense = False

    def at(self, along: Along, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> "csr_array | None":
        """The Jacobian at a point; None where it has too many entries, or they are at new places again and again."""
        for _ in range(FEW):
            if self.groups is None and not self.too_dense:
                self._look(along, x, y, mu)
            groups = self.groups
            if self.too_dense or groups is None:
                return None
            values = groups.values(along(x, y, mu, groups.directions))
            if values is not None:
                ends = np.concatenate([[0], np.cumsum(np.bincount(groups.rows, minlength=groups.shape[0]))])
                return sparse.csr_array((values, groups.columns, ends), shape=groups.shape)
            self.groups = None
        self.too_dense = True
        return None

    def _look(self, along: Along, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> None:
        """Find the entries at a point beside y where few of them vanish by accident.

        Columns are thrown at random into a few bins, several times, and the columns of a bin are added up with weights.
        An entry can be only where its bin is not zero each time; the few places that pass without being one do no harm.
        """
        rng = np.random.default_rng(0)
        beside, weights = y + 0.01 * rng.uniform(0.5, 1.0, y.size), mu + rng.uniform(0.5, 1.0, mu.size)
        throws = list[tuple[np.ndarray, np.ndarray]]()
        for _ in range(THROWS):
            bins, directions = rng.integers(0, BINS, y.size), np.zeros((BINS, y.size))
            directions[bins, np.arange(y.size)] = rng.uniform(0.5, 1.5, y.size)
            filled = along(x, beside, weights, directions) != 0
            if filled.all(axis=0).any():  # a row with entries everywhere
                self.too_dense = True
                return
            throws.append((bins, filled))
        (first, filled), *others = throws
        places = [np.zeros((2, 0), int)]
        for one in range(BINS):
            columns, rows = np.flatnonzero(first == one), np.flatnonzero(filled[one])
            passed = np.ones((columns.size, rows.size), bool)
            for bins, full in others:
                passed &= full[np.ix_(bins[columns], rows)]
            which, where = np.nonzero(passed)
            places.append(np.stack([rows[where], columns[which]]))
        rows, columns = np.concatenate(places, axis=1)
        order = np.lexsort((columns, rows))
        self.groups = _Groups.of(rows[order], columns[order], (filled.shape[1], y.size))
        self.too_dense = self.groups is None


class _Groups(NamedTuple):
    """Columns that share no row, together.

    Attributes:
        rows: of all entries, in order.
        columns: likewise.
        group: of every entry's column.
        directions: one per group, then one at random; zeros fill a block.
        check: the number of the direction at random.
        shape: of the Jacobian.
    """

    rows: np.ndarray
    columns: np.ndarray
    group: np.ndarray
    directions: np.ndarray
    check: int
    shape: tuple[int, int]

    @staticmethod
    def of(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> "_Groups | None":
        """For a matrix with entries at these places; None where too many groups are needed."""
        groups = grouped(rows, columns, shape, BINS - 1)
        if groups is None:
            return None
        count = int(groups.max(initial=0)) + 1
        directions = np.zeros((-(-(count + 1) // TANGENTS) * TANGENTS, shape[1]))
        directions[groups, np.arange(shape[1])] = 1.0
        directions[count] = np.random.default_rng(0).normal(size=shape[1])
        return _Groups(rows, columns, groups[columns], directions, count, shape)

    def values(self, along: np.ndarray) -> np.ndarray | None:
        """All entries from derivatives along the directions; None where there are entries at other places."""
        values = along[self.group, self.rows]
        parts = values * self.directions[self.check, self.columns]
        sums, sizes = (np.bincount(self.rows, part, minlength=self.shape[0]) for part in (parts, np.abs(parts)))
        apart = np.abs(sums - along[self.check])
        return values if np.all(apart <= ROUNDING * sizes) else None  # None also where a number is not finite


def grouped(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int], most: int) -> np.ndarray | None:
    """The group of every column, such that no two of a group share a row; None where that needs more than `most`.

    Columns with many entries choose first; each takes the first group that is free.
    """
    if np.max(np.bincount(rows), initial=0) > most:
        return None
    counts = np.bincount(columns, minlength=shape[1])
    by_column, ends = rows[np.argsort(columns, kind="stable")], np.cumsum(counts)
    groups, taken = np.zeros(shape[1], int), np.zeros((shape[0], most), bool)
    for column in np.argsort(-counts, kind="stable"):
        own = by_column[ends[column] - counts[column] : ends[column]]
        free = np.flatnonzero(~taken[own].any(axis=0))
        if not free.size:
            return None
        groups[column] = free[0]
        taken[own, free[0]] = True
    return groups
