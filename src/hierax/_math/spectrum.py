"""Extreme eigenvalues and norms of operators that are known by their products only.

Power iteration where two digits of the largest one will do (a step size needs no more), Lanczos where the smallest one
is wanted. Everything is a pure function of arrays in the operator's own precision, with a fixed number of products and
two or three copies of the variable.

Scales and curvatures of a problem at one point: what the methods fill in unset numbers from.

Pure functions of arrays, so that they compile and map over many starts; in the run's own precision, because a step size
needs two digits. What becomes of them: each method's own rules.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray, PyTree, Scalar

from hierax._base import trees
from hierax._base.constants import FINE, MUCH, NEGLIGIBLE
from hierax._base.imports import lazy
from hierax._base.trees import dtype_of, move, normalised, or_one, size
from hierax._math.lower_level import PROBES
from hierax._math.psi import all_constraints, augmented_lagrangian
from hierax._problem import sets
from hierax._problem.problem import Multipliers, Problem, Rows

POWER_STEPS = 12  # products of a power iteration: two digits; Lanczos' twice as many find an eigenvalue of 1/100
GOLDEN = 0.6180339887498949  # the golden ratio minus one: its multiples modulo one are spread evenly
MARGIN = 1.05  # by which a power iteration may fall short of the largest eigenvalue

Product = Callable[[PyTree], PyTree]
"""v -> A v for a symmetric operator A."""


def probe(like: PyTree) -> PyTree:
    """A vector with no structure an operator could be blind to: multiples of the golden ratio, modulo one.

    Random would do as well, but compiling a generator takes longer than compiling all products of a small problem.
    """
    flat, unravel = jax.flatten_util.ravel_pytree(like)
    multiples = 0.5 + GOLDEN * jnp.arange(flat.size, dtype=flat.dtype)
    return unravel(multiples - jnp.floor(multiples) - 0.45)


def power_iteration(product: Product, like: PyTree) -> tuple[Scalar, PyTree]:
    """Largest absolute eigenvalue of a symmetric operator given by its products, and a unit vector for it."""
    return power_iterations({"": (product, like)})[""]


def power_iterations(operators: Mapping[str, tuple[Product, PyTree]]) -> dict[str, tuple[Scalar, PyTree]]:
    """`power_iteration` of several operators, by name, in one loop: a loop each takes far longer to compile.

    An operator comes with a tree like those it is applied to.
    """

    def body(carry: dict[str, tuple[Scalar, PyTree]], _: None) -> tuple[dict[str, tuple[Scalar, PyTree]], None]:
        images = {name: product(carry[name][1]) for name, (product, _) in operators.items()}
        return {name: (trees.norm(image), normalised(image)) for name, image in images.items()}, None

    start = {name: (jnp.zeros((), dtype_of(like)), normalised(probe(like))) for name, (_, like) in operators.items()}
    found, _ = jax.lax.scan(body, start, None, length=POWER_STEPS)
    return found


def conjugate_gradients(product: Product, right: PyTree) -> PyTree:
    """A^-1 right to a digit or so; where A has no curvature along a direction, it is left alone."""

    def body(carry: tuple[PyTree, PyTree, PyTree], _: None) -> tuple[tuple[PyTree, PyTree, PyTree], None]:
        found, rest, along = carry
        image = product(along)
        curved, square = trees.vdot(along, image), trees.vdot(rest, rest)
        step = jnp.where(curved > 0, square / or_one(curved), 0.0)
        found, less = move(found, -step, along), move(rest, step, image)
        ratio = trees.vdot(less, less) / or_one(square)
        return (found, less, move(less, -ratio, along)), None

    start = (jax.tree.map(jnp.zeros_like, right), right, right)
    (found, _, _), _ = jax.lax.scan(body, start, None, length=min(POWER_STEPS, size(right)))
    return found


def shifted(product: Product, largest: Scalar) -> Product:
    """`MARGIN largest I - A`: its largest eigenvalue tells the smallest one of a semidefinite operator A.

    Rough where the spectrum is wide: `extreme_eigenvalues` is sharper.
    """
    return lambda vector: jax.tree.map(lambda a, b: MARGIN * largest * a - b, vector, product(vector))


def extreme_eigenvalues(product: Product, like: PyTree) -> tuple[Scalar, Scalar]:
    """Smallest and largest (in size) eigenvalue of a symmetric operator, by Lanczos without reorthogonalisation.

    The smallest Ritz value is never below the smallest eigenvalue, and close to it far sooner than in a power
    iteration; lost orthogonality only repeats values that were found. Three copies of the variable.
    """
    flat, unravel = jax.flatten_util.ravel_pytree(like)
    first = normalised(jnp.sin(1.0 + jnp.arange(flat.size, dtype=flat.dtype)))

    def step(carry: tuple[Array, Array, Scalar], _: None) -> tuple[tuple[Array, Array, Scalar], Float[Array, "3"]]:
        """One product more: the next vector; its diagonal entry, the link to the next one, and whether there is a
        vector: once an invariant subspace is exhausted to the last bit, it is zero.
        """
        vector, before, link_before = carry
        image = jax.flatten_util.ravel_pytree(product(unravel(vector)))[0]
        value = jnp.vdot(vector, image)
        rest = image - value * vector - link_before * before
        link = trees.norm(rest)
        return (rest / or_one(link), vector, link), jnp.stack([value, link, jnp.vdot(vector, vector)])

    start = first, jnp.zeros_like(first), jnp.zeros((), flat.dtype)
    _, rows = jax.lax.scan(step, start, None, length=2 * POWER_STEPS)
    return _ends(rows)


def _ends(rows: Float[Array, "steps 3"]) -> tuple[Scalar, Scalar]:
    """Smallest and largest (in size) eigenvalue of the tridiagonal matrix that Lanczos leaves.

    By bisection: s has as many eigenvalues below it as the pivots d_i - s - e_i^2 / (the last pivot) have negative ones
    (Sturm). LAPACK would do it as well, but the first program that uses it imports SciPy, 0.2 s, and what JAX has for
    tridiagonal matrices takes three times as long to compile.
    """
    values, links, alive = rows.T
    diagonal = jnp.where(alive > 0.5, values, values[0])  # without a vector: a value that is there already
    before = jnp.concatenate([jnp.zeros_like(links[:1]), links[:-1]])  # links to the row before ...
    after = jnp.concatenate([links[:-1], jnp.zeros_like(links[:1])])  # ... and to the row after
    most, least = jnp.max(jnp.abs(diagonal) + before + after), jnp.finfo(rows.dtype).tiny
    unit = or_one(most)
    diagonal, squares = diagonal / unit, (before / unit) ** 2

    def row(pivots: Float[Array, "2"], entry: tuple[Scalar, Scalar, Array]) -> tuple[Array, Bool[Array, "2"]]:
        value, square, middle = entry
        pivots = value - middle - square / jnp.where(jnp.abs(pivots) > least, pivots, -least)
        return pivots, pivots < 0

    def halve(_: Array, ends: tuple[Float[Array, "2"], Float[Array, "2"]]) -> tuple[Array, Array]:
        low, high = ends
        middle = 0.5 * (low + high)
        entries = diagonal, squares, jnp.broadcast_to(middle, (diagonal.size, 2))
        below = jnp.sum(jax.lax.scan(row, jnp.ones_like(middle), entries)[1], axis=0)
        enough = below >= jnp.array([1, diagonal.size])  # eigenvalues below: one, or all of them
        return jnp.where(enough, low, middle), jnp.where(enough, middle, high)

    halvings = jnp.finfo(rows.dtype).nmant + 3
    ends = -jnp.ones(2, rows.dtype), jnp.ones(2, rows.dtype)
    low, high = jax.lax.fori_loop(0, halvings, halve, ends)
    smallest, largest = 0.5 * (low + high) * most
    return smallest, jnp.where(jnp.abs(smallest) > jnp.abs(largest), smallest, largest)


def hessian_product(function: Callable[[PyTree], Scalar], at: PyTree) -> Product:
    """v -> (Hessian of `function` at `at`) v."""
    return lambda vector: jax.jvp(jax.grad(function), (at,), (vector,))[1]


def jacobian_square(function: Callable[[PyTree], PyTree], at: PyTree) -> Product | None:
    """v -> J'J v, J the Jacobian of `function` at `at`; None where `function` returns nothing."""
    if not jax.tree.leaves(jax.eval_shape(function, at)):
        return None
    _, pull_back = jax.vjp(function, at)
    return lambda vector: pull_back(jax.jvp(function, (at,), (vector,))[1])[0]


