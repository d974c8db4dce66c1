"""Where the searches of `Auto` ended that began at different starts: what is known of how global an answer is."""

from typing import NamedTuple

import numpy as np


class Starts(NamedTuple):
    """The ends of several starts.

    Attributes:
        values: F at the best valid point of every start, the given start first; NaN where a start led to none, or had
            no turn.
        said: what these values are of, and what follows from them, in words.
    """

    values: tuple[float, ...] = ()
    said: str = ""

    def after(self, text: str) -> "Starts":
        """The same values with words before those that are there."""
        return self._replace(said=f"{text} {self.said}".strip()) if self.values else self


def lowest_of_starts(found: list[tuple[int, float]], count: int) -> tuple[float, ...]:
    """The lowest value of each of `count` starts, of pairs (start, value).

    Examples:
        >>> lowest_of_starts([(0, 2.0), (0, 1.0), (2, 3.0)], 3)
        (1.0, nan, 3.0)
    """
    values = np.full(count, np.nan)
    for start, value in found:
        if 0 <= start < count:
            values[start] = np.fmin(values[start], value)
    return tuple(float(value) for value in values)
