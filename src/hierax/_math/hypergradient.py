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

An active set is a mask, so that shapes never depend on it: no more than n = dim(y) rows can be active and independent,
so min(n, rows) of them, the active ones first, stand in the matrix; an inactive row is zero there, and has -1 on the
diagonal. The factorised matrix is shifted by a multiple of the rounding error, +shift for y and -shift for the rows,
and the solve is refined with the true matrix: where gradients of active constraints are dependent, the multiplier is
one of the solutions instead of a division by zero.
"""

from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree, Scalar

from hierax._base.constants import MUCH
from hierax._base.trees import or_one, size
from hierax._math.lower_level import LowerSolution, RowVector, Vector, level_at, multiplier_vector, rows_at
from hierax._math.spectrum import probe
from hierax._problem.problem import Problem

SOLVES = 3  # refined twice, because the factorised matrix is shifted; inverse iteration then gives one digit


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
    """Solve the adjoint system for one active set.

    Inverse iteration, in the same loop, finds how far the matrix is from singular; it starts from a vector that no null
    vector is orthogonal to by accident.
    """
    n, rows, dtype = grad_y.size, active.size, grad_y.dtype
    most = min(n, rows)
    places = jnp.argsort(~active, stable=True)[:most]
    inside = active[places]
    held = jnp.where(inside[:, None], system.jacobian[places], 0.0)
    matrix = jnp.block([[system.hessian, held.T], [held, -jnp.diag(jnp.where(inside, 0.0, 1.0).astype(dtype))]])
    sign = jnp.concatenate([jnp.ones(n, dtype), -jnp.ones(most, dtype)])
    lu, _, swaps = jax.lax.linalg.lu(matrix + shift_of(dtype) * jnp.diag(sign))
    right = jnp.concatenate([-grad_y / system.curvature, jnp.zeros(most, dtype)])[:, None]
    random = probe(right[:, 0])[:, None]

    def sharpened(_: Array, carry: tuple[Array, Array, Scalar]) -> tuple[Array, Array, Scalar]:
        found, null, grown = carry
        both = jnp.concatenate([right - matrix @ found, null / grown], axis=1)
        half = jax.lax.linalg.triangular_solve(lu, both[swaps], left_side=True, lower=True, unit_diagonal=True)
        more, null = jnp.split(jax.lax.linalg.triangular_solve(lu, half, left_side=True, lower=False), 2, axis=1)
        return found + more, null, jnp.linalg.norm(null)

    def by_row(unknowns: Array) -> RowVector:
        return jnp.zeros(rows, dtype).at[places].set(jnp.where(inside, unknowns[n:, 0], 0.0))

    begin = jnp.zeros_like(right), random, jnp.linalg.norm(random)
    found, null, grown = jax.lax.fori_loop(0, SOLVES, sharpened, begin)  # a loop: the solves compile once
    smallest = jnp.where(jnp.isfinite(grown), 1 / grown, 0.0)
    singular = (smallest < MUCH * shift_of(dtype)) | (jnp.sum(active) > most)
    flat = jnp.linalg.norm(null[:n]) > jnp.linalg.norm(by_row(null))
    return Adjoint(found[:n, 0], by_row(found) * (system.curvature / system.norms), smallest, singular, flat)


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
