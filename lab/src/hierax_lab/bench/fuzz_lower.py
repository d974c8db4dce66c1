"""Exact solutions of lower levels with at most two entries of y, for many x at once, in NumPy alone.

Equalities are eliminated: y = y_p(x) + Z t. Then t has two, one or no entries. Convex quadratic and linear objectives:
every point that may be optimal is listed (stationary points inside, on each line, on the circle, and all corners), and
the feasible one with the least G wins. Where several are optimal, those that F may prefer are on the list too. Other
objectives are sums over the entries of y and have no rows across them: a grid in each entry, refined by bisection.
"""

from typing import NamedTuple

import numpy as np

from hierax_lab.bench.fuzz_case import Case, lower_value

FEASIBLE = 1e-8  # violation of a row of norm one that counts as none
TIE = 1e-9  # values of G that are closer count as equal
SCAN_POINTS = 121  # of the grid in one entry of y
MAX_MINIMA = 3  # local minima of one entry that are kept
REACH = {"wells": 3.0, "waves": 3.0, "power": 3.0, "exp": 15.0}  # |y_j| beyond which no minimum is
HALVINGS = 45  # bisections of an interval around a minimum


class LowerSolutions(NamedTuple):
    """Optimal y at each x: `y[i, k]` is one where `optimal[i, k]`; `value[i]` is v(x_i), infinite without any."""

    y: np.ndarray
    optimal: np.ndarray
    value: np.ndarray


class Reduced(NamedTuple):
    """The lower level in t, y = base + t Z': lines a't <= rhs of norm one, perhaps a disc, quadratic G and F.

    Attributes:
        base: y_p(x), one per x.
        null: Z, whose columns are orthonormal.
        lines: a, one row per line.
        rhs: right-hand sides, per x and line.
        possible: per x, whether rows without t and the equalities can hold.
        disc: centre per x and squared radius per x, or None.
        lower: Hessian, and slope at t = 0 per x, of G (its quadratic part).
        upper: the same of F.
    """

    base: np.ndarray
    null: np.ndarray
    lines: np.ndarray
    rhs: np.ndarray
    possible: np.ndarray
    disc: tuple[np.ndarray, np.ndarray] | None
    lower: tuple[np.ndarray, np.ndarray]
    upper: tuple[np.ndarray, np.ndarray]


def solve_lower(case: Case, x: np.ndarray, relax: float = 0.0) -> LowerSolutions:
    """All optimal y that matter, at every row of x; `relax`: violation of a row that is allowed."""
    reduced = reduce(case, x, relax)
    size = reduced.null.shape[1]
    if case.form.lower in REACH:
        t = _of_sums(case, x, reduced)
    elif size == 0:
        t = np.zeros((len(x), 1, 0))
    else:
        t = _on_a_line(reduced) if size == 1 else _in_a_plane(reduced)
    feasible = np.isfinite(t).all(-1) & reduced.possible[:, None]
    t = np.where(np.isfinite(t), t, 0.0)
    feasible &= _inside(reduced, t)
    y = reduced.base[:, None, :] + t @ reduced.null.T
    values = lower_value(case.form, case.numbers, np.broadcast_to(x[:, None, :], (*y.shape[:2], x.shape[1])), y)
    values = np.where(feasible, values, np.inf)
    best = values.min(1)
    return LowerSolutions(y, feasible & (values <= best[:, None] + TIE), best)


def reduce(case: Case, x: np.ndarray, relax: float) -> Reduced:
    """Eliminate the equalities."""
    form, c = case.form, case.numbers
    base, null, possible = _eliminated(case, x, relax)
    matrix, rhs = _affine(case, x)
    rhs = rhs + relax - base @ matrix.T
    matrix = matrix @ null
    norms = np.linalg.norm(matrix, axis=1)
    flat = norms < 1e-12
    possible = possible & (rhs[:, flat] >= -FEASIBLE).all(1)
    lines, rhs = matrix[~flat] / norms[~flat, None], rhs[:, ~flat] / norms[~flat]
    disc = None
    if form.balls or form.y_set == "ball":
        centre = c["centre"] + x @ c["C"].T if form.balls else np.zeros((len(x), form.m))
        square = c["square"][0] if form.balls else 1.0
        away = centre - base
        inner = away @ null
        squares = square + relax - ((away - inner @ null.T) ** 2).sum(1)
        disc, possible = (inner, np.maximum(squares, 0.0)), possible & (squares >= 0)
    curvature = c["M"] if form.lower == "quadratic" else np.zeros((form.m, form.m))
    slope = c["q"] + x @ c["N"].T + base @ curvature
    q = c["Q"]
    above = c["f"][form.n :] + x @ q[: form.n, form.n :] + base @ q[form.n :, form.n :]
    return Reduced(
        base,
        null,
        lines,
        rhs,
        possible,
        disc,
        (null.T @ curvature @ null, slope @ null),
        (null.T @ q[form.n :, form.n :] @ null, above @ null),
    )


