"""The lower level as functions of one vector, and the ONE order in which its rows stand.

    rows = (h(x, y), inequalities of Y, e(x, y), equalities of Y)

Exact solvers treat the faces of Y like the user's own constraints, so both stand in one vector of rows. Whatever has a
number per row (values, multipliers, masks, names) has it in this order, and only this file knows it (`Blocks`).
Here is also what a solver of the lower level answers (`LowerSolution`), and how far a point is from solving it.

How far a point of the lower level is from its KKT conditions, in units that the problem itself sets.

The residual does not change when G or a constraint is multiplied by a positive number (`Units`): exact solvers stop by
it, and the certificate reports it.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree, Scalar

from hierax._base.text import entries
from hierax._base.trees import dtype_of, or_one, size
from hierax._problem import sets
from hierax._problem.problem import Problem, Rows
from hierax._problem.sets import Faces

SOLVED, INACCURATE, INFEASIBLE, UNBOUNDED, RUNNING = range(5)  # the last: until a loop ends

MEANING = {
    SOLVED: "solved",
    INACCURATE: "not solved to the tolerance",
    INFEASIBLE: "infeasible: no y in Y satisfies the constraints at this x",
    UNBOUNDED: "unbounded: the lower objective falls without limit at this x",
}

Vector = Float[Array, " n"]
RowVector = Float[Array, " rows"]


class LowerSolution(NamedTuple):
    """y*(x), its multipliers, and how far they can be trusted.

        grad_y G + J_y h' lam + J_y e' nu + J_y faces' kappa = 0,   lam >= 0,   lam_i h_i = 0,   h <= 0,   e = 0

    holds at y up to `residual`, with `multipliers` = (lam, nu) and `faces` = kappa.

    Attributes:
        y: the minimiser of G(x, .) over Y and the constraints (the last iterate where `status` is not SOLVED).
        multipliers: those of the constraints and equalities, shaped like them, in the user's units.
        faces: multipliers of the faces of Y (`sets.faces`).
        value: G(x, y).
        residual: largest entry of the KKT system: stationarity, violation and complementarity.
        status: SOLVED, INACCURATE, INFEASIBLE or UNBOUNDED.
        iterations: Newton steps (`Conic`: interior-point steps).

    Examples:
        >>> import hierax as hx, jax.numpy as jnp
        >>> problem = hx.Problem(
        ...     upper=lambda x, y, zeta: (y - 1.0) ** 2 + 0.1 * x**2,
        ...     lower=lambda x, y, xi: (y - 2.0 * x) ** 2,
        ...     constraints=lambda x, y: y - x,
        ... )
        >>> found = hx.Exact().solve(problem, jnp.asarray(1.5), jnp.asarray(0.0))
        >>> round(float(found.y), 3), int(found.status) == hx.extend.SOLVED
        (1.5, True)
        >>> bool(abs(2.0 * (found.y - 3.0) + found.multipliers.inequalities) < 1e-5)  # grad_y G + lam grad_y h = 0
        True

    References:
        Nocedal, Wright: Numerical optimization, second edition, Springer 2006, section 12.3 (KKT conditions).
        docs/methods/lower-solvers.md
    """

    y: PyTree
    multipliers: Rows
    faces: Faces
    value: Scalar
    residual: Scalar
    status: Int[Array, ""]
    iterations: Int[Array, ""]


# -- the order of the rows --------------------------------------------------------------------------------------------


class Blocks(NamedTuple):
    """A tree for each block of rows, in the order of the vector of rows."""

    inequalities: PyTree
    set_inequalities: PyTree
    equalities: PyTree
    set_equalities: PyTree

    def parts(self) -> tuple[Rows, Faces]:
        """The same sorted by where they come from: the user's constraints, and the faces of Y."""
        return Rows(self.inequalities, self.equalities), Faces(self.set_inequalities, self.set_equalities)


EQUAL = Blocks(False, False, True, True)  # which blocks are equalities
FACE = Blocks(False, True, False, True)  # which blocks are faces of Y


