"""SLSQP over x and y together: the two polishes of the small route, and whether the constraints of both levels agree.

The polishes: SQP on the relaxed KKT system, and SQP against the value function. Both minimise F from a given point in
stages, each started from the last one's end, and return wherever they get to; whether that is any good is judged
elsewhere (`hunt.py`).

Feasible points: min t subject to rows <= t, |equalities| <= t and upper constraints <= t, from several starts. Where
even that stays positive there is no feasible point as far as the starts show; where it reaches zero a search begins
there.

The proof of a contradiction: the lower level must keep its rows, the upper level its own, x lies in the box around X
and y in that around Y. Rows that are known to be convex in (x, y) (`_base/jaxprs.py`: by their program, not by samples)
lie above their tangents everywhere, so that the least t with

    tangents of convex rows <= t,  |affine equalities| <= t,  x and y in their boxes

is a lower bound for the largest violation of any point. All other rows are left out. Where it is positive there is no
feasible point; else tangents at the program's solution are added, a few times, until its point satisfies the rows.
"""

import functools
from typing import NamedTuple

import numpy as np

from hierax._auto import constants as const
from hierax._auto.descents import Evaluated, minimise
from hierax._auto.hunt import Passed, Space
from hierax._auto.session import Work
from hierax._base.imports import lazy
from hierax._base.text import entries
from hierax._engine.programs import FEASIBLE, Branches, raveled
from hierax._engine.vectors import Point, VectorProblem
from hierax._math.scatter import unit_cube

scipy_optimize, scipy_sparse = lazy("scipy.optimize"), lazy("scipy.sparse")

Cuts = tuple[Point, ...]
"""Branches of lower-level solutions whose values v_j(x) bound f(x, y) from above, followed from where they were.

A fixed point w would be a valid cut only where the constraints do not depend on x.
"""


def kkt_polish(space: Space, work: Work, start: Point, cuts: Cuts, relaxations: tuple[float, ...]) -> Point:
    """min F subject to the upper constraints, the lower level's KKT system with -mu_i row_i <= t, and the cuts.

    t falls from stage to stage. Where a polish is between two stages determines it: one that arrives where another
    has been ends where that one did.
    """
    system, way = System(space, cuts, with_multipliers=True), list[tuple[tuple[tuple[float, ...], int], np.ndarray]]()
    u, change = system.packed(start), const.ROUNDING if cuts else const.SQP_CHANGE
    for stage in range(len(relaxations) + 1):
        if stage:
            relaxed = functools.partial(system.evaluate, t=relaxations[stage - 1])
            u = minimise(relaxed, u, system.bounds, work, change=change)
        way.append(((relaxations, stage), system.determining(u)))
        known = _end_after(space.passed, *way[-1])
        if known is not None:
            break
    end = system.unpacked(u) if known is None else known
    if not work.passed:
        space.passed.extend(Passed(stage, here, end) for stage, here in way)
    return end


def _end_after(passed: list[Passed], stage: tuple[tuple[float, ...], int], here: np.ndarray) -> Point | None:
    """The end of a polish that was here after this stage; None where none was."""
    for one in passed:
        if one.stage == stage and one.here.shape == here.shape and np.max(np.abs(here - one.here)) <= FEASIBLE:
            return one.end
    return None


