"""Save the state of a run to a file and load it again, so that a run can go on in another process.

Only the arrays and numbers are stored, in the order of the state's leaves, together with their paths. The structure
(which settings there are, functions, optax transformations) comes from a state of the same call: `load(path, like)`.
No pickle: the file is plain npz and safe to open.
"""

import os
import zipfile
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.errors import InputError

PATHS = "paths"


def save(path: Path, state: PyTree) -> None:
    """Write `sol.state`; the file is complete or is not touched."""
    named = _stored(state)
    arrays = {f"leaf_{i:05d}": _to_numpy(leaf) for i, (_, leaf) in enumerate(named)}
    arrays[PATHS] = np.array([name for name, _ in named])
    unfinished = path.with_name(path.name + ".part")
    with open(unfinished, "wb") as file:
        np.savez(file, allow_pickle=False, **arrays)
    os.replace(unfinished, path)


def load(path: Path, like: PyTree) -> PyTree:
    """The state stored in `path`, in the structure of `like`: a state of the same problem and method.

    Raises:
        InputError: the file is no state, or one of another problem or method.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            stored = {name: file[name] for name in file.files}
        paths = stored.pop(PATHS).tolist()
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} is not a saved state of hierax, or is damaged: {error}") from error
    expected = _stored(like)
    names = [name for name, _ in expected]
    if paths != names:
        odd = sorted(set(paths) ^ set(names))[:3]
        raise InputError(
            f"{path} does not fit this problem and method: they differ in {', '.join(odd) or 'the order of entries'}. "
            "Resume with the problem, the method and the settings that the state was saved with."
        )
    restored = iter(
        [_like(leaf, stored[f"leaf_{i:05d}"], f"{path}: {name}") for i, (name, leaf) in enumerate(expected)]
    )
    return jax.tree.map(lambda leaf: next(restored) if _is_stored(leaf) else leaf, like)


def _stored(tree: PyTree) -> list[tuple[str, Any]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if _is_stored(leaf)]


def _is_stored(leaf: Any) -> bool:
    return eqx.is_array_like(leaf)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _to_numpy(leaf: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)


def _like(leaf: Any, array: np.ndarray, where: str) -> Any:
    """The stored array as the kind of thing that `leaf` is."""
    expected = _to_numpy(leaf)
    if (array.shape, array.dtype) != (expected.shape, expected.dtype):
        raise InputError(
            f"{where} has shape {array.shape} and dtype {array.dtype}, this problem needs {expected.shape} and "
            f"{expected.dtype}. Resume with the problem that the state was saved with."
        )
    if _is_key(leaf):
        return jax.random.wrap_key_data(jax.numpy.asarray(array), impl=jax.random.key_impl(leaf))
    if isinstance(leaf, bool | int | float):
        return type(leaf)(array)
    return jax.numpy.asarray(array)
