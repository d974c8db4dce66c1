"""Sampled tests of convexity: what random segments and curvatures say about G, the constraints and the joint set.

    excess of f on [a, b] = (f(m) - (f(a) + f(b)) / 2) / (|f(a)| + |f(b)| + |f(m)|),    m = (a + b) / 2

is at most zero for a convex f, and zero for an affine one. Samples can refute convexity, never prove it. Pure functions
of a problem; what they mean in words is said in `hierax._engine.segments` and by the methods that need convexity.

The set C = {(x, y) in X x Y: h(x, y) <= 0, e(x, y) = 0} of both variables, and the projection on it.

The projection of (x', y') is a lower level of its own, with (x', y') in the place of the upper variable:

    Proj_C(x', y') = argmin over (x, y) in X x Y of 1/2 ||(x, y) - (x', y')||^2   s.t.   h(x, y) <= 0,  e(x, y) = 0.
"""

from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.constants import FINE, LITTLE, NEGLIGIBLE
from hierax._base.text import numbers_of
from hierax._base.trees import all_finite, dtype_of, or_one, size
from hierax._math.hypergradient import MOST as MAX_ORDER
from hierax._math.lower_level import PROBES, derivatives_along, raveled, rows_at
from hierax._math.scatter import Cube, cover, normal_around, unit_cube
from hierax._math.spectrum import GOLDEN, extreme_eigenvalues, hessian_product
from hierax._problem import sets
from hierax._problem.problem import Problem

Pair = tuple[PyTree, PyTree]

AT_ONCE = MAX_ORDER * MAX_ORDER  # numbers in all sampled points together: a large y gets fewer of them


def excess(a: Array, b: Array, middle: Array) -> Array:
    """By how much a function lies above its chord half-way, relative to its values at the ends and in the middle."""
    return (middle - 0.5 * (a + b)) / or_one(jnp.abs(a) + jnp.abs(b) + jnp.abs(middle))


def _middle(a: PyTree, b: PyTree) -> PyTree:
    return jax.tree.map(lambda p, q: 0.5 * (p + q), a, b)


# -- the lower level in y ---------------------------------------------------------------------------------------------


class SegmentPlan(NamedTuple):
    """Random segments in Y before they are cut to Y.

    Attributes:
        xs: the x of every segment.
        ends: the two ends of the segments around y.
        cube: quasi-random numbers for the middles of the short segments that cover Y.
        half_ways: from the middle of a short segment to its end, raveled.
    """

    xs: PyTree
    ends: PyTree
    cube: Cube
    half_ways: Float[np.ndarray, "short n"]


class Segments(NamedTuple):
    """What random segments [a, b] in Y show; leading axis: the segments.

    Attributes:
        x: where a segment was looked at.
        middle: its middle.
        finite: whether G and the constraints are finite at its ends and its middle.
        lower: excess of G.
        inequalities: excess of every constraint.
        equalities: excess of every equality.
    """

    x: PyTree
    middle: PyTree
    finite: Bool[Array, " segments"]
    lower: Float[Array, " segments"]
    inequalities: PyTree
    equalities: PyTree


