"""JAX's configuration inside of the library: what a user has set for their own code must not break ours.

With jit disabled (`JAX_DISABLE_JIT=1`, for stepping through one's own code) or implicit transfers guarded, nothing in
hierax could compile or move data, and the errors would name none of it; with NaNs and infinities forbidden, line
searches could not try a point outside of a function's domain. Precision is another matter (`precision.py`).
"""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
from jaxtyping import PyTree

from hierax._base.errors import InputError
from hierax._base.trees import on_device

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def in_own_configuration(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function of the public surface with jit on, transfers and values that are not finite allowed inside it."""

    @functools.wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with (
            jax.disable_jit(False),
            jax.transfer_guard("allow"),
            jax.debug_nans(False),
            jax.debug_infs(False),
        ):
            return function(*args, **kwargs)

    return wrapped


def refuse_to_be_traced(name: str, given: PyTree) -> None:
    """Refuse to run inside jit, vmap or grad: where an array that was given, or a new one, is a traced one."""
    leaves = [*jax.tree.leaves(given), on_device(0.0)]
    if any(isinstance(leaf, jax.core.Tracer) for leaf in leaves):
        raise InputError(inside_a_trace(name))


def inside_a_trace(name: str) -> str:
    """What to say of a call inside of jit, vmap or grad."""
    return (
        f"{name}: was called inside jax.jit, jax.vmap or jax.grad, where nothing has a value yet. It compiles by "
        "itself, so call it outside; many starts at once: hx.solve_many; the gradient of F(x, y*(x)): "
        "sol.certificate.hypergradient."
    )
