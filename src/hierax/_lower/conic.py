"""Conic: lower levels that are quadratic in y, by an interior-point solver on the host (Clarabel).

The solver's matrices are read off the user's functions by automatic differentiation, inside the traced code; only the
solve itself leaves JAX (`jax.pure_callback`), so that `Conic` compiles and maps like everything else.
"""

from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, PyTree, Scalar

from hierax._base.errors import InputError
from hierax._base.jaxprs import curvatures
from hierax._base.settings import COUNT_GIVEN, POSITIVE_GIVEN, Rule, check_settings
from hierax._base.trees import Number, or_one
from hierax._lower import cones as _cones
from hierax._lower.base import AbstractLowerSolver, is_traced
from hierax._math.lower_level import (
    INACCURATE,
    SOLVED,
    Level,
    LowerSolution,
    RowVector,
    Vector,
    derivatives_along,
    level_at,
    reachable,
    residual_at,
)
from hierax._problem.problem import Problem, Rows

LARGEST = 5e7  # numbers in the Hessians of all curved rows together (400 MB)
POINTS = 4  # at which second derivatives are compared

CLARABEL = Rule(lambda name: name == "clarabel", "Clarabel is the only solver left; leave solver= out")

NOT_QUADRATIC = "Conic: lower(x, y, xi) is not quadratic in y (its Hessian changes between points); use hx.Exact()."
NOT_CONVEX = (
    "Conic: lower(x, y, xi) is not convex in y (its Hessian has a negative eigenvalue), and interior-point solvers for "
    "convex problems find no minimiser of it."
)
ROWS_NOT_QUADRATIC = (
    "Conic: constraints(x, y), or the faces of y_set, are neither affine nor quadratic in y (their second derivatives "
    "change between points); use hx.Exact()."
)
ROWS_NOT_CONVEX = "Conic: a quadratic row of constraints(x, y) is not convex in y: what it allows is not a convex set."
NOT_AFFINE = "Conic: equalities(x, y) are not affine in y; no convex solver can treat them."


class Conic(AbstractLowerSolver):
    """Solver of convex quadratic lower levels: an interior-point method on the host.

        min over y of 1/2 y'Qy + q'y   subject to   A y <= b,   C y = d,   1/2 y'R_i y + s_i'y <= t_i,
        Q and R_i positive semidefinite, all of them read off the functions at x

    Accepted are a G that is quadratic in y (positive semidefinite, or linear), equalities affine in y, constraints
    affine in y or convex quadratic in y (ellipsoids, ||Ay - b||^2 - r^2; not the norm itself), and the sets of hierax.
    Which constraints are affine is seen from how they are written: keep affine and quadratic ones in different leaves
    of the constraints' tree where there are many, because a leaf with a quadratic entry costs a Hessian per entry.
    `doubts` checks all this at a few points; a call outside `jit` runs it.

    An interior-point method profits from no start: y only says where the matrices are read off, `multipliers` are
    ignored. The host computes in double precision whatever the precision of y.

    Args:
        solver: "clarabel".
        tol: tolerance handed to the solver (gap and feasibility). Where the solver gives up, 10 tol and 100 tol are
            tried in turn. The status is SOLVED where the KKT residual is at most 100 tol.
        max_steps: bound on its iterations.

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> from hierax._lower.conic import Conic
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: y, lower=lambda x, y, xi: (y - 2 * x) ** 2, constraints=lambda x, y: y - x
        ... )
        >>> found = Conic().solve(problem, jnp.asarray(1.5), jnp.asarray(0.0))
        >>> round(float(found.y), 4), round(float(found.multipliers.inequalities), 4)
        (1.5, 3.0)

    References:
        Goulart, Chen: Clarabel: an interior-point solver for conic programs with quadratic objectives,
            arXiv:2405.12762, 2024.
        docs/methods/lower-solvers.md
    """

    solver: Literal["clarabel"] = eqx.field(static=True, default="clarabel")
    tol: Number = 1e-9
    max_steps: int = eqx.field(static=True, default=200)

    def __post_init__(self) -> None:
        """Refuse settings that make no sense."""
        check_settings(self, {"solver": CLARABEL, "tol": POSITIVE_GIVEN, "max_steps": COUNT_GIVEN})

    def solve(
        self, problem: Problem, x: PyTree, y: PyTree, xi: PyTree = None, multipliers: Rows | None = None
    ) -> LowerSolution:
        """y*(x) and its multipliers on the batch xi."""
        del multipliers
        _cones.package()
        level = level_at(problem, x, y, xi)
        curved = _curved_rows(level)
        # Values are not known under jit or vmap, be it of x and y or of what the functions close over.
        if not is_traced((level.objective(level.start), level.rows(level.start))):
            for text, flag in _doubts(level, curved).items():
                if flag:
                    raise InputError(text)
        dtype, number = level.start.dtype, jax.ShapeDtypeStruct((), np.int32)
        step, mu = (jax.ShapeDtypeStruct(like.shape, dtype) for like in (level.start, level.equal))
        limits = jnp.asarray(self.tol, dtype), np.int32(self.max_steps)
        given = *_quadratic_form(level, curved), level.equal, curved, *limits
        found = jax.pure_callback(_cones.solve_batch, (step, mu, number, number), *given, vmap_method="expand_dims")
        step, mu, status, iterations = found
        v = level.start + step
        left = residual_at(level, v, mu, reachable(self.tol, dtype))
        # Only the solver knows that there is no solution; that a point is one, its residual says.
        judged = jnp.where(left <= reachable(_cones.ACCEPTED * self.tol, dtype), SOLVED, INACCURATE)
        status = jnp.where((status == SOLVED) | (status == INACCURATE), judged, status)
        return LowerSolution(level.tree(v), *level.split(mu), level.objective(v), left, status, iterations)

    def doubts(self, problem: Problem, x: PyTree, y: PyTree, xi: PyTree = None) -> dict[str, Bool[Array, ""]]:
        """What speaks against this solver: texts, and whether they apply, from second derivatives at a few points."""
        level = level_at(problem, x, y, xi)
        return _doubts(level, _curved_rows(level))


