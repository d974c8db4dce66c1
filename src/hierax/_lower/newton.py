"""Directions of Newton's method, and the line search along them, for `Exact` and the central path."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Scalar

from hierax._base.constants import ARMIJO
from hierax._lower.linear import MAX_PRODUCTS
from hierax._math.lower_level import Units, Vector

LONGEST_STEP = 10.0  # step along one eigenvector, in sizes of y

Product = Callable[[Vector], Vector]
Direction = tuple[Vector, Bool[Array, ""]]
Newton = Callable[[Product, Vector, Scalar, Units, Vector], Direction]
"""(product with the Hessian, gradient, damping, units, point) -> (direction, whether the Hessian failed to give one)"""


def cholesky(curved: Product, slope: Vector, damping: Scalar, units: Units, v: Vector) -> Direction:
    """Newton's direction from a factorisation; where the Hessian is not positive definite, a short way downhill."""
    del units, v
    n = slope.size
    identity = jnp.eye(n, dtype=slope.dtype)
    hessian = jax.vmap(curved)(identity)
    typical = jnp.mean(jnp.abs(jnp.diag(hessian)))
    factor = jnp.linalg.cholesky(hessian + (damping + 4 * n * jnp.finfo(slope.dtype).eps) * typical * identity)
    direction = -jax.scipy.linalg.cho_solve((factor, True), slope)
    failed = ~jnp.all(jnp.isfinite(direction))
    return jnp.where(failed, -slope / jnp.linalg.norm(hessian), direction), failed


def eigenvectors(curved: Product, slope: Vector, damping: Scalar, units: Units, v: Vector) -> Direction:
    """Newton's direction with the magnitudes of the eigenvalues: downhill also where the Hessian is indefinite.

    Each component along an eigenvector is held back for itself. A bound on the whole step would let the huge component
    of a flat direction (a linear lower level has them) shrink the useful ones.
    """
    del damping
    hessian = jax.vmap(curved)(jnp.eye(slope.size, dtype=slope.dtype))
    failed = ~jnp.all(jnp.isfinite(hessian))
    hessian = jnp.where(failed, units.curvature * jnp.eye(slope.size, dtype=slope.dtype), hessian)
    values, vectors = jnp.linalg.eigh(0.5 * (hessian + hessian.T))
    least = jnp.finfo(slope.dtype).eps * jnp.max(jnp.abs(values)) + jnp.finfo(slope.dtype).tiny
    magnitudes = jnp.maximum(jnp.abs(values), least)
    longest = LONGEST_STEP * (units.length + jnp.max(jnp.abs(v)))
    along = jnp.clip(-(vectors.T @ slope) / magnitudes, -longest, longest)
    return vectors @ along, failed


def conjugate_gradients(curved: Product, slope: Vector, damping: Scalar, units: Units, v: Vector) -> Direction:
    """Newton's direction as far as it matters: the closer to the minimum, the more exact."""
    del v
    enough = jnp.minimum(0.1, jnp.sqrt(jnp.linalg.norm(slope) / units.slope))
    direction, _ = jax.scipy.sparse.linalg.cg(
        lambda u: curved(u) + damping * units.curvature * u, -slope, tol=enough, maxiter=MAX_PRODUCTS
    )
    downhill = jnp.vdot(direction, slope) < 0
    return jnp.where(downhill, direction, -slope / units.curvature), ~downhill


def armijo(
    function: Callable[[Vector], tuple[Scalar, Scalar]],
    v: Vector,
    here: tuple[Scalar, Scalar],
    direction: Vector,
    slope: Scalar,
    wanted: Bool[Array, ""] | bool = True,
) -> tuple[Vector, Bool[Array, ""]]:
    """The point after the first of the steps 1, 1/2, 1/4, ... that lowers the function enough, and whether none did.

    `here` is the function at v: its value, and the size of what it was summed from. Close to the minimum the values are
    too blunt to judge by, as their last digits are noise. Where they differ by less than half their digits the slope
    after the step decides (Hager and Zhang's approximate rule: both rules agree for quadratic functions). A value that
    is not a number never passes. Where nothing is `wanted` no step is looked for: of many starts in one batch those
    that are done would take all of the halvings while others go on.
    """
    shortest = float(jnp.finfo(float).eps)  # below it the function is minimised as far as rounding allows
    noise = jnp.sqrt(jnp.finfo(v.dtype).eps) * here[1]

    def too_high(carry: tuple[Scalar, Scalar, Scalar]) -> Bool[Array, ""]:
        length, reached, after = carry
        lower = reached <= here[0] + ARMIJO * length * slope
        flatter = (reached <= here[0] + noise) & (after <= (2 * ARMIJO - 1) * slope)
        return ~(lower | flatter) & (length > shortest) & wanted

    def halve(carry: tuple[Scalar, Scalar, Scalar]) -> tuple[Scalar, Scalar, Scalar]:
        length = 0.5 * carry[0]
        (reached, _), (after, _) = jax.jvp(function, (v + length * direction,), (direction,))
        return length, reached, after

    high = jnp.full((), jnp.inf, v.dtype)
    length, _, _ = jax.lax.while_loop(too_high, halve, (jnp.full((), 2.0, v.dtype), high, high))
    stuck = length <= shortest
    return jnp.where(stuck, v, v + length * direction), stuck
