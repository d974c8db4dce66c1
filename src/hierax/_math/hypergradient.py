"""The gradient of x -> F(x, y*(x)), by differentiating the KKT system of the lower level on its active set.

With L(x, y, mu) = G(x, y) + mu'h(x, y), h the rows of the lower level (its constraints and the faces of Y), A the
active ones and J_A their Jacobian in y, the solution and its multipliers move with x by

    [ L_yy  J_A' ] [ dy   ]       [ L_yx  ]
    [ J_A   0    ] [ dmu_A ]  = - [ J_x,A ] dx,

so d_x = grad_x F + (dy*/dx)' grad_y F needs one solve with the same symmetric matrix, whatever the dimension of x:

    [ L_yy  J_A' ] [ v ]   [ -grad_y F ]
    [ J_A   0    ] [ u ] = [     0     ],        d_x = grad_x F + L_yx' v + J_x,A' u.

Everything is in units that the problem sets: rows are divided by the norms of their gradients (then h_i is a length),
L_yy by its largest diagonal entry (then mu_i times that norm, over that entry, is a length too). A row is active where
the length of its multiplier exceeds that of its slack; where both are short it is weakly active, and y*(x) has a kink.

The KKT matrices of active sets that differ in a few rows, solved with one factorisation.

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
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, Scalar

from hierax._base.constants import MUCH
from hierax._base.trees import or_one, size
from hierax._math.lower_level import LowerSolution, RowVector, Vector, level_at, multiplier_vector, rows_at
from hierax._math.spectrum import probe
from hierax._problem.problem import Problem

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


def factorised(hessian: Array, jacobian: Array, active: Bool[Array, " rows"], doubted: Int[Array, " d"]) -> Family:
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


MOST = 2000  # order of the largest KKT matrix that is factorised densely


class System(NamedTuple):
    """The KKT system of the lower level at one point, scaled.

    Attributes:
        hessian: L_yy over `curvature`.
        jacobian: J_y h, each row divided by its norm.
        norms: those norms (one where a row does not depend on y).
        curvature: the largest diagonal entry of L_yy.
        multipliers: mu, not scaled.
        slack: |h_i| as a share of `length`; infinite where the row does not depend on y.
        force: mu_i as a share of `length`: how far it pushes y against the curvature.
        length: size of y, or of what the lower objective's gradient pushes it, if that is more.
        equal: which rows are equalities.
    """

    hessian: Float[Array, "n n"]
    jacobian: Float[Array, "rows n"]
    norms: RowVector
    curvature: Scalar
    multipliers: RowVector
    slack: RowVector
    force: RowVector
    length: Scalar
    equal: np.ndarray


class Adjoint(NamedTuple):
    """(v, u) of the adjoint system, in the user's units, and how far its matrix is from singular.

    Attributes:
        y: v.
        rows: u, zero for inactive rows.
        smallest: smallest singular value of the scaled matrix.
        singular: whether that is zero up to rounding, or more rows are active than y has entries.
        flat: what is to blame: the objective is flat along the active constraints, y*(x) is not unique (True), or the
            gradients of the active constraints are linearly dependent (False).
    """

    y: Vector
    rows: RowVector
    smallest: Scalar
    singular: Bool[Array, ""]
    flat: Bool[Array, ""]


def fits(problem: Problem, x: PyTree, y: PyTree) -> bool:
    """Whether the KKT matrix is small enough to be factorised densely (a question about shapes only)."""
    rows = jax.eval_shape(lambda x, y: rows_at(problem, x, y), x, y).size
    return size(y) + min(rows, size(y)) <= MOST


def kkt_system(problem: Problem, x: PyTree, found: LowerSolution, xi: PyTree) -> System:
    """The scaled KKT system at x and the lower level's solution there."""
    level = level_at(problem, x, found.y, xi)
    at = level.start
    mu = multiplier_vector(found, at.dtype)
    h = level.rows(at)
    jacobian = (jax.jacfwd if at.size <= h.size else jax.jacrev)(level.rows)(at)
    push = jax.grad(level.objective)(at)
    hessian = jax.hessian(lambda v: level.lagrangian(v, mu))(at)
    norms = jnp.linalg.norm(jacobian, axis=1)
    depends = norms > 0  # whether a row depends on y at all
    norms = or_one(norms)
    curvature = or_one(jnp.max(jnp.abs(jnp.diagonal(hessian))))
    length = or_one(jnp.maximum(jnp.linalg.norm(at), jnp.linalg.norm(push) / curvature))
    return System(
        hessian=hessian / curvature,
        jacobian=jacobian / norms[:, None],
        norms=norms,
        curvature=curvature,
        multipliers=mu,
        slack=jnp.where(depends, jnp.abs(h) / (norms * length), jnp.inf),
        force=jnp.abs(mu) * norms / (curvature * length),
        length=length,
        equal=level.equal,
    )


