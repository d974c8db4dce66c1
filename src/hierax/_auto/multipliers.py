"""Multipliers of the upper constraints at a point of the small or the penalty route."""

import numpy as np
from scipy.optimize import lsq_linear

from hierax._auto.polish import Point, Scales
from hierax._auto.vectors import Flat

ACTIVE = 1e-6  # an upper constraint above minus this is active


def upper_multipliers(flat: Flat, scales: Scales, point: Point) -> np.ndarray:
    r"""nu >= 0 of the upper constraints, by least squares on the stationarity of the whole problem.

    With A the active rows h of the lower level, L = f + mu.h, and H the active upper constraints (faces of X among
    them), the solution is stationary where, for some v, u and nu >= 0,

        F_x + H_x' nu + L_yx' v + h_x,A' u = 0,    F_y + H_y' nu + L_yy v + h_y,A' u = 0,    h_y,A v = 0,

    the equations of the hyper-gradient's adjoint (docs/certificate.md) with the constraints' own added.
    """
    own = flat.own_above
    nu = np.zeros(own)
    values, slopes = flat.at(*point)
    above = values.above >= -ACTIVE
    if not above[:own].any():
        return nu
    nx, units = flat.nx, np.concatenate([scales.x, scales.y])
    norms = np.linalg.norm(slopes.rows * units, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        active = flat.equal | (point.mu * norms / scales.lower > -values.rows / norms)
    rows, bent = slopes.rows[active], slopes.stationarity
    free = np.concatenate([slopes.above_equal, bent, rows])
    held = np.zeros((len(free), active.sum()))  # h_y,A v = 0 concerns v alone
    held[len(slopes.above_equal) :][: flat.ny] = rows[:, nx:].T
    matrix = np.concatenate([slopes.above[above] * units, free * units])
    matrix = np.concatenate([matrix, np.concatenate([np.zeros((above.sum(), active.sum())), held])], axis=1)
    right = np.concatenate([slopes.upper * units, np.zeros(active.sum())])
    if not (np.isfinite(matrix).all() and np.isfinite(right).all()):
        return nu
    lowest = np.concatenate([np.zeros(above.sum()), np.full(len(free), -np.inf)])
    found = lsq_linear(matrix.T, -right, (lowest, np.inf)).x[: above.sum()]
    nu[above[:own]] = found[: above[:own].sum()]
    return nu
