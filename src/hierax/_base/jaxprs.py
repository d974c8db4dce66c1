"""What a function's traced program tells of it: whether it uses its arguments, repeats itself, is convex or affine.

The rules for curvature are those of disciplined convex programming, on the primitives of the program: sums of convex
results, their maximum and their multiples by numbers >= 0 are convex, and so are even powers, exponentials and absolute
values of affine ones. What no rule covers counts as unknown, so that whatever is said here holds.
"""

import enum
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
    return all(map(same_numbers, _constants(first), _constants(second)))


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


def same_numbers(one: ArrayLike, other: ArrayLike) -> bool:
    """Whether two arrays, or two random keys, are the same; NaN is the same as NaN."""
    if one is other:
        return True
    if isinstance(one, jax.Array) and jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    one, other = np.asarray(one), np.asarray(other)
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


ALIKE = {  # results are entries of the arguments, put elsewhere, or sums of them
    *("add", "add_any", "cumsum", "reduce_sum", "concatenate", "stack", "pad", "copy", "copy_p"),
    *("broadcast_in_dim", "expand_dims", "reshape", "squeeze", "transpose", "rev", "slice"),
}
CALLS = {"pjit", "jit", "closed_call", "core_call", "remat", "checkpoint"}


class Curvature(enum.Enum):
    """What is known of all entries of an array, as functions of the arguments."""

    CONSTANT = "constant"
    AFFINE = "affine"
    CONVEX = "convex"
    CONCAVE = "concave"
    UNKNOWN = "unknown"

    @property
    def is_affine(self) -> bool:
        """Whether it is affine (a constant is)."""
        return self in (Curvature.CONSTANT, Curvature.AFFINE)

    @property
    def is_convex(self) -> bool:
        """Whether it is convex (whatever is affine is)."""
        return self.is_affine or self is Curvature.CONVEX

    @property
    def negated(self) -> "Curvature":
        """That of the negative."""
        turned = {Curvature.CONVEX: Curvature.CONCAVE, Curvature.CONCAVE: Curvature.CONVEX}
        return turned.get(self, self)


class _Known(NamedTuple):
    """An array: its curvature, and the sign (1, -1; None: unknown) that all of its entries have or are zero."""

    curvature: Curvature
    sign: int | None = None


UNKNOWN = _Known(Curvature.UNKNOWN)


def curvatures(function: Callable[..., PyTree], *args: PyTree) -> list[Curvature]:
    """The curvature of every leaf that a function returns, jointly in all of `args` (arrays or their shapes).

    Examples:
        >>> import jax.numpy as jnp
        >>> [one.value for one in curvatures(lambda x, y: (2 * x - y, jnp.sum(x**2) + y, x * y), 1.0, 2.0)]
        ['affine', 'convex', 'unknown']
    """
    closed = jax.make_jaxpr(function)(*args)
    given = [_Known(Curvature.AFFINE)] * len(closed.jaxpr.invars)
    return [known.curvature for known in _through(closed, given)]


def _through(closed: jex.ClosedJaxpr, given: Sequence[_Known]) -> list[_Known]:
    """What is known of the results of a program, from what is known of its arguments."""
    program = closed.jaxpr
    known = dict(zip(map(id, program.invars), given, strict=True))
    known |= {id(v): _of_number(value) for v, value in zip(program.constvars, closed.consts, strict=True)}

    def read(atom: object) -> _Known:
        return _of_number(atom.val) if isinstance(atom, jex.Literal) else known.get(id(atom), UNKNOWN)

    for equation in program.eqns:
        parts = [read(atom) for atom in equation.invars]
        same = len(parts) == 2 and equation.invars[0] is equation.invars[1]
        results = _results(equation, parts, same)
        known |= {id(v): one for v, one in zip(equation.outvars, results, strict=True)}
    return [read(atom) for atom in program.outvars]


def _results(equation: jex.JaxprEqn, parts: list[_Known], same: bool) -> list[_Known]:
    """What is known of the results of one primitive."""
    if equation.primitive.name in CALLS:
        inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
        return _through(inner, parts) if isinstance(inner, jex.ClosedJaxpr) else [UNKNOWN] * len(equation.outvars)
    if len(equation.outvars) > 1:
        return [UNKNOWN] * len(equation.outvars)
    found = _by_rule(equation, parts, same)
    if found.curvature is Curvature.UNKNOWN and all(part.curvature is Curvature.CONSTANT for part in parts):
        return [_Known(Curvature.CONSTANT)]
    return [found]


