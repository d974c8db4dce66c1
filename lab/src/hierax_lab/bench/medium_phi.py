"""phi(x) = F(x, y*(x)) with lower solutions from outside hierax, and quasi-Newton methods of SciPy on it."""

import time
from typing import NamedTuple

import numpy as np

from hierax.extend import lazy
from hierax_lab.bench.medium_case import Bounds, Functions, MediumCase
from hierax_lab.bench.medium_lower import LowerLevel, Unsolved

optimize = lazy("scipy.optimize")

UNSOLVED = 1e12  # stands for phi where the lower level has no solution
FEASIBLE = 1e-6  # violation of the upper rows up to which a point is kept
MAX_ITERATIONS = 2000  # of one run of SciPy's methods
MAX_RUNS, MIN_PROGRESS = 20, 1e-9  # runs one after another; relative decrease of phi for another one


class TimeUp(Exception):
    """The seconds of a solver are over."""


class At(NamedTuple):
    """phi at a point: value and gradient, the upper rows and their Jacobian, both along y*(x)."""

    value: float
    gradient: np.ndarray
    rows: np.ndarray
    slopes: np.ndarray


def outside(case: MediumCase, x: np.ndarray) -> float:
    """By how much x violates the bounds and equations of X."""
    equal = 0.0 if case.x_equalities is None else np.abs(case.x_equalities.residual(x)).max()
    return max(case.x_bounds.beyond(x), float(equal))


class Phi:
    """phi of a case; the last point is remembered, and so is the best feasible one."""

    def __init__(self, functions: Functions, seconds: float = np.inf, evaluations: float = np.inf) -> None:
        self.functions, self.case, self.level = functions, functions.case, LowerLevel(functions)
        self._until, self._left = time.process_time() + seconds, evaluations
        self._last: tuple[np.ndarray, At] | None = None
        self.best: tuple[float, np.ndarray] = (np.inf, functions.x0)

    def lower_solution(self, x: np.ndarray) -> np.ndarray:
        """y*(x); raises `Unsolved`."""
        if self.case.lower_solution is not None:
            return self.case.lower_solution(x)
        return self.level.solve(x).y

    def __call__(self, x: np.ndarray) -> At:
        """Value and gradient at x."""
        if self._last is not None and np.array_equal(self._last[0], x):
            return self._last[1]
        if time.process_time() > self._until or self._left <= 0:
            raise TimeUp
        self._left -= 1
        try:
            at = self._evaluated(x)
        except Unsolved:
            count = len(self.functions.upper_rows(x, self.functions.y0)[0])
            at = At(UNSOLVED, np.zeros_like(x), np.zeros(count), np.zeros((count, x.size)))
        self._last = x.copy(), at
        if at.value < self.best[0] and self._feasible(x, at):
            self.best = at.value, x.copy()
        return at

    def _evaluated(self, x: np.ndarray) -> At:
        if self.case.phi is not None:
            return At(*self.case.phi(x), np.zeros(0), np.zeros((0, x.size)))
        solution = self.level.solve(x)
        derivative = self.level.derivative(x, solution)
        value, (by_x, by_y) = self.functions.upper(x, solution.y)
        rows, rows_x, rows_y = self.functions.upper_rows(x, solution.y)
        return At(float(value), by_x + derivative.T @ by_y, rows, rows_x + rows_y @ derivative)

    def _feasible(self, x: np.ndarray, at: At) -> bool:
        return bool(max(np.max(at.rows, initial=0.0), outside(self.case, x)) <= FEASIBLE)

    def minimised(self, x: np.ndarray, bounds: Bounds) -> np.ndarray:
        """The best point found from x: L-BFGS-B, or SLSQP where the upper level has rows or equalities of its own.

        phi has kinks, at which a run may stall: runs follow from the best point as long as they find a better one.
        """
        try:
            with_rows = len(self(x).rows) > 0 or self.case.x_equalities is not None
            for _ in range(MAX_RUNS):
                before = self.best[0]
                (self._sqp if with_rows else self._quasi_newton)(x, bounds)
                if not before - self.best[0] > MIN_PROGRESS * (1 + abs(self.best[0])):
                    break
                x = self.best[1]
        except TimeUp:
            pass
        return self.best[1]

    def _quasi_newton(self, x: np.ndarray, bounds: Bounds) -> None:
        optimize.minimize(
            lambda x: (self(x).value, self(x).gradient),
            x,
            jac=True,
            bounds=np.stack(bounds, axis=1),
            method="L-BFGS-B",
            options={"maxiter": MAX_ITERATIONS, "maxfun": 2 * MAX_ITERATIONS, "ftol": 1e-13, "gtol": 1e-9},
        )

    def _sqp(self, x: np.ndarray, bounds: Bounds) -> None:
        constraints = [
            {"type": "ineq", "fun": lambda x: -self(x).rows, "jac": lambda x: -self(x).slopes},
        ]
        if self.case.x_equalities is not None:
            equations = self.case.x_equalities
            constraints.append({"type": "eq", "fun": equations.residual, "jac": lambda x: equations.matrix})
        optimize.minimize(
            lambda x: (self(x).value, self(x).gradient),
            x,
            jac=True,
            bounds=np.stack(bounds, axis=1),
            constraints=constraints,
            method="SLSQP",
            options={"maxiter": MAX_ITERATIONS, "ftol": 1e-12},
        )
