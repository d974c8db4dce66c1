"""Newton steps on the KKT conditions of a quadratic program with quadratic rows, after an interior-point solve.

Where the boundary is curved (a second-order cone), or a row is weakly active, a gap of 1e-9 leaves the interior-point
method's point and multipliers off by its square root, 3e-5. By then the active rows are known, or nearly, and a
semismooth Newton method on

    Pd + q + sum_i mu_i (J_i + Q_i d) = 0,    max(row_i, -mu_i) = 0 (equalities: row_i = 0)

gets the remaining digits in two or three steps. NumPy only: it runs on the host.
"""

from typing import NamedTuple

import numpy as np

STEPS = 5


class Quadratics(NamedTuple):
    """1/2 d'Pd + q'd, and rows r_i + J_i d + 1/2 d'Q_i d, with Q_i = 0 but for the rows in `curved`.

    Attributes:
        hessian: P.
        linear: q.
        slopes: J.
        values: r.
        bends: Q of the curved rows.
        curved: which rows they are.
        equal: which rows are equalities.
    """

    hessian: np.ndarray
    linear: np.ndarray
    slopes: np.ndarray
    values: np.ndarray
    bends: np.ndarray
    curved: np.ndarray
    equal: np.ndarray

    def at(self, step: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Rows and their gradients."""
        values, normals = self.values + self.slopes @ step, self.slopes.copy()
        bent = self.bends @ step
        values[self.curved] += 0.5 * bent @ step
        normals[self.curved] += bent
        return values, normals


def polished(form: Quadratics, step: np.ndarray, mu: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The best of (step, mu) and what a few Newton steps make of them."""
    n = step.size
    curvature = abs(np.trace(form.hessian)) / n or 1.0
    best, least = (step, mu), np.inf
    for _ in range(STEPS + 1):
        values, normals = form.at(step)
        sizes = np.maximum(np.linalg.norm(normals, axis=1), np.finfo(float).tiny)
        distance, weight = values / sizes, mu * sizes / curvature  # both in lengths, so that they compare
        gradient = form.hessian @ step + form.linear + normals.T @ mu
        natural = np.where(form.equal, distance, np.maximum(distance, -weight))
        error = max(np.abs(gradient).max() / curvature, np.abs(natural).max(initial=0.0))
        if not error < least:  # also where it is not a number
            break
        best, least = (step, np.where(form.equal, mu, np.maximum(mu, 0.0))), error
        active = np.flatnonzero(form.equal | (distance + weight > 0))
        hessian = form.hessian + np.tensordot(mu[form.curved], form.bends, 1)
        system = np.block([[hessian, normals[active].T], [normals[active], np.zeros((active.size, active.size))]])
        found = _solution(system, -np.concatenate([form.hessian @ step + form.linear, values[active]]))
        step, mu = step + found[:n], np.zeros_like(mu)
        mu[active] = found[n:]
    return best


def _solution(system: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Of the linear system; in the sense of least squares where active rows depend on each other."""
    try:
        found = np.linalg.solve(system, right)
        if np.abs(system @ found - right).max() <= 1e-9 * (1 + np.abs(right).max()):
            return found
    except np.linalg.LinAlgError:
        pass
    return np.linalg.lstsq(system, right)[0]
