r"""Second derivatives of a lower level on the host, and its KKT systems solved.

    [ L_yy  r_A' ] [ dy  ]   [ p ]
    [ r_A   0    ] [ dmu ] = [ q ]

Active rows that depend on a single entry of y hold that entry: `KKTSystem` eliminates both. What is left is solved by
dense or by sparse factors (`Matrices`), or by MINRES where matrices are known by their products alone (`Products`).

C. C. Paige and M. A. Saunders, Solution of sparse indefinite systems of linear equations, SIAM J. Numer. Anal. 1975.
"""

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from hierax._base.imports import lazy

if TYPE_CHECKING:
    from scipy.sparse import csr_array

scipy_linalg = lazy("scipy.linalg")
sparse = lazy("scipy.sparse")
sparse_linalg = lazy("scipy.sparse.linalg")

SHIFT = 1e-10  # keeps systems with dependent rows regular; later steps take its effect out again
SMALL_ORDER = 150  # of systems that dense linear algebra solves in next to no time
SAME = 1e-12  # relative difference that is rounding
ROUNDING = 1e-9  # relative to the sizes of what is added up or compared: what may be rounding
MAX_PRODUCTS = 3000  # of one solve by MINRES or conjugate gradients
CONVERGED = 1e-8  # relative residual at which a solution by MINRES counts

Solve = Callable[[np.ndarray], np.ndarray]
"""The solution of a system for a right-hand side, or for several in columns; not a number where it is not solved."""

Pair = tuple[np.ndarray, np.ndarray]
"""What belongs to y and to the rows, to x and to y, or to a lower and an upper end."""

Matrix = TypeVar("Matrix", "np.ndarray", "csr_array")

Stop = Callable[[], bool]
"""Whether the time is up, or Ctrl-C was pressed."""


class OutOfTime(Exception):
    """The time was up, or Ctrl-C was pressed, before an answer was there."""


class KKTSystem:
    """The system at one point, for one active set.

    Attributes:
        matrices: the derivatives that it is made of.
        active: the rows A.
        bounded: which entries of y an active row holds.
        coupled: active rows that hold no single entry.
        doubled: whether several active rows hold the same entry of y.
    """

    def __init__(self, matrices: "SecondDerivatives", active: np.ndarray) -> None:
        self.matrices, self.active = matrices, active
        place, slope = matrices.single_entries
        singles = np.flatnonzero(active & (place >= 0))
        self._held, first = np.unique(place[singles], return_index=True)  # of two bounds on one entry the first
        self._holding = singles[first]
        self._pivots = slope[self._holding]
        self.doubled = singles.size > first.size
        self.bounded = np.zeros(matrices.curvatures().size, bool)
        self.bounded[self._held] = True
        self.coupled = active & (place < 0)
        self._free, self._own = np.flatnonzero(~self.bounded), np.flatnonzero(self.coupled)
        self._solve = matrices.factorised(self._free, self._own)

    def solve(self, of_y: np.ndarray, of_rows: np.ndarray) -> Pair:
        """(dy, dmu) for right-hand sides, several in columns; dmu is zero for rows that are not active.

        Not a number where the system is not solved.
        """
        dy, dmu = np.zeros_like(of_y), np.zeros_like(of_rows)
        left_y, left_rows = of_y, of_rows
        if self._held.size:
            dy[self._held] = (of_rows[self._holding].T / self._pivots).T
            across, along = self.matrices.product(dy, dmu)
            left_y, left_rows = of_y - across, of_rows - along
        if self._free.size + self._own.size:
            solved = self._solve(np.concatenate([left_y[self._free], left_rows[self._own]]))
            dy[self._free], dmu[self._own] = solved[: self._free.size], solved[self._free.size :]
        if self._held.size:
            rest = of_y - self.matrices.product(dy, dmu)[0]
            dmu[self._holding] = (rest[self._held].T / self._pivots).T
        return dy, dmu

    def independent(self, max_rows: int, max_numbers: int) -> bool | None:
        """Whether the coupled rows are independent on what no bound holds; None: they are too many to tell.

        That is more than `max_rows`, or more than `max_numbers` numbers in their gradients.
        """
        if self._own.size > max_rows or self._own.size * self.bounded.size > max_numbers:
            return None
        if not self._own.size:
            return True
        slopes = np.where(self.bounded, 0.0, self.matrices.gradients(self._own))
        squares = np.linalg.eigvalsh(slopes @ slopes.T)
        return bool(squares[0] > SAME * max(1.0, squares[-1]))


