"""Searches in pieces: one that an earlier run of the same call has finished is taken over, not done again.

A piece depends on nothing but what it is given, the candidates before it and where polishes ended (`Ends`): what
solvers remember from one solve to the next is dropped before each. So a search that takes over the finished pieces of
another goes on as that one would have. A piece that the clock or the caller cut short counts as not done.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from hierax._auto.budget import Deadline
from hierax._auto.candidates import Candidate
from hierax._auto.ends import Ends, Passed
from hierax._engine.vectors import Point, VectorProblem
from hierax._judge.point import Judgement
from hierax._run.notes import NOTHING_KEPT, Notes

Result = TypeVar("Result")


class Searched(Protocol):
    """What a piece may change."""

    @property
    def vectors(self) -> VectorProblem: ...
    @property
    def ends(self) -> Ends: ...
    @property
    def deadline(self) -> Deadline: ...
    def seen(self, candidate: Candidate, again: bool = False) -> None:
        """Is told of every candidate, also of those that are taken over (`again`)."""


class PieceRecord(NamedTuple):
    """What a piece left behind.

    Attributes:
        result: what it returned.
        candidates: what it added to them.
        points: points of candidates and of ends that are new, numbered on from those of the pieces before.
        numbers: the number of every candidate's point: one point may be that of several.
        ends: what it added to them: the stage, where, and the number of the end.
        bent: why the lower level is not convex, as far as was known afterwards.
        convex_program: which of two programs solves the lower level; None: neither was needed yet.
    """

    result: Any
    candidates: list[Candidate]
    points: list[Point]
    numbers: list[int]
    ends: list[tuple[Hashable, np.ndarray, int]]
    bent: str | None
    convex_program: bool | None


TYPES = (PieceRecord, Candidate, Point, Judgement)


class Pieces:
    """The finished pieces of a search, in their order."""

    def __init__(self, notes: Notes = NOTHING_KEPT) -> None:
        self._notes = notes
        self._points: list[Point] = []

    def do(self, name: str, space: Searched, candidates: list[Candidate], work: Callable[[], Result]) -> Result:
        """What the work returns (numbers, texts, arrays, points); it may add to the candidates."""
        space.vectors.forget()
        known: PieceRecord | None = self._notes.take(name, TYPES)
        if known is not None:
            return self._taken_over(known, space, candidates)
        before, passed = len(candidates), len(space.ends.passed)
        result = work()
        if self._notes.kept and not space.deadline.passed:
            self._notes.put(name, self._record(space, candidates[before:], space.ends.passed[passed:], result))
        return result

    def _record(self, space: Searched, candidates: list[Candidate], ends: list[Passed], result: object) -> PieceRecord:
        first = len(self._points)
        numbers = [self._number(candidate.point) for candidate in candidates]
        passed = [(stage, here, self._number(end)) for stage, here, end in ends]
        remembered = space.vectors.remembered()
        return PieceRecord(result, candidates, self._points[first:], numbers, passed, *remembered)

    def _number(self, point: Point) -> int:
        for number, known in enumerate(self._points):
            if known is point:
                return number
        self._points.append(point)
        return len(self._points) - 1

    def _taken_over(self, known: PieceRecord, space: Searched, candidates: list[Candidate]) -> Any:
        self._points.extend(known.points)
        for candidate, number in zip(known.candidates, known.numbers, strict=True):
            candidates.append(candidate._replace(point=self._points[number]))
            space.seen(candidates[-1], again=True)
        for stage, here, number in known.ends:
            space.ends.note([(stage, here)], self._points[number])
        space.vectors.remember(known.bent, known.convex_program)
        return known.result
