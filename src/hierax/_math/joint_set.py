r"""The set C = {(x, y) in X x Y: h(x, y) <= 0, e(x, y) = 0} of both variables, and the projection on it.

The projection of (x', y') is a lower level of its own, with (x', y') in the place of the upper variable:

    Proj_C(x', y') = argmin over (x, y) in X x Y of 1/2 ||(x, y) - (x', y')||^2   s.t.   h(x, y) <= 0,  e(x, y) = 0.
"""

import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from hierax._base import trees
from hierax._math.lower_level import raveled
from hierax._problem import sets
from hierax._problem.problem import Problem

Pair = tuple[PyTree, PyTree]


def projection_problem(problem: Problem) -> Problem:
    """The projection on C as a problem whose lower level has the pair (x, y) as its variable."""

    def distance(target: Pair, pair: Pair, xi: None) -> Scalar:
        return 0.5 * trees.norm_squared(trees.sub(pair, target))

    return Problem(
        upper=distance,  # never asked for
        lower=distance,
        constraints=lambda target, pair: problem.constraints(*pair),
        equalities=lambda target, pair: problem.equalities(*pair),
        y_set=(problem.x_set, problem.y_set),
    )


def is_linear_space(problem: Problem, x: PyTree, y: PyTree) -> bool:
    """Whether C, if convex at all, is cut out by affine equations alone (a question about shapes only)."""

    def inequalities(x: PyTree, y: PyTree) -> PyTree:
        return problem.constraints(x, y), sets.faces(problem.x_set, x), sets.faces(problem.y_set, y)

    return not jax.tree.leaves(jax.eval_shape(inequalities, x, y))


def onto_linear_space(problem: Problem, pair: Pair) -> Pair:
    """The projection on {e = 0}, e affine: v - J'(J J')^-1 e(v), twice for the last digits."""
    flat, tree = jax.flatten_util.ravel_pytree(pair)
    dtype = flat.dtype

    def values(v: Array) -> Array:
        return raveled(problem.equalities(*tree(v)), dtype)

    jacobian = jax.jacrev(values)(flat)
    gram = jacobian @ jacobian.T
    # Equations that say the same twice are harmless with a touch of regularisation.
    gram = gram + 10 * jnp.finfo(dtype).eps * jnp.trace(gram) * jnp.eye(gram.shape[0], dtype=dtype)
    factor = jax.scipy.linalg.cho_factor(gram)
    for _ in range(2):
        flat = flat - jacobian.T @ jax.scipy.linalg.cho_solve(factor, values(flat))
    return tree(flat)
