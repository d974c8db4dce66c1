"""One problem of the collection: formulas, start and the best point known.

A `Case` is data; `Case.problem` states it for hierax.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree, Scalar

from hierax import Box, Free, Problem
from hierax.extend import project

INF = float("inf")

Vector = Float[Array, " n"]
Point = tuple[list[float], list[float]]


def bounds(lower: float | list[float], upper: float | list[float]) -> Box:
    """A box with one bound for all entries or one for each."""
    return Box(np.asarray(lower), np.asarray(upper))


@dataclasses.dataclass(frozen=True)
class Case:
    """A problem of BOLIB; x and y are vectors, plain bounds on the own variable are sets.

    Attributes:
        name: as in BOLIB.
        upper: F(x, y).
        lower: f(x, y).
        best: the best point known, (x, y).
        values: (F, f) there.
        start: (x, y) as published; it may lie outside the sets. None: all entries are one.
        source: where the problem comes from.
        upper_rows: the upper constraints <= 0 that are no bounds on x.
        rows: the lower constraints <= 0 that are no bounds on y.
        x_set: bounds on x.
        y_set: bounds on y.
        lower_class: what f is in y: "strongly convex", "convex", "linear" or "nonconvex".
    """

    name: str
    upper: Callable[[Vector, Vector], Scalar]
    lower: Callable[[Vector, Vector], Scalar]
    best: Point
    values: tuple[float, float]
    start: Point | None = None
    source: str = ""
    lower_class: str = ""
    upper_rows: Callable[[Vector, Vector], Sequence[Scalar]] | None = None
    rows: Callable[[Vector, Vector], Sequence[Scalar]] | None = None
    x_set: PyTree = Free()
    y_set: PyTree = Free()

    def problem(self) -> Problem:
        """The problem as hierax takes it."""
        stated = {"constraints": self.rows, "upper_constraints": self.upper_rows}
        return Problem(
            upper=lambda x, y, zeta: self.upper(x, y),
            lower=lambda x, y, xi: self.lower(x, y),
            x_set=self.x_set,
            y_set=self.y_set,
            **{name: _stacked(rows) for name, rows in stated.items() if rows is not None},
        )

    def x0y0(self) -> tuple[Vector, Vector]:
        """The published start, moved into the sets."""
        ones = ([1.0] * len(self.best[0]), [1.0] * len(self.best[1]))
        x, y = (jnp.asarray(part) for part in self.start or ones)
        return project(self.x_set, x), project(self.y_set, y)


def _stacked(rows: Callable[[Vector, Vector], Sequence[Scalar]]) -> Callable[[Vector, Vector], Vector]:
    return lambda x, y: jnp.stack(rows(x, y))
