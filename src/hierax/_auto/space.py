"""Where the small and the penalty route search: the problem in units, and their starts.

The units come from the start, the sets and the points that cover them: the search does the same whatever units the
user chose.
"""

import dataclasses
from typing import NamedTuple

import numpy as np

from hierax._engine.float64_problem import Float64Problem
from hierax._engine.lengths import lengths_at, units_at
from hierax._engine.programs import Programs, raveled
from hierax._engine.vectors import Point, Structure, VectorProblem
from hierax._lower.linear import Stop
from hierax._math.scatter import unit_cube


class Passed(NamedTuple):
    """A point that a polish passed after a stage, and its end.

    Attributes:
        stage: the relaxations of the polish, and how many of them were done.
        here: the unknowns there, and the values and slopes of its cuts.
        end: of the polish.
    """

    stage: tuple[tuple[float, ...], int]
    here: np.ndarray
    end: Point


@dataclasses.dataclass(frozen=True)
class Space:
    """A search's problem in units.

    Attributes:
        vectors: the problem.
        xs: starts of x, the given one first.
        ys: starts of y.
        structure: which constraints are mere bounds.
        further: starts (x, y) for a search whose first ones end in many places.
        passed: where polishes went, so that none is run twice.
    """

    vectors: VectorProblem
    xs: np.ndarray
    ys: np.ndarray
    structure: Structure
    further: tuple[tuple[np.ndarray, np.ndarray], ...] = ()
    passed: list[Passed] = dataclasses.field(default_factory=list)

    @staticmethod
    def of(problem: Float64Problem, starts: int, seed: int, further: int, stop: Stop) -> "Space":
        """The space around the problem's point; where `stop` says so, long lower solves are left off."""
        programs = Programs(problem)
        x, y = programs.landed(raveled(problem.x), raveled(problem.y))
        (parts,) = lengths_at(programs, x, y, None)
        lengths = np.concatenate([part.values for part in parts])
        roughly = VectorProblem(programs, units_at(programs, lengths, [(x, y)]), y, seed)

        def cover(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
            cubes = unit_cube(x.size, count, seed), unit_cube(y.size, count, seed + 1)
            return roughly.cover_x(x / roughly.x_unit, cubes[0]), roughly.cover_y(y / roughly.y_unit, cubes[1])

        xs, ys = cover(starts - 1, seed + 1)
        points = [(a * roughly.x_unit, b * roughly.y_unit) for a, b in zip(xs, ys, strict=True)]
        at = np.array([x for x, _ in points])
        vectors = VectorProblem(programs, units_at(programs, lengths, points), y, seed, at, stop)
        more = zip(*(part[1:] for part in cover(further, seed + starts)), strict=True) if further else ()
        return Space(vectors, xs, ys, vectors.structure(xs), tuple(more))
