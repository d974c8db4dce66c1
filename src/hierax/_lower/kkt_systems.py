r"""Matrices of a lower level's KKT conditions on the host, and their systems [[L_yy, r_A'], [r_A, 0]] factorised.

Three ways, by what the matrices look like: dense; sparse, where they are large with few entries; and, where most
entries of y are slacks, a dense system of what is left without them (`_without_slacks`). Where entries are not zero is
found once, and looked at again only where it changes.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hierax._base.lazy import lazy

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

scipy_linalg = lazy("scipy.linalg")
sparse = lazy("scipy.sparse")
sparse_linalg = lazy("scipy.sparse.linalg")

SHIFT = 1e-10  # keeps systems with dependent rows regular; later steps take its effect out again
SPARSE, LARGE = 0.15, 150  # systems of at least this order with fewer entries than this share are factorised as sparse
FEW, MOST = 1 / 3, 400  # slacks are eliminated where this share of the order is left, and this order, at most
UNCHANGED = 1e-12  # relative difference up to which derivatives at two points are the same

Solve = Callable[[np.ndarray], np.ndarray]
"""The solution of a system for a right-hand side, or for several in columns."""


class Entries(NamedTuple):
    """Where a matrix is not zero.

    Attributes:
        rows: of all entries, in order.
        columns: likewise.
        counts: how many every row has.
    """

    rows: np.ndarray
    columns: np.ndarray
    counts: np.ndarray

    @staticmethod
    def of(matrix: np.ndarray) -> "Entries":
        """Those of a matrix."""
        rows, columns = np.nonzero(matrix)
        return Entries(rows, columns, np.bincount(rows, minlength=len(matrix)))

    def fit(self, matrix: np.ndarray) -> bool:
        """Whether another matrix is not zero at the same places."""
        if len(matrix) != self.counts.size or np.count_nonzero(matrix) != self.rows.size:
            return False
        return self.rows.size == matrix.size or bool(np.all(matrix[self.rows, self.columns] != 0))

    def sparse(self, matrix: np.ndarray) -> "csr_matrix":
        """The matrix as a sparse one."""
        ends = np.concatenate([[0], np.cumsum(self.counts)])
        return sparse.csr_matrix((matrix[self.rows, self.columns], self.columns, ends), shape=matrix.shape)


class Pattern:
    """Where the Jacobian of the rows and the Hessian of L are not zero, and what follows from it."""

    def __init__(self, jacobian: Entries, hessian: Entries) -> None:
        self.jacobian, self.hessian = jacobian, hessian

    @functools.cached_property
    def singles(self) -> np.ndarray:
        """Which rows depend on one entry of y alone."""
        return self.jacobian.counts == 1

    @functools.cached_property
    def few(self) -> bool:
        """Whether the matrices are large and have few entries; rows of one entry do not count."""
        entries = self.hessian.counts.sum() + 2 * self.jacobian.counts[~self.singles].sum()
        order = self.hessian.counts.size + np.count_nonzero(~self.singles)
        return bool(order >= LARGE and entries <= SPARSE * order**2)

    @functools.cached_property
    def slacks(self) -> tuple[np.ndarray, np.ndarray]:
        """Which entries of y the Hessian ties to no other one, and one row at most depends on; and that row, or -1.

        Rows of one entry do not count.
        """
        ny = self.hessian.counts.size
        own = np.bincount(self.hessian.rows[self.hessian.rows == self.hessian.columns], minlength=ny)
        coupling = ~self.singles[self.jacobian.rows]
        rows, columns = self.jacobian.rows[coupling], self.jacobian.columns[coupling]
        row_of = np.full(ny, -1)
        row_of[columns] = rows
        alone = (own == 1) & (self.hessian.counts == 1) & (np.bincount(columns, minlength=ny) <= 1)
        return alone, row_of


class Matrices:
    """Derivatives of second order: the Jacobian of the rows in y, and the Hessian of L."""

    def __init__(self, jacobian: np.ndarray, hessian: np.ndarray) -> None:
        self.jacobian, self.hessian = jacobian, hessian
        self._expected: Pattern | None = None

    def expect(self, other: "Matrices") -> None:
        """Zeros are likely to be where others have theirs."""
        self._expected = vars(other).get("pattern", self._expected)

    @functools.cached_property
    def finite(self) -> bool:
        """Whether all entries are finite."""
        return bool(np.isfinite(self.jacobian).all() and np.isfinite(self.hessian).all())

    @functools.cached_property
    def pattern(self) -> Pattern:
        """Where they are not zero."""
        like = self._expected
        if like is not None and like.jacobian.fit(self.jacobian) and like.hessian.fit(self.hessian):
            return like
        return Pattern(Entries.of(self.jacobian), Entries.of(self.hessian))

    @functools.cached_property
    def sparse(self) -> "tuple[csr_matrix, csr_matrix]":
        """Both as sparse matrices."""
        return self.pattern.jacobian.sparse(self.jacobian), self.pattern.hessian.sparse(self.hessian)

    def same(self, other: "Matrices") -> bool:
        """Whether both are the same, up to rounding."""
        diagonals = np.diag(self.hessian), np.diag(other.hessian)  # first: where anything changes, they mostly do
        pairs = diagonals, (self.jacobian, other.jacobian), (self.hessian, other.hessian)
        return all(_close(a, b) for a, b in pairs) and self.finite and other.finite


def _close(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays are the same up to rounding; False where one is not finite."""
    difference = np.max(np.abs(one - other), initial=0.0)
    return bool(difference <= UNCHANGED * (1 + np.max(np.abs(other), initial=0.0)))