def value_polish(space: Space, work: Work, start: Point, cuts: Cuts, beat: float) -> Point:
    """min F subject to the upper and the lower constraints and f <= v_j + e for every cut, e falling.

    Needs no multiplier: it reaches solutions at which the lower level has none, and it chooses y freely among the lower
    level's solutions. F only rises as e falls: a stage that ends above `beat` is the last.
    """
    system = System(space, cuts, with_multipliers=False)
    u = system.packed(start)
    for t in const.RELAXATIONS:
        slackened = functools.partial(system.evaluate, t=max(const.MUCH_LESS * t, const.RELAXATIONS[-1]))
        u = minimise(slackened, u, system.bounds, work, const.SQP_ITERATIONS // 2, const.ROUNDING)
        if space.vectors.values(*system.unpacked(u)).upper > beat:
            break
    return system.unpacked(u)


class System:
    """min F over the constraints of both levels, as SLSQP sees it: with the lower level's relaxed KKT system, or not.

    The unknowns u are x, y and the multipliers of the live rows. The lines are first F, then the inequalities: upper
    ones, rows of the lower level, complementary pairs, cuts; then the equalities: those of X, rows of the lower level,
    and stationarity.

    Attributes:
        bounds: the boxes around X and Y, and the multipliers' signs.
        parts: slices of the lines of every kind.
    """

    def __init__(self, space: Space, cuts: Cuts, with_multipliers: bool) -> None:
        self.vectors, self._cuts, self._with_multipliers = space.vectors, cuts, with_multipliers
        layout, structure = space.vectors.layout, space.structure
        self._n, self._live = layout.nx + layout.ny, structure.live & with_multipliers
        self._pairs = np.flatnonzero(~layout.equal[self._live])  # complementary pairs, among the live rows
        equal = layout.equal[self._live]
        self.bounds = space.box(np.where(equal, -np.inf, 0.0), np.full(equal.size, np.inf))
        above, above_equal, rows, stationarity = (np.arange(part.start, part.stop) for part in layout.parts)
        kinds = {  # where the lines stand in the table of all functions; cuts are not in it
            "upper": np.zeros(1, int),
            "above": above[structure.above],
            "rows": rows[structure.curved & ~layout.equal],
            "pairs": rows[self._live & ~layout.equal],
            "cuts": np.zeros(len(cuts), int),
            "above_equal": above_equal,
            "equal": rows[layout.equal],
            "stationarity": stationarity[: layout.ny * with_multipliers],
        }
        ends = np.cumsum([kind.size for kind in kinds.values()])
        self.parts = {name: slice(end - kinds[name].size, end) for name, end in zip(kinds, ends, strict=True)}
        self._places, self._above = np.concatenate([*kinds.values()]), int(self.parts["cuts"].stop - 1)
        self._signs = np.ones(self._places.size)
        self._signs[1 : self.parts["rows"].stop] = -1.0

    def packed(self, point: Point) -> np.ndarray:
        """A point as the unknowns."""
        return np.concatenate([point.x, point.y, point.mu[self._live]])

    def unpacked(self, u: np.ndarray) -> Point:
        """The unknowns as a point."""
        mu = np.zeros(self._live.size)
        mu[self._live] = u[self._n :]
        x, y = np.split(u[: self._n], [self.vectors.layout.nx])
        return Point(x, y, mu)

    def _followed(self, x: np.ndarray) -> Branches:
        """The branches of the cuts at x."""
        return self.vectors.followed(x, np.array([cut.y for cut in self._cuts]), np.array([c.mu for c in self._cuts]))

    def determining(self, u: np.ndarray) -> np.ndarray:
        """What determines how a polish goes on: the unknowns, and the values and slopes of the cuts."""
        if not self._cuts:
            return u
        found = self._followed(u[: self.vectors.layout.nx])
        return np.concatenate([u, found.value, found.slope.ravel()])

    def evaluate(self, u: np.ndarray, t: float) -> Evaluated:
        """Everything at u; t relaxes the complementary pairs or, without multipliers, the cuts."""
        layout, parts, n = self.vectors.layout, self.parts, self._n
        table = self.vectors.table(np.concatenate(self.unpacked(u)))
        factors = self._signs.copy()
        factors[parts["pairs"]] = u[n:][self._pairs]  # t + mu_i row_i >= 0
        found = np.zeros((factors.size, 1 + u.size))
        found[:, : 1 + n] = factors[:, None] * table[self._places]
        if self._with_multipliers:
            rows = table[layout.parts[2]][self._live]
            found[parts["pairs"], 0] += t
            found[np.arange(factors.size)[parts["pairs"]], 1 + n + self._pairs] = rows[self._pairs, 0]
            found[parts["stationarity"], 1 + n :] = rows[:, 1 + layout.nx :].T
        if self._cuts:  # v_j(x) - f >= 0
            branches, lines = self._followed(u[: layout.nx]), found[parts["cuts"], : 1 + n]
            lines[:] = -table[1]
            lines[:, 0] += branches.value + (0.0 if self._with_multipliers else t)
            lines[:, 1 : 1 + layout.nx] += branches.slope
        return Evaluated(found, self._above)


# -- can the constraints of both levels be satisfied at once? ---------------------------------------------------------


def feasible_points(space: Space, work: Work) -> tuple[list[tuple[np.ndarray, np.ndarray]], float]:
    """Points (x, y) that satisfy everything, and the least violation that was found."""
    vectors, found, least = space.vectors, list[tuple[np.ndarray, np.ndarray]](), np.inf
    nx, none, equal = vectors.layout.nx, np.zeros(vectors.layout.rows), vectors.layout.equal

    def evaluate(u: np.ndarray) -> Evaluated:
        """t, and t less each row: values in the first column, then derivatives in x, y and t."""
        lines = vectors.table(np.concatenate([u[:-1], none]))
        above, above_equal, rows, _ = (lines[part] for part in vectors.layout.parts)
        twice = np.concatenate([rows[equal], above_equal])
        lines = -np.concatenate([above, rows[space.structure.live & ~equal], twice, -twice])
        lines[:, 0] += u[-1]
        objective = np.concatenate([[u[-1]], np.eye(u.size)[-1]])
        return Evaluated(np.vstack([objective, np.column_stack([lines, np.ones(len(lines))])]), len(lines))

    bounds = space.box(np.zeros(1), np.full(1, np.inf))
    for x, y in _starts(space):
        if work.passed or len(found) >= const.AGREEING_STARTS:
            break
        violation = vectors.violation(x, y, vectors.at(x, y, none)[0])
        u = minimise(evaluate, np.concatenate([x, y, [min(violation, const.RUN_OFF)]]), bounds, work)
        at = vectors.landed(u[:nx], u[nx:-1])
        violation = vectors.violation(*at, vectors.at(*at, none)[0])
        least = min(least, violation)
        if violation <= FEASIBLE:
            found.append(at)
    return found, least


def _starts(space: Space) -> list[tuple[np.ndarray, np.ndarray]]:
    """Those of the search, and for a small problem many more: a feasible x may be hard to find."""
    starts = list(zip(space.xs, space.ys, strict=True))
    if space.vectors.programs.by_table:
        cube = unit_cube(space.vectors.layout.nx, 3 * const.STARTS, len(starts))
        starts += [(x, space.ys[i % len(space.ys)]) for i, x in enumerate(space.vectors.cover_x(space.xs[0], cube)[1:])]
    return starts


class Contradiction(NamedTuple):
    """Why no point satisfies all constraints.

    Attributes:
        rows: the names of those that exclude each other (or, a single one, the sets X and Y).
        text: in words.
        lowest: of a single row, the least value that it has, in the user's units.
    """

    rows: list[str]
    text: str
    lowest: float | None = None


def contradiction(space: Space, work: Work) -> Contradiction | None:
    """A proof that no point satisfies the constraints of both levels; None: there is none of this kind."""
    known = _Convex(space.vectors)
    if not known.names or work.passed:
        return None
    slopes, offsets, u = [], [], np.concatenate([space.xs[0], space.ys[0]])
    for _ in range(const.SQP_ITERATIONS):
        values, slope = known.at(u)
        slopes.append(slope)
        offsets.append(values - slope @ u)
        found = _least(space, np.concatenate(slopes), np.concatenate(offsets))
        if found is None or work.passed:
            return None
        u, least, weights = found
        if least > const.NOTICEABLE:
            return _named(known, least, weights)
        if known.affine or np.max(known.at(u)[0], initial=0.0) <= const.NOTICEABLE:
            return None
    return None


class _Convex:
    """The rows of both levels and sets that are known to be convex; an equality counts twice, with either sign.

    Attributes:
        names: of each.
        sizes: the unit of each.
        affine: whether all of them are affine.
    """

    def __init__(self, vectors: VectorProblem) -> None:
        self.vectors, layout = vectors, vectors.layout
        own, equal = ~layout.face, layout.equal
        kinds = {  # of rows: the field of `Values`, the places in it, and whether they are equalities
            "upper_constraints": ("above", np.arange(layout.own_above), False),
            "x in X": ("above", np.arange(layout.own_above, layout.above), False),
            "constraints": ("rows", np.flatnonzero(own & ~equal), False),
            "y in Y": ("rows", np.flatnonzero(~own & ~equal), False),
            "equalities": ("rows", np.flatnonzero(own & equal), True),
            "y in Y, equal": ("rows", np.flatnonzero(~own & equal), True),
            "x in X, equal": ("above_equal", np.arange(layout.above_equal), True),
        }
        self._chosen: list[tuple[float, str, np.ndarray]] = []  # sign, field and places
        self.names: list[str] = []
        self.sizes: list[float] = []
        self.affine = True
        for kind, (field, places, both_signs) in kinds.items():
            found = [one for one, count in vectors.programs.setting.curvatures(kind) for _ in range(count)]
            known = [i for i, one in enumerate(found) if (one.is_affine if both_signs else one.is_convex)]
            units = getattr(vectors.units.rows, kind, None)
            sizes = np.ones(len(found)) if units is None else raveled(units)
            names = len(found) * [kind.split(",")[0]] if units is None else entries(kind, units)
            self.affine &= all(found[i].is_affine for i in known)
            for sign in (1.0, -1.0) if both_signs else (1.0,):
                self._chosen.append((sign, field, places[known]))
                self.names += [names[i] for i in known]
                self.sizes += [float(sizes[i]) for i in known]

    def at(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values and slopes at a point (x, y); outside of X and Y, of the tangents at the nearest point in them."""
        layout = self.vectors.layout
        found = self.vectors.at(u[: layout.nx], u[layout.nx :], np.zeros(layout.rows))
        values, slopes = (
            np.concatenate([sign * getattr(part, field)[places] for sign, field, places in self._chosen])
            for part in found
        )
        return values, slopes


def _least(space: Space, slopes: np.ndarray, offsets: np.ndarray) -> tuple[np.ndarray, float, np.ndarray] | None:
    """The point of least violation of slopes u + offsets <= t, that t, and the rows' multipliers."""
    if not (np.isfinite(slopes).all() and np.isfinite(offsets).all()):
        return None
    bounds = np.stack(space.box(np.zeros(1), np.full(1, np.inf)), axis=1)
    found = scipy_optimize.linprog(
        np.eye(len(bounds))[-1],
        A_ub=scipy_sparse.csr_array(np.concatenate([slopes, -np.ones((len(slopes), 1))], axis=1)),
        b_ub=-offsets,
        bounds=bounds,
        method="highs",
    )
    if found.x is None or found.status != 0:
        return None
    return found.x[:-1], float(found.x[-1]), -found.ineqlin.marginals


def _named(known: _Convex, least: float, weights: np.ndarray) -> Contradiction:
    """The contradiction that the multipliers show; those of tangents of one row belong together."""
    together = weights.reshape(-1, len(known.names)).sum(axis=0)
    places = np.flatnonzero(together > const.NOTICEABLE * together.max())
    names = list(dict.fromkeys(known.names[i] for i in places))
    if len(names) == 1:
        lowest = least * known.sizes[places[0]]
        text = f"{names[0]} is violated by at least {lowest:.3g} everywhere in X and Y"
        return Contradiction(names, text, lowest)
    listed = ", ".join(names[: const.LISTED]) + (", ..." if names[const.LISTED :] else "")
    text = f"{listed} exclude each other in X and Y: at every point one is violated by {least:.2g} of its size"
    return Contradiction(names, text)
