"""What an answer to a random problem is worth, in core units and by code that shares nothing with hierax.

Every accusation has a witness: a row that is violated, a y that is feasible and lower in G, or a point of phi within
the radius with a lower F. Tolerances are far wider than what the solver promises (1e-4), since its lengths and scales
are not the generator's: what is accused here is wrong by any reading.
"""

import dataclasses

import numpy as np

from hierax_lab.bench.fuzz_case import Case, equalities_value, lower_value, rows_value, upper_rows_value, upper_value
from hierax_lab.bench.fuzz_grid import Best, landscape, local_best
from hierax_lab.bench.fuzz_lower import solve_lower
from hierax_lab.bench.fuzz_solvers import solve_one

VIOLATION = 1e-3  # largest violation of a row (with a slope of about one) or of a set that is no fault
GAP, DISTANCE = 1e-5, 1e-3  # y has a fault where G exceeds v by more than GAP and every lower solution is further away
RADIUS, DESCENT = 0.01, 2e-4  # x has a fault where phi falls within RADIUS by more than this part of the scale of F
Y_ERROR = 2e-4  # error of y whose effect on F is no fault of x
GLOBAL_MISS = 1e-3  # part of the scale of F by which the global optimum may be missed
RADIUS_PARTS = (1.0, 0.5, 0.25)  # where planted problems are searched, as parts of the radius
RANDOM_DIRECTIONS = 10  # in which they are searched


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What the judge found about a point, in core units.

    Attributes:
        x: the point.
        y: the point.
        upper: F.
        violation: largest violation of a row or set, and of which.
        gap: G - v(x) as a part of the scale of G.
        distance: to the nearest lower solution that the judge knows.
        descent: F less the best phi within the radius and what an error of y changes, as a part of the scale of
            F; never below zero.
        witness: the point with that phi.
        optimum: the best point known: the global optimum of a small problem, the planted point of others.
        excess: F less that optimum's, as a part of the scale of F.
        scale: the natural scale of F.
    """

    x: np.ndarray
    y: np.ndarray
    upper: float
    violation: tuple[float, str]
    gap: float
    distance: float
    descent: float
    witness: Best
    optimum: Best
    excess: float
    scale: float

    def faults(self) -> list[str]:
        """Why the point is no local solution, in words."""
        found = []
        if not self.violation[0] <= VIOLATION:
            found.append(f"{self.violation[1]} violated by {self.violation[0]:.2g}")
        if not self.gap <= GAP and not self.distance <= DISTANCE:
            found.append(f"lower gap {self.gap:.2g} of G's scale, y {self.distance:.2g} from a lower solution")
        if self.descent > DESCENT:
            found.append(f"F falls by {self.descent:.2g} of its scale within {RADIUS:g}, to x = {self.witness.x}")
        return found

    def possible(self) -> bool:
        """Whether the point is feasible and optimal below, up to tolerances."""
        return self.violation[0] <= VIOLATION and (self.gap <= GAP or self.distance <= DISTANCE)

    def missed(self) -> bool:
        """Whether a better point is known, or this one is not possible at all."""
        return not self.possible() or self.excess > GLOBAL_MISS

    def beats(self) -> bool:
        """Whether the point is better than what the judge calls the global optimum of a small problem."""
        return self.possible() and self.excess < -GLOBAL_MISS


def judge(case: Case, x: np.ndarray, y: np.ndarray) -> Verdict:
    """Judge a point (core units) of a solvable problem."""
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        nothing = Best(np.inf, x, y)
        return Verdict(x, y, np.nan, (np.inf, "finiteness"), np.inf, np.inf, 0.0, nothing, nothing, np.inf, 1.0)
    upper = float(upper_value(case.form, case.numbers, x, y))
    violation = worst_violation(case, x, y)
    gap, distance = _below(case, x, y)
    if case.form.planted is None:
        optimum, scale = landscape(case, x)
        witness = local_best(case, x, RADIUS)
    else:
        assert case.planted is not None
        optimum = Best(float(upper_value(case.form, case.numbers, *case.planted)), *case.planted)
        scale = planted_scale(case, optimum.value)
        witness = _planted_descent(case, x)
    descent = max(0.0, (upper - witness.value - min(Y_ERROR, distance) * _slope_in_y(case, x, y)) / scale)
    return Verdict(
        x, y, upper, violation, gap, distance, descent, witness, optimum, (upper - optimum.value) / scale, scale
    )


def _slope_in_y(case: Case, x: np.ndarray, y: np.ndarray) -> float:
    """The norm of F's gradient in y, by central differences."""
    steps = 1e-5 * np.eye(case.form.m)
    wide = np.broadcast_to(x, (case.form.m, case.form.n))
    ahead, behind = (upper_value(case.form, case.numbers, wide, y + sign * steps) for sign in (1, -1))
    return float(np.linalg.norm((ahead - behind) / 2e-5))


