"""Jacobians with few entries: columns that share no row come from one tangent (Curtis, Powell and Reid, 1974).

Where entries are not zero is seen at a few points, not proved. So every Jacobian made in this way is compared with the
function's own derivative along one direction at random: an entry at a new place shows there, whichever column its
number went to, and all columns are computed.

Reference: A. R. Curtis, M. J. D. Powell and J. K. Reid, On the estimation of sparse Jacobian matrices, IMA Journal of
Applied Mathematics 13 (1974).
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

LOOKS = 5  # points at which all columns are computed first: where derivatives are constant, no more are asked for
MISSES = 3  # Jacobians with entries at new places, after which all columns are computed for good
SHARE = 0.25  # of the columns: with more tangents than this share all columns are computed
BLOCK = 16  # tangents come in multiples of it: a few more of them need no new program
ROUNDING = 1e-9  # relative to the sizes of what is added up

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
            found = self._groups.matrix(self._along(x, y, mu, self._groups.ways))
            if found is not None:
                return found
            self._misses, self._groups = self._misses + 1, None
        return self._by_all(x, y, mu)

    def _by_all(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> np.ndarray:
        matrix = self._every(x, y, mu)
        if self._misses < MISSES:
            filled = matrix != 0
            self._filled = filled if self._filled is None else self._filled | filled
            self._looks += 1
            if self._looks >= LOOKS:
                self._group(self._filled)
        return matrix

    def _group(self, filled: np.ndarray) -> None:
        self._groups = _Groups.of(filled)
        if self._groups is None:
            self._misses = MISSES
        else:
            self._along = self._make(self._groups.ways)


class _Groups(NamedTuple):
    """Columns that share no row, together.

    Attributes:
        rows: of all entries.
        columns: likewise.
        group: of every entry's column.
        ways: one direction per group, then the one at random; zeros fill a block.
        check: the number of the direction at random.
        shape: of the Jacobian.
    """

    rows: np.ndarray
    columns: np.ndarray
    group: np.ndarray
    ways: np.ndarray
    check: int
    shape: tuple[int, int]

    @staticmethod
    def of(filled: np.ndarray) -> "_Groups | None":
        """For a matrix whose entries are where `filled` says; None where too many groups are needed."""
        most = int(SHARE * filled.shape[1]) // BLOCK * BLOCK - 1
        groups = grouped(filled, most)
        if groups is None:
            return None
        rows, columns = np.nonzero(filled)
        count = int(groups.max(initial=0)) + 1
        ways = np.zeros((-(-(count + 1) // BLOCK) * BLOCK, filled.shape[1]))
        ways[groups, np.arange(filled.shape[1])] = 1.0
        ways[count] = np.random.default_rng(0).normal(size=filled.shape[1])
        return _Groups(rows, columns, groups[columns], ways, count, (filled.shape[0], filled.shape[1]))

    def matrix(self, along: np.ndarray) -> np.ndarray | None:
        """The Jacobian from derivatives along the ways; None where it has entries at other places."""
        values = along[self.group, self.rows]
        parts = values * self.ways[self.check, self.columns]
        sums, sizes = (np.bincount(self.rows, part, minlength=self.shape[0]) for part in (parts, np.abs(parts)))
        apart = np.abs(sums - along[self.check])
        if not np.all(apart <= ROUNDING * sizes):  # also where a number is not finite
            return None
        found = np.zeros(self.shape)
        found[self.rows, self.columns] = values
        return found


def grouped(filled: np.ndarray, most: int) -> np.ndarray | None:
    """The group of every column, such that no two of a group share a row; None where that needs more than `most`.

    Columns with many entries choose first; each takes the first group that is free.
    """
    if np.max(np.count_nonzero(filled, axis=1), initial=0) > most:
        return None
    counts = np.count_nonzero(filled, axis=0)
    groups, taken = np.zeros(filled.shape[1], int), np.zeros((filled.shape[0], max(most, 0)), bool)
    for column in np.argsort(-counts, kind="stable"):
        rows = np.flatnonzero(filled[:, column])
        free = np.flatnonzero(~taken[rows].any(axis=0))
        if not free.size:
            return None
        groups[column] = free[0]
        taken[rows, free[0]] = True
    return groups
