"""The pytrees that x, y and the multipliers are: helpers for them, and trees of real arrays as vectors.

Not by optax's functions of the same kind: those also serve complex numbers, by four operations more for every norm, and
programs are full of norms; and importing optax takes a tenth of a second of every start.
"""

import functools
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, PyTree, Scalar

from hierax._base.errors import InputError

Number = Any
"""A setting that is a number: a float, a traced scalar, or None until it is estimated."""


class Infinite(float):
    """Infinity as a form and not as a number: no argument of a compiled program, so tracing code may ask for it."""


INFINITE = Infinite("inf")


def split_variable(name: str, tree: PyTree) -> tuple[PyTree, PyTree]:
    """Separate a variable into the arrays that are optimised and everything else.

    Python numbers and lists of numbers become floating-point arrays of JAX's default precision, NumPy arrays become
    JAX's. Integer arrays are refused by name: an array of integers is far more often labels or indices than a
    variable. Leaves that are no numbers at all (the functions inside an Equinox module) are set aside.

    Examples:
        >>> split_variable("x0", [0.5, 1])[0]
        Array([0.5, 1. ], dtype=float32)
    """

    def to_array(path: tuple[PyTree, ...], leaf: PyTree) -> PyTree:
        if _is_list_of_numbers(leaf) or (isinstance(leaf, int | float) and not isinstance(leaf, bool)):
            return on_device(leaf, float)
        if isinstance(leaf, bool | np.bool_ | complex | np.ndarray | np.generic | jax.Array):
            array = leaf if isinstance(leaf, jax.Array) else on_device(leaf)
            if not jnp.issubdtype(array.dtype, jnp.floating):
                raise InputError(
                    f"{name}{jax.tree_util.keystr(path)} has dtype {array.dtype}; hierax optimises real "
                    f"floating-point arrays. Convert it (for example with .astype(float)), or keep it out of {name}."
                )
            return array
        return leaf

    tree = jax.tree_util.tree_map_with_path(to_array, tree, is_leaf=_is_list_of_numbers)
    arrays, rest = eqx.partition(tree, eqx.is_inexact_array)
    if not jax.tree.leaves(arrays):
        raise InputError(f"{name} holds no floating-point array, so there is nothing to optimise: {name} = {tree!r}.")
    return arrays, rest


def _is_list_of_numbers(node: object) -> bool:
    """Whether a list, nested or not, holds plain numbers only and is as regular as an array."""
    if type(node) is not list or not node:
        return False
    if all(isinstance(entry, int | float | np.floating) and not isinstance(entry, bool) for entry in node):
        return True
    rows = [entry for entry in node if _is_list_of_numbers(entry)]
    return len(rows) == len(node) and len({np.shape(row) for row in rows}) == 1


def on_device(value: object, dtype: jnp.dtype | type | None = None) -> Array:
    """Numbers of the host as an array of JAX's: `jnp.asarray` would compile a program for every shape it meets.

    Of a copy: JAX may read, or share, the host's memory long after this returns. Not for traced arrays.

    Examples:
        >>> on_device([1.0, 2.0])
        Array([1., 2.], dtype=float32)
    """
    return jax.device_put(np.array(value, dtype))


def given(value: "Number", default: "Number", dtype: jnp.dtype) -> Array:
    """A setting as an array: the user's value, or the default where it is None."""
    return jnp.asarray(default if value is None else value, dtype)


def or_one(value: Array, above: ArrayLike = 0.0) -> Array:
    """The value where it exceeds `above`, else one: a divisor that is never zero."""
    return jnp.where(value > above, value, 1.0)


@contextmanager
def relaxed_promotion() -> Iterator[None]:
    """Let arrays of different types and ranks meet, whatever the user has set: parts of optax need it."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def is_key(leaf: object) -> bool:
    """Whether something is an array of random keys."""
    return jnp.issubdtype(getattr(leaf, "dtype", np.float64), jax.dtypes.prng_key)


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
    return jax.tree.map(lambda a, b: b if is_key(a) else jax.lax.select(condition, a, b), new, old)


def move(tree: PyTree, step: Scalar | float, direction: PyTree) -> PyTree:
    """`tree - step * direction`, every leaf in its own precision (x and y may differ)."""
    return jax.tree.map(lambda a, d: a - jnp.asarray(step, a.dtype) * d.astype(a.dtype), tree, direction)


def dtype_of(*trees: PyTree) -> jnp.dtype:
    """The floating-point dtype a run on these trees computes in: the widest, where they differ."""
    with relaxed_promotion():
        return jnp.result_type(*[leaf.dtype for leaf in jax.tree.leaves(trees)])


def shape_of(leaf: ArrayLike) -> jax.ShapeDtypeStruct:
    """The shape of a number or an array, and the dtype that it has as one of JAX's arrays.

    Examples:
        >>> shape_of(1.0)
        ShapeDtypeStruct(shape=(), dtype=float32)
    """
    dtype = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
    return jax.ShapeDtypeStruct(np.shape(leaf), jax.dtypes.canonicalize_dtype(dtype, allow_extended_dtype=True))


def size(tree: PyTree) -> int:
    """Number of scalars in the tree."""
    return sum(int(np.size(leaf)) for leaf in jax.tree.leaves(tree))


def normalised(tree: PyTree) -> PyTree:
    """The tree divided by its Euclidean norm (itself if that is zero)."""
    divisor = or_one(norm(tree))
    return jax.tree.map(lambda leaf: leaf / divisor, tree)


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