def stiffness(system: "System", push_rows: bool = False) -> float:
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


class Matrices:
    """The Jacobian J of the rows in y, and the Hessian H of L, at one point: dense or sparse."""

    def __init__(self, jacobian: "np.ndarray | csr_array", hessian: "np.ndarray | csr_array") -> None:
        self.jacobian, self.hessian = jacobian, hessian

    @functools.cached_property
    def single_entries(self) -> Pair:
        """For every row the one entry of y that it depends on (-1: several, or none), and its slope in that entry."""
        filled, numbers = self.jacobian != 0, np.arange(self.jacobian.shape[1])
        place = np.where(filled.sum(axis=1) == 1, filled @ numbers, -1)
        return place, self.jacobian.sum(axis=1)

    def product(self, a: np.ndarray, b: np.ndarray) -> Pair:
        """(H a + J'b, J a), for vectors or for several in columns."""
        return self.hessian @ a + self.jacobian.T @ b, self.jacobian @ a

    def along(self, dy: np.ndarray) -> np.ndarray:
        """J dy."""
        return self.jacobian @ dy

    def back(self, mu: np.ndarray) -> np.ndarray:
        """J' mu."""
        return self.jacobian.T @ mu

    def gradients(self, which: np.ndarray) -> np.ndarray:
        """The gradients of some rows in y, one line each."""
        found = self.jacobian[which]
        return found if isinstance(found, np.ndarray) else found.toarray()

    def curvatures(self) -> np.ndarray:
        """The sizes of the second derivatives of L in every entry of y."""
        return np.abs(self.hessian.diagonal())

    @functools.cached_property
    def finite(self) -> bool:
        """Whether all entries are finite."""
        both = (matrix if isinstance(matrix, np.ndarray) else matrix.data for matrix in (self.jacobian, self.hessian))
        return all(bool(np.isfinite(part).all()) for part in both)

    def same(self, other: "SecondDerivatives") -> bool:
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

    @functools.cached_property
    def _sparse(self) -> "tuple[csr_array, csr_array] | None":
        """Both as sparse matrices; None where they are small or have many entries. Rows of one entry do not count."""
        if not isinstance(self.jacobian, np.ndarray):
            return self.jacobian, self.hessian
        coupling = self.jacobian[self.single_entries[0] < 0]
        order = self.hessian.shape[0] + len(coupling)
        entries = np.count_nonzero(self.hessian) + 2 * np.count_nonzero(coupling)
        if order < SMALL_ORDER or entries > order * np.sqrt(order):
            return None
        return sparse.csr_array(self.jacobian), sparse.csr_array(self.hessian)

    def factorised(self, free: np.ndarray, own: np.ndarray) -> Solve:
        """The KKT system of some entries of y and some rows, slightly shifted; nothing where an entry is not finite."""
        if not self.finite:
            return lambda right: np.full_like(right, np.nan)
        curvatures = self.curvatures()[free]
        shift = SHIFT * np.concatenate([np.where(curvatures > 0, np.minimum(curvatures, 1.0), 1.0), -np.ones(own.size)])
        without = self._without_slacks(free, own, shift) if shift.size >= SMALL_ORDER else None
        if without is not None:
            return without
        if self._sparse is not None:
            jacobian, hessian = self._sparse
            rows = jacobian[own][:, free]
            blocks = sparse.block_array([[hessian[free][:, free], rows.T], [rows, None]], format="csc")
            return sparse_linalg.splu((blocks + sparse.diags_array(shift)).tocsc()).solve
        return _dense_factors(self.hessian[np.ix_(free, free)], self.jacobian[np.ix_(own, free)], shift)

    def _without_slacks(self, free: np.ndarray, own: np.ndarray, shift: np.ndarray) -> Solve | None:
        """The same without slacks and the rows that have one: ten times quicker on SVMs; None where it does not pay.

        A slack has a curvature of its own, and one row at most. With slacks s of curvatures D, the other entries k of
        y, and the Jacobians J_s and J_k of the rows,

            D ds + J_s' dmu = a,    H dk + J_k' dmu = b,    J_s ds + J_k dk = c,

        where W = J_s D^-1 J_s' is diagonal, so that J_k dk - W dmu = c - J_s D^-1 a: a `CentralSystem`. A step of
        refinement takes out what rounding leaves where W is small.
        """
        if not (isinstance(self.jacobian, np.ndarray) and isinstance(self.hessian, np.ndarray)):
            return None
        entries, jacobian = free.size, self.jacobian[own]
        filled, alone = jacobian != 0, np.count_nonzero(self.hessian, axis=0) == 1
        slack = (alone & (self.hessian.diagonal() > 0) & (np.count_nonzero(filled, axis=0) <= 1))[free]
        ours, rest = free[slack], free[~slack]
        if not own.size or rest.size * 2 > shift.size:
            return None
        row_of = filled[:, ours].argmax(axis=0)
        places = row_of, np.arange(ours.size)
        of_slacks = sparse.csr_array((jacobian[row_of, ours], places), shape=(own.size, ours.size))
        curvatures = self.hessian.diagonal()[ours] + shift[:entries][slack]
        weights = of_slacks.power(2) @ (1 / curvatures)
        if (rest.size + np.count_nonzero(weights <= 0)) * 2 > shift.size:
            return None
        hessian, rows = self.hessian[np.ix_(rest, rest)], jacobian[:, rest]
        reduced = CentralSystem(Matrices(rows, hessian), weights <= 0, 1 / (weights + SHIFT))

        def once(right: np.ndarray) -> np.ndarray:
            a, found = right[:entries][slack], np.empty_like(right)
            dk, dmu = reduced.solve(right[:entries][~slack], right[entries:] - of_slacks @ (a.T / curvatures).T)
            found[:entries][~slack], found[entries:] = dk, dmu
            found[:entries][slack] = ((a - of_slacks.T @ dmu).T / curvatures).T
            return found

        def solved(right: np.ndarray) -> np.ndarray:
            found = once(right)
            ds, dk, dmu = found[:entries][slack], found[:entries][~slack], found[entries:]
            left = right - (shift * found.T).T
            left[:entries][slack] -= ((curvatures - shift[:entries][slack]) * ds.T).T + of_slacks.T @ dmu
            left[:entries][~slack] -= hessian @ dk + rows.T @ dmu
            left[entries:] -= of_slacks @ ds + rows @ dk
            return found + once(left)

        return solved


