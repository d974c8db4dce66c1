"""Where the small and the penalty route search: the problem in units, their starts, and the clock.

The units come from the start, the sets and the points that cover them: the search does the same whatever units the
user chose.
"""

import dataclasses
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from jaxtyping import PyTree

from hierax._auto.budget import Deadline
from hierax._auto.candidates import Candidate
from hierax._auto.ends import Ends
from hierax._auto.replay import Pieces
from hierax._engine.float64_problem import Float64Problem
from hierax._engine.lengths import lengths_at, units_at
from hierax._engine.programs import Programs, raveled, unraveled
from hierax._engine.vectors import Structure, VectorProblem
from hierax._math.scatter import unit_cube


class Seen(Protocol):
    """Is told of every point that was judged; `again`: by an earlier run of the same call. May end the search."""

    def __call__(self, candidate: Candidate, again: bool = False) -> None: ...


def ignored(candidate: Candidate, again: bool = False) -> None:
    """What becomes of points that nobody watches."""


@dataclasses.dataclass(frozen=True)
class Space:
    """A search's problem in units.

    Attributes:
        vectors: the problem.
        xs: starts of x, the given one first.
        ys: starts of y.
        further: starts (x, y) for a search whose first ones end in many places.
        structure: which constraints are mere bounds.
        deadline: when the search has to end.
        seen: told of every point that was judged; may end the search.
        ends: where polishes ended.
        pieces: of the search, those that are done.
        known_lengths: those of x and y for a certificate, infinite where they were only assumed.
    """

    vectors: VectorProblem
    xs: np.ndarray
    ys: np.ndarray
    structure: Structure
    deadline: Deadline
    seen: Seen = ignored
    ends: Ends = dataclasses.field(default_factory=Ends)
    pieces: Pieces = dataclasses.field(default_factory=Pieces)
    known_lengths: tuple[PyTree, PyTree] | None = None
    further: tuple[tuple[np.ndarray, np.ndarray], ...] = ()

    @staticmethod
    def of(setting: Float64Problem, starts: int, seed: int, deadline: Deadline, further: int = 0) -> "Space":
        """The space around the setting's point."""
        programs = Programs(setting)
        x, y = programs.landed(raveled(setting.x), raveled(setting.y))
        (parts,) = lengths_at(programs, x, y, None)
        lengths = np.concatenate([part.values for part in parts])
        known = tuple(np.where(part.assumed, np.inf, part.values) for part in parts)
        cubes = unit_cube(x.size, starts - 1, seed + 1), unit_cube(y.size, starts - 1, seed + 2)
        roughly = VectorProblem(programs, units_at(programs, lengths, [(x, y)]), y, seed)
        xs = roughly.cover_x(x / roughly.x_unit, cubes[0])
        ys = roughly.cover_y(y / roughly.y_unit, cubes[1])
        points = [(a * roughly.x_unit, b * roughly.y_unit) for a, b in zip(xs, ys, strict=True)]
        at = np.array([x for x, _ in points])
        units = units_at(programs, lengths, points)
        vectors = VectorProblem(programs, units, y, seed, at, stop=lambda: deadline.passed)
        trees = unraveled(programs.trees.x, known[0]), unraveled(programs.trees.y, known[1])
        more: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
        if further:
            cubes = unit_cube(x.size, further, seed + 3), unit_cube(y.size, further, seed + 4)
            covers = roughly.cover_x(xs[0], cubes[0]), roughly.cover_y(ys[0], cubes[1])
            more = tuple(zip(covers[0][1:], covers[1][1:], strict=True))
        return Space(vectors, xs, ys, vectors.structure(xs), deadline, known_lengths=trees, further=more)

    def starting_at(self, others: Sequence[tuple[np.ndarray, np.ndarray]]) -> "Space":
        """The same with further starts right after the given one: points (x, y) in the user's units."""
        landed = (self.vectors.landed(x / self.vectors.x_unit, y / self.vectors.y_unit) for x, y in others)
        xs, ys = zip(*landed, strict=True)
        (x, *more_x), (y, *more_y) = self.xs, self.ys
        return dataclasses.replace(self, xs=np.array([x, *xs, *more_x]), ys=np.array([y, *ys, *more_y]))
