"""The rules that fill in what a user of SALVF leaves unset, from the norms of the problem (docs/method.md).

Dimensionless constants are fixed here; everything that carries units is estimated.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Scalar

from hierax._base.trees import Number
from hierax._lower.salm import SALM
from hierax._math.curvature import Curvature
from hierax._methods.directions import Storm
from hierax._methods.steps import Decay, Steps, is_transformation, rate
from hierax._problem.problem import Multipliers

C1_FACTOR = 5.0  # c1 in units of (curvature of F) / sqrt(L_G mu_G), both in y
SLOPE = 5.0  # weight of F's slope where it stands in for curvature: y is then off by |y|/25 or so
C2_FACTOR = {"multiplier": 10.0, "quadratic": 100.0}  # c2 in units of c1 L_G / ||J||^2
GAMMA_FACTOR = 0.08  # gamma in units of ||J||^2 / L_G: stiff enough to keep the noise of w off the constraints
TAU = 0.1
X_DECAY = 2.0  # a of the x-step, alpha_k = min(1, a (k+1)^(-1/3)) / L; that of y is 1.5
Z_STEP = 0.3  # in units of 1/(c1 gamma2)


def filled(method: Any, at: Curvature, scales: Multipliers, dtype: jnp.dtype) -> Any:
    """Every unset number from the norms of the problem (rules and their origin: docs/method.md)."""
    tiny = jnp.finfo(dtype).tiny

    def ratio(a: Scalar, b: Scalar, otherwise: float = 1.0) -> Scalar:
        return jnp.where((a > tiny) & (b > tiny), a / jnp.where(b > tiny, b, 1.0), otherwise)

    def given(value: Number, default: Number) -> Array:
        return jnp.asarray(default if value is None else value, dtype)

    lower, weakest = jnp.maximum(at.lower_yy, tiny), jnp.maximum(at.lower_yy_min, tiny)
    steepest = jnp.maximum(at.jacobian_y, at.outer_y)
    natural = ratio(steepest**2, lower)  # the gamma at which penalty and objective are equally curved
    gamma1 = given(method.gamma1, GAMMA_FACTOR * natural)
    gamma2 = jnp.zeros((), dtype) if method.exact else given(method.gamma2, GAMMA_FACTOR * natural)
    # Where F is not curved in y (a price times a quantity), its slope over the size of y takes the curvature's place.
    curved_upper = jnp.where(at.upper_yy > 1e-3 * at.upper_slope, at.upper_yy, SLOPE * at.upper_slope)
    c1 = given(method.c1, C1_FACTOR * ratio(curved_upper, jnp.sqrt(lower * weakest)))
    c2 = given(method.c2, C2_FACTOR[method.penalty] * c1 / natural)
    inner = method.inner
    if isinstance(inner, SALM):
        penalty = 1 / gamma1 + (1 / gamma2 if inner.dual_free else 0.0)
        curved = lower + at.jacobian_y**2 * penalty + at.constraint_yy  # L_w
        inner = dataclasses.replace(
            inner,
            eta=given(inner.eta, 1 / weakest),
            rho=given(inner.rho, 1 / gamma2),
            eta_max=given(inner.eta_max, 1 / curved),
            rho_max=given(inner.rho_max, ratio(curved, at.jacobian_y**2)),
        )
    smooth_y = at.upper_yy + c1 * (lower + at.constraint_yy) + c2 * (at.jacobian_y**2 + at.outer_y**2)
    smooth_x = at.upper_xx + c1 * at.response + c2 * (at.jacobian_x**2 + at.outer_x**2)
    smooth_x = jnp.where(smooth_x > tiny, smooth_x, smooth_y)
    asked = method.steps or Steps()
    steps = Steps(
        x=_rule(asked.x, Decay(1 / smooth_x, X_DECAY), dtype),
        y=_rule(asked.y, Decay(1 / smooth_y), dtype),
        z=_rule(asked.z, Z_STEP / (c1 * jnp.where(gamma2 > 0, gamma2, gamma1)), dtype),
    )
    direction = method.direction
    if isinstance(direction, Storm):
        # What the frozen (w, lam) miss: how grad_x ell moves through w*(x), and the stiffness J_x^2/gamma1 of mu
        # at fixed w. 8 + 1 on the toy with gamma = 1, where kappa = 10 was measured.
        moving = at.response + at.jacobian_x**2 / gamma1
        beta = direction.beta
        if direction.schedule == "paper" and beta is None:
            first = (
                steps.y.scale * steps.y.a if isinstance(steps.y, Decay) else rate(steps.y, jnp.zeros((), int), dtype)
            )
            beta = 1 / first**2
        direction = dataclasses.replace(
            direction,
            kappa=given(direction.kappa, 10.0),
            beta=None if beta is None else given(beta, 0.0),
            unit=given(direction.unit, moving / 9),
        )
    return dataclasses.replace(
        method,
        c1=c1,
        c2=c2,
        gamma1=gamma1,
        gamma2=gamma2,
        tau=given(method.tau, TAU),
        steps=steps,
        inner=inner,
        direction=direction,
        scales=jax.tree.map(lambda a: jnp.asarray(a, dtype), scales),
        smoothness=given(method.smoothness, jnp.maximum(smooth_x, smooth_y)),
    )


def _rule(asked: Any, default: Any, dtype: jnp.dtype) -> Any:
    rule = default if asked is None else asked
    if is_transformation(rule) or (callable(rule) and not isinstance(rule, Decay)):
        return rule
    return jax.tree.map(lambda a: jnp.asarray(a, dtype), rule)