def _dense_factors(hessian: np.ndarray, rows: np.ndarray, shift: np.ndarray) -> Solve:
    """[[hessian, rows'], [rows, 0]] with a shift of its diagonal."""
    entries, matrix = len(hessian), np.diag(shift)
    matrix[:entries, :entries] += hessian
    matrix[entries:, :entries], matrix[:entries, entries:] = rows, rows.T
    factors = scipy_linalg.lu_factor(matrix, check_finite=False)
    return lambda right: scipy_linalg.lu_solve(factors, right, check_finite=False)


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
    return bool(difference <= SAME * (1 + largest))


class CentralSystem:
    """[[L_yy, r_y'], [r_y, -1/ratio]] (zero instead of 1/ratio for equalities), factorised after elimination of dmu.

    It has this form where rows have slacks: with barriers, mu / s is the ratio, and with a curvature of their own this.

    Attributes:
        matrices: the derivatives that it is made of.
        active: the equalities.
        ratio: of the other rows.
    """

    def __init__(self, matrices: "SecondDerivatives", equal: np.ndarray, ratio: np.ndarray) -> None:
        """`ratio`: of the inequalities, in the order of all rows; anything for equalities."""
        assert isinstance(matrices, Matrices)
        self.matrices, self.active, self.ratio = matrices, equal, np.where(equal, 0.0, ratio)
        jacobian, ny = matrices.jacobian, matrices.hessian.shape[0]
        weighted = sparse.diags_array(self.ratio) @ jacobian
        held = Matrices(jacobian[equal], matrices.hessian + jacobian.T @ weighted)
        self._solve = held.factorised(np.arange(ny), np.arange(held.jacobian.shape[0]))

    def solve(self, of_y: np.ndarray, of_rows: np.ndarray) -> Pair:
        """(dy, dmu) for right-hand sides in the last axis's place."""
        jacobian, ny = self.matrices.jacobian, self.matrices.hessian.shape[0]
        pushed = (of_rows.T * self.ratio).T
        solved = self._solve(np.concatenate([of_y + jacobian.T @ pushed, of_rows[self.active]]))
        dy = solved[:ny]
        dmu = ((jacobian @ dy).T * self.ratio).T - pushed
        dmu[self.active] = solved[ny:]
        return dy, dmu


# -- by products ------------------------------------------------------------------------------------------------------

Product = Callable[[np.ndarray, np.ndarray], Pair]
"""(a, b) -> (H a + J'b, J a), with all rows of the lower level."""


