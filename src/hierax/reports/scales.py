"""Scales of charts: where a number lies, which part is in view, and the ticks. charts.js does the same in a browser.

A logarithm has no place for zero: zeros lie on a line of their own below the smallest positive number in view.
"""

import math
from typing import NamedTuple

import numpy as np

TICKS = 6  # about so many on an axis
FAR = 3.0  # widths of the middle nine tenths beyond which a point is left out of the first view
FEW = 4  # values of which none is called far from the others
FEW_DECADES = 3  # with fewer of them on an axis, other numbers are marked too
FLAT = 1e-9  # a range below this share of its values is none


class Scale(NamedTuple):
    """An axis: the range in view (of the logarithm, for `log`), and whether zero has a line below it."""

    low: float
    high: float
    log: bool = False
    zero: bool = False

    @property
    def zero_at(self) -> float:
        """Where zeros lie, in the logarithm."""
        return self.low + 0.04 * (self.high - self.low)

    def at(self, values: np.ndarray) -> np.ndarray:
        """Shares of the axis: 0 at its beginning, 1 at its end, NaN for what has no place on it."""
        values = np.asarray(values, float)
        if self.log:
            positive = values > 0
            lines = np.full(values.shape, np.nan)
            lines[positive] = np.log10(values[positive])
            if self.zero:
                lines[values == 0] = self.zero_at
            values = lines
        with np.errstate(invalid="ignore"):
            return (values - self.low) / (self.high - self.low)

    def ticks(self) -> list[tuple[float, str]]:
        """Shares of the axis, and what is written there."""
        if not self.log:
            return self._at_numbers(round_numbers(self.low, self.high))
        low = self.low + 0.11 * (self.high - self.low) if self.zero else self.low
        found = [(self._share(t), f"1e{t:g}" if not -3 <= t <= 4 else f"{10.0**t:g}") for t in _decades(low, self.high)]
        if len(found) < FEW_DECADES:
            found = self._at_numbers(_between_decades(low, self.high))
        return ([(self._share(self.zero_at), "0")] if self.zero else []) + found

    def _at_numbers(self, numbers: list[float]) -> list[tuple[float, str]]:
        return list(zip(map(float, self.at(np.array(numbers))), number_texts(numbers), strict=True))

    def _share(self, line: float) -> float:
        return (line - self.low) / (self.high - self.low)


def linear_scale(values: np.ndarray) -> Scale:
    """The scale on which all values are in view.

    Examples:
        >>> linear_scale(np.array([0.0, 10.0])).low
        -0.4
    """
    finite = values[np.isfinite(values)]
    return Scale(*_padded(float(finite.min()), float(finite.max()))) if finite.size else Scale(0.0, 1.0)


def first_scale(values: np.ndarray, reference: float | None) -> Scale:
    """The scale on which all values but those far from the others are in view, and the reference in any case."""
    finite = values[np.isfinite(values)]
    near = finite
    if finite.size > FEW:
        first, last = (float(q) for q in np.quantile(finite, [0.05, 0.95]))
        width = max(last - first, 1e-6 * (1 + abs(float(np.median(finite)))))
        near = finite[(finite >= first - FAR * width) & (finite <= last + FAR * width)]
    return linear_scale(near if reference is None else np.append(near, reference))


def log_scale(values: np.ndarray) -> Scale:
    """The scale of the logarithm on which all positive values are in view, and zeros on their line."""
    positive = values[np.isfinite(values) & (values > 0)]
    if not positive.size:
        return Scale(-1.0, 1.0, True, bool((values == 0).any()))
    low, high = _padded(math.log10(positive.min()), math.log10(positive.max()), 0.3)
    zero = bool((values == 0).any())
    return Scale(low - (0.14 * (high - low) if zero else 0.0), high, True, zero)


def _padded(low: float, high: float, least: float = 0.0) -> tuple[float, float]:
    """A range with some room on both sides."""
    width = high - low
    if width <= max(least, FLAT * max(abs(low), abs(high))):
        width = max(least, 0.1 * abs(low), 0.1 * abs(high)) or 1.0
        middle = 0.5 * (low + high)
        return middle - 0.6 * width, middle + 0.6 * width
    return low - 0.04 * width, high + 0.04 * width


def round_numbers(low: float, high: float) -> list[float]:
    """Round numbers between two others.

    Examples:
        >>> round_numbers(0.0, 1.0)
        [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    rough = (high - low) / TICKS
    if not (math.isfinite(rough) and rough > 0):
        return []
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(k * step, min(digits, 300)) + 0.0 for k in range(first, min(last, first + 3 * TICKS) + 1)]


def _decades(low: float, high: float) -> list[int]:
    first, last = math.ceil(low), math.floor(high)
    every = max(1, math.ceil((last - first + 1) / (TICKS + 1)))
    return list(range(first, last + 1, every))


def _between_decades(low: float, high: float) -> list[float]:
    """1, 2 and 5 times powers of ten between 10^low and 10^high; round numbers where these are too few."""
    powers = [10.0**k for k in range(math.floor(low), math.ceil(high) + 1)]
    found = [factor * power for power in powers for factor in (1, 2, 5) if 10**low <= factor * power <= 10**high]
    return found if len(found) > 1 else [t for t in round_numbers(10**low, 10**high) if t > 0]


def number_texts(numbers: list[float]) -> list[str]:
    """Numbers of an axis, with as many digits as it takes to tell them apart.

    Examples:
        >>> number_texts([1e8, 1e8 + 0.5])
        ['100000000', '100000000.5']
    """
    digits, largest = 6, max(map(abs, numbers), default=0.0)
    if len(numbers) > 1 and largest > 0:
        digits = min(max(digits, math.ceil(math.log10(largest / (numbers[-1] - numbers[-2]))) + 2), 15)
    return [f"{number:.{digits}g}" for number in numbers]
