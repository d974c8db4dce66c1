"""A user's callback whose errors lose nothing: the run ends with what it has, and the error is raised with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import numpy as np

from hierax._run.call import Info


def asks_to_stop(answer: object) -> bool:
    """Whether the answer of a callback ends the run: True alone does, of Python or NumPy."""
    return isinstance(answer, bool | np.bool_) and bool(answer)


class Guarded:
    """Calls a callback; one that fails ends the run as if it had asked for that."""

    def __init__(self, function: Callable[[Info], object]) -> None:
        self._function = function
        self.error: BaseException | None = None
        self.stopped = False  # whether the latest call ended its run

    def __call__(self, info: Info) -> object:
        """What the callback returns; True after an error. Ctrl-C is the run's own business."""
        if self.error is not None:
            return True
        try:
            answer = self._function(info)
            self.stopped = asks_to_stop(answer)
            return answer
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # SystemExit and its like are raised as well, once the run has ended
            self.error, self.stopped = error, True
            return True


def guarded(callback: Callable[[Info], object] | None) -> Callable[[Info], object] | None:
    """The callback, guarded; what is no function stays as it is, to be refused."""
    return Guarded(callback) if callable(callback) else callback


def raise_error_of(callback: object, solution: object) -> None:
    """Raise what the callback raised, with the solution as its attribute `solution`."""
    error = callback.error if isinstance(callback, Guarded) else None
    if error is not None:
        with contextlib.suppress(AttributeError):
            error.solution = solution  # type: ignore[attr-defined]
        error.add_note("It was raised by the callback of hierax: what was computed is its attribute `solution`.")
        raise error
