"""A point in units: its lengths, its violations, the lower level's solutions at its x, and how far y is from one.

What a move of x could gain is measured in `certifying.py`. All of it is handed over as fields of a `Certificate`, which
says what they mean and judges them. The tolerances of the certificate stand here.
"""

from collections.abc import Sequence
from itertools import compress
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import PyTree

from hierax._base.constants import LITTLE, LOWER_STARTS
from hierax._base.constants import SHOWN_TOLERANCE as SHOWN_TOLERANCE
from hierax._base.text import entries
from hierax._engine.by_hand import HandMade
from hierax._engine.float64_problem import FEW, ROUNDING, Float64Problem
from hierax._engine.lengths import lengths_at, units_at
from hierax._engine.programs import DIFFERENT_VALUES, FEASIBLE, Branches, Programs, Values, raveled, unraveled
from hierax._engine.settling import settled
from hierax._engine.vectors import Point, VectorProblem, moved_down
from hierax._lower.base import AbstractLowerSolver
from hierax._lower.linear import SAME, Matrices, Pair, Stop
from hierax._math.lower_level import INACCURATE, INFEASIBLE, SOLVED, UNBOUNDED, LowerSolution, in_blocks
from hierax._math.scatter import chance_of_more, most_left, unit_cube
from hierax._problem.problem import Multipliers, Rows

SAME_POINT = 1e-5  # lengths, and shares of a range, within which a point cannot be told from another one
STEPS = (0.1, 0.01, 0.001)  # lengths by which a point is moved to see what changes
DEFAULT_TOLERANCE = STEPS[-1]  # of a verdict that is asked for without one: what the shortest step shows
FEW_ENTRIES = 6  # entries of x up to which each of them is moved by itself
SURE = 2.0  # standard errors by which a sampled number must miss or meet a tolerance to be called so
KINK = 3.0  # tolerances within which a kink of y*(x), a tie or an upper constraint counts as being at the point
NOISE = 1e-7  # differences, in units, that solves of the lower level cannot tell from none
KINKS = (SAME_POINT, SHOWN_TOLERANCE, DEFAULT_TOLERANCE, STEPS[1], KINK * STEPS[1])
"""Lengths of x within which rows of the lower level that change sides count as weakly active: usual tolerances."""

Numbers = dict[str, PyTree]
"""Numbers of a certificate by their name there."""

Notes = dict[str, str]
"""What to know about numbers of a certificate, or why they are missing, by their name."""


class GapRange(NamedTuple):
    """What G changes over a length of y, to first and to second order; G - v over one of x; and by rounding."""

    first: float = 0.0
    second: float = 0.0
    tie: float = 0.0
    rounding: float = 0.0

    def within(self, tol: float) -> float:
        """What it changes when y moves by `tol` lengths."""
        return tol * self.first + tol**2 * self.second + self.rounding

    def at_tie(self, tol: float) -> float:
        """What it changes over the little by which x or y may miss a tie of two solutions of the lower level."""
        return min(tol, KINK * FEASIBLE) * (self.first + self.tie) + self.rounding


class Reference(NamedTuple):
    """Solutions of the lower level at a point's x.

    Attributes:
        best: the one of lowest value, which is v(x).
        local: the one that the point is compared with.
        branches: all that were found.
        status: how the best one ended.
    """

    best: Point
    local: Point
    branches: Branches
    status: int


def listed(names: Sequence[str]) -> str:
    """The first few names, and how many others there are."""
    few = names[:4]
    return ", ".join(few) + (f" and {len(names) - len(few)} others" if len(names) > len(few) else "")


