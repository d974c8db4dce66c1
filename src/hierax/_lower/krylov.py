r"""The KKT system of a lower level on its active rows, solved without forming it (MINRES, from SciPy).

    [ H    J_A' ] [ a ]   [ p ]
    [ J_A  0    ] [ b ] = [ r ]

is known by its products only. Active rows that bound a single entry of y (the faces of a box, or a user's own bounds)
are eliminated, which leaves the few coupled ones: then the system has as many negative eigenvalues as there are of
those, and takes about as many products as H alone. Everything else is divided by its unit first.

M. A. Saunders and C. C. Paige, Solution of sparse indefinite systems of linear equations, SIAM J. Numer. Anal. 1975.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hierax._base.lazy import lazy

scipy_linalg = lazy("scipy.sparse.linalg")

MOST_PRODUCTS = 3000  # of one solve
SHARPNESS = 1e-13  # at which MINRES stops, relative to the system's size
CONVERGED = 1e-8  # residual, relative to the right side, at which a solution counts
DEPENDENT = 1e-6  # relative singular value below which rows depend on each other
SINGLE = 1e-10  # relative difference up to which a row is taken to depend on one entry alone

Product = Callable[[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]
"""(a, b) -> (H a + J'b, J a), with all rows of the lower level."""

Stop = Callable[[], bool]
"""Whether the time is up, or Ctrl-C was pressed."""


class OutOfTime(Exception):
    """The time was up, or Ctrl-C was pressed, before an answer was there."""


class Sizes(NamedTuple):
    """What the system is measured in: norms of the rows' gradients, typical sizes of H and of the gradient of G."""

    rows: np.ndarray
    curvature: float
    slope: float


class KrylovSystem:
    """The system at one point, for one active set.

    Attributes:
        active: the rows A.
        bounded: which entries of y an active row fixes by itself.
        coupled: active rows that are no such bounds.
        doubled: whether several active rows bound the same entry.
    """

    def __init__(self, product: Product, active: np.ndarray, sizes: Sizes, entries: int, stop: Stop) -> None:
        self.active, self._product, self._sizes, self._stop = active, product, sizes, stop
        place, slope = _single_entries(product, active.size, entries)
        singles = np.flatnonzero(active & (place >= 0))
        held, first = np.unique(place[singles], return_index=True)
        self._holders, self._held = singles[first], held
        self._slopes = slope[self._holders]
        self.doubled = bool(singles.size > held.size)
        self.bounded = np.zeros(entries, bool)
        self.bounded[held] = True
        self.coupled = active & (place < 0)

    def solve(self, push: np.ndarray, move: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """(a, b) for a right side with a number per entry of y and per row; None where MINRES does not arrive."""
        entries, rows = push.size, self.active.size
        a, b = np.zeros(entries), np.zeros(rows)
        a[self._held] = move[self._holders] / self._slopes
        across, along = self._product(a, b) if a.any() else (0.0, 0.0)
        free, coupled = ~self.bounded, np.flatnonzero(self.coupled)
        norms, unit = self._sizes.rows[coupled], self._sizes.curvature
        right = np.concatenate([(push - across)[free] / unit, ((move - along) / self._sizes.rows)[coupled]])
        count = int(free.sum())

        def times(u: np.ndarray) -> np.ndarray:
            if self._stop():
                raise OutOfTime
            moved, weights = np.zeros(entries), np.zeros(rows)
            moved[free], weights[coupled] = u[:count], u[count:] * unit / norms
            of_y, of_rows = self._product(moved, weights)
            return np.concatenate([of_y[free] / unit, of_rows[coupled] / norms])

        found = _minres(times, right)
        if found is None:
            return None
        a[free], b[coupled] = found[:count], found[count:] * unit / norms
        left, _ = self._product(a, b)
        b[self._holders] = (push - left)[self._held] / self._slopes
        return a, b

    def norms(self, which: np.ndarray) -> np.ndarray:
        """Norms of the gradients of some rows, exact."""
        return np.array([np.linalg.norm(self.gradient(row)) for row in which])

    def gradient(self, row: int | np.integer) -> np.ndarray:
        """The gradient of a row."""
        one = np.zeros(self.active.size)
        one[row] = 1.0
        return self._product(np.zeros(self.bounded.size), one)[0]

    def moved_rows(self, a: np.ndarray) -> np.ndarray:
        """J a, of all rows."""
        return self._product(a, np.zeros(self.active.size))[1]

    def independent(self, most: int, numbers: int) -> bool | None:
        """Whether the coupled rows are independent on what no bound fixes; None: they are too many to tell.

        That is more than `most`, or more than so many numbers in their gradients.
        """
        coupled = np.flatnonzero(self.coupled)
        if coupled.size > most or coupled.size * self.bounded.size > numbers:
            return None
        if not coupled.size:
            return True
        slopes = np.array([np.where(self.bounded, 0.0, self.gradient(row)) for row in coupled])
        slopes /= self._sizes.rows[coupled][:, None]
        squares = np.linalg.eigvalsh(slopes @ slopes.T)
        return bool(squares[0] > DEPENDENT**2 * max(1.0, squares[-1]))


def _minres(times: Callable[[np.ndarray], np.ndarray], right: np.ndarray) -> np.ndarray | None:
    """The solution, where it is one: a second run from its end makes up for what rounding has left."""
    size = np.linalg.norm(right)
    if not np.isfinite(size):
        return None
    found = np.zeros(right.size)
    if size == 0.0:
        return found
    operator = scipy_linalg.LinearOperator((right.size, right.size), matvec=times, dtype=float)
    for _ in range(2):
        rest = right - times(found) if found.any() else right
        if np.linalg.norm(rest) <= CONVERGED * size:
            break
        found = found + scipy_linalg.minres(operator, rest, rtol=SHARPNESS, maxiter=MOST_PRODUCTS)[0]
    good = np.isfinite(found).all() and np.linalg.norm(right - times(found)) <= CONVERGED * size
    return found if good else None


def _single_entries(product: Product, rows: int, entries: int) -> tuple[np.ndarray, np.ndarray]:
    """For every row the one entry of y that it depends on (-1: several, or none), and its slope in that entry.

    A row a e_j'y answers to ones by a, to the entries' numbers by a j, and to numbers at random as the j-th does.
    """
    none = np.zeros(rows)
    numbers, drawn = 1.0 + np.arange(entries), np.random.default_rng(0).uniform(1.0, 2.0, entries)
    of_ones, of_numbers, of_drawn = (product(v, none)[1] for v in (np.ones(entries), numbers, drawn))
    with np.errstate(divide="ignore", invalid="ignore"):
        place = np.nan_to_num(of_numbers / of_ones, nan=0.0, posinf=0.0, neginf=0.0)
    place = np.where(np.abs(place) <= entries + 0.5, np.round(place), 0.0).astype(int) - 1
    inside = (place >= 0) & np.isfinite(of_ones) & (of_ones != 0)
    told = drawn[np.where(inside, place, 0)] * of_ones
    close = np.abs(of_drawn - told) <= SINGLE * np.abs(of_ones)
    return np.where(inside & close, place, -1), of_ones
