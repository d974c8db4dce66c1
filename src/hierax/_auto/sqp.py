"""Descent on a function that gives everything at once: SciPy's SLSQP, or L-BFGS-B without constraints."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hierax._auto.budget import Deadline
from hierax._auto.constants import NO_PROGRESS, RUN_OFF, UNIMPROVED
from hierax._base.lazy import lazy
from hierax._judge.vectors import Point

scipy_linalg, scipy_optimize = lazy("scipy.linalg"), lazy("scipy.optimize")

DEPENDENT = 1e-10  # relative size of what a gradient adds to the others, below which it adds nothing


class Evaluated(NamedTuple):
    """An objective, inequalities >= 0 and equalities = 0 at a point, each with its Jacobian."""

    value: np.ndarray | float
    slope: np.ndarray
    above: np.ndarray
    above_slope: np.ndarray
    equal: np.ndarray
    equal_slope: np.ndarray


class Stop(NamedTuple):
    """When SLSQP ends: after so many iterations, at such a change of the objective, or when the time is up."""

    iterations: int
    change: float
    deadline: Deadline


ALLOWED = 1e-9  # violation, in units, of points that are compared by their values


class LeftOff(Exception):
    """The iterates run away, or the time is up: SLSQP has no way to stop on its own."""


class Progress:
    """The best point that a descent has seen; ends the descent where it gets nowhere."""

    def __init__(self) -> None:
        self.best: tuple[float, Point] | None = None
        self._in_vain = 0  # evaluations since the last progress

    def note(self, value: float, violation: float, point: Point) -> None:
        """A point was evaluated, by how much it violates something included."""
        merit = value + RUN_OFF * max(violation - ALLOWED, 0.0)
        progress = self.best is None or merit < self.best[0] - NO_PROGRESS
        self._in_vain = 0 if progress else self._in_vain + 1
        if self.best is None or merit < self.best[0]:
            self.best = merit, point
        if self._in_vain > UNIMPROVED:
            raise LeftOff


def slsqp(
    evaluate: Callable[[np.ndarray], Evaluated], start: np.ndarray, bounds: tuple[np.ndarray, np.ndarray], stop: Stop
) -> np.ndarray:
    """The last iterate; the caller judges it."""
    known: list[tuple[np.ndarray, Evaluated]] = []  # the latest point, which SLSQP asks for in four calls

    def at(u: np.ndarray) -> Evaluated:
        if not known or not np.array_equal(known[0][0], u):
            if not np.all(np.abs(u) < RUN_OFF) or (known and stop.deadline.passed):
                raise LeftOff
            found = evaluate(u)
            if not all(np.isfinite(part).all() for part in found):
                found = Evaluated(
                    *(np.nan_to_num(part, nan=RUN_OFF, posinf=RUN_OFF, neginf=-RUN_OFF) for part in found)
                )
            known[:] = [(u.copy(), found)]
        return known[0][1]

    start = np.clip(start, *bounds)
    try:
        every = slice(None)
        kinds = [("ineq", "above", every), ("eq", "equal", _independent(at(start).equal_slope))]
        kinds = [(kind, name, rows) for kind, name, rows in kinds if getattr(at(start), name)[rows].size]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            found = scipy_optimize.minimize(
                lambda u: (at(u).value, at(u).slope),
                start,
                jac=True,
                bounds=np.stack(bounds, axis=1),
                constraints=[
                    {
                        "type": kind,
                        "fun": lambda u, name=name, rows=rows: getattr(at(u), name)[rows],
                        "jac": lambda u, name=name, rows=rows: getattr(at(u), f"{name}_slope")[rows],
                    }
                    for kind, name, rows in kinds
                ],
                method="SLSQP",
                options={"maxiter": stop.iterations, "ftol": stop.change},
            )
    except LeftOff:
        return known[0][0] if known else start
    return found.x if np.isfinite(found.x).all() else known[0][0]


def quasi_newton(
    evaluate: Callable[[np.ndarray], Evaluated],
    start: np.ndarray,
    bounds: tuple[np.ndarray, np.ndarray],
    stop: Stop,
    flat: float = 1e-11,
) -> None:
    """L-BFGS-B on an objective without constraints; whoever evaluates it remembers the best point.

    It ends where the projected gradient is `flat`.
    """

    def value(u: np.ndarray) -> tuple[float, np.ndarray]:
        if stop.deadline.passed:
            raise LeftOff
        found = evaluate(u)
        return float(found.value), found.slope

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            scipy_optimize.minimize(
                value,
                start,
                jac=True,
                method="L-BFGS-B",
                bounds=np.stack(bounds, axis=1),
                options={"maxiter": stop.iterations, "ftol": 1e-15, "gtol": flat, "maxls": 30},
            )
    except LeftOff:
        pass


def _independent(slopes: np.ndarray) -> np.ndarray:
    """Places of equalities whose gradients are independent: SLSQP gives up where one follows from the others."""
    if not len(slopes):
        return np.zeros(0, int)
    _, triangle, order = scipy_linalg.qr(slopes.T, mode="economic", pivoting=True)
    sizes = np.abs(np.diag(triangle))
    return np.sort(order[: int(np.sum(sizes > DEPENDENT * max(sizes[0], 1e-300)))])
