"""Features of the support vector machine: as they are, with their products, or of an RBF kernel by landmarks.

A map is a dict of plain values and arrays, so that whoever holds one can be pickled and read without our code. With as
many landmarks as rows the kernel's features are exact: their inner products are the kernel matrix.
"""

from typing import Literal, NotRequired, TypedDict

import numpy as np
from jaxtyping import Float
from scipy import linalg
from sklearn.metrics.pairwise import rbf_kernel

from hierax._base.errors import InputError
from hierax.estimators._base import whole_number
from hierax.estimators._linear import ROUNDING

Kernel = Literal["linear", "quadratic", "rbf"]


class FeatureMap(TypedDict):
    """The map of a kernel; that of an RBF kernel has its width, its landmarks, and what whitens their kernel."""

    kernel: str
    gamma: NotRequired[float]
    landmarks: NotRequired[np.ndarray]
    whitening: NotRequired[np.ndarray]


def feature_map(
    kernel: str, features: Float[np.ndarray, "n d"], gamma: float | str, landmarks: int, rng: np.random.RandomState
) -> FeatureMap:
    """The map of a kernel; landmarks are drawn from the rows."""
    if kernel in ("linear", "quadratic"):
        return {"kernel": kernel}
    if kernel != "rbf":
        raise InputError(f'kernel={kernel!r} is not one of "linear", "quadratic", "rbf"')
    whole_number("landmarks", landmarks, 1)
    width = _gamma(gamma, features)
    few = features.shape[0] <= landmarks
    chosen = features if few else features[rng.choice(features.shape[0], landmarks, replace=False)]
    values, vectors = linalg.eigh(rbf_kernel(chosen, gamma=width))
    good = values > ROUNDING * values[-1]
    return {
        "kernel": "rbf",
        "gamma": width,
        "landmarks": chosen.copy(),
        "whitening": vectors[:, good] / np.sqrt(values[good]),
    }


def mapped(found: FeatureMap, features: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n D"]:
    """Rows of features under a map."""
    if found["kernel"] == "linear":
        return features
    if found["kernel"] == "quadratic":
        first, second = np.triu_indices(features.shape[1])
        return np.hstack([features, features[:, first] * features[:, second]])
    return rbf_kernel(features, found["landmarks"], gamma=found["gamma"]) @ found["whitening"]


def _gamma(gamma: float | str, features: np.ndarray) -> float:
    if isinstance(gamma, str) and gamma == "scale":
        spread = float(features.var()) * features.shape[1]
        return 1.0 / spread if spread > 0 else 1.0
    if isinstance(gamma, int | float | np.number) and not isinstance(gamma, bool) and gamma > 0:
        return float(gamma)
    raise InputError(f'gamma={gamma!r}: needs "scale" or a number > 0.')
