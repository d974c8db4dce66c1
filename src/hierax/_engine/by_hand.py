"""Problems whose functions and derivatives are written by hand in NumPy: nothing of them is traced or compiled.

What is written by hand is in the user's units (`HandMade`); `HandMadeInUnits` is the same in units, as the follower and
the certificate ask for it. Lower levels by hand are convex, by the word of who writes them.
"""

import abc
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from hierax._engine.branches import Branches
from hierax._engine.programs import Layout, Values, raveled
from hierax._engine.units import Units
from hierax._lower.active_set import Slopes
from hierax._lower.blocks import Blocks
from hierax._math.lower_level import INACCURATE


class HandMade(abc.ABC):
    """A problem in the user's units. `hierax._engine.follower.Functions` says what the functions return.

    The upper level has no constraints but the box X, and Y is the whole space.
    """

    def in_units(self, layout: Layout, units: Units) -> "HandMadeInUnits":
        """The same in units."""
        return HandMadeInUnits(self, layout, units)

    @abc.abstractmethod
    def slopes(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Slopes:
        """G, the gradients of L = G + mu.rows, and the rows."""

    @abc.abstractmethod
    def matrices(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Blocks:
        """The Jacobian of the rows in y, and the Hessian of L in y."""

    @abc.abstractmethod
    def mixed(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> np.ndarray:
        """The derivatives in x of the gradient of L in y, then of the rows."""

    @abc.abstractmethod
    def upper(self, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """F and its derivatives in x and in y."""

    @abc.abstractmethod
    def pulled(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, adjoints: np.ndarray) -> np.ndarray:
        """Each of the adjoints (a, b) times the derivatives in x of (the gradient of L in y, the rows)."""


class Sizes(NamedTuple):
    """What units are made of: F and the norm of its gradient, G and its curvature, norms of the rows' gradients."""

    upper: tuple[float, float]
    lower: tuple[float, float]
    rows: np.ndarray
    above: np.ndarray


class HandMadeInUnits:
    """A problem by hand as the follower asks for it (`Functions`)."""

    with_faces, count = False, 1

    def __init__(self, hand: HandMade, layout: Layout, units: Units) -> None:
        self.hand, self._layout = hand, layout
        self._x, self._y = raveled(units.x), raveled(units.y)
        self._rows = raveled((units.rows.constraints, units.rows.equalities))
        self._lower, self._upper = units.lower, units.upper

    def _raw(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return x * self._x, y * self._y, mu * self._lower.unit / self._rows

    def slopes(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Slopes:
        raw, unit = self.hand.slopes(*self._raw(x, y, mu)), self._lower.unit
        value = float((raw.value - self._lower.origin) / unit)
        return Slopes(value, raw.along_x * self._x / unit, raw.gradient * self._y / unit, raw.rows / self._rows)

    def matrices(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Blocks:
        return self.hand.matrices(*self._raw(x, y, mu)).scaled(self._y, self._rows, float(self._lower.unit))

    def mixed(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> np.ndarray:
        per = np.concatenate([self._y / self._lower.unit, 1.0 / self._rows])
        return self.hand.mixed(*self._raw(x, y, mu)) * self._x * per[:, None]

    def upper(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        value, _, in_y = self.hand.upper(x * self._x, y * self._y)
        return np.array([(value - self._upper.origin) / self._upper.unit]), (in_y * self._y / self._upper.unit)[None]

    def pulled(
        self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, weights: np.ndarray, adjoints: np.ndarray
    ) -> np.ndarray:
        raw = self._raw(x, y, mu)
        per = np.concatenate([self._y / self._lower.unit, 1.0 / self._rows])
        in_x = self.hand.upper(*raw[:2])[1] / self._upper.unit
        return (weights * in_x - self.hand.pulled(*raw, adjoints * per)) * self._x

    def from_afar(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Iterator[Branches]:
        """There is no other solver: what the follower does not reach is not solved."""
        there = self.slopes(x, y, mu)
        most = np.max(there.rows, initial=0.0)
        parts = y, mu, there.value, most, INACCURATE, there.along_x
        yield Branches(*(np.asarray(part)[None] for part in parts))

    def forget(self) -> None:
        """Nothing is kept from point to point."""

    def least_curvature(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, free: np.ndarray) -> float:
        """The smallest eigenvalue of L_yy on some entries."""
        return self.matrices(x, y, mu).least_curvature(free)

    def values(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Values[np.ndarray]:
        """All functions; faces of X, which are mere bounds, as rows far from zero."""
        there, faces = self.slopes(x, y, mu), np.full(self._layout.above, -np.inf)
        return Values(self.upper(x, y)[0][0], np.asarray(there.value), faces, np.zeros(0), there.rows, there.gradient)

    def sizes(self, x: np.ndarray, y: np.ndarray) -> Sizes:
        """What units are made of, at a point."""
        none = np.zeros(self._layout.rows)
        _, in_y = self.upper(x, y)
        in_x = self.pulled(x, y, none, np.ones((1, 1)), np.zeros((1, y.size + none.size)))
        (curved, rows), there = self.matrices(x, y, none).sizes(), self.slopes(x, y, none)
        length = float(np.sqrt(np.sum(in_x**2) + np.sum(in_y**2)))
        return Sizes((float(self.upper(x, y)[0][0]), length), (there.value, curved), rows, np.zeros(0))
