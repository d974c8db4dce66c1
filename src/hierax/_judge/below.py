"""The certificate's view of the lower level: its solutions at x, and how far y is from one."""

from typing import Any, NamedTuple

import numpy as np

from hierax._base.text import numbers_of
from hierax._engine.programs import Branches, raveled, unraveled
from hierax._engine.vectors import Point, beyond, kkt_residual
from hierax._judge.inspection import Fields, Inspection
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.linear import Matrices, OutOfTime, SecondDerivatives
from hierax._math.lower_level import INACCURATE, INFEASIBLE, SOLVED, UNBOUNDED, LowerSolution, in_blocks
from hierax._problem.problem import Multipliers

CLOSE = 1e-4  # difference of values, in units of G, of solutions of the lower level between which x may stand
SAME, SAME_RESIDUAL = 1e-5, 1e-4  # gap, as a share of its range, and KKT residual of a y that may be a solution itself
BESIDE = 1e-3  # lengths of y within which the solution that is reached from y is y, less exactly
TIE = 3e-6  # lengths by which a point may miss a tie of two solutions of the lower level


class GapRange(NamedTuple):
    """What G changes over a length of y, to first and to second order; G - v over one of x; and by rounding."""

    first: float
    second: float
    tie: float
    rounding: float

    def within(self, tol: float) -> float:
        """What it changes when y moves by so many lengths."""
        return tol * self.first + tol**2 * self.second + self.rounding

    def at_tie(self, tol: float) -> float:
        """What it changes over the little by which x or y may miss a tie of two solutions of the lower level."""
        return min(tol, TIE) * (self.first + self.tie) + self.rounding


class Reference(NamedTuple):
    """Solutions of the lower level at a point's x.

    Attributes:
        best: the one of lowest value, which is v(x).
        local: the one that the point is compared with.
        branches: all that were found.
        status: how the best one ended.
    """

    best: Point
    local: Point
    branches: Branches
    status: int


def reference(look: Inspection, solver: AbstractLowerSolver | None) -> Reference:
    """The solutions of the lower level at x."""
    x, y = look.at
    try:
        found = look.vectors.branches(x, look.vectors.landed(x, y)[1]) if solver is None else _by(look, solver)
    except OutOfTime:
        found = Branches.none(y.size, look.programs.layout.rows, x.size)
    best = found.best()
    if best is None or found.unbounded:
        status = (
            UNBOUNDED
            if found.unbounded
            else INFEASIBLE
            if found.status.size and (found.status == INFEASIBLE).all()
            else INACCURATE
        )
        none = Point(x, y, np.zeros(look.programs.layout.rows))
        return Reference(none, none, found, status)
    lowest = Point(x, found.y[best], found.mu[best])
    return Reference(lowest, _near(look, found, best), found, int(found.status[best]))


def _near(look: Inspection, found: Branches, best: int) -> Point:
    """The solution of the lower level that the point is compared with.

    y itself, where nothing distinguishes it from a solution and the one that is reached from it is elsewhere: y*(x) may
    not be unique, and F depends on which is taken. Else that one, where it is as good, up to CLOSE, as the best one.
    """
    x, y = look.at
    near = 0 if found.status[0] == SOLVED and found.value[0] <= found.value[best] + CLOSE else best
    values, slope = look.vectors.values(x, y, found.mu[near]), look.vectors.lower_slope(x, y)
    gap = abs(float(values.lower) - found.value[best])
    first, tie = np.abs(slope[x.size :]).sum(), _tie(slope, found.slope[best])
    residual = kkt_residual(values, found.mu[near], look.programs.layout)
    elsewhere = np.max(np.abs(y - found.y[near]), initial=0.0) > BESIDE
    if elsewhere and gap <= max(SAME * (first + tie), 1e-9) and residual <= SAME_RESIDUAL:
        return Point(x, y, found.mu[near])
    return Point(x, found.y[near], found.mu[near])


def _tie(slope: np.ndarray, of_value: np.ndarray) -> float:
    """What G - v(x) changes over a length of x, at the gradients of G in (x, y) and of v.

    Where two solutions of the lower level are equally good, y is one of them only on one side of x, and nobody
    hits such an x to the last digit.
    """
    return float(np.abs(slope[: of_value.size] - of_value).sum())


