"""Directions of y in which the lower objective falls by very little: moves that no residual tells from rounding.

Where G = 1e-8 y_0 - y_1, every y_0 has a KKT residual of 1e-8, and only one of them is the solution. So along the
directions in which G is flat but for its slope, and in which rows of large multipliers keep their values, the linear
program  min slope.d,  rows + J d <= 0,  |d| <= 1  says how far y can still go down. Its slope is scaled: however small
it is, it counts as long as rounding does not explain it.
"""

import numpy as np

from hierax._base.constants import NEGLIGIBLE
from hierax._base.imports import lazy
from hierax._lower.linear import ROUNDING, Matrices

scipy_optimize, scipy_linalg = lazy("scipy.optimize"), lazy("scipy.linalg")

FLAT = 1e-13  # slopes, in units and of the sizes that they are computed from, up to which they are rounding
MOST_ENTRIES = 100  # of y: what a singular value decomposition and a linear program take is nothing up to there


def slid(
    matrices: Matrices, slope: np.ndarray, unsure: float, rows: np.ndarray, mu: np.ndarray, equal: np.ndarray
) -> np.ndarray:
    """How y moves down; `slope` is the gradient of G, `mu` are good multipliers. Zeros where it stays.

    Slopes up to `unsure` are none: x may be meant to be where they vanish.
    """
    none = np.zeros(slope.size)
    if slope.size > MOST_ENTRIES or not matrices.finite or not isinstance(matrices.hessian, np.ndarray):
        return none
    jacobian = np.asarray(matrices.jacobian)
    held = equal | (mu > NEGLIGIBLE * np.max(mu, initial=1.0))
    curved = matrices.hessian
    free = scipy_linalg.null_space(np.concatenate([jacobian[held], curved, np.zeros((1, slope.size))]), ROUNDING)
    small = free @ (free.T @ slope)
    size = np.max(np.abs(small), initial=0.0)
    if size <= unsure + FLAT * (1 + np.abs(slope).sum() + np.abs(mu) @ np.abs(jacobian).sum(axis=1)):
        return none
    loose = ~held
    found = scipy_optimize.linprog(
        free.T @ (small / size),
        np.concatenate([jacobian[loose] @ free, free, -free]),
        np.concatenate([np.maximum(-rows[loose], 0.0), np.ones(2 * slope.size)]),
        bounds=(None, None),
    )
    return none if found.x is None else free @ found.x
