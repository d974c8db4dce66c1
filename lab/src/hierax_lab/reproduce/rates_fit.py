"""Slopes on log-log axes with standard errors from the bootstrap over seeds.

A rate 1/s is a slope -1 here. Plain statistics: nothing in this file knows what was measured.
"""

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from jaxtyping import Float64

RESAMPLES = 400  # bootstrap samples behind a standard error
SAME_SLOPE = 0.1  # slopes that differ by less count as the same
Values = Float64[np.ndarray, "..."]


class Slope(TypedDict):
    """value = factor * at^slope with the standard error of the slope, and the means it was fitted to.

    `halves`: the slopes over the lower and the upper half of the last decade of `at`, and the standard error of their
    difference; None where fewer than three values lie there.
    """

    slope: float
    error: float
    halves: tuple[float, float, float] | None
    factor: float
    at: list[float]
    mean: list[float]
    mean_error: list[float]


def standard_error(values: Values) -> float:
    """Of the mean of independent values."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def fit(at: Values, per_seed: Values) -> Slope:
    """Least squares through (log at, log mean over seeds); `per_seed` has axes (seed, at).

    The seeds are resampled as a whole: the values of one run at different `at` depend on each other.
    """
    rng = np.random.default_rng(0)
    count = len(per_seed)
    weights = _weights(at)
    mean = per_seed.mean(axis=0)
    slope = float(weights @ np.log(mean))
    resampled = np.log([per_seed[rng.integers(0, count, count)].mean(axis=0) for _ in range(RESAMPLES)])
    return Slope(
        slope=slope,
        error=float(np.std(resampled @ weights)),
        halves=_halves(at, np.log(mean), resampled),
        factor=float(np.exp(np.mean(np.log(mean) - slope * np.log(at)))),
        at=at.tolist(),
        mean=mean.tolist(),
        mean_error=(per_seed.std(axis=0, ddof=1) / np.sqrt(count)).tolist(),
    )


def _weights(at: Values, used: np.ndarray | slice = slice(None)) -> Values:
    """The slope through the used values is the sum of weights * log mean."""
    weights, logs = np.zeros(len(at)), np.log(at[used])
    weights[used] = (logs - logs.mean()) / np.sum((logs - logs.mean()) ** 2)
    return weights


def _halves(at: Values, logs: Values, resampled: Values) -> tuple[float, float, float] | None:
    """Of the last decade in the direction in which the means fall; the middle value belongs to both halves."""
    order = np.argsort(at) if logs[np.argmax(at)] <= logs[np.argmin(at)] else np.argsort(-at)
    last = order[np.abs(np.log10(at[order] / at[order[-1]])) <= 1 + 1e-9]
    if len(last) < 3:
        return None
    middle = len(last) // 2
    lower, upper = (_weights(at, part) for part in (last[: middle + 1], last[middle:]))
    return float(lower @ logs), float(upper @ logs), float(np.std(resampled @ (upper - lower)))


def interval(found: Slope) -> tuple[float, float]:
    """95 % of the slope."""
    return found["slope"] - 1.96 * found["error"], found["slope"] + 1.96 * found["error"]


def stable(found: Slope) -> bool:
    """Whether both halves of the last decade have one slope, up to 0.1 or two standard errors of the difference."""
    if found["halves"] is None:
        return False
    lower, upper, error = found["halves"]
    return abs(upper - lower) <= max(SAME_SLOPE, 2 * error)


def fit_independent(at: Sequence[float] | Values, samples: list[Values]) -> Slope:
    """The same where every `at` has its own independent values, one per seed."""
    return fit(np.asarray(at, float), np.stack(samples, axis=1))
