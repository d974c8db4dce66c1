"""Solvers by hand for `hierax bench race`: L-BFGS-B on phi(x) = F(x, y*(x)), written for each problem as one would.

Every function takes the numbers of a problem and returns phi with its gradient: an exact lower solve, which starts from
what the last one found, and one linear system for the gradient (implicit function theorem). They share the quadratic
program below. NumPy and SciPy alone.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import minimize

from hierax_lab.bench.race_statements import STATEMENTS, Data

Array = np.ndarray
Phi = Callable[[Array], tuple[float, Array]]
MAX_STEPS, EXACT = 60, 1e-10  # of a lower solve; relative length of its last step
OPTIONS = {"maxiter": 2000, "ftol": 1e-12, "gtol": 1e-8}


class QP:
    """min y'Hy/2 + c'y s.t. Ay <= b, with = in the first rows; H positive definite, given by its inverse.

    Of the dual: the rows held change all at once, from the last ones, until they are right; an interior point, where
    they do not get right, says which to hold.
    """

    def __init__(self, inverse: Array, rows: Array, equal: int = 0, held: Array | None = None) -> None:
        self.inverse, self.rows, self.equal, self.held = inverse, rows, equal, held
        self.turned = rows @ inverse
        self.products = self.turned @ rows.T

    def solve(self, c: Array, b: Array) -> tuple[Array, Array]:
        """The solution and the multipliers."""
        free = -self.inverse @ c
        slack = b - self.rows @ free
        multipliers = self._active(slack, self.held)
        if multipliers is None:
            multipliers = self._active(slack, self._interior(slack))
        if multipliers is None:
            raise ArithmeticError("a quadratic program was not solved")
        return free - self.turned.T @ multipliers, multipliers

    def _active(self, slack: Array, held: Array | None) -> Array | None:
        """The multipliers, from a guess of the rows held; None: there is none, or it does not get right."""
        if held is None:
            return None
        for _ in range(30):
            multipliers = np.zeros(len(slack))
            try:
                self.factor = cho_factor(self.products[np.ix_(held, held)])
            except np.linalg.LinAlgError:
                return None
            multipliers[held] = cho_solve(self.factor, -slack[held])
            left = slack + self.products @ multipliers
            right = np.where(held, multipliers > 0, left < -1e-12 * (1 + np.abs(slack)))
            right[: self.equal] = True
            if np.array_equal(right, held):
                self.held = right
                return multipliers
            held = right
        return None

    def _interior(self, slack: Array) -> Array:
        """Which rows are active, by Mehrotra's method on s = slack + K m >= 0, m >= 0, s m = 0; equations: s = 0."""
        k, free = self.products, np.arange(len(slack)) < self.equal
        m, one = np.where(free, 0.0, 1.0), np.where(free, 1.0, 0.0)
        s = np.where(free, 0.0, np.maximum(slack + k @ m, 1.0))
        for _ in range(60):
            off, gap = s - slack - k @ m, s * m
            if gap.max() + np.abs(off).max() < 1e-10 * (1 + np.abs(slack).max()):
                break
            small = 1e-13 * np.trace(k) / len(k)
            factor = cho_factor(k + np.diag(np.where(free, 1e-14, s / (m + one)) + small))

            def step(extra: Array, off: Array = off, factor: Any = factor, s: Array = s, m: Array = m) -> Any:
                dm = cho_solve(factor, off - s - extra)
                ds = np.where(free, 0.0, -s - extra - s * dm / (m + one))
                ratio = max((-dm / (m + one))[~free].max(), (-ds / (s + one))[~free].max(), 1e-16)
                return dm, ds, min(1.0, 0.99 / ratio)

            dm, ds, length = step(np.zeros(len(m)))
            share = ((s + length * ds) * (m + length * dm))[~free].sum() / gap.sum()
            centre = min(1.0, share**3) * gap.sum() / (~free).sum()
            dm, ds, length = step(np.where(free, 0.0, (ds * dm - centre) / (m + one)))
            m, s = m + length * dm, s + length * ds
        return free | (m > s)

    def adjoint(self, gradient: Array) -> tuple[Array, Array]:
        """(p, q) with Hp + A_held'q = -gradient, A_held p = 0; dF/dx is p'dL_y/dx + q'd(A_held y - b_held)/dx."""
        q, held = np.zeros(len(self.rows)), self.held
        q[held] = cho_solve(self.factor, -self.turned[held] @ gradient)
        return -self.inverse @ gradient - self.turned.T @ q, q


def ridge(d: Data) -> Phi:
    """A quadratic program of ten coefficients; its matrix changes with x."""
    n = len(d["train"])
    gram, right, held = 2 / n * d["train"].T @ d["train"], 2 / n * d["train"].T @ d["train_target"], None
    most = np.full(len(d["signs"]), d["most"])

    def phi(x: Array) -> tuple[float, Array]:
        nonlocal held
        weights = 2 * np.exp(x)
        qp = QP(np.linalg.inv(gram + np.diag(weights)), d["signs"], held=held)
        y, _ = qp.solve(-right, most)
        held, error = qp.held, d["rest"] @ y - d["rest_target"]
        p, _ = qp.adjoint(2 / len(error) * d["rest"].T @ error)
        return error @ error / len(error), p * weights * y

    return phi