def _by_rule(equation: Any, parts: list[_Known], same: bool) -> _Known:
    name = equation.primitive.name
    if name in ALIKE:
        return _sum(parts)
    if name == "sub":
        return _sum([parts[0], _negative(parts[1])])
    if name == "neg":
        return _negative(parts[0])
    if name in ("mul", "dot_general"):
        square = same and (name == "mul" or _is_norm(equation))
        return _square(parts[0]) if square and not _constant(parts[0]) else _product(*parts)
    if name == "div":
        return _product(*parts) if _constant(parts[1]) else UNKNOWN
    if name in ("max", "reduce_max"):
        return _maximum(parts)
    if name in ("min", "reduce_min"):
        return _negative(_maximum([_negative(part) for part in parts]))
    if name == "integer_pow" and equation.params["y"] > 0 and equation.params["y"] % 2 == 0:
        return _square(parts[0])
    if name in ("square", "abs"):
        return _square(parts[0])
    if name == "exp" and parts[0].curvature.is_convex and not _constant(parts[0]):
        return _Known(Curvature.CONVEX, 1)
    if name in ("gather", "dynamic_slice") and all(_constant(part) for part in parts[1:]):
        return _Known(parts[0].curvature)  # entries chosen by indices that are constant
    if name == "select_n" and _constant(parts[0]):
        return _sum(parts[1:])
    if name == "convert_element_type" and np.issubdtype(equation.outvars[0].aval.dtype, np.floating):
        return parts[0]
    return UNKNOWN


def _is_norm(equation: Any) -> bool:
    """Whether a product of an array with itself is the sum of its entries' squares."""
    (first, second), _ = equation.params["dimension_numbers"]
    return equation.outvars[0].aval.ndim == 0 and tuple(first) == tuple(second)


def _constant(part: _Known) -> bool:
    return part.curvature is Curvature.CONSTANT


def _negative(part: _Known) -> _Known:
    return _Known(part.curvature.negated, None if part.sign is None else -part.sign)


def _sum(parts: Sequence[_Known]) -> _Known:
    """Of several parts, or all of them side by side."""
    kinds = {part.curvature for part in parts}
    sign = parts[0].sign if len({part.sign for part in parts}) == 1 else None
    if Curvature.UNKNOWN in kinds or {Curvature.CONVEX, Curvature.CONCAVE} <= kinds:
        return UNKNOWN
    order = (Curvature.CONVEX, Curvature.CONCAVE, Curvature.AFFINE, Curvature.CONSTANT)
    return _Known(next(kind for kind in order if kind in kinds), sign)


def _maximum(parts: Sequence[_Known]) -> _Known:
    if all(_constant(part) for part in parts):
        return _sum(parts)
    fine = all(part.curvature.is_convex for part in parts)
    return _Known(Curvature.CONVEX, 1 if any(part.sign == 1 for part in parts) else None) if fine else UNKNOWN


def _square(part: _Known) -> _Known:
    """An even power, or the absolute value: convex for an affine argument, and for a convex one >= 0."""
    if _constant(part):
        return _Known(Curvature.CONSTANT, 1)
    grows = part.curvature is Curvature.CONVEX and part.sign == 1
    return _Known(Curvature.CONVEX, 1) if part.curvature.is_affine or grows else UNKNOWN


def _product(one: _Known, other: _Known) -> _Known:
    """Of what is known and a constant; a quotient has the sign of a product."""
    if not _constant(other):
        one, other = other, one
    if not _constant(other):
        return UNKNOWN
    sign = None if one.sign is None or other.sign is None else one.sign * other.sign
    if one.curvature.is_affine:
        return _Known(one.curvature, sign)
    if other.sign is None:
        return UNKNOWN
    return _Known(one.curvature if other.sign == 1 else one.curvature.negated, sign)


def _of_number(value: object) -> _Known:
    """What is known of an array that the program closes over."""
    try:
        numbers = np.asarray(value)
        sign = 1 if np.all(numbers >= 0) else -1 if np.all(numbers <= 0) else None
    except TypeError:  # a random key
        sign = None
    return _Known(Curvature.CONSTANT, sign)
