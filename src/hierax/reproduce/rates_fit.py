"""Slopes on log-log axes with standard errors from the bootstrap over seeds."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64

RESAMPLES = 400
Values = Float64[np.ndarray, "..."]


class Slope(NamedTuple):
    """value = factor * at^slope with the standard error of the slope, and the means it was fitted to."""

    slope: float
    error: float
    factor: float
    at: Values
    mean: Values
    mean_error: Values


def standard_error(values: Values) -> float:
    """Of the mean of independent values."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


def fit(at: Values, per_seed: Values) -> Slope:
    """Least squares through (log at, log mean over seeds); `per_seed` has axes (seed, at).

    The seeds are resampled as a whole: the values of one run at different `at` depend on each other.
    """
    rng = np.random.default_rng(0)
    count = len(per_seed)
    mean = per_seed.mean(axis=0)
    slope, intercept = np.polyfit(np.log(at), np.log(mean), 1)
    again = [
        np.polyfit(np.log(at), np.log(per_seed[rng.integers(0, count, count)].mean(axis=0)), 1)[0]
        for _ in range(RESAMPLES)
    ]
    errors = per_seed.std(axis=0, ddof=1) / np.sqrt(count)
    return Slope(float(slope), float(np.std(again)), float(np.exp(intercept)), at, mean, errors)


def fit_independent(at: list[float], samples: list[Values]) -> Slope:
    """The same where every `at` has its own independent values, one per seed."""
    return fit(np.asarray(at, float), np.stack(samples, axis=1))


def as_json(slope: Slope) -> dict:
    """Plain lists and numbers."""
    return {key: value.tolist() if isinstance(value, np.ndarray) else value for key, value in slope._asdict().items()}