def group_logistic(d: Data) -> Phi:
    """Newton's method on the KKT system: a quadratic program of the linearised rows at every step."""
    z, t, groups = d["train"] * d["train_labels"][:, None], d["rest"] * d["rest_labels"][:, None], d["groups"]
    y, mu, held = np.zeros(z.shape[1]), np.zeros(len(groups)), None

    def phi(x: Array) -> tuple[float, Array]:
        nonlocal y, mu, held
        for _ in range(MAX_STEPS):
            s = 1 / (1 + np.exp(z @ y))
            hessian = (z.T * (s * (1 - s))) @ z / len(z) + np.diag(2 * mu @ groups + 1e-10)
            qp = QP(np.linalg.inv(hessian), 2 * groups * y, held=held)
            step, mu = qp.solve(-z.T @ s / len(z), np.exp(x) - groups @ y**2)
            y, held = y + step, qp.held
            if np.abs(step).max() <= EXACT * (1 + np.abs(y).max()):
                break
        r = 1 / (1 + np.exp(t @ y))
        _, q = qp.adjoint(-t.T @ r / len(t))
        return np.logaddexp(0, -t @ y).mean(), -q * np.exp(x)

    return phi


def svm(d: Data) -> Phi:
    """Without the slack: min |w|^2/2 + sum s_i max(0, 1 - a_i'u)^2/2 over u = (w, b), by Newton's method."""
    a, t = d["train"], d["rest"]
    plain, u = np.diag(np.append(np.ones(a.shape[1] - 1), 1e-14)), np.zeros(a.shape[1])

    def phi(x: Array) -> tuple[float, Array]:
        nonlocal u
        weights = np.exp(x - x.max())
        weights /= weights.sum()

        def value(u: Array) -> float:
            return 0.5 * u[:-1] @ u[:-1] + 0.5 * weights @ np.maximum(1 - a @ u, 0) ** 2

        for _ in range(MAX_STEPS):
            left = np.maximum(1 - a @ u, 0)
            matrix = plain + (a.T * (weights * (left > 0))) @ a
            step, length = np.linalg.solve(matrix, a.T @ (weights * left) - plain @ u), 1.0
            if np.abs(step).max() <= EXACT * (1 + np.abs(u).max()):
                break
            while value(u + length * step) > value(u) and length > 1e-6:
                length /= 2
            u = u + length * step
        losses = np.exp(1 - t @ u)
        by_weight = left * (a @ np.linalg.solve(matrix, -t.T @ losses / len(t)))
        return losses.mean(), weights * (by_weight - weights @ by_weight)

    return phi


def pricing(d: Data) -> Phi:
    """A quadratic program of all followers; the rows of the budgets change with x."""
    goods, buyers, m = d["goods"], d["buyers"], len(d["wish"])
    inverse = np.linalg.inv(np.diag(d["own"]) + 0.2 / goods.shape[1] * buyers.T @ buyers)
    held, low = None, -np.eye(m)

    def phi(x: Array) -> tuple[float, Array]:
        nonlocal held
        price = goods @ x
        qp = QP(inverse, np.vstack([buyers * price, low]), held=held)
        y, mu = qp.solve(price - d["wish"], np.concatenate([d["budget"], np.zeros(m)]))
        held = qp.held
        p, q = qp.adjoint(-(price - 0.5))
        slope = -y + p * (1 + buyers.T @ mu[: len(buyers)]) + (buyers.T @ q[: len(buyers)]) * y
        return -(price - 0.5) @ y, goods.T @ slope

    return phi


def tolls(d: Data) -> Phi:
    """All used links cost the same; their flows follow from that cost, one number, by Newton's method."""
    time, room, tolled = d["time"], d["room"], d["tolled"]

    def flows(cost: float, x: Array) -> Array:
        return room * (np.maximum((cost - tolled @ x) / time - 1, 0) / 0.15) ** 0.25

    def phi(x: Array) -> tuple[float, Array]:
        low, high = 0.0, (time * (1 + 0.15 * (d["demand"] / room) ** 4) + tolled @ x).max()
        cost = high
        for _ in range(200):
            y = flows(cost, x)
            more = y.sum() - d["demand"]
            low, high = (low, cost) if more > 0 else (cost, high)
            used = y > 0
            rates = np.where(used, room**4 / (0.6 * time * np.where(used, y, 1) ** 3), 0)
            if abs(more) <= 1e-13 * d["demand"]:
                break
            cost = cost - more / rates.sum() if used.any() else high
            cost = cost if low < cost < high else 0.5 * (low + high)
        gradient = time * (1 + 0.75 * (y / room) ** 4)
        by_toll = rates * (gradient @ rates / rates.sum() - gradient)
        return time @ (y + 0.15 * y**5 / room**4) + 0.01 * x @ x, tolled.T @ by_toll + 0.02 * x

    return phi


