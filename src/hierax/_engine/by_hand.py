"""Problems whose functions and derivatives are written by hand in NumPy: nothing of them is traced or compiled.

What is written by hand is in the user's units (`HandMade`); `HandMadeInUnits` is the same in units, as the follower and
the certificate ask for it. Lower levels by hand are convex, by the word of who writes them.
"""

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from hierax._engine.programs import Branches, LargeFunctions, Layout, Programs, Scale, Units, Values, raveled
from hierax._engine.vectors import Follower
from hierax._lower.active_set import Slopes
from hierax._lower.blocks import Blocks
from hierax._lower.linear import Pair
from hierax._math.lower_level import INACCURATE
from hierax._problem.problem import Multipliers
from hierax._problem.sets import Bounds


class HandMade(Protocol):
    """A problem in the user's units. `hierax._engine.programs.Functions` says what the functions return.

    The upper level has no constraints but the box X, Y is the whole space, and no row is an equality.

    Attributes:
        ny: entries of y.
        rows: of the lower level.
    """

    ny: int
    rows: int

    def in_units(self, programs: Programs, units: Units) -> "HandMadeInUnits":
        """The same in units."""
        return HandMadeInUnits(self, programs.layout, units)

    def slopes(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Slopes:
        """G, the gradients of L = G + mu.rows, and the rows."""

    def matrices(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Blocks:
        """The Jacobian of the rows in y, and the Hessian of L in y."""

    def mixed(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> np.ndarray:
        """The derivatives in x of the gradient of L in y, then of the rows."""

    def upper(self, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        """F and its derivatives in x and in y."""

    def pulled(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, adjoints: np.ndarray) -> np.ndarray:
        """Each of the adjoints (a, b) times the derivatives in x of (the gradient of L in y, the rows)."""


class HandMadeInUnits(LargeFunctions):
    """A problem by hand as the follower asks for it."""

    costly = False

    def __init__(self, hand: HandMade, layout: Layout, units: Units) -> None:
        self.layout, self.units = layout, units
        self.hand, self._lower, self._upper = hand, units.lower, units.upper
        self._x, self._y = raveled(units.x), raveled(units.y)
        self._rows = raveled((units.rows.inequalities, units.rows.equalities))
        self._per_below = np.concatenate([self._y / units.lower.unit, 1.0 / self._rows])
        self._latest: tuple[Blocks, Blocks] | None = None  # the latest matrices, as they are and in units

    def _raw(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return x * self._x, y * self._y, mu * self._lower.unit / self._rows

    def values(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Values:
        there, none = self.slopes(x, y, mu), np.zeros(0)
        return Values(self.upper(x, y)[0][0], np.asarray(there.value), none, none, there.rows, there.gradient)

    def slopes(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Slopes:
        raw, unit = self.hand.slopes(*self._raw(x, y, mu)), self._lower.unit
        value = float((raw.value - self._lower.origin) / unit)
        return Slopes(value, raw.along_x * self._x / unit, raw.gradient * self._y / unit, raw.rows / self._rows)

    def matrices(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> Blocks:
        raw = self.hand.matrices(*self._raw(x, y, mu))
        if self._latest is None or self._latest[0] is not raw:
            self._latest = raw, raw.scaled(self._y, self._rows, float(self._lower.unit))
        return self._latest[1]

    def mixed(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray) -> np.ndarray:
        return self.hand.mixed(*self._raw(x, y, mu)) * self._x * self._per_below[:, None]

    def upper(self, x: np.ndarray, y: np.ndarray) -> Pair:
        value, in_x, in_y = self.hand.upper(x * self._x, y * self._y)
        slope = np.concatenate([in_x * self._x, in_y * self._y]) / self._upper.unit
        return np.array([(value - self._upper.origin) / self._upper.unit]), slope[None]

    def pulled(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, adjoints: np.ndarray) -> np.ndarray:
        return self.hand.pulled(*self._raw(x, y, mu), adjoints * self._per_below) * self._x

    def from_afar(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, convex: bool = True) -> Iterator[Branches]:
        """There is no other solver: what the follower does not reach is not solved."""
        del convex
        yield Branches.one(self.layout, y, mu, self.slopes(x, y, mu), INACCURATE)

    def least_curvature(self, x: np.ndarray, y: np.ndarray, mu: np.ndarray, free: np.ndarray) -> float:
        return self.matrices(x, y, mu).least_curvature(free)

    def sizes(self, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        none, (value, slope) = np.zeros(self.layout.rows), self.upper(x, y)
        (curved, rows), there = self.matrices(x, y, none).sizes(), self.slopes(x, y, none)
        return np.array([value[0], there.value, curved]), np.linalg.norm(slope, axis=1), rows


class VectorsByHand:
    """A problem by hand as a descent over x asks for it: x in lengths, the rest in the user's units.

    Attributes:
        layout: where everything stands.
        x_limits: of x.
        follower: follows y*(x).
    """

    def __init__(self, hand: HandMade, lengths: np.ndarray, x_limits: Pair, solved: float) -> None:
        """`lengths` and `x_limits`: of x, in the user's units; `solved`: KKT residual that counts as solved."""
        none, one = np.zeros(hand.rows, bool), Scale(np.ones(()), np.zeros(()))
        parts = slice(2, 2), slice(2, 2), slice(2, 2 + hand.rows), slice(2 + hand.rows, 2 + hand.rows + hand.ny)
        self.layout = Layout(lengths.size, hand.ny, none, none, 0, 0, parts)
        self.x_limits = Bounds(*(side / lengths for side in x_limits))
        rows = Multipliers(np.ones(hand.rows), np.zeros(0), np.zeros(0))
        functions = HandMadeInUnits(hand, self.layout, Units(lengths, np.ones(hand.ny), one, one, rows))
        functions.solved = solved
        self.follower = Follower(functions, lambda y: y, functions.from_afar)

    def landed(self, x: np.ndarray, y: np.ndarray) -> Pair:
        """The nearest point of X, and y."""
        return np.clip(x, *self.x_limits), y
