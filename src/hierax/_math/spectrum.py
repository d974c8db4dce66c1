"""Extreme eigenvalues and norms of operators that are known by their products only.

Power iteration where two digits of the largest one will do (a step size needs no more), Lanczos where the smallest one
is wanted. Everything is a pure function of arrays in the operator's own precision, with a fixed number of products and
two or three copies of the variable.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree, Scalar

from hierax._base import trees
from hierax._base.trees import dtype_of, move, normalised, or_one

POWER_STEPS = 12  # products of a power iteration: two digits
LANCZOS_STEPS = 24  # products of Lanczos; the smallest eigenvalue is found where it is 1/100 of the largest or so
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
    (found, _, _), _ = jax.lax.scan(body, start, None, length=POWER_STEPS)
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
    return all_extreme_eigenvalues({"": (product, like)})[""]


def all_extreme_eigenvalues(operators: Mapping[str, tuple[Product, PyTree]]) -> dict[str, tuple[Scalar, Scalar]]:
    """`extreme_eigenvalues` of several operators, by name, in one loop: a loop each takes far longer to compile."""

    def step(carry: dict[str, _Lanczos], _: None) -> tuple[dict[str, _Lanczos], Float[Array, "operators 3"]]:
        moved = {name: _lanczos(product, like, carry[name]) for name, (product, like) in operators.items()}
        return {name: after for name, (after, _) in moved.items()}, jnp.stack([row for _, row in moved.values()])

    start = {name: _Lanczos.first(like) for name, (_, like) in operators.items()}
    _, rows = jax.lax.scan(step, start, None, length=LANCZOS_STEPS)
    bottoms, tops = jax.vmap(_ends, 1)(rows)
    return {name: (bottoms[i], tops[i]) for i, name in enumerate(operators)}


class _Lanczos(NamedTuple):
    """What Lanczos carries from step to step: the vector, the one before it, and what links them."""

    vector: Float[Array, " n"]
    before: Float[Array, " n"]
    link: Scalar

    @staticmethod
    def first(like: PyTree) -> "_Lanczos":
        flat, _ = jax.flatten_util.ravel_pytree(like)
        vector = normalised(jnp.sin(1.0 + jnp.arange(flat.size, dtype=flat.dtype)))
        return _Lanczos(vector, jnp.zeros_like(vector), jnp.zeros((), flat.dtype))


def _lanczos(product: Product, like: PyTree, at: _Lanczos) -> tuple[_Lanczos, Float[Array, "3"]]:
    """One product more: the next vector; its diagonal entry, the link to the next one, and whether there is a vector.

    Once an invariant subspace is exhausted to the last bit, the vector is zero.
    """
    _, unravel = jax.flatten_util.ravel_pytree(like)
    image, _ = jax.flatten_util.ravel_pytree(product(unravel(at.vector)))
    value = jnp.vdot(at.vector, image)
    rest = image - value * at.vector - at.link * at.before
    link = trees.norm(rest)
    return _Lanczos(rest / or_one(link), at.vector, link), jnp.stack([value, link, jnp.vdot(at.vector, at.vector)])


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
