"""Jacobians with few entries: columns that share no row come from one tangent (Curtis, Powell and Reid, 1974).

Where entries are not zero is seen at a few points, not proved. So every Jacobian made in this way is compared with the
function's own derivative along one direction at random: an entry at a new place shows there, whichever column its
number went to, and all columns are computed.

Reference: A. R. Curtis, M. J. D. Powell and J. K. Reid, On the estimation of sparse Jacobian matrices, IMA Journal of
Applied Mathematics 13 (1974).
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hierax._base.imports import lazy

if TYPE_CHECKING:
    from scipy.sparse import csr_array

sparse = lazy("scipy.sparse")

LOOKS = 5  # points at which all columns are computed first: where derivatives are constant, no more are asked for
MAX_MISSES = 3  # Jacobians with entries at new places, after which all columns are computed for good
SHARE = 0.25  # of the columns: with more tangents than this share all columns are computed
BLOCK = 16  # tangents come in multiples of it: a few more of them need no new program
ROUNDING = 1e-9  # relative to the sizes of what is added up
MAX_GROUPS = 127  # tangents, up to which a large Jacobian is formed as a sparse one
BINS, THROWS, CROWDED = 128, 8, 0.5  # by which its entries are looked for, and the share of bins that are too many
COLUMNS_AT_ONCE = 64  # tangents of one call

Every = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""The Jacobian in y at (x, y, mu)."""

Along = Callable[[np.ndarray, np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""One line per direction, the last argument's lines: the derivatives along it."""


class Columns:
    """The Jacobian of one function at many points."""

    def __init__(self, every: Every, along: Callable[[np.ndarray], Along]) -> None:
        """`along`: given directions, the program for as many."""
        self._every, self._make = every, along
        self.forget()

    def forget(self) -> None:
        """Drop what earlier points say of later ones."""
        self._looks = self._misses = 0
        self._filled: np.ndarray | None = None
        self._groups: _Groups | None = None
        self._along: Along | None = None

    def at(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> np.ndarray:
        """The Jacobian at a point."""
        if self._groups is not None and self._along is not None:
            values = self._groups.values(self._along(x, y, mu, self._groups.directions))
            if values is not None:
                found = np.zeros(self._groups.shape)
                found[self._groups.rows, self._groups.columns] = values
                return found
            self._misses, self._groups = self._misses + 1, None
        return self._by_all(x, y, mu)

    def _by_all(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> np.ndarray:
        matrix = self._every(x, y, mu)
        if self._misses < MAX_MISSES:
            filled = matrix != 0
            self._filled = filled if self._filled is None else self._filled | filled
            self._looks += 1
            if self._looks >= LOOKS:
                self._group(self._filled)
        return matrix

    def _group(self, filled: np.ndarray) -> None:
        most = int(SHARE * filled.shape[1]) // BLOCK * BLOCK - 1
        rows, columns = np.nonzero(filled)
        self._groups = _Groups.of(rows, columns, (filled.shape[0], filled.shape[1]), most)
        if self._groups is None:
            self._misses = MAX_MISSES
        else:
            self._along = self._make(self._groups.directions)


class Places:
    """Where the entries of a large Jacobian are, once that is known; `too_dense`: it is not worth knowing."""

    def __init__(self) -> None:
        self.groups: _Groups | None = None
        self.too_dense = False


class SparseColumns:
    """The Jacobian of a function of many entries as a sparse matrix; nothing of its whole size is formed."""

    def __init__(self, along: Callable[[np.ndarray], Along], entries: int, known: "Places") -> None:
        """`along`: given directions, the program for as many; `entries`: of y; `known`: where they are, shared."""
        self._make, self._entries, self._known = along, entries, known

    @functools.cached_property
    def _one_block(self) -> Along:
        return self._make(np.zeros((COLUMNS_AT_ONCE, self._entries)))

    def at(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> "csr_array | None":
        """The Jacobian at a point; None where it has too many entries, or they are at new places again and again."""
        for _ in range(MAX_MISSES):
            if self._known.groups is None and not self._known.too_dense:
                self._look(x, y, mu)
            if self._known.too_dense or self._known.groups is None:
                return None
            groups = self._known.groups
            values = groups.values(self._make(groups.directions)(x, y, mu, groups.directions))
            if values is not None:
                ends = np.concatenate([[0], np.cumsum(np.bincount(groups.rows, minlength=groups.shape[0]))])
                return sparse.csr_array((values, groups.columns, ends), shape=groups.shape)
            self._known.groups = None
        self._known.too_dense = True
        return None

    def _look(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> None:
        """Find the entries at a point beside y where few of them vanish by accident.

        Columns are thrown at random into a few bins, several times, and the columns of a bin are added up with weights.
        An entry can be only where its bin is not zero each time; the few places that pass without being one do no harm.
        """
        rng = np.random.default_rng(0)
        beside, weights = y + 0.01 * rng.uniform(0.5, 1.0, y.size), mu + rng.uniform(0.5, 1.0, mu.size)
        throws = list[tuple[np.ndarray, np.ndarray]]()
        for _ in range(THROWS):
            bins = rng.integers(0, BINS, self._entries)
            directions = np.zeros((BINS, self._entries))
            directions[bins, np.arange(self._entries)] = rng.uniform(0.5, 1.5, self._entries)
            parts = np.split(directions, BINS // COLUMNS_AT_ONCE)
            filled = np.concatenate([self._one_block(x, beside, weights, part) for part in parts]) != 0
            if np.count_nonzero(filled) > CROWDED * filled.size:
                self._known.too_dense = True
                return
            throws.append((bins, filled))
        self._group(throws)

    def _group(self, throws: list[tuple[np.ndarray, np.ndarray]]) -> None:
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
        shape = filled.shape[1], self._entries
        self._known.groups = _Groups.of(rows[order], columns[order], shape, MAX_GROUPS)
        self._known.too_dense = self._known.groups is None


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
    def of(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int], most: int) -> "_Groups | None":
        """For a matrix with entries at these places; None where more than `most` groups are needed."""
        groups = grouped(rows, columns, shape, most)
        if groups is None:
            return None
        count = int(groups.max(initial=0)) + 1
        directions = np.zeros((-(-(count + 1) // BLOCK) * BLOCK, shape[1]))
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
    groups, taken = np.zeros(shape[1], int), np.zeros((shape[0], max(most, 0)), bool)
    for column in np.argsort(-counts, kind="stable"):
        own = by_column[ends[column] - counts[column] : ends[column]]
        free = np.flatnonzero(~taken[own].any(axis=0))
        if not free.size:
            return None
        groups[column] = free[0]
        taken[own, free[0]] = True
    return groups
