"""How far a point of the lower level is from its KKT conditions, in units that the problem itself sets.

The residual does not change when G or a constraint is multiplied by a positive number (`Units`): exact solvers stop by
it, and the certificate reports it. The rows stand in the order of `hierax._math.lower_level`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Scalar

from hierax._base.trees import or_one
from hierax._math.lower_level import Level, RowVector, Vector

PROBES = 16  # directions that the norms of long gradients are estimated from: relative error sqrt(2 / PROBES)


class Units(NamedTuple):
    """What "one" means near a point, for what is measured there.

    Attributes:
        row: ||grad of each row|| where the row is zero, so that row/unit is a distance.
        curvature: typical size of G's second derivatives.
        slope: size of G's gradient; what a vanishing gradient is compared with.
        length: size of y.
    """

    row: RowVector
    curvature: Scalar
    slope: Scalar
    length: Scalar


def units_at(level: Level, v: Vector, rows: RowVector, gradient: Vector, tol: Scalar) -> Units:
    """Units near v from first and second derivatives along a few directions; rows and gradient of G as they are at v.

    A row's gradient is wanted where the row vanishes, not at v: to second order that is sqrt(a^2 - 2 q r) for a row of
    value r, slope a and curvature q. It is exact for balls and ellipsoids whose axes are alike, from any v (also the
    centre, where the gradient is zero, and far away, where it is large).

    The length is 1 (y is taken to be of order one) unless y is so large that rounding alone would exceed `tol`.
    """
    directions, weight = _probes(v)

    def along(u: Vector) -> tuple[RowVector, RowVector, Scalar]:
        def slope(t: Scalar) -> RowVector:
            return jax.jvp(lambda s: level.rows(v + s * u), (t,), (jnp.ones_like(t),))[1]

        zero = jnp.zeros((), v.dtype)
        first, second = jax.jvp(slope, (zero,), (jnp.ones_like(zero),))
        bent = jax.jvp(jax.grad(level.objective), (v,), (u,))[1]
        return first**2, second / jnp.vdot(u, u), jnp.vdot(bent, bent)

    squares, curvatures, bent = jax.vmap(along)(directions)
    square = weight * jnp.sum(squares, 0)
    boundary = jnp.maximum(square - 2 * jnp.mean(curvatures, 0) * rows, 0.01 * square)
    largest = jnp.max(jnp.abs(v), initial=0.0)
    length = jnp.maximum(1.0, 100 * jnp.finfo(v.dtype).eps / tol * largest)
    curvature = jnp.sqrt(weight * jnp.sum(bent) / v.size)
    steepest = jnp.max(jnp.abs(gradient), initial=0.0)
    return Units(
        row=or_one(jnp.sqrt(boundary)),
        curvature=or_one(jnp.maximum(curvature, steepest / jnp.maximum(1.0, largest))),
        slope=or_one(jnp.maximum(steepest, curvature * length)),
        length=length,
    )


def residual(level: Level, units: Units, rows: RowVector, mu: RowVector, gradient: Vector) -> Scalar:
    """Largest entry of the KKT system in the given units; `gradient` is that of the Lagrangian.

    Its entries are: gradient / slope; [row]_+ (or |row|) / (unit of the row * length); |mu row| / (slope * length), of
    which the sum bounds the gap G - v where everything is convex; and [-mu]_+ in the units of a multiplier.
    """
    violation = jnp.where(level.equal, jnp.abs(rows), jnp.maximum(rows, 0.0)) / (units.row * units.length)
    gap = jnp.where(level.equal, 0.0, jnp.abs(mu * rows)) / (units.slope * units.length)
    wrong_sign = jnp.where(level.equal, 0.0, jnp.maximum(-mu, 0.0)) * units.row / units.slope
    entries = jnp.concatenate([jnp.abs(gradient) / units.slope, violation, gap, wrong_sign])
    return jnp.max(entries)


def residual_at(level: Level, v: Vector, mu: RowVector, tol: Scalar) -> Scalar:
    """`residual` in the units of the point itself."""
    rows, pull = jax.vjp(level.rows, v)
    gradient = jax.grad(level.objective)(v)
    return residual(level, units_at(level, v, rows, gradient, tol), rows, mu, gradient + pull(mu)[0])


def reachable(tol: Scalar | float, dtype: jnp.dtype) -> Scalar:
    """The tolerance, or what the precision allows."""
    return jnp.maximum(jnp.asarray(tol, dtype), 200 * jnp.finfo(dtype).eps)


def _probes(v: Vector) -> tuple[Float[Array, "probes n"], float]:
    """Directions u, and the weight that makes the weighted sum of (a.u)^2 the squared norm of a.

    Short vectors: the unit vectors. Long ones: numbers that look random, without a generator, which takes longer to
    compile than the products themselves.
    """
    if v.size <= PROBES:
        return jnp.eye(v.size, dtype=v.dtype), 1.0
    place = jnp.arange(1, v.size + 1, dtype=v.dtype)[None, :]
    which = jnp.arange(1, PROBES + 1, dtype=v.dtype)[:, None]
    return 2**0.5 * jnp.sin(place * (0.618 + 1.234 * which) + which**2), 1 / PROBES
