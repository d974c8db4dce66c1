"""The two polishes of the small route: SQP on the relaxed KKT system, and SQP against the value function.

Both minimise F from a given point in stages, each started from the last one's end, and return wherever they get to;
whether that is any good is judged elsewhere (`candidates.py`).
"""

import functools
from typing import NamedTuple

import numpy as np

from hierax._auto.constants import CLOSE, MUCH_LESS, RELAXATIONS, ROUNDING, SQP_CHANGE, SQP_ITERATIONS
from hierax._auto.session import Work
from hierax._auto.space import Passed, Space
from hierax._auto.sqp import Evaluated, Stop, slsqp
from hierax._engine.vectors import Point


class Cuts(NamedTuple):
    """Branches of lower-level solutions whose values v_j(x) bound f(x, y) from above, followed from where they were.

    A fixed point w would be a valid cut only where the constraints do not depend on x.
    """

    y: np.ndarray
    mu: np.ndarray

    @staticmethod
    def none(space: Space) -> "Cuts":
        """No branch yet."""
        layout = space.vectors.layout
        return Cuts(np.zeros((0, layout.ny)), np.zeros((0, layout.rows)))

    def and_also(self, branch: Point) -> "Cuts":
        """One branch more."""
        return Cuts(np.concatenate([self.y, branch.y[None]]), np.concatenate([self.mu, branch.mu[None]]))

    def __bool__(self) -> bool:
        return len(self.y) > 0


def kkt_polish(
    space: Space, work: Work, start: Point, cuts: Cuts, relaxations: tuple[float, ...] = RELAXATIONS
) -> Point:
    """min F subject to the upper constraints, the lower level's KKT system with -mu_i row_i <= t, and the cuts.

    t falls from stage to stage. Where a polish is between two stages determines it: one that arrives where another
    has been ends where that one did.
    """
    system, way = _KktSystem(space, cuts), list[tuple[tuple[tuple[float, ...], int], np.ndarray]]()
    stop, u = Stop(SQP_ITERATIONS, ROUNDING if cuts else SQP_CHANGE, work), system.packed(start)
    for stage in range(len(relaxations) + 1):
        if stage:
            u = slsqp(functools.partial(system.evaluate, t=relaxations[stage - 1]), u, system.bounds(), stop)
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
        if one.stage == stage and one.here.shape == here.shape and np.max(np.abs(here - one.here)) <= CLOSE:
            return one.end
    return None


