"""Can the constraints of both levels be satisfied at once? A proof that they cannot, and a search for points that do.

The proof: the lower level must keep its rows, the upper level its own, x lies in the box around X and y in that around
Y. Rows that are known to be convex in (x, y) (`_base/known_curvature.py`: by their program, not by samples) lie above
their tangents everywhere, so that the least t with

    tangents of convex rows <= t,  |affine equalities| <= t,  x and y in their boxes

is a lower bound for the largest violation of any point. All other rows are left out. Where it is positive there is no
feasible point; else tangents at the program's solution are added, a few times, until its point satisfies the rows.

The search: min t subject to rows <= t, |equalities| <= t and upper constraints <= t, from several starts. Where even
that stays positive there is no feasible point as far as the starts show; where it reaches zero a search begins there.
"""

from typing import NamedTuple

import numpy as np

from hierax._auto.constants import AGREEING_STARTS, LISTED, RUN_OFF, SQP_CHANGE, SQP_ITERATIONS, STARTS, VIOLATED
from hierax._auto.session import Work
from hierax._auto.space import Space
from hierax._auto.sqp import Evaluated, Stop, slsqp
from hierax._base.imports import lazy
from hierax._base.text import entries
from hierax._engine.programs import FEASIBLE, Values, raveled
from hierax._engine.vectors import VectorProblem
from hierax._math.scatter import unit_cube

scipy_optimize, scipy_sparse = lazy("scipy.optimize"), lazy("scipy.sparse")


class Contradiction(NamedTuple):
    """Why no point satisfies all constraints.

    Attributes:
        rows: the names of those that exclude each other (or, a single one, the sets X and Y).
        least: the largest violation of a row that every point has at least, as a share of what the row changes.
        lowest: of a single row, the least value that it has, in the user's units; None: there are several.
    """

    rows: list[str]
    least: float
    lowest: float | None

    @property
    def text(self) -> str:
        """In words."""
        if self.lowest is not None:
            return f"{self.rows[0]} is violated by at least {self.lowest:.3g} everywhere in X and Y"
        listed = ", ".join(self.rows[:LISTED]) + (", ..." if self.rows[LISTED:] else "")
        return f"{listed} exclude each other in X and Y: at every point one is violated by {self.least:.2g} of its size"


