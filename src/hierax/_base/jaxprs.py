"""What a function's traced program tells of it: whether it uses its arguments, repeats itself, is convex or affine.

The rules for curvature are those of disciplined convex programming, on the primitives of the program: sums of convex
results, their maximum and their multiples by numbers >= 0 are convex, and so are even powers, exponentials and absolute
values of affine ones. What no rule covers counts as unknown, so that whatever is said here holds.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.extend.core as jex
import numpy as np
from jaxtyping import ArrayLike, PyTree

from hierax._base.trees import is_key

Known = TypeVar("Known")


def depends_on_arguments(function: Callable[..., PyTree], *args: PyTree) -> bool:
    """Whether some result is computed from some array of `args` (arrays or their shapes); `0 * x` counts as such.

    Examples:
        >>> import jax.numpy as jnp
        >>> depends_on_arguments(lambda x: jnp.ones(3), 1.0), depends_on_arguments(lambda x: 0 * x, 1.0)
        (False, True)
    """
    return not all(result.is_constant for result in curvatures(function, *args))


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
    arrays = [[*closed.consts, *nested_constants(closed.jaxpr)] for closed in (first, second)]
    return str(first) == str(second) and all(map(same_numbers, *arrays))


def calls_the_host(function: Callable[..., PyTree], *args: PyTree) -> bool:
    """Whether a function's program calls back to Python."""
    return "callback" in str(jax.make_jaxpr(function)(*args))


def nested_constants(jaxpr: jex.Jaxpr) -> list[ArrayLike]:
    """The arrays that the loops, branches and jitted parts of a program hold themselves."""
    found: list[ArrayLike] = []
    for equation in jaxpr.eqns:
        for value in equation.params.values():
            parts = value if isinstance(value, tuple | list) else (value,)
            found += [array for part in parts if isinstance(part, jex.ClosedJaxpr) for array in part.consts]
        for nested in jex.jaxprs_in_params(equation.params):
            found += nested_constants(nested)
    return found


def same_numbers(one: ArrayLike, other: ArrayLike) -> bool:
    """Whether two arrays, or two random keys, are the same; NaN is the same as NaN."""
    if one is other:
        return True
    if is_key(one):
        one, other = jax.random.key_data(one), jax.random.key_data(other)
    one, other = np.asarray(one), np.asarray(other)
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f")


ALIKE = {  # results are entries of the arguments, put elsewhere, or sums of them
    *("add", "add_any", "cumsum", "reduce_sum", "concatenate", "stack", "pad", "copy", "copy_p"),
    *("broadcast_in_dim", "expand_dims", "reshape", "squeeze", "transpose", "rev", "slice"),
}
CALLS = {"pjit", "jit", "closed_call", "core_call", "remat", "checkpoint"}


class Curvature(NamedTuple):
    """What is known of all entries of an array, as functions of the arguments.

    Attributes:
        is_convex: an affine function is convex and concave, a constant is affine.
        is_concave: likewise.
        is_constant: whether they do not depend on the arguments.
        sign: 1 or -1, which all entries have or are zero; None: unknown.
    """

    is_convex: bool = False
    is_concave: bool = False
    is_constant: bool = False
    sign: int | None = None

    @property
    def is_affine(self) -> bool:
        """Whether it is affine."""
        return self.is_convex and self.is_concave

    @property
    def negated(self) -> "Curvature":
        """That of the negative."""
        return Curvature(self.is_concave, self.is_convex, self.is_constant, self.sign and -self.sign)


UNKNOWN = Curvature()
AFFINE = Curvature(is_convex=True, is_concave=True)
CONSTANT = AFFINE._replace(is_constant=True)
CONVEX_FROM_ZERO = Curvature(is_convex=True, sign=1)


def curvatures(function: Callable[..., PyTree], *args: PyTree) -> list[Curvature]:
    """The curvature of every leaf that a function returns, jointly in all of `args` (arrays or their shapes).

    Examples:
        >>> import jax.numpy as jnp
        >>> found = curvatures(lambda x, y: (2 * x - y, jnp.sum(x**2) + y, x * y), 1.0, 2.0)
        >>> [one.is_affine for one in found], [one.is_convex for one in found]
        ([True, False, False], [True, True, False])
    """
    closed = jax.make_jaxpr(function)(*args)
    return through(closed, [AFFINE] * len(closed.jaxpr.invars), _of_number, _results)


def through(
    closed: jex.ClosedJaxpr,
    given: Sequence[Known],
    of_number: Callable[[Any], Known],
    results: Callable[[jex.JaxprEqn, list[Known]], Sequence[Known]],
) -> list[Known]:
    """What is known of the results of a program, from what is known of its arguments.

    `of_number`: what is known of a number that the program holds; `results`: of the results of one primitive.
    """
    program = closed.jaxpr
    known = dict(zip(map(id, program.invars), given, strict=True))
    known |= {id(v): of_number(value) for v, value in zip(program.constvars, closed.consts, strict=True)}

    def read(atom: Any) -> Known:
        return of_number(atom.val) if isinstance(atom, jex.Literal) else known[id(atom)]

    for equation in program.eqns:
        found = results(equation, [read(atom) for atom in equation.invars])
        known |= {id(v): one for v, one in zip(equation.outvars, found, strict=True)}
    return [read(atom) for atom in program.outvars]


