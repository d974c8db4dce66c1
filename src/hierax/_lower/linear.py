r"""Second derivatives of a lower level on the host, and its KKT systems solved.

    [ L_yy  r_A' ] [ dy  ]   [ p ]
    [ r_A   0    ] [ dmu ] = [ q ]

`SecondDerivatives` and `KKTSystem` are what the solvers ask for. There are three linear solvers behind them: dense
factors, sparse factors (both `Matrices` and `System`; where most entries of y are slacks, a dense system of what is
left without them), and MINRES, where the matrices are known by their products alone (`Products`, `KrylovSystem`).
Active rows that depend on a single entry of y hold that entry: both are eliminated.

C. C. Paige and M. A. Saunders, Solution of sparse indefinite systems of linear equations, SIAM J. Numer. Anal. 1975.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import numpy as np

from hierax._base.imports import lazy

if TYPE_CHECKING:
    from scipy.sparse import csr_array

scipy_linalg = lazy("scipy.linalg")
sparse = lazy("scipy.sparse")
sparse_linalg = lazy("scipy.sparse.linalg")

SHIFT = 1e-10  # keeps systems with dependent rows regular; later steps take its effect out again
SPARSE_SHARE, SPARSE_ORDER = 0.15, 150  # systems of this order with fewer entries than this share have sparse factors
SLACK_SHARE, SLACK_ORDER = 1 / 3, 400  # slacks are eliminated where this share of the order, and this order, is left
UNCHANGED = 1e-12  # relative difference up to which derivatives at two points are the same
MAX_PRODUCTS = 3000  # of one solve by MINRES
SHARPNESS, CONVERGED = 1e-13, 1e-8  # relative residual at which MINRES stops, and at which its solution counts
DEPENDENT = 1e-6  # relative singular value below which rows depend on each other
SINGLE = 1e-10  # relative difference up to which a row is taken to depend on one entry alone

Solve = Callable[[np.ndarray], np.ndarray]
"""The solution of a system for a right-hand side, or for several in columns."""

Matrix = TypeVar("Matrix", "np.ndarray", "csr_array")

Stop = Callable[[], bool]
"""Whether the time is up, or Ctrl-C was pressed."""


class OutOfTime(Exception):
    """The time was up, or Ctrl-C was pressed, before an answer was there."""


class KKTSystem(Protocol):
    """The system at one point, for one active set.

    Attributes:
        active: the rows A.
        bounded: which entries of y an active row holds.
        coupled: active rows that hold no single entry.
        doubled: whether several active rows hold the same entry of y.
    """

    active: np.ndarray
    bounded: np.ndarray
    coupled: np.ndarray
    doubled: bool

    @property
    def matrices(self) -> "SecondDerivatives":
        """The derivatives that it is made of."""

    def solve(self, of_y: np.ndarray, of_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(dy, dmu) for right-hand sides, several in columns; dmu is zero for rows that are not active.

        Not a number where the system is not solved.
        """


class SecondDerivatives(Protocol):
    """The Jacobian J of the rows in y, and the Hessian of L, at one point."""

    def system(self, active: np.ndarray) -> KKTSystem:
        """The KKT system on some rows."""

    def along(self, dy: np.ndarray) -> np.ndarray:
        """J dy."""

    def back(self, mu: np.ndarray) -> np.ndarray:
        """J' mu."""

    def curvatures(self) -> np.ndarray:
        """The sizes of the second derivatives of L in every entry of y."""

    def expect(self, other: "SecondDerivatives") -> None:
        """Zeros are likely to be where others have theirs."""

    def same(self, other: "SecondDerivatives") -> bool:
        """Whether both are the same, up to rounding."""


def stiffness(system: KKTSystem, push_rows: bool = False) -> float:
    """How far y answers to pushes at random, every entry measured by its own curvature: huge where y is not unique.

    With `push_rows` the rows are pushed too, and their multipliers' answers count: huge where rows are dependent.
    """
    rng = np.random.default_rng(0)
    own = np.sqrt(np.minimum(system.matrices.curvatures(), 1.0))
    own = np.where(own > 0, own, 1.0)
    rows = rng.normal(size=system.active.size) if push_rows else np.zeros(system.active.size)
    dy, dmu = system.solve(own * rng.normal(size=own.size), rows)
    with np.errstate(invalid="ignore"):
        sizes = [np.max(np.abs(dy * own), initial=0.0), np.max(np.abs(dmu), initial=0.0) if push_rows else 0.0]
    return float(np.inf if np.isnan(sizes).any() else max(sizes))


