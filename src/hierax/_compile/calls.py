"""A call of a program taken apart: the arrays to call it with, and the key that says which program it is."""

from collections.abc import Callable, Hashable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jaxtyping import Array, ArrayLike, PyTree

from hierax._base.trees import Infinite, on_device
from hierax._compile.placement import Placement
from hierax._compile.tracing import is_hoisted, unpacked


class Call(NamedTuple):
    """A call taken apart: the key of its program, and the arrays to call it with."""

    key: Hashable
    given: list[PyTree]  # arrays of the donated argument
    rest: list[PyTree]
    of_problem: int  # how many of the rest are the problem's
    rebuild: Callable[[list[PyTree], list[PyTree]], tuple[PyTree, ...]]


class Form:
    """What of a tree a program depends on; its hash, of hundreds of parts, is computed once."""

    def __init__(self, tables: tuple[PyTree, ...], *rest: Hashable) -> None:
        self.tables = tables  # the traces of the tree's functions
        self._all = (tables, *rest)
        self._hash = hash(self._all)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Form) and self._all == other._all)


class Flat(NamedTuple):
    """A tree taken apart.

    Attributes:
        arrays: its arrays, None where a leaf is none.
        fixed: its other leaves, None where a leaf is an array.
        form: what of it a program depends on.
        treedef: its structure.
    """

    arrays: list[PyTree]
    fixed: tuple[PyTree, ...]
    form: Form
    treedef: jax.tree_util.PyTreeDef

    def whole(self, arrays: list[PyTree]) -> PyTree:
        """The tree with other arrays."""
        leaves = [leaf if array is None else array for leaf, array in zip(self.fixed, arrays, strict=True)]
        return jax.tree.unflatten(self.treedef, leaves)


def flattened(tree: PyTree, placement: Placement | None) -> Flat:
    leaves, treedef = jax.tree.flatten(tree, is_leaf=is_number)
    dynamic = [is_number(leaf) or eqx.is_array(leaf) or isinstance(leaf, np.ndarray) for leaf in leaves]
    arrays = [_strong(leaf) if flag else None for leaf, flag in zip(leaves, dynamic, strict=True)]
    if placement is not None:
        arrays = [None if a is None else placement.put(a) for a in arrays]
    fixed = tuple(None if flag else leaf for leaf, flag in zip(leaves, dynamic, strict=True))
    avals = tuple(None if a is None else (a.shape, a.dtype, _layout(a)) for a in arrays)
    tables = tuple(node.table for node in jax.tree.leaves(tree, is_leaf=is_hoisted) if is_hoisted(node))
    return Flat(arrays, fixed, Form(tables, treedef, fixed, avals), treedef)


def _layout(array: Array | np.ndarray) -> Hashable:
    """How an array is spread over several devices, which a program is compiled for; None: it is not."""
    return array.sharding if isinstance(array, jax.Array) and isinstance(array.sharding, NamedSharding) else None


def taken_apart(problem: Flat, flat: Flat, own: int, kind: tuple[PyTree, ...]) -> Call:
    """The call of a program of this kind with the arguments `flat`, of which the first `own` leaves are donated."""
    first = len(problem.arrays)

    def rebuild(given: list[PyTree], rest: list[PyTree]) -> tuple[PyTree, ...]:
        return unpacked(problem.whole(rest[:first])), *flat.whole(given + rest[first:])

    given = [None if array is None else jnp.asarray(array) for array in flat.arrays[:own]]  # NumPy's cannot be donated
    return Call((problem.form, *kind), given, problem.arrays + flat.arrays[own:], first, rebuild)


def precision() -> np.dtype:
    """The dtype that double precision has now: `jnp.result_type(float)`, a hundred times as quick."""
    return jax.dtypes.canonicalize_dtype(np.float64)


def _strong(leaf: ArrayLike) -> Array | np.ndarray:
    """An array whose dtype does not yield to others: a Python number and an array must give the same program.

    NumPy's arrays in the precision of now stay as they are: a program takes them quicker than they are converted.
    """
    if isinstance(leaf, jax.Array):
        return on_device(leaf) if getattr(leaf, "weak_type", False) else leaf
    array = np.asarray(leaf)
    return array if array.dtype == np.float64 == precision() else on_device(array)


def is_number(leaf: object) -> bool:
    if isinstance(leaf, Infinite):
        return False
    return isinstance(leaf, float | complex | np.generic) or (isinstance(leaf, int) and not isinstance(leaf, bool))
