"""Trees of real arrays as vectors.

Not optax's functions of the same kind: those also serve complex numbers, by four operations more for every norm, and
programs are full of norms; and importing optax takes a tenth of a second of every start.
"""

import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar


def total(tree: PyTree) -> Scalar:
    """The sum of all entries; a plain zero where there are none, which takes on any precision."""
    return _sum([jnp.sum(leaf) for leaf in jax.tree.leaves(tree)])


def vdot(one: PyTree, other: PyTree) -> Scalar:
    """The inner product, in the precision of the arrays whatever the device prefers."""
    precise = functools.partial(jnp.vdot, precision=jax.lax.Precision.HIGHEST)
    return _sum(jax.tree.leaves(jax.tree.map(precise, one, other)))


def norm_squared(tree: PyTree) -> Array:
    """The sum of the squares of all entries."""
    return jnp.asarray(_sum([jnp.sum(jnp.square(leaf)) for leaf in jax.tree.leaves(tree)]))


def norm(tree: PyTree) -> Array:
    """The Euclidean norm.

    Examples:
        >>> norm({"a": jnp.array([3.0]), "b": jnp.array(4.0)})
        Array(5., dtype=float32)
    """
    return jnp.sqrt(norm_squared(tree))


def add(one: PyTree, other: PyTree) -> PyTree:
    """The sum of two trees."""
    return jax.tree.map(operator.add, one, other)


def sub(one: PyTree, other: PyTree) -> PyTree:
    """The difference of two trees."""
    return jax.tree.map(operator.sub, one, other)


def add_scaled(one: PyTree, factor: Scalar | float, other: PyTree) -> PyTree:
    """`one + factor * other`."""
    return jax.tree.map(lambda a, b: a + factor * b, one, other)


def _sum(numbers: list[Scalar]) -> Any:
    return functools.reduce(operator.add, numbers) if numbers else 0.0
