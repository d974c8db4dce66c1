"""Values as JSON and plain arrays, and back: what checkpoints are made of. No pickle: reading runs nothing.

Numbers, texts, lists, tuples, dictionaries, NumPy arrays and bytes come back as they were; of named tuples and data
classes those whose types the reader names.
"""

import base64
import dataclasses
import io
import json
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from hierax._base.errors import InputError
from hierax._base.files import Json


class Packed(NamedTuple):
    """A value as JSON, in which arrays are numbered, and these arrays."""

    content: Json
    arrays: list[np.ndarray]


def packed(value: object) -> Packed:
    """Take a value apart.

    Examples:
        >>> packed({"a": (1.0, np.arange(2))})
        Packed(content={'dict': {'a': {'tuple': [1.0, {'array': 0}]}}}, arrays=[array([0, 1])])
    """
    arrays: list[np.ndarray] = []
    return Packed(_taken_apart(value, arrays), arrays)


def unpacked(found: Packed, types: Iterable[type] = ()) -> Any:
    """Put a value together again; `types` are the named tuples and data classes that may be in it."""
    return _put_together(found.content, found.arrays, {one.__name__: one for one in types})


def to_bytes(records: dict[str, Packed]) -> bytes:
    """Packed values, by name, in one piece."""
    arrays = [array for record in records.values() for array in record.arrays]
    names = [[name, len(record.arrays), record.content] for name, record in records.items()]
    text = np.frombuffer(json.dumps(names, allow_nan=False).encode(), np.uint8)
    whole = io.BytesIO()
    np.savez(whole, text, *arrays, allow_pickle=False)
    return whole.getvalue()


def from_bytes(content: bytes) -> dict[str, Packed]:
    """What `to_bytes` was given."""
    with np.load(io.BytesIO(content), allow_pickle=False) as stored:
        text, *arrays = (stored[f"arr_{i}"] for i in range(len(stored.files)))
    found = {}
    for name, count, inside in json.loads(text.tobytes()):
        found[name], arrays = Packed(inside, arrays[:count]), arrays[count:]
    return found


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
    elif isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _taken_apart(entry, arrays) for key, entry in value.items()}}
    elif isinstance(value, dict):
        return {"pairs": [[_taken_apart(part, arrays) for part in pair] for pair in value.items()]}
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
            return {key: _put_together(entry, arrays, types) for key, entry in inside.items()}
        case "pairs":
            return {_put_together(a, arrays, types): _put_together(b, arrays, types) for a, b in inside}
    raise InputError(f"unknown entry {kind!r} in a checkpoint.")
