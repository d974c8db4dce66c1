"""Settings of methods and solvers: checks, whose errors name the setting, what it got and what it needs; defaults."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from hierax._base.errors import InputError
from hierax._base.trees import Number


def check_positive(owner: str, name: str, value: Any) -> None:
    """Refuse what is neither None nor a positive, finite number (traced numbers cannot be looked at)."""
    if value is None or isinstance(value, jax.core.Tracer):
        return
    try:
        fine = bool(np.all(np.isfinite(value)) and np.all(np.asarray(value) > 0))
    except TypeError:
        fine = False
    if not fine:
        raise InputError(f"{owner}({name}={value!r}): needs a positive, finite number, or None to have it estimated.")


def check_count(owner: str, name: str, value: Any) -> None:
    """Refuse what is neither None nor a whole number >= 1."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise InputError(f"{owner}({name}={value!r}): needs a whole number >= 1, or None for the default.")


def check_choice(owner: str, name: str, value: Any, choices: tuple) -> None:
    """Refuse what is not one of the choices."""
    if value not in choices:
        raise InputError(f"{owner}({name}={value!r}): choose one of {', '.join(map(repr, choices))}.")


def given(value: Number, default: Number, dtype: jnp.dtype) -> Array:
    """The setting as an array, or its default where it was left unset."""
    return jnp.asarray(default if value is None else value, dtype)
