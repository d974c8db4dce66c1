"""Matrices that are affine in a vector of parameters, applied to a vector: constant part and changing entries apart.

    M(theta) = M_0 + sum over k of theta_k M_k,    M_k sparse

A map is one list of entries, those of M_0 among them: with 1 behind theta they change as all others do. Applying it
costs as many products as there are entries, but that M_0 is dense where it is small, and is linear in the vector for
JAX too, so that Jacobians and Hessians of what is built from it are what they should be.
"""

from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

if TYPE_CHECKING:
    from scipy.sparse import csc_array

CONSTANT = -1  # the place of what does not change: that of 1 in (theta, 1)
DENSE = 10**6  # numbers up to which M_0 is dense; beyond that it is kept entry by entry


class AffineMap(NamedTuple):
    """M(theta) of shape (height, width): entry after entry `value` at (row, column), times (theta, 1)[which]."""

    height: int
    width: int
    row: np.ndarray
    column: np.ndarray
    which: np.ndarray
    value: np.ndarray

    def _some(self, kept: np.ndarray) -> "AffineMap":
        return AffineMap(self.height, self.width, *(part[kept] for part in self[2:]))

    def matrix(self, theta: np.ndarray) -> np.ndarray:
        """M(theta) as an array, on the host."""
        found = np.zeros((self.height, self.width))
        np.add.at(found, (self.row, self.column), self.value * np.append(theta, 1.0)[self.which])
        return found

    def times(self, theta: Array, vector: Array) -> Array:
        """M(theta) @ vector, differentiable in both."""
        dtype, product, rest = vector.dtype, jnp.zeros(self.height, vector.dtype), self
        if self.height * self.width <= DENSE:
            still = self.which == CONSTANT
            product, rest = jnp.asarray(self._some(still).matrix(np.zeros(0)), dtype) @ vector, self._some(~still)
        if not rest.row.size:
            return product
        factors = jnp.append(theta.astype(dtype), jnp.ones(1, dtype))[rest.which]
        return product.at[rest.row].add(jnp.asarray(rest.value, dtype) * factors * vector[rest.column])

    def of_rows(self, rows: np.ndarray) -> "AffineMap":
        """The map to some of the rows, which are numbered anew."""
        place = np.full(self.height, -1)
        place[rows] = np.arange(rows.size)
        kept = self._some(place[self.row] >= 0)
        return kept._replace(height=rows.size, row=place[kept.row])

    def rows_of(self, column: int) -> set[int]:
        """The rows that have an entry in a column."""
        return set(self.row[self.column == column].tolist())

    def by_row(self, rows: np.ndarray) -> list[dict[tuple[int, int], float]]:
        """The entries of some rows, each row's by (column, place in theta; `CONSTANT` for those of M_0)."""
        found: dict[int, dict[tuple[int, int], float]] = {int(row): {} for row in rows}
        kept = np.isin(self.row, rows)
        for row, *key, value in zip(*(part[kept].tolist() for part in self[2:]), strict=True):
            own = found[row]
            own[key[0], key[1]] = own.get((key[0], key[1]), 0.0) + value
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
    which = np.asarray(found.col, np.int64)
    factors = np.where((free[which] != CONSTANT) | (which == constant), 1.0, fixed[which])
    return AffineMap(height, width, row, column, free[which], np.asarray(found.data, float) * factors)