# -- by matrices ------------------------------------------------------------------------------------------------------


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
    def of(matrix: Matrix) -> "Entries":
        """Those of a matrix."""
        rows, columns = matrix.nonzero()
        return Entries(rows, columns, np.bincount(rows, minlength=matrix.shape[0]))

    def fit(self, matrix: Matrix) -> bool:
        """Whether another matrix is not zero at the same places."""
        if not isinstance(matrix, np.ndarray):
            ends = np.diff(matrix.indptr)
            same = np.array_equal(ends, self.counts) and np.array_equal(matrix.indices, self.columns)
            return bool(same and np.all(matrix.data != 0))
        if len(matrix) != self.counts.size or np.count_nonzero(matrix) != self.rows.size:
            return False
        return self.rows.size == matrix.size or bool(np.all(matrix[self.rows, self.columns] != 0))

    def sparse(self, matrix: Matrix) -> "csr_array":
        """The matrix as a sparse one."""
        if not isinstance(matrix, np.ndarray):
            return matrix
        ends = np.concatenate([[0], np.cumsum(self.counts)])
        return sparse.csr_array((matrix[self.rows, self.columns], self.columns, ends), shape=matrix.shape)


class Pattern:
    """Where the Jacobian of the rows and the Hessian of L are not zero, and what follows from it."""

    def __init__(self, jacobian: Entries, hessian: Entries) -> None:
        self.jacobian, self.hessian = jacobian, hessian

    @functools.cached_property
    def singles(self) -> np.ndarray:
        """Which rows depend on one entry of y alone."""
        return self.jacobian.counts == 1

    @functools.cached_property
    def last_entry(self) -> np.ndarray:
        """The last entry of y that every row depends on; -1: none."""
        found = np.full(self.jacobian.counts.size, -1)
        found[self.jacobian.rows] = self.jacobian.columns
        return found

    @functools.cached_property
    def few(self) -> bool:
        """Whether the matrices are large and have few entries; rows of one entry do not count."""
        entries = self.hessian.counts.sum() + 2 * self.jacobian.counts[~self.singles].sum()
        order = self.hessian.counts.size + np.count_nonzero(~self.singles)
        return bool(order >= SPARSE_ORDER and entries <= SPARSE_SHARE * order**2)

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
    """Both matrices, dense or sparse."""

    def __init__(self, jacobian: "np.ndarray | csr_array", hessian: "np.ndarray | csr_array") -> None:
        self.jacobian, self.hessian = jacobian, hessian
        self._expected: Pattern | None = None

    def system(self, active: np.ndarray) -> "System":
        """The KKT system on some rows, factorised."""
        return System(self, active)

    def along(self, dy: np.ndarray) -> np.ndarray:
        """J dy."""
        return self.jacobian @ dy

    def back(self, mu: np.ndarray) -> np.ndarray:
        """J' mu."""
        return self.jacobian.T @ mu

    def curvatures(self) -> np.ndarray:
        """The sizes of the second derivatives of L in every entry of y."""
        return np.abs(self.hessian.diagonal())

    def expect(self, other: SecondDerivatives) -> None:
        """Zeros are likely to be where others have theirs."""
        self._expected = vars(other).get("pattern", self._expected)

    @functools.cached_property
    def finite(self) -> bool:
        """Whether all entries are finite."""
        both = (matrix if isinstance(matrix, np.ndarray) else matrix.data for matrix in (self.jacobian, self.hessian))
        return all(bool(np.isfinite(part).all()) for part in both)

    @functools.cached_property
    def pattern(self) -> Pattern:
        """Where they are not zero."""
        like = self._expected
        if like is not None and like.jacobian.fit(self.jacobian) and like.hessian.fit(self.hessian):
            return like
        return Pattern(Entries.of(self.jacobian), Entries.of(self.hessian))

    @functools.cached_property
    def sparse(self) -> "tuple[csr_array, csr_array]":
        """Both as sparse matrices."""
        return self.pattern.jacobian.sparse(self.jacobian), self.pattern.hessian.sparse(self.hessian)

    def same(self, other: SecondDerivatives) -> bool:
        """Whether both are the same, up to rounding."""
        assert isinstance(other, Matrices)
        diagonals = self.hessian.diagonal(), other.hessian.diagonal()  # first: where anything changes, they mostly do
        pairs = diagonals, (self.jacobian, other.jacobian), (self.hessian, other.hessian)
        return all(_close(a, b) for a, b in pairs) and self.finite and other.finite

    def convex(self, slack: float) -> bool:
        """Whether the Hessian, with this much of its largest diagonal entry (or one) added, is positive definite."""
        shift = slack * max(1.0, float(np.max(self.curvatures(), initial=0.0)))
        if not isinstance(self.hessian, np.ndarray):
            return _has_positive_pivots(self.hessian, shift)
        try:  # a Cholesky factorisation is quicker than all eigenvalues
            np.linalg.cholesky(0.5 * (self.hessian + self.hessian.T) + shift * np.eye(len(self.hessian)))
        except np.linalg.LinAlgError:
            return False
        return True


