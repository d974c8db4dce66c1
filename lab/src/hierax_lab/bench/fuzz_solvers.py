"""Exact solvers for lower levels of any size, one x at a time: NumPy and SciPy, nothing of hierax.

Strictly convex quadratic programs become a least-distance problem and that a nonnegative least-squares one (Lawson and
Hanson, Solving Least Squares Problems, chapter 23), which ends after finitely many steps at the exact active set.
"""

from typing import NamedTuple

import numpy as np

from hierax.extend import lazy
from hierax_lab.bench.fuzz_case import Case
from hierax_lab.bench.fuzz_lower import entry_minima

optimize = lazy("scipy.optimize")

FEASIBLE = 1e-7  # violation beyond which a quadratic program counts as infeasible


class Rows(NamedTuple):
    """inequalities: matrix y <= rhs."""

    matrix: np.ndarray
    rhs: np.ndarray


class Solved(NamedTuple):
    """y, and the multipliers of the inequalities (bounds last); y is None where nothing is feasible."""

    y: np.ndarray | None
    multipliers: np.ndarray


def quadratic_program(m: np.ndarray, q: np.ndarray, rows: Rows, equal: Rows | None = None) -> Solved:
    """min q'y + y'My/2, M positive definite where the equalities hold, s.t. rows and equalities."""
    none = Solved(None, np.zeros(len(rows.rhs)))
    base, null = np.zeros(len(q)), np.eye(len(q))
    if equal is not None and len(equal.rhs):
        _, sizes, right = np.linalg.svd(equal.matrix)
        rank = int((sizes > 1e-10).sum())
        base, null = np.linalg.pinv(equal.matrix, rcond=1e-10) @ equal.rhs, right[rank:].T
        if np.abs(equal.matrix @ base - equal.rhs).max() > FEASIBLE:
            return none
    hessian, slope = null.T @ m @ null, null.T @ (q + m @ base)
    a, b = rows.matrix @ null, rows.rhs - rows.matrix @ base
    free = -np.linalg.solve(hessian, slope)
    if not len(b):
        return Solved(base + null @ free, np.zeros(0))
    root = np.linalg.cholesky(hessian)  # u = root' (t - free): the least |u| with -a root^-T u >= a free - b
    g = -np.linalg.solve(root, a.T)
    h = a @ free - b
    weights, _ = optimize.nnls(np.vstack([g, h]), np.append(np.zeros(len(slope)), 1.0), maxiter=50 * len(b) + 100)
    residual = np.append(g @ weights, h @ weights - 1.0)
    if np.linalg.norm(residual) < 1e-9:
        return none
    t = free - np.linalg.solve(root.T, residual[:-1] / residual[-1])
    t, multipliers = _polished(hessian, slope, a, b, t, weights > 1e-12)
    if (a @ t - b).max() > FEASIBLE:
        return none
    return Solved(base + null @ t, multipliers)


def _polished(
    hessian: np.ndarray, slope: np.ndarray, a: np.ndarray, b: np.ndarray, t: np.ndarray, active: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The equality-constrained solution on the active set, where it confirms t: more digits, and the multipliers."""
    multipliers = np.zeros(len(b))
    held = a[active]
    size = len(held)
    matrix = np.block([[hessian, held.T], [held, np.zeros((size, size))]])
    found = np.linalg.lstsq(matrix, np.concatenate([-slope, b[active]]), rcond=1e-13)[0]
    if np.abs(found[: len(t)] - t).max() > 1e-6 * (1 + np.abs(t).max()):
        return t, multipliers
    multipliers[active] = found[len(t) :]
    return found[: len(t)], multipliers


def linear_program(cost: np.ndarray, rows: Rows) -> np.ndarray | None:
    """A vertex that minimises cost'y subject to rows, by HiGHS; None where there is none."""
    found = optimize.linprog(cost, rows.matrix, rows.rhs, bounds=(None, None), method="highs-ds")
    return np.asarray(found.x) if found.status == 0 else None


def in_the_unit_ball(m: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, float]:
    """The minimiser of q'y + y'My/2 over |y| <= 1, M positive definite, and the multiplier of |y|^2 / 2 <= 1/2."""
    sizes, vectors = np.linalg.eigh(m)
    g = vectors.T @ q
    low, high = 0.0, float(np.linalg.norm(g))
    if np.linalg.norm(g / sizes) <= 1.0:
        return -vectors @ (g / sizes), 0.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if np.linalg.norm(g / (sizes + middle)) > 1.0 else (low, middle)
    y = -vectors @ (g / (sizes + high))
    return y / np.linalg.norm(y), high


def all_rows(case: Case, x: np.ndarray, relax: float = 0.0) -> Rows:
    """The affine rows and the bounds of y at x."""
    form, c = case.form, case.numbers
    low, high = case.y_bounds
    one = np.eye(form.m)
    below, above = np.isfinite(low), np.isfinite(high)
    matrix, rhs = [-one[below], one[above]], [-low[below], high[above]]
    if form.rows:
        matrix, rhs = [c["A"], *matrix], [c["b"] - c["B"] @ x, *rhs]
    return Rows(np.vstack(matrix), np.concatenate(rhs) + relax)


def solve_one(case: Case, x: np.ndarray, relax: float = 0.0) -> np.ndarray | None:
    """A solution of the lower level of a planted problem at x; None where it is infeasible."""
    form, c = case.form, case.numbers
    cost = c["q"] + c["N"] @ x
    if form.lower == "wells":
        low, high = case.y_bounds
        entries = [
            entry_minima(case, x[None], j, low[j : j + 1] - relax, high[j : j + 1] + relax)[0, 0] for j in range(form.m)
        ]
        return np.array(entries)
    if form.y_set == "ball":
        return in_the_unit_ball(c["M"], cost)[0]
    rows = all_rows(case, x, relax)
    if form.lower == "linear":
        return linear_program(cost, rows)
    equal = Rows(c["E"], c["e"] - c["D"] @ x) if form.equalities else None
    return quadratic_program(c["M"], cost, rows, equal).y