def active_rows(system: System) -> Bool[Array, " rows"]:
    """Equalities, and the inequalities whose multiplier is longer than their slack."""
    return (system.force > system.slack) | system.equal


def margins(system: System) -> RowVector:
    """max(slack, multiplier) of every row, as a share of the size of y: zero where it is weakly active."""
    return jnp.where(system.equal, jnp.inf, jnp.maximum(system.slack, system.force))


def adjoint(system: System, active: Bool[Array, " rows"], grad_y: Vector) -> Adjoint:
    """Solve the adjoint system for one active set."""
    return jax.tree.map(lambda leaf: leaf[0], adjoints(system, active, jnp.zeros(0, int), grad_y))


def adjoints(system: System, active: Bool[Array, " rows"], doubted: Int[Array, " doubted"], grad_y: Vector) -> Adjoint:
    """Solve the adjoint systems of all active sets that some rows may change sides in, with one factorisation.

    The i-th of 2^d results (leading axis) belongs to the set in which those of the d doubted rows have changed sides
    that the binary digits of i name.
    """
    n, rows = grad_y.size, active.size
    base = factorised(system.hessian, system.jacobian, active, doubted)
    right = jnp.concatenate([-grad_y / system.curvature, jnp.zeros(base.unknowns - n, grad_y.dtype)])
    found, null, smallest = base.solved(right)
    return Adjoint(
        y=found[:, :n],
        rows=base.by_row(found, rows) * (system.curvature / system.norms)[None],
        smallest=smallest,
        singular=(smallest < MUCH * shift_of(grad_y.dtype)) | (base.counts > min(n, rows)),
        flat=jnp.linalg.norm(null[:, :n], axis=1) > jnp.linalg.norm(base.by_row(null, rows), axis=1),
    )


def total_gradient(
    problem: Problem, x: PyTree, found: LowerSolution, solved: Adjoint, zeta: PyTree, xi: PyTree
) -> PyTree:
    """d_x = grad_x F + L_yx' v + J_x,A' u at the lower level's solution: one gradient of F + v'L_y + u'h in x."""

    def combined(x: PyTree) -> Scalar:
        level = level_at(problem, x, found.y, xi)
        mu = multiplier_vector(found, level.start.dtype)
        _, along = jax.jvp(lambda v: level.lagrangian(v, mu), (level.start,), (solved.y,))
        return problem.upper(x, found.y, zeta) + along + solved.rows @ rows_at(problem, x, found.y)

    return jax.grad(combined)(x)


def upper_gradient_y(problem: Problem, x: PyTree, y: PyTree, zeta: PyTree) -> Vector:
    """grad_y F as a vector, the right-hand side of the adjoint system."""
    return jax.flatten_util.ravel_pytree(jax.grad(problem.upper, 1)(x, y, zeta))[0]


def hypergradient(problem: Problem, x: PyTree, found: LowerSolution, zeta: PyTree, xi: PyTree) -> PyTree:
    """The gradient of F(x, y*(x)) at the lower level's solution `found` (with the multipliers of the user's units)."""
    system = kkt_system(problem, x, found, xi)
    solved = adjoint(system, active_rows(system), upper_gradient_y(problem, x, found.y, zeta))
    return total_gradient(problem, x, found, solved, zeta, xi)
