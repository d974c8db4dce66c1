"""Values as JSON knows them, and the versions that stand beside them: what every file and document is made of."""

import dataclasses
import math
import platform
from importlib.metadata import version

import jax
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base.errors import InputError
from hierax._base.files import Json


def as_json(value: object) -> Json:
    """The value as JSON knows it: arrays become lists, modules and named tuples dictionaries, anything else text.

    Examples:
        >>> as_json({"a": np.array([1.0, np.nan]), "b": (True, None, 0j)})
        {'a': [1.0, None], 'b': [True, None, '0j']}
    """
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        value = np.asarray(value).tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no word for it
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    if isinstance(value, dict):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **{name: as_json(entry) for name, entry in fields.items()}}
    return str(value)


def arrays_by_path(tree: PyTree) -> dict[str, Array | np.ndarray | np.generic | jax.ShapeDtypeStruct]:
    """Every array of a tree by its path, for example "layers.0.weight"; that of a tree which is one array is empty."""
    named = [
        (jax.tree_util.keystr(path, simple=True, separator="."), leaf)
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
        if isinstance(leaf, jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct)
    ]
    if len(dict(named)) < len(named):
        raise InputError("two arrays of a variable have the same path: a key holds a dot. Rename it.")
    return dict(named)


def tree_as_json(tree: PyTree) -> Json:
    """A number or nested lists for a tree that is one array; else an object with one entry for each, by its path.

    Examples:
        >>> tree_as_json(np.float64(0.5)), tree_as_json({"a": np.ones(2), "b": [np.zeros(())]})
        (0.5, {'a': [1.0, 1.0], 'b.0': 0.0})
    """
    found = {path: as_json(np.asarray(leaf, np.float64)) for path, leaf in arrays_by_path(tree).items()}
    return found[""] if set(found) == {""} else found


def versions() -> dict[str, str]:
    """Versions of what the numbers of a run may depend on, by name."""
    names = ("hierax", "jax", "jaxlib", "equinox", "optax", "numpy", "scipy")
    system = {"python": platform.python_version(), "machine": platform.machine()}
    return {name: version(name) for name in names} | system
