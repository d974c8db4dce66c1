"""Extreme eigenvalues and norms of operators that are known by their products only.

Power iteration where two digits of the largest one will do (a step size needs no more), Lanczos where the smallest one
is wanted. Everything is a pure function of arrays in the operator's own precision, with a fixed number of products and
two or three copies of the variable.
"""

from collections.abc import Callable

import jax
import jax.flatten_util
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree, Scalar

from hierax._base.trees import dtype_of, normalised

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

    def body(carry: tuple[PyTree, Scalar], _: None) -> tuple[tuple[PyTree, Scalar], None]:
        vector = carry[0]
        image = product(vector)
        return (normalised(image), optax.tree.norm(image)), None

    start = (normalised(probe(like)), jnp.zeros((), dtype_of(like)))
    (vector, value), _ = jax.lax.scan(body, start, None, length=POWER_STEPS)
    return value, vector


def smallest_eigenvalue(product: Product, like: PyTree, largest: Scalar) -> Scalar:
    """Smallest eigenvalue of a semidefinite operator A, from the largest one of `MARGIN largest I - A`.

    A power iteration, so rough where the spectrum is wide: `extreme_eigenvalues` is sharper.
    """

    def shifted(vector: PyTree) -> PyTree:
        return jax.tree.map(lambda a, b: MARGIN * largest * a - b, vector, product(vector))

    return MARGIN * largest - power_iteration(shifted, like)[0]


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


def jacobian_norm(function: Callable[[PyTree], PyTree], at: PyTree) -> Scalar:
    """Spectral norm of the Jacobian of `function` at `at`."""
    if not jax.tree.leaves(jax.eval_shape(function, at)):
        return jnp.zeros((), dtype_of(at))
    _, pull_back = jax.vjp(function, at)

    def product(vector: PyTree) -> PyTree:
        return pull_back(jax.jvp(function, (at,), (vector,))[1])[0]

    return jnp.sqrt(power_iteration(product, at)[0])
