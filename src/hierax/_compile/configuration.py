"""JAX's configuration and BLAS's: what a user has set must not break ours; precision; threads; programs kept on disk.

With jit disabled (`JAX_DISABLE_JIT=1`, for stepping through one's own code) or implicit transfers guarded, nothing in
hierax could compile or move data, and the errors would name none of it; with NaNs and infinities forbidden, line
searches could not try a point outside of a function's domain.

JAX computes in float32 unless it is told otherwise, and an array of float64 that is used outside of `float64()` is
silently rounded. So what is computed inside leaves as NumPy arrays (`on_host`), which keep their precision wherever
they go. Whoever judges points uses `hierax._engine.float64_problem.Float64Problem`, which does both by itself.

What the threads of a process share, like the number of BLAS's threads, is changed by the first thread to come and put
back by the last to go (`SharedContext`).

Compiled programs are kept by JAX (its persistent compilation cache); here is when and where. A program is filed under a
hash of its text, of the compiler's version and flags and of the kind of processor, so nothing in the folder can be out
of date. It only grows: delete it whenever you like.
"""

import functools
import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache
from jaxtyping import PyTree

from hierax._base.errors import InputError, warn
from hierax._base.imports import lazy
from hierax._base.trees import on_device

linalg, platformdirs, threadpoolctl = lazy("scipy.linalg"), lazy("platformdirs"), lazy("threadpoolctl")

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def in_own_configuration(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """The function of the public surface with jit on, transfers and values that are not finite allowed inside it."""

    @functools.wraps(function)
    def wrapped(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with jax.disable_jit(False), jax.transfer_guard("allow"), jax.debug_nans(False), jax.debug_infs(False):
            return function(*args, **kwargs)

    return wrapped


def refuse_to_be_traced(name: str, given: PyTree) -> None:
    """Refuse to run inside jit, vmap or grad: where an array that was given, or a new one, is a traced one."""
    if any(isinstance(leaf, jax.core.Tracer) for leaf in (*jax.tree.leaves(given), on_device(0.0))):
        raise InputError(inside_a_trace(name))


def inside_a_trace(name: str) -> str:
    """What to say of a call inside of jit, vmap or grad."""
    return (
        f"{name}: was called inside jax.jit, jax.vmap or jax.grad, where nothing has a value yet. It compiles by "
        "itself, so call it outside; many starts at once: hx.solve_many; the gradient of F(x, y*(x)): "
        "sol.certificate.hypergradient."
    )


def float64() -> AbstractContextManager[None]:
    """Compute in double precision inside the block, whatever the caller's configuration."""
    return jax.enable_x64(True)


def doubled(tree: PyTree) -> PyTree:
    """Floating-point arrays as JAX arrays of float64, everything else as it is; only inside of `float64()`."""

    def cast(leaf: PyTree) -> PyTree:
        if isinstance(leaf, jax.Array) and leaf.dtype == np.float64 and not leaf.weak_type:
            return leaf
        return on_device(leaf, np.float64) if _is_real(leaf) else leaf

    return jax.tree.map(cast, tree)


def on_host(tree: PyTree) -> PyTree:
    """Arrays as NumPy's."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if eqx.is_array(leaf) else leaf, tree)


def doubled_on_host(tree: PyTree) -> PyTree:
    """Floating-point arrays as NumPy arrays of float64, everything else as it is; anywhere."""
    return jax.tree.map(lambda leaf: np.asarray(leaf, np.float64) if _is_real(leaf) else leaf, tree)


def as_answer(tree: PyTree) -> PyTree:
    """Numbers as a user gets them: NumPy arrays of float64, and a single number as NumPy's float64, which is a float.

    Examples:
        >>> as_answer({"a": np.float32(0.5), "b": np.ones(2, np.float32)})
        {'a': np.float64(0.5), 'b': array([1., 1.])}
    """
    return jax.tree.map(lambda leaf: np.array(leaf, np.float64)[()] if _is_real(leaf) else leaf, tree)


def is_double(*trees: PyTree) -> bool:
    """Whether every floating-point array is float64 already."""
    return all(np.asarray(leaf).dtype == np.float64 for leaf in jax.tree.leaves(trees) if _is_real(leaf))


def _is_real(leaf: PyTree) -> bool:
    return eqx.is_inexact_array_like(leaf) and isinstance(leaf, jax.Array | np.ndarray | np.generic)


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


@functools.lru_cache(maxsize=1)
def _libraries(modules: int) -> Any:
    """The BLAS that are loaded once there are `modules` modules: to look for them takes 3 ms."""
    return threadpoolctl.ThreadpoolController()


def _limited() -> AbstractContextManager[object]:
    """SciPy's own BLAS is loaded before: one that came later would not be limited, and the first call in a process
    would differ from others in the last digits.
    """
    _ = linalg.solve
    return _libraries(len(sys.modules)).limit(limits=1, user_api="blas")


one_blas_thread = SharedContext(_limited)
"""Within it BLAS has one thread."""


VARIABLE = "HIERAX_CACHE"


def cache(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keep compiled programs in a folder, from now on and for every later process that asks for the same.

    A new form of problem takes seconds to compile, and the same form in another process as long again; with the folder
    it is read in a fraction of that. All programs that JAX compiles in this process are kept, yours included. Setting
    the environment variable HIERAX_CACHE to a folder does the same when hierax is imported.

    Args:
        folder: where; it is made if need be. None: the user's cache folder, which the command line uses too.

    Returns:
        The folder.

    Examples:
        At the top of a script (it changes JAX's configuration, so it is not run here):

            import hierax as hx

            hx.cache()
    """
    try:
        place = default_folder() if folder is None else Path(folder).expanduser()
        place.mkdir(parents=True, exist_ok=True)
    except (OSError, TypeError) as error:
        raise InputError(f"cache({folder!r}): the folder cannot be made: {error}") from error
    jax.config.update("jax_compilation_cache_dir", str(place))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    compilation_cache.reset_cache()  # JAX looks for its folder once, at the first program
    return place


def cache_where_the_environment_says() -> None:
    """`cache` of HIERAX_CACHE; a folder that cannot be made is no reason not to import."""
    folder = os.environ.get(VARIABLE)
    if folder:
        try:
            cache(folder)
        except InputError as error:
            warn(f"{VARIABLE}: {error}; programs are not kept.", above=2)


def default_folder() -> Path:
    """Where the platform keeps what can be computed again."""
    return Path(platformdirs.user_cache_dir("hierax", appauthor=False))
