r"""The problem linearised at a solution of its lower level: how y*, its multipliers and its rows answer to x.

With the rows r of the lower level, their multipliers mu and L = G + mu.r, the response on active rows A solves

    L_yy dy + r_A' dmu = -L_yx dx,     r_A dy = -r_x dx.

Everything is in units (`units.py`), whichever linear solver there is: matrices are formed only where they fit.
"""

import dataclasses
import functools
from typing import NamedTuple

import numpy as np

from hierax._engine.float64_problem import ROUNDING
from hierax._engine.programs import CLOSE, Branches, Values
from hierax._engine.vectors import STIFF, Point, VectorProblem
from hierax._lower.active_set import Found
from hierax._lower.linear import KKTSystem, Matrices, Products, SecondDerivatives, gradients, stiffness
from hierax._math.hypergradient import MOST as MAX_ORDER
from hierax._math.lower_level import SOLVED

MAX_DENSE = 600  # entries of y, up to which singular values of its matrices are computed
CUT = 0.05  # difference in G, in units, up to which other local solutions of the lower level are in the way
MAX_SYSTEMS = 50  # systems by products for the response to x: entries of x, or rows, whichever are fewer
MAX_NUMBERS = 4_000_000  # of a matrix that is formed where they are large: 16 million took 15 of a certificate's 19 s


class Slopes(NamedTuple):
    """Jacobians in (x, y): of F, of G, of the upper constraints with the faces of X, and of the equalities of X."""

    upper: np.ndarray
    lower: np.ndarray
    above: np.ndarray
    above_equal: np.ndarray


class Response(NamedTuple):
    """How y* answers to x where nothing is weakly active.

    Attributes:
        y: dy/dx; None where the lower level is flat along its active rows, so that y* is not unique, or not known.
        mu: dmu/dx, of the active rows.
        dependent: whether active rows depend on each other as functions of y, but not of (x, y): only some of them stay
            active when x moves.
    """

    y: np.ndarray | None
    mu: np.ndarray
    dependent: bool


