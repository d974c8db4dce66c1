r"""The set C = {(x, y) in X x Y: h(x, y) <= 0, e(x, y) = 0} of both variables: projection, and whether it is convex.

The projection of (x', y') is a lower level of its own, with (x', y') in the place of the upper variable:

    Proj_C(x', y') = argmin over (x, y) in X x Y of 1/2 ||(x, y) - (x', y')||^2   s.t.   h(x, y) <= 0,  e(x, y) = 0.
"""

import jax
import jax.flatten_util
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, PRNGKeyArray, PyTree, Scalar

from hierax import sets
from hierax.estimate import hessian_product, power_iteration
from hierax.problem import Problem
from hierax.trees import dtype_of

Pair = tuple[PyTree, PyTree]

PAIRS = 16  # pairs of points between which every row is compared with its chord
LOOKS = 8  # points at which the curvature of a random row, or of a random mixture of rows, is looked at
BENT = 1e-6  # share of a row's change, or of its largest curvature, that counts as curvature of the wrong sign


def projection_problem(problem: Problem) -> Problem:
    """The projection on C as a problem whose lower level has the pair (x, y) as its variable."""

    def distance(target: Pair, pair: Pair, xi: None) -> Scalar:
        return 0.5 * optax.tree.norm(optax.tree.sub(pair, target), squared=True)

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
        leaves = jax.tree.leaves(problem.equalities(*tree(v)))
        return jnp.concatenate([jnp.ravel(leaf).astype(dtype) for leaf in leaves] or [jnp.zeros(0, dtype)])

    jacobian = jax.jacrev(values)(flat)
    gram = jacobian @ jacobian.T
    # Equations that say the same twice are harmless with a touch of regularisation.
    gram = gram + 10 * jnp.finfo(dtype).eps * jnp.trace(gram) * jnp.eye(gram.shape[0], dtype=dtype)
    factor = jax.scipy.linalg.cho_factor(gram)
    for _ in range(2):
        flat = flat - jacobian.T @ jax.scipy.linalg.cho_solve(factor, values(flat))
    return tree(flat)


def joint_convexity(
    problem: Problem, x: PyTree, y: PyTree, key: PRNGKeyArray
) -> tuple[Bool[Array, ""], Bool[Array, ""]]:
    """Whether, as far as samples near (x, y) show, every h_i is convex and every e_i affine in (x, y) jointly.

    Rows are compared with their chords between random points of X x Y. That can miss a row that bends the wrong way
    only in a few of many directions, so the smallest eigenvalue of its Hessian is looked for too, for a few rows.
    """
    chords, looks = jax.random.split(key)
    above, off = _against_chords(problem, (x, y), chords)
    return ~(above | _bends_down(problem, (x, y), looks)), ~off


def _near(problem: Problem, pair: Pair, key: PRNGKeyArray) -> Pair:
    """A point of X x Y about as far from the given one as that is from zero."""
    flat, tree = jax.flatten_util.ravel_pytree(pair)
    away = 0.5 * (1 + jnp.abs(flat)) * jax.random.normal(key, flat.shape, flat.dtype)
    return sets.project((problem.x_set, problem.y_set), tree(flat + away))


def _against_chords(problem: Problem, pair: Pair, key: PRNGKeyArray) -> tuple[Bool[Array, ""], Bool[Array, ""]]:
    """Whether an inequality lies above its chord somewhere, and whether an equality leaves its chord."""

    def one(key: PRNGKeyArray) -> tuple[Bool[Array, ""], Bool[Array, ""]]:
        first, second = (_near(problem, pair, part) for part in jax.random.split(key))
        middle = jax.tree.map(lambda a, b: 0.5 * (a + b), first, second)
        ends, between = (problem.rows(*first), problem.rows(*second)), problem.rows(*middle)
        rise = jax.tree.map(lambda a, b, m: m - 0.5 * (a + b), *ends, between)
        # Rounding, and the noise of functions that are affine up to cancellation, is far below this.
        least = jax.tree.map(lambda a, b, m: BENT * (jnp.abs(a) + jnp.abs(b) + jnp.abs(m)), *ends, between)
        above = jax.tree.map(lambda a, b: jnp.any(a > b), rise.inequalities, least.inequalities)
        off = jax.tree.map(lambda a, b: jnp.any(jnp.abs(a) > b), rise.equalities, least.equalities)
        return _any(above), _any(off)

    above, off = jax.vmap(one)(jax.random.split(key, PAIRS))
    return jnp.any(above), jnp.any(off)


def _bends_down(problem: Problem, pair: Pair, key: PRNGKeyArray) -> Bool[Array, ""]:
    """Whether the Hessian of a row, or of a mixture of rows, has a clearly negative eigenvalue somewhere."""
    if not jax.tree.leaves(jax.eval_shape(problem.constraints, *pair)):
        return jnp.array(False)
    dtype = dtype_of(pair)

    def one(key: PRNGKeyArray) -> Bool[Array, ""]:
        where, which, mixed, how = jax.random.split(key, 4)
        at = _near(problem, pair, where)
        flat, tree = jax.flatten_util.ravel_pytree(problem.constraints(*at))
        single = jnp.zeros_like(flat).at[jax.random.randint(which, (), 0, flat.size)].set(1.0)
        mixture = jax.random.uniform(mixed, flat.shape, flat.dtype)
        weights = tree(jnp.where(jax.random.bernoulli(how), single, mixture))

        def weighted(v: Pair) -> Scalar:
            return optax.tree.vdot(weights, problem.constraints(*v))

        product = hessian_product(weighted, at)
        top, _ = power_iteration(product, at)
        # top I - Hessian has its largest eigenvalue where the Hessian has its smallest.
        _, lowest = power_iteration(lambda v: jax.tree.map(lambda a, b: 1.05 * top * a - b, v, product(v)), at)
        floor = jnp.finfo(dtype).eps ** 0.5 * optax.tree.norm(jax.grad(weighted)(at))
        return optax.tree.vdot(lowest, product(lowest)) < -(1e-3 * top + floor)

    return jnp.any(jax.vmap(one)(jax.random.split(key, LOOKS)))


def _any(flags: PyTree) -> Bool[Array, ""]:
    return jnp.any(jnp.stack([jnp.array(False), *jax.tree.leaves(flags)]))
