"""What is wrong with settings of SALVF whatever the problem is: found when they are made, and named."""

from typing import Any

import equinox as eqx
import jax
import numpy as np

from hierax._base.errors import InputError
from hierax._base.settings import check_choice, check_count, check_positive
from hierax._base.trees import Number
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.salm import SALM
from hierax._methods.directions import Plain, Storm
from hierax._methods.steps import Steps, check_rule, is_transformation


def refuse_settings(method: Any) -> None:
    """Raise InputError for the first setting of a SALVF that no problem could make right."""
    for name in ("c1", "c2", "gamma1", "tau", "smoothness"):
        check_positive("SALVF", name, getattr(method, name))
    check_choice("SALVF", "penalty", method.penalty, ("multiplier", "quadratic"))
    check_choice("SALVF", "start", method.start, ("solve", "given"))
    check_count("SALVF", "batch_zeta", method.batch_zeta)
    check_count("SALVF", "batch_xi", method.batch_xi)
    _check_at_most_one("SALVF", "tau", method.tau)
    if method.steps is not None and not isinstance(method.steps, Steps):
        raise InputError(f"SALVF(steps): needs hx.Steps(x=, y=, z=), got {type(method.steps).__name__}.")
    for name in ("x", "y", "z"):
        check_rule(name, getattr(method.steps, name, None))
    _check_inner(method)
    _check_direction(method)
    if not isinstance(method.repair, AbstractLowerSolver) and method.repair < 0:
        raise InputError(f"SALVF(repair={method.repair}): the number of repair steps cannot be negative.")


def _check_inner(method: Any) -> None:
    inner = method.inner
    if isinstance(inner, SALM):
        check_positive("SALVF", "gamma2", method.gamma2)
        for name in ("eta", "rho", "eta_max", "rho_max"):
            check_positive("SALM", name, getattr(inner, name))
        check_choice("SALM", "rule", inner.rule, ("capped", "paper"))
        check_count("SALM", "batch", inner.batch)
        check_count("SALM", "steps", inner.steps)
        return
    name = type(inner).__name__
    if not isinstance(inner, AbstractLowerSolver):
        raise InputError(f"SALVF(inner): needs hx.SALM(), hx.Exact() or hx.Conic(), got {name}.")
    if method.gamma2 is not None and not eqx.is_array(method.gamma2):
        raise InputError(f"SALVF(gamma2={method.gamma2}): with inner={name}() gamma2 is 0; leave it unset.")
    if isinstance(method.repair, int) and method.repair:
        raise InputError(f"SALVF(repair={method.repair}): steps need inner=hx.SALM(); give repair=hx.{name}().")


def _check_direction(method: Any) -> None:
    direction = method.direction
    if not isinstance(direction, Plain | Storm):
        raise InputError(f"SALVF(direction): needs hx.Plain() or hx.Storm(), got {direction!r}.")
    if isinstance(direction, Plain):
        return
    check_choice("Storm", "schedule", direction.schedule, (None, "paper"))
    check_positive("Storm", "kappa", direction.kappa)
    check_positive("Storm", "beta", direction.beta)
    _check_at_most_one("Storm", "beta", None if direction.schedule else direction.beta)
    hidden = method.steps is not None and is_transformation(method.steps.y)
    if hidden and (direction.beta is None or direction.schedule == "paper"):
        raise InputError(
            "Storm with an optax transformation as steps.y: alpha_k is hidden inside it, so beta_k cannot be formed. "
            "Give a constant, hx.Storm(beta=0.1), or use a number or schedule for steps.y."
        )


def _check_at_most_one(owner: str, name: str, value: Number) -> None:
    if value is not None and not isinstance(value, jax.core.Tracer) and np.any(np.asarray(value) > 1):
        raise InputError(f"{owner}({name}={value}): must lie in (0, 1].")
