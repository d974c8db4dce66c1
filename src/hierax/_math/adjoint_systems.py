r"""The KKT matrices of active sets that differ in a few rows, solved with one factorisation.

An active set is a mask, so that shapes never depend on it: no more than n = dim(y) rows can be active and independent,
so min(n, rows) of them, the active ones first, stand in the matrix

    K = [ H  J' ]        an inactive row of J is zero, and its diagonal entry in D is one.
        [ J  -D ],

Another set is K with borders, one for each of the d doubted rows. A row j that joins is a border b_j = (J_j, 0); one
that leaves is the border b_j = e_j at its multiplier: it holds the multiplier at what the right-hand side says and
frees the row. With S = diag(1 where the doubted row changes sides), B = (b_1 .. b_d),

    [ K     B S    ] [ z ]   [ r ]        z = K^-1 r - K^-1 B S w,
    [ S B'  -(I-S) ] [ w ] = [ c ]:       (S B' K^-1 B S + I - S) w = S B' K^-1 r - c,

so all 2^d sets take one factorisation of K and a d x d system each. The factorised matrix is shifted by a multiple of
the rounding error, +shift for y and -shift for the rows, and solves are refined with the true matrix of each set: where
gradients of active constraints are dependent, the multiplier is one of the solutions instead of a division by zero, and
where K itself is singular the others are still solved.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from hierax._math.lower_level import Vector
from hierax._math.spectrum import probe

SOLVES = 3  # refined twice, because the factorised matrix is shifted; inverse iteration then gives one digit

Columns = Float[Array, "unknowns sets"]


class Family(NamedTuple):
    """The bordered systems of all sets. Unknowns stand in the order v (y), u (rows in the matrix), w (borders).

    Attributes:
        matrix: K.
        factors: L and U of K, shifted, in one matrix, and the order of its rows.
        borders: B.
        through: K^-1 B.
        changes: the diagonals of S, one row for each set.
        places: index of each row that stands in the matrix.
        inside: which of those are active in K.
        doubted: index of each doubted row.
        joins: which of the doubted rows are not in K.
        counts: number of active rows of each set.
    """

    matrix: Float[Array, "order order"]
    factors: tuple[Array, Array]
    borders: Float[Array, "order doubted"]
    through: Float[Array, "order doubted"]
    changes: Bool[Array, "sets doubted"]
    places: Int[Array, " most"]
    inside: Bool[Array, " most"]
    doubted: Int[Array, " doubted"]
    joins: Bool[Array, " doubted"]
    counts: Int[Array, " sets"]

    @property
    def unknowns(self) -> int:
        """How many, borders included."""
        return sum(self.borders.shape)

    def solved(self, right: Vector) -> tuple[Array, Array, Array]:
        """The solutions of all sets for one right-hand side; near-null vectors; the smallest singular values.

        Inverse iteration starts from a vector that no null vector is orthogonal to by accident.
        """
        count = self.changes.shape[0]
        targets, random = (jnp.tile(v[:, None], count) for v in (right, probe(right)))

        def sharpened(_: Array, carry: tuple[Columns, Columns, Array]) -> tuple[Columns, Columns, Array]:
            found, null, grown = carry
            both = jnp.concatenate([targets - self._times(found), null / grown[None]], axis=1)
            more, null = jnp.split(self._solve(both), 2, axis=1)
            return found + more, null, jnp.linalg.norm(null, axis=0)

        begin = jnp.zeros_like(targets), random, jnp.linalg.norm(random, axis=0)
        found, null, grown = jax.lax.fori_loop(0, SOLVES, sharpened, begin)  # a loop: the solves compile once
        return found.T, null.T, jnp.where(jnp.isfinite(grown), 1 / grown, 0.0)

    def by_row(self, found: Float[Array, "sets unknowns"], rows: int) -> Float[Array, "sets rows"]:
        """The multipliers u of solutions, a number per row, zero where it is not active."""
        order = self.borders.shape[0]
        u, w = found[:, order - self.places.size : order], found[:, order:]
        every = jnp.zeros((found.shape[0], rows), found.dtype)
        every = every.at[:, self.places].set(jnp.where(self.inside[None], u, 0.0))
        changed = jnp.where(self.changes & self.joins[None], w, 0.0)
        return every.at[:, self.doubted].set(jnp.where(self.changes, changed, every[:, self.doubted]))

    def _solve(self, right: Columns) -> Columns:
        """With the shifted matrix of each set; `right` has one column for each set, or several times as many."""
        order, d = self.borders.shape
        z = _substituted(self.factors, right[:order])
        if d == 0:
            return z
        times = right.shape[1] // self.changes.shape[0]
        changes = jnp.tile(self.changes, (times, 1)).T
        w = jax.vmap(self._border_values, 1, 1)(changes, self.borders.T @ z, right[order:])
        return jnp.concatenate([z - self.through @ jnp.where(changes, w, 0.0), w])

    def _border_values(self, changes: Array, reached: Array, target: Array) -> Array:
        """w of one set."""
        small = jnp.where(changes[:, None] & changes[None], self.borders.T @ self.through, 0.0)
        small = small + jnp.diag(jnp.where(changes, jnp.where(self.joins, shift_of(reached.dtype), 0.0), 1.0))
        return jnp.linalg.solve(small, jnp.where(changes, reached, 0.0) - target)

    def _times(self, unknowns: Columns) -> Columns:
        """The true matrix of each set times its column."""
        order = self.borders.shape[0]
        z, w, changes = unknowns[:order], unknowns[order:], self.changes.T
        upper = self.matrix @ z + self.borders @ jnp.where(changes, w, 0.0)
        return jnp.concatenate([upper, jnp.where(changes, self.borders.T @ z, -w)])


def factorised(
    hessian: Float[Array, "n n"],
    jacobian: Float[Array, "rows n"],
    active: Bool[Array, " rows"],
    doubted: Int[Array, " doubted"],
) -> Family:
    """All sets that differ from `active` in doubted rows; the binary digits of a set's number say which changed."""
    n, rows, d, dtype = hessian.shape[0], active.size, doubted.size, hessian.dtype
    most = min(n, rows)
    doubt = jnp.zeros(rows, int).at[doubted].set(1)
    order = jnp.argsort(jnp.where(active, doubt, 2), stable=True)  # active rows first, of these the doubted last
    places = order[:most]
    inside = active[places]
    held = jnp.where(inside[:, None], jacobian[places], 0.0)
    matrix = jnp.block([[hessian, held.T], [held, -jnp.diag(jnp.where(inside, 0.0, 1.0).astype(dtype))]])
    sign = jnp.concatenate([jnp.ones(n, dtype), -jnp.ones(most, dtype)])
    lu, _, swaps = jax.lax.linalg.lu(matrix + shift_of(dtype) * jnp.diag(sign))

    place = jnp.argsort(order)[doubted]  # of the doubted rows in the matrix
    joins = ~active[doubted] | (place >= most)
    leaving = jax.nn.one_hot(n + place, n + most, dtype=dtype).T
    joining = jnp.zeros((n + most, d), dtype).at[:n].set(jacobian[doubted].T)
    borders = jnp.where(joins[None], joining, leaving)
    changed = ((np.arange(2**d)[:, None] >> np.arange(d)[None]) & 1).astype(bool)
    wanted = active[doubted][None] ^ changed
    counts = jnp.sum(active) - jnp.sum(active[doubted]) + jnp.sum(wanted, axis=1)
    through = _substituted((lu, swaps), borders) if d else borders
    return Family(matrix, (lu, swaps), borders, through, wanted == joins[None], places, inside, doubted, joins, counts)


def _substituted(factors: tuple[Array, Array], right: Columns) -> Columns:
    """Solve with L, then with U."""
    lu, swaps = factors
    half = jax.lax.linalg.triangular_solve(lu, right[swaps], left_side=True, lower=True, unit_diagonal=True)
    return jax.lax.linalg.triangular_solve(lu, half, left_side=True, lower=False)


def shift_of(dtype: jnp.dtype) -> float:
    """What is added to the diagonal, in units of the matrix's entries."""
    return float(jnp.finfo(dtype).eps) ** (2 / 3)
