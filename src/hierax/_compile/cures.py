"""What to do about a user's function that fails when it is traced: the mistakes that everybody makes once."""

import inspect
from collections.abc import Callable

import jax

CALLS = {
    "upper": "upper(x, y, zeta)",
    "lower": "lower(x, y, xi)",
    "constraints": "constraints(x, y)",
    "equalities": "equalities(x, y)",
    "upper_constraints": "upper_constraints(x, y)",
    "F": "F(x, y)",
    "f": "f(x, y)",
    "fun": "fun(x, y)",
    "zeta.draw": "draw(key, n)",
    "xi.draw": "draw(key, n)",
}
NUMPY = (
    "it hands a traced value to NumPy, or to float() or int(), which need numbers: use jax.numpy in the place of numpy "
    "(import jax.numpy as jnp), and keep results as arrays. "
)
BRANCH = (
    "it branches on a value (if, while, and, or, min, max): use jnp.where, jnp.minimum, jnp.maximum or jax.lax.cond. "
)


def cure(name: str, function: Callable[..., object], arguments: int, error: Exception) -> str:
    """What to do, as the beginning of a sentence that ends with the error itself; empty where the error says it all."""
    if isinstance(error, TypeError) and not _accepts(function, arguments):
        batch = " (the batch is None where nothing is sampled)" if arguments == 3 else ""
        return f"it is always called as {CALLS[name]}, so it must take {arguments} arguments{batch}. "
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return BRANCH
    if isinstance(error, jax.errors.TracerArrayConversionError | jax.errors.ConcretizationTypeError):
        return NUMPY
    return ""


def _accepts(function: Callable[..., object], arguments: int) -> bool:
    """Whether the function takes that number of arguments, as far as its signature tells."""
    try:
        inspect.signature(function).bind(*[None] * arguments)
    except TypeError:
        return False
    except ValueError:  # no signature to look at
        return True
    return True
