"""Matrices that are affine in a vector of parameters, applied to a vector: constant part and changing entries apart.

    M(theta) = M_0 + sum over k of theta_k M_k,    M_k sparse

A map is stored as M_0, dense where that is small, and one list of the entries of all M_k. Applying it costs as many
products as there are entries, and is linear in the vector for JAX too, so that Jacobians and Hessians of what is built
from it are what they should be.
"""

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

if TYPE_CHECKING:
    from scipy.sparse import csc_array

CONSTANT = -1  # stands for the place in theta of what does not change
DENSE = 10**6  # numbers up to which M_0 is dense; beyond that it is kept entry by entry


class Entries(NamedTuple):
    """Entries of a matrix: value at (row, column), times theta[which] where they change."""

    row: np.ndarray
    column: np.ndarray
    which: np.ndarray
    value: np.ndarray

    def of_rows(self, rows: np.ndarray, height: int) -> "Entries":
        """Those of some rows, which are numbered anew."""
        place = np.full(height, -1)
        place[rows] = np.arange(rows.size)
        kept = place[self.row] >= 0
        return Entries(place[self.row[kept]], *(part[kept] for part in self[1:]))


class AffineMap(NamedTuple):
    """M(theta) of shape (height, width); `constant` and `changing` are the entries of M_0 and of all M_k."""

    height: int
    width: int
    constant: Entries
    changing: Entries

    def matrix(self, theta: np.ndarray) -> np.ndarray:
        """M(theta) as an array, on the host."""
        found = np.zeros((self.height, self.width))
        np.add.at(found, (self.constant.row, self.constant.column), self.constant.value)
        changing = self.changing
        np.add.at(found, (changing.row, changing.column), changing.value * theta[changing.which])
        return found

    def times(self, theta: Array, vector: Array) -> Array:
        """M(theta) @ vector, differentiable in both."""
        dtype = vector.dtype
        if self.height * self.width <= DENSE:
            dense = np.zeros((self.height, self.width))
            np.add.at(dense, (self.constant.row, self.constant.column), self.constant.value)
            product = jnp.asarray(dense, dtype) @ vector
        else:
            product = self._summed(self.constant, jnp.asarray(self.constant.value, dtype), vector)
        if not self.changing.row.size:
            return product
        values = jnp.asarray(self.changing.value, dtype) * theta[self.changing.which].astype(dtype)
        return product + self._summed(self.changing, values, vector)

    def _summed(self, entries: Entries, values: Array, vector: Array) -> Array:
        return jnp.zeros(self.height, vector.dtype).at[entries.row].add(values * vector[entries.column])

    def of_rows(self, rows: np.ndarray) -> "AffineMap":
        """The map to some of the rows."""
        parts = (entries.of_rows(rows, self.height) for entries in (self.constant, self.changing))
        return AffineMap(rows.size, self.width, *parts)

    def rows_of(self, column: int) -> set[int]:
        """The rows that have an entry in a column."""
        parts = (entries.row[entries.column == column] for entries in (self.constant, self.changing))
        return {int(row) for part in parts for row in part}

    def by_row(self, rows: np.ndarray) -> list[dict[tuple[int, int], float]]:
        """The entries of some rows, each row's by (column, place in theta; `CONSTANT` for those of M_0)."""
        found: dict[int, dict[tuple[int, int], float]] = {int(row): {} for row in rows}
        for entries in (self.constant, self.changing):
            kept = np.isin(entries.row, rows)
            for row, column, which, value in zip(*(part[kept] for part in entries), strict=True):
                own, key = found[int(row)], (int(column), int(which))
                own[key] = own.get(key, 0.0) + float(value)
        return list(found.values())


def affine_map(
    tensor: "csc_array", height: int, width: int, constant: int, fixed: np.ndarray, free: np.ndarray
) -> AffineMap:
    """A map from a sparse matrix of shape (height * width, parameters), its rows column by column as in Fortran.

    Args:
        tensor: the sparse matrix; a parameter's column holds M_k, raveled.
        height: of M.
        width: of M.
        constant: the column of M_0.
        fixed: values of the parameters that do not change, by column; NaN for the others.
        free: for every column the place in theta, `CONSTANT` for those that do not change.
    """
    found = tensor.tocoo()
    column, row = np.divmod(np.asarray(found.row, np.int64), height)
    which, value = np.asarray(found.col, np.int64), np.asarray(found.data, float)
    moves = free[which] != CONSTANT
    still = np.where(which == constant, 1.0, fixed[which])
    own = Entries(row[~moves], column[~moves], np.full(int((~moves).sum()), CONSTANT), value[~moves] * still[~moves])
    return AffineMap(height, width, own, Entries(row[moves], column[moves], free[which[moves]], value[moves]))