def _by(look: Inspection, solver: AbstractLowerSolver) -> Branches:
    """The solution of a solver that the user chose, as the only branch."""
    one = look.setting.solve_lower(solver, look.setting.x, look.setting.y)
    y = raveled(one.y) / look.vectors.y_unit
    x = look.at[0]
    mu = raveled(in_blocks(one.multipliers, one.faces)) * look.vectors.row_units(x, y) / look.vectors.lower_unit
    values = look.vectors.values(x, y, mu)
    most = float(np.max(beyond(values, look.programs.layout), initial=0.0))
    none = np.zeros((1, look.x.size))
    return Branches(
        y[None], mu[None], np.array([float(values.lower)]), np.array([most]), np.array([int(one.status)]), none
    )


def lower_solution(look: Inspection, point: Point, status: int) -> LowerSolution:
    """A solution of the lower level in the user's units."""
    mu = point.mu * look.vectors.lower_unit / look.vectors.row_units(point.x, point.y)
    own, faces = look.setting.layout().split(mu)
    values = look.vectors.values(*point)
    raw = look.programs.raw_values(*look.programs.landed(look.x, point.y * look.vectors.y_unit))
    return LowerSolution(
        y=unraveled(look.setting.y, point.y * look.vectors.y_unit),
        multipliers=own,
        faces=faces,
        value=_scalar(float(raw.lower)),
        residual=_scalar(kkt_residual(values, point.mu, look.programs.layout)),
        status=_scalar(status),
        iterations=_scalar(0),
    )


def below(look: Inspection, at: Reference, value: float, given: Multipliers | None) -> Fields:
    """Gap, distance and KKT residual of y; what the gap is judged by."""
    raw = look.programs.raw_values(*look.programs.landed(look.x, look.y))
    point, unit = at.local, look.vectors.lower_unit
    residuals = [_residual(look, mu) for mu in (point.mu, _in_units(look, point.mu, given))]
    best = at.branches.best()
    of_value = at.branches.slope[0 if best is None else best]
    first = np.abs(look.vectors.lower_slope(point.x, point.y)[look.x.size :]).sum()
    second = 0.5 * _total_curvature(look.vectors.functions.matrices(*point))
    tie = _tie(look.vectors.lower_slope(*look.at), of_value)
    lowest = look.vectors.values(*at.best).lower
    distance = look.y - point.y * look.vectors.y_unit
    return Fields(
        {
            "lower_gap": float(raw.lower) - value,
            "distance": float(np.linalg.norm(distance)),
            "kkt_residual": min(residuals),
            "steepest": float(np.max(np.abs(point.mu), initial=0.0)),
            "branch_gap": (float(look.vectors.values(*point).lower) - float(lowest)) * unit,
            "gap_range": GapRange(
                float(first) * unit, float(second) * unit, tie * unit, 1e-12 * (abs(float(raw.lower)) + unit)
            ),
        },
        {},
    )


def _total_curvature(matrices: SecondDerivatives) -> float:
    """The sum of the sizes of all second derivatives of L in y; where they are not formed, one for every entry."""
    if isinstance(matrices, Matrices):
        return float(abs(matrices.hessian).sum())
    return float(matrices.curvatures().sum())


def _in_units(look: Inspection, mu: np.ndarray, given: Multipliers | None) -> np.ndarray:
    """Given multipliers in units, with the reference's `mu` for the faces of Y."""
    if given is None:
        return mu
    layout = look.programs.layout
    own = np.concatenate([numbers_of(given.inequalities), numbers_of(given.equalities)])
    mine = np.concatenate([np.flatnonzero(~layout.face & ~layout.equal), np.flatnonzero(~layout.face & layout.equal)])
    mu = mu.copy()
    mu[mine] = own * look.vectors.row_units(*look.at)[mine] / look.vectors.lower_unit
    return mu


def _residual(look: Inspection, mu: np.ndarray) -> float:
    return kkt_residual(look.vectors.values(*look.at, mu), mu, look.programs.layout)


def _scalar(number: float) -> Any:
    """A number as NumPy's arrays have it, where a solver's answer has JAX's."""
    return np.asarray(number)
