"""Changes of state that belongs to the whole process, made by several threads at once."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager


class SharedContext:
    """A context that the first thread to come enters and the last to go leaves.

    Were every thread to enter one of its own, the first to leave would take it away from the others, and the last would
    put back what an earlier one had changed.

    Args:
        make: returns the context.
    """

    def __init__(self, make: Callable[[], AbstractContextManager[object]]) -> None:
        self._make, self._lock, self._inside = make, threading.Lock(), 0
        self._context: AbstractContextManager[object]

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._context = self._make()
                self._context.__enter__()
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._context.__exit__(None, None, None)
