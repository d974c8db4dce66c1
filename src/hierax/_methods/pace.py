"""How an x-step that was estimated finds its length: longer while x moves straight on, shorter once it turns back.

The run is cut into windows, each a fifth longer than the one before. The mean of the directions that x took is compared
with the mean over the window before: where it still points the same way and is hardly shorter, the curvature along the
way is far below what the estimate feared, and the step is lengthened; where it points back, x has overshot. Steps that
undo each other are noticed within a window. At a solution the means are noise, which turns back as often as it goes on,
and the factor falls back to one: in the long run the step is the estimated one, with its decay.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PyTree, Scalar

from hierax._base.trees import dtype_of, or_one, select
from hierax._problem.problem import Rows

FIRST_WINDOW = 8.0
GROWTH = 1.07  # of the windows: between the first step and step k there are about 5.5 log(k / 40) + 8 of them
LENGTHEN, SHORTEN = 2.0, 4.0
SAME_WAY = 0.7  # cosine of two means from which on they point the same way ...
STILL_STEEP = 0.5  # ... and part of the earlier one that the later one has kept along it
TURNING = -0.25  # mean cosine of consecutive directions at which steps undo each other
FAST = 0.05  # part of the offset by which the lower level's solution may move per step


class Below(NamedTuple):
    """The lower level's solution as the run sees it: w and lam; or the outer y and nu/c1, which stand off from it."""

    y: PyTree
    multipliers: Rows


class Pace(NamedTuple):
    """The factor of the x-step, and the sums of the window that is open.

    Attributes:
        factor: by which the estimated step is multiplied, at least one.
        total: sum of the window's directions.
        before: mean direction of the window before; zero where there is none to compare with.
        last: the last direction.
        turned: sum of the products of consecutive directions, and of the products of their lengths.
        begun: the lower level's solution when the window was opened.
        offset: sums of the distances of y and of the multipliers from it.
        steps: how many directions the window has.
        length: how many it is to have.
    """

    factor: Scalar
    most: Scalar
    total: PyTree
    before: PyTree
    last: PyTree
    turned: Array
    begun: Below
    offset: Array
    steps: Int[Array, ""]
    length: Scalar


def first_pace(x: PyTree, below: Below) -> Pace:
    """Before the first step."""
    dtype = dtype_of(x)
    zero = jax.tree.map(jnp.zeros_like, x)
    one, none, length = jnp.ones((), dtype), jnp.zeros((2,), dtype), jnp.full((), FIRST_WINDOW, dtype)
    return Pace(one, 1e12 * one, zero, zero, zero, none, below, none, jnp.zeros((), jnp.int32), length)


def paced(pace: Pace, taken: PyTree, above: Below, below: Below) -> Pace:
    """After a step in the direction `taken`, the one that was left of it after the projection."""
    both = jnp.stack([optax.tree.vdot(taken, pace.last), optax.tree.norm(taken) * optax.tree.norm(pace.last)])
    pace = pace._replace(
        total=optax.tree.add(pace.total, taken),
        last=taken,
        turned=pace.turned + both.astype(pace.turned.dtype),
        offset=pace.offset + _distances(above, below).astype(pace.offset.dtype),
        steps=pace.steps + 1,
    )
    speed = jnp.max(_distances(below, pace.begun) / or_one(pace.offset))
    undone = (pace.steps >= jnp.maximum(FIRST_WINDOW, pace.length / 4)) & (_turning(pace) | (speed > 2 * FAST))
    return select(undone | (pace.steps >= pace.length), _closed(pace, undone, speed, below), pace)


def _distances(first: Below, second: Below) -> Array:
    return jnp.stack([optax.tree.norm(optax.tree.sub(a, b)) for a, b in zip(first, second, strict=True)])


def _turning(pace: Pace) -> Array:
    return pace.turned[0] < TURNING * pace.turned[1]


def _closed(pace: Pace, undone: Array, speed: Scalar, below: Below) -> Pace:
    """The factor for the next window."""
    mean = jax.tree.map(lambda a: a / or_one(pace.steps.astype(a.dtype)), pace.total)
    along, new, old = optax.tree.vdot(mean, pace.before), optax.tree.norm(mean), optax.tree.norm(pace.before)
    onward = (along > SAME_WAY * new * old) & (along > STILL_STEEP * old**2)
    back = _turning(pace) | (along < 0)
    change = jnp.where(back, 1 / SHORTEN, jnp.where(onward, LENGTHEN, 1.0))
    change = jnp.clip(FAST / or_one(speed), 1 / SHORTEN, change)
    most = jnp.where(back, 0.5 * jnp.minimum(pace.factor, pace.most), 1.02 * pace.most)
    zero = jax.tree.map(jnp.zeros_like, pace.total)
    return Pace(
        factor=jnp.maximum(jnp.minimum(pace.factor * change, most), 1.0).astype(pace.factor.dtype),
        most=most.astype(pace.factor.dtype),
        total=zero,
        before=select(back, zero, mean),
        last=zero,
        turned=jnp.zeros_like(pace.turned),
        begun=below,
        offset=jnp.zeros_like(pace.offset),
        steps=jnp.zeros_like(pace.steps),
        length=jnp.where(undone, 1.0, GROWTH) * pace.length,
    )
