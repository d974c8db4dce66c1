"""What the threads of a process share: changes of its state, and how many threads BLAS has."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from hierax._base.imports import lazy


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


linalg, threadpoolctl = lazy("scipy.linalg"), lazy("threadpoolctl")


def _limited() -> AbstractContextManager[object]:
    """SciPy's own BLAS is loaded before: one that came later would not be limited, and the first call in a process
    would differ from others in the last digits.
    """
    _ = linalg.solve
    return threadpoolctl.threadpool_limits(1, user_api="blas")


one_blas_thread = SharedContext(_limited)
"""Within it BLAS has one thread."""
