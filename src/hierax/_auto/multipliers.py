"""Multipliers of the upper constraints at a point of the small or the penalty route."""

import numpy as np

from hierax._auto.constants import ACTIVE
from hierax._auto.polish import Point
from hierax._auto.scales import Scales
from hierax._auto.vectors import VectorProblem
from hierax._base.lazy import lazy

scipy_optimize = lazy("scipy.optimize")


def upper_multipliers(vectors: VectorProblem, scales: Scales, point: Point) -> np.ndarray:
    r"""nu >= 0 of the upper constraints, by least squares on the stationarity of the whole problem.

    With A the active rows h of the lower level, L = f + mu.h, and H the active upper constraints (faces of X among
    them), the solution is stationary where, for some v, u and nu >= 0,

        F_x + H_x' nu + L_yx' v + h_x,A' u = 0,    F_y + H_y' nu + L_yy v + h_y,A' u = 0,    h_y,A v = 0,

    the equations of the hyper-gradient's adjoint (docs/certificate.md) with the constraints' own added.
    """
    layout = vectors.layout
    nu = np.zeros(layout.own_above)
    values, slopes = vectors.at(*point)
    above = values.above >= -ACTIVE
    own_above = above[: layout.own_above]
    if not own_above.any():
        return nu
    units = np.concatenate([scales.x, scales.y])
    norms = np.linalg.norm(slopes.rows * units, axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        active = layout.equal | (point.mu * norms / scales.lower > -values.rows / norms)
    rows = slopes.rows[active]
    free = np.concatenate([slopes.above_equal, slopes.stationarity, rows])  # lines whose factor has any sign
    held = np.zeros((len(free), active.sum()))  # h_y,A v = 0 concerns v alone
    held[len(slopes.above_equal) :][: layout.ny] = rows[:, layout.nx :].T
    matrix = np.concatenate([slopes.above[above] * units, free * units])
    matrix = np.concatenate([matrix, np.concatenate([np.zeros((above.sum(), active.sum())), held])], axis=1)
    right = np.concatenate([slopes.upper * units, np.zeros(active.sum())])
    if not (np.isfinite(matrix).all() and np.isfinite(right).all()):
        return nu
    least = np.concatenate([np.zeros(above.sum()), np.full(len(free), -np.inf)])
    found = scipy_optimize.lsq_linear(matrix.T, -right, (least, np.inf)).x
    nu[own_above] = found[: own_above.sum()]
    return nu
