"""Convex lower levels solved outside hierax: Clarabel, and around it Newton's method where G is not quadratic.

At given x the lower level is min G(y) over rows that are affine or convex quadratic in y, affine equalities and bounds.
Clarabel (P. Goulart, Y. Chen: Clarabel: an interior-point solver for conic programs with quadratic objectives, 2024)
solves it with the quadratic model of G; steps are halved until G falls enough. A few Newton steps on the KKT system of
the active rows then give the last digits, and the same system gives the derivative of y*(x).
"""

from typing import NamedTuple

import numpy as np

from hierax.extend import lazy
from hierax_lab.bench.medium_case import Functions

clarabel = lazy("clarabel", extra="conic")
sparse = lazy("scipy.sparse")

MAX_STEPS = 60  # of Newton's method, where G is not quadratic
SMALL_STEP = 1e-7  # relative length of a step after which Newton's method on the active rows takes over
SADDLE_TOLERANCE = 1e-8  # relative residual of a linear system that counts as solved
CLARABEL_TOLERANCE = 1e-10


class Unsolved(Exception):
    """The lower level has no solution at this x, or none was found."""


class LowerSolution(NamedTuple):
    """y*(x) with multipliers: of the rows, of the equalities, of the bounds of y (negative at the lower one)."""

    y: np.ndarray
    rows: np.ndarray
    equal: np.ndarray
    bounds: np.ndarray


class _Linear(NamedTuple):
    """matrix y <= rhs with equalities: what is affine in y at a given x."""

    matrix: np.ndarray
    rhs: np.ndarray
    equal: np.ndarray
    equal_rhs: np.ndarray


