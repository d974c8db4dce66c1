"""Small helpers for the pytrees that x, y and the multipliers are."""

import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, PyTree, Scalar

from hierax._base.errors import InputError

Number = Any
"""A setting that is a number: a float, a traced scalar, or None until it is estimated."""


def split_variable(name: str, tree: PyTree) -> tuple[PyTree, PyTree]:
    """Separate a variable into the arrays that are optimised and everything else.

    Python and NumPy floats become arrays (of JAX's default precision for the former). Integer leaves are refused by
    name, because an integer is far more often a forgotten decimal point than a constant. Leaves that are no numbers
    at all (the functions inside an Equinox module) are set aside.
    """

    def to_array(path: tuple, leaf: PyTree) -> PyTree:
        if isinstance(leaf, bool | np.bool_ | int | complex | float | np.ndarray | np.generic | jax.Array):
            array = jnp.asarray(leaf)
            if not jnp.issubdtype(array.dtype, jnp.floating):
                raise InputError(
                    f"{name}{jax.tree_util.keystr(path)} has dtype {array.dtype}; hierax optimises real "
                    f"floating-point arrays. Write it as a float (e.g. 1.0), or keep it out of {name}."
                )
            return array
        return leaf

    tree = jax.tree_util.tree_map_with_path(to_array, tree)
    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    if not jax.tree.leaves(arrays):
        raise InputError(f"{name} holds no floating-point array, so there is nothing to optimise: {name} = {tree!r}.")
    return arrays, rest


def all_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether every floating-point leaf of the tree is finite (one pass over each leaf)."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return functools.reduce(jnp.logical_and, [jnp.all(jnp.isfinite(leaf)) for leaf in leaves], jnp.array(True))


def largest(tree: PyTree, dtype: jnp.dtype) -> Scalar:
    """The largest entry of the tree, and zero for an empty one."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.size]
    return functools.reduce(jnp.maximum, [jnp.max(leaf) for leaf in leaves]) if leaves else jnp.zeros((), dtype)


def select(condition: Bool[Array, ""], new: PyTree, old: PyTree) -> PyTree:
    """`new` where the condition holds, else `old`, leaf by leaf (random keys never change and are kept)."""

    def pick(a: Array, b: Array) -> Array:
        return b if jnp.issubdtype(a.dtype, jax.dtypes.prng_key) else jnp.where(condition, a, b)

    return jax.tree.map(pick, new, old)


def move(tree: PyTree, step: Scalar | float, direction: PyTree) -> PyTree:
    """`tree - step * direction`, every leaf in its own precision (x and y may differ)."""
    return jax.tree.map(lambda a, d: (a - step * d).astype(a.dtype), tree, direction)


def dtype_of(*trees: PyTree) -> jnp.dtype:
    """The floating-point dtype a run on these trees computes in."""
    return jnp.result_type(*[leaf.dtype for leaf in jax.tree.leaves(trees)])


def size(tree: PyTree) -> int:
    """Number of scalars in the tree."""
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(tree))


def or_one(value: Array) -> Array:
    """The value where it is positive, else 1: what may be divided by, or taken as a unit."""
    return jnp.where(value > 0, value, 1.0)


def normalised(tree: PyTree) -> PyTree:
    """The tree divided by its Euclidean norm (itself if that is zero)."""
    norm = optax.tree.norm(tree)
    return jax.tree.map(lambda leaf: leaf / or_one(norm), tree)
