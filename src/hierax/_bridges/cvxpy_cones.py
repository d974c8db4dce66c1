r"""What a cone program is made of: matrices that are affine in parameters, and second-order cones as smooth rows.

    M(theta) = M_0 + sum over k of theta_k M_k,    M_k sparse

A map is one list of entries, those of M_0 among them: with 1 before theta they change as all others do. Applying it
costs as many products as there are entries, but that M_0 is dense where it is small, and is linear in the vector for
JAX too, so that Jacobians and Hessians of what is built from it are what they should be.

A cone s = (s_0, r) with |r| <= s_0, s affine in y, is stated as one smooth convex row,

    ball      |r|^2 - s_0 |s_0| <= 0                       where s_0 does not depend on y;
    parabola  |r_rest|^2 - c (s_0 - sigma r_j) <= 0        where c = s_0 + sigma r_j > 0 depends on nothing (the form
                                                           that squares have: |r_rest|^2 <= c t);
    norm      |r| - s_0 <= 0                               otherwise: smooth but for r = 0, where it has no gradient.

The first two are quadratic and convex in y. With the multiplier lam of the row, the dual vector of the cone is
kappa (s_0, -r), kappa = 2 lam, or lam / |r| for the norm: it is what makes the gradients of both Lagrangians equal.
"""

from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hierax._base.constants import LITTLE_DATA, MUCH

if TYPE_CHECKING:
    from scipy.sparse import csc_array

Row = dict[tuple[int, int], float]
"""Entries of a row of a map, by (column, number of their M_k)."""

MAX_DENSE = MUCH * LITTLE_DATA  # numbers up to which M_0 is dense; beyond that it is kept entry by entry
NO_CONE = np.array([], int)


class AffineMap(NamedTuple):
    """M(theta) of shape (height, width): entry after entry `value` at (row, column), times (1, theta)[which]."""

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
        np.add.at(found, (self.row, self.column), self.value * np.append(1.0, theta)[self.which])
        return found

    def times(self, theta: Array, vector: Array) -> Array:
        """M(theta) @ vector, differentiable in both."""
        dtype, product, rest = vector.dtype, jnp.zeros(self.height, vector.dtype), self
        if self.height * self.width <= MAX_DENSE:
            product = jnp.asarray(self._some(self.which == 0).matrix(np.zeros(0)), dtype) @ vector
            rest = self._some(self.which > 0)
        if not rest.row.size:
            return product
        factors = jnp.append(jnp.ones(1, dtype), theta.astype(dtype))[rest.which]
        return product.at[rest.row].add(jnp.asarray(rest.value, dtype) * factors * vector[rest.column])

    def of_rows(self, rows: np.ndarray) -> "AffineMap":
        """The map to some of the rows, which are numbered anew."""
        place = np.full(self.height, -1)
        place[rows] = np.arange(rows.size)
        kept = self._some(place[self.row] >= 0)
        return kept._replace(height=rows.size, row=place[kept.row])

    def by_row(self, rows: np.ndarray) -> list[Row]:
        """The entries of some rows."""
        found: dict[int, Row] = {int(row): defaultdict(float) for row in rows}
        kept = self._some(np.isin(self.row, rows))
        for row, column, which, value in zip(*(part.tolist() for part in kept[2:]), strict=True):
            found[row][column, which] += value
        return list(found.values())


def affine_map(tensor: "csc_array", height: int, width: int, which: np.ndarray, factor: np.ndarray) -> AffineMap:
    """A map from a sparse matrix of shape (height * width, parameters), its rows column by column as in Fortran.

    Args:
        tensor: the sparse matrix; a parameter's column holds M_k, raveled.
        height: of M.
        width: of M.
        which: for every column the k of its M_k; 0: it belongs to M_0,
        factor: times this: the value of a parameter that does not change, else 1.
    """
    found = tensor.tocoo()
    column, row = np.divmod(np.asarray(found.row, np.int64), height)
    return AffineMap(height, width, row, column, which[found.col], np.asarray(found.data, float) * factor[found.col])


