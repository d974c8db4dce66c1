"""How steps that were estimated find their lengths: x goes further while it moves straight on, less far once it turns.

The run is cut into windows that grow with it. After each, the mean direction of x is compared with that of the window
before. Where both point the same way the curvature along the way is far below what the estimate feared, and the step is
lengthened; where they point against each other, where consecutive steps undo each other, or where x goes round in a
circle, it is shortened, and what was too long is remembered.

The direction of x is read off the small distance between y and the inner solver's w (and between nu/c1 and lam). x must
therefore not drag (w, lam) along by more than a part of that distance per step, or it follows the lag of the inner
solver: that is the second limit.

At a solution the mean directions are noise, which turns back as often as it goes on; shortening is stronger than
lengthening, so that the factor falls back to one: in the long run the step is the estimated one, with its decay.

The estimated steps of all blocks are shortened by the curvature that the run meets (`Watch`). One product per step goes
on with a power iteration on the Hessian in y of the lower level's augmented Lagrangian, where the run is; where the
lower level has no noise two more look for an entry that has become more curved than what it follows. Where the
curvature found exceeds what the steps were made for, they are shortened by the ratio. It moves with the run: a
curvature that falls again gives the steps back.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree, Scalar

from hierax._base import trees
from hierax._base.constants import FINE, LITTLE
from hierax._base.trees import dtype_of, normalised, or_one, select
from hierax._math.psi import Inner, saddle_gradient_xw
from hierax._math.spectrum import probe
from hierax._problem.problem import Problem

FIRST_WINDOW = 8.0  # steps of the first window
WINDOW_GROWTH = 1.07  # of the windows, so that each is about a fifteenth of the run so far
SHORTEN = 4.0  # factor by which a step that was too long is divided; its inverse is the share of the squared directions
# that their mean must keep, or x goes round in a circle, and minus the mean cosine at which steps undo each other
SAME_WAY = 0.7  # cosine of two mean directions from which on they point the same way
REACH = 3.0  # a lengthened step is at most this many times as long as those of the window before
SLACK = 1.25  # by which curvature may exceed the estimate: the steps are half the longest stable ones


class Pace(NamedTuple):
    """The factor of the x-step, and the sums of the window that is open.

    Attributes:
        factor: by which the estimated step is multiplied, at least one.
        longest: the largest factor that has not proved too long.
        total: sum of the window's directions.
        before: mean direction of the window before; zero where there is none to compare with.
        last: the last direction.
        turned: sum of the products of consecutive directions, and of the products of their lengths.
        begun: the inner solver's (w, lam) when the window was opened.
        offset: sums of the distances of y from w, and of nu/c1 from lam.
        moved: sum of the lengths of the window's steps, and their mean in the window before (zero: none known).
        steps: how many directions the window has.
        length: how many it is to have.
    """

    factor: Scalar
    longest: Scalar
    total: PyTree
    before: PyTree
    last: PyTree
    turned: Float[Array, "2"]
    begun: Inner
    offset: Float[Array, "2"]
    moved: Float[Array, "2"]
    steps: Scalar
    length: Scalar


def first_pace(x: PyTree, below: Inner) -> Pace:
    """Before the first step."""
    dtype = dtype_of(x, below.w)
    zero = jax.tree.map(jnp.zeros_like, x)
    one, none = jnp.ones((), dtype), jnp.zeros((2,), dtype)
    return Pace(one, one / jnp.finfo(dtype).eps, zero, zero, zero, none, below, none, none, 0 * one, FIRST_WINDOW * one)


def within_reach(pace: Pace, length: Scalar) -> Scalar:
    """The part of a step of the given length that is made: all, unless it is lengthened and far longer than usual.

    A single entry of x can run away within a few steps, before any mean direction shows it. Where x has stood still in
    the window before, to rounding, nothing is usual: the step is the estimated one.
    """
    limit = REACH * pace.moved[1]
    bound = (pace.factor > 1) & (length > limit)
    stood_still = limit < FINE * length / pace.factor
    part = jnp.where(stood_still, 1 / pace.factor, limit / or_one(length))
    return jnp.where(bound, part, 1.0).astype(pace.factor.dtype)


def paced(pace: Pace, taken: PyTree, length: Scalar, above: Inner, below: Inner) -> Pace:
    """After a step in the direction `taken`, what was left of it after the projection; `length`: how far x moved."""
    dtype = pace.factor.dtype
    both = trees.vdot(taken, pace.last), trees.norm(taken) * trees.norm(pace.last)
    pace = pace._replace(
        total=trees.add(pace.total, taken),
        last=taken,
        turned=pace.turned + jnp.stack(both).astype(dtype),
        offset=pace.offset + _distances(above, below, dtype),
        moved=pace.moved.at[0].add(length.astype(dtype)),
        steps=pace.steps + 1,
    )
    speed = jnp.max(jnp.where(pace.offset > 0, _distances(below, pace.begun, dtype) / or_one(pace.offset), 0.0))
    seen = pace.steps >= jnp.maximum(FIRST_WINDOW, pace.length / SHORTEN)
    alarm = seen & (_turning(pace) | (speed > LITTLE))
    return select(alarm | (pace.steps >= pace.length), _closed(pace, alarm, speed, below), pace)


def _distances(first: Inner, second: Inner, dtype: jnp.dtype) -> Float[Array, "2"]:
    return jnp.stack([trees.norm(trees.sub(a, b)).astype(dtype) for a, b in zip(first, second, strict=True)])


def _turning(pace: Pace) -> Bool[Array, ""]:
    return pace.turned[0] < -1 / SHORTEN * pace.turned[1]


def _closed(pace: Pace, alarm: Bool[Array, ""], speed: Scalar, below: Inner) -> Pace:
    """The next window, with its factor; after an alarm it is as long as the one that was broken off."""
    dtype = pace.factor.dtype
    mean = jax.tree.map(lambda a: a / or_one(pace.steps).astype(a.dtype), pace.total)
    products = (trees.vdot(mean, pace.before), trees.vdot(mean, mean), trees.vdot(pace.before, pace.before))
    along, new, old = (product.astype(dtype) for product in products)
    steady = pace.turned[0] / or_one(pace.steps)  # mean square of the directions, without the noise of single steps
    # On: the same way, at least half as steep along it, and half of the squared directions, free of noise, kept.
    onward = (along > SAME_WAY * jnp.sqrt(new * old)) & (along > 0.5 * old) & (new > 0.5 * steady)
    circling = (new < 1 / SHORTEN * steady) & (pace.turned[0] > 0.5 * pace.turned[1])  # directions hardly change
    back = _turning(pace) | (along < 0) | circling
    change = jnp.where(back, 1 / SHORTEN, jnp.where(onward, 2.0, 1.0))
    # Per step w may move by half of a small part of its distance from y; all of that part is an alarm.
    change = jnp.where(speed > 0, jnp.clip(0.5 * LITTLE / or_one(speed), 1 / SHORTEN, change), change)
    # What was too long is forgotten a little with every window.
    longest = jnp.where(back, 0.5 * jnp.minimum(pace.factor, pace.longest), (1 + LITTLE) * pace.longest)
    longest = jnp.clip(longest, 1.0, 1 / jnp.finfo(dtype).eps)  # finite, as every number of a state has to be
    zero = jax.tree.map(jnp.zeros_like, pace.total)
    return first_pace(zero, below)._replace(
        factor=jnp.clip(pace.factor * change, 1.0, longest).astype(dtype),
        longest=longest.astype(dtype),
        before=select(back, zero, mean),
        moved=jnp.stack([jnp.zeros((), dtype), pace.moved[0] / or_one(pace.steps)]),
        length=(jnp.where(alarm, 1.0, WINDOW_GROWTH) * pace.length).astype(dtype),
    )


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


def first_watch(adapt: tuple[str, ...], curved: Scalar | None, x: PyTree, below: Inner) -> Watch:
    """Before the first step; `adapt` names the steps that may be corrected, `curved` is None where none is known."""
    one = jnp.ones((), dtype_of(x, below.w))
    return Watch(
        share=one,
        curved=one if curved is None else curved.astype(one.dtype),
        vector=normalised(probe(below.w)) if adapt and curved is not None else None,
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
