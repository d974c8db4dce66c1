"""Scales and curvatures of a problem at one point: what the methods fill in unset numbers from.

Pure functions of arrays, so that they compile and map over many starts; in the run's own precision, because a step size
needs two digits. How the norms are computed: `hierax._math.spectrum`. What becomes of them: each method's own rules.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.imports import lazy
from hierax._base.trees import normalised, or_one, size
from hierax._math.lagrangian import augmented_lagrangian
from hierax._math.psi import all_constraints
from hierax._math.spectrum import (
    MARGIN,
    Product,
    conjugate_gradients,
    hessian_product,
    jacobian_square,
    power_iterations,
    shifted,
)
from hierax._problem.problem import Multipliers, Problem, Rows

optax = lazy("optax")

EXACT_ROWS = 32  # up to here the norm of every constraint's gradient is computed row by row
ROWS_WEIGHT = 10.0  # of the squared active rows, in units of L_G / ||J_y||^2: that of SALVF's outer term, c2 / c1
PROBES = 32  # beyond it, from random directions: relative error sqrt(2 / PROBES) = 1/4


class Curvature(NamedTuple):
    """Norms at one point: Hessian blocks of F and G, Jacobians of the constraints of the lower and the upper level.

    `above_over_below` is the largest curvature of F in y relative to that of the lower level, active rows included;
    zero where nobody asked for it.
    """

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
    above_over_below: Scalar


def row_norms(function: Callable[[PyTree], PyTree], at: PyTree, key: PRNGKeyArray) -> PyTree:
    """||grad H_i|| for every entry of the output, without the p x n Jacobian once p is large."""
    values, pull_back = jax.vjp(function, at)
    count = size(values)
    if count <= EXACT_ROWS:
        flat, unravel = jax.flatten_util.ravel_pytree(values)
        rows = jax.vmap(lambda unit: trees.norm(pull_back(unravel(unit))))(jnp.eye(count, dtype=flat.dtype))
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


def curvature(
    problem: Problem, x: PyTree, y: PyTree, lam: Rows, zeta: PyTree, xi: PyTree, with_ratio: bool = False
) -> Curvature:
    """All norms at (x, y), on the given batches: two loops, of the norms and of what needs them.

    `above_over_below` only `with_ratio`: a loop inside of a loop takes long to compile.
    """
    at = _Operators(problem, x, y, lam, zeta, xi)
    squares = {
        "jacobian_x": (jacobian_square(lambda v: problem.rows(v, y), x), x),
        "jacobian_y": (jacobian_square(lambda v: problem.rows(x, v), y), y),
        "outer_x": (jacobian_square(lambda v: problem.upper_constraints(v, y), x), x),
        "outer_y": (jacobian_square(lambda v: problem.upper_constraints(x, v), y), y),
    }
    curved: dict[str, tuple[Product, PyTree]] = {
        "upper_xx": (hessian_product(lambda v: problem.upper(v, y, zeta), x), x),
        "upper_yy": (at.upper_yy, y),
        "lower_yy": (at.lower_yy, y),
        "mixed": (at.mixed_square, x),
    }
    if jax.tree.leaves(lam):
        curved["constraint_yy"] = (hessian_product(at.weighted_rows, y), y)
    found = power_iterations(curved | {name: (a, like) for name, (a, like) in squares.items() if a is not None})
    zero = jnp.zeros_like(found["lower_yy"][0])
    norms = dict.fromkeys((*squares, "constraint_yy"), zero) | {name: value for name, (value, _) in found.items()}
    norms |= {name: jnp.sqrt(norms[name]) for name in squares}
    top, (square, most) = norms["lower_yy"], found["mixed"]
    del norms["mixed"]
    needing = {"shifted": (shifted(at.lower_yy, top), y)}
    if with_ratio:
        needing["ratio"] = (at.above_over_below(ROWS_WEIGHT * top / or_one(norms["jacobian_y"] ** 2)), y)
    second = power_iterations(needing)
    bottom = jnp.clip(MARGIN * top - second["shifted"][0], 1e-3 * top, top)
    return Curvature(
        **norms,
        upper_slope=trees.norm(jax.grad(problem.upper, 1)(x, y, zeta)) / or_one(trees.norm(y)),
        lower_yy_min=bottom,
        response=at.response(square, most, bottom),
        above_over_below=second["ratio"][0] if with_ratio else zero,
    )


class _Operators(NamedTuple):
    """The linear operators of a problem at one point, on the given batches."""

    problem: Problem
    x: PyTree
    y: PyTree
    lam: Rows
    zeta: PyTree
    xi: PyTree

    def upper_yy(self, vector: PyTree) -> PyTree:
        """F_yy v."""
        return hessian_product(lambda v: self.problem.upper(self.x, v, self.zeta), self.y)(vector)

    def lower_yy(self, vector: PyTree) -> PyTree:
        """G_yy v."""
        return hessian_product(lambda v: self.problem.lower(self.x, v, self.xi), self.y)(vector)

    def weighted_rows(self, y: PyTree) -> Scalar:
        """<lam, H>."""
        return trees.vdot(self.lam, self.problem.rows(self.x, y))

    def _slope_below(self, x: PyTree) -> PyTree:
        return jax.grad(self.problem.lower, 1)(x, self.y, self.xi)

    def mixed(self, vector: PyTree) -> PyTree:
        """G_yx v."""
        return jax.jvp(self._slope_below, (self.x,), (vector,))[1]

    def mixed_square(self, vector: PyTree) -> PyTree:
        """G_xy G_yx v."""
        return jax.vjp(self._slope_below, self.x)[1](self.mixed(vector))[0]

    def response(self, square: Scalar, most: PyTree, weakest: Scalar) -> Scalar:
        """How strongly grad_x G moves through y*(x): about ||G_xy G_yy^-1 G_yx||.

        The bound ||G_xy||^2 / mu_G is far too large where the weakly curved directions of y are not those that x
        moves, so the curvature met in the direction that x moves most, and mu_G, enter by their geometric mean.
        """
        moved = normalised(self.mixed(most))
        met = jnp.maximum(trees.vdot(moved, self.lower_yy(moved)), weakest)
        return jnp.where(weakest > 0, square / jnp.sqrt(met * weakest), 0.0)

    def above_over_below(self, weight: Scalar) -> Product:
        """v -> M^-1 F_yy v, M the Hessian of the lower level's augmented Lagrangian with the given weight.

        Constraints supply curvature where the objective has none (the offset of a support vector machine).
        """
        below = hessian_product(
            lambda v: augmented_lagrangian(self.problem, self.x, v, self.lam, 1 / weight, self.xi), self.y
        )
        return lambda vector: conjugate_gradients(below, self.upper_yy(vector))


def nothing(dtype: jnp.dtype) -> Curvature:
    """The estimate before any point was looked at: neutral for `larger`."""
    zero = jnp.zeros((), dtype)
    return Curvature(*(zero for _ in Curvature._fields))._replace(lower_yy_min=jnp.full((), jnp.inf, dtype))


def larger(first: Curvature, second: Curvature) -> Curvature:
    """Entrywise maximum (minimum for the smallest eigenvalue) of two estimates.

    Which rows are active is known at the second point, the lower level's solution, only.
    """
    both = jax.tree.map(jnp.maximum, first, second)
    least = jnp.minimum(first.lower_yy_min, second.lower_yy_min)
    return both._replace(lower_yy_min=least, above_over_below=second.above_over_below)
