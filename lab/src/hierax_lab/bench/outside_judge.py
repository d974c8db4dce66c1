"""A judge that is not hierax's own: it solves the lower level by many runs of SciPy's SLSQP, and for one y on a grid.

A point counts as solved where it is feasible, its y is optimal below, and F is that of the best point known; where F is
better, the point is confirmed with more starts and tighter bounds. Nothing of hierax's solvers is used.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hierax import Box
from hierax.extend import lazy
from hierax_lab.problems.bolib.case import Case

optimize = lazy("scipy.optimize")

VIOLATION, GAP, VALUE = 1e-5, 1e-5, 1e-3  # largest violation, lower gap and error of F of a solved problem
CONFIRMED = 1e-7  # largest violation and gap of a point that beats the reference
FEASIBLE = 1e-8  # largest violation of a reference solution of the lower level
STARTS, CONFIRMING_STARTS = 25, 100  # of SLSQP: to judge a point, and to confirm one that beats the reference
GRID_POINTS = 2001  # for a single y
REACH = 10.0  # half width of the grid around y, in units of 1 + |y|, where y has no bounds


class Judgement(NamedTuple):
    """What the judge says of a point.

    Attributes:
        upper: F.
        violation: the largest of all constraints.
        gap: (f - v) / (1 + |v|); infinite where the judge found no feasible y.
        solved: whether it counts as solved.
        better: whether it is confirmed to be better than the reference.
    """

    upper: float
    violation: float
    gap: float
    solved: bool
    better: bool


class Judge:
    """Compiled functions of one case."""

    def __init__(self, case: Case) -> None:
        self.case = case

        def everything(x: jax.Array, y: jax.Array) -> tuple[jax.Array, ...]:
            empty = jnp.zeros(0)
            rows = jnp.stack(case.rows(x, y)) if case.rows else empty
            above = jnp.stack(case.upper_rows(x, y)) if case.upper_rows else empty
            return case.upper(x, y), case.lower(x, y), rows, above

        self._values = jax.jit(everything)
        self._lower = jax.jit(jax.value_and_grad(case.lower, 1))
        self._rows: Callable = jax.jit(lambda x, y: everything(x, y)[2])
        self._slopes: Callable = jax.jit(jax.jacfwd(lambda x, y: everything(x, y)[2], 1))

    def __call__(self, x: np.ndarray, y: np.ndarray, seed: int = 0) -> Judgement:
        """Judge a point."""
        x, y = (np.asarray(part, float).reshape(-1) for part in (x, y))
        upper, lower, rows, above = (np.asarray(part) for part in self._values(x, y))
        inside = [_beyond(box, part) for box, part in ((self.case.x_set, x), (self.case.y_set, y))]
        violation = max(np.max(rows, initial=0.0), np.max(above, initial=0.0), *inside)
        best, wanted = self.case.values[0], VALUE * (1 + abs(self.case.values[0]))
        if not (np.isfinite(upper) and np.isfinite(lower) and np.isfinite(violation)):
            return Judgement(float(upper), np.inf, np.inf, False, False)
        gap = self._gap(x, y, float(lower), STARTS, seed)
        fine = violation <= VIOLATION and gap <= GAP
        better = bool(upper < best - wanted and fine)
        if better:
            better = bool(max(violation, self._gap(x, y, float(lower), CONFIRMING_STARTS, seed)) <= CONFIRMED)
        solved = fine and (better or abs(upper - best) <= wanted)
        return Judgement(float(upper), float(violation), float(gap), bool(solved), better)

    def _gap(self, x: np.ndarray, y: np.ndarray, lower: float, starts: int, seed: int) -> float:
        value = self._value(x, y, starts, seed)
        return (lower - value) / (1 + abs(value)) if np.isfinite(value) else np.inf

    def _value(self, x: np.ndarray, y: np.ndarray, starts: int, seed: int) -> float:
        low, high = bounds_of(self.case.y_set, y.size)
        value = self._on_grid(x, y, low, high) if y.size == 1 else np.inf
        for start in self._starts(y, low, high, starts, seed):
            value = min(value, self._descend(x, start, low, high))
        return value

    def _on_grid(self, x: np.ndarray, y: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
        reach = REACH * (1 + abs(y[0]))
        grid = np.linspace(np.maximum(low, y - reach), np.minimum(high, y + reach), GRID_POINTS)
        _, values, rows, _ = jax.vmap(self._values, (None, 0))(x, grid)
        feasible = np.max(np.asarray(rows), axis=1, initial=0.0) <= FEASIBLE
        return float(np.min(np.where(feasible, np.asarray(values), np.inf)))

    def _starts(self, y: np.ndarray, low: np.ndarray, high: np.ndarray, count: int, seed: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        closed = np.isfinite(low) & np.isfinite(high)
        around = y + rng.choice([0.1, 1.0, 10.0], (count, 1)) * (1 + np.abs(y)) * rng.normal(size=(count, y.size))
        inside = np.where(closed, low, 0.0) + rng.uniform(size=(count, y.size)) * np.where(closed, high - low, 0.0)
        known = [y, np.asarray(self.case.best[1])]
        return np.clip(np.concatenate([known, np.where(closed, inside, around)]), low, high)

    def _descend(self, x: np.ndarray, start: np.ndarray, low: np.ndarray, high: np.ndarray) -> float:
        constraint = {"type": "ineq", "fun": lambda y: -np.asarray(self._rows(x, y))}
        constraint["jac"] = lambda y: -np.asarray(self._slopes(x, y))
        with np.errstate(all="ignore"):
            found = optimize.minimize(
                lambda y: tuple(np.asarray(part) for part in self._lower(x, y)),
                start,
                jac=True,
                bounds=np.stack([low, high], axis=1),
                constraints=[constraint] if self.case.rows else [],
                method="SLSQP",
                options={"maxiter": 200, "ftol": 1e-14},
            )
        if not np.isfinite(found.fun) or np.max(np.asarray(self._rows(x, found.x)), initial=0.0) > FEASIBLE:
            return np.inf
        return float(found.fun)


def bounds_of(convex_set: object, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Lowest and highest value of every entry of a point of the set."""
    if not isinstance(convex_set, Box):
        return np.full(count, -np.inf), np.full(count, np.inf)
    return np.broadcast_to(convex_set.lower, count), np.broadcast_to(convex_set.upper, count)


def _beyond(convex_set: object, point: np.ndarray) -> float:
    low, high = bounds_of(convex_set, point.size)
    return float(np.max([low - point, point - high, np.zeros_like(point)]))