@dataclasses.dataclass(frozen=True)
class Linearised:
    """The problem near a solution of the lower level.

    Attributes:
        vectors: the problem.
        point: x, y*(x) and the multipliers.
        values: all functions there; upper constraints may be followed by cuts (`with_cuts`).
        slopes: Jacobians of the upper level's functions and of G.
    """

    vectors: VectorProblem
    point: Point
    values: Values[np.ndarray]
    slopes: Slopes
    _kept: dict[bytes, Response] = dataclasses.field(default_factory=dict, repr=False)

    @staticmethod
    def at(vectors: VectorProblem, point: Point) -> "Linearised":
        """At a point inside of X and Y."""
        functions, (x, y, mu) = vectors.functions, point
        upper, above, equal = vectors.upper_slopes(x, y)
        there = functions.slopes(x, y, np.zeros_like(mu))
        slopes = Slopes(upper, np.concatenate([there.along_x, there.gradient]), above, equal)
        return Linearised(vectors, point, vectors.values(*point), slopes)

    @functools.cached_property
    def matrices(self) -> SecondDerivatives:
        """Of second order, in y."""
        return self.vectors.functions.matrices(*self.point)

    @functools.cached_property
    def mixed(self) -> np.ndarray | None:
        """The derivatives in x of the gradient of L in y, then of the rows; None where x has too many entries."""
        by_factors = isinstance(self.matrices, Matrices)
        most = MAX_NUMBERS // max(self.point.y.size, 1) if by_factors else MAX_SYSTEMS
        if self.vectors.programs.large and self.vectors.layout.nx > most:
            return None
        return self.vectors.functions.mixed(*self.point)

    def row_slopes(self, which: np.ndarray) -> np.ndarray:
        """The Jacobian in (x, y) of some rows (a mask)."""
        from_y = gradients(self.matrices, np.flatnonzero(which))
        of_x = np.zeros((which.size, self.point.x.size)) if self.mixed is None else self.mixed[self.point.y.size :]
        return np.concatenate([of_x[which], from_y], axis=1)

    @functools.cached_property
    def stationarity_slopes(self) -> np.ndarray:
        """The Jacobian in (x, y) of the gradient of L in y, formed."""
        assert self.mixed is not None
        return np.concatenate([self.mixed[: self.point.y.size], self.hessian], axis=1)

    @property
    def hessian(self) -> np.ndarray:
        """Of L in y, formed."""
        assert isinstance(self.matrices, Matrices)
        found = self.matrices.hessian
        return found if isinstance(found, np.ndarray) else found.toarray()

    @property
    def dense(self) -> bool:
        """Whether singular values of the matrices may be computed."""
        return isinstance(self.matrices, Matrices) and self.point.y.size <= MAX_DENSE

    @property
    def active(self) -> np.ndarray:
        """Equalities, and rows whose multiplier is larger than their slack."""
        return self.vectors.layout.equal | (np.abs(self.point.mu) > np.abs(self.values.rows))

    @functools.cached_property
    def margins(self) -> np.ndarray:
        """How clearly every row is active or not: zero where it is weakly active; infinite for equalities."""
        moves = self.matrices.along(np.random.default_rng(0).normal(size=self.point.y.size)) != 0
        if self.mixed is not None:
            moves |= self.mixed[self.point.y.size :].any(axis=1)
        clear = np.maximum(np.abs(self.values.rows), np.abs(self.point.mu))
        return np.where(self.vectors.layout.equal | ~moves, np.inf, clear)

    @functools.cached_property
    def radii(self) -> np.ndarray:
        """Lengths that x may move until, to first order, every row changes sides; infinite for those that never do.

        Where the response of y* to x is not known, the rows' margins.
        """
        active, answer, (x, y, mu) = self.active, self.response(self.active), self.point
        if answer.y is not None and self.mixed is not None:
            moves = np.abs(self.mixed[y.size :] + self.matrices.along(answer.y)).sum(axis=1)
            moves[active] = np.abs(answer.mu).sum(axis=1)
        else:
            few = self.mixed is None and mu.size <= MAX_SYSTEMS
            system, follower = self.regular_system(active) if few else None, self.vectors.follower
            if system is None or follower is None:
                return self.margins
            found = Found(y, mu, self.vectors.functions.slopes(*self.point), system)
            moves = np.abs(follower.sides(x, found, np.arange(mu.size))[1]).sum(axis=1)
        distance = np.where(active, np.abs(mu), np.abs(self.values.rows))
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.vectors.layout.equal | (moves <= ROUNDING), np.inf, distance / moves)

    def response(self, active: np.ndarray) -> Response:
        """dy*/dx and dmu/dx on one active set, dependent rows counted once."""
        key = active.tobytes()
        if key not in self._kept:
            self._kept[key] = self._response(active)
        return self._kept[key]

    def _response(self, active: np.ndarray) -> Response:
        ny, unknown = self.point.y.size, Response(None, np.zeros((int(active.sum()), self.point.x.size)), False)
        system = None if self.mixed is None else self.regular_system(active)
        if self.mixed is not None and system is not None:
            dy, dmu = system.solve(-self.mixed[:ny], -self.mixed[ny:])
            if np.isfinite(dy).all():
                return Response(dy, dmu[active], False)
        return self._by_singular_values(active, self.mixed) if self.dense and self.mixed is not None else unknown

    def _by_singular_values(self, active: np.ndarray, mixed: np.ndarray) -> Response:
        nx, ny, hessian, rows = self.point.x.size, self.point.y.size, self.hessian, self.row_slopes(active)
        mixed, rows_y = mixed[:ny], rows[:, nx:]
        rank, inverse = np.linalg.matrix_rank(rows_y, rtol=ROUNDING), np.linalg.pinv(rows_y, rcond=ROUNDING)
        free = np.linalg.svd(rows_y, full_matrices=True)[2][rank:].T
        # Else a row follows from the others, whatever x does.
        dependent = bool(rank < len(rows) and rank < np.linalg.matrix_rank(rows, rtol=ROUNDING))
        moved = -inverse @ rows[:, :nx]
        reduced = free.T @ hessian @ free
        curvatures = np.abs(np.linalg.eigvalsh(0.5 * (reduced + reduced.T)))
        if np.min(curvatures, initial=np.inf) <= ROUNDING * max(1.0, np.abs(hessian).max()):
            return Response(None, np.zeros((len(rows), nx)), dependent)
        dy = moved + free @ np.linalg.solve(reduced, -free.T @ (mixed + hessian @ moved))
        dmu = -inverse.T @ (mixed + hessian @ dy)
        return Response(dy, dmu, dependent)

    def regular_system(self, active: np.ndarray) -> KKTSystem | None:
        """The KKT system on some rows; None where y* or the multipliers are not unique, or nearly so."""
        if isinstance(self.matrices, Matrices) and not self.matrices.finite:
            return None
        system = self.matrices.system(active)
        if system.doubled:
            return None
        if isinstance(self.matrices, Products) and system.independent(MAX_ORDER, MAX_NUMBERS) is not True:
            return None
        return system if stiffness(system, push_rows=True) <= STIFF else None

    def with_cuts(self, branches: Branches) -> "Linearised":
        """The same with a further upper constraint, G(x, y) <= v_j(x), for every other local solution that is as good.

        Where x moves so that such a solution becomes better, y stops being one.
        """
        value = float(self.values.lower)
        kept: list[int] = []
        for j in np.flatnonzero((branches.status == SOLVED) & (np.abs(branches.value - value) <= CUT)):
            known = np.concatenate([self.point.y[None], branches.y[kept]])
            if np.all(np.max(np.abs(branches.y[j] - known), axis=1, initial=0.0) > CLOSE):
                kept.append(int(j))
        if not kept:
            return self
        slopes = np.tile(self.slopes.lower, (len(kept), 1))
        slopes[:, : self.point.x.size] -= branches.slope[kept]
        return dataclasses.replace(
            self,
            values=self.values._replace(above=np.concatenate([self.values.above, value - branches.value[kept]])),
            slopes=self.slopes._replace(above=np.concatenate([self.slopes.above, slopes])),
        )
