"""Compiled programs kept in a folder: what one process compiles, the next one reads.

JAX keeps them (its persistent compilation cache); here is when and where. A program is filed under a hash of its text,
of the compiler's version and flags and of the kind of processor, so nothing in the folder can be out of date. It only
grows: delete it whenever you like.
"""

import os
import warnings
from pathlib import Path

import jax
from jax.experimental.compilation_cache import compilation_cache

from hierax._base.errors import HieraxWarning, InputError
from hierax._base.lazy import lazy

platformdirs = lazy("platformdirs")

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
    place = default_folder() if folder is None else Path(folder).expanduser()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cache({str(place)!r}): the folder cannot be made: {error}") from error
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
            warnings.warn(f"{VARIABLE}: {error}; programs are not kept.", HieraxWarning, stacklevel=3)


def default_folder() -> Path:
    """Where the platform keeps what can be computed again."""
    return Path(platformdirs.user_cache_dir("hierax", appauthor=False))
