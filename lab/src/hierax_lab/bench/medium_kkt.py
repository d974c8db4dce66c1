"""The relaxed KKT form of a bilevel problem, solved by SciPy: the lower level is replaced by its KKT conditions.

Unknowns are x, y and the multipliers of rows, equalities and bounds of y; complementarity is lam_i (-h_i) <= eps (S.
Scholtes: Convergence properties of a regularization scheme for mathematical programs with complementarity constraints,
2001), with eps falling to 1e-8 from one run to the next.
"""

import time
import warnings
from collections.abc import Callable

import numpy as np

from hierax.extend import lazy
from hierax_lab.bench.medium_case import Functions
from hierax_lab.bench.medium_lower import LowerLevel, Unsolved
from hierax_lab.bench.medium_phi import TimeUp

optimize = lazy("scipy.optimize")

RELAXED = (1e-2, 1e-4, 1e-6, 1e-8)  # eps of one SLSQP run after another
MAX_ITERATIONS = 300  # of each run
Z = np.ndarray  # all unknowns: x, y, multipliers of rows, of equalities, of finite lower and upper bounds of y


class KKTForm:
    """Objective, equalities and inequalities (>= 0) of the relaxed KKT form, with Jacobians."""

    def __init__(self, functions: Functions, seconds: float) -> None:
        self.functions, self.case = functions, functions.case
        n, m, _ = functions.sizes
        rows = len(functions.rows(functions.x0, functions.y0)[0])
        equal = len(functions.equal(functions.x0, functions.y0)[0])
        bounds = self.case.y_bounds
        self._below, self._above = np.flatnonzero(np.isfinite(bounds.low)), np.flatnonzero(np.isfinite(bounds.high))
        self._cuts = np.cumsum([n, m, rows, equal, len(self._below)])
        self.size = int(self._cuts[-1] + len(self._above))
        self._until = time.process_time() + seconds
        self.last: Z | None = None

    def start(self) -> Z:
        """x0 and the lower solution there."""
        case, x = self.case, np.clip(self.functions.x0, self.case.x_bounds.low, self.case.x_bounds.high)
        try:
            found = LowerLevel(self.functions).solve(x)
        except Unsolved:
            return np.concatenate([x, np.clip(self.functions.y0, *case.y_bounds), np.zeros(self.size - self._cuts[1])])
        low, high = np.maximum(-found.bounds, 0.0)[self._below], np.maximum(found.bounds, 0.0)[self._above]
        return np.concatenate([x, found.y, np.maximum(found.rows, 0.0), found.equal, low, high])

    def bounds(self) -> np.ndarray:
        """Bounds of all unknowns."""
        x, y = self.case.x_bounds, self.case.y_bounds
        _, _, rows, equal, *_ = np.diff(np.concatenate([[0], self._cuts]))
        low = np.concatenate([x.low, y.low, np.zeros(rows), np.full(equal, -np.inf)])
        low = np.concatenate([low, np.zeros(self.size - len(low))])
        high = np.concatenate([x.high, y.high, np.full(self.size - x.high.size - y.high.size, np.inf)])
        return np.stack([low, high], axis=1)

    def split(self, z: Z) -> list[np.ndarray]:
        """x, y, and the four kinds of multipliers."""
        return np.split(z, self._cuts)

    def objective(self, z: Z) -> tuple[float, np.ndarray]:
        """F and its gradient; raises `TimeUp`."""
        if time.process_time() > self._until:
            raise TimeUp
        self.last = z.copy()
        x, y, *_ = self.split(z)
        value, (by_x, by_y) = self.functions.upper(x, y)
        return float(value), np.concatenate([by_x, by_y, np.zeros(self.size - x.size - y.size)])

    def equalities(self, z: Z) -> np.ndarray:
        """Stationarity of the Lagrangian in y, the lower level's equalities, those of X."""
        x, y, rows, equal, low, high = self.split(z)
        gradient = self.functions.kkt(x, y, rows, equal).copy()
        gradient[self._below] -= low
        gradient[self._above] += high
        own = [] if self.case.x_equalities is None else [self.case.x_equalities.residual(x)]
        return np.concatenate([gradient, self.functions.equal(x, y)[0], *own])

    def equalities_jacobian(self, z: Z) -> np.ndarray:
        """Its Jacobian."""
        x, y, rows, equal, _, _ = self.split(z)
        one = np.eye(y.size)
        parts = self.functions.kkt_jacobian(x, y, rows, equal)
        first = np.hstack([*parts, -one[:, self._below], one[:, self._above]])
        blocks = [first]
        if equal.size:
            by_x = self.functions.sensitivities(x, y, rows, equal)[3]
            blocks.append(self._padded(by_x, self.functions.equal(x, y)[1]))
        if self.case.x_equalities is not None:
            matrix = self.case.x_equalities.matrix
            blocks.append(self._padded(matrix, np.zeros((len(matrix), y.size))))
        return np.vstack(blocks)

    def inequalities(self, z: Z, eps: float) -> np.ndarray:
        """-h, eps - lam (-h) and the same for bounds, minus the upper rows: all to be >= 0."""
        x, y, rows, _, low, high = self.split(z)
        values = self.functions.rows(x, y)[0]
        below, above = (y - self.case.y_bounds.low)[self._below], (self.case.y_bounds.high - y)[self._above]
        complementary = [eps + rows * values, eps - low * below, eps - high * above]
        return np.concatenate([-values, *complementary, -self.functions.upper_rows(x, y)[0]])

    def inequalities_jacobian(self, z: Z) -> np.ndarray:
        """Its Jacobian."""
        x, y, rows, equal, low, high = self.split(z)
        values, by_y = self.functions.rows(x, y)
        by_x = self.functions.sensitivities(x, y, rows, equal)[2]
        slopes = self._padded(by_x, by_y)
        products = rows[:, None] * slopes
        products[:, self._cuts[1] : self._cuts[2]] += np.diag(values)
        below, above = (y - self.case.y_bounds.low)[self._below], (self.case.y_bounds.high - y)[self._above]
        at_low, at_high = np.zeros((low.size, self.size)), np.zeros((high.size, self.size))
        at_low[np.arange(low.size), x.size + self._below] = -low
        at_low[:, self._cuts[3] : self._cuts[4]] = -np.diag(below)
        at_high[np.arange(high.size), x.size + self._above] = high
        at_high[:, self._cuts[4] :] = -np.diag(above)
        _, upper_x, upper_y = self.functions.upper_rows(x, y)
        return np.vstack([-slopes, products, at_low, at_high, -self._padded(upper_x, upper_y)])

    def _padded(self, by_x: np.ndarray, by_y: np.ndarray) -> np.ndarray:
        return np.hstack([by_x, by_y, np.zeros((len(by_x), self.size - by_x.shape[1] - by_y.shape[1]))])