class LowerLevel:
    """The lower level of a case."""

    def __init__(self, functions: Functions) -> None:
        self.functions, self.case = functions, functions.case
        bounds = self.case.y_bounds
        self._below, self._above = np.flatnonzero(np.isfinite(bounds.low)), np.flatnonzero(np.isfinite(bounds.high))

    def solve(self, x: np.ndarray) -> LowerSolution:
        """y*(x) to about ten digits; raises `Unsolved`."""
        y = np.clip(self.functions.y0, self.case.y_bounds.low, self.case.y_bounds.high)
        found = self._model_solution(x, y)
        if self.case.quadratic:
            return self._polished(x, found)
        y = found.y  # feasible, which the start need not be
        for _ in range(MAX_STEPS):
            found = self._model_solution(x, y)
            step = found.y - y
            if np.linalg.norm(step) <= SMALL_STEP * (1 + np.linalg.norm(y)):
                break
            y = y + self._share(x, y, step) * step
        return self._polished(x, found)

    def derivative(self, x: np.ndarray, solution: LowerSolution) -> np.ndarray:
        """dy*/dx by the implicit function theorem on the active rows; of least norm where it is not unique."""
        f = self.functions
        hessian, cross, rows_x, equal_x = f.sensitivities(x, solution.y, solution.rows, solution.equal)
        normals, active = self._active(x, solution)
        moves = np.vstack([rows_x[active], equal_x, np.zeros((len(normals) - active.sum() - len(equal_x), x.size))])
        return -_saddle_solution(hessian, normals, np.vstack([cross, moves]))[: solution.y.size]

    def _active(self, x: np.ndarray, solution: LowerSolution) -> tuple[np.ndarray, np.ndarray]:
        """The normals of what holds with equality (rows, equalities, bounds), and which rows these are."""
        (rows, slopes), (_, equal) = self.functions.rows(x, solution.y), self.functions.equal(x, solution.y)
        active = solution.rows > np.maximum(-rows, 0.0)
        held = np.flatnonzero(solution.bounds)
        return np.vstack([slopes[active], equal, np.eye(solution.y.size)[held]]), active

    def _share(self, x: np.ndarray, y: np.ndarray, step: np.ndarray) -> float:
        """The first of 1, 1/2, ... at which G falls as its slope says (Armijo)."""
        value, slope = self.functions.lower(x, y)
        share = 1.0
        while share > 1e-10 and not self.functions.lower(x, y + share * step)[0] <= value + 0.1 * share * slope @ step:
            share *= 0.5
        return share

    def _model_solution(self, x: np.ndarray, y: np.ndarray) -> LowerSolution:
        """The minimiser of the quadratic model of G at y over the lower level's rows, by Clarabel."""
        hessian = self.functions.lower_hessian(x, y)
        cost = self.functions.lower(x, y)[1]
        linear = self._linear(x, y)
        blocks = [linear.equal, linear.matrix]
        rhs = [linear.equal_rhs, linear.rhs]
        cones = [clarabel.ZeroConeT(len(linear.equal_rhs)), clarabel.NonnegativeConeT(len(linear.rhs))]
        if self.case.quadratic_rows:
            for matrix, right in self._second_order(x, y):
                blocks.append(matrix)
                rhs.append(right)
                cones.append(clarabel.SecondOrderConeT(len(right)))
        settings = clarabel.DefaultSettings()
        settings.verbose, settings.max_threads = False, 1
        settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = CLARABEL_TOLERANCE
        upper = sparse.csc_matrix(np.triu(hessian))
        rows = sparse.csc_matrix(np.vstack(blocks))
        found = clarabel.DefaultSolver(upper, cost, rows, np.concatenate(rhs), cones, settings).solve()
        step = np.asarray(found.x)
        if "Infeasible" in str(found.status) or not np.isfinite(step).all():
            raise Unsolved(str(found.status))  # otherwise the KKT residual tells what the answer is worth
        return self._sorted(y + step, np.asarray(found.z), np.asarray(found.s), len(linear.equal_rhs))

    def _linear(self, x: np.ndarray, y: np.ndarray) -> _Linear:
        """Equalities, affine rows and bounds of a step from y; quadratic rows are left to `_second_order`."""
        f, one = self.functions, np.eye(self.functions.sizes.y)
        values, slopes = (part if not self.case.quadratic_rows else part[:0] for part in f.rows(x, y))
        equal, equal_slopes = f.equal(x, y)
        matrix = np.vstack([slopes, -one[self._below], one[self._above]])
        bounds = self.case.y_bounds
        rhs = np.concatenate([-values, (y - bounds.low)[self._below], (bounds.high - y)[self._above]])
        return _Linear(matrix, rhs, equal_slopes, -equal)

    def _second_order(self, x: np.ndarray, y: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Rows c + a'd + 1/2 |R d|^2 <= 0 of a step d as |(s - 1, sqrt(2) R d)| <= s + 1 with s = -c - a'd."""
        values, slopes = self.functions.rows(x, y)
        blocks = []
        for c, a, curvature in zip(values, slopes, self.functions.rows_hessian(x, y), strict=True):
            matrix = np.vstack([a, a, -(2.0**0.5) * _root(curvature)])
            blocks.append((matrix, np.concatenate([[1.0 - c, -1.0 - c], np.zeros(len(matrix) - 2)])))
        return blocks

    def _sorted(self, y: np.ndarray, z: np.ndarray, slack: np.ndarray, equalities: int) -> LowerSolution:
        """Clarabel's multipliers by rows, equalities and bounds; those smaller than their slack are zero."""
        count = 0 if self.case.quadratic_rows else len(z) - equalities - len(self._below) - len(self._above)
        equal, rest = z[:equalities], np.where(z > slack, z, 0.0)[equalities:]
        rows, rest = rest[:count], rest[count:]
        bounds = np.zeros(y.size)
        bounds[self._below] -= rest[: len(self._below)]
        bounds[self._above] += rest[len(self._below) : len(self._below) + len(self._above)]
        if self.case.quadratic_rows:
            cones = z[equalities + len(self._below) + len(self._above) :]
            rows = np.maximum(self._cone_multipliers(cones), 0.0)
        return LowerSolution(y, rows, equal, bounds)

    def _cone_multipliers(self, z: np.ndarray) -> np.ndarray:
        """The multiplier of a quadratic row: what stands before its a in the Lagrangian's gradient."""
        curvatures = self.functions.rows_hessian(np.zeros(self.functions.sizes.x), np.zeros(self.functions.sizes.y))
        lengths = [2 + len(_root(curvature)) for curvature in curvatures]
        firsts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(int)
        return np.asarray(z[firsts] + z[firsts + 1])

    def _polished(self, x: np.ndarray, solution: LowerSolution) -> LowerSolution:
        """Newton's method on the KKT system of the active rows, kept where it makes the residual smaller."""
        best, residual = solution, self.residual(x, solution)
        for _ in range(4):
            trial = self._newton(x, best)
            smaller = self.residual(x, trial)
            if not smaller < residual:
                break
            best, residual = trial, smaller
        if not residual <= 1e-5:
            raise Unsolved(f"KKT residual {residual:.1e}")
        return best._replace(y=np.clip(best.y, self.case.y_bounds.low, self.case.y_bounds.high))

    def _newton(self, x: np.ndarray, at: LowerSolution) -> LowerSolution:
        f = self.functions
        normals, active = self._active(x, at)
        held, count = np.flatnonzero(at.bounds), int(active.sum())
        gaps = np.concatenate([f.rows(x, at.y)[0][active], f.equal(x, at.y)[0], (at.y - self._bound(at))[held]])
        hessian = f.sensitivities(x, at.y, at.rows, at.equal)[0]
        slope = f.lower(x, at.y)[1]
        found = _saddle_solution(hessian, normals, np.concatenate([-slope, -gaps]))
        size, equalities = at.y.size, at.equal.size
        rows, bounds = np.zeros_like(at.rows), np.zeros_like(at.bounds)
        rows[active] = found[size : size + count]
        bounds[held] = found[size + count + equalities :]
        return LowerSolution(at.y + found[:size], rows, found[size + count : size + count + equalities], bounds)

    def _bound(self, at: LowerSolution) -> np.ndarray:
        return np.where(at.bounds < 0, self.case.y_bounds.low, self.case.y_bounds.high)

    def residual(self, x: np.ndarray, at: LowerSolution) -> float:
        """Stationarity, feasibility, signs and complementarity, the first relative to the terms that must cancel."""
        f = self.functions
        rows = f.rows(x, at.y)[0]
        slope = f.lower(x, at.y)[1]
        stationary = np.abs(f.kkt(x, at.y, at.rows, at.equal) + at.bounds).max() / (1 + np.abs(slope).max())
        infeasible = max(np.max(rows, initial=0.0), self.case.y_bounds.beyond(at.y))
        unequal = np.abs(f.equal(x, at.y)[0]).max(initial=0.0)
        sizes = 1 + np.abs(at.rows).max(initial=0.0)
        wrong = np.max(-at.rows, initial=0.0) / sizes
        slack = np.abs(at.rows * rows).max(initial=0.0) / sizes
        at_bounds = np.where(at.bounds != 0, np.abs(at.y - self._bound(at)), 0.0).max()
        signs = max(np.max(at.bounds[~np.isfinite(self.case.y_bounds.high)], initial=0.0), 0.0)
        return float(max(stationary, infeasible, unequal, wrong, slack, at_bounds, signs))


def _saddle_solution(hessian: np.ndarray, normals: np.ndarray, right: np.ndarray) -> np.ndarray:
    """The solution of [H N'; N 0] z = right; the one of least norm where the matrix is singular."""
    count = len(normals)
    matrix = np.block([[hessian, normals.T], [normals, np.zeros((count, count))]])
    try:
        found = np.linalg.solve(matrix, right)
        size = np.abs(matrix).max() * np.abs(found).max(initial=0.0) + np.abs(right).max(initial=0.0)
        if np.isfinite(found).all() and np.abs(matrix @ found - right).max(initial=0.0) <= SADDLE_TOLERANCE * (
            1 + size
        ):
            return found
    except np.linalg.LinAlgError:
        pass
    return np.linalg.lstsq(matrix, right, rcond=1e-11)[0]


def _root(matrix: np.ndarray) -> np.ndarray:
    """R with R'R = matrix, which is positive semidefinite; rows of zeros are left out."""
    if np.count_nonzero(matrix) == np.count_nonzero(np.diag(matrix)):
        return np.diag(np.sqrt(np.diag(matrix)))[np.diag(matrix) > 0]
    sizes, vectors = np.linalg.eigh(matrix)
    kept = sizes > 1e-12 * sizes.max()
    return (vectors[:, kept] * np.sqrt(sizes[kept])).T
