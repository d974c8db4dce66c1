"""What a function's traced program tells of it: whether it uses its arguments, whether it repeats itself."""

from collections.abc import Callable

import jax
import jax.extend.core as jex
import jax.numpy as jnp
import numpy as np
from jaxtyping import ArrayLike, PyTree


def depends_on_arguments(function: Callable[..., PyTree], *args: PyTree) -> bool:
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


def same_when_traced_again(function: Callable[..., PyTree], *args: PyTree) -> bool:
    """Whether two traces of a function agree in their equations and numbers: one with random numbers of its own does
    not. Unlike two calls, two traces compile nothing. What a host callback returns is not seen (`calls_the_host`).

    Examples:
        >>> same_when_traced_again(lambda x: 2.0 * x, 1.0)
        True
        >>> same_when_traced_again(lambda x: np.random.default_rng().normal(size=3) * x, 1.0)
        False
    """
    # A fresh function each time: JAX remembers the trace of one that it knows.
    first, second = (jax.make_jaxpr(lambda *a: function(*a))(*args) for _ in range(2))
    if str(first) != str(second):
        return False
    return all(_equal(a, b) for a, b in zip(_constants(first), _constants(second), strict=True))


def calls_the_host(function: Callable[..., PyTree], *args: PyTree) -> bool:
    """Whether a function's program calls back to Python."""
    return "callback" in str(jax.make_jaxpr(function)(*args))


def _constants(closed: jex.ClosedJaxpr) -> list[ArrayLike]:
    """The arrays of a traced program, those of its loops, branches and jitted parts included."""
    found = list(closed.consts)
    for equation in closed.jaxpr.eqns:
        for value in jax.tree.leaves(equation.params, is_leaf=lambda node: isinstance(node, jex.ClosedJaxpr)):
            found += _constants(value) if isinstance(value, jex.ClosedJaxpr) else []
    return found


def _equal(one: ArrayLike, other: ArrayLike) -> bool:
    if one is other:
        return True
    if isinstance(one, jax.Array) and jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    one, other = np.asarray(one), np.asarray(other)
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")
