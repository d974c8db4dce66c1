r"""Armijo's rule for x, one trial point per outer step, with Barzilai-Borwein lengths.

    x' = Proj_X(x - t d) is taken where phi(x') <= phi(x) - 1e-4 ||x' - x||^2 / t, else t is halved

A long first step leaves the basin, so the first one is 1/100 of ||x||; after a success t is the Barzilai-Borwein
length, at most doubled. GAM and the methods of `smoothed` share it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PyTree, Scalar

from hierax._base import trees
from hierax._base.constants import ARMIJO
from hierax._base.trees import or_one

FIRST_LENGTH = 1e-2  # length of the first trial step as a share of ||x||
PROBE_LENGTH = 1e-3  # length of the step that the curvature of phi is estimated from, likewise
MAX_FALL = 0.1  # of the trial length from one success to the next


class LineSearch(NamedTuple):
    """What the rule remembers.

    Attributes:
        length: the next trial length t; zero before the first step.
        good: the length of the last success.
        x: where the last step began.
        d: its direction.
    """

    length: Scalar
    good: Scalar
    x: PyTree
    d: PyTree


def first_search(x: PyTree, dtype: jnp.dtype) -> LineSearch:
    """Before the first step."""
    zero = jnp.zeros((), dtype)
    return LineSearch(zero, zero, x, jax.tree.map(jnp.zeros_like, x))


def trial(search: LineSearch, x: PyTree, d: PyTree) -> LineSearch:
    """The search at x along d, with the length to try."""
    first = search.length == 0
    start = FIRST_LENGTH * size_of(x) / or_one(trees.norm(d))
    length = jnp.where(first, start, _next_length(search, x, d))
    return LineSearch(length, jnp.where(first, start, search.good), x, d)


def falls_enough(value: Scalar, reached: Scalar, way: Scalar, length: Scalar, noise: Scalar) -> Bool[Array, ""]:
    """Armijo's test for a step that moved x by `way`; `noise` is what rounding may make of the two values."""
    return reached <= value - ARMIJO * way**2 / length + noise


def tried(search: LineSearch, taken: Bool[Array, ""], way: Scalar) -> LineSearch:
    """After a trial: the length stays, or is halved; one too short to move x says nothing, and the last good one is
    tried again.
    """
    nowhere = leads_nowhere(search.x, way)
    shorter = jnp.where(nowhere, search.good, 0.5 * search.length)
    return search._replace(
        length=jnp.where(taken, search.length, shorter),
        good=jnp.where(taken & ~nowhere, search.length, search.good),
    )


def leads_nowhere(x: PyTree, way: Scalar) -> Bool[Array, ""]:
    """Whether a step is too short to move x."""
    return way <= 10 * jnp.finfo(way.dtype).eps * size_of(x)


def size_of(x: PyTree) -> Scalar:
    """||x||, or one at zero."""
    return or_one(trees.norm(x))


def _next_length(search: LineSearch, x: PyTree, d: PyTree) -> Scalar:
    """The Barzilai-Borwein length after a step that moved x, within bounds; else the length that is waiting."""
    s, turned = trees.sub(x, search.x), trees.sub(d, search.d)
    square, product = trees.norm_squared(s), trees.vdot(s, turned)
    curved = product > 0
    length = jnp.where(curved, square / jnp.where(curved, product, 1.0), jnp.inf)
    return jnp.where(square > 0, jnp.clip(length, MAX_FALL * search.length, 2 * search.length), search.length)
