"""Asks `hx.certify` about points that no solver chose: ones that are no solutions, and the judge's own optimum.

A certificate that is ok at a point with a fault is a false claim. One that is not ok at the optimum claims nothing
false and is counted apart.
"""

from typing import NamedTuple

import numpy as np

import hierax as hx
from hierax_lab.bench.fuzz_case import Case, to_user
from hierax_lab.bench.fuzz_grid import landscape, phi, project
from hierax_lab.bench.fuzz_judge import judge
from hierax_lab.bench.fuzz_solvers import solve_one

Y_OFFSETS = (0.03, -0.03, 0.005)  # by which y is moved off the lower solution, in core units


class Probed(NamedTuple):
    """Points with faults that are certified, in words; why the optimum is not, empty where it is."""

    false_ok: list[str]
    refused: str


def probe(case: Case, problem: hx.Problem, tol: float) -> Probed:
    """Certify points of a solvable problem whose worth the judge knows."""
    false_ok = []
    optimum = _optimum(case)
    for name, x, y in _doubtful(case, *optimum):
        faults = judge(case, x, y).faults()
        if faults and hx.certify(problem, *to_user(case, x, y)).ok(tol):
            false_ok.append(f"certify at {name}, x = {x}, y = {y}: {'; '.join(faults)}")
    reasons = hx.certify(problem, *to_user(case, *optimum)).reasons(tol)
    return Probed(false_ok, reasons[0] if reasons else "")


def _optimum(case: Case) -> tuple[np.ndarray, np.ndarray]:
    if case.planted is not None:
        return case.planted
    best = landscape(case).best
    return best.x, best.y


def _doubtful(case: Case, x: np.ndarray, y: np.ndarray) -> list[tuple[str, np.ndarray, np.ndarray]]:
    """Points of X with their lower solutions, far from the optimum and near it; the optimum with a y beside it."""
    rng = np.random.default_rng(0)
    low, high = np.clip(case.x_bounds, -2.0, 2.0)
    away = {"the start": case.start[0]}
    for reach in (0.5, 0.1, 0.03):
        away[f"x moved by {reach:g}"] = _in_x(
            case, np.clip(x + reach * rng.choice([-1.0, 1.0], case.form.n), low, high)
        )
    points = []
    for name, moved in away.items():
        below = phi(case, moved[None])[1][0] if case.planted is None else solve_one(case, moved)
        if below is not None and np.isfinite(below).all():
            points.append((name, moved, below))
    for off in Y_OFFSETS:
        aside = off * rng.choice([-1.0, 1.0], case.form.m)
        points.append((f"y moved by {off:g}", x, y + aside))
    return points


def _in_x(case: Case, x: np.ndarray) -> np.ndarray:
    return project(case, x[None])[0] if case.planted is None else np.clip(x, *case.x_bounds)