def slsqp(form: KKTForm) -> tuple[Z, str]:
    """Runs of SLSQP with falling eps, each from where the last one ended."""
    z, ended = form.start(), ""
    try:
        for eps in RELAXED:
            found = optimize.minimize(
                form.objective,
                z,
                jac=True,
                bounds=form.bounds(),
                constraints=[
                    {"type": "eq", "fun": form.equalities, "jac": form.equalities_jacobian},
                    {"type": "ineq", "fun": form.inequalities, "jac": _jacobian_of(form), "args": (eps,)},
                ],
                method="SLSQP",
                options={"maxiter": MAX_ITERATIONS, "ftol": 1e-10},
            )
            z, ended = found.x, f"exit {found.status}"
    except TimeUp:
        ended = "seconds"
    return z, ended


def _jacobian_of(form: KKTForm) -> Callable[[Z, float], np.ndarray]:
    """The inequalities' Jacobian, which does not depend on eps, as SLSQP calls it."""
    return lambda z, eps: form.inequalities_jacobian(z)


def trust_constr(form: KKTForm) -> tuple[Z, str]:
    """One run of SciPy's trust-region interior-point method with eps = 1e-6."""
    low, high = form.bounds().T
    constraints = [
        optimize.NonlinearConstraint(form.equalities, 0.0, 0.0, jac=form.equalities_jacobian),
        optimize.NonlinearConstraint(lambda z: form.inequalities(z, 1e-6), 0.0, np.inf, jac=form.inequalities_jacobian),
    ]
    start = form.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of SciPy, where a function is linear
            found = optimize.minimize(
                form.objective,
                start,
                jac=True,
                bounds=optimize.Bounds(low, high),
                constraints=constraints,
                method="trust-constr",
                options={"maxiter": MAX_ITERATIONS, "gtol": 1e-8, "xtol": 1e-10},
            )
        return found.x, f"exit {found.status}"
    except TimeUp:
        return start if form.last is None else form.last, "seconds"
