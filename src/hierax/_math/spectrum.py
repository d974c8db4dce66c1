"""Extreme eigenvalues and norms of operators that are known by their products only.

Power iteration where two digits of the largest one will do (a step size needs no more), Lanczos where the smallest one
is wanted. Everything is a pure function of arrays in the operator's own precision, with a fixed number of products and
two or three copies of the variable.
"""

from collections.abc import Callable, Mapping

import jax
import jax.flatten_util
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree, Scalar

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
    return unravel((0.5 + GOLDEN * jnp.arange(flat.size, dtype=flat.dtype)) % 1.0 - 0.45)


def power_iteration(product: Product, like: PyTree) -> tuple[Scalar, PyTree]:
    """Largest absolute eigenvalue of a symmetric operator given by its products, and a unit vector for it."""
    return power_iterations({"": (product, like)})[""]


def power_iterations(operators: Mapping[str, tuple[Product, PyTree]]) -> dict[str, tuple[Scalar, PyTree]]:
    """`power_iteration` of several operators, by name, in one loop: a loop each takes far longer to compile.

    An operator comes with a tree like those it is applied to.
    """

    def body(carry: dict[str, tuple[Scalar, PyTree]], _: None) -> tuple[dict[str, tuple[Scalar, PyTree]], None]:
        images = {name: product(carry[name][1]) for name, (product, _) in operators.items()}
        return {name: (optax.tree.norm(image), normalised(image)) for name, image in images.items()}, None

    start = {name: (jnp.zeros((), dtype_of(like)), normalised(probe(like))) for name, (_, like) in operators.items()}
    found, _ = jax.lax.scan(body, start, None, length=POWER_STEPS)
    return found


def conjugate_gradients(product: Product, right: PyTree) -> PyTree:
    """A^-1 right to a digit or so; where A has no curvature along a direction, it is left alone."""

    def body(carry: tuple[PyTree, PyTree, PyTree], _: None) -> tuple[tuple[PyTree, PyTree, PyTree], None]:
        found, rest, along = carry
        image = product(along)
        curved, square = optax.tree.vdot(along, image), optax.tree.vdot(rest, rest)
        step = jnp.where(curved > 0, square / or_one(curved), 0.0)
        found, less = move(found, -step, along), move(rest, step, image)
        ratio = optax.tree.vdot(less, less) / or_one(square)
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
    flat, unravel = jax.flatten_util.ravel_pytree(like)

    def step(
        carry: tuple[Float[Array, " n"], Float[Array, " n"], Scalar], _: None
    ) -> tuple[tuple[Float[Array, " n"], Float[Array, " n"], Scalar], tuple[Scalar, Scalar, Scalar]]:
        vector, before, link = carry
        image = jax.flatten_util.ravel_pytree(product(unravel(vector)))[0]
        value = jnp.vdot(vector, image)
        rest = image - value * vector - link * before
        onward = jnp.linalg.norm(rest)
        return (normalised(rest), vector, onward), (value, onward, jnp.vdot(vector, vector))

    first = normalised(jnp.sin(1.0 + jnp.arange(flat.size, dtype=flat.dtype)))
    start = (first, jnp.zeros_like(first), jnp.zeros((), flat.dtype))
    _, (values, links, alive) = jax.lax.scan(step, start, None, length=LANCZOS_STEPS)
    # Once an invariant subspace is exhausted to the last bit the vector is zero: repeat a value that is there.
    diagonal = jnp.where(alive > 0.5, values, values[0])
    ritz = jnp.linalg.eigvalsh(jnp.diag(diagonal) + jnp.diag(links[:-1], 1) + jnp.diag(links[:-1], -1))
    return ritz[0], jnp.where(jnp.abs(ritz[0]) > jnp.abs(ritz[-1]), ritz[0], ritz[-1])


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
