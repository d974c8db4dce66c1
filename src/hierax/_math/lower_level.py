"""The lower level as functions of one vector, its natural units, and how far a point is from its KKT conditions.

Exact solvers treat the faces of Y like the user's own constraints, so both stand in one vector of rows here, in the
order of `Level.rows`. Residuals are relative to units that the problem itself sets (`Units`): they do not change when
G or a constraint is multiplied by a positive number.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Scalar

from hierax._problem import sets
from hierax._problem.problem import Problem, Rows
from hierax._problem.sets import Faces

PROBES = 16  # directions that the norms of long gradients are estimated from: relative error sqrt(2 / PROBES)

Vector = Float[Array, " n"]
RowVector = Float[Array, " rows"]


class Level(NamedTuple):
    """The lower level at one x: min objective(v) subject to rows(v) <= 0, or = 0 where `equal`.

    Attributes:
        start: the user's y as a vector.
        objective: G(x, .) of the vector.
        blocks: the rows as four trees: h, the inequalities of Y, e, the equalities of Y.
        equal: which rows are equalities.
        face: which rows are faces of Y.
        tree: vector -> y.
        split: a number per row -> the same, shaped like the constraints and like the faces.
    """

    start: Vector
    objective: Callable[[Vector], Scalar]
    blocks: Callable[[Vector], tuple[PyTree, PyTree, PyTree, PyTree]]
    equal: np.ndarray
    face: np.ndarray
    tree: Callable[[Vector], PyTree]
    split: Callable[[RowVector], tuple[Rows, Faces]]

    def rows(self, v: Vector) -> RowVector:
        """All rows as one vector."""
        return _joined(self.blocks(v), v.dtype)

    def signed(self, mu: RowVector) -> RowVector:
        """Multipliers projected on their cone: [.]_+ for inequalities, nothing for equalities."""
        return jnp.where(self.equal, mu, jnp.maximum(mu, 0.0))

    def multipliers(self, given: Rows) -> RowVector:
        """Multipliers of the constraints as a vector, with zeros for the faces."""
        own = _joined((given.inequalities, given.equalities), self.start.dtype)
        return jnp.zeros(self.face.size, own.dtype).at[np.flatnonzero(~self.face)].set(own)


def flat_level(problem: Problem, x: PyTree, y: PyTree, xi: PyTree) -> Level:
    """The lower level at x on the batch xi, started at y."""
    start, tree = jax.flatten_util.ravel_pytree(y)

    def blocks(v: Vector) -> tuple[PyTree, PyTree, PyTree, PyTree]:
        at = tree(v)
        face = sets.faces(problem.y_set, at)
        return problem.constraints(x, at), face.inequalities, problem.equalities(x, at), face.equalities

    shapes = jax.eval_shape(blocks, start)
    leaves, structure = jax.tree.flatten(shapes)
    ends = np.cumsum([0, *(leaf.size for leaf in leaves)])

    def split(numbers: RowVector) -> tuple[Rows, Faces]:
        parts = [
            numbers[low:high].reshape(leaf.shape).astype(leaf.dtype)
            for leaf, low, high in zip(leaves, ends[:-1], ends[1:], strict=True)
        ]
        below, above, equalities, flat_faces = jax.tree.unflatten(structure, parts)
        return Rows(below, equalities), Faces(above, flat_faces)

    counts = [sum(leaf.size for leaf in jax.tree.leaves(block)) for block in shapes]
    return Level(
        start=start,
        objective=lambda v: problem.lower(x, tree(v), xi),
        blocks=blocks,
        equal=np.repeat([False, False, True, True], counts),
        face=np.repeat([False, True, False, True], counts),
        tree=tree,
        split=split,
    )


class Units(NamedTuple):
    """What "one" means near a point, for what is measured there.

    Attributes:
        row: ||grad of each row|| where the row is zero, so that row/unit is a distance.
        curvature: typical size of G's second derivatives.
        slope: size of G's gradient; what a vanishing gradient is compared with.
        length: size of y.
    """

    row: RowVector
    curvature: Scalar
    slope: Scalar
    length: Scalar


def units_at(level: Level, v: Vector, rows: RowVector, gradient: Vector, tol: Scalar) -> Units:
    """Units near v from first and second derivatives along a few directions; rows and gradient of G as they are at v.

    A row's gradient is wanted where the row vanishes, not at v: to second order that is sqrt(a^2 - 2 q r) for a row of
    value r, slope a and curvature q. It is exact for balls and ellipsoids whose axes are alike, from any v (also the
    centre, where the gradient is zero, and far away, where it is large).

    The length is 1 (y is taken to be of order one) unless y is so large that rounding alone would exceed `tol`.
    """
    directions, weight = _probes(v)

    def along(u: Vector) -> tuple[RowVector, RowVector, Scalar]:
        def slope(t: Scalar) -> RowVector:
            return jax.jvp(lambda s: level.rows(v + s * u), (t,), (jnp.ones_like(t),))[1]

        zero = jnp.zeros((), v.dtype)
        first, second = jax.jvp(slope, (zero,), (jnp.ones_like(zero),))
        bent = jax.jvp(jax.grad(level.objective), (v,), (u,))[1]
        return first**2, second / jnp.vdot(u, u), jnp.vdot(bent, bent)

    squares, curvatures, bent = jax.vmap(along)(directions)
    square = weight * jnp.sum(squares, 0)
    boundary = jnp.maximum(square - 2 * jnp.mean(curvatures, 0) * rows, 0.01 * square)
    largest = jnp.max(jnp.abs(v), initial=0.0)
    length = jnp.maximum(1.0, 100 * jnp.finfo(v.dtype).eps / tol * largest)
    curvature = jnp.sqrt(weight * jnp.sum(bent) / v.size)
    steepest = jnp.max(jnp.abs(gradient), initial=0.0)
    return Units(
        row=_or_one(jnp.sqrt(boundary)),
        curvature=_or_one(jnp.maximum(curvature, steepest / jnp.maximum(1.0, largest))),
        slope=_or_one(jnp.maximum(steepest, curvature * length)),
        length=length,
    )


def residual(level: Level, units: Units, rows: RowVector, mu: RowVector, gradient: Vector) -> Scalar:
    """Largest entry of the KKT system in the given units; `gradient` is that of the Lagrangian.

    Its entries are: gradient / slope; [row]_+ (or |row|) / (unit of the row * length); |mu row| / (slope * length), of
    which the sum bounds the gap G - v where everything is convex; and [-mu]_+ in the units of a multiplier.
    """
    violation = jnp.where(level.equal, jnp.abs(rows), jnp.maximum(rows, 0.0)) / (units.row * units.length)
    gap = jnp.where(level.equal, 0.0, jnp.abs(mu * rows)) / (units.slope * units.length)
    wrong_sign = jnp.where(level.equal, 0.0, jnp.maximum(-mu, 0.0)) * units.row / units.slope
    entries = jnp.concatenate([jnp.abs(gradient) / units.slope, violation, gap, wrong_sign])
    return jnp.max(entries)


def residual_at(level: Level, v: Vector, mu: RowVector, tol: Scalar) -> Scalar:
    """`residual` in the units of the point itself."""
    rows, pull = jax.vjp(level.rows, v)
    gradient = jax.grad(level.objective)(v)
    return residual(level, units_at(level, v, rows, gradient, tol), rows, mu, gradient + pull(mu)[0])


def reachable(tol: Scalar | float, dtype: jnp.dtype) -> Scalar:
    """The tolerance, or what the precision allows."""
    return jnp.maximum(jnp.asarray(tol, dtype), 200 * jnp.finfo(dtype).eps)


def _probes(v: Vector) -> tuple[Float[Array, "probes n"], float]:
    """Directions u, and the weight that makes the weighted sum of (a.u)^2 the squared norm of a.

    Short vectors: the unit vectors. Long ones: numbers that look random, without a generator, which takes longer to
    compile than the products themselves.
    """
    if v.size <= PROBES:
        return jnp.eye(v.size, dtype=v.dtype), 1.0
    place = jnp.arange(1, v.size + 1, dtype=v.dtype)
    which = jnp.arange(1, PROBES + 1, dtype=v.dtype)[:, None]
    return 2**0.5 * jnp.sin(place * (0.618 + 1.234 * which) + which**2), 1 / PROBES


def _joined(tree: PyTree, dtype: jnp.dtype) -> RowVector:
    leaves = [jnp.ravel(leaf).astype(dtype) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(leaves) if leaves else jnp.zeros(0, dtype)


def _or_one(value: Array) -> Array:
    return jnp.where(value > 0, value, 1.0)
