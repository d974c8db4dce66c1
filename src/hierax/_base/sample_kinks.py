"""Kinks that single samples put into an average, smoothed over a width that vanishes as the samples become more.

E max(u(x, y, zeta), 0) is smooth where u has a density, but its average over N samples has N kinks, and curvature zero
between them: what solves smooth problems fails on it. So wherever a program chooses between a and b by the sign of a
difference u that depends on the point and on the sample,

    max(a, b)  ->  a + w softplus(u / w),  u = b - a        where(u > 0, b, a)  ->  a + (b - a) / (1 + exp(-u / w))
    w = N^(-2/5) / 2 times the mean of |u - mean of u| over the samples

min and abs are maxima. What the expectation changes by is of the order w^2 = N^(-4/5), less than the sampling error of
N^(-1/2) (as in smoothed quantile regression: Fernandes, Guerre, Horta 2021; He, Pan, Tan, Zhou 2023). A convex function
stays one: w softplus(u / w) is convex in (u, w) and grows with w, and w is convex in u.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base.jaxprs import ALIKE, CALLS, through

Function = Callable[[PyTree, PyTree, PyTree], PyTree]
GREATER, LESS = {"gt", "ge"}, {"lt", "le"}  # comparisons
POSITIVE = {"exp", "square", "abs", "logistic"}
KEEPING = ALIKE | {"mul", "div", "dot_general", "max"}  # of positive values they are positive


class _Value(NamedTuple):
    """A value of a program, what it depends on, whether it is >= 0, and of a comparison by how much it holds."""

    value: Any
    of_point: bool = False
    of_sample: bool = False
    positive: bool = False
    by: Any = None


def has_sample_kinks(function: Function, x: PyTree, y: PyTree, batch: PyTree) -> bool:
    """Whether a function's program has kinks that depend on the point and on the sample.

    Examples:
        >>> import numpy as np
        >>> batch = np.zeros(5)
        >>> has_sample_kinks(lambda x, y, z: jnp.mean(jnp.minimum(y, z)), 1.0, 1.0, batch)
        True
        >>> has_sample_kinks(lambda x, y, z: jnp.maximum(y, 0) * jnp.mean(jax.nn.softplus(z - y)), 1.0, 1.0, batch)
        False
    """
    found: list[str] = []
    jax.eval_shape(lambda *args: _smoothed(function, args, found), x, y, batch)
    return bool(found)


def without_sample_kinks(function: Function) -> Function:
    """The function with these kinks smoothed.

    Examples:
        >>> import numpy as np
        >>> batch = np.random.default_rng(0).normal(size=100_000)
        >>> smooth = without_sample_kinks(lambda x, y, z: jnp.mean(jnp.abs(y - z)))
        >>> slope, curvature = jax.grad(smooth, 1)(0.0, 0.0, batch), jax.hessian(smooth, 1)(0.0, 0.0, batch)
        >>> round(abs(float(slope)), 1), round(float(curvature), 1)  # that of the expectation: 2 times the density at 0
        (0.0, 0.8)
    """
    return lambda x, y, batch: _smoothed(function, (x, y, batch), [])


def _smoothed(function: Function, args: tuple[PyTree, PyTree, PyTree], found: list[str]) -> PyTree:
    """What the function returns with its kinks smoothed; the names of these are added to `found`."""
    closed, shape = jax.make_jaxpr(function, return_shape=True)(*args)
    x, y, batch = map(jax.tree.leaves, args)
    samples = len(batch[0]) if batch and jnp.ndim(batch[0]) else 0
    given = [_Value(leaf, of_point=True) for leaf in (*x, *y)] + [_Value(leaf, of_sample=True) for leaf in batch]
    results = through(closed, given, _Value, functools.partial(_results, samples=samples, found=found))
    return jax.tree.unflatten(jax.tree.structure(shape), [one.value for one in results])


def _results(equation: Any, parts: list[_Value], samples: int, found: list[str]) -> list[_Value]:
    """The results of one primitive."""
    name, inner = equation.primitive.name, inside(equation)
    if inner is not None:
        return through(inner, parts, _Value, functools.partial(_results, samples=samples, found=found))
    of_point, of_sample = any(part.of_point for part in parts), any(part.of_sample for part in parts)
    values = [part.value for part in parts]
    positive = name in POSITIVE or (name in KEEPING and all(part.positive for part in parts))
    if of_point and of_sample and (name in ("max", "min", "select_n") or (name == "abs" and not parts[0].positive)):
        smooth = _without_kink(name, parts, samples)
        if smooth is not None:
            found.append(name)
            return [_Value(smooth, True, True)]
    settings = equation.primitive.get_bind_params(equation.params)
    results = equation.primitive.bind(*values, **settings)
    by = None
    if name in GREATER | LESS and jnp.issubdtype(jnp.result_type(values[0]), jnp.floating):
        by = values[0] - values[1] if name in GREATER else values[1] - values[0]
    elif name in ALIKE and len(parts) == 1 and parts[0].by is not None:
        by = equation.primitive.bind(parts[0].by, **settings)
    every = results if equation.primitive.multiple_results else [results]
    return [_Value(one, of_point, of_sample, positive, by) for one in every]


def inside(equation: Any) -> Any:
    """The program of a jitted part, or of a bare maximum such as jax.nn.relu; other rules for derivatives stay."""
    inner = equation.params.get("jaxpr", equation.params.get("call_jaxpr"))
    if equation.primitive.name in CALLS:
        return inner
    if equation.primitive.name == "custom_jvp_call" and len(inner.jaxpr.eqns) == 1:
        (only,) = inner.jaxpr.eqns
        return inner if only.primitive.name == "max" or inside(only) is not None else None
    return None


def _without_kink(name: str, parts: list[_Value], samples: int) -> Array | None:
    """The result of a primitive without its kink; None where it has none, or no width is known."""
    first, *others = [part.value for part in parts]
    if any(not isinstance(value, jax.Array) and np.isinf(value).any() for value in (first, *others)):
        return None  # a bound that never holds
    if name == "select_n":
        if parts[0].by is None or not (parts[0].of_point and parts[0].of_sample):
            return None
        u, (low, high) = parts[0].by, others
    elif name == "abs":
        u, low, high = 2 * first, -first, first
    else:
        u = others[0] - first if name == "max" else first - others[0]
        low, high = first, others[0]
    axes = [axis for axis, count in enumerate(jnp.shape(u)) if count == samples]
    if not axes:
        return None
    width = 0.5 * samples**-0.4 * jnp.mean(jnp.abs(u - jnp.mean(u, axes[0], keepdims=True)), axes[0], keepdims=True)
    some = width > 0
    width = jnp.where(some, width, 1.0)
    if name == "select_n":
        return jnp.where(some, low + (high - low) * jax.nn.sigmoid(u / width), jnp.where(u > 0, high, low))
    bend = jnp.where(some, width * jax.nn.softplus(u / width), jnp.maximum(u, 0.0))
    return low - bend if name == "min" else low + bend