def degree(function: Callable[..., PyTree], *args: PyTree) -> float:
    """The largest degree, as polynomials of `args`, of what a function returns; infinite where it is not one.

    Examples:
        >>> import jax.numpy as jnp
        >>> degree(lambda x, y: x * (y - 1.0) ** 2, 1.0, 2.0), degree(lambda x: jnp.exp(x), 1.0)
        (3.0, inf)
    """
    closed = jax.make_jaxpr(function)(*args)
    return max(through(closed, [1.0] * len(closed.jaxpr.invars), lambda value: 0.0, _degrees), default=0.0)


def _degrees(equation: jex.JaxprEqn, parts: list[float]) -> list[float]:
    """Degrees of the results of one primitive."""
    name, inner = equation.primitive.name, equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    if name in CALLS and isinstance(inner, jex.ClosedJaxpr):
        return through(inner, parts, lambda value: 0.0, _degrees)
    power = 2 if name == "square" else equation.params["y"] if name == "integer_pow" else 0
    if not any(parts):
        found = 0.0
    elif name in ALIKE | {"sub", "neg", "convert_element_type"}:
        found = max(parts)
    elif name in ("mul", "dot_general"):
        found = sum(parts)
    elif power > 0 or (name in ("div", "gather", "dynamic_slice") and not any(parts[1:])):
        found = parts[0] * max(power, 1)
    elif name == "select_n" and not parts[0]:
        found = max(parts[1:])
    else:
        found = np.inf
    return [float(found)] * len(equation.outvars)


def _results(equation: jex.JaxprEqn, parts: list[Curvature]) -> list[Curvature]:
    """What is known of the results of one primitive."""
    inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    if equation.primitive.name in CALLS and isinstance(inner, jex.ClosedJaxpr):
        return through(inner, parts, _of_number, _results)
    single = equation.primitive.name not in CALLS and len(equation.outvars) == 1
    found = _by_rule(equation, parts) if single else UNKNOWN
    by_no_rule = not (found.is_convex or found.is_concave)
    return [CONSTANT if by_no_rule and all(part.is_constant for part in parts) else found] * len(equation.outvars)


def _by_rule(equation: Any, parts: list[Curvature]) -> Curvature:
    name = equation.primitive.name
    if name in ALIKE:
        return _sum(parts)
    if name == "sub":
        return _sum([parts[0], parts[1].negated])
    if name == "neg":
        return parts[0].negated
    if name in ("mul", "dot_general"):
        square = equation.invars[0] is equation.invars[1] and (name == "mul" or _is_norm(equation))
        return _square(parts[0]) if square and not parts[0].is_constant else _product(*parts)
    if name == "div":
        return _product(*parts) if parts[1].is_constant else UNKNOWN
    if name in ("max", "reduce_max"):
        return _maximum(parts)
    if name in ("min", "reduce_min"):
        return _maximum([part.negated for part in parts]).negated
    if name in ("square", "abs") or (name == "integer_pow" and equation.params["y"] % 2 == 0 < equation.params["y"]):
        return _square(parts[0])
    if name == "exp" and parts[0].is_convex and not parts[0].is_constant:
        return CONVEX_FROM_ZERO
    if name in ("gather", "dynamic_slice") and all(part.is_constant for part in parts[1:]):
        return parts[0]._replace(sign=None)  # entries chosen by indices that are constant
    if name == "select_n" and parts[0].is_constant:
        return _sum(parts[1:])
    if name == "convert_element_type" and np.issubdtype(equation.outvars[0].aval.dtype, np.floating):
        return parts[0]
    return UNKNOWN


def _is_norm(equation: Any) -> bool:
    """Whether a product of an array with itself is the sum of its entries' squares."""
    (first, second), _ = equation.params["dimension_numbers"]
    return equation.outvars[0].aval.ndim == 0 and tuple(first) == tuple(second)


def _sum(parts: Sequence[Curvature]) -> Curvature:
    """Of several parts, or all of them side by side."""
    convex, concave, constant, signs = zip(*parts, strict=True)
    return Curvature(all(convex), all(concave), all(constant), signs[0] if len(set(signs)) == 1 else None)


def _maximum(parts: Sequence[Curvature]) -> Curvature:
    if all(part.is_constant for part in parts):
        return _sum(parts)
    sign = 1 if any(part.sign == 1 for part in parts) else None
    return Curvature(is_convex=True, sign=sign) if all(part.is_convex for part in parts) else UNKNOWN


def _square(part: Curvature) -> Curvature:
    """An even power, or the absolute value: convex for an affine argument, and for a convex one >= 0."""
    if part.is_constant:
        return CONSTANT._replace(sign=1)
    return CONVEX_FROM_ZERO if part.is_affine or (part.is_convex and part.sign == 1) else UNKNOWN


def _product(one: Curvature, other: Curvature) -> Curvature:
    """Of what is known and a constant; a quotient has the sign of a product."""
    if not other.is_constant:
        one, other = other, one
    if not other.is_constant or (other.sign is None and not one.is_affine):
        return UNKNOWN
    sign = None if one.sign is None or other.sign is None else one.sign * other.sign
    return (one.negated if other.sign == -1 else one)._replace(sign=sign)


def _of_number(value: object) -> Curvature:
    """What is known of an array that the program closes over."""
    try:
        numbers = np.asarray(value)
        sign = 1 if np.all(numbers >= 0) else -1 if np.all(numbers <= 0) else None
    except TypeError:  # a random key
        sign = None
    return CONSTANT._replace(sign=sign)