class Cone(NamedTuple):
    """Rows of the map s(y) = M(theta) (y, 1) that form a cone; `partner` is the j of a parabola, `sigma` its sign."""

    rows: np.ndarray
    form: str
    partner: int = 0
    sigma: float = 1.0
    width: float = 0.0

    def row(self, s: Array) -> Array:
        """The row at s, the entries of the cone: feasible where <= 0."""
        top, rest = s[0], s[1:]
        if self.form == "ball":
            return jnp.vdot(rest, rest) - top * jnp.abs(top)
        if self.form == "parabola":
            others = rest[np.flatnonzero(np.arange(1, s.size) != self.partner)]
            other_side = top - jnp.asarray(self.sigma, s.dtype) * s[self.partner]
            return jnp.vdot(others, others) - jnp.asarray(self.width, s.dtype) * other_side
        return jnp.sqrt(jnp.vdot(rest, rest)) - top

    def dual(self, s: np.ndarray, multiplier: float) -> np.ndarray:
        """The dual vector of the cone at s."""
        size = float(np.linalg.norm(s[1:]))
        kappa = 2 * multiplier if self.form != "norm" else multiplier / size if size else 0.0
        return kappa * np.concatenate([s[:1], -s[1:]])


def cone_of(s: AffineMap, rows: np.ndarray) -> Cone:
    """The cone of some rows, in the best form that it has."""
    last = s.width - 1  # the column of the constant
    top, *rest = s.by_row(rows)
    if all(column == last for column, _ in top):
        return Cone(rows, "ball")
    for place, other in enumerate(rest, start=1):
        for sigma in (1.0, -1.0):
            left = _sum(top, other, sigma) if len(top) == len(other) else top
            if set(left) == {(last, 0)} and left[last, 0] > 0:
                return Cone(rows, "parabola", place, sigma, left[last, 0])
    return Cone(rows, "norm")


class Definition(NamedTuple):
    """An entry of v that a row of the map gives from the others: s_row = pivot v_column + ... = 0.

    The row is an equality; or an inequality t <= b whose t bounds a cone and stands in no other place. There t is
    raised to b, so that of |r| <= t, |r| <= b is left. The dual value of that inequality is the sum of `weights`, the
    coefficients of t in the cone's rows, times the cone's dual vector, over minus the pivot.
    """

    column: int
    row: int
    pivot: float
    cone_rows: np.ndarray
    weights: np.ndarray


def raised(
    s: AffineMap, cone: Cone, below: set[int], taken: set[int], given: set[int]
) -> tuple[Cone, Definition | None]:
    """The cone with its bound raised, and how; unchanged and None where that cannot be done.

    Args:
        s: the map to all rows.
        cone: the cone.
        below: rows that must be >= 0.
        taken: columns that are used in another place: by the user, the objective or a definition.
        given: columns that have a definition already.
    """
    last, (top, *rest) = s.width - 1, s.by_row(cone.rows)
    columns = {column for column, _ in top if column != last}
    if cone.form == "ball" or len(columns) != 1 or columns & (taken | given):
        return cone, None
    column = columns.pop()
    inside = {0, cone.partner} if cone.form == "parabola" else {0}
    outside = set(s.row[s.column == column].tolist()) - {int(cone.rows[i]) for i in inside}
    if len(outside) != 1 or not outside <= below:
        return cone, None
    (row,) = outside
    (bound,) = s.by_row(np.array([row]))
    others = {of for of, _ in bound if of not in (column, last)}
    changing = any(which for entries in (top, *rest, bound) for of, which in entries if of == column)
    if changing or others & given or bound[column, 0] >= 0 or top[column, 0] <= 0:
        return cone, None
    if cone.form == "norm" and not others:
        cone = cone._replace(form="ball")
    weights = np.array([entries.get((column, 0), 0.0) for entries in (top, *rest)])
    return cone, Definition(column, row, bound[column, 0], cone.rows, weights)


def _sum(a: Row, b: Row, sigma: float) -> Row:
    """a + sigma b, without what cancels."""
    small = 1e-12 * max(map(abs, (*a.values(), *b.values())))
    total = {key: a.get(key, 0.0) + sigma * b.get(key, 0.0) for key in a | b}
    return {key: value for key, value in total.items() if abs(value) > small}
