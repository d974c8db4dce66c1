"""The arrays of a run's state, from the device to the host and back.

Only arrays and numbers are kept, in the order of the state's leaves, with their paths. The structure (which settings
there are, functions, optax transformations) comes from the call that goes on. `gathered` is the one place where arrays
leave the devices, `placed` the one where they return to them.
"""

import hashlib
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base.errors import InputError
from hierax._base.trees import on_device
from hierax._compile.placement import read

HASH = "sha256:"  # begins every hash


class Gathered(NamedTuple):
    """Paths of a tree's arrays, the arrays on the host (of random keys, their data), and how keys are made, by path."""

    paths: list[str]
    arrays: list[np.ndarray]
    keys: dict[str, str]


def gathered(tree: PyTree) -> Gathered:
    """Copies of the arrays and numbers of a tree, on the host: a run overwrites its own."""
    named = _stored(tree)
    keys = {name: str(jax.random.key_impl(leaf)) for name, leaf in named if _is_key(leaf)}
    return Gathered([name for name, _ in named], [_to_numpy(leaf) for _, leaf in named], keys)


def placed(found: Gathered, like: PyTree) -> PyTree:
    """The tree `like` (its arrays may be shapes only) with the arrays that were gathered from one of the same form.

    Raises:
        InputError: they are those of another problem or method.
    """
    expected = _stored(like)
    names = [name for name, _ in expected]
    if found.paths != names:
        odd = sorted(set(found.paths) ^ set(names))[:3]
        raise InputError(
            "checkpoint: its state does not fit this problem and method: they differ in "
            f"{', '.join(odd) or 'the order of entries'}. Resume with those that it was made with."
        )
    pairs = zip(expected, found.arrays, strict=True)
    restored = iter([_like(leaf, array, name, found.keys.get(name)) for (name, leaf), array in pairs])
    return jax.tree.map(lambda leaf: next(restored) if _is_stored(leaf) else leaf, like)


def hash_of_arrays(tree: PyTree) -> str:
    """The hash of the structure of a tree and of its numbers, without a copy of them."""
    whole = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.ascontiguousarray(read(jax.random.key_data(leaf) if _is_key(leaf) else leaf))
        whole.update(f"{jax.tree_util.keystr(path)} {array.dtype.name} {array.shape}\n".encode())
        whole.update(array.reshape(-1).view(np.uint8).data)
    return HASH + whole.hexdigest()


def _stored(tree: PyTree) -> list[tuple[str, PyTree]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if _is_stored(leaf)]


def _is_stored(leaf: object) -> bool:
    return eqx.is_array_like(leaf) or isinstance(leaf, jax.ShapeDtypeStruct)


def _is_key(leaf: object) -> bool:
    return jnp.issubdtype(getattr(leaf, "dtype", np.float64), jax.dtypes.prng_key)


def _to_numpy(leaf: PyTree) -> np.ndarray:
    return np.array(read(jax.random.key_data(leaf) if _is_key(leaf) else leaf))


def _like(leaf: PyTree, array: np.ndarray, name: str, key: str | None) -> PyTree:
    """The stored array as the kind of thing that `leaf` is."""
    if key is not None and _is_key(leaf):
        restored = jax.random.wrap_key_data(on_device(array), impl=key)
        _refuse_other(name, restored, leaf)
        return restored
    expected = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    if array.dtype.kind == "V":  # npz does not know the names of JAX's own types
        array = array.view(expected.dtype)
    _refuse_other(name, array, expected)
    return type(leaf)(array) if isinstance(leaf, bool | int | float) else on_device(array)


def _refuse_other(name: str, found: Array | np.ndarray, expected: Array | np.ndarray | jax.ShapeDtypeStruct) -> None:
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        raise InputError(
            f"checkpoint: {name} has shape {found.shape} and dtype {found.dtype}, this problem needs {expected.shape} "
            f"and {expected.dtype}. Resume with the problem that it was made with."
        )
