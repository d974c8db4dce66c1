"""A point seen in units, on the host, with the two programs of `vectors.py`: its lengths and its violations.

What else a certificate judges is computed in `below.py` and `above.py`. All of it is handed over as fields of a
`Certificate` (`certificate.py` says what they mean and judges them).
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import PyTree

from hierax._base.text import entries
from hierax._engine.by_hand import HandMade
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.lengths import lengths_at, units_at
from hierax._engine.programs import Programs, raveled, unraveled
from hierax._engine.vectors import VectorProblem, beyond
from hierax._math.hypergradient import MOST as MAX_ORDER

Stop = Callable[[], bool]
"""Whether the time is up, or Ctrl-C was pressed."""

PROJECTED_STEP = 1e-4  # lengths of x that the steepest entry is moved to see what X leaves of a slope
SIDEWAYS = 0.1  # lengths at which units of F and G are looked at too: at the point itself their slopes may vanish


class Fields(NamedTuple):
    """Numbers of a certificate by their name there, and notes on those that are missing or need a word."""

    numbers: dict[str, PyTree]
    notes: dict[str, str]


def fits(setting: Float64Problem) -> bool:
    """Whether the matrices of the problem are small enough to be formed."""
    rows = setting.layout().equal.size
    ny, nx = (sum(leaf.size for leaf in jax.tree.leaves(tree)) for tree in (setting.y, setting.x))
    return ny + min(rows, ny) <= MAX_ORDER and nx <= MAX_ORDER


def projected_norm(
    x: np.ndarray, gradient: np.ndarray, lengths: np.ndarray, project: Callable[[np.ndarray], np.ndarray]
) -> float:
    """||x - Proj_X(x - t gradient)|| / t for a t that moves no entry by more than a little: what X leaves of a slope.

    Zero exactly where x is stationary over X, whatever set X is.
    """
    steepest = np.max(np.abs(gradient) / lengths, initial=0.0)
    if not np.isfinite(steepest) or steepest == 0:
        return float(np.linalg.norm(gradient))
    step, inside = PROJECTED_STEP / steepest, project(x)
    return float(np.linalg.norm(inside - project(inside - step * gradient)) / step)


class Inspection:
    """A setting's point in units."""

    def __init__(
        self,
        setting: Float64Problem,
        seed: int,
        stop: Stop,
        most: tuple[np.ndarray, np.ndarray] | None,
        hand: HandMade | None = None,
    ) -> None:
        """`most`: lengths of x and y that are known from elsewhere, such as a run's; `hand`: the problem by hand."""
        self.setting, self.seed, self.stop = setting, seed, stop
        self.programs = programs = Programs(setting, hand)
        self.x, self.y = raveled(setting.x), raveled(setting.y)
        inside = programs.landed(self.x, self.y)
        self.lengths, self._own_lengths = lengths_at(programs, *inside, most, None)
        both = np.concatenate([part.values for part in self.lengths])
        sides = [self._moved(inside, side * SIDEWAYS * both) for side in (1.0, -1.0)]
        units = units_at(programs, both, [inside, *sides])
        self.vectors = VectorProblem(programs, units, inside[1], seed, stop=stop)
        self.at = self.x / self.vectors.x_unit, self.y / self.vectors.y_unit
        self.values = self.vectors.values(*self.at, np.zeros(programs.layout.rows))

    def _moved(self, inside: tuple[np.ndarray, np.ndarray], by: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return self.programs.landed(inside[0] + by[: self.x.size], inside[1] + by[self.x.size :])

    def units(self) -> Fields:
        """The lengths that everything is measured in, and which of them are only assumed."""
        of_x, of_y = self.lengths
        lengths = unraveled(self.setting.x, of_x.values), unraveled(self.setting.y, of_y.values)
        assumed = np.concatenate([part.assumed for part in self.lengths])
        own, taken = (np.concatenate([p.values for p in parts]) for parts in (self._own_lengths, self.lengths))
        texts = []
        if assumed.any():
            why = "at zero, without bounds on both sides, and nothing says more (lengths= would)"
            texts.append(f"{self._listed(assumed)} taken to be of order one: {why}")
        if (own != taken).any():
            why = "" if self.vectors.bent is None else ", and solves of the lower level start elsewhere"
            listed = self._listed(own != taken)
            texts.append(f"{listed} as given, by lengths= or from Auto's start: the point alone says others{why}")
        return Fields({"lengths": lengths}, {"lengths": "; ".join(texts)} if texts else {})

    def _listed(self, which: np.ndarray) -> str:
        """The names of the first entries of (x, y) that are marked."""
        names = [*entries("x", self.setting.x), *entries("y", self.setting.y)]
        marked = [name for name, mine in zip(names, which, strict=True) if mine]
        return ", ".join(marked[:4]) + (", ..." if len(marked) > 4 else "")

    # -- feasibility --------------------------------------------------------------------------------------------------

    def feasibility(self, names: list[str]) -> Fields:
        """The largest violation in the user's units and in units; `names` are those of the lower level's rows."""
        layout, setting = self.programs.layout, self.setting
        raw = self.programs.raw_values(*self.programs.landed(self.x, self.y))
        away = (
            np.abs(self.x - self.programs.landed(self.x, self.y)[0]),
            np.abs(self.y - self.programs.landed(self.x, self.y)[1]),
        )
        own = ~layout.face
        blocks = [
            (
                [name for name, mine in zip(names, own, strict=True) if mine],
                beyond(raw, layout)[own],
                beyond(self.values, layout)[own],
            ),
            (
                entries("upper_constraints", setting.shapes("upper_constraints")),
                np.maximum(raw.above[: layout.own_above], 0.0),
                np.maximum(self.values.above[: layout.own_above], 0.0),
            ),
            (entries("x in X", setting.x), away[0], away[0] / self.vectors.x_unit),
            (entries("y in Y", setting.y), away[1], away[1] / self.vectors.y_unit),
        ]
        named = [name for block, _, _ in blocks for name in block]
        user = np.concatenate([amount for _, amount, _ in blocks])
        units = np.concatenate([share for _, _, share in blocks])
        worst = int(np.argmax(np.where(np.isnan(units), np.inf, units)))
        return Fields(
            {"max_violation": float(np.max(user)), "violation": float(units[worst]), "worst": named[worst]}, {}
        )
