"""Where polishes ended, so that none is run twice: searches from different starts soon go the same way.

A polish is determined by the point at which it begins, and every later stage of it by the point at which the last one
ended. One that arrives between two stages where another has been ends where that one did.
"""

from collections.abc import Hashable
from typing import NamedTuple

import numpy as np

from hierax._auto.constants import SAME_WAY
from hierax._engine.vectors import Point


class Passed(NamedTuple):
    """A point that a polish passed after a stage, and its end."""

    stage: Hashable
    here: np.ndarray
    end: Point


class Ends:
    """Points that polishes passed, with the kind of the polish and the number of the stage, and their ends."""

    def __init__(self) -> None:
        self.passed: list[Passed] = []

    def after(self, stage: Hashable, here: np.ndarray) -> Point | None:
        """The end of a polish that was here after this stage; None where none was."""
        for known, there, end in self.passed:
            if known != stage:
                continue
            if there.shape == here.shape and np.max(np.abs(here - there), initial=0.0) <= SAME_WAY:
                return end
        return None

    def note(self, passed: list[tuple[Hashable, np.ndarray]], end: Point) -> None:
        """A polish went this way."""
        self.passed += [Passed(stage, here, end) for stage, here in passed]
