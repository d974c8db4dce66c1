"""Scales and curvatures of a problem at one point: what the methods fill in unset numbers from.

Pure functions of arrays, so that they compile and map over many starts; in the run's own precision, because a step size
needs two digits. How the norms are computed: `hierax._math.spectrum`. What becomes of them: each method's own rules.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import optax
from jaxtyping import PRNGKeyArray, PyTree, Scalar

from hierax._base.trees import normalised, or_one, size
from hierax._math.psi import all_constraints
from hierax._math.spectrum import hessian_product, jacobian_norm, power_iteration, smallest_eigenvalue
from hierax._problem.problem import Multipliers, Problem, Rows

EXACT_ROWS = 32  # up to here the norm of every constraint's gradient is computed row by row
PROBES = 32  # beyond it, from random directions: relative error sqrt(2 / PROBES) = 1/4


class Curvature(NamedTuple):
    """Norms at one point: Hessian blocks of F and G, Jacobians of the constraints of the lower and the upper level."""

    upper_xx: Scalar
    upper_yy: Scalar
    upper_slope: Scalar
    lower_yy: Scalar
    lower_yy_min: Scalar
    response: Scalar
    jacobian_x: Scalar
    jacobian_y: Scalar
    constraint_yy: Scalar
    outer_x: Scalar
    outer_y: Scalar


def row_norms(function: Callable[[PyTree], PyTree], at: PyTree, key: PRNGKeyArray) -> PyTree:
    """||grad H_i|| for every entry of the output, without the p x n Jacobian once p is large."""
    values, pull_back = jax.vjp(function, at)
    count = size(values)
    if count <= EXACT_ROWS:
        flat, unravel = jax.flatten_util.ravel_pytree(values)
        rows = jax.vmap(lambda unit: optax.tree.norm(pull_back(unravel(unit))))(jnp.eye(count, dtype=flat.dtype))
        return unravel(rows)

    def probe(total: PyTree, one: PRNGKeyArray) -> tuple[PyTree, None]:
        _, along = jax.jvp(function, (at,), (optax.tree.random_like(one, at),))
        return jax.tree.map(lambda a, b: a + b**2, total, along), None

    squares, _ = jax.lax.scan(probe, jax.tree.map(jnp.zeros_like, values), jax.random.split(key, PROBES))
    return jax.tree.map(lambda a: jnp.sqrt(a / PROBES), squares)


def constraint_scales(problem: Problem, x: PyTree, y: PyTree, key: PRNGKeyArray) -> Multipliers:
    """||grad_y H_i|| of every constraint; one where it vanishes."""
    return jax.tree.map(or_one, row_norms(lambda v: all_constraints(problem, x, v), y, key))


def unit_scales(problem: Problem, x: PyTree, y: PyTree) -> Multipliers:
    """Scales that change nothing."""
    return jax.tree.map(jnp.ones_like, all_constraints(problem, x, y))


def curvature(problem: Problem, x: PyTree, y: PyTree, lam: Rows, zeta: PyTree, xi: PyTree) -> Curvature:
    """All norms at (x, y), on the given batches."""
    lower_product = hessian_product(lambda v: problem.lower(x, v, xi), y)
    top, _ = power_iteration(lower_product, y)
    bottom = jnp.clip(smallest_eigenvalue(lower_product, y, top), 1e-3 * top, top)

    def weighted(v: PyTree) -> Scalar:
        return optax.tree.vdot(lam, problem.rows(x, v))

    return Curvature(
        upper_xx=power_iteration(hessian_product(lambda v: problem.upper(v, y, zeta), x), x)[0],
        upper_yy=power_iteration(hessian_product(lambda v: problem.upper(x, v, zeta), y), y)[0],
        upper_slope=optax.tree.norm(jax.grad(problem.upper, 1)(x, y, zeta)) / or_one(optax.tree.norm(y)),
        lower_yy=top,
        lower_yy_min=bottom,
        response=_response(problem, x, y, xi, lower_product, bottom),
        jacobian_x=jacobian_norm(lambda v: problem.rows(v, y), x),
        jacobian_y=jacobian_norm(lambda v: problem.rows(x, v), y),
        constraint_yy=power_iteration(hessian_product(weighted, y), y)[0] if jax.tree.leaves(lam) else 0 * top,
        outer_x=jacobian_norm(lambda v: problem.upper_constraints(v, y), x),
        outer_y=jacobian_norm(lambda v: problem.upper_constraints(x, v), y),
    )


def _response(
    problem: Problem, x: PyTree, y: PyTree, xi: PyTree, lower_product: Callable[[PyTree], PyTree], weakest: Scalar
) -> Scalar:
    """How strongly grad_x G moves through y*(x): about ||G_xy G_yy^-1 G_yx||.

    The bound ||G_xy||^2 / mu_G is far too large where the weakly curved directions of y are not those that x moves, so
    the curvature met in the direction that x moves most, and mu_G, enter by their geometric mean.
    """

    def mixed(v: PyTree) -> PyTree:
        return jax.grad(problem.lower, 1)(v, y, xi)

    _, pull_back = jax.vjp(mixed, x)

    def along(vector: PyTree) -> PyTree:
        return jax.jvp(mixed, (x,), (vector,))[1]

    square, most = power_iteration(lambda v: pull_back(along(v))[0], x)
    moved = normalised(along(most))
    met = jnp.maximum(optax.tree.vdot(moved, lower_product(moved)), weakest)
    return jnp.where(weakest > 0, square / jnp.sqrt(met * weakest), 0.0)


def nothing(dtype: jnp.dtype) -> Curvature:
    """The estimate before any point was looked at: neutral for `larger`."""
    zero = jnp.zeros((), dtype)
    return Curvature(*(zero for _ in Curvature._fields))._replace(lower_yy_min=jnp.full((), jnp.inf, dtype))


def larger(first: Curvature, second: Curvature) -> Curvature:
    """Entrywise maximum (minimum for the smallest eigenvalue) of two estimates."""
    both = jax.tree.map(jnp.maximum, first, second)
    return both._replace(lower_yy_min=jnp.minimum(first.lower_yy_min, second.lower_yy_min))
