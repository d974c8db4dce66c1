"""What the settings of SALVF must be: rules of its own, and those that tie one setting to another."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hierax._base.errors import InputError
from hierax._base.schedules import is_transformation
from hierax._base.settings import (
    AT_MOST_ONE,
    POSITIVE,
    TRUE_OR_FALSE,
    Rule,
    check_setting,
    check_settings,
    instance_of,
    is_whole,
    one_of,
)
from hierax._lower.base import AbstractLowerSolver
from hierax._methods.directions import Plain, Storm

if TYPE_CHECKING:
    from hierax._methods.salvf import SALVF

REPAIR = Rule(
    lambda value: isinstance(value, AbstractLowerSolver) or (is_whole(value) and value >= 0),
    "needs a number of steps, which cannot be negative, or a solver, hx.Exact() or hx.Conic()",
)


ADAPT = Rule(
    lambda value: value is None or (isinstance(value, tuple) and set(value) <= {"x", "y", "inner"}),
    'needs a tuple of names out of "x", "y" and "inner", or None for all steps that are not given',
)


GAMMA1 = Rule(
    lambda value: POSITIVE.fits(value) or (isinstance(value, float) and value == math.inf),
    "needs a positive number, inf for the plain Lagrangian, or None to have it estimated",
)


def check_direction(method: SALVF) -> None:
    """Refuse a direction that does not fit the steps."""
    check_settings(method, {"direction": instance_of((Plain, Storm), "hx.Plain() or hx.Storm()")})
    direction = method.direction
    if isinstance(direction, Plain):
        return
    check_settings(direction, {"schedule": one_of(None, "paper"), "z": TRUE_OR_FALSE})
    check_settings(direction, {"kappa": POSITIVE, "beta": POSITIVE})
    check_setting("Storm", "beta", None if direction.schedule else direction.beta, AT_MOST_ONE)
    hidden = method.steps is not None and is_transformation(method.steps.y)
    if hidden and (direction.beta is None or direction.schedule == "paper"):
        raise InputError(
            "Storm with an optax transformation as steps.y: alpha_k is hidden inside it, so beta_k cannot be "
            "formed. Give a constant, hx.Storm(beta=0.1), or use a number or schedule for steps.y."
        )
