"""A point seen in units: violations, the lower level's reference solution, gap, gain of a move of x, descent test.

Everything that a certificate judges is computed here, on the host, with the two programs of `vectors.py`, and handed
over as the fields of a `Certificate` (`certificate.py` says what they mean and judges them).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.text import entries, numbers_of
from hierax._judge.branches import Branches
from hierax._judge.descent import Around, look_around
from hierax._judge.local_model import Gain, Linearised, gain, response, valid_radius, with_cuts
from hierax._judge.sampling import SamplingErrors, sampling_errors
from hierax._judge.setting import Setting
from hierax._judge.vectors import (
    Point,
    Programs,
    Values,
    VectorProblem,
    beyond,
    kkt_residual,
    raveled,
    unraveled,
)
from hierax._lower.base import AbstractLowerSolver
from hierax._math.hypergradient import MOST
from hierax._math.lower_level import (
    INACCURATE,
    INFEASIBLE,
    SOLVED,
    UNBOUNDED,
    LowerSolution,
    multiplier_vector,
    row_names,
)
from hierax._problem.problem import Multipliers

Stop = Callable[[], bool]
"""Whether the time is up, or Ctrl-C was pressed."""

CLOSE = 1e-4  # difference of values, in units of G, of solutions of the lower level between which x may stand
SAME, SAME_RESIDUAL = 1e-5, 1e-4  # gap, as a share of its range, and KKT residual of a y that may be a solution itself
SIDEWAYS = 0.1  # lengths at which units of F and G are looked at too: at the point itself their slopes may vanish
KINKS = (1e-5, 1e-4, 1e-3, 1e-2, 3e-2)  # margins up to which rows count as weakly active, one after another


class Fields(NamedTuple):
    """Numbers of a certificate by their name there, and notes on those that are missing or need a word."""

    numbers: dict[str, PyTree]
    notes: dict[str, str]


def fits(setting: Setting) -> bool:
    """Whether the matrices of the problem are small enough to be formed."""
    rows = setting.layout().equal.size
    ny, nx = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (setting.y, setting.x))
    return ny + min(rows, ny) <= MOST and nx <= MOST


class Inspection:
    """A setting's point in units."""

    def __init__(self, setting: Setting, seed: int, stop: Stop, most: tuple[np.ndarray, np.ndarray] | None) -> None:
        """`most`: lengths of x and y that are known from elsewhere, such as a run's (see `lengths_of`)."""
        self.setting, self.seed, self.stop = setting, seed, stop
        self.programs = programs = Programs(setting)
        self.x, self.y = raveled(setting.x), raveled(setting.y)
        inside = programs.landed(self.x, self.y)
        self.lengths = programs.lengths(*inside, most)
        both = np.concatenate([part.values for part in self.lengths])
        sides = [self._moved(inside, side * SIDEWAYS * both) for side in (1.0, -1.0)]
        units = programs.units(both, [inside, *sides])
        self.vectors = VectorProblem(programs, units, inside[1], seed)
        self.at = self.x / self.vectors.x_unit, self.y / self.vectors.y_unit
        none = np.zeros(programs.layout.rows)
        self.values, self.slopes = self.vectors.at(*self.at, none)

    def _moved(self, inside: tuple[np.ndarray, np.ndarray], by: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.programs.landed(inside[0] + by[: self.x.size], inside[1] + by[self.x.size :])

    def units(self) -> Fields:
        """The lengths that everything is measured in, and which of them are only assumed."""
        of_x, of_y = self.lengths
        lengths = unraveled(self.setting.x, of_x.values), unraveled(self.setting.y, of_y.values)
        names = [
            name
            for title, tree, part in (("x", self.setting.x, of_x), ("y", self.setting.y, of_y))
            for name, assumed in zip(entries(title, tree), part.assumed, strict=True)
            if assumed
        ]
        listed = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        text = f"{listed} taken to be of order one: free, at zero, and nothing says more (lengths= would)"
        return Fields({"lengths": lengths}, {"lengths": text} if names else {})

    # -- feasibility --------------------------------------------------------------------------------------------------

    def feasibility(self, names: list[str]) -> Fields:
        """The largest violation in the user's units and in units; `names` are those of the lower level's rows."""
        layout, setting = self.programs.layout, self.setting
        raw, _ = self.programs.at(*self.programs.landed(self.x, self.y))
        away = (
            np.abs(self.x - self.programs.landed(self.x, self.y)[0]),
            np.abs(self.y - self.programs.landed(self.x, self.y)[1]),
        )
        own = ~layout.face
        blocks = [
            (
                [name for name, mine in zip(names, own, strict=True) if mine],
                beyond(raw, layout)[own],
                beyond(self.values, layout)[own],
            ),
            (
                entries("upper_constraints", setting.shapes("upper_constraints")),
                np.maximum(raw.above[: layout.own_above], 0.0),
                np.maximum(self.values.above[: layout.own_above], 0.0),
            ),
            (entries("x in X", setting.x), away[0], away[0] / self.vectors.x_unit),
            (entries("y in Y", setting.y), away[1], away[1] / self.vectors.y_unit),
        ]
        named = [name for block, _, _ in blocks for name in block]
        user = np.concatenate([amount for _, amount, _ in blocks])
        units = np.concatenate([share for _, _, share in blocks])
        worst = int(np.argmax(np.where(np.isnan(units), np.inf, units)))
        return Fields(
            {"max_violation": float(np.max(user)), "violation": float(units[worst]), "worst": named[worst]}, {}
        )

    # -- below --------------------------------------------------------------------------------------------------------

    def reference(self, solver: AbstractLowerSolver | None) -> tuple[Point, Branches, int]:
        """The best solution of the lower level at x that was found, all of them, and how it ended."""
        x, y = self.at
        if solver is None:
            found = self.vectors.branches(x, self.vectors.landed(x, y)[1])
        else:
            found = self._by(solver)
        best = found.best()
        if best is None or found.unbounded:
            status = UNBOUNDED if found.unbounded else INFEASIBLE if (found.status == INFEASIBLE).all() else INACCURATE
            return Point(x, y, np.zeros(self.programs.layout.rows)), found, status
        local = self._near(found, best)
        return local, found, int(found.status[best])

    def _near(self, found: Branches, best: int) -> Point:
        """The solution of the lower level that the point is compared with.

        y itself, where nothing distinguishes it from a solution: y*(x) may not be unique, and F depends on which is
        taken. Else that which was reached from y, where it is as good, up to CLOSE, as the best one.
        """
        x, y = self.at
        near = 0 if found.status[0] == SOLVED and found.value[0] <= found.value[best] + CLOSE else best
        values, slopes = self.vectors.at(x, y, found.mu[near])
        gap = abs(float(values.lower) - found.value[best])
        first, _ = self._ranges(slopes, found.slope[best])
        if (
            gap <= max(SAME * first, 1e-9)
            and kkt_residual(values, found.mu[near], self.programs.layout) <= SAME_RESIDUAL
        ):
            return Point(x, y, found.mu[near])
        return Point(x, found.y[near], found.mu[near])

    def _ranges(self, slopes: Values[np.ndarray], of_value: np.ndarray) -> tuple[float, float]:
        """What G changes over a length of y, to first order and second order.

        To the first belongs what G - v(x) changes over a length of x (`of_value`: the slope of v): where two solutions
        of the lower level are equally good, y is one of them only on one side of x.
        """
        nx = self.x.size
        first = np.abs(slopes.lower[nx:]).sum() + np.abs(slopes.lower[:nx] - of_value).sum()
        return float(first), 0.5 * float(np.abs(slopes.stationarity[:, nx:]).sum())

    def _by(self, solver: AbstractLowerSolver) -> Branches:
        """The solution of a solver that the user chose, as the only branch."""
        one = self.setting.solve_lower(solver, self.setting.x, self.setting.y)
        y = raveled(one.y) / self.vectors.y_unit
        x = self.at[0]
        mu = (
            np.asarray(multiplier_vector(one, np.dtype(float))) * self.vectors.row_units(x, y) / self.vectors.lower_unit
        )
        values, _ = self.vectors.at(x, y, mu)
        most = float(np.max(beyond(values, self.programs.layout), initial=0.0))
        none = np.zeros((1, self.x.size))
        return Branches(
            y[None], mu[None], np.array([float(values.lower)]), np.array([most]), np.array([int(one.status)]), none
        )

    def lower_solution(self, point: Point, status: int) -> LowerSolution:
        """A solution of the lower level in the user's units."""
        mu = point.mu * self.vectors.lower_unit / self.vectors.row_units(point.x, point.y)
        own, faces = self.setting.layout().split(mu)
        values, _ = self.vectors.at(*point)
        raw, _ = self.programs.at(*self.programs.landed(self.x, point.y * self.vectors.y_unit))
        return LowerSolution(
            y=unraveled(self.setting.y, point.y * self.vectors.y_unit),
            multipliers=own,
            faces=faces,
            value=_scalar(float(raw.lower)),
            residual=_scalar(kkt_residual(values, point.mu, self.programs.layout)),
            status=_scalar(status),
            iterations=_scalar(0),
        )

    def below(self, point: Point, found: LowerSolution, branches: Branches, given: Multipliers | None) -> Fields:
        """Gap, distance and KKT residual of y; what the gap is judged by."""
        raw, _ = self.programs.at(*self.programs.landed(self.x, self.y))
        residuals = [self._residual(mu) for mu in (point.mu, self._in_units(point.mu, given))]
        best, unit = branches.best(), self.vectors.lower_unit
        of_value = branches.slope[0 if best is None else best]
        first, second = self._ranges(self.vectors.at(*point)[1], of_value)
        distance = self.y - point.y * self.vectors.y_unit
        return Fields(
            {
                "lower_gap": float(raw.lower) - float(found.value),
                "distance": float(np.linalg.norm(distance)),
                "kkt_residual": min(residuals),
                "steepest": float(np.max(np.abs(point.mu), initial=0.0)),
                "gap_range": (first * unit, second * unit, 1e-12 * (abs(float(raw.lower)) + unit)),
            },
            {},
        )

    def _in_units(self, mu: np.ndarray, given: Multipliers | None) -> np.ndarray:
        """Given multipliers in units, with the reference's `mu` for the faces of Y."""
        if given is None:
            return mu
        layout = self.programs.layout
        own = np.concatenate([numbers_of(given.inequalities), numbers_of(given.equalities)])
        mine = np.concatenate(
            [np.flatnonzero(~layout.face & ~layout.equal), np.flatnonzero(~layout.face & layout.equal)]
        )
        mu = mu.copy()
        mu[mine] = own * self.vectors.row_units(*self.at)[mine] / self.vectors.lower_unit
        return mu

    def _residual(self, mu: np.ndarray) -> float:
        return kkt_residual(self.vectors.at(*self.at, mu)[0], mu, self.programs.layout)

    # -- above --------------------------------------------------------------------------------------------------------

    def above(self, point: Point, found: LowerSolution, branches: Branches) -> Fields:
        """What a move of x could gain, the descent test, and in which radius the active set stays."""
        at = with_cuts(Linearised(self.vectors, point, *self.vectors.at(*point)), branches)
        gains = [(kink, gain(at, max(kink / 3, 1e-6), weak)) for kink, weak in _weak_sets(at)]
        smallest = gains[0][1]
        around = look_around(at, smallest.nu, smallest.direction, self.seed, self.stop)
        layout, unit = self.programs.layout, self.vectors.upper_unit
        errors = sampling_errors(self.setting, found, at.active) if self.setting.sampled else SamplingErrors()
        numbers = {
            "gains": tuple((kink, float(one.decrease) * unit) for kink, one in gains),
            "upper_scale": _scale(at, gains, around) * unit,
            "around": around._replace(looks=[look._replace(change=look.change * unit) for look in around.looks]),
            "rounding": 1e-7 * unit,
            "margin": float(np.min(at.margins, initial=np.inf)),
            "radius": valid_radius(at),
            **self._gradient(at, smallest),
            **self._errors(errors),
        }
        nu = smallest.nu[: layout.own_above] * unit / self._upper_units()
        numbers["upper_multipliers"] = unraveled(self.setting.shapes("upper_constraints"), nu)
        return Fields(numbers, _notes(at, gains, row_names(found)))

    def _upper_units(self) -> np.ndarray:
        return raveled(self.vectors.units.rows.upper_constraints)

    def _gradient(self, at: Linearised, found: Gain) -> dict[str, PyTree]:
        """The gradient of F(x, y*(x)), or of the upper constraints' Lagrangian, in the user's units."""
        answer = response(at, at.active)
        if answer.y is None or np.isnan(found.uphill):
            return {}
        nx = self.x.size
        along = at.slopes.upper + found.nu @ at.slopes.above
        total, direct = along[:nx] + along[nx:] @ answer.y, along[:nx]
        low, high = at.vectors.x_limits
        blocked = ((at.point.x <= low + 1e-9) & (total > 0)) | ((at.point.x >= high - 1e-9) & (total < 0))
        per = self.vectors.upper_unit / self.vectors.x_unit
        parts = np.linalg.norm(direct * per) + np.linalg.norm((total - direct) * per)
        return {
            "hypergradient": unraveled(self.setting.x, total * per),
            "hypergradient_norm": float(np.linalg.norm(np.where(blocked, 0.0, total * per))),
            "hypergradient_scale": float(parts),
        }

    def _errors(self, errors: SamplingErrors) -> dict[str, PyTree]:
        if errors.slope is None:
            return {}
        numbers: dict[str, PyTree] = {
            "upper_se": errors.upper,
            "hypergradient_norm_se": float(np.linalg.norm(errors.slope)),
            "gain_se": float(np.sum(errors.slope * self.vectors.x_unit)),
        }
        if errors.point is not None:
            numbers |= {"lower_gap_se": errors.gap, "distance_se": float(np.linalg.norm(errors.point))}
            numbers["kkt_residual_se"] = float(np.max(errors.point / self.vectors.y_unit))
        return numbers


def _scalar(number: float) -> Any:
    """A number as NumPy's arrays have it, where a solver's answer has JAX's."""
    return np.asarray(number)


def _weak_sets(at: Linearised) -> list[tuple[float, np.ndarray]]:
    """The rows that are weakly active at each width of a kink, each different set once, with its first width."""
    found: list[tuple[float, np.ndarray]] = []
    for kink in KINKS:
        weak = at.margins <= kink
        if not found or not np.array_equal(weak, found[-1][1]):
            found.append((kink, weak))
    return found


def _scale(at: Linearised, gains: list[tuple[float, Gain]], around: Around) -> float:
    """What F(x, y*(x)) changes over a length of x: its slopes, and its curvature where there is no kink."""
    slopes = [one.uphill for _, one in gains if np.isfinite(one.uphill)]
    gained = [one.decrease for _, one in gains if np.isfinite(one.decrease)]
    smooth = not np.any(at.margins <= KINKS[0])
    return max([0.0, *slopes[:1], *gained[:1], around.slope, around.curvature if smooth else 0.0])


def _notes(at: Linearised, gains: list[tuple[float, Gain]], names: list[str]) -> dict[str, str]:
    notes: dict[str, str] = {}
    weak = np.flatnonzero(at.margins <= KINKS[0])
    if len(weak):
        listed = ", ".join(names[i] for i in weak[:4]) + (", ..." if len(weak) > 4 else "")
        notes["hypergradient_norm"] = f"not differentiable here: {listed} weakly active; the gain counts every side"
    if response(at, at.active).y is None:
        text = "y*(x) is not unique: G is flat along the active constraints"
        notes |= {"distance": text, "hypergradient_norm": text}
    if np.isnan(gains[0][1].decrease):
        notes["gains"] = (
            f"too many weakly active or dependent rows ({int(np.sum(at.margins <= KINKS[0]))} weakly active) to try "
            "every side"
        )
    return notes