def _quadratic_form(level: Level, curved: np.ndarray) -> tuple[Array, ...]:
    """P, q, J', r and Q of G and the rows around the start: 1/2 d'Pd + q'd, and r + Jd + 1/2 d'Q_i d, of the step d.

    J is transposed as the host's sparse matrices are stored by columns.
    """
    v, rows = level.start, level.equal.size
    jacobian = jax.jacrev if 0 < rows <= v.size else jax.jacfwd
    first, second = jax.grad(level.objective)(v), jax.hessian(level.objective)(v)
    return second, first, jacobian(level.rows)(v).T, level.rows(v), _row_hessians(level, curved)


def _row_hessians(level: Level, curved: np.ndarray) -> Float[Array, "curved n n"]:
    """Q of the curved rows."""
    v, index = level.start, np.flatnonzero(curved)
    if index.size * v.size**2 > LARGEST:
        raise InputError(
            f"Conic: {index.size} constraints are not affine in y as written, and their Hessians have "
            f"{index.size} x {v.size} x {v.size} entries, which is too many. Put affine and quadratic constraints in "
            "different leaves of the tree that constraints(x, y) returns, or use hx.Exact()."
        )
    if not index.size:
        return jnp.zeros((0, v.size, v.size), v.dtype)
    return jax.hessian(lambda w: level.rows(w)[index])(v)


def _curved_rows(level: Level) -> np.ndarray:
    """Which rows may have a second derivative, from the way they are written: a fact of the trace, not of numbers.

    The slope of an affine row is constant: the program of the linearised rows does not use the point.
    """
    found = curvatures(lambda v: jax.linearize(level.blocks, v)[1](jnp.ones_like(v)), level.start)
    curved = np.array([not slope.is_constant for slope in found], bool)
    return np.repeat(curved, [leaf.size for leaf in jax.tree.leaves(level.shapes)])


def _doubts(level: Level, curved: np.ndarray) -> dict[str, Bool[Array, ""]]:
    v = level.start
    place = jnp.arange(1, v.size + 1, dtype=v.dtype)
    which = jnp.arange(1, POINTS + 1, dtype=v.dtype)[:, None]
    points = v[None] + jnp.maximum(1.0, jnp.max(jnp.abs(v))) * jnp.sin(1.7 * which * place[None] + which**2)
    along = jnp.cos(2.3 * place)
    small = 100 * jnp.sqrt(jnp.finfo(v.dtype).eps)

    def seconds(w: Vector) -> tuple[Vector, RowVector, RowVector]:
        return jax.jvp(jax.grad(level.objective), (w,), (along,))[1], *derivatives_along(level.rows, w, along)

    bend, first, second = jax.vmap(seconds)(points)
    rows = jnp.max(jnp.abs(first), 0, initial=0.0) + jnp.max(jnp.abs(second), 0, initial=0.0)

    def steady(values: Array, size: Array) -> Bool[Array, ""]:
        return jnp.all(jnp.abs(values - values[:1]) <= small * jnp.broadcast_to(size, values.shape))

    equal = jnp.asarray(level.equal)
    allowed = _row_hessians(level, curved)[~level.equal[curved]]
    return {
        NOT_QUADRATIC: ~steady(bend, jnp.max(jnp.abs(bend))),
        NOT_CONVEX: ~_semidefinite(jax.hessian(level.objective)(v), small),
        ROWS_NOT_QUADRATIC: ~steady(jnp.where(equal[None], 0.0, second), rows),
        ROWS_NOT_CONVEX: ~jnp.all(jax.vmap(lambda one: _semidefinite(one, small))(allowed)),
        NOT_AFFINE: ~jnp.all(jnp.where(equal[None], jnp.abs(second), 0.0) <= small * rows[None]),
    }


def _semidefinite(matrix: Float[Array, "n n"], small: Scalar) -> Bool[Array, ""]:
    """Whether a factorisation succeeds after a shift that rounding can explain."""
    shift = small * or_one(jnp.max(jnp.abs(matrix)))
    factor = jnp.linalg.cholesky(matrix + shift * jnp.eye(matrix.shape[0], dtype=matrix.dtype))
    return jnp.all(jnp.isfinite(factor))
