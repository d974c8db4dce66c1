"""How steps that were estimated at the start are corrected on the way: by the curvature that the run meets.

One product per step goes on with a power iteration on the Hessian in y of the lower level's augmented Lagrangian, where
the run is; where the lower level has no noise two more look for an entry that has become more curved than what it
follows. Where the curvature found exceeds what the steps were made for, they are shortened by the ratio. It moves with
the run: a curvature that falls again gives the steps back. How far x may go beyond its estimate: `pace.py`.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import PyTree, Scalar

from hierax._base import tree_math
from hierax._base.trees import dtype_of, normalised, or_one, select
from hierax._math.lagrangian import saddle_gradient_xw
from hierax._math.psi import Inner
from hierax._math.spectrum import probe
from hierax._methods.pace import Below, Pace, first_pace
from hierax._problem.problem import Problem

SLACK = 1.25  # by which curvature may exceed the estimate: the steps are half the longest stable ones


class Watch(NamedTuple):
    """What the run has seen of its steps.

    Attributes:
        share: part of the estimated steps that the curvature allows.
        curved: the curvature that they were made for.
        vector: of the power iteration; None where no step depends on it.
        pace: of the x-step; None where that was given.
    """

    share: Scalar
    curved: Scalar
    vector: PyTree | None
    pace: Pace | None

    @property
    def x_factor(self) -> Scalar:
        """By which the estimated x-step is multiplied."""
        return self.share if self.pace is None else self.share * self.pace.factor


def first_watch(adapt: tuple[str, ...], curved: Scalar | None, x: PyTree, below: Below) -> Watch:
    """Before the first step; `adapt` names the steps that may be corrected, `curved` is None where none is known."""
    one = jnp.ones((), dtype_of(x, below.y))
    return Watch(
        share=one,
        curved=one if curved is None else curved.astype(one.dtype),
        vector=normalised(probe(below.y)) if adapt and curved is not None else None,
        pace=first_pace(x, below) if "x" in adapt else None,
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
    met = tree_math.norm(image).astype(watch.share.dtype)
    if problem.xi is None:
        entry = push(_steepest(push, inner.w))
        other = tree_math.norm(entry).astype(watch.share.dtype)
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