class Products:
    """Both matrices by their products, in units in which their entries are of order one; methods as of `Matrices`.

    Args:
        product: the products with vectors.
        entries: of y.
        rows: of the lower level.
        stop: where it says so a solve raises `OutOfTime`.
    """

    def __init__(self, product: Product, entries: int, rows: int, stop: Stop) -> None:
        self._product, self._stop, self._entries, self._rows = product, stop, entries, rows

    @functools.cached_property
    def single_entries(self) -> Pair:
        """For every row the one entry of y that it depends on (-1: several, or none), and its slope in that entry.

        A row a e_j'y answers to ones by a, to the entries' numbers by a j, and to numbers at random as the j-th does.
        """
        entries = self._entries
        numbers, drawn = 1.0 + np.arange(entries), np.random.default_rng(0).uniform(1.0, 2.0, entries)
        of_ones, of_numbers, of_drawn = (self.along(v) for v in (np.ones(entries), numbers, drawn))
        with np.errstate(divide="ignore", invalid="ignore"):
            place = np.nan_to_num(of_numbers / of_ones, nan=0.0, posinf=0.0, neginf=0.0)
        place = np.where(np.abs(place) <= entries + 0.5, np.round(place), 0.0).astype(int) - 1
        inside = (place >= 0) & np.isfinite(of_ones) & (of_ones != 0)
        expected = drawn[np.where(inside, place, 0)] * of_ones
        close = np.abs(of_drawn - expected) <= SAME * np.abs(of_ones)
        return np.where(inside & close, place, -1), of_ones

    def product(self, a: np.ndarray, b: np.ndarray) -> Pair:
        """(H a + J'b, J a), column by column."""
        if a.ndim == 1:
            return self._product(a, b)
        of_y, of_rows = np.empty_like(a), np.empty_like(b)
        for column in range(a.shape[1]):
            of_y[:, column], of_rows[:, column] = self._product(a[:, column], b[:, column])
        return of_y, of_rows

    def along(self, dy: np.ndarray) -> np.ndarray:
        """J dy."""
        return self.product(dy, np.zeros((self._rows, *dy.shape[1:])))[1]

    def back(self, mu: np.ndarray) -> np.ndarray:
        """J' mu."""
        return self.product(np.zeros((self._entries, *mu.shape[1:])), mu)[0]

    def gradients(self, which: np.ndarray) -> np.ndarray:
        """The gradients of some rows in y, one line each."""
        ones = np.zeros((self._rows, which.size))
        ones[which, np.arange(which.size)] = 1.0
        return self.back(ones).T

    def curvatures(self) -> np.ndarray:
        """The sizes of the second derivatives in every entry: of order one, by the choice of units."""
        return np.ones(self._entries)

    def same(self, other: "SecondDerivatives") -> bool:
        """Whether both are one."""
        return other is self

    def factorised(self, free: np.ndarray, own: np.ndarray) -> Solve:
        """The KKT system of some entries of y and some rows, by MINRES.

        Without the rows that hold single entries it has as many negative eigenvalues as there are coupled rows, and
        takes about as many products as the Hessian alone.
        """

        def times(u: np.ndarray) -> np.ndarray:
            if self._stop():
                raise OutOfTime
            a, b = np.zeros(self._entries), np.zeros(self._rows)
            a[free], b[own] = u[: free.size], u[free.size :]
            of_y, of_rows = self._product(a, b)
            return np.concatenate([of_y[free], of_rows[own]])

        def solve(right: np.ndarray) -> np.ndarray:
            columns = [_minres(times, column) for column in right.reshape(len(right), -1).T]
            return np.stack(columns, axis=-1).reshape(right.shape)

        return solve


SecondDerivatives = Matrices | Products
System = KKTSystem | CentralSystem


def _minres(times: Solve, right: np.ndarray) -> np.ndarray:
    """The solution, where it is one: a second run from its end makes up for what rounding has left."""
    size, unknown = np.linalg.norm(right), np.full(right.size, np.nan)
    if not np.isfinite(size):
        return unknown
    found, rest = np.zeros(right.size), right
    operator = sparse_linalg.LinearOperator((right.size, right.size), matvec=times, dtype=float)
    for _ in range(2):
        if np.linalg.norm(rest) > CONVERGED * size:
            found = found + sparse_linalg.minres(operator, rest, rtol=SAME, maxiter=MAX_PRODUCTS)[0]
            rest = right - times(found)
    return found if np.linalg.norm(rest) <= CONVERGED * size else unknown