def _has_positive_pivots(matrix: "csr_array", shift: float) -> bool:
    """Whether a symmetric sparse matrix with a shift is positive definite: it has positive pivots without exchanges."""
    shifted = (matrix + shift * sparse.eye_array(matrix.shape[0])).tocsc()
    try:
        factors = sparse_linalg.splu(shifted, diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    except RuntimeError:  # singular
        return False
    return bool(np.array_equal(factors.perm_r, factors.perm_c) and np.all(factors.U.diagonal() > 0))


def _close(one: Matrix, other: Matrix) -> bool:
    """Whether two arrays are the same up to rounding; False where one is not finite."""
    largest = abs(other).max() if 0 not in other.shape else 0.0
    difference = abs(one - other).max() if 0 not in one.shape else 0.0
    return bool(difference <= UNCHANGED * (1 + largest))


def _part(matrix: Matrix, rows: np.ndarray, columns: np.ndarray) -> Matrix:
    """Some rows and columns."""
    return matrix[np.ix_(rows, columns)] if isinstance(matrix, np.ndarray) else matrix[rows][:, columns]


def _dense_part(matrix: Matrix, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    found = _part(matrix, rows, columns)
    return found if isinstance(found, np.ndarray) else found.toarray()


def _entries_at(matrix: Matrix, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Single entries."""
    found = matrix[rows, columns]
    return found if isinstance(found, np.ndarray) else found.toarray().ravel()


class System:
    """The system factorised."""

    def __init__(self, matrices: Matrices, active: np.ndarray) -> None:
        self._matrices, self.active = matrices, active
        pattern, jacobian = matrices.pattern, matrices.jacobian
        single = active & pattern.singles
        places = np.flatnonzero(single)
        entries = pattern.last_entry[places]
        self.held, first = np.unique(entries, return_index=True)  # of two bounds on one entry the first holds it
        self.holding = places[first]
        self.doubled = len(places) > len(first)
        self.pivots = _entries_at(jacobian, self.holding, self.held)
        self.bounded = np.zeros(jacobian.shape[1], bool)
        self.bounded[self.held] = True
        self.coupled = active & ~single
        self.free, self.own = np.flatnonzero(~self.bounded), np.flatnonzero(self.coupled)
        self._solve = _factorised(matrices, self.free, self.own)

    @property
    def matrices(self) -> Matrices:
        """The derivatives that it is made of."""
        return self._matrices

    def solve(self, of_y: np.ndarray, of_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(dy, dmu) for right-hand sides, several in columns; dmu is zero for rows that are not active."""
        jacobian, hessian = self.matrices.jacobian, self.matrices.hessian
        dy, dmu = np.zeros_like(of_y), np.zeros_like(of_rows)
        dy[self.held] = (of_rows[self.holding].T / self.pivots).T
        if self.free.size + self.own.size:
            top = of_y[self.free] - _part(hessian, self.free, self.held) @ dy[self.held]
            low = of_rows[self.own] - _part(jacobian, self.own, self.held) @ dy[self.held]
            solved = self._solve(np.concatenate([top, low]))
            dy[self.free], dmu[self.own] = solved[: self.free.size], solved[self.free.size :]
        rest = of_y[self.held] - hessian[self.held] @ dy - _part(jacobian, self.own, self.held).T @ dmu[self.own]
        dmu[self.holding] = (rest.T / self.pivots).T
        return dy, dmu


def _factorised(matrices: Matrices, free: np.ndarray, own: np.ndarray) -> Solve:
    """The solution of systems of some entries of y and some rows, slightly shifted; NaN where nothing is finite."""
    if not matrices.finite:
        return lambda right: np.full_like(right, np.nan)
    curvatures = matrices.curvatures()[free]
    shift = SHIFT * np.where(curvatures > 0, np.minimum(curvatures, 1.0), 1.0)
    without = _without_slacks(matrices, free, own, shift) if free.size + own.size >= SPARSE_ORDER else None
    if without is not None:
        return without
    shift = np.concatenate([shift, np.full(own.size, -SHIFT)])
    if matrices.pattern.few or not isinstance(matrices.jacobian, np.ndarray):
        jacobian, hessian = matrices.sparse
        return sparse_factors(hessian[free][:, free], jacobian[own][:, free], shift)
    return dense_factors(_dense_part(matrices.hessian, free, free), _dense_part(matrices.jacobian, own, free), shift)


def sparse_factors(hessian: "csr_array", rows: "csr_array", shift: np.ndarray) -> Solve:
    """[[hessian, rows'], [rows, 0]] with a shift of its diagonal."""
    blocks = sparse.block_array([[hessian, rows.T], [rows, None]], format="csc")
    return sparse_linalg.splu((blocks + sparse.diags_array(shift)).tocsc()).solve


def dense_factors(hessian: np.ndarray, rows: np.ndarray, shift: np.ndarray) -> Solve:
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
    curvature = matrices.hessian.diagonal()[slack] + shift[alone]
    if 2 * slack.size < free.size or rest.size > SLACK_ORDER or not np.all(curvature > 0):
        return None
    place = np.full(
        matrices.pattern.jacobian.counts.size + 1, own.size
    )  # of a row among the active ones; behind them: none
    place[own] = np.arange(own.size)
    at = place[row_of[slack]]
    slope, tied_to = np.zeros(slack.size), at < own.size
    slope[tied_to] = _entries_at(matrices.jacobian, row_of[slack][tied_to], slack[tied_to])
    weight: np.ndarray = np.bincount(at, slope**2 / curvature, minlength=own.size + 1)[: own.size]
    tied = weight > 0
    if rest.size + np.count_nonzero(~tied) > min(SLACK_ORDER, SLACK_SHARE * (free.size + own.size)):
        return None
    weight = weight + SHIFT
    rows, hessian = (
        _dense_part(matrix, of, rest) for matrix, of in ((matrices.jacobian, own), (matrices.hessian, rest))
    )
    hessian[np.arange(rest.size), np.arange(rest.size)] += shift[~alone]
    left = np.concatenate([np.zeros(rest.size), np.full(np.count_nonzero(~tied), -SHIFT)])
    solve = dense_factors(hessian + (rows[tied].T / weight[tied]) @ rows[tied], rows[~tied], left)

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


# -- by products ------------------------------------------------------------------------------------------------------

Product = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(a, b) -> (H a + J'b, J a), with all rows of the lower level."""


class Products:
    """Both matrices by their products, in units in which their entries are of order one.

    Args:
        product: the products.
        entries: of y.
        rows: of the lower level.
        stop: where it says so a solve raises `OutOfTime`.
    """

    def __init__(self, product: Product, entries: int, rows: int, stop: Stop) -> None:
        self.product, self.stop, self.entries, self.rows = product, stop, entries, rows

    @functools.cached_property
    def single_entries(self) -> tuple[np.ndarray, np.ndarray]:
        """For every row the one entry of y that it depends on (-1: several, or none), and its slope in that entry.

        A row a e_j'y answers to ones by a, to the entries' numbers by a j, and to numbers at random as the j-th does.
        """
        entries = self.entries
        numbers, drawn = 1.0 + np.arange(entries), np.random.default_rng(0).uniform(1.0, 2.0, entries)
        of_ones, of_numbers, of_drawn = (self.along(v) for v in (np.ones(entries), numbers, drawn))
        with np.errstate(divide="ignore", invalid="ignore"):
            place = np.nan_to_num(of_numbers / of_ones, nan=0.0, posinf=0.0, neginf=0.0)
        place = np.where(np.abs(place) <= entries + 0.5, np.round(place), 0.0).astype(int) - 1
        inside = (place >= 0) & np.isfinite(of_ones) & (of_ones != 0)
        expected = drawn[np.where(inside, place, 0)] * of_ones
        close = np.abs(of_drawn - expected) <= SINGLE * np.abs(of_ones)
        return np.where(inside & close, place, -1), of_ones

    def system(self, active: np.ndarray) -> "KrylovSystem":
        """The KKT system on some rows."""
        return KrylovSystem(self, active)

    def along(self, dy: np.ndarray) -> np.ndarray:
        """J dy."""
        if dy.ndim == 1:
            return self.product(dy, np.zeros(self.rows))[1]
        return np.array([self.along(column) for column in dy.T]).T.reshape(self.rows, dy.shape[1])

    def back(self, mu: np.ndarray) -> np.ndarray:
        """J' mu."""
        return self.product(np.zeros(self.entries), mu)[0]

    def curvatures(self) -> np.ndarray:
        """The sizes of the second derivatives in every entry: of order one, by the choice of units."""
        return np.ones(self.entries)

    def expect(self, other: SecondDerivatives) -> None:
        """Nothing is remembered from one point to the next."""

    def same(self, other: SecondDerivatives) -> bool:
        """Whether both are one."""
        return other is self


class KrylovSystem:
    """The system solved by MINRES.

    Eliminating the rows that hold single entries leaves the few coupled ones: then it has as many negative eigenvalues
    as there are of those, and takes about as many products as the Hessian alone.
    """

    def __init__(self, products: Products, active: np.ndarray) -> None:
        self.active, self._matrices = active, products
        place, slope = products.single_entries
        singles = np.flatnonzero(active & (place >= 0))
        held, first = np.unique(place[singles], return_index=True)
        self._holders, self._held = singles[first], held
        self._slopes = slope[self._holders]
        self.doubled = bool(singles.size > held.size)
        self.bounded = np.zeros(products.entries, bool)
        self.bounded[held] = True
        self.coupled = active & (place < 0)

    @property
    def matrices(self) -> Products:
        """The derivatives that it is made of."""
        return self._matrices

    def solve(self, of_y: np.ndarray, of_rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(dy, dmu) for right-hand sides, several in columns; NaN where MINRES does not arrive."""
        if of_y.ndim == 1:
            return self._solve(of_y, of_rows)
        pairs = [self._solve(push, move) for push, move in zip(of_y.T, of_rows.T, strict=True)]
        dy, dmu = (
            np.array(part).T.reshape(like.shape)
            for part, like in zip(zip(*pairs, strict=True), (of_y, of_rows), strict=True)
        )
        return dy, dmu

    def _solve(self, push: np.ndarray, move: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        product, entries, rows = self._matrices.product, push.size, self.active.size
        a, b = np.zeros(entries), np.zeros(rows)
        a[self._held] = move[self._holders] / self._slopes
        across, along = product(a, b) if a.any() else (np.zeros(entries), np.zeros(rows))
        free, coupled = ~self.bounded, np.flatnonzero(self.coupled)
        right = np.concatenate([(push - across)[free], (move - along)[coupled]])
        count = int(free.sum())

        def times(u: np.ndarray) -> np.ndarray:
            if self._matrices.stop():
                raise OutOfTime
            moved, weights = np.zeros(entries), np.zeros(rows)
            moved[free], weights[coupled] = u[:count], u[count:]
            of_y, of_rows = product(moved, weights)
            return np.concatenate([of_y[free], of_rows[coupled]])

        found = _minres(times, right)
        if found is None:
            return np.full(entries, np.nan), np.full(rows, np.nan)
        a[free], b[coupled] = found[:count], found[count:]
        left, _ = product(a, b)
        b[self._holders] = (push - left)[self._held] / self._slopes
        return a, b

    def independent(self, max_rows: int, max_numbers: int) -> bool | None:
        """Whether the coupled rows are independent on what no bound holds; None: they are too many to tell.

        That is more than `max_rows`, or more than `max_numbers` numbers in their gradients.
        """
        coupled = np.flatnonzero(self.coupled)
        if coupled.size > max_rows or coupled.size * self.bounded.size > max_numbers:
            return None
        if not coupled.size:
            return True
        slopes = np.where(self.bounded, 0.0, gradients(self._matrices, coupled))
        squares = np.linalg.eigvalsh(slopes @ slopes.T)
        return bool(squares[0] > DEPENDENT**2 * max(1.0, squares[-1]))


def gradients(matrices: SecondDerivatives, which: np.ndarray) -> np.ndarray:
    """The gradients of some rows in y, one line each."""
    if isinstance(matrices, Matrices):
        found = matrices.jacobian[which]
        return found if isinstance(found, np.ndarray) else found.toarray()
    assert isinstance(matrices, Products)
    found = np.zeros((which.size, matrices.entries))
    for place, row in enumerate(which):
        one = np.zeros(matrices.rows)
        one[row] = 1.0
        found[place] = matrices.back(one)
    return found


def _minres(times: Solve, right: np.ndarray) -> np.ndarray | None:
    """The solution, where it is one: a second run from its end makes up for what rounding has left."""
    size = np.linalg.norm(right)
    if not np.isfinite(size):
        return None
    found = np.zeros(right.size)
    if size == 0.0:
        return found
    operator = sparse_linalg.LinearOperator((right.size, right.size), matvec=times, dtype=float)
    for _ in range(2):
        rest = right - times(found) if found.any() else right
        if np.linalg.norm(rest) <= CONVERGED * size:
            break
        found = found + sparse_linalg.minres(operator, rest, rtol=SHARPNESS, maxiter=MAX_PRODUCTS)[0]
    good = np.isfinite(found).all() and np.linalg.norm(right - times(found)) <= CONVERGED * size
    return found if good else None
