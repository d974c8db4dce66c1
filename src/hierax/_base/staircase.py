"""Whole numbers that change with the outer step: the paper's sequences s_k, r_k and q_k.

A batch size is a shape, and a shape is a compiled program: so a sequence is a staircase with few distinct values, one
program each, and not a formula.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np

from hierax._base.errors import InputError
from hierax._base.settings import COUNT, Rule, is_whole

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

SIZE = Rule(
    lambda value: isinstance(value, Staircase) or COUNT.fits(value),
    "needs a whole number >= 1, an hx.Staircase of them, or None for the default",
)
SIZE_GIVEN = Rule(
    lambda value: value is not None and SIZE.fits(value),
    "needs a whole number >= 1, or an hx.Staircase of them; leave it out for the default",
)


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