class System:
    """[[L_yy, r_A'], [r_A, 0]] factorised.

    Active rows that depend on one entry of y alone hold that entry: both are eliminated.
    """

    def __init__(self, matrices: Matrices, active: np.ndarray) -> None:
        self.matrices, self.active = matrices, active
        jacobian = matrices.jacobian
        single = active & matrices.pattern.singles
        places = np.flatnonzero(single)
        entries = np.argmax(np.abs(jacobian[places]), axis=1)
        self.held, first = np.unique(entries, return_index=True)  # of two bounds on one entry the first holds it
        self.holding = places[first]
        self.doubled = len(places) > len(first)  # whether an entry is held twice
        self.pivots = jacobian[self.holding, self.held]
        free = np.ones(jacobian.shape[1], bool)
        free[self.held] = False
        self.free, self.own = np.flatnonzero(free), np.flatnonzero(active & ~single)
        self._solve = _factorised(matrices, self.free, self.own)

    def stiffness(self, push_rows: bool = False) -> float:
        """How far y answers to pushes at random, every entry measured by its own curvature: huge where y is not unique.

        With `push_rows` the rows are pushed too, and their multipliers' answers count: huge where rows are dependent.
        """
        rng = np.random.default_rng(0)
        jacobian, hessian = self.matrices.jacobian, self.matrices.hessian
        own = np.sqrt(np.minimum(np.abs(np.diag(hessian)), 1.0))
        own = np.where(own > 0, own, 1.0)
        rows = rng.normal(size=len(jacobian)) if push_rows else np.zeros(len(jacobian))
        dy, dmu = self.solve(own * rng.normal(size=own.size), rows)
        with np.errstate(invalid="ignore"):
            sizes = [np.max(np.abs(dy * own), initial=0.0), np.max(np.abs(dmu), initial=0.0) if push_rows else 0.0]
        return float(np.inf if np.isnan(sizes).any() else max(sizes))

    def solve(self, of_y: np.ndarray, of_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(dy, dmu) for right-hand sides in the last axis's place; dmu is zero for rows that are not active."""
        jacobian, hessian = self.matrices.jacobian, self.matrices.hessian
        dy, dmu = np.zeros_like(of_y), np.zeros_like(of_rows)
        dy[self.held] = (of_rows[self.holding].T / self.pivots).T
        if self.free.size + self.own.size:
            top = of_y[self.free] - hessian[np.ix_(self.free, self.held)] @ dy[self.held]
            low = of_rows[self.own] - jacobian[np.ix_(self.own, self.held)] @ dy[self.held]
            solved = self._solve(np.concatenate([top, low]))
            dy[self.free], dmu[self.own] = solved[: self.free.size], solved[self.free.size :]
        rest = of_y[self.held] - hessian[self.held] @ dy - jacobian[np.ix_(self.own, self.held)].T @ dmu[self.own]
        dmu[self.holding] = (rest.T / self.pivots).T
        return dy, dmu


def _factorised(matrices: Matrices, free: np.ndarray, own: np.ndarray) -> Solve:
    """The solution of systems [[L_yy, r'], [r, 0]] of some entries of y and some rows, slightly shifted.

    Not a number where derivatives are not finite.
    """
    if not matrices.finite:
        return lambda right: np.full_like(right, np.nan)
    curvatures = np.abs(np.diag(matrices.hessian))[free]
    shift = SHIFT * np.where(curvatures > 0, np.minimum(curvatures, 1.0), 1.0)
    without = _without_slacks(matrices, free, own, shift) if free.size + own.size >= LARGE else None
    if without is not None:
        return without
    shift = np.concatenate([shift, np.full(own.size, -SHIFT)])
    if matrices.pattern.few:
        jacobian, hessian = matrices.sparse
        within = jacobian[own][:, free]
        blocks = sparse.bmat([[hessian[free][:, free], within.T], [within, None]], format="csc")
        return sparse_linalg.splu((blocks + sparse.diags(shift)).tocsc()).solve
    within = matrices.jacobian[np.ix_(own, free)]
    return _dense(matrices.hessian[np.ix_(free, free)], within, shift)


def _dense(hessian: np.ndarray, rows: np.ndarray, shift: np.ndarray) -> Solve:
    """[[hessian, rows'], [rows, 0]] with a shift of its diagonal."""
    ny = len(hessian)
    matrix = np.zeros((shift.size,) * 2)
    matrix[:ny, :ny] = hessian
    matrix[:ny, ny:], matrix[ny:, :ny] = rows.T, rows
    matrix[np.arange(shift.size), np.arange(shift.size)] += shift
    factor = scipy_linalg.lu_factor(matrix, check_finite=False)
    return lambda right: scipy_linalg.lu_solve(factor, right, check_finite=False)


def _without_slacks(matrices: Matrices, free: np.ndarray, own: np.ndarray, shift: np.ndarray) -> Solve | None:
    """The same by eliminating slacks, and the rows that have one; None where that leaves too much, or is not stable.

    With the slacks s, of which the Hessian is a diagonal D > 0, the other entries k of y, the rows r, and their
    derivatives J_s and J_k, the system is

        D ds + J_s' dmu = a,    H dk + J_k' dmu = b,    J_s ds + J_k dk = c.

    Every slack belongs to one row, so W = J_s D^-1 J_s' is diagonal. Where it is positive, dmu = W^-1 (J_k dk - c'),
    with c' = c - J_s D^-1 a, and what is left is H + J_k' W^-1 J_k. One step of refinement takes out what rounding
    leaves where W is small.
    """
    alone, row_of = matrices.pattern.slacks
    alone = alone[free]
    slack, rest = free[alone], free[~alone]
    curvature = np.diag(matrices.hessian)[slack] + shift[alone]
    if 2 * slack.size < free.size or rest.size > MOST or not np.all(curvature > 0):
        return None
    place = np.full(len(matrices.jacobian) + 1, own.size)  # of a row among the active ones; behind them: none
    place[own] = np.arange(own.size)
    at = place[row_of[slack]]
    slope, tied_to = np.zeros(slack.size), at < own.size
    slope[tied_to] = matrices.jacobian[row_of[slack][tied_to], slack[tied_to]]
    weight: np.ndarray = np.bincount(at, slope**2 / curvature, minlength=own.size + 1)[: own.size]
    tied = weight > 0
    if rest.size + np.count_nonzero(~tied) > min(MOST, FEW * (free.size + own.size)):
        return None
    weight = weight + SHIFT
    rows, hessian = matrices.jacobian[np.ix_(own, rest)], matrices.hessian[np.ix_(rest, rest)]
    hessian[np.arange(rest.size), np.arange(rest.size)] += shift[~alone]
    left = np.concatenate([np.zeros(rest.size), np.full(np.count_nonzero(~tied), -SHIFT)])
    solve = _dense(hessian + (rows[tied].T / weight[tied]) @ rows[tied], rows[~tied], left)

    def of_rows(numbers: np.ndarray) -> np.ndarray:
        """Numbers of slacks added up by their rows."""
        sums = np.zeros((own.size + 1, numbers.shape[1]))
        np.add.at(sums, at, numbers)
        return sums[: own.size]

    def of_slacks(numbers: np.ndarray) -> np.ndarray:
        """Numbers of rows at their slacks."""
        return np.concatenate([numbers, np.zeros((1, numbers.shape[1]))])[at]

    def once(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        c = c - of_rows((slope / curvature)[:, None] * a)
        found = solve(np.concatenate([b + rows[tied].T @ (c[tied] / weight[tied, None]), c[~tied]]))
        dk, dmu = found[: rest.size], np.zeros_like(c)
        dmu[tied] = (rows[tied] @ dk - c[tied]) / weight[tied, None]
        dmu[~tied] = found[rest.size :]
        return (a - slope[:, None] * of_slacks(dmu)) / curvature[:, None], dk, dmu

    def solved(right: np.ndarray) -> np.ndarray:
        columns = right.reshape(len(right), -1)
        a, b, c = columns[: free.size][alone], columns[: free.size][~alone], columns[free.size :]
        ds, dk, dmu = once(a, b, c)
        again = once(
            a - curvature[:, None] * ds - slope[:, None] * of_slacks(dmu),
            b - hessian @ dk - rows.T @ dmu,
            c - of_rows(slope[:, None] * ds) - rows @ dk + SHIFT * dmu,
        )
        found = np.empty_like(columns)
        found[: free.size][alone], found[: free.size][~alone] = ds + again[0], dk + again[1]
        found[free.size :] = dmu + again[2]
        return found.reshape(right.shape)

    return solved