def plan_segments(x: PyTree, y: PyTree, points: int, rng: np.random.Generator, away: float = 0.0) -> SegmentPlan:
    """Random segments at x and (every second one, up to the relative distance `away`) around it.

    Two of three are around y, of all lengths; the others are short, about points that cover Y: a hill between two
    valleys is seen from neither side, and on a long segment it counts for nothing.
    """
    points = max(2, min(points, AT_ONCE // size(y)))
    more = points // 2
    radius = np.where(np.arange(points + more) % 2, away * np.logspace(-2, 0, points + more), 0.0)
    xs = normal_around(x, radius[:, None], rng)
    ends = normal_around(y, np.repeat(np.logspace(-2, 0.5, points), 2).reshape(points, 2, 1), rng)
    flat = numbers_of(y)
    ways = LITTLE * (1 + np.abs(flat)) * rng.standard_normal((more, flat.size)) / flat.size**0.5
    return SegmentPlan(xs, ends, unit_cube(flat.size, more, int(rng.integers(2**31))), ways)


def along_segments(problem: Problem, xi: PyTree, y: PyTree, plan: SegmentPlan) -> Segments:
    """What the planned segments show of the lower level on the batch xi."""
    _, unravel = jax.flatten_util.ravel_pytree(y)
    centres = cover(problem.y_set, y, plan.cube)[1:]
    short = jnp.stack([centres - plan.half_ways, centres + plan.half_ways], axis=1)
    covering = jax.vmap(jax.vmap(unravel))(short)
    ends = jax.tree.map(lambda p, q: jnp.concatenate([p, q]), plan.ends, covering)

    def one(x: PyTree, ends: PyTree) -> Segments:
        x = sets.project(problem.x_set, x)
        a, b = (sets.project(problem.y_set, jax.tree.map(lambda leaf, i=i: leaf[i], ends)) for i in (0, 1))
        middle = _middle(a, b)
        values = [(problem.lower(x, v, xi), problem.rows(x, v)) for v in (a, b, middle)]
        lower, rows = jax.tree.map(excess, *values)
        return Segments(x, middle, all_finite(values), lower, rows.inequalities, rows.equalities)

    return jax.vmap(one)(plan.xs, ends)


def lower_curvatures(problem: Problem, x: PyTree, y: PyTree, xi: PyTree) -> tuple[Scalar, Scalar]:
    """Smallest and largest (in size) eigenvalue of G_yy at (x, y): G is strongly convex where the first is positive."""
    return extreme_eigenvalues(hessian_product(lambda v: problem.lower(x, v, xi), y), y)


# -- the constraints in (x, y) ----------------------------------------------------------------------------------------


def joint_convexity(
    problem: Problem, x: PyTree, y: PyTree, key: PRNGKeyArray
) -> tuple[Bool[Array, ""], Bool[Array, ""]]:
    """Whether, as far as samples near (x, y) show, every h_i is convex and every e_i affine in (x, y) jointly.

    Rows are compared with their chords between random points of X x Y. That can miss a row that bends the wrong way
    only in a few of many directions, so the smallest eigenvalue of its Hessian is looked for too, for a few rows.
    """
    flat, tree = jax.flatten_util.ravel_pytree((x, y))
    # About as far from (x, y) as that is from zero; all in one draw, because generators are slow to compile.
    away = 0.5 * (1 + jnp.abs(flat))[None] * jax.random.normal(key, (2 * PROBES + (PROBES // 2), flat.size), flat.dtype)
    points = jax.vmap(lambda v: sets.project((problem.x_set, problem.y_set), tree(v)))(flat[None] + away)
    parts = slice(PROBES), slice(PROBES, 2 * PROBES), slice(2 * PROBES, None)
    first, second, others = (jax.tree.map(lambda a, part=part: a[part], points) for part in parts)
    above, off = jax.vmap(lambda a, b: _against_chord(problem, a, b))(first, second)
    if not jax.tree.leaves(jax.eval_shape(problem.constraints, x, y)):
        return jnp.array(True), ~jnp.any(off)
    down = jax.vmap(lambda at, number: _bends_down(problem, at, number))(others, jnp.arange(PROBES // 2))
    return ~(jnp.any(above) | jnp.any(down)), ~jnp.any(off)


def _against_chord(problem: Problem, first: Pair, second: Pair) -> tuple[Bool[Array, ""], Bool[Array, ""]]:
    """Whether an inequality lies above its chord half-way between two points, and whether an equality is off it."""
    rows = jax.tree.map(excess, *(problem.rows(*pair) for pair in (first, second, _middle(first, second))))
    above, off = (raveled(part, dtype_of(second)) for part in rows)
    return jnp.any(above > FINE), jnp.any(jnp.abs(off) > FINE)


def _bends_down(problem: Problem, at: Pair, number: Int[Array, ""]) -> Bool[Array, ""]:
    """Whether the Hessian of a row (even numbers), or of a mixture of rows (odd), has a clearly negative eigenvalue."""
    flat, tree = jax.flatten_util.ravel_pytree(problem.constraints(*at))
    place, multiple = jnp.arange(flat.size), GOLDEN * (number + 1).astype(float)
    single = (place == jnp.floor((multiple % 1.0) * flat.size).astype(int)).astype(float)
    mixture = multiple * (place + 1).astype(float) % 1.0
    weights = tree(jnp.where(number % 2 == 0, single, mixture).astype(flat.dtype))

    def weighted(v: Pair) -> Scalar:
        return trees.vdot(weights, problem.constraints(*v))

    bottom, top = extreme_eigenvalues(hessian_product(weighted, at), at)
    rounding = jnp.finfo(flat.dtype).eps ** 0.5 * trees.norm(jax.grad(weighted)(at))
    return bottom < -(NEGLIGIBLE * jnp.abs(top) + rounding)


def affine_rows(problem: Problem, x: PyTree, y: PyTree, key: PRNGKeyArray) -> Bool[Array, ""]:
    """Whether the second derivatives of all rows, faces of Y included, vanish in (x, y) jointly at sampled points.

    Along one random direction per point: the second derivative along it is zero for every affine row, and for no other
    row except by an accident of probability zero.
    """
    flat, tree = jax.flatten_util.ravel_pytree((x, y))
    sizes = (1 + jnp.abs(flat))[None]
    draws = sizes * jax.random.normal(key, (2 * (PROBES // 2), flat.size), flat.dtype)

    def bent(away: Array, direction: Array) -> Bool[Array, ""]:
        at = jax.flatten_util.ravel_pytree(sets.project((problem.x_set, problem.y_set), tree(flat + 0.5 * away)))[0]

        def rows(v: Array) -> Array:
            return rows_at(problem, *tree(v))

        first, second = derivatives_along(rows, at, direction)
        return jnp.any(jnp.abs(second) > FINE * (jnp.abs(rows(at)) + jnp.abs(first) + jnp.abs(second)))

    return ~jnp.any(jax.vmap(bent)(draws[: (PROBES // 2)], draws[(PROBES // 2) :]))


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
