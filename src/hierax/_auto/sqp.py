"""Descent on a function that gives everything at once: SciPy's SLSQP, or L-BFGS-B without constraints."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np

from hierax._auto.constants import MAX_STALLED_EVALUATIONS, MUCH_LESS, ROUNDING, RUN_OFF, SQP_CHANGE
from hierax._auto.session import Work
from hierax._base.imports import lazy
from hierax._base.threads import SharedContext
from hierax._engine.vectors import Point

scipy_linalg, scipy_optimize = lazy("scipy.linalg"), lazy("scipy.optimize")


@contextmanager
def _without_runtime_warnings() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


without_runtime_warnings = SharedContext(_without_runtime_warnings)  # filters of warnings are those of all threads


class Evaluated(NamedTuple):
    """An objective, inequalities >= 0 and equalities = 0 at a point, one after another.

    Attributes:
        lines: one per function: its value, then its derivatives.
        above: how many inequalities there are.
    """

    lines: np.ndarray
    above: int

    @staticmethod
    def of(
        objective: tuple[float | np.ndarray, np.ndarray],
        above: tuple[np.ndarray, np.ndarray],
        equal: tuple[np.ndarray, np.ndarray],
    ) -> "Evaluated":
        """From values and derivatives of each kind."""
        parts = (np.asarray(objective[0])[None], objective[1][None]), above, equal
        lines = [np.concatenate([values[:, None], slopes], axis=1) for values, slopes in parts]
        return Evaluated(np.concatenate(lines), len(above[0]))

    @property
    def value(self) -> float:
        """The objective."""
        return float(self.lines[0, 0])

    @property
    def slope(self) -> np.ndarray:
        """Its gradient."""
        return self.lines[0, 1:]


def nowhere(entries: int, above: int, equal: int) -> Evaluated:
    """What a search over this number of entries is shown where its functions have no values."""
    lines = np.zeros((1 + above + equal, 1 + entries))
    lines[0, 0] = RUN_OFF
    return Evaluated(lines, above)


class Stop(NamedTuple):
    """When a search ends: after `iterations`, at a `change` of the objective, or when `work` has to end."""

    iterations: int
    change: float
    work: Work


class SearchAborted(Exception):
    """The iterates run away, or the work has to end: SLSQP has no way to stop on its own."""


class Progress:
    """The best point that a descent has seen; ends the descent where it gets nowhere."""

    def __init__(self, least: float = MUCH_LESS * ROUNDING) -> None:
        self.best: tuple[float, Point] | None = None
        self._least = least  # decrease that counts as progress
        self._stalled = 0  # evaluations since the last progress

    def note(self, value: float, violation: float, point: Point) -> None:
        """A point was evaluated, by how much it violates something included."""
        merit = value + RUN_OFF * max(violation - ROUNDING, 0.0)
        progress = self.best is None or merit < self.best[0] - self._least
        self._stalled = 0 if progress else self._stalled + 1
        if self.best is None or merit < self.best[0]:
            self.best = merit, point
        if self._stalled > MAX_STALLED_EVALUATIONS:
            raise SearchAborted


def slsqp(
    evaluate: Callable[[np.ndarray], Evaluated], start: np.ndarray, bounds: tuple[np.ndarray, np.ndarray], stop: Stop
) -> np.ndarray:
    """The last iterate; the caller judges it."""
    known: list[tuple[np.ndarray, bytes, Evaluated]] = []  # the latest point, which SLSQP asks for in four calls

    def at(u: np.ndarray) -> Evaluated:
        text = u.tobytes()
        if not known or known[0][1] != text:
            if not np.all(np.abs(u) < RUN_OFF) or (known and stop.work.passed):
                raise SearchAborted
            stop.work.evaluations += 1
            found = evaluate(u)
            if not np.isfinite(found.lines).all():
                lines = np.nan_to_num(found.lines, nan=RUN_OFF, posinf=RUN_OFF, neginf=-RUN_OFF)
                found = Evaluated(lines, found.above)
            known[:] = [(u.copy(), text, found)]
        return known[0][2]

    start = np.clip(start, *bounds)
    try:
        first = at(start)
        above, equal = np.arange(1, 1 + first.above), 1 + first.above
        kinds = [("ineq", above), ("eq", equal + _independent(first.lines[equal:, 1:]))]
        with without_runtime_warnings:
            found = scipy_optimize.minimize(
                lambda u: at(u).value,
                start,
                jac=lambda u: at(u).slope,
                bounds=np.stack(bounds, axis=1),
                constraints=[
                    {
                        "type": kind,
                        "fun": lambda u, rows=rows: at(u).lines[rows, 0],
                        "jac": lambda u, rows=rows: at(u).lines[rows, 1:],
                    }
                    for kind, rows in kinds
                    if rows.size
                ],
                method="SLSQP",
                options={"maxiter": stop.iterations, "ftol": stop.change},
            )
    except SearchAborted:
        return known[0][0] if known else start
    return found.x if np.isfinite(found.x).all() else known[0][0]


def quasi_newton(
    evaluate: Callable[[np.ndarray], Evaluated],
    start: np.ndarray,
    bounds: tuple[np.ndarray, np.ndarray],
    stop: Stop,
    flat: float = SQP_CHANGE,
) -> None:
    """L-BFGS-B on an objective without constraints; whoever evaluates it remembers the best point.

    It ends where the projected gradient is `flat`.
    """

    def value(u: np.ndarray) -> tuple[float, np.ndarray]:
        if stop.work.passed or not np.all(np.abs(u) < RUN_OFF):
            raise SearchAborted
        stop.work.evaluations += 1
        found = evaluate(u)
        return float(found.value), found.slope

    try:
        with without_runtime_warnings:
            scipy_optimize.minimize(
                value,
                start,
                jac=True,
                method="L-BFGS-B",
                bounds=np.stack(bounds, axis=1),
                options={"maxiter": stop.iterations, "ftol": 1e-4 * flat, "gtol": flat, "maxls": 30},
            )
    except SearchAborted:
        pass


def _independent(slopes: np.ndarray) -> np.ndarray:
    """Places of equalities whose gradients are independent: SLSQP gives up where one follows from the others."""
    if not len(slopes):
        return np.zeros(0, int)
    _, triangle, order = scipy_linalg.qr(slopes.T, mode="economic", pivoting=True)
    sizes = np.abs(np.diag(triangle))
    return np.sort(order[: int(np.sum(sizes > ROUNDING * max(sizes[0], np.finfo(float).tiny)))])
