"""Bounds of a function over boxes, from its traced program: interval arithmetic on its primitives.

Every primitive takes the smallest and the largest value of its arguments to bounds of its results (Moore, 1966), up to
rounding. What no rule covers has no bounds, so that whatever is said here holds.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base.jaxprs import ALIKE, CALLS, through

RISING = {  # results are monotone in every argument
    *("exp", "exp2", "expm1", "log", "log1p", "sqrt", "cbrt", "tanh", "logistic", "erf", "asinh", "atan", "sinh"),
    *("max", "min", "reduce_max", "reduce_min", "cummax", "cummin", "clamp", "sign", "floor", "ceil", "round"),
    *("stop_gradient", "convert_element_type", "reduce_precision", "real", "split", "and", "or", "sort"),
}
BY_INDEX = {"gather", "dynamic_slice", "dynamic_update_slice", "scatter", "scatter-add", "scatter_add"}


class Interval(NamedTuple):
    """Bounds of all entries of an array; of a truth value False and True, where both can be."""

    low: Any
    high: Any

    @property
    def exact(self) -> bool:
        """Whether it is a number that the program knows."""
        return self.low is self.high


def bounds(function: Callable[..., PyTree], low: PyTree, high: PyTree) -> list[Interval]:
    """Bounds of every leaf that a function of one tree returns, over the box between `low` and `high`.

    Examples:
        >>> (found,) = bounds(lambda y: y[0] ** 2 - jnp.cos(y[1]), jnp.array([-1.0, 0.0]), jnp.array([2.0, 1.0]))
        >>> round(float(found.low), 2), round(float(found.high), 2)
        (-1.0, 3.46)
    """
    closed = jax.make_jaxpr(function)(low)
    given = [Interval(a, b) for a, b in zip(jax.tree.leaves(low), jax.tree.leaves(high), strict=True)]
    return through(closed, given, lambda value: Interval(value, value), _results)


def _results(equation: Any, parts: list[Interval]) -> list[Interval]:
    """Bounds of the results of one primitive."""
    primitive, name = equation.primitive, equation.primitive.name
    inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    if name in CALLS or name in ("custom_jvp_call", "custom_vjp_call"):
        return through(inner, parts, lambda value: Interval(value, value), _results)
    settings = primitive.get_bind_params(equation.params)

    def bound(*values: Any) -> list[Any]:
        found = primitive.bind(*values, **settings)
        return found if primitive.multiple_results else [found]

    lows, highs = [part.low for part in parts], [part.high for part in parts]
    if all(part.exact for part in parts):
        return [Interval(value, value) for value in bound(*lows)]
    entrywise = name in ALIKE or (name in RISING and (name != "sort" or len(parts) == 1))
    if entrywise or (name in BY_INDEX and all(p.exact for p in parts if _counts(p.low))):
        return [_known(Interval(*pair)) for pair in zip(bound(*lows), bound(*highs), strict=True)]
    rule = RULES.get(name)
    if rule is not None and (name != "select_n" or len(parts) == 3):
        return [_known(rule(equation, *parts))]
    return [_anything(out.aval) for out in equation.outvars]


def _counts(value: Any) -> bool:
    return bool(jnp.issubdtype(jnp.result_type(value), jnp.integer))


def _known(found: Interval) -> Interval:
    """The same with no bound where arithmetic gave none."""
    low, high = found
    if not jnp.issubdtype(jnp.result_type(low), jnp.floating):
        return found
    return Interval(jnp.where(jnp.isnan(low), -jnp.inf, low), jnp.where(jnp.isnan(high), jnp.inf, high))


def _anything(aval: Any) -> Interval:
    ends: tuple[Any, Any] = -np.inf, np.inf
    if aval.dtype == bool:
        ends = False, True
    elif jnp.issubdtype(aval.dtype, jnp.integer):
        ends = np.iinfo(aval.dtype).min, np.iinfo(aval.dtype).max
    return Interval(*(jnp.full(aval.shape, end, aval.dtype) for end in ends))


def _times(a: Any, b: Any) -> Array:
    """A product in which zero times infinity is zero."""
    found = a * b
    return jnp.where(jnp.isnan(found), 0.0, found)


def _product(equation: Any, a: Interval, b: Interval) -> Interval:
    if equation.invars[0] is equation.invars[1]:
        return _even(a, lambda value: value * value)
    corners = [_times(one, other) for one in a for other in b]
    return Interval(*(_of_all(choice, corners) for choice in (jnp.minimum, jnp.maximum)))


def _of_all(choice: Callable[[Any, Any], Array], values: list[Any]) -> Array:
    first, *others = values
    for other in others:
        first = choice(first, other)
    return first


def _even(a: Interval, power: Callable[[Any], Array]) -> Interval:
    """Of an even function that rises from zero on."""
    ends = power(a.low), power(a.high)
    inside = (a.low <= 0) & (a.high >= 0)
    return Interval(jnp.where(inside, power(jnp.zeros_like(a.low)), jnp.minimum(*ends)), jnp.maximum(*ends))


def _inverse(a: Interval) -> Interval:
    apart = (a.low > 0) | (a.high < 0)
    return Interval(jnp.where(apart, 1 / a.high, -jnp.inf), jnp.where(apart, 1 / a.low, jnp.inf))


def _whole_power(equation: Any, a: Interval) -> Interval:
    y = abs(equation.params["y"])
    found = _even(a, lambda value: value**y) if y % 2 == 0 else Interval(a.low**y, a.high**y)
    return found if equation.params["y"] >= 0 else _inverse(found)


def _any_power(equation: Any, a: Interval, b: Interval) -> Interval:
    """x^c of x >= 0."""
    corners = [jnp.where(a.low >= 0, one**other, jnp.nan) for one in a for other in b]
    return Interval(*(_of_all(choice, corners) for choice in (jnp.minimum, jnp.maximum)))


def _matrix_product(equation: Any, a: Interval, b: Interval) -> Interval:
    """By middles and radii; no bounds where an argument has none."""

    def product(one: Any, other: Any) -> Array:
        return equation.primitive.bind(one, other, **equation.primitive.get_bind_params(equation.params))

    if equation.invars[0] is equation.invars[1] and equation.outvars[0].aval.ndim == 0:
        squares = _even(a, lambda value: value * value)
        return Interval(jnp.sum(squares.low), jnp.sum(squares.high))
    (m, r), (n, s) = ((0.5 * (part.low + part.high), 0.5 * (part.high - part.low)) for part in (a, b))
    radius = product(jnp.abs(m), s) + product(r, jnp.abs(n) + s)
    middle = product(m, n)
    return Interval(middle - radius, middle + radius)


def _cosine(a: Interval, shift: float) -> Interval:
    """Of cos(a - shift): its ends, unless a top or a bottom lies between them."""
    turn = 2 * np.pi
    low, high = (a.low - shift) / turn, (a.high - shift) / turn
    ends = jnp.cos(turn * low), jnp.cos(turn * high)
    top, bottom = (jnp.floor(high + part) >= jnp.ceil(low + part) for part in (0.0, 0.5))
    return Interval(jnp.where(bottom, -1.0, jnp.minimum(*ends)), jnp.where(top, 1.0, jnp.maximum(*ends)))


def _compared(equation: Any, a: Interval, b: Interval) -> Interval:
    name = equation.primitive.name
    larger, smaller = (a, b) if name in ("gt", "ge") else (b, a)
    compare = jnp.greater if name in ("gt", "lt") else jnp.greater_equal
    return Interval(compare(larger.low, smaller.high), compare(larger.high, smaller.low))


def _equal(equation: Any, a: Interval, b: Interval) -> Interval:
    if equation.invars[0] is equation.invars[1]:  # whether it is a number
        return Interval(jnp.ones(a.low.shape, bool), jnp.ones(a.low.shape, bool))
    can = (a.low <= b.high) & (b.low <= a.high)
    return Interval((a.low == b.high) & (a.high == b.low), can)


def _not(a: Interval) -> Interval:
    return Interval(~a.high, ~a.low)


def _chosen(equation: Any, which: Interval, no: Interval, yes: Interval) -> Interval:
    if which.low.dtype != bool:
        return _anything(equation.outvars[0].aval)
    low = jnp.where(which.low, yes.low, jnp.where(which.high, jnp.minimum(no.low, yes.low), no.low))
    high = jnp.where(which.low, yes.high, jnp.where(which.high, jnp.maximum(no.high, yes.high), no.high))
    return Interval(low, high)


RULES: dict[str, Callable[..., Interval]] = {
    "neg": lambda equation, a: Interval(-a.high, -a.low),
    "sub": lambda equation, a, b: Interval(a.low - b.high, a.high - b.low),
    "mul": _product,
    "div": lambda equation, a, b: _product(equation, a, _inverse(b)),
    "dot_general": _matrix_product,
    "integer_pow": _whole_power,
    "pow": _any_power,
    "square": lambda equation, a: _even(a, jnp.square),
    "abs": lambda equation, a: _even(a, jnp.abs),
    "rsqrt": lambda equation, a: _inverse(Interval(jnp.sqrt(a.low), jnp.sqrt(a.high))),
    "cos": lambda equation, a: _cosine(a, 0.0),
    "sin": lambda equation, a: _cosine(a, np.pi / 2),
    "eq": _equal,
    "ne": lambda equation, a, b: _not(_equal(equation, a, b)),
    "not": lambda equation, a: _not(a),
    "is_finite": lambda equation, a: Interval(jnp.isfinite(a.low) & jnp.isfinite(a.high), jnp.ones(a.low.shape, bool)),
    "select_n": _chosen,
    **dict.fromkeys(("gt", "ge", "lt", "le"), _compared),
}