def portfolio(d: Data) -> Phi:
    """A quadratic program over the simplex; its matrix changes with x."""
    m, rest = len(d["mean"]), d["rest"] - d["rest_mean"]
    later = 4 * rest.T @ rest / len(rest)
    rows, right, held = np.vstack([np.ones(m), -np.eye(m)]), np.append(1.0, np.zeros(m)), None

    def phi(x: Array) -> tuple[float, Array]:
        nonlocal held
        scale, sizes = np.exp(x[0]), np.exp(x[1:])
        qp = QP(np.linalg.inv(scale * d["risk"] + np.diag(0.01 * d["sectors"] @ sizes)), rows, 1, held)
        y, _ = qp.solve(-d["mean"], right)
        held = qp.held
        p, _ = qp.adjoint(later @ y - d["rest_mean"])
        slope = np.append(scale * p @ (d["risk"] @ y), 0.01 * sizes * (d["sectors"].T @ (p * y)))
        return 0.5 * y @ later @ y - d["rest_mean"] @ y, slope

    return phi


def planted(d: Data) -> Phi:
    """One quadratic program, set up once; x moves its cost and its right sides."""
    m, zeros = len(d["y"]), np.zeros(len(d["y"]))
    qp = QP(np.linalg.inv(d["hessian"]), np.vstack([d["matrix"], -np.eye(m)]))

    def phi(x: Array) -> tuple[float, Array]:
        y, _ = qp.solve(d["coupling"] @ x + d["cost"], np.concatenate([d["rhs"] + d["moves"] @ x, zeros]))
        dx, dy = x - d["x"], y - d["y"]
        p, q = qp.adjoint(d["gradient"] + dy)
        slope = -d["slope"] + 4 * dx + d["coupling"].T @ p - d["moves"].T @ q[: len(d["rhs"])]
        return d["gradient"] @ dy + 0.5 * dy @ dy - d["slope"] @ dx + 2 * dx @ dx, slope

    return phi


def cleaning(d: Data) -> Phi:
    """Newton's method on a logistic regression with weights."""
    z, t = d["train"] * d["train_labels"][:, None], d["rest"] * d["rest_labels"][:, None]
    n, y = len(z), np.zeros(z.shape[1])

    def phi(x: Array) -> tuple[float, Array]:
        nonlocal y
        for _ in range(MAX_STEPS):
            s = 1 / (1 + np.exp(z @ y))
            hessian = (z.T * (x * s * (1 - s))) @ z / n + 0.01 * np.eye(len(y))
            step = np.linalg.solve(hessian, z.T @ (x * s) / n - 0.01 * y)
            y = y + step
            if np.abs(step).max() <= EXACT * (1 + np.abs(y).max()):
                break
        r = 1 / (1 + np.exp(t @ y))
        p = np.linalg.solve(hessian, t.T @ r / len(t))
        return np.logaddexp(0, -t @ y).mean(), -(z @ p) * s / n

    return phi


def bodies(d: Data) -> Phi:
    """As `group_logistic`: a quadratic program of the linearised rows at every step."""
    y, mu, held = np.zeros(len(d["y"])), np.zeros(len(d["levels"])), None

    def phi(x: Array) -> tuple[float, Array]:
        nonlocal y, mu, held
        cost, room = d["cost"] + d["coupling"] @ x, d["levels"] + d["moves"] @ x
        for _ in range(MAX_STEPS):
            rows = d["weights"] * y - d["linear"]
            qp = QP(np.linalg.inv(d["hessian"] + np.diag(mu @ d["weights"])), rows, held=held)
            step, mu = qp.solve(d["hessian"] @ y - cost, room - 0.5 * d["weights"] @ y**2 + d["linear"] @ y)
            y, held = y + step, qp.held
            if np.abs(step).max() <= EXACT * (1 + np.abs(y).max()):
                break
        dx, dy = x - d["x"], y - d["y"]
        p, q = qp.adjoint(d["gradient"] + dy)
        slope = -d["slope"] + 4 * dx - d["coupling"].T @ p - d["moves"].T @ q
        return d["gradient"] @ dy + 0.5 * dy @ dy - d["slope"] @ dx + 2 * dx @ dx, slope

    return phi


BY_HAND: dict[str, Callable[[Data], Phi]] = {
    "ridge": ridge,
    "group logistic": group_logistic,
    "SVM weights": svm,
    "pricing": pricing,
    "tolls": tolls,
    "portfolio": portfolio,
    **{name: planted for name in STATEMENTS if name.startswith("planted")},
    "hyper-cleaning": cleaning,
    "QCQP 20+20": bodies,
}


def solve(name: str, d: Data) -> tuple[Array, dict[str, object]]:
    """The x at which L-BFGS-B ends; at a kink it may stall, so runs follow from there as long as they find lower."""
    statement, phi = STATEMENTS[name], BY_HAND[name](d)
    bounds, x, best = np.stack(statement.box(d), axis=1), statement.starts(d)[0], np.inf
    while True:
        found = minimize(phi, x, jac=True, method="L-BFGS-B", bounds=bounds, options=OPTIONS)
        x = found.x if found.fun < best else x
        if not found.fun < best - 1e-9 * (1 + abs(found.fun)):
            return x, {}
        best = found.fun