class Inspection:
    """A setting's point in units."""

    def __init__(
        self,
        setting: Float64Problem,
        seed: int,
        stop: Stop,
        most: Pair | None,
        hand: HandMade | None,
        known: Sequence[np.ndarray] = (),
    ) -> None:
        """`most`: lengths of x and y that the user knows; `hand`: the problem by hand; `known`: y's to begin at."""
        self.setting, self.seed, self.stop, self._known = setting, seed, stop, known
        self.programs = programs = Programs(setting, hand)
        self.x, self.y = raveled(setting.x), raveled(setting.y)
        self._inside = x, y = programs.landed(self.x, self.y)
        self.lengths, self._assumed = map(np.concatenate, zip(*lengths_at(programs, x, y, most), strict=True))
        alone = self.lengths if most is None else np.concatenate([part.values for part in lengths_at(programs, x, y)])
        self._foreign = alone != self.lengths
        by_x, by_y = np.split(STEPS[0] * self.lengths, [x.size])  # at the point itself slopes of F and G may vanish
        sides = [programs.landed(x + by_x, y + by_y), programs.landed(x - by_x, y - by_y)]
        units = units_at(programs, self.lengths, [(x, y), *sides])
        self.vectors = VectorProblem(programs, units, y, seed, stop=stop)
        self.at = self.x / self.vectors.x_unit, self.y / self.vectors.y_unit
        self.raw = programs.raw_values(x, y)
        self.doubt = np.inf  # by how much a y may be lower than all solutions of the lower level that are known

    def units(self, notes: Notes) -> Numbers:
        """The lengths that everything is measured in, and which of them are only assumed."""
        names, texts = [*entries("x", self.setting.x), *entries("y", self.setting.y)], []
        if self._assumed.any():
            why = "at zero, without bounds on both sides, and nothing says more (lengths= would)"
            texts.append(f"{listed(list(compress(names, self._assumed)))} taken to be of order one: {why}")
        if self._foreign.any():
            why = "" if self.vectors.bent is None else ", and solves of the lower level start elsewhere"
            where = "as given, by lengths= or from Auto's start: the point alone says others"
            texts.append(f"{listed(list(compress(names, self._foreign)))} {where}{why}")
        of_x, of_y = np.split(self.lengths, [self.x.size])
        if texts:
            notes["lengths"] = "; ".join(texts)
        return {"lengths": (unraveled(self.setting.x, of_x), unraveled(self.setting.y, of_y))}

    def feasibility(self, names: list[str]) -> Numbers:
        """The largest violation in the user's units and in units; `names` are those of the lower level's rows."""
        layout, vectors, setting = self.programs.layout, self.vectors, self.setting
        own = ~layout.face
        of_x, of_y = np.abs(self.x - self._inside[0]), np.abs(self.y - self._inside[1])

        def amounts(values: Values, of_x: np.ndarray, of_y: np.ndarray) -> np.ndarray:
            above = np.maximum(values.above[: layout.own_above], 0.0)
            return np.concatenate([layout.beyond(values.rows)[own], above, of_x, of_y])

        user = amounts(self.raw, of_x, of_y)
        here = vectors.values(*self.at, np.zeros(layout.rows))
        units = amounts(here, of_x / vectors.x_unit, of_y / vectors.y_unit)
        above = entries("upper_constraints", setting.shapes().upper)
        named = [*compress(names, own), *above, *entries("x in X", setting.x), *entries("y in Y", setting.y)]
        worst = int(np.argmax(np.where(np.isnan(units), np.inf, units)))
        return {"max_violation": float(np.max(user)), "violation": float(units[worst]), "worst": named[worst]}

    # -- the lower level -----------------------------------------------------------------------------------------------

    def reference(self, solver: AbstractLowerSolver | None) -> Reference:
        """The solutions of the lower level at x."""
        (x, y), vectors = self.at, self.vectors
        found = vectors.branches_in_time(x, vectors.landed(x, y)[1]) if solver is None else self._solved_by(solver)
        if solver is None:
            found, self.doubt = settled(vectors, x, found)
            found = found if self.doubt < np.inf or found.best() is None else self._widened(found)
        best = found.best()
        if best is None or found.unbounded:
            infeasible = found.status.size and (found.status == INFEASIBLE).all()
            none = Point(x, y, np.zeros(self.programs.layout.rows))
            status = UNBOUNDED if found.unbounded else INFEASIBLE if infeasible else INACCURATE
            return Reference(none, none, found, status)
        lowest = Point(x, found.y[best], found.mu[best])
        return Reference(lowest, self._near(found, best), found, int(found.status[best]))

    def _widened(self, found: Branches) -> Branches:
        """Solutions from more starts, where none is proved to be the best: from points of the search, and all over Y.

        Of the latter as long as another start may well end at a solution that none has met.
        """
        (x, _), vectors, none = self.at, self.vectors, np.zeros(self.programs.layout.rows)
        for y in self._known:
            one = vectors.newton.solve(x, vectors.landed(x, y / vectors.y_unit)[1], none)
            if one is not None and one.slopes.value < found.value[found.best() or 0] - DIFFERENT_VALUES:
                vectors.meet(one.y)
                found = Branches.joined([found, Branches.one(self.programs.layout, one.y, one.mu, one.slopes, SOLVED)])
        for turn in range(1, FEW if vectors.bent is not None and self.programs.lanes > 1 else 0):
            if chance_of_more([len(place) for place in found.places()]) <= LITTLE or self.stop():
                break
            more = vectors.cover_y(self.at[1], unit_cube(self.y.size, LOWER_STARTS, self.seed + turn))[1:]
            found = Branches.joined([found, vectors.functions.branches(x, more, np.tile(none, (len(more), 1)), False)])
        return found

    def why_not_convex(self, found: Branches) -> str | None:
        """What is known of v(x) where the lower level is not convex; None: nothing speaks against convexity."""
        why = self.vectors.bent
        if why is None and found.different_values() < 2:
            return None
        why = f"{why or 'not convex: it has several local solutions'}: v(x) is the best of {len(found.status)} solves"
        if self.doubt < np.inf:
            size = f" by more than {self.doubt * self.vectors.lower_unit:.1g}" if self.doubt > 0 else ""
            return f"{why}, and bounds of G over all of Y prove that no y is lower{size}"
        met = [len(place) for place in found.places()]
        chance = f"below {most_left(sum(met)):.0%}" if met and 1 not in met else f"about {chance_of_more(met):.0%}"
        places = f"{why}, which ended at {len(met)} places; samples cannot prove that none is lower"
        return f"{places}: that another solve would end at a new one has a chance {chance}"

    def _near(self, found: Branches, best: int) -> Point:
        """The solution of the lower level that the point is compared with.

        y itself, where nothing distinguishes it from a solution and the one that is reached from it is elsewhere: y*(x)
        may not be unique, and F depends on which is taken. Else that one, where it is as good as the best one.
        """
        x, y = self.at
        near = 0 if found.status[0] == SOLVED and found.value[0] <= found.value[best] + DIFFERENT_VALUES else best
        values, slope = self.vectors.values(x, y, found.mu[near]), self.vectors.lower_slope(x, y)
        gap = abs(float(values.lower) - found.value[best])
        range_ = np.abs(slope[x.size :]).sum() + _tie(slope, found.slope[best])
        elsewhere = np.max(np.abs(y - found.y[near]), initial=0.0) > STEPS[-1]
        solves = self.programs.layout.kkt_residual(values, found.mu[near]) <= SHOWN_TOLERANCE
        if elsewhere and solves and gap <= max(SAME_POINT * range_, ROUNDING):
            return Point(x, y, found.mu[near])
        return Point(x, found.y[near], found.mu[near])

    def _solved_by(self, solver: AbstractLowerSolver) -> Branches:
        """The solution of a solver that the user chose, as the only branch."""
        one = self.setting.solve_lower(solver, self.setting.x, self.setting.y)
        x, y = self.at[0], raveled(one.y) / self.vectors.y_unit
        mu = raveled(in_blocks(one.multipliers, one.faces)) * self.vectors.row_units(x, y) / self.vectors.lower_unit
        there = self.vectors.functions.slopes(*self.vectors.landed(x, y), mu)
        return Branches.one(self.programs.layout, y, mu, there, int(one.status))

    def lower_solution(self, point: Point, status: int) -> LowerSolution:
        """A solution of the lower level in the user's units."""
        vectors, y = self.vectors, point.y * self.vectors.y_unit
        own, faces = self.setting.layout().split(point.mu * vectors.lower_unit / vectors.row_units(point.x, point.y))
        value = self.programs.raw_values(*self.programs.landed(self.x, y)).lower
        residual = self.programs.layout.kkt_residual(vectors.values(*point), point.mu)
        scalars: list[Any] = [np.asarray(number) for number in (float(value), residual, status, 0)]
        return LowerSolution(unraveled(self.setting.y, y), own, faces, *scalars)

    def below(self, at: Reference, value: float, given: Multipliers | None) -> Numbers:
        """Gap, distance and KKT residual of y; what the gap is judged by."""
        vectors, layout, point, unit = self.vectors, self.programs.layout, at.local, self.vectors.lower_unit
        x, landed = vectors.landed(*self.at)
        multipliers = [point.mu, point.mu if given is None else self._in_units(point.mu, given)]
        residuals = [layout.kkt_residual(vectors.values(*self.at, mu), mu) for mu in multipliers]
        tie = _tie(vectors.lower_slope(*self.at), at.branches.slope[at.branches.best() or 0])
        first = np.abs(vectors.lower_slope(point.x, point.y)[self.x.size :]).sum()
        matrices = vectors.functions.matrices(*point)
        curvatures = abs(matrices.hessian) if isinstance(matrices, Matrices) else matrices.curvatures()
        lower = float(self.raw.lower)
        second = 0.5 * float(curvatures.sum())
        return {
            "lower_gap": lower - value,
            "distance": float(np.linalg.norm(self.y - point.y * vectors.y_unit)),
            "kkt_residual": min(residuals),
            "slide": float(np.max(np.abs(moved_down(vectors, x, landed, point.mu) - landed), initial=0.0)),
            "steepest": float(np.max(np.abs(point.mu), initial=0.0)),
            "branch_gap": float(vectors.values(*point).lower - vectors.values(*at.best).lower) * unit,
            "gap_range": GapRange(float(first) * unit, second * unit, tie * unit, SAME * (abs(lower) + unit)),
        }

    def _in_units(self, mu: np.ndarray, given: Multipliers) -> np.ndarray:
        """Given multipliers in units, with the reference's `mu` for the faces of Y."""
        own, layout = Rows(given.inequalities, given.equalities), self.programs.layout
        with_faces = in_blocks(own, self.setting.layout().split(mu)[1])
        per_unit = self.vectors.row_units(*self.at) / self.vectors.lower_unit
        return raveled(with_faces) * np.where(layout.face, 1.0, per_unit)


def _tie(slope: np.ndarray, of_value: np.ndarray) -> float:
    """What G - v(x) changes over a length of x, at the gradients of G in (x, y) and of v.

    Where two solutions of the lower level are equally good, y is one of them only on one side of x, and nobody
    hits such an x to the last digit.
    """
    return float(np.abs(slope[: of_value.size] - of_value).sum())
