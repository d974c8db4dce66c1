r"""The gradient of x -> F(x, y*(x)), by differentiating the KKT system of the lower level on its active set.

With L(x, y, mu) = G(x, y) + mu'h(x, y), h the rows of the lower level (its constraints and the faces of Y), A the
active ones and J_A their Jacobian in y, the solution and its multipliers move with x by

    [ L_yy  J_A' ] [ dy   ]       [ L_yx  ]
    [ J_A   0    ] [ dmu_A ]  = - [ J_x,A ] dx,

so d_x = grad_x F + (dy*/dx)' grad_y F needs one solve with the same symmetric matrix, whatever the dimension of x:

    [ L_yy  J_A' ] [ v ]   [ -grad_y F ]
    [ J_A   0    ] [ u ] = [     0     ],        d_x = grad_x F + L_yx' v + J_x,A' u.

The active set is a mask, so that shapes never depend on it (`hierax._math.adjoint_systems`).

Everything is in units that the problem sets: rows are divided by the norms of their gradients (then h_i is a length),
L_yy by its largest diagonal entry (then mu_i times that norm, over that entry, is a length too). A row is active where
the length of its multiplier exceeds that of its slack; where both are short it is weakly active, and y*(x) has a kink.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, Scalar

from hierax._base.trees import or_one, size
from hierax._math.adjoint_systems import factorised, shift_of
from hierax._math.lower_level import LowerSolution, RowVector, Vector, level_at, multiplier_vector, rows_at
from hierax._problem.problem import Problem

MOST = 2000  # order of the largest KKT matrix that is factorised densely
SINGULAR = 10.0  # in units of the shift: where the smallest singular value is below, the matrix counts as singular


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


class Hypergradient(NamedTuple):
    """The gradient of F(x, y*(x)) and what it rests on.

    Attributes:
        gradient: d_x.
        margin: of strict complementarity, see `margin`; where it is small the gradient holds on one side only.
        smallest: smallest singular value of the scaled KKT matrix.
        singular: whether it is singular: y*(x) is not unique, or the active gradients are dependent (then the gradient
            is one of several, or meaningless).
        flat: which of the two, see `Adjoint`.
        active: which rows were taken as active, in the order of `hierax._math.lower_level`.
    """

    gradient: PyTree
    margin: Scalar
    smallest: Scalar
    singular: Bool[Array, ""]
    flat: Bool[Array, ""]
    active: Bool[Array, " rows"]


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
    jacobian = _jacobian(level.rows, at, h.size)
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
    """Solve the adjoint system for one active set (`hierax._math.adjoint_systems` says how)."""
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
        singular=(smallest < SINGULAR * shift_of(grad_y.dtype)) | (base.counts > min(n, rows)),
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


def hypergradient(problem: Problem, x: PyTree, found: LowerSolution, zeta: PyTree, xi: PyTree) -> Hypergradient:
    """The gradient of F(x, y*(x)) at the lower level's solution `found` (with the multipliers of the user's units)."""
    system = kkt_system(problem, x, found, xi)
    active = active_rows(system)
    solved = adjoint(system, active, upper_gradient_y(problem, x, found.y, zeta))
    return Hypergradient(
        gradient=total_gradient(problem, x, found, solved, zeta, xi),
        margin=jnp.min(margins(system), initial=jnp.inf),
        smallest=solved.smallest,
        singular=solved.singular,
        flat=solved.flat,
        active=active,
    )


def _jacobian(rows: Callable[[Vector], RowVector], at: Vector, count: int) -> Float[Array, "rows n"]:
    """Row by row or column by column, whichever are fewer."""
    return (jax.jacfwd if at.size <= count else jax.jacrev)(rows)(at)
