"""phi(x) = min F over the lower solutions at x and the upper rows, by brute force over x with at most two entries.

A grid over X, then smaller and smaller grids around its best local minima. Linear lower levels have x at which a whole
edge is optimal and F may be lowest inside it, which no nearby x shows: such x form points or lines, and those are
searched as well.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hierax_lab.bench.fuzz_case import Case, upper_rows_value, upper_value
from hierax_lab.bench.fuzz_lower import reduce, solve_lower

CHUNK = 4000  # points x at a time
POINTS = {1: 4001, 2: 91}  # grid points per entry of the first grid, by the number of entries of x
MAX_CENTRES = 10  # local minima of the grid that are refined
ROUNDS, NARROWING = 22, 0.5  # smaller grids around a centre, and the width of each as a part of the one before
FINE_POINTS = {1: 17, 2: 9}  # per entry of the smaller grids
UPPER_SLACK = 1e-9  # violation of an upper row that counts as none
FREE_REACH = 3.0  # half width of the first grid, where X has no bounds

Snap = Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]  # x to the nearest searched x, and whether it is one


class Best(NamedTuple):
    """The best point found: F, x, y; infinite F where there is none."""

    value: float
    x: np.ndarray
    y: np.ndarray


class Landscape(NamedTuple):
    """phi over X: the global optimum, and the range of phi near the origin of core units."""

    best: Best
    scale: float


def phi(case: Case, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """phi and the y that attains it, at every row of x; infinite where nothing is feasible."""
    parts = [_phi(case, x[i : i + CHUNK]) for i in range(0, len(x), CHUNK)]
    return np.concatenate([value for value, _ in parts]), np.concatenate([y for _, y in parts])


def _phi(case: Case, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    found = solve_lower(case, x)
    wide = np.broadcast_to(x[:, None, :], (*found.y.shape[:2], x.shape[1]))
    allowed = found.optimal
    if case.form.upper_rows:
        rows = upper_rows_value(case.form, case.numbers, wide, found.y)
        allowed = allowed & (rows <= UPPER_SLACK).all(-1)
    values = np.where(allowed, upper_value(case.form, case.numbers, wide, found.y), np.inf)
    pick = values.argmin(1)
    rows_of = np.arange(len(x))
    return values[rows_of, pick], found.y[rows_of, pick]


def project(case: Case, x: np.ndarray) -> np.ndarray:
    """The nearest points of X."""
    match case.form.x_set:
        case "ball":
            return x / np.maximum(1.0, np.linalg.norm(x, axis=-1, keepdims=True))
        case "simplex":  # of two entries
            first = np.clip(0.5 * (x[..., :1] - x[..., 1:] + 1.0), 0.0, 1.0)
            return np.concatenate([first, 1.0 - first], -1)
        case _:
            return np.clip(x, *case.x_bounds)


def snaps(case: Case) -> list[Snap]:
    """The whole of X; for a linear lower level also each set of x at which an edge has no cost along it."""

    def on_x(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return project(case, x), np.ones(len(x), bool)

    found: list[Snap] = [on_x]
    if case.form.lower != "linear":
        return found
    for along in _edges(case):
        slope, offset = along @ case.numbers["N"], float(along @ case.numbers["q"])
        if slope @ slope > 1e-12:
            found.append(_on_tie(case, slope, offset))
    return found


def _on_tie(case: Case, slope: np.ndarray, offset: float) -> Snap:
    def on_tie(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        flat = x - ((x @ slope + offset) / (slope @ slope))[:, None] * slope
        return flat, np.abs(project(case, flat) - flat).max(1) <= 1e-12

    return on_tie


def _edges(case: Case) -> list[np.ndarray]:
    """Directions of y along which an edge of the lower level's feasible set may run."""
    reduced = reduce(case, np.zeros((1, case.form.n)), 0.0)
    size = reduced.null.shape[1]
    if size == 1:
        return [reduced.null[:, 0]]
    return [reduced.null @ np.array([-a[1], a[0]]) for a in reduced.lines] if size == 2 else []


def landscape(case: Case, near: np.ndarray | None = None) -> Landscape:
    """The global optimum by a grid over X and refinement, also around the point `near`."""
    low, high = _region(case)
    grid = _mesh(low, high, POINTS[case.form.n])
    spacing = (high - low) / (POINTS[case.form.n] - 1)
    best, core = _nothing(case), np.zeros(0)
    for i, snap in enumerate(snaps(case)):
        values = _snapped(case, snap, grid)[0]
        if i == 0:
            x = snap(grid)[0]
            core = values[(np.abs(x) <= 1.0).all(1) & np.isfinite(values)]
        centres = grid[_local_minima(values, case.form.n)]
        if near is not None:
            centres = np.vstack([centres, near])
        best = min(best, _refined(case, snap, centres, spacing), key=lambda one: one.value)
    return Landscape(best, _scale(case, core))


