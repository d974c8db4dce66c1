"""Units of the variables and of the two objectives, in which the small and the penalty route measure everything."""

from typing import NamedTuple

import numpy as np

from hierax._auto.constants import GRADIENT_UNITS, WIDEST_UNIT
from hierax._auto.vectors import Limits, VectorProblem


class Scales(NamedTuple):
    """Units: of x and y entry by entry, of F, and of f."""

    x: np.ndarray
    y: np.ndarray
    upper: float
    lower: float


def scales_of(vectors: VectorProblem) -> Scales:
    """Units of the variables from their bounds or their size; those of F and f from their gradients at the starts."""
    layout, cover = vectors.layout, vectors.cover
    x, y = _widths(vectors.x_limits, layout.x0), _widths(vectors.y_limits, layout.y0)
    both, no_multipliers = np.concatenate([x, y]), np.zeros(layout.rows)
    slopes = [vectors.at(a, b, no_multipliers)[1] for a, b in zip(cover.xs, cover.ys, strict=True)]
    return Scales(x, y, _typical(both, [s.upper for s in slopes]), _typical(both, [s.lower for s in slopes]))


def _widths(limits: Limits, start: np.ndarray) -> np.ndarray:
    half = 0.5 * (limits.high - limits.low)
    size = np.where(np.isfinite(half) & (half > 0), half, 1 + np.abs(start))
    return np.minimum(size, WIDEST_UNIT * (1 + np.abs(start)))


def _typical(units: np.ndarray, gradients: list[np.ndarray]) -> float:
    """The median norm of gradients in these units, within limits; one where none is finite."""
    with np.errstate(over="ignore", invalid="ignore"):
        norms = [norm for norm in (np.linalg.norm(units * g) for g in gradients) if np.isfinite(norm)]
    return float(np.clip(np.median(norms), *GRADIENT_UNITS)) if norms else 1.0
