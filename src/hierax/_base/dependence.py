"""Whether what a function returns depends on its arguments at all, by its traced program."""

from collections.abc import Callable
from typing import Any

import jax


def depends_on_arguments(function: Callable, *args: Any) -> bool:
    """Whether some result is computed from some array of `args` (arrays or their shapes); `0 * x` counts as such.

    Examples:
        >>> import jax.numpy as jnp
        >>> depends_on_arguments(lambda x: jnp.ones(3), 1.0), depends_on_arguments(lambda x: 0 * x, 1.0)
        (False, True)
    """
    program = jax.make_jaxpr(function)(*args).jaxpr
    dependent = {id(variable) for variable in program.invars}
    for equation in program.eqns:
        if any(id(variable) in dependent for variable in equation.invars):
            dependent |= {id(variable) for variable in equation.outvars}
    return any(id(variable) in dependent for variable in program.outvars)