def in_blocks(own: Rows, faces: Faces) -> Blocks:
    """What belongs to the user's constraints and to the faces of Y, in the order of the rows."""
    return Blocks(own.inequalities, faces.inequalities, own.equalities, faces.equalities)


def blocks_at(problem: Problem, x: PyTree, y: PyTree) -> Blocks:
    """The values of all rows at (x, y), as trees."""
    return in_blocks(problem.rows(x, y), sets.faces(problem.y_set, y))


def rows_at(problem: Problem, x: PyTree, y: PyTree) -> RowVector:
    """The values of all rows at (x, y), as one vector."""
    return raveled(blocks_at(problem, x, y), dtype_of(y))


def multiplier_vector(found: LowerSolution, dtype: jnp.dtype) -> RowVector:
    """All multipliers of a lower solution, in the order of the rows."""
    return raveled(in_blocks(found.multipliers, found.faces), dtype)


def row_names(found: LowerSolution) -> list[str]:
    """What to call each row in a text, in the order of the rows."""
    titles = Blocks("constraints", "face of Y", "equalities", "face of Y")
    blocks = in_blocks(found.multipliers, found.faces)
    return [name for title, block in zip(titles, blocks, strict=True) for name in entries(title, block)]


def raveled(tree: PyTree, dtype: jnp.dtype) -> RowVector:
    """All leaves of a tree as one vector (of no entries for an empty tree)."""
    leaves = [jnp.ravel(leaf).astype(dtype) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(leaves) if leaves else jnp.zeros(0, dtype)


def unraveled(like: PyTree, vector: np.ndarray | Array) -> PyTree:
    """A vector in the structure of a tree, without compiling anything."""
    leaves, structure = jax.tree.flatten(like)
    ends = np.cumsum([leaf.size for leaf in leaves])
    parts = [vector[end - leaf.size : end].reshape(leaf.shape) for end, leaf in zip(ends, leaves, strict=True)]
    return jax.tree.unflatten(structure, parts)


@dataclasses.dataclass(frozen=True)
class Layout:
    """The rows of one lower level: how many of which kind there are, by the shapes of their trees."""

    shapes: Blocks

    @property
    def equal(self) -> np.ndarray:
        """Which rows are equalities."""
        return np.repeat(EQUAL, [size(block) for block in self.shapes])

    @property
    def face(self) -> np.ndarray:
        """Which rows are faces of Y."""
        return np.repeat(FACE, [size(block) for block in self.shapes])

    def split(self, numbers: RowVector | np.ndarray) -> tuple[Rows, Faces]:
        """A number per row -> the same, shaped like the constraints and like the faces."""
        blocks: Blocks = unraveled(self.shapes, numbers)
        return jax.tree.map(lambda part, leaf: part.astype(leaf.dtype), blocks, self.shapes).parts()


def layout_of(problem: Problem, x: PyTree, y: PyTree) -> Layout:
    """The layout at variables like x and y (a question about shapes only)."""
    return Layout(jax.eval_shape(lambda x, y: blocks_at(problem, x, y), x, y))


# -- the lower level at one x -----------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Level(Layout):
    """The lower level at one x: min objective(v) subject to rows(v) <= 0, or = 0 where `equal`.

    Attributes:
        start: the user's y as a vector.
        objective: G(x, .) of the vector.
        blocks: the rows as trees.
        tree: vector -> y.
    """

    start: Vector
    objective: Callable[[Vector], Scalar]
    blocks: Callable[[Vector], Blocks]
    tree: Callable[[Vector], PyTree]

    def rows(self, v: Vector) -> RowVector:
        """All rows as one vector."""
        return raveled(self.blocks(v), v.dtype)

    def lagrangian(self, v: Vector, mu: RowVector) -> Scalar:
        """G + mu'rows."""
        return self.objective(v) + mu @ self.rows(v)

    def signed(self, mu: RowVector) -> RowVector:
        """Multipliers projected on their cone: [.]_+ for inequalities, nothing for equalities."""
        return jnp.where(self.equal, mu, jnp.maximum(mu, 0.0))

    def multipliers(self, given: Rows) -> RowVector:
        """Multipliers of the constraints as a vector, with zeros for the faces."""
        own = raveled((given.inequalities, given.equalities), self.start.dtype)
        return jnp.zeros(self.face.size, own.dtype).at[np.flatnonzero(~self.face)].set(own)


def level_at(problem: Problem, x: PyTree, y: PyTree, xi: PyTree) -> Level:
    """The lower level at x on the batch xi, started at y."""
    start, tree = jax.flatten_util.ravel_pytree(y)

    def blocks(v: Vector) -> Blocks:
        return blocks_at(problem, x, tree(v))

    return Level(jax.eval_shape(blocks, start), start, lambda v: problem.lower(x, tree(v), xi), blocks, tree)


def continued_outside(level: Level, y_set: PyTree) -> Level:
    """The level with functions that are evaluated inside Y only: outside they go on from the nearest point of Y along
    straight lines, so that powers, roots and logarithms never see a point that the user has excluded. The faces of Y
    are what they are everywhere. Values and first derivatives are those of the level on Y, and continuous across it.

    The objective's lines end after a while: where entries interact, the slope in one of them may grow without limit
    with another, and a line along it would fall for ever although the objective on Y does not.
    """
    if all(isinstance(one, sets.Free) for one in jax.tree.leaves(y_set, is_leaf=sets.is_set)):
        return level

    far = 1.0 + jnp.max(jnp.abs(level.start), initial=0.0)

    def continued(function: Callable[[Vector], PyTree], v: Vector, most: Scalar | float) -> PyTree:
        inside = jax.flatten_util.ravel_pytree(sets.project(y_set, level.tree(v)))[0]
        return jax.tree.map(jnp.add, *jax.jvp(function, (inside,), (jnp.clip(v - inside, -most, most),)))

    def blocks(v: Vector) -> Blocks:
        own, _ = continued(level.blocks, v, jnp.inf).parts()
        return in_blocks(own, sets.faces(y_set, level.tree(v)))

    return dataclasses.replace(level, objective=lambda v: continued(level.objective, v, far), blocks=blocks)


def derivatives_along(function: Callable[[Vector], PyTree], v: Vector, u: Vector) -> tuple[PyTree, PyTree]:
    """The first and second derivatives of a function at v along the direction u."""
    return jax.jvp(lambda at: jax.jvp(function, (at,), (u,))[1], (v,), (u,))


PROBES = 16  # directions that the norms of long gradients are estimated from: relative error sqrt(2 / PROBES)


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
        first, second = derivatives_along(level.rows, v, u)
        bent = jax.jvp(jax.grad(level.objective), (v,), (u,))[1]
        return first**2, second / jnp.vdot(u, u), jnp.vdot(bent, bent)

    squares, curvatures, bent = jax.vmap(along)(directions)
    square = weight * jnp.sum(squares, 0)
    boundary = jnp.maximum(square - 2 * jnp.mean(curvatures, 0) * rows, 0.01 * square)
    largest = jnp.max(jnp.abs(v), initial=0.0)
    length = jnp.maximum(1.0, 100 * jnp.finfo(v.dtype).eps / tol * largest)
    curvature = jnp.sqrt(weight * jnp.sum(bent) / v.size)
    steepest = jnp.max(jnp.abs(gradient), initial=0.0)
    slope = or_one(jnp.maximum(steepest, curvature * length))
    bend = or_one(jnp.maximum(curvature, steepest / jnp.maximum(1.0, largest)))
    return Units(row=or_one(jnp.sqrt(boundary)), curvature=bend, slope=slope, length=length)


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
    place = jnp.arange(1, v.size + 1, dtype=v.dtype)[None, :]
    which = jnp.arange(1, PROBES + 1, dtype=v.dtype)[:, None]
    return 2**0.5 * jnp.sin(place * (0.618 + 1.234 * which) + which**2), 1 / PROBES