def jacobian_norm(function: Callable[[PyTree], PyTree], at: PyTree) -> Scalar:
    """Spectral norm of the Jacobian of `function` at `at`."""
    product = jacobian_square(function, at)
    return jnp.zeros((), dtype_of(at)) if product is None else jnp.sqrt(power_iteration(product, at)[0])


optax = lazy("optax")


class Curvature(NamedTuple):
    """Norms at one point: Hessian blocks and slopes of F, Hessian blocks of G, Jacobians of the constraints of the
    lower and the upper level.

    `above_over_below` is the largest curvature of F in y relative to that of the lower level, active rows included;
    zero where nobody asked for it.
    """

    upper_xx: Scalar
    upper_yy: Scalar
    upper_slope: Scalar
    upper_x: Scalar
    upper_y: Scalar
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
    if count <= 2 * PROBES:
        flat, unravel = jax.flatten_util.ravel_pytree(values)
        rows = jax.vmap(lambda unit: trees.norm(pull_back(unravel(unit))))(jnp.eye(count, dtype=flat.dtype))
        return unravel(rows)

    def probe(total: PyTree, one: PRNGKeyArray) -> tuple[PyTree, None]:
        _, along = jax.jvp(function, (at,), (optax.tree.random_like(one, at),))
        return jax.tree.map(lambda a, b: a + b**2, total, along), None

    squares, _ = jax.lax.scan(probe, jax.tree.map(jnp.zeros_like, values), jax.random.split(key, 2 * PROBES))
    return jax.tree.map(lambda a: jnp.sqrt(a / (2 * PROBES)), squares)


