r"""The set C = {(x, y) in X x Y: h(x, y) <= 0, e(x, y) = 0} of both variables: projection, and whether it is convex.

The projection of (x', y') is a lower level of its own, with (x', y') in the place of the upper variable:

    Proj_C(x', y') = argmin over (x, y) in X x Y of 1/2 ||(x, y) - (x', y')||^2   s.t.   h(x, y) <= 0,  e(x, y) = 0.
"""

import jax
import jax.flatten_util
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree, Scalar

from hierax._math.spectrum import GOLDEN, extreme_eigenvalues, hessian_product
from hierax._problem import sets
from hierax._problem.problem import Problem

Pair = tuple[PyTree, PyTree]

PAIRS = 16  # pairs of points between which every row is compared with its chord
LOOKS = 8  # points at which the curvature of a random row, or of a random mixture of rows, is looked at
BENT = 1e-6  # share of a row's size by which it may miss its chord: rounding is far below
DOWN = 1e-3  # share of the largest curvature from which a negative one counts


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
    flat, tree = jax.flatten_util.ravel_pytree((x, y))
    # About as far from (x, y) as that is from zero; all in one draw, because generators are slow to compile.
    away = 0.5 * (1 + jnp.abs(flat)) * jax.random.normal(key, (2 * PAIRS + LOOKS, flat.size), flat.dtype)
    points = jax.vmap(lambda v: sets.project((problem.x_set, problem.y_set), tree(v)))(flat + away)
    first, second, others = (
        jax.tree.map(lambda a, part=part: a[part], points)
        for part in (slice(PAIRS), slice(PAIRS, 2 * PAIRS), slice(2 * PAIRS, None))
    )
    above, off = jax.vmap(lambda a, b: _against_chord(problem, a, b))(first, second)
    if not jax.tree.leaves(jax.eval_shape(problem.constraints, x, y)):
        return jnp.array(True), ~jnp.any(off)
    down = jax.vmap(lambda at, number: _bends_down(problem, at, number))(others, jnp.arange(LOOKS))
    return ~(jnp.any(above) | jnp.any(down)), ~jnp.any(off)


def _against_chord(problem: Problem, first: Pair, second: Pair) -> tuple[Bool[Array, ""], Bool[Array, ""]]:
    """Whether an inequality lies above its chord half-way between two points, and whether an equality is off it."""
    middle = jax.tree.map(lambda a, b: 0.5 * (a + b), first, second)
    ends, between = (problem.rows(*first), problem.rows(*second)), problem.rows(*middle)
    rise = jax.tree.map(lambda a, b, m: m - 0.5 * (a + b), *ends, between)
    least = jax.tree.map(lambda a, b, m: BENT * (jnp.abs(a) + jnp.abs(b) + jnp.abs(m)), *ends, between)
    above = jax.tree.map(lambda a, b: jnp.any(a > b), rise.inequalities, least.inequalities)
    off = jax.tree.map(lambda a, b: jnp.any(jnp.abs(a) > b), rise.equalities, least.equalities)
    return _any(above), _any(off)


def _bends_down(problem: Problem, at: Pair, number: Int[Array, ""]) -> Bool[Array, ""]:
    """Whether the Hessian of a row (even numbers), or of a mixture of rows (odd), has a clearly negative eigenvalue."""
    flat, tree = jax.flatten_util.ravel_pytree(problem.constraints(*at))
    place = jnp.arange(flat.size)
    single = place == jnp.floor((GOLDEN * (number + 1) % 1.0) * flat.size).astype(int)
    mixture = GOLDEN * (number + 1) * (place + 1) % 1.0
    weights = tree(jnp.where(number % 2 == 0, single, mixture).astype(flat.dtype))

    def weighted(v: Pair) -> Scalar:
        return optax.tree.vdot(weights, problem.constraints(*v))

    bottom, top = extreme_eigenvalues(hessian_product(weighted, at), at)
    rounding = jnp.finfo(flat.dtype).eps ** 0.5 * optax.tree.norm(jax.grad(weighted)(at))
    return bottom < -(DOWN * jnp.abs(top) + rounding)


def _any(flags: PyTree) -> Bool[Array, ""]:
    return jnp.any(jnp.stack([jnp.array(False), *jax.tree.leaves(flags)]))
