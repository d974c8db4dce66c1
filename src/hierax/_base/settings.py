"""Settings: a table of rules per class, and errors that name the setting, what it got and what it needs.

A module of settings lists its rules once, `check_settings(self, {"c1": POSITIVE, "batch_xi": COUNT, ...})`. Numbers
inside a compiled program cannot be looked at and always fit. Schedules of step lengths are tried out before a run.

A batch size is a shape, and a shape is a compiled program: so sizes that change with the outer step (the paper's
sequences s_k, r_k and q_k) are a `Staircase` with few distinct values, one program each, and not a formula.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np

from hierax._base.errors import InputError
from hierax._base.imports import lazy


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
    shown, got = (name, f", got {type(value).__name__}") if rule.shows_kind else (f"{name}={value!r}", "")
    raise InputError(f"{owner}({shown}): {rule.needs}{got}.")


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


def _or_none(fits: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or fits(value)


POSITIVE_GIVEN = Rule(
    lambda value: _numbers(value, lambda a: a > 0), "needs a positive, finite number; leave it out for the default"
)
POSITIVE = Rule(_or_none(POSITIVE_GIVEN.fits), "needs a positive, finite number, or None to have it estimated")
NOT_NEGATIVE = Rule(lambda value: _numbers(value, lambda a: a >= 0), "needs a finite number >= 0")
AT_MOST_ONE = Rule(
    lambda value: not POSITIVE_GIVEN.fits(value) or _numbers(value, lambda a: a <= 1), "must lie in (0, 1]"
)
COUNT_GIVEN = Rule(
    lambda value: is_whole(value) and value >= 1, "needs a whole number >= 1; leave it out for the default"
)
COUNT = Rule(_or_none(COUNT_GIVEN.fits), "needs a whole number >= 1, or None for the default")
TRUE_OR_FALSE = Rule(lambda value: isinstance(value, bool), "needs True or False")
TRUE_FALSE_OR_UNSET = Rule(_or_none(TRUE_OR_FALSE.fits), "needs True, False, or None for the default")


def one_of(*choices: object) -> Rule:
    """One of the choices, each of its own type (1 is not True); NumPy's texts are texts."""

    def fits(value: object) -> bool:
        kind = str if isinstance(value, str) else type(value)
        return any(kind is type(choice) and value == choice for choice in choices)

    return Rule(fits, f"choose one of {', '.join(map(repr, choices))}")


def in_interval(fits: Callable[[float], bool], name: str) -> Rule:
    """A number of an interval, for example `in_interval(lambda q: 0 <= q < 0.5, "[0, 1/2)")`."""
    return Rule(lambda value: _numbers(value, lambda a: all(map(fits, np.ravel(a).tolist()))), f"must lie in {name}")


def instance_of(kinds: type | tuple[type, ...], needs: str) -> Rule:
    """An object of one of the kinds, for example `instance_of(Steps, "hx.Steps(x=, y=, z=)")`."""
    return Rule(lambda value: isinstance(value, kinds), f"needs {needs}", shows_kind=True)


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


NEVER = int(np.iinfo(np.int32).max)  # beyond the last step of any run: steps are counted in 32 bits


@dataclasses.dataclass(frozen=True, init=False)
class Staircase:
    """A batch size, or a number of inner steps, that changes at given outer steps.

        size(k) = sizes[j],   j the largest key with j <= k

    Args:
        sizes: from which outer step on (the first is 0) which size holds.

    Examples:
        >>> import hierax as hx
        >>> r = hx.Staircase({0: 4, 50: 16})
        >>> [r(k) for k in (0, 49, 50, 10_000)]
        [4, 4, 16, 16]
        >>> method = hx.SALVF(batch_zeta=r, inner=hx.SALM(steps=hx.Staircase({0: 10, 100: 20})))

    References:
        docs/methods/as-printed.md (the sizes r_k, q_k and s_k of the paper)
    """

    treads: tuple[tuple[int, int], ...]

    def __init__(self, sizes: Mapping[int, int]) -> None:
        if not isinstance(sizes, Mapping):
            raise InputError(f"Staircase(sizes): needs a dict {{first outer step: size}}, got {type(sizes).__name__}.")
        if 0 not in sizes:
            raise InputError(f"Staircase(sizes={sizes!r}): needs a size for outer step 0, the first one.")
        for step, size in sizes.items():
            if not is_whole(step) or step < 0:
                raise InputError(f"Staircase(sizes): {step!r} is no outer step; needs whole numbers >= 0 as keys.")
            if not is_whole(size) or size < 1:
                raise InputError(f"Staircase(sizes): {size!r} from step {step} on; needs whole numbers >= 1 as sizes.")
        object.__setattr__(self, "treads", tuple(sorted((int(step), int(size)) for step, size in sizes.items())))

    def __call__(self, step: int) -> int:
        """The size at an outer step."""
        return next(size for first, size in reversed(self.treads) if first <= step)


Size = int | Staircase | None

SIZE_GIVEN = Rule(
    lambda value: isinstance(value, Staircase) or COUNT_GIVEN.fits(value),
    "needs a whole number >= 1, or an hx.Staircase of them; leave it out for the default",
)
SIZE = Rule(_or_none(SIZE_GIVEN.fits), "needs a whole number >= 1, an hx.Staircase of them, or None for the default")


def size_at(size: Size, step: int) -> int | None:
    """The size at an outer step."""
    return size(step) if isinstance(size, Staircase) else size


def values_of(size: Size) -> tuple[int, ...]:
    """Every value that a size takes."""
    if isinstance(size, Staircase):
        return tuple(dict.fromkeys(value for _, value in size.treads))
    return () if size is None else (size,)


def stage_of(sizes: tuple[Size, ...], step: int) -> tuple[int, int]:
    """The first step at which all sizes were what they are at `step`, and the next one at which some size changes.

    Equal sizes have the same first step, and so the same programs.
    """
    edges = sorted({0, *(first for size in sizes if isinstance(size, Staircase) for first, _ in size.treads)})

    def now(at: int) -> list[int | None]:
        return [size_at(size, at) for size in sizes]

    stage = next(edge for edge in edges if now(edge) == now(step))
    return stage, next((edge for edge in edges if edge > step and now(edge) != now(step)), NEVER)