def constraint_scales(problem: Problem, x: PyTree, y: PyTree, key: PRNGKeyArray) -> Multipliers:
    """||grad_y H_i|| of every constraint; where it vanishes |H_i|, what y of order one may change it by; else one."""
    norms, values = row_norms(lambda v: all_constraints(problem, x, v), y, key), all_constraints(problem, x, y)
    return jax.tree.map(lambda norm, value: or_one(jnp.where(norm > 0, norm, jnp.abs(value))), norms, values)


def units_of_y(problem: Problem, x: PyTree, y: PyTree, xi: PyTree) -> PyTree:
    """Powers of two, one for every entry of y, in which its entries are about equally curved and of order one.

    Of order one: their size, or the way of a Newton step, if that is longer. Of an entry that G does not curve (the
    offset of a support vector machine) the rows' slopes are made equal to those of the others. The diagonal of G_yy
    comes from products with vectors of signs. Where these do not tell an entry's own curvature, it has the mean of its
    array.
    """
    flat, tree = jax.flatten_util.ravel_pytree(y)
    curved = hessian_product(lambda v: problem.lower(x, v, xi), y)
    _, pull_back = jax.vjp(lambda v: problem.rows(x, v), y)
    rows, tree_of_rows = jax.flatten_util.ravel_pytree(problem.rows(x, y))

    def signs(like: Array, number: Array) -> Array:
        place = jnp.arange(1.0, like.size + 1, dtype=like.dtype)
        return jnp.where(jnp.sin(place * (0.618 + 1.234 * number)) < 0, -1.0, 1.0)

    def look(number: Array) -> tuple[Array, Array]:
        v = signs(flat, number)
        steep = pull_back(tree_of_rows(signs(rows, number))) if rows.size else 0 * flat
        return v * jax.flatten_util.ravel_pytree(curved(tree(v)))[0], jax.flatten_util.ravel_pytree(steep)[0]

    seen, steep = jax.lax.map(look, jnp.arange(1.0, PROBES + 1, dtype=flat.dtype))
    mean, steep = jnp.mean(seen, 0), jnp.sqrt(jnp.mean(steep**2, 0))
    known = jnp.abs(mean) > jnp.std(seen, 0)  # four standard errors
    arrays = jax.tree.map(lambda leaf: jnp.full_like(leaf, jnp.abs(jnp.mean(leaf))), tree(mean))
    own = jnp.where(known | (mean == 0), jnp.abs(mean), jax.flatten_util.ravel_pytree(arrays)[0])
    most = jnp.max(own)
    bent = own > FINE * most
    exponents = jnp.floor(0.5 * jnp.log2(most / jnp.where(bent, own, or_one(most))))
    steepest = jnp.max(jnp.where(bent, jnp.ldexp(steep, exponents.astype(int)), 0.0))
    by_rows = jnp.where((steep > 0) & (steepest > 0), jnp.round(jnp.log2(steepest / or_one(steep))), 0.0)
    exponents = jnp.where(bent, exponents, by_rows)
    groups = sets.shared_units(problem.y_set, y)
    least = jax.ops.segment_min(exponents, groups, num_segments=flat.size)[groups].astype(int)
    slope = jax.flatten_util.ravel_pytree(jax.grad(problem.lower, 1)(x, y, xi))[0]
    newton = trees.norm(jnp.ldexp(slope, least)) / or_one(most)
    length = jnp.maximum(trees.norm(jnp.ldexp(flat, -least)), newton) / flat.size**0.5
    return tree(jnp.ldexp(jnp.ones_like(flat), least + jnp.round(jnp.log2(or_one(length))).astype(int)))


