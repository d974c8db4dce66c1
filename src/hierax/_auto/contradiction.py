"""Do the constraints of both levels exclude each other? A proof, not a search: linear programs over convex rows.

The lower level must keep its rows, the upper level its own, x lies in the box around X and y in that around Y. Rows
that are known to be convex in (x, y) (`_base/known_curvature.py`: by their program, not by samples) lie above their
tangents everywhere, so that the least t with

    tangents of convex rows <= t,  |affine equalities| <= t,  x and y in their boxes

is a lower bound for the largest violation of any point. All other rows are left out. Where it is positive there is no
feasible point; else tangents at the program's solution are added, a few times, until its point satisfies the rows.
"""

from typing import NamedTuple

import numpy as np

from hierax._auto.candidates import Candidate
from hierax._auto.constants import BEYOND_REPAIR, TANGENTS
from hierax._auto.space import Space
from hierax._base.lazy import lazy
from hierax._base.text import entries
from hierax._engine.programs import Values, raveled
from hierax._engine.vectors import VectorProblem

scipy_optimize, scipy_sparse = lazy("scipy.optimize"), lazy("scipy.sparse")

SHARE = 1e-3  # of the largest multiplier, from which on a row has a part in a contradiction
NAMED = 4  # rows that are named


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
        listed = ", ".join(self.rows[:NAMED]) + (", ..." if len(self.rows) > NAMED else "")
        return f"{listed} exclude each other in X and Y: at every point one is violated by {self.least:.2g} of its size"


def proof_of_contradiction(space: Space, candidates: list[Candidate]) -> str | None:
    """The contradiction in words, looked for as a piece of the search, where nothing was accepted so far."""

    def prove() -> str | None:
        if any(candidate.accepted for candidate in candidates):
            return None
        found = contradiction(space)
        return None if found is None else found.text

    text: str | None = space.pieces.do("proof of contradiction", space, candidates, prove)
    return text


class _Rows(NamedTuple):
    """Values of rows <= 0 at a point, and their derivatives in (x, y)."""

    values: np.ndarray
    slopes: np.ndarray


def contradiction(space: Space) -> Contradiction | None:
    """A proof that no point satisfies the constraints of both levels; None: there is none of this kind."""
    vectors = space.vectors
    known = _Convex(vectors)
    if not known.names or space.deadline.passed:
        return None
    slopes, offsets, u = [], [], np.concatenate([space.xs[0], space.ys[0]])
    for _ in range(TANGENTS):
        rows = known.at(u)
        slopes.append(rows.slopes)
        offsets.append(rows.values - rows.slopes @ u)
        found = _least(vectors, np.concatenate(slopes), np.concatenate(offsets))
        if found is None or space.deadline.passed:
            return None
        u, least, weights = found
        if least > BEYOND_REPAIR:
            return _named(known, least, weights)
        if known.affine or np.max(known.at(u).values, initial=0.0) <= BEYOND_REPAIR:
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
        places = {  # of every kind of rows in `Values`
            "upper_constraints": np.arange(layout.own_above),
            "x in X": np.arange(layout.own_above, layout.above),
            "constraints": np.flatnonzero(own & ~equal),
            "y in Y": np.flatnonzero(~own & ~equal),
            "equalities": np.flatnonzero(own & equal),
            "y in Y, equal": np.flatnonzero(~own & equal),
            "x in X, equal": np.arange(layout.above_equal),
        }
        parts = {name: _Part.of(vectors, name) for name in places}
        self._places = {name: where[parts[name].known] for name, where in places.items()}
        once, twice = list(places)[:4], list(places)[4:]
        self.names = [name for kind in (*once, *twice, *twice) for name in parts[kind].names]
        self.sizes = np.concatenate([parts[kind].sizes for kind in (*once, *twice, *twice)])
        self.affine = all(part.affine for part in parts.values())

    def at(self, u: np.ndarray) -> _Rows:
        """Values and slopes at a point (x, y); outside of X and Y, of the tangents at the nearest point in them."""
        layout = self.vectors.layout
        here = self.vectors.at(u[: layout.nx], u[layout.nx :], np.zeros(layout.rows))
        return _Rows(*(self._chosen(part) for part in here))

    def _chosen(self, all_rows: Values[np.ndarray]) -> np.ndarray:
        sources = (all_rows.above, all_rows.above, *4 * [all_rows.rows], all_rows.above_equal)
        parts = [source[where] for source, where in zip(sources, self._places.values(), strict=True)]
        return np.concatenate([*parts, *(-part for part in parts[4:])])


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
    places = np.flatnonzero(together > SHARE * together.max())
    names = list(dict.fromkeys(known.names[i] for i in places))
    return Contradiction(names, least, least * float(known.sizes[places[0]]) if len(names) == 1 else None)