def _eliminated(case: Case, x: np.ndarray, relax: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """y_p(x), Z, and whether the equalities can hold at all."""
    form, c = case.form, case.numbers
    matrix, rhs = np.zeros((0, form.m)), np.zeros((len(x), 0))
    if form.equalities:
        matrix, rhs = c["E"], c["e"] - x @ c["D"].T
    if form.y_set == "simplex":
        matrix, rhs = np.vstack([matrix, np.ones(form.m)]), np.hstack([rhs, np.ones((len(x), 1))])
    if not len(matrix):
        return np.zeros((len(x), form.m)), np.eye(form.m), np.ones(len(x), bool)
    _, sizes, right = np.linalg.svd(matrix)
    rank = int((sizes > 1e-10).sum())
    base = rhs @ np.linalg.pinv(matrix, rcond=1e-10).T
    held = np.abs(base @ matrix.T - rhs).max(1) <= FEASIBLE + relax
    return base, right[rank:].T, np.asarray(held)


def _affine(case: Case, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The affine rows and the bounds of y: matrix y <= rhs."""
    form, c = case.form, case.numbers
    low, high = case.y_bounds
    one = np.eye(form.m)
    below, above = np.isfinite(low), np.isfinite(high)
    matrix = np.vstack([-one[below], one[above]])
    fixed = np.broadcast_to(np.concatenate([-low[below], high[above]]), (len(x), int(below.sum() + above.sum())))
    if not form.rows:
        return matrix, fixed
    return np.vstack([c["A"], matrix]), np.hstack([c["b"] - x @ c["B"].T, fixed])


def _inside(reduced: Reduced, t: np.ndarray) -> np.ndarray:
    inside = np.ones(t.shape[:2], bool)
    for a, rhs in zip(reduced.lines, reduced.rhs.T, strict=True):
        inside &= t @ a <= rhs[:, None] + FEASIBLE
    if reduced.disc is not None:
        centre, square = reduced.disc
        inside &= ((t - centre[:, None, :]) ** 2).sum(-1) <= square[:, None] + FEASIBLE
    return inside


def _interval(reduced: Reduced) -> tuple[np.ndarray, np.ndarray]:
    """Bounds of a single t."""
    low, high = np.full(len(reduced.base), -np.inf), np.full(len(reduced.base), np.inf)
    for a, rhs in zip(reduced.lines[:, 0], reduced.rhs.T, strict=True):
        if a > 0:
            high = np.minimum(high, rhs / a)
        else:
            low = np.maximum(low, rhs / a)
    if reduced.disc is not None:
        centre, square = reduced.disc[0][:, 0], np.sqrt(reduced.disc[1])
        low, high = np.maximum(low, centre - square), np.minimum(high, centre + square)
    return low, high


def _on_a_line(reduced: Reduced) -> np.ndarray:
    low, high = _interval(reduced)
    found = [low, high]
    for hessian, slope in (reduced.lower, reduced.upper):
        if hessian[0, 0] > 1e-12:
            found.append(np.clip(-slope[:, 0] / hessian[0, 0], low, np.maximum(low, high)))
    return np.stack(found, 1)[..., None]


def _in_a_plane(reduced: Reduced) -> np.ndarray:
    """Candidates in the plane: stationary points of G and of F, inside, on lines and on the circle, and corners."""
    count = len(reduced.base)
    lines, rhs = _with_valley(reduced)
    found = []
    for hessian, slope in (reduced.lower, reduced.upper):
        if abs(np.linalg.det(hessian)) > 1e-12:
            found.append(-slope @ np.linalg.inv(hessian).T)
        for a, right in zip(lines, rhs.T, strict=True):
            along, foot = np.array([-a[1], a[0]]), right[:, None] * a
            curvature = along @ hessian @ along
            if abs(curvature) > 1e-12:
                found.append(foot - (((foot @ hessian + slope) @ along) / curvature)[:, None] * along)
        if reduced.disc is not None:
            found.append(_on_the_circle(hessian, slope, *reduced.disc))
    for i in range(len(lines)):
        for j in range(i):
            pair = lines[[i, j]]
            if abs(np.linalg.det(pair)) > 1e-9:
                found.append(rhs[:, [i, j]] @ np.linalg.inv(pair).T)
        if reduced.disc is not None:
            found.extend(_line_and_circle(lines[i], rhs[:, i], *reduced.disc))
    return np.stack(found, 1) if found else np.full((count, 1, 2), np.nan)


def _with_valley(reduced: Reduced) -> tuple[np.ndarray, np.ndarray]:
    """The lines, and the bottom of the valley where G has curvature in one direction only."""
    hessian, slope = reduced.lower
    sizes, vectors = np.linalg.eigh(hessian)
    if not (abs(sizes[0]) < 1e-12 < sizes[1]):
        return reduced.lines, reduced.rhs
    across = vectors[:, 1]
    bottom = -(slope @ across) / sizes[1]
    return np.vstack([reduced.lines, across]), np.hstack([reduced.rhs, bottom[:, None]])


def _on_the_circle(hessian: np.ndarray, slope: np.ndarray, centre: np.ndarray, square: np.ndarray) -> np.ndarray:
    """The minimiser over a disc of a convex quadratic, where it is on the circle: (H + mu) u = -g by bisection."""
    sizes, vectors = np.linalg.eigh(hessian)
    radius = np.sqrt(square)[:, None]
    g = (slope + centre @ hessian) @ vectors
    low = np.full((len(slope), 1), max(0.0, -sizes[0]) + 1e-14)
    high = low + np.linalg.norm(g, axis=1, keepdims=True) / np.maximum(radius, 1e-14)
    for _ in range(100):
        middle = 0.5 * (low + high)
        outside = np.linalg.norm(g / (sizes + middle), axis=1, keepdims=True) > radius
        low, high = np.where(outside, middle, low), np.where(outside, high, middle)
    step = -g / (sizes + high)
    return centre + step @ vectors.T


def _line_and_circle(a: np.ndarray, rhs: np.ndarray, centre: np.ndarray, square: np.ndarray) -> list[np.ndarray]:
    away = rhs - centre @ a
    foot = centre + away[:, None] * a
    rest = square - away**2
    half = np.sqrt(np.where(rest >= 0, rest, np.nan))[:, None] * np.array([-a[1], a[0]])
    return [foot + half, foot - half]


# -- sums of functions of one entry -----------------------------------------------------------------------------------


def _of_sums(case: Case, x: np.ndarray, reduced: Reduced) -> np.ndarray:
    """Candidates of sums over the entries: all combinations of the best minima of each entry."""
    if case.form.m == 1:
        low, high = _interval(reduced)
    else:
        low, high = (np.broadcast_to(bound, (len(x), case.form.m)) for bound in case.y_bounds)
    entries = [
        entry_minima(case, x, j, *(bound if bound.ndim == 1 else bound[:, j] for bound in (low, high)))
        for j in range(case.form.m)
    ]
    if case.form.m == 1:
        return entries[0][..., None]
    first, second = entries
    grid = np.broadcast_arrays(first[:, :, None], second[:, None, :])
    return np.stack(grid, -1).reshape(len(x), -1, 2)


def entry_minima(case: Case, x: np.ndarray, j: int, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """The lowest local minima of G as a function of y_j between bounds, for every x."""
    at_x = x[:, None, :]
    reach = REACH[case.form.lower]
    low, high = np.maximum(low, -reach), np.minimum(high, reach)
    broken = low > high
    low = np.where(broken, high, low)
    t = low[:, None] + (high - low)[:, None] * np.linspace(0.0, 1.0, SCAN_POINTS)
    values = _entry(case, j, t, at_x)
    padded = np.pad(values, ((0, 0), (1, 1)), constant_values=np.inf)
    minimum = (values <= padded[:, :-2]) & (values <= padded[:, 2:])
    order = np.argsort(np.where(minimum, values, np.inf), 1)[:, :MAX_MINIMA]
    width = ((high - low) / (SCAN_POINTS - 1))[:, None]
    picked = np.take_along_axis(t, order, 1)
    left, right = np.maximum(picked - width, low[:, None]), np.minimum(picked + width, high[:, None])
    for _ in range(HALVINGS):
        middle = 0.5 * (left + right)
        rises = _entry_slope(case, j, middle, at_x) > 0
        left, right = np.where(rises, left, middle), np.where(rises, middle, right)
    found = np.where(np.take_along_axis(minimum, order, 1), 0.5 * (left + right), np.nan)
    return np.where(broken[:, None], np.nan, found)


def _entry(case: Case, j: int, t: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The part of G that depends on y_j = t."""
    c = case.numbers
    linear = (c["q"][j] + x @ c["N"][j]) * t
    match case.form.lower:
        case "wells":
            return linear + c["d"][j] * (t**2 - c["r"][j]) ** 2
        case "power":
            return linear + c["d"][j] * (t + 1.0) ** 2.5
        case "exp":
            return linear + 0.5 * c["M"][j, j] * t**2 + np.exp(c["v"][j] * t + c["s"][j] + x @ c["V"][j])
        case _:
            return linear + 0.5 * c["M"][j, j] * t**2 + c["b_wave"][j] * np.cos(c["v"][j] * t + c["s"][j])


def _entry_slope(case: Case, j: int, t: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The derivative of that part."""
    c = case.numbers
    linear = c["q"][j] + x @ c["N"][j]
    match case.form.lower:
        case "wells":
            return linear + 4 * c["d"][j] * t * (t**2 - c["r"][j])
        case "power":
            return linear + 2.5 * c["d"][j] * (t + 1.0) ** 1.5
        case "exp":
            rise = c["v"][j] * np.exp(c["v"][j] * t + c["s"][j] + x @ c["V"][j])
            return linear + c["M"][j, j] * t + rise
        case _:
            return linear + c["M"][j, j] * t - c["b_wave"][j] * c["v"][j] * np.sin(c["v"][j] * t + c["s"][j])
