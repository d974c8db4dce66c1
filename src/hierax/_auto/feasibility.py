"""Whether the constraints of both levels can be satisfied at once: points that do, or a proof that there are none.

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

import numpy as np

from hierax._auto import constants as const
from hierax._auto.descents import minimise
from hierax._auto.hunt import Space
from hierax._auto.session import Work
from hierax._base.imports import lazy
from hierax._base.text import entries
from hierax._engine.float64_problem import proved_curvatures
from hierax._engine.programs import FEASIBLE, raveled
from hierax._engine.vectors import VectorProblem
from hierax._math.scatter import unit_cube

scipy_optimize, scipy_sparse = lazy("scipy.optimize"), lazy("scipy.sparse")


def feasible_points(space: Space, work: Work) -> tuple[list[tuple[np.ndarray, np.ndarray]], float]:
    """Points (x, y) that satisfy everything, and the least violation that was found."""
    vectors, found, least = space.vectors, list[tuple[np.ndarray, np.ndarray]](), np.inf
    nx, none, equal = vectors.layout.nx, np.zeros(vectors.layout.rows), vectors.layout.equal

    def evaluate(u: np.ndarray) -> np.ndarray:
        """t, and t less each row: values in the first column, then derivatives in x, y and t."""
        lines = vectors.table(np.concatenate([u[:-1], none]))
        above, above_equal, rows, _ = (lines[part] for part in vectors.layout.parts)
        twice = np.concatenate([rows[equal], above_equal])
        lines = -np.concatenate([above, rows[space.structure.live & ~equal], twice, -twice])
        lines[:, 0] += u[-1]
        objective = np.concatenate([[u[-1]], np.eye(u.size)[-1]])
        return np.vstack([objective, np.column_stack([lines, np.ones(len(lines))])])

    bounds = space.box(np.zeros(1), np.full(1, np.inf))
    for x, y in _starts(space):
        if work.passed or len(found) >= const.AGREEING_STARTS:
            break
        violation = vectors.violation(x, y, vectors.at(x, y, none)[0])
        u = minimise(evaluate, np.concatenate([x, y, [min(violation, const.RUN_OFF)]]), bounds, work, 0)
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


def contradiction(space: Space, work: Work) -> str | None:
    """A proof that no point satisfies the constraints of both levels, in words; None: there is none of this kind."""
    known = _Convex(space.vectors)
    if not known.names.size or work.passed:
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
            return _in_words(known, least, weights)
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
        self.vectors, layout, units = vectors, vectors.layout, vectors.units.rows
        of_x = layout.above + layout.above_equal
        equal = np.concatenate([np.arange(of_x) >= layout.above, layout.equal])
        own = np.concatenate([np.arange(of_x) < layout.own_above, ~layout.face])
        names, sizes = np.full(equal.size, "y in Y", object), np.ones(equal.size)
        names[:of_x] = "x in X"
        blocks = {"upper_constraints": units.upper, "constraints": units.inequalities, "equalities": units.equalities}
        names[own] = [name for kind, block in blocks.items() for name in entries(kind, block)]
        sizes[own] = raveled([*blocks.values()])
        found = proved_curvatures(vectors.programs.setting)
        convex, concave = np.array([(one.is_convex, one.is_concave) for one in found], bool).reshape(-1, 2).T
        known = convex & (concave | ~equal)
        self._places = np.concatenate([np.flatnonzero(known), np.flatnonzero(known & equal)])
        self._signs = np.where(np.arange(self._places.size) < known.sum(), 1.0, -1.0)
        self.names, self.sizes = names[self._places], sizes[self._places]
        self.affine = bool(concave[known].all())

    def at(self, u: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Values and slopes at a point (x, y); outside of X and Y, of the tangents at the nearest point in them."""
        layout = self.vectors.layout
        found = self.vectors.at(u[: layout.nx], u[layout.nx :], np.zeros(layout.rows))
        values, slopes = (np.concatenate([part.above, part.above_equal, part.rows])[self._places] for part in found)
        return self._signs * values, self._signs[:, None] * slopes


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
    )
    if found.x is None or found.status != 0:
        return None
    return found.x[:-1], float(found.x[-1]), -found.ineqlin.marginals


def _in_words(known: _Convex, least: float, weights: np.ndarray) -> str:
    """The contradiction that the multipliers show; those of tangents of one row belong together."""
    together = weights.reshape(-1, len(known.names)).sum(axis=0)
    places = np.flatnonzero(together > const.NOTICEABLE * together.max())
    names = list(dict.fromkeys(known.names[i] for i in places))
    if len(names) == 1:
        return f"{names[0]} is violated by at least {least * known.sizes[places[0]]:.3g} everywhere in X and Y"
    listed = ", ".join(names[: const.LISTED]) + (", ..." if names[const.LISTED :] else "")
    return f"{listed} exclude each other in X and Y: at every point one is violated by {least:.2g} of its size"
