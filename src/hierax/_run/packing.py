"""Values as JSON and plain arrays, and back: what checkpoints are made of. No pickle: reading runs nothing.

Numbers, texts, lists, tuples, dictionaries, NumPy arrays and bytes come back as they were; of named tuples and data
classes those whose types the reader names.

Of the state of a run only arrays and numbers are kept, in the order of its leaves, with their paths. The structure
(which settings there are, functions, optax transformations) comes from the call that goes on. `gathered` is the one
place where arrays leave the devices, `placed` the one where they return to them.
"""

import base64
import dataclasses
import hashlib
import io
import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from hierax._base.errors import InputError
from hierax._base.files import Json
from hierax._base.trees import on_device
from hierax._compile.placement import read

HASH = "sha256:"  # begins every hash


class Packed(NamedTuple):
    """A value as JSON, in which arrays are numbered, and these arrays."""

    content: Json
    arrays: list[np.ndarray]


def packed(value: object) -> Packed:
    """Take a value apart.

    Examples:
        >>> packed({"a": (1.0, np.arange(2))})
        Packed(content={'dict': [['a', {'tuple': [1.0, {'array': 0}]}]]}, arrays=[array([0, 1])])
    """
    arrays: list[np.ndarray] = []
    return Packed(_taken_apart(value, arrays), arrays)


def unpacked(found: Packed, types: Iterable[type] = ()) -> Any:
    """Put a value together again; `types` are the named tuples and data classes that may be in it."""
    return _put_together(found.content, found.arrays, {one.__name__: one for one in types})


def to_bytes(value: object) -> bytes:
    """A value in one piece."""
    content, arrays = packed(value)
    text = np.frombuffer(json.dumps(content, allow_nan=False).encode(), np.uint8)
    whole = io.BytesIO()
    np.savez(whole, text, *arrays, allow_pickle=False)
    return whole.getvalue()


def from_bytes(whole: bytes, types: Iterable[type] = ()) -> Any:
    """What `to_bytes` was given."""
    with np.load(io.BytesIO(whole), allow_pickle=False) as stored:
        text, *arrays = (stored[name] for name in stored.files)
    return unpacked(Packed(json.loads(text.tobytes()), arrays), types)


def _taken_apart(value: object, arrays: list[np.ndarray]) -> Json:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode("ascii")}
    if isinstance(value, np.ndarray):
        if value.dtype.kind == "O":
            raise InputError("an array of Python objects cannot be kept in a checkpoint.")
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, list):
        return [_taken_apart(entry, arrays) for entry in value]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = dict(zip(value._fields, value, strict=True))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    elif isinstance(value, tuple):
        return {"tuple": [_taken_apart(entry, arrays) for entry in value]}
    elif isinstance(value, dict):
        return {"dict": [[_taken_apart(part, arrays) for part in pair] for pair in value.items()]}
    else:
        raise InputError(f"a {type(value).__name__} cannot be kept in a checkpoint.")
    return {"type": type(value).__name__, "fields": {name: _taken_apart(part, arrays) for name, part in fields.items()}}


def _put_together(content: object, arrays: list[np.ndarray], types: dict[str, type]) -> object:
    if isinstance(content, list):
        return [_put_together(entry, arrays, types) for entry in content]
    if not isinstance(content, dict):
        return content
    if "type" in content:
        fields = {name: _put_together(part, arrays, types) for name, part in content["fields"].items()}
        return types[content["type"]](**fields)
    ((kind, inside),) = content.items()
    match kind:
        case "float":
            return float(inside)
        case "bytes":
            return base64.b64decode(inside)
        case "array":
            return arrays[inside]
        case "tuple":
            return tuple(_put_together(entry, arrays, types) for entry in inside)
        case "dict":
            return {_put_together(a, arrays, types): _put_together(b, arrays, types) for a, b in inside}
    raise InputError(f"unknown entry {kind!r} in a checkpoint.")


class Gathered(NamedTuple):
    """Paths of a tree's arrays, the arrays on the host (of random keys, their data), and how keys are made, by path."""

    paths: list[str]
    arrays: list[np.ndarray]
    keys: dict[str, str]


def gathered(tree: PyTree) -> Gathered:
    """Copies of the arrays and numbers of a tree, on the host: a run overwrites its own."""
    named = _stored(tree)
    keys = {name: str(jax.random.key_impl(leaf)) for name, leaf in named if _is_key(leaf)}
    return Gathered([name for name, _ in named], [np.array(_to_numpy(leaf)) for _, leaf in named], keys)


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


def hash_of_json(content: Mapping[str, Json]) -> str:
    """The hash of what a file of JSON holds, whatever the order of its keys and its spaces.

    Examples:
        >>> hash_of_json({"x": 1.0, "y": [2.0]}) == hash_of_json({"y": [2.0], "x": 1.0})
        True
    """
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def hash_of_arrays(tree: PyTree) -> str:
    """The hash of the structure of a tree and of its numbers, without a copy of them."""
    whole = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        array = np.ascontiguousarray(_to_numpy(leaf))
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
    """The numbers of an array, or of a random key, without a copy where they are on the host."""
    found: np.ndarray = np.asarray(read(jax.random.key_data(leaf) if _is_key(leaf) else leaf))
    return found


def _like(leaf: PyTree, array: np.ndarray, name: str, key: str | None) -> PyTree:
    """The stored array as the kind of thing that `leaf` is."""
    is_key = key is not None and _is_key(leaf)
    expected = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
    if array.dtype.kind == "V":  # npz does not know the names of JAX's own types
        array = array.view(expected.dtype)
    found = jax.random.wrap_key_data(on_device(array), impl=key) if is_key else array
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        raise InputError(
            f"checkpoint: {name} has shape {found.shape} and dtype {found.dtype}, this problem needs {expected.shape} "
            f"and {expected.dtype}. Resume with the problem that it was made with."
        )
    if is_key:
        return found
    return type(leaf)(array) if isinstance(leaf, bool | int | float) else on_device(array)
