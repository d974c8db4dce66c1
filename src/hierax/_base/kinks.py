"""Kinks that the program of a lower objective shows, |u| and max(a, b), as unknowns t above their pieces.

Where G does not fall as such a k(x, y) grows, min over y of G is min over (y, t) of G with t in the place of k, subject
to a <= t and b <= t: smooth where G and the pieces are, and with the same solutions y.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from hierax._base.intervals import bounds
from hierax._base.jaxprs import through
from hierax._base.sample_kinks import inside
from hierax._base.trees import size

KINKS = ("abs", "max", "reduce_max")
MOST = 100  # unknowns: up to there the lower level stays small

Function = Callable[[PyTree, PyTree], PyTree]


class Opened(NamedTuple):
    """What a function returns with t in the place of its kinks; the kinks; their pieces, and the t of each piece."""

    value: PyTree
    kinks: list[Array]
    pieces: list[Array]
    tops: list[Array]


class _Part(NamedTuple):
    """A value of a program, and whether y, or the point, moves it."""

    value: Any
    of_y: bool = False


def opened(function: Function, x: PyTree, y: PyTree, t: Array | None) -> Opened:
    """The function with `t` in the place of its kinks in y, one after another; None: the kinks as they are."""
    closed, shape = jax.make_jaxpr(function, return_shape=True)(x, y)
    seen = Opened(None, [], [], [])

    def results(equation: Any, parts: list[_Part]) -> list[_Part]:
        inner, name, of_y = inside(equation), equation.primitive.name, any(part.of_y for part in parts)
        if inner is not None:
            return through(inner, parts, _Part, results)
        values, (out, *_) = [part.value for part in parts], equation.outvars
        kinked = of_y and name in KINKS and jnp.issubdtype(out.aval.dtype, jnp.floating)
        if kinked and t is not None:
            done = size(seen.kinks)
            found = t[done : done + out.aval.size].reshape(out.aval.shape)
        else:
            found = equation.primitive.bind(*values, **equation.primitive.get_bind_params(equation.params))
        if kinked:
            seen.kinks.append(found)
            top = jnp.expand_dims(found, equation.params["axes"]) if name == "reduce_max" else found
            for piece in (values[0], -values[0]) if name == "abs" else values:
                seen.pieces.append(jnp.ravel(piece))
                seen.tops.append(jnp.ravel(jnp.broadcast_to(top, jnp.shape(piece) or top.shape)))
        every = found if equation.primitive.multiple_results else [found]
        return [_Part(one, of_y) for one in every]

    given = [_Part(leaf) for leaf in jax.tree.leaves(x)] + [_Part(leaf, True) for leaf in jax.tree.leaves(y)]
    found = [part.value for part in through(closed, given, _Part, results)]
    return seen._replace(value=jax.tree.unflatten(jax.tree.structure(shape), found))


def heights(function: Function, x: PyTree, y: PyTree) -> Array:
    """The kinks at a point, one after another: what t is there."""
    return jnp.concatenate([jnp.ravel(kink) for kink in opened(function, x, y, None).kinks])


def can_be_opened(function: Function, x: PyTree, y: PyTree, low: PyTree, high: PyTree) -> bool:
    """Whether there are kinks, and neither the function nor a piece falls as one grows, for (x, y) in a box.

    Examples:
        >>> box = (0.0, -np.inf), (3.0, np.inf)
        >>> can_be_opened(lambda x, y: x * jnp.abs(y), 1.0, 1.0, *box)
        True
        >>> can_be_opened(lambda x, y: (x - 1.0) * jnp.abs(y), 1.0, 1.0, *box), can_be_opened(jnp.add, 1.0, 1.0, *box)
        (False, False)
    """
    kinks = jax.eval_shape(lambda x, y: opened(function, x, y, None).kinks, x, y)
    if not 0 < size(kinks) <= MOST:
        return False

    def slopes(at: tuple[PyTree, Array]) -> PyTree:
        (x, y), t = at
        return jax.jacfwd(lambda t: opened(function, x, y, t)[::2])(t)

    def over(low: PyTree, high: PyTree) -> Array:
        least = bounds(lambda at: opened(function, at[0], at[1], None).kinks, low, high)
        t = jnp.concatenate([jnp.ravel(one.low) for one in least])
        found = bounds(slopes, (low, t), (high, jnp.full_like(t, jnp.inf)))
        return jnp.min(jnp.concatenate([jnp.ravel(one.low) for one in found]))

    as_arrays = jax.tree.map(lambda leaf, like: jnp.broadcast_to(leaf, jnp.shape(like)), (low, high), ((x, y), (x, y)))
    return bool(jax.jit(over)(*as_arrays) >= 0)


TIES: dict[str, Callable[..., Array]] = {  # by how much a primitive is off its kink, from its result and its arguments
    "abs": lambda found, u: jnp.abs(u),
    "sqrt": lambda found, u: found,
    "reduce_max": lambda found, u: _second(u, jnp.max(u)),
    "reduce_min": lambda found, u: _second(u, jnp.min(u)),
    "sort": lambda found, u, *others: jnp.abs(jnp.diff(jnp.ravel(u))),
    **dict.fromkeys(("max", "min", "gt", "ge", "lt", "le"), lambda found, a, b: jnp.abs(a - b)),
}


def _second(u: Array, best: Array) -> Array:
    """How far the best of all entries is from the second best."""
    return jnp.sort(jnp.abs(jnp.ravel(u) - best))[1:2]


def nearest_kink(function: Callable[..., PyTree], *args: PyTree) -> tuple[float, str]:
    """How far `args` are from the nearest kink that the function's program shows, and the primitive that it comes from.

    Where a program stops gradients, as `logsumexp` does at the largest entry, its kinks are taken to be none.

    Examples:
        >>> nearest_kink(lambda x, y: jnp.abs(x - 1.0) + jnp.maximum(y, 1.0), 1.25, 3.0)
        (0.25, 'abs')
        >>> nearest_kink(lambda y: jax.nn.logsumexp(y), jnp.ones(2))
        (inf, '')
    """
    closed, names = jax.make_jaxpr(function)(*args), list[str]()

    def gaps(leaves: list[Array]) -> list[Array]:
        found = list[Array]()
        names.clear()

        def results(equation: Any, parts: list[_Part]) -> list[_Part]:
            part, name, of_point = inside(equation), equation.primitive.name, any(part.of_y for part in parts)
            if part is not None:
                return through(part, parts, _Part, results)
            values = [one.value for one in parts]
            out = equation.primitive.bind(*values, **equation.primitive.get_bind_params(equation.params))
            if of_point and name in TIES and jnp.issubdtype(jnp.result_type(values[0]), jnp.floating):
                names.append(name)
                found.append(jnp.min(TIES[name](out, *values), initial=jnp.inf))
            return [_Part(one, of_point) for one in (out if equation.primitive.multiple_results else [out])]

        through(closed, [_Part(leaf, True) for leaf in leaves], _Part, results)
        return found

    leaves = jax.tree.leaves(args)
    jax.eval_shape(gaps, leaves)  # whether there are kinks shows before anything is computed
    found = [] if "stop_gradient" in str(closed) or not names else gaps(leaves)
    return min(zip(map(float, found), names, strict=False), default=(np.inf, ""))
