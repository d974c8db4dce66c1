r"""Nesterov's accelerated projected gradients, restarted whenever they go uphill.

    v+ = Proj_Y(w - f'(w) / L),    w = v + (momentum - 1)/(next momentum) (v - v before)

L is doubled where the quadratic bound f(v+) <= f(w) + <f'(w), v+ - w> + L/2 ||v+ - w||^2 fails. Ends where the gradient
mapping L ||w - v+|| is small enough. First derivatives only.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Int, Scalar

from hierax._math.lower_level import Vector

# Rounding units of the values by which they may miss the bound. Near the minimum values differ by rounding alone, which
# cancelling terms enlarge; a bound that fails by it doubles L again and again, and the steps die out.
ROUNDING = 1000


class Descent(NamedTuple):
    """The iterate and the one before, the momentum, L, the last gradient mapping's norm, and the number of steps."""

    v: Vector
    before: Vector
    momentum: Scalar
    smooth: Scalar
    mapped: Scalar
    steps: Int[Array, ""]


def accelerated(
    function: Callable[[Vector], Scalar],
    project: Callable[[Vector], Vector],
    start: Vector,
    smooth: Scalar,
    enough: Scalar,
    max_steps: int,
) -> Descent:
    """Minimise the function over the set from `start`, with L = `smooth` at first."""
    eps = jnp.finfo(start.dtype).eps

    def body(state: Descent) -> Descent:
        following = 0.5 + jnp.sqrt(0.25 + state.momentum**2)
        ahead = state.v + (state.momentum - 1) / following * (state.v - state.before)
        here, slope = jax.value_and_grad(function)(ahead)
        v = project(ahead - slope / state.smooth)
        gone = v - ahead
        square, reached = jnp.vdot(gone, gone), function(v)
        bound = here + jnp.vdot(slope, gone) + 0.5 * state.smooth * square
        fits = reached <= bound + ROUNDING * eps * (jnp.abs(here) + jnp.abs(reached))
        uphill = jnp.vdot(gone, v - state.v) < 0
        return Descent(
            v=jnp.where(fits, v, state.v),
            before=state.v,
            momentum=jnp.where(fits & ~uphill, following, 1.0),
            smooth=jnp.where(fits, 1.0, 2.0) * state.smooth,
            mapped=jnp.where(fits, state.smooth * jnp.sqrt(square), jnp.inf),
            steps=state.steps + 1,
        )

    def unfinished(state: Descent) -> Bool[Array, ""]:
        return (state.mapped > enough) & (state.steps < max_steps)

    one = jnp.ones((), start.dtype)
    begin = Descent(start, start, one, smooth, jnp.inf * one, jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(unfinished, body, begin)