def worst_violation(case: Case, x: np.ndarray, y: np.ndarray) -> tuple[float, str]:
    """The largest violation of rows, equalities, upper rows and sets, and its name."""
    form, c = case.form, case.numbers
    parts = {
        "a lower row": rows_value(form, c, x, y),
        "an equality": np.abs(equalities_value(form, c, x, y)),
        "an upper row": upper_rows_value(form, c, x, y),
        "the set X": _outside(form.x_set, case.x_bounds, x),
        "the set Y": _outside(form.y_set, case.y_bounds, y),
    }
    worst = {name: float(np.max(values, initial=0.0)) for name, values in parts.items()}
    name = max(worst, key=lambda one: worst[one])
    return worst[name], name


def _outside(kind: str, bounds: np.ndarray, point: np.ndarray) -> np.ndarray:
    away = np.maximum(bounds[0] - point, point - bounds[1])
    if kind == "ball":
        return np.append(away, np.linalg.norm(point) - 1.0)
    return np.append(away, abs(point.sum() - 1.0)) if kind == "simplex" else away


def _below(case: Case, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """G - v(x) as a part of the scale of G, and the distance of y to a lower solution."""
    for relax in (0.0, VIOLATION):  # where x is a little outside, the rows may be too
        if case.form.planted is None:
            found = solve_lower(case, x[None], relax)
            solutions = found.y[0][found.optimal[0]]
        else:
            one = solve_one(case, x, relax)
            solutions = np.zeros((0, case.form.m)) if one is None else one[None]
        if len(solutions):
            break
    else:
        return np.inf, np.inf
    value = float(lower_value(case.form, case.numbers, x, solutions[0]))
    gap = (float(lower_value(case.form, case.numbers, x, y)) - value) / _lower_scale(case)
    return gap, float(np.linalg.norm(solutions - y, axis=1).min())


def _lower_scale(case: Case) -> float:
    """The natural scale of G: its range over y of size one, at a typical x (a linear G may be flat at this one)."""
    rng = np.random.default_rng(0)
    x, y = rng.uniform(-1.0, 1.0, (31, 1, case.form.n)), rng.uniform(-1.0, 1.0, (1, 200, case.form.m))
    values = lower_value(case.form, case.numbers, np.repeat(x, 200, 1), np.repeat(y, 31, 0))
    return max(float(np.median(np.ptp(values, axis=1))), 1e-12)


# -- planted problems -------------------------------------------------------------------------------------------------


def _value(case: Case, x: np.ndarray) -> Best:
    """phi at a single x of a planted problem, with the lower solution that the solver finds."""
    y = solve_one(case, x)
    if y is None:
        return Best(np.inf, x, np.full(case.form.m, np.nan))
    return Best(float(upper_value(case.form, case.numbers, x, y)), x, y)


def planted_scale(case: Case, optimum: float) -> float:
    """The natural scale of F: what it exceeds the planted value by, at a typical x."""
    rng = np.random.default_rng(0)
    values = [_value(case, rng.uniform(-0.7, 0.7, case.form.n)).value for _ in range(15)]
    return float(np.median([abs(value - optimum) for value in values if np.isfinite(value)] or [1.0]))


def _planted_descent(case: Case, x: np.ndarray) -> Best:
    """The least phi found within the radius of x: against its slope, along the axes and in random directions."""
    low, high = case.x_bounds
    here = np.clip(x, low, high)
    best = _value(case, here)
    axes = np.vstack([np.eye(len(x)), -np.eye(len(x))])
    near = [_value(case, np.clip(here + 0.1 * RADIUS * axis, low, high)).value for axis in axes]
    ahead, behind = np.array(near[: len(x)]), np.array(near[len(x) :])
    slope = np.nan_to_num(ahead - behind, nan=0.0, posinf=0.0, neginf=0.0)
    size = np.abs(slope).max()
    directions = list(axes) + list(np.random.default_rng(1).uniform(-1.0, 1.0, (RANDOM_DIRECTIONS, len(x))))
    if size > 0:
        directions += [-slope / size, -np.sign(slope)]
    for direction in directions:
        for step in RADIUS_PARTS:
            tried = _value(case, np.clip(here + step * RADIUS * direction, low, high))
            best = min(best, tried, key=lambda one: one.value)
    return best
