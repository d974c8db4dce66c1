"""What the published methods that SALVF is compared with have in common: start, scales, multiplier box, metrics.

They were written for problems without constraints at the upper level, and start best from the lower level's solution:
from z = 0 several of them stop at spurious points. So each solves the lower level once at x0, exactly, and divides the
constraints by the norms of their gradients there.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PRNGKeyArray, PyTree, Scalar

from hierax._base.errors import InputError
from hierax._base.trees import dtype_of, largest
from hierax._lower.base import AbstractLowerSolver
from hierax._math import curvature as estimate
from hierax._math.lagrangian import blockwise
from hierax._math.lower_level import LowerSolution
from hierax._math.psi import all_constraints, gradient_mapping, violation
from hierax._math.spectrum import POWER_STEPS
from hierax._problem import samples
from hierax._problem.problem import Multipliers, Problem, Rows, scaled
from hierax._problem.sets import Free
from hierax._run.method import AbstractMethod, Costs, Metrics

ROOM = 10.0  # the multiplier box reaches this many times beyond the largest multiplier at the start


class Iterate(NamedTuple):
    """The point of a baseline: x, y and the multiplier z (None where the method has none)."""

    x: PyTree
    y: PyTree
    z: Rows | None = None


class Look(NamedTuple):
    """What a baseline knows before its first step: the lower level's solution at x0, scales and curvatures there."""

    lower: LowerSolution  # in the units of the scaled constraints
    scales: Multipliers
    curvature: estimate.Curvature


def refuse_upper_constraints(name: str, problem: Problem) -> None:
    """The published methods know none."""
    if problem.has_upper_constraints:
        raise InputError(
            f"{name}: the published method has no constraints at the upper level, but the problem states "
            "upper_constraints. Use hx.SALVF(), or put what concerns x alone into x_set."
        )


def look_around(
    problem: Problem,
    x0: PyTree,
    y0: PyTree,
    key: PRNGKeyArray,
    zeta: PyTree,
    solver: AbstractLowerSolver,
    scales: Multipliers | None,
) -> Look:
    """Solve the lower level at x0 (on all of xi), and take scales and curvatures where it ends."""
    xi = samples.whole(problem.xi, key)
    if scales is None:
        scales = estimate.constraint_scales(problem, x0, y0, jax.random.fold_in(key, 1))
    dtype = dtype_of(x0, y0)
    scales = jax.tree.map(lambda a: jnp.asarray(a, dtype), scales)
    rescaled = scaled(problem, scales)
    found = solver.solve(rescaled, x0, y0, xi)
    return Look(found, scales, estimate.curvature(rescaled, x0, found.y, found.multipliers, zeta, xi))


def multiplier_bound(lam: Rows, dtype: jnp.dtype) -> Scalar:
    """r of the box for z: too small is silently wrong, too large costs nothing."""
    return ROOM * (1 + largest(jax.tree.map(jnp.abs, lam), dtype))


def into_box(z: Rows, r: Scalar) -> Rows:
    """Project multipliers on [0, r] (inequalities) and [-r, r] (equalities)."""
    return blockwise(lambda a: jnp.clip(a, 0.0, r), lambda a: jnp.clip(a, -r, r), z)


def in_user_units(problem: Problem, x: PyTree, y: PyTree, lam: Rows, scales: Multipliers) -> Multipliers:
    """Multipliers of scaled constraints as multipliers of the user's."""
    upper = jax.tree.map(jnp.zeros_like, problem.upper_constraints(x, y))
    return jax.tree.map(jnp.divide, Multipliers(*lam, upper), scales)


def drawn(method: AbstractMethod, problem: Problem) -> Costs:
    """The samples of one step: a batch of zeta and one of xi~."""
    return Costs(
        zeta=(method.batch_zeta or 1) * (problem.zeta is not None), xi=(method.batch_xi or 1) * (problem.xi is not None)
    )


def look_costs(solves: int) -> Costs:
    """What `look_around` and the start cost; what an exact solver does is not counted in gradients."""
    products = 2 * 4 * POWER_STEPS  # Hessian-vector products at one point, about 2 gradients each
    return Costs(grad_upper=products, grad_lower=products, vjp_constraints=products, lower_solves=solves)


class Moved(NamedTuple):
    """One step of a baseline: from where, to where, along which directions, and how far it says to be from y*."""

    old: Iterate
    new: Iterate
    d_x: PyTree
    d_y: PyTree
    upper: Scalar
    lower: Scalar
    distance: Scalar
    inner: PyTree  # residual of the inner variable
    z: PyTree = ()  # residual of z
    status: Array | int = 0


def metrics(problem: Problem, scales: Multipliers, moved: Moved, smoothness: Scalar) -> Metrics:
    """The report of a step; `problem` has scaled constraints, `smoothness` is the 1/step of the gradient mappings.

    `d_y` = () where y is not moved by a gradient of its own.
    """
    old, new = moved.old, moved.new
    beyond = violation(all_constraints(problem, new.x, new.y))
    dtype = dtype_of(new.x, new.y)
    own_y = bool(jax.tree.leaves(moved.d_y))

    def raw(point: PyTree, direction: PyTree) -> Scalar:
        # Rounded like the gradient mapping: a direction too short to move the point must not count as held back.
        return optax.tree.norm(gradient_mapping(Free(), point, direction, 1 / smoothness))

    return Metrics(
        upper=moved.upper,
        lower=moved.lower,
        violation=largest(jax.tree.map(jnp.multiply, beyond, scales), dtype),
        step_x=optax.tree.norm(optax.tree.sub(new.x, old.x)),
        step_y=optax.tree.norm(optax.tree.sub(new.y, old.y)),
        residual=(
            gradient_mapping(problem.x_set, old.x, moved.d_x, 1 / smoothness),
            gradient_mapping(problem.y_set, old.y, moved.d_y, 1 / smoothness) if own_y else (),
            moved.z,
            moved.inner,
        ),
        raw_x=raw(old.x, moved.d_x),
        raw_y=raw(old.y, moved.d_y) if own_y else jnp.zeros((), dtype),
        push=largest(beyond, dtype),
        distance=moved.distance,
        weight=jnp.ones((), dtype),
        lower_status=moved.status,
    )