def value_polish(space: Space, work: Work, start: Point, cuts: Cuts, beat: float = np.inf) -> Point:
    """min F subject to the upper and the lower constraints and f <= v_j + e for every cut, e falling.

    Needs no multiplier: it reaches solutions at which the lower level has none, and it chooses y freely among the lower
    level's solutions. F only rises as e falls: a stage that ends above `beat` is the last.
    """
    vectors, nx, no_multipliers = space.vectors, space.vectors.layout.nx, np.zeros(space.vectors.layout.rows)
    lines = _Lines(space, with_pairs=False, with_stationarity=False, cuts=len(cuts.y))

    def evaluate(u: np.ndarray, slack: float) -> Evaluated:
        table = vectors.table(np.concatenate([u, no_multipliers]))
        found = lines.signs[:, None] * table[lines.places]
        found[lines.cuts] = _cut_rows(space, cuts, u[:nx], table[1], slack)
        return Evaluated(found, lines.above)

    limits = vectors.x_limits, vectors.y_limits
    bounds = np.concatenate([s.low for s in limits]), np.concatenate([s.high for s in limits])
    u, stop = np.concatenate([start.x, start.y]), Stop(SQP_ITERATIONS // 2, ROUNDING, work)
    for slack in (max(MUCH_LESS * t, RELAXATIONS[-1]) for t in RELAXATIONS):
        u = slsqp(functools.partial(evaluate, slack=slack), u, bounds, stop)
        if vectors.values(u[:nx], u[nx:], no_multipliers).upper > beat:
            break
    return Point(u[:nx], u[nx:], no_multipliers)


def _cut_rows(space: Space, cuts: Cuts, x: np.ndarray, lower: np.ndarray, slack: float) -> np.ndarray:
    """Lines of v_j(x) - f + slack >= 0, with derivatives in (x, y); `lower` is the line of f."""
    found = space.vectors.followed(x, cuts.y, cuts.mu)
    lines = np.tile(-lower, (len(cuts.y), 1))
    lines[:, 0] += found.value + slack
    lines[:, 1 : 1 + x.size] += found.slope
    return lines


class _Lines:
    """Where SLSQP's lines stand in the table of all functions, and with which signs.

    First F, then the inequalities: upper ones, rows of the lower level, complementary pairs, cuts; then the equalities:
    those of X, rows of the lower level, and stationarity.

    Attributes:
        places: of every line in the table; those of cuts, which are not in it, count for nothing.
        signs: of every line.
        above: how many inequalities there are.
        pairs: slice of the complementary pairs.
        cuts: slice of the cuts.
        stationarity: slice of that.
    """

    def __init__(self, space: Space, with_pairs: bool, with_stationarity: bool, cuts: int) -> None:
        layout, structure = space.vectors.layout, space.structure
        above, above_equal, rows, stationarity = (np.arange(part.start, part.stop) for part in layout.parts)
        kinds = {
            "upper": np.zeros(1, int),
            "above": above[structure.above],
            "rows": rows[structure.curved & ~layout.equal],
            "pairs": rows[structure.live & ~layout.equal] if with_pairs else rows[:0],
            "cuts": np.zeros(cuts, int),
            "above_equal": above_equal,
            "equal": rows[layout.equal],
            "stationarity": stationarity if with_stationarity else stationarity[:0],
        }
        ends = dict(zip(kinds, np.cumsum([kind.size for kind in kinds.values()]), strict=True))
        parts = {name: slice(ends[name] - kind.size, ends[name]) for name, kind in kinds.items()}
        self.places, self.above = np.concatenate([*kinds.values()]), int(ends["cuts"] - 1)
        self.signs = np.ones(self.places.size)
        self.signs[1 : ends["rows"]] = -1.0
        self.pairs, self.cuts, self.stationarity = parts["pairs"], parts["cuts"], parts["stationarity"]


class _KktSystem:
    """min F over the relaxed KKT system of the lower level, as SLSQP sees it.

    The unknowns u are x, y and the multipliers of the live rows.
    """

    def __init__(self, space: Space, cuts: Cuts) -> None:
        self.space, self.vectors, self.cuts = space, space.vectors, cuts
        self.live = space.structure.live
        self.pairs = np.flatnonzero(~self.vectors.layout.equal[self.live])  # complementary pairs, among the live rows
        self.n = self.vectors.layout.nx + self.vectors.layout.ny
        self.lines = _Lines(space, with_pairs=True, with_stationarity=True, cuts=len(cuts.y))

    def packed(self, point: Point) -> np.ndarray:
        """A point as the unknowns."""
        return np.concatenate([point.x, point.y, point.mu[self.live]])

    def unpacked(self, u: np.ndarray) -> Point:
        """The unknowns as a point."""
        return Point(*np.split(self._whole(u), [self.vectors.layout.nx, self.n]))

    def determining(self, u: np.ndarray) -> np.ndarray:
        """What determines how a polish goes on: the unknowns, and the values and slopes of the cuts."""
        if not self.cuts:
            return u
        found = self.vectors.followed(u[: self.vectors.layout.nx], self.cuts.y, self.cuts.mu)
        return np.concatenate([u, found.value, found.slope.ravel()])

    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """The boxes around X and Y, and the multipliers' signs."""
        x, y, equal = self.vectors.x_limits, self.vectors.y_limits, self.vectors.layout.equal[self.live]
        low = np.concatenate([x.low, y.low, np.where(equal, -np.inf, 0.0)])
        high = np.concatenate([x.high, y.high, np.full(equal.size, np.inf)])
        return low, high

    def evaluate(self, u: np.ndarray, t: float) -> Evaluated:
        """Everything at u."""
        layout, lines, n = self.vectors.layout, self.lines, self.n
        table = self.vectors.table(self._whole(u))
        factors, mu = lines.signs.copy(), u[n:][self.pairs]
        factors[lines.pairs] = mu  # t + mu_i row_i >= 0
        found = np.zeros((factors.size, 1 + u.size))
        found[:, : 1 + n] = factors[:, None] * table[lines.places]
        found[lines.pairs, 0] += t
        rows = table[layout.parts[2]][self.live]
        found[np.arange(lines.pairs.start, lines.pairs.stop), 1 + n + self.pairs] = rows[self.pairs, 0]
        found[lines.stationarity, 1 + n :] = rows[:, 1 + layout.nx :].T
        if self.cuts:
            found[lines.cuts, : 1 + n] = _cut_rows(self.space, self.cuts, u[: layout.nx], table[1], 0.0)
        return Evaluated(found, lines.above)

    def _whole(self, u: np.ndarray) -> np.ndarray:
        """x, y and the multipliers of all rows, one after another."""
        whole = np.zeros(self.n + self.live.size)
        whole[: self.n] = u[: self.n]
        whole[self.n :][self.live] = u[self.n :]
        return whole
