"""The rules that fill in what a user of SALVF leaves unset, from the norms of the problem (docs/methods/salvf.md).

Dimensionless constants are fixed here; everything that carries units is estimated.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import jax.numpy as jnp
from jaxtyping import Scalar

from hierax._base.trees import given
from hierax._math.curvature import Curvature
from hierax._math.lagrangian import is_plain
from hierax._math.psi import Weights
from hierax._methods.common import as_arrays, upper_curvature
from hierax._methods.directions import Plain, Storm
from hierax._methods.inner import Gammas, inner_of
from hierax._methods.steps import Decay, Steps, filled_rule, rate
from hierax._problem.problem import Multipliers

if TYPE_CHECKING:
    from hierax._methods.salvf import SALVF

C1_FACTOR = 5.0  # c1 in units of (curvature of F) / sqrt(L_G mu_G), both in y
C1_LEAST = 1.5  # the same in units of (curvature of F) / L_G, should the rows that are active at the start not stay so
C2_FACTOR = {"multiplier": 10.0, "quadratic": 100.0}  # c2 in units of c1 L_G / ||J||^2
GAMMA_FACTOR = 0.08  # gamma in units of ||J||^2 / L_G: stiff enough to keep the noise of w off the constraints
TAU = 0.1
X_DECAY = 2.0  # a of the x-step, alpha_k = min(1, a (k+1)^(-1/3)) / L; that of y is 1.5
Z_STEP = {False: 0.3, True: 1.0}  # in units of 1/(c1 gamma2); z is lam where that has no noise and y follows it
KAPPA = 10.0  # of Storm, measured where ...
KAPPA_CURVATURE = 9.0  # ... the lower level's curvature in x was 8 + 1: the toy with gamma = 1


def filled(method: SALVF, at: Curvature, scales: Multipliers, dtype: jnp.dtype) -> SALVF:
    """SALVF with every unset number from the norms of the problem."""
    weights = _weights(method, at, dtype)
    smooth_x, smooth_y = _smoothness(at, weights, dtype)
    steps = _steps(method, weights, smooth_x, smooth_y, dtype)
    gammas = Gammas(weights.gamma1, weights.gamma2)
    return dataclasses.replace(
        method,
        **weights._asdict(),
        tau=given(method.tau, TAU, dtype),
        steps=steps,
        inner=inner_of(method.inner).filled(at, gammas, dtype),
        direction=_direction(method, at, weights.gamma1, steps, dtype),
        scales=as_arrays(scales, dtype),
        smoothness=given(method.smoothness, jnp.maximum(smooth_x, smooth_y), dtype),
        bound=None if method.bound is None else given(method.bound, 0.0, dtype),
    )


def below_curvature(method: SALVF, at: Curvature) -> Scalar:
    """L_w: the largest curvature in y of the lower level's augmented Lagrangian that the steps are made for."""
    stiffness = inner_of(method.inner).stiffness(Gammas(method.gamma1, method.gamma2))
    return at.lower_yy + at.jacobian_y**2 / stiffness + at.constraint_yy


def _ratio(a: Scalar, b: Scalar, otherwise: float = 1.0) -> Scalar:
    """a / b where both are positive."""
    tiny = jnp.finfo(a.dtype).tiny
    return jnp.where((a > tiny) & (b > tiny), a / jnp.where(b > tiny, b, 1.0), otherwise)


def _weights(method: SALVF, at: Curvature, dtype: jnp.dtype) -> Weights:
    """c1, c2, gamma1, gamma2."""
    tiny = jnp.finfo(dtype).tiny
    lower, weakest = jnp.maximum(at.lower_yy, tiny), jnp.maximum(at.lower_yy_min, tiny)
    steepest = jnp.maximum(at.jacobian_y, at.outer_y)
    natural = _ratio(steepest**2, lower)  # the gamma at which penalty and objective are equally curved
    gamma1 = method.gamma1 if is_plain(method.gamma1) else given(method.gamma1, GAMMA_FACTOR * natural, dtype)
    gamma2 = jnp.zeros((), dtype) if method.exact else given(method.gamma2, GAMMA_FACTOR * natural, dtype)
    c1 = given(method.c1, _gap_weight(at, lower, weakest, bool(method.follow)), dtype)
    c2 = given(method.c2, C2_FACTOR[method.penalty] * c1 / natural, dtype)
    return Weights(c1, c2, gamma1, gamma2)


def _gap_weight(at: Curvature, lower: Scalar, weakest: Scalar, without_noise: bool) -> Scalar:
    """c1: several times what it takes for the lower level to be more curved in y than F.

    Rows count as curvature below only where the lower level has no noise: c2 goes with c1, and a small c2 lets noise
    move y across the constraints.
    """
    above = upper_curvature(at)
    most, least = _ratio(above, jnp.sqrt(lower * weakest)), _ratio(above, lower)
    if not without_noise:
        return C1_FACTOR * most
    return jnp.clip(C1_FACTOR * at.above_over_below, C1_LEAST * least, C1_FACTOR * most)


def _smoothness(at: Curvature, weights: Weights, dtype: jnp.dtype) -> tuple[Scalar, Scalar]:
    """L_Psi of the blocks x and y."""
    tiny = jnp.finfo(dtype).tiny
    c1, c2 = weights.c1, weights.c2
    lower = jnp.maximum(at.lower_yy, tiny)
    smooth_y = at.upper_yy + c1 * (lower + at.constraint_yy) + c2 * (at.jacobian_y**2 + at.outer_y**2)
    smooth_x = at.upper_xx + c1 * at.response + c2 * (at.jacobian_x**2 + at.outer_x**2)
    return jnp.where(smooth_x > tiny, smooth_x, smooth_y), smooth_y


def _steps(method: SALVF, weights: Weights, smooth_x: Scalar, smooth_y: Scalar, dtype: jnp.dtype) -> Steps:
    asked = method.steps or Steps()
    gamma = jnp.where(weights.gamma2 > 0, weights.gamma2, weights.gamma1)
    return Steps(
        x=filled_rule(asked.x, Decay(1 / smooth_x, X_DECAY), dtype),
        y=filled_rule(asked.y, Decay(1 / smooth_y), dtype),
        z=filled_rule(asked.z, Z_STEP[bool(method.follow)] / (weights.c1 * gamma), dtype),
    )


def _direction(method: SALVF, at: Curvature, gamma1: Scalar | float, steps: Steps, dtype: jnp.dtype) -> Plain | Storm:
    """Storm with its numbers filled in; `Plain` has none."""
    direction = method.direction
    if not isinstance(direction, Storm):
        return direction
    # What the frozen (w, lam) miss: how grad_x ell moves through w*(x), and the stiffness J_x^2/gamma1 of mu at
    # fixed w.
    moving = at.response + at.jacobian_x**2 / gamma1
    beta = direction.beta
    if direction.schedule == "paper" and beta is None:
        uncapped = isinstance(steps.y, Decay)
        first = steps.y.scale * steps.y.a if uncapped else rate(steps.y, jnp.zeros((), int), dtype)
        beta = 1 / first**2
    return dataclasses.replace(
        direction,
        kappa=given(direction.kappa, KAPPA, dtype),
        beta=None if beta is None else given(beta, 0.0, dtype),
        unit=given(direction.unit, moving / KAPPA_CURVATURE, dtype),
    )
