"""Checks of settings: a table of rules per class, and errors that name the setting, what it got and what it needs.

A module of settings lists its rules once, `check_settings(self, {"c1": POSITIVE, "batch_xi": COUNT, ...})`. Numbers
inside a compiled program cannot be looked at and always fit.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from hierax._base.errors import InputError


class Rule(NamedTuple):
    """What a setting must be: a test, and the words for it.

    Attributes:
        fits: whether a value is allowed.
        needs: what to write into the error after the name of the setting.
        shows_kind: name the type of a wrong value instead of showing the value (for objects).
    """

    fits: Callable[[object], bool]
    needs: str
    shows_kind: bool = False


def check_settings(owner: object, rules: Mapping[str, Rule]) -> None:
    """Raise InputError for the first setting of `owner` that breaks its rule."""
    for name, rule in rules.items():
        check_setting(type(owner).__name__, name, getattr(owner, name), rule)


def check_setting(owner: str, name: str, value: object, rule: Rule) -> None:
    """Raise InputError where a value breaks a rule."""
    if isinstance(value, jax.core.Tracer) or rule.fits(value):
        return
    if rule.shows_kind:
        raise InputError(f"{owner}({name}): {rule.needs}, got {type(value).__name__}.")
    raise InputError(f"{owner}({name}={value!r}): {rule.needs}.")


def is_whole(value: object) -> TypeGuard[int]:
    """Whether the value is a whole number, of Python or NumPy; True and False are none."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[float]:
    """Whether the value is one real number: of Python, NumPy or JAX, a scalar array included; True is none."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | float | np.number | np.ndarray | jax.Array):
        return False
    return np.ndim(value) == 0 and np.issubdtype(np.asarray(value).dtype, np.number) and not np.iscomplexobj(value)


def _numbers(value: object, fits: Callable[[np.ndarray], np.ndarray | bool]) -> bool:
    """Whether the value is a number, or a JAX array of them (one per start), all finite and fitting."""
    many = isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jnp.floating)
    if not many and not is_number(value):
        return False
    numbers = np.asarray(value)
    return bool(np.all(np.isfinite(numbers)) and np.all(fits(numbers)))


def _positive(value: object) -> bool:
    return _numbers(value, lambda a: a > 0)


def _whole(value: object) -> bool:
    return is_whole(value) and value >= 1


POSITIVE = Rule(
    lambda value: value is None or _positive(value), "needs a positive, finite number, or None to have it estimated"
)
POSITIVE_GIVEN = Rule(_positive, "needs a positive, finite number; leave it out for the default")
NOT_NEGATIVE = Rule(lambda value: _numbers(value, lambda a: a >= 0), "needs a finite number >= 0")
AT_MOST_ONE = Rule(
    lambda value: value is None or not _positive(value) or _numbers(value, lambda a: a <= 1), "must lie in (0, 1]"
)
COUNT = Rule(lambda value: value is None or _whole(value), "needs a whole number >= 1, or None for the default")
COUNT_GIVEN = Rule(_whole, "needs a whole number >= 1; leave it out for the default")


TRUE_OR_FALSE = Rule(lambda value: isinstance(value, bool), "needs True or False")
TRUE_FALSE_OR_UNSET = Rule(
    lambda value: value is None or isinstance(value, bool), "needs True, False, or None for the default"
)


def one_of(*choices: object) -> Rule:
    """One of the choices, each of its own type (1 is not True)."""

    def fits(value: object) -> bool:
        return any(type(value) is type(choice) and value == choice for choice in choices)

    return Rule(fits, f"choose one of {', '.join(map(repr, choices))}")


def in_interval(fits: Callable[[float], bool], name: str) -> Rule:
    """A number of an interval, for example `in_interval(lambda q: 0 <= q < 0.5, "[0, 1/2)")`."""

    def inside(numbers: np.ndarray) -> bool:
        return all(fits(float(number)) for number in np.ravel(numbers))

    return Rule(lambda value: _numbers(value, inside), f"must lie in {name}")


def instance_of(kinds: type | tuple[type, ...], needs: str) -> Rule:
    """An object of one of the kinds, for example `instance_of(Steps, "hx.Steps(x=, y=, z=)")`."""
    return Rule(lambda value: isinstance(value, kinds), f"needs {needs}", shows_kind=True)
