"""Slopes on log-log axes with standard errors from the bootstrap over seeds.

A rate 1/s is a slope -1 here. Plain statistics: nothing in this file knows what was measured.
"""

from typing import TypedDict

import numpy as np
from jaxtyping import Float64

RESAMPLES = 400  # bootstrap samples behind a standard error
Values = Float64[np.ndarray, "..."]


class Slope(TypedDict):
    """value = factor * at^slope with the standard error of the slope, and the means it was fitted to."""

    slope: float
    error: float
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
    centred = np.log(at) - np.log(at).mean()
    weights = centred / np.sum(centred**2)  # slope = sum of weights * log mean
    mean = per_seed.mean(axis=0)
    slope = float(weights @ np.log(mean))
    resampled = np.stack([per_seed[rng.integers(0, count, count)].mean(axis=0) for _ in range(RESAMPLES)])
    return Slope(
        slope=slope,
        error=float(np.std(np.log(resampled) @ weights)),
        factor=float(np.exp(np.mean(np.log(mean) - slope * np.log(at)))),
        at=at.tolist(),
        mean=mean.tolist(),
        mean_error=(per_seed.std(axis=0, ddof=1) / np.sqrt(count)).tolist(),
    )


def fit_independent(at: list[float], samples: list[Values]) -> Slope:
    """The same where every `at` has its own independent values, one per seed."""
    return fit(np.asarray(at, float), np.stack(samples, axis=1))
