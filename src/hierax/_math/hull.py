"""The shortest step that the convex hull of several gradients offers: what stationarity means at a kink of y*(x)."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Scalar

from hierax._base.trees import or_one
from hierax._problem import sets

HULL_STEPS = 1000  # of accelerated projected gradients for the weights


def least_norm_weights(
    gradients: Float[Array, "m n"],
    landed: Callable[[Float[Array, " n"]], Float[Array, " n"]],
    t: Scalar,
    steps: int | Int[Array, ""] = HULL_STEPS,
) -> Float[Array, " m"]:
    """The weights on the simplex that maximise q(w) = min over x' in X of <d, x' - x> + ||x' - x||^2/(2t), d = sum w d.

    `landed(d)` is Proj_X(x - t d) - x, hence the gradient of q is (<d_i, landed(d)>)_i, with Lipschitz constant
    t ||D||^2. Accelerated projected gradients, restarted whenever they point uphill.
    """
    m = gradients.shape[0]
    curved = or_one(t * jnp.linalg.norm(gradients @ gradients.T))

    def body(_: Array, carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        w, ahead, momentum = carry
        rise = gradients @ landed(ahead @ gradients)
        new = sets.Simplex().project(ahead + rise / curved)
        uphill = jnp.vdot(ahead - new, new - w) > 0
        momentum = jnp.where(uphill, 1.0, momentum)
        following = 0.5 + jnp.sqrt(0.25 + momentum**2)
        share = jnp.where(uphill, 0.0, (momentum - 1) / following)
        return new, new + share * (new - w), following

    start = jnp.full(m, 1 / m, gradients.dtype)
    return jax.lax.fori_loop(0, steps, body, (start, start, jnp.ones((), gradients.dtype)))[0]