def contradiction(space: Space, work: Work) -> Contradiction | None:
    """A proof that no point satisfies the constraints of both levels; None: there is none of this kind."""
    vectors = space.vectors
    known = _Convex(vectors)
    if not known.names or work.passed:
        return None
    slopes, offsets, u = [], [], np.concatenate([space.xs[0], space.ys[0]])
    for _ in range(SQP_ITERATIONS):
        values, slope = known.at(u)
        slopes.append(slope)
        offsets.append(values - slope @ u)
        found = _least(vectors, np.concatenate(slopes), np.concatenate(offsets))
        if found is None or work.passed:
            return None
        u, least, weights = found
        if least > VIOLATED:
            return _named(known, least, weights)
        if known.affine or np.max(known.at(u)[0], initial=0.0) <= VIOLATED:
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
        once = {  # the field of `Values`, and the places in it, of every kind of rows
            "upper_constraints": ("above", np.arange(layout.own_above)),
            "x in X": ("above", np.arange(layout.own_above, layout.above)),
            "constraints": ("rows", np.flatnonzero(own & ~equal)),
            "y in Y": ("rows", np.flatnonzero(~own & ~equal)),
        }
        twice = {
            "equalities": ("rows", np.flatnonzero(own & equal)),
            "y in Y, equal": ("rows", np.flatnonzero(~own & equal)),
            "x in X, equal": ("above_equal", np.arange(layout.above_equal)),
        }
        parts = {name: _Part.of(vectors, name) for name in (*once, *twice)}
        self._once, self._twice = (
            [(field, where[parts[name].known]) for name, (field, where) in kinds.items()] for kinds in (once, twice)
        )
        self.names = [name for kind in (*once, *twice, *twice) for name in parts[kind].names]
        self.sizes = np.concatenate([parts[kind].sizes for kind in (*once, *twice, *twice)])
        self.affine = all(part.affine for part in parts.values())

    def at(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values and slopes at a point (x, y); outside of X and Y, of the tangents at the nearest point in them."""
        layout = self.vectors.layout
        values, slopes = self.vectors.at(u[: layout.nx], u[layout.nx :], np.zeros(layout.rows))
        return self._chosen(values), self._chosen(slopes)

    def _chosen(self, all_rows: Values[np.ndarray]) -> np.ndarray:
        once, twice = (
            [getattr(all_rows, field)[where] for field, where in kinds] for kinds in (self._once, self._twice)
        )
        return np.concatenate([*once, *twice, *(-part for part in twice)])


class _Part(NamedTuple):
    """Rows of one kind.

    Attributes:
        known: which of them are known to be convex (equalities: affine).
        names: of those.
        sizes: their units.
        affine: whether all of those are affine.
    """

    known: np.ndarray
    names: list[str]
    sizes: np.ndarray
    affine: bool

    @staticmethod
    def of(vectors: VectorProblem, kind: str) -> "_Part":
        setting = vectors.programs.setting
        found = [one for one, count in setting.curvatures(kind) for _ in range(count)]
        equal = kind.endswith("equal") or kind == "equalities"
        known = np.array([one.is_affine if equal else one.is_convex for one in found], bool)
        units = getattr(vectors.units.rows, kind, None)
        sizes = np.ones(known.size) if units is None else raveled(units)
        names = len(found) * [kind.split(",")[0]] if units is None else entries(kind, units)
        return _Part(
            known,
            [names[i] for i in np.flatnonzero(known)],
            sizes[known],
            all(one.is_affine for one, mine in zip(found, known, strict=True) if mine),
        )


def _least(
    vectors: VectorProblem, slopes: np.ndarray, offsets: np.ndarray
) -> tuple[np.ndarray, float, np.ndarray] | None:
    """The point of least violation of slopes u + offsets <= t, that t, and the rows' multipliers."""
    if not (np.isfinite(slopes).all() and np.isfinite(offsets).all()):
        return None
    low = np.concatenate([vectors.x_limits.low, vectors.y_limits.low, [0.0]])
    high = np.concatenate([vectors.x_limits.high, vectors.y_limits.high, [np.inf]])
    found = scipy_optimize.linprog(
        np.eye(low.size)[-1],
        A_ub=scipy_sparse.csr_array(np.concatenate([slopes, -np.ones((len(slopes), 1))], axis=1)),
        b_ub=-offsets,
        bounds=np.stack([low, high], axis=1),
        method="highs",
    )
    if found.x is None or found.status != 0:
        return None
    return found.x[:-1], float(found.x[-1]), -found.ineqlin.marginals


def _named(known: _Convex, least: float, weights: np.ndarray) -> Contradiction:
    """The contradiction that the multipliers show; those of tangents of one row belong together."""
    together = weights.reshape(-1, len(known.names)).sum(axis=0)
    places = np.flatnonzero(together > VIOLATED * together.max())
    names = list(dict.fromkeys(known.names[i] for i in places))
    return Contradiction(names, least, least * float(known.sizes[places[0]]) if len(names) == 1 else None)


def feasible_points(space: Space, work: Work) -> tuple[list[tuple[np.ndarray, np.ndarray]], float]:
    """Points (x, y) that satisfy everything, and the least violation that was found."""
    vectors, found, least = space.vectors, [], np.inf
    nx, none = vectors.layout.nx, np.zeros(vectors.layout.rows)
    equal, live = vectors.layout.equal, space.structure.live

    def evaluate(u: np.ndarray) -> Evaluated:
        values, slopes = vectors.at(u[:nx], u[nx:-1], none)
        above, slack = [values.above, values.rows[live & ~equal]], [slopes.above, slopes.rows[live & ~equal]]
        for sign in (1.0, -1.0):
            above += [sign * values.rows[equal], sign * values.above_equal]
            slack += [sign * slopes.rows[equal], sign * slopes.above_equal]
        slope = np.concatenate(slack)
        return Evaluated.of(
            (u[-1], np.eye(u.size)[-1]),
            (u[-1] - np.concatenate(above), np.concatenate([-slope, np.ones((len(slope), 1))], axis=1)),
            (np.zeros(0), np.zeros((0, u.size))),
        )

    low = np.concatenate([vectors.x_limits.low, vectors.y_limits.low, np.zeros(1)])
    high = np.concatenate([vectors.x_limits.high, vectors.y_limits.high, np.full(1, np.inf)])
    stop = Stop(SQP_ITERATIONS, SQP_CHANGE, work)
    for x, y in _starts(space):
        if work.passed:
            break
        violation = vectors.violation(x, y, vectors.at(x, y, none)[0])
        u = slsqp(evaluate, np.concatenate([x, y, [min(violation, RUN_OFF)]]), (low, high), stop)
        at = vectors.landed(u[:nx], u[nx:-1])
        violation = vectors.violation(*at, vectors.at(*at, none)[0])
        least = min(least, violation)
        if violation <= FEASIBLE:
            found.append(at)
        if len(found) >= AGREEING_STARTS:
            break
    return found, least


def _starts(space: Space) -> list[tuple[np.ndarray, np.ndarray]]:
    """Those of the search, and for a small problem many more: a feasible x may be hard to find."""
    starts = list(zip(space.xs, space.ys, strict=True))
    if space.vectors.programs.by_table:
        cube = unit_cube(space.vectors.layout.nx, 3 * STARTS, len(starts))
        starts += [(x, space.ys[i % len(space.ys)]) for i, x in enumerate(space.vectors.cover_x(space.xs[0], cube)[1:])]
    return starts
