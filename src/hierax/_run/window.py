"""What is summed up between two records of a run, and what it says of stationarity, of cycles and of noise."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PyTree, Scalar

from hierax._base import tree_math
from hierax._problem.problem import Problem
from hierax._run.method import AbstractMethod
from hierax._run.reports import Metrics, Residual

CYCLE_MEAN_SHARE = 0.1  # the mean direction of a cycle is below this part of the single ones
CYCLE_STEPS = 8  # steps in which a cycle is told from noise


class Window(NamedTuple):
    """Sums since the last record (the numbers packed: on small problems the count of arrays is what costs).

    Attributes:
        first: the step at which the window was opened.
        numbers: upper, lower, the lengths of the steps of x and y and of their raw directions, and the norms of the
            four residuals.
        residual: the residuals.
        alternating: the residuals with every second one negated, where something is sampled; else None.
    """

    first: Int[Array, ""]
    numbers: Float[Array, "10"]
    residual: Residual
    alternating: Residual | None


def empty_window(problem: Problem, method: AbstractMethod, state: PyTree, dtype: jnp.dtype) -> Window:
    """A window that opens at the state."""
    zero = method.zero_residual(state)
    sampled = problem.zeta is not None or problem.xi is not None
    return Window(state.step, jnp.zeros((10,), dtype), zero, method.zero_residual(state) if sampled else None)


def added(window: Window, metrics: Metrics, step: Array) -> Window:
    """The window with one more step in it, made from the state at `step`."""
    norms = [jnp.asarray(tree_math.norm(part), window.numbers.dtype) for part in metrics.residual]
    each = (metrics.upper, metrics.lower, metrics.step_x, metrics.step_y, metrics.raw_x, metrics.raw_y, *norms)
    numbers = jnp.stack([number.astype(window.numbers.dtype) for number in each])
    sign = 1 - 2 * ((step - window.first) % 2)

    def plus(a: Array, b: Array) -> Array:
        return (a + b).astype(a.dtype)

    alternating = None
    if window.alternating is not None:
        signed = jax.tree.map(lambda leaf: sign.astype(leaf.dtype) * leaf, metrics.residual)
        alternating = jax.tree.map(plus, window.alternating, signed)
    return window._replace(
        numbers=window.numbers + numbers,
        residual=jax.tree.map(plus, window.residual, metrics.residual),
        alternating=alternating,
    )


class Residuals(NamedTuple):
    """The residuals of x, y, z and the inner variable over a window: norms of their mean, norms of their alternating
    mean (zero where nothing is sampled), and the means of their norms.

    The mean averages the noise of samples, and with it a cycle of steps that jump to and fro across the solution: a
    cycle of two points is what the alternating mean sees, and noise averages out of that as well. Without noise the
    mean of the norms sees cycles of every length.
    """

    mean: Float[Array, "4"]
    swing: Float[Array, "4"]
    size: Float[Array, "4"]
    steps: Scalar
    sampled: bool

    @property
    def shown(self) -> Float[Array, "4"]:
        """What is compared with the tolerance and told in the history."""
        return jnp.maximum(self.mean, self.swing) if self.sampled else self.size

    @property
    def stationarity(self) -> Scalar:
        """Those of x, y and z as one number."""
        return _joint(self.shown)

    @property
    def cycling(self) -> Bool[Array, ""]:
        """Whether the steps cancel each other: each is long, their mean is not.

        With every second one negated their mean is above half of them; that of noise is below, after four steps or so.
        """
        mean, swing, size = _joint(self.mean), _joint(self.swing), _joint(self.size)
        cancelled = (mean < CYCLE_MEAN_SHARE * size) & (self.steps >= CYCLE_STEPS)
        return cancelled & (swing > 0.5 * size) if self.sampled else cancelled


class Means(NamedTuple):
    """Means over a window: the six numbers of a step, and the residuals."""

    numbers: Float[Array, "6"]
    residuals: Residuals


def means_of(window: Window, step: Array) -> Means:
    """The means over a window that closes at `step`."""
    steps = jnp.maximum(step - window.first, 1).astype(window.numbers.dtype)

    def norms(residual: Residual) -> Float[Array, "4"]:
        return jnp.stack([jnp.asarray(tree_math.norm(part), steps.dtype) for part in residual]) / steps

    sampled = window.alternating is not None
    swing = norms(window.alternating) if window.alternating is not None else jnp.zeros((4,), steps.dtype)
    residuals = Residuals(norms(window.residual), swing, window.numbers[6:] / steps, steps, sampled)
    return Means(window.numbers[:6] / steps, residuals)


def _joint(norms: Float[Array, "4"]) -> Scalar:
    return jnp.sqrt(jnp.sum(norms[:3] ** 2))