def unit_scales(problem: Problem, x: PyTree, y: PyTree) -> Multipliers:
    """Scales that change nothing."""
    return jax.tree.map(jnp.ones_like, all_constraints(problem, x, y))


def curvature(
    problem: Problem, x: PyTree, y: PyTree, lam: Rows, zeta: PyTree, xi: PyTree, with_ratio: bool = False
) -> Curvature:
    """All norms at (x, y), on the given batches: two loops, of the norms and of what needs them.

    `above_over_below` only `with_ratio`: a loop inside of a loop takes long to compile.
    """
    upper_yy = hessian_product(lambda v: problem.upper(x, v, zeta), y)
    lower_yy = hessian_product(lambda v: problem.lower(x, v, xi), y)

    def slope_below(x: PyTree) -> PyTree:
        return jax.grad(problem.lower, 1)(x, y, xi)

    def mixed(vector: PyTree) -> PyTree:
        return jax.jvp(slope_below, (x,), (vector,))[1]

    squares = {
        "jacobian_x": (jacobian_square(lambda v: problem.rows(v, y), x), x),
        "jacobian_y": (jacobian_square(lambda v: problem.rows(x, v), y), y),
        "outer_x": (jacobian_square(lambda v: problem.upper_constraints(v, y), x), x),
        "outer_y": (jacobian_square(lambda v: problem.upper_constraints(x, v), y), y),
    }
    curved: dict[str, tuple[Product, PyTree]] = {
        "upper_xx": (hessian_product(lambda v: problem.upper(v, y, zeta), x), x),
        "upper_yy": (upper_yy, y),
        "lower_yy": (lower_yy, y),
        "mixed": (lambda vector: jax.vjp(slope_below, x)[1](mixed(vector))[0], x),
    }
    if jax.tree.leaves(lam):
        curved["constraint_yy"] = (hessian_product(lambda v: trees.vdot(lam, problem.rows(x, v)), y), y)
    found = power_iterations(curved | {name: (a, like) for name, (a, like) in squares.items() if a is not None})
    zero = jnp.zeros_like(found["lower_yy"][0])
    norms = dict.fromkeys((*squares, "constraint_yy"), zero) | {name: value for name, (value, _) in found.items()}
    norms |= {name: jnp.sqrt(norms[name]) for name in squares}
    top, (square, most) = norms["lower_yy"], found["mixed"]
    del norms["mixed"]
    needing = {"shifted": (shifted(lower_yy, top), y)}
    if with_ratio:
        # M^-1 F_yy, M the Hessian of the lower level's augmented Lagrangian: constraints supply curvature where the
        # objective has none (the offset of a support vector machine).
        gamma1 = 1 / (MUCH * top / or_one(norms["jacobian_y"] ** 2))
        below = hessian_product(lambda v: augmented_lagrangian(problem, x, v, lam, gamma1, xi), y)
        needing["ratio"] = (lambda vector: conjugate_gradients(below, upper_yy(vector)), y)
    second = power_iterations(needing)
    bottom = jnp.clip(MARGIN * top - second["shifted"][0], NEGLIGIBLE * top, top)
    # How strongly grad_x G moves through y*(x), about ||G_xy G_yy^-1 G_yx||. The bound ||G_xy||^2 / mu_G is far too
    # large where the weakly curved directions of y are not those that x moves, so the curvature met in the direction
    # that x moves most, and mu_G, enter by their geometric mean.
    moved = normalised(mixed(most))
    met = jnp.maximum(trees.vdot(moved, lower_yy(moved)), bottom)
    slopes = [trees.norm(slope).astype(zero.dtype) for slope in jax.grad(problem.upper, (0, 1))(x, y, zeta)]
    return Curvature(
        **norms,
        upper_slope=slopes[1] / or_one(trees.norm(y)),
        upper_x=slopes[0],
        upper_y=slopes[1],
        lower_yy_min=bottom,
        response=jnp.where(bottom > 0, square / jnp.sqrt(met * bottom), 0.0),
        above_over_below=second["ratio"][0] if with_ratio else zero,
    )


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
    return both._replace(lower_yy_min=least, above_over_below=second.above_over_below, upper_slope=second.upper_slope)
