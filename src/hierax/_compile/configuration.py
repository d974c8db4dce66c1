"""JAX's configuration inside of the library: what a user has set for their own code must not break ours.

With jit disabled (`JAX_DISABLE_JIT=1`, for stepping through one's own code) or implicit transfers guarded, nothing in
hierax could compile or move data, and the errors would name none of it. Precision is another matter (`precision.py`).
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def in_own_configuration(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function of the public surface with jit on and transfers allowed while it runs."""

    @functools.wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with jax.disable_jit(False), jax.transfer_guard("allow"):
            return function(*args, **kwargs)

    return wrapped
