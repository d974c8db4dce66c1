"""Step rules that a user gives: schedules are tried out before a run, so that a wrong one is named."""

import sys
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np

from hierax._base.errors import InputError
from hierax._base.lazy import lazy
from hierax._base.settings import is_number

optax = lazy("optax")


def is_transformation(rule: object) -> bool:
    """Whether the rule is an optax transformation, which hides its step size; without optax there are none."""
    return "optax" in sys.modules and isinstance(rule, optax.GradientTransformation)


def check_schedule(
    name: str, rule: Callable[..., object], places: Iterable[tuple[float, ...]], where: str = "step"
) -> None:
    """Refuse a schedule that gives something else than a step length at some places, early and late."""
    for place in places:
        shown = ", ".join(f"{number:g}" for number in place)
        try:
            length = rule(*(jnp.asarray(number) for number in place))
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            raise InputError(f"{name}: the schedule failed at {where} {shown}: {told}") from error
        if not isinstance(length, jax.core.Tracer) and not (is_number(length) and 0 <= float(length) < np.inf):
            raise InputError(f"{name}: a schedule must return a number >= 0, got {length!r} at {where} {shown}.")