def _region(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """A box that holds every x worth looking at, a little larger than a ball so that its sphere is hit."""
    match case.form.x_set:
        case "ball":
            low, high = -1.1 * np.ones(case.form.n), 1.1 * np.ones(case.form.n)
        case "simplex":
            low, high = np.zeros(case.form.n), np.ones(case.form.n)
        case _:
            low, high = (np.clip(bound, -FREE_REACH, FREE_REACH) for bound in case.x_bounds)
    return low, high


def _scale(case: Case, values: np.ndarray) -> float:
    """The natural scale of F: the range of phi over the core of X, at least a part of the range of F itself."""
    n, m = case.form.n, case.form.m
    points = np.random.default_rng(0).uniform(-1.0, 1.0, (500, n + m))
    upper = upper_value(case.form, case.numbers, points[:, :n], points[:, n:])
    least = 0.05 * float(np.ptp(upper))
    return max(least, float(np.ptp(values))) if values.size else least


def local_best(case: Case, x: np.ndarray, radius: float) -> Best:
    """The least phi within `radius` of x in every entry."""
    near = project(case, x[None])[0]
    low, high = near - radius, near + radius
    best = _nothing(case)
    count = {1: 401, 2: 41}[case.form.n]
    for snap in snaps(case):
        grid = np.vstack([_mesh(low, high, count), near])
        within = _within(snap, low, high)
        centres = grid[_lowest(_snapped(case, within, grid)[0], 4)]
        best = min(best, _refined(case, within, centres, (high - low) / (count - 1)), key=lambda one: one.value)
    return best


def _within(snap: Snap, low: np.ndarray, high: np.ndarray) -> Snap:
    def within(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        landed, valid = snap(x)
        return landed, valid & ((landed >= low - 1e-12) & (landed <= high + 1e-12)).all(1)

    return within


def _snapped(case: Case, snap: Snap, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    landed, valid = snap(x)
    values, y = np.full(len(x), np.inf), np.zeros((len(x), case.form.m))
    if valid.any():
        values[valid], y[valid] = phi(case, landed[valid])
    return values, landed, y


def _refined(case: Case, snap: Snap, centres: np.ndarray, spacing: np.ndarray) -> Best:
    """The best point of ever smaller grids around the centres; fewer centres as they become worse."""
    best, n = _nothing(case), case.form.n
    offsets = _mesh(-2.0 * np.ones(n), 2.0 * np.ones(n), FINE_POINTS[n])
    for turn in range(ROUNDS):
        points = (centres[:, None, :] + offsets * spacing).reshape(-1, n)
        values, x, y = _snapped(case, snap, points)
        if not np.isfinite(values).any():
            return best
        i = int(values.argmin())
        if values[i] < best.value:
            best = Best(float(values[i]), x[i], y[i])
        per_centre = values.reshape(len(centres), -1)
        picks = per_centre.argmin(1) + np.arange(len(centres)) * per_centre.shape[1]
        keep = _lowest(values[picks], len(centres) if turn < 4 else 3)
        centres, spacing = x[picks[keep]], spacing * NARROWING
    return best


def _mesh(low: np.ndarray, high: np.ndarray, count: int) -> np.ndarray:
    axes = [np.linspace(a, b, count) for a, b in zip(low, high, strict=True)]
    return np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, len(low))


def _local_minima(values: np.ndarray, n: int) -> np.ndarray:
    """Indices of the best grid points that no neighbour beats."""
    table = values.reshape((POINTS[n],) * n)
    padded = np.pad(table, 1, constant_values=np.inf)
    minimum = np.isfinite(table)
    for axis in range(n):
        for shift in (0, 2):
            window = tuple(slice(shift, shift + POINTS[n]) if i == axis else slice(1, 1 + POINTS[n]) for i in range(n))
            minimum &= table <= padded[window]
    return _lowest(np.where(minimum.ravel(), values, np.inf), MAX_CENTRES)


def _lowest(values: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(values, kind="stable")[:count]


def _nothing(case: Case) -> Best:
    return Best(np.inf, np.full(case.form.n, np.nan), np.full(case.form.m, np.nan))
