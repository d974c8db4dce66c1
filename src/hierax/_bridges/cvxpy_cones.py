r"""Second-order cones as one smooth convex row each, and their dual vectors from the row's multiplier.

A cone s = (s_0, r) with |r| <= s_0, s affine in y, is stated as

    ball      |r|^2 - s_0 |s_0| <= 0                       where s_0 does not depend on y;
    parabola  |r_rest|^2 - c (s_0 - sigma r_j) <= 0        where c = s_0 + sigma r_j > 0 depends on nothing (the form
                                                           that squares have: |r_rest|^2 <= c t);
    norm      |r| - s_0 <= 0                               otherwise: smooth but for r = 0, where it has no gradient.

The first two are quadratic and convex in y. With the multiplier lam of the row, the dual vector of the cone is
kappa (s_0, -r), kappa = 2 lam, or lam / |r| for the norm: it is what makes the gradients of both Lagrangians equal.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hierax._bridges.affine_maps import CONSTANT, AffineMap

Row = dict[tuple[int, int], float]


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
            if set(left) == {(last, CONSTANT)} and left[last, CONSTANT] > 0:
                return Cone(rows, "parabola", place, sigma, left[last, CONSTANT])
    return Cone(rows, "norm")


class Raised(NamedTuple):
    """A bound t of a cone that an inequality holds down, raised until that inequality is an equality.

    Of |r| <= t, t <= b, with t in no other place, |r| <= b is left. The dual value of the inequality is the sum of
    `weights`, the coefficients of t in the cone, times the cone's dual vector, over minus `pivot`, its own coefficient.
    """

    column: int
    row: int
    pivot: float
    cone: Cone
    weights: np.ndarray


def raised(s: AffineMap, cone: Cone, below: set[int], taken: set[int], given: set[int]) -> Raised | None:
    """How the bound of a cone can be raised; None where it cannot.

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
        return None
    column = columns.pop()
    inside = {0, cone.partner} if cone.form == "parabola" else {0}
    outside = s.rows_of(column) - {int(cone.rows[i]) for i in inside}
    if len(outside) != 1 or not outside <= below:
        return None
    (row,) = outside
    (bound,) = s.by_row(np.array([row]))
    key = column, CONSTANT
    others = {of for of, _ in bound if of not in (column, last)}
    alone = all(which == CONSTANT for entries in (top, *rest, bound) for of, which in entries if of == column)
    if not alone or others & given or bound[key] >= 0 or top[key] <= 0:
        return None
    if cone.form == "norm" and not others:
        cone = cone._replace(form="ball")
    return Raised(column, row, bound[key], cone, np.array([entries.get(key, 0.0) for entries in (top, *rest)]))


def _sum(a: Row, b: Row, sigma: float) -> Row:
    """a + sigma b, without what cancels."""
    small = 1e-12 * max(map(abs, (*a.values(), *b.values())))
    total = {key: a.get(key, 0.0) + sigma * b.get(key, 0.0) for key in a | b}
    return {key: value for key, value in total.items() if abs(value) > small}
