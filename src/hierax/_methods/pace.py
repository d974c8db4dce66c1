"""What the run corrects of its estimates on the way: steps that have become too long, and a c1 that is too small.

The estimated steps are shortened by the curvature that the run meets. One product per step goes on with a power
iteration on the Hessian in y of the lower level's augmented Lagrangian, where the run is; where the lower level has no
noise two more look for an entry that has become more curved than what it follows. Where the curvature found exceeds
what the steps were made for, they are shortened by the ratio. It moves with the run: a curvature that falls again gives
the steps back.

c1 grows as long as y is not close to the lower level's solution, as the square of the steps made, after F2SA (Kwon,
Kwon, Wright and Nowak 2023). c2 and the outer multiplier grow with it, and the steps of y and z become shorter.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, PyTree, Scalar

from hierax._base import trees
from hierax._base.constants import MUCH, NEGLIGIBLE
from hierax._base.trees import dtype_of, normalised, or_one, select
from hierax._math.psi import Inner, saddle_gradient_xw
from hierax._math.spectrum import probe
from hierax._methods.common import SEVERAL
from hierax._problem.problem import Problem

SLACK = 1.25  # by which curvature may exceed the estimate: the steps are half the longest stable ones


class Watch(NamedTuple):
    """What the run has seen of its steps.

    Attributes:
        share: part of the estimated steps that the curvature allows.
        curved: the curvature that they were made for.
        vector: of the power iteration; None where no step depends on it.
        growth: by which c1 and c2 have grown.
        offset: the largest distance of y from w before that.
    """

    share: Scalar
    curved: Scalar
    vector: PyTree | None
    growth: Scalar
    offset: Scalar


def first_watch(adapt: tuple[str, ...], curved: Scalar | None, x: PyTree, w: PyTree) -> Watch:
    """Before the first step; `adapt` names what may be corrected, `curved` is None where none is known."""
    one = jnp.ones((), dtype_of(x, w))
    return Watch(
        share=one,
        curved=one if curved is None else curved.astype(one.dtype),
        vector=normalised(probe(w)) if {"x", "y", "inner"} & set(adapt) and curved is not None else None,
        growth=one,
        offset=0 * one,
    )


def looked(watch: Watch, problem: Problem, x: PyTree, inner: Inner, gamma: Scalar | float, xi: PyTree) -> Watch:
    """With the curvature at a point, on a batch."""
    if watch.vector is None:
        return watch

    def slope(w: PyTree) -> PyTree:
        return saddle_gradient_xw(problem, x, w, inner.lam, gamma, xi)[1]

    def push(vector: PyTree) -> PyTree:
        return jax.jvp(slope, (inner.w,), (vector,))[1]

    image = push(watch.vector)
    met = trees.norm(image).astype(watch.share.dtype)
    if problem.xi is None:
        entry = push(_steepest(push, inner.w))
        other = trees.norm(entry).astype(watch.share.dtype)
        image, met = select(other > met, entry, image), jnp.maximum(met, other)
    return watch._replace(
        vector=normalised(image), share=jnp.where(met > 0, jnp.minimum(1.0, SLACK * watch.curved / or_one(met)), 1.0)
    )


def _steepest(push: Callable[[PyTree], PyTree], w: PyTree) -> PyTree:
    """The unit vector of the entry that answers most to a push of all of them, each in the direction of its sign.

    Where entries are curved by themselves, as slacks with weights of their own are, that is the most curved one, which
    a power iteration would not see before long: the vector of another entry has no part along it.
    """
    flat, tree = jax.flatten_util.ravel_pytree(w)
    signs = jnp.where(jnp.arange(flat.size) % 2 == 0, 1.0, -1.0).astype(flat.dtype)
    answer = jax.flatten_util.ravel_pytree(push(tree(signs)))[0]
    return tree(jax.nn.one_hot(jnp.argmax(jnp.abs(answer)), flat.size, dtype=flat.dtype))


def grown(watch: Watch, y: PyTree, w: PyTree, step: Array) -> Watch:
    """With a larger c1 where y is further from w than a negligible part of its length, as long as that helps.

    Where the lower level has several solutions y keeps its distance whatever c1 is: `offset`, the largest distance of
    the first steps, in which c1 stays as it is, tells what to expect of it.
    """
    dtype = watch.growth.dtype
    far, long, k = trees.norm(trees.sub(y, w)).astype(dtype), trees.norm(w).astype(dtype), step.astype(dtype)
    early = k < MUCH**2
    helps = (far > NEGLIGIBLE * long) & (watch.growth * far < SEVERAL * watch.offset)
    factor = jnp.where(~early & helps, (1 + 1 / or_one(k)) ** 2, 1.0)
    return watch._replace(
        growth=watch.growth * factor, offset=jnp.where(early, jnp.maximum(far, watch.offset), watch.offset)
    )
