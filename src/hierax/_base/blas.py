"""Matrix routines in one thread: for small matrices several only wait for each other."""

from contextlib import AbstractContextManager

from hierax._base.lazy import lazy
from hierax._base.shared_context import SharedContext

linalg, threadpoolctl = lazy("scipy.linalg"), lazy("threadpoolctl")


def _limited() -> AbstractContextManager[object]:
    """SciPy's own BLAS is loaded before: one that came later would not be limited, and the first call in a process
    would differ from others in the last digits.
    """
    _ = linalg.solve
    return threadpoolctl.threadpool_limits(1, user_api="blas")


one_blas_thread = SharedContext(_limited)
"""Within it BLAS has one thread."""
