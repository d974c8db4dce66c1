"""What experiments do to a data set before the first step: splits, scaling, product features."""

import operator
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hierax import InputError


class HasFeatures(Protocol):
    """A data set, or anything else whose `features` has a row per sample."""

    @property
    def features(self) -> np.ndarray: ...


def splits(dataset: HasFeatures, sizes: Sequence[int], seed: int) -> tuple[np.ndarray, ...]:
    """Disjoint random index arrays of the given sizes, usually (train, validation, test).

    Not stratified. The rows are shuffled once by `numpy.random.default_rng(seed)` and dealt out in order, so the first
    parts stay the same when a later size changes; rows beyond the sum of the sizes are left out.

    Args:
        dataset: anything whose `features` has a row per sample.
        sizes: how many rows each part gets.
        seed: of the shuffling.

    Examples:
        >>> from hierax_lab.datasets import load, splits
        >>> [len(part) for part in splits(load("pendigits"), (500, 100, 168), seed=0)]
        [500, 100, 168]
    """
    rows = len(dataset.features)
    try:
        counts = [operator.index(size) for size in sizes]
    except TypeError as error:
        raise InputError(f"sizes={sizes!r}: needs numbers of rows, for example (500, 100, 168).") from error
    if not counts or min(counts) < 1 or sum(counts) > rows:
        raise InputError(f"sizes={tuple(counts)}: needs numbers of at least one row, at most {rows} together.")
    shuffled = np.random.default_rng(seed).permutation(rows)
    return tuple(np.split(shuffled[: sum(counts)], np.cumsum(counts)[:-1]))


def scale(features: np.ndarray) -> np.ndarray:
    """Every column mapped to [-1, 1]; a constant column, which LIBSVM leaves out, to 0.

        x_ij <- -1 + 2 (x_ij - min_j)/(max_j - min_j)

    Minimum and maximum are those of all rows given.

    Args:
        features: one row per sample.

    Examples:
        >>> import numpy as np
        >>> from hierax_lab.datasets import scale
        >>> scale(np.array([[0.0, 5.0], [10.0, 5.0]])).tolist()
        [[-1.0, 0.0], [1.0, 0.0]]

    References:
        Chang, Lin: LIBSVM: a library for support vector machines, ACM Transactions on Intelligent Systems and
            Technology 2, 2011.
        docs/guides/datasets.md
    """
    features = _matrix(features)
    broken = np.flatnonzero(~np.isfinite(features).all(axis=0))
    if broken.size:
        raise InputError(
            f"features: column {broken[0]} holds NaN or infinite entries ({broken.size} such columns). Fill them in or "
            "leave their rows out before scaling."
        )
    low, width = features.min(axis=0), np.ptp(features, axis=0)
    return np.where(width > 0, -1.0 + 2.0 * (features - low) / np.where(width > 0, width, 1.0), 0.0)


def quadratic_features(features: np.ndarray) -> np.ndarray:
    """The d features and their d(d+1)/2 products, 8 -> 44; no constant column.

        (x_1, ..., x_d) -> (x_1, ..., x_d, x_1 x_1, x_1 x_2, ..., x_1 x_d, x_2 x_2, ..., x_d x_d) in R^(d + d (d+1)/2)

    Args:
        features: one row per sample.

    Examples:
        >>> import numpy as np
        >>> from hierax_lab.datasets import quadratic_features
        >>> quadratic_features(np.array([[2.0, 3.0]])).tolist()
        [[2.0, 3.0, 4.0, 6.0, 9.0]]

    References:
        docs/guides/datasets.md
    """
    features = _matrix(features)
    first, second = np.triu_indices(features.shape[1])
    return np.hstack([features, features[:, first] * features[:, second]])


def _matrix(features: np.ndarray) -> np.ndarray:
    features = np.asarray(features, dtype=np.float64)
    if features.ndim != 2 or not len(features):
        raise InputError(f"features: needs a matrix with one row per sample, got the shape {features.shape}.")
    return features
