"""Values as JSON knows them: what run.json and the data of a page are made of."""

import dataclasses
import math

import jax
import numpy as np

from hierax._base.files import Json


def as_json(value: object) -> Json:
    """The value as JSON knows it: arrays become lists, modules and named tuples dictionaries, anything else text."""
    if isinstance(value, float) and not math.isfinite(value):
        return None  # JSON has no word for it
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return as_json(np.asarray(value).tolist())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {"type": type(value).__name__} | {
            f.name: as_json(getattr(value, f.name)) for f in dataclasses.fields(value)
        }
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return as_json(value._asdict())
    if isinstance(value, dict):
        return {str(key): as_json(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(entry) for entry in value]
    return str(value)
