"""Whether all that a function can see is what it was: then its last trace may stand for a new one.

A user's function is traced anew by every call, so that an array changed in place or a global of another value counts.
Where one small problem is solved again and again, tracing takes longer than solving. `seen_by(function)` lists what the
function's code can reach: what it closes over, its defaults, the globals that its code names, and the same of the
functions among them. What cannot change is compared by identity, NumPy's arrays by their numbers, containers entry by
entry. Where anything else can be reached (objects with attributes, methods, modules of the user's own), there is no
list: nobody can tell whether it has changed.
"""

import dis
import functools
import types
from collections.abc import Iterator

import jax
import numpy as np

from hierax._problem import sets

MAX_COMPARED_NUMBERS = (
    1_000_000  # numbers in NumPy's arrays that are compared; tracing takes less time than comparing more
)

LIBRARIES = {
    "builtins",
    "equinox",
    "functools",
    "hierax",
    "itertools",
    "jax",
    "jaxlib",
    "math",
    "numpy",
    "operator",
    "scipy",
}
NUMBERS_AND_TEXT = bool | int | float | complex | str | bytes | None | np.generic | np.dtype
CONSTANT = NUMBERS_AND_TEXT | types.EllipsisType | types.CodeType
REFLECTION = {"eval", "exec", "globals", "locals", "vars", "open", "input", "__import__"}  # by which code reaches all


class Unknown(Exception):
    """Something that may change without being seen to."""


class Seen:
    """All that some functions and values can reach, as it was when this was made."""

    def __init__(self, *things: object) -> None:
        """Raises `Unknown` where something may change unseen."""
        self._kept: list[object] = []  # keeps identities from being given to something else
        self._numbers = 0
        self._snapshot = self._listed(things)

    def unchanged(self, *things: object) -> bool:
        """Whether the same functions and values reach the same things now."""
        try:
            return Seen(*things)._snapshot == self._snapshot
        except Unknown:
            return False

    def _listed(self, things: tuple[object, ...]) -> list[object]:
        listed: list[object] = []
        waiting, met = list(reversed(things)), set()
        while waiting:
            thing = waiting.pop()
            listed.append(id(thing))
            if id(thing) in met:
                continue
            met.add(id(thing))
            self._kept.append(thing)
            if isinstance(thing, np.ndarray):
                listed.append(self._numbers_of(thing))
            else:
                reached = list(_reached(thing))
                listed.append(len(reached))
                waiting += reversed(reached)
        return listed

    def _numbers_of(self, array: np.ndarray) -> tuple[tuple[int, ...], np.dtype, bytes]:
        self._numbers += array.size
        if array.dtype.hasobject or self._numbers > MAX_COMPARED_NUMBERS:
            raise Unknown
        return array.shape, array.dtype, array.tobytes()


def _reached(thing: object) -> Iterator[object]:
    """What can be reached from a thing in one move; nothing where it cannot change."""
    if isinstance(thing, jax.core.Tracer):
        raise Unknown
    if isinstance(thing, jax.Array | CONSTANT):
        return
    if isinstance(thing, types.FunctionType):
        yield from _of_function(thing)
    elif isinstance(thing, functools.partial):
        yield from (thing.func, thing.args, thing.keywords)
    elif isinstance(thing, tuple) or type(thing) is list:
        yield from thing
    elif type(thing) is dict:
        yield from thing.keys()
        yield from thing.values()
    elif sets.is_set(thing):
        yield type(thing)
        yield from vars(thing).values()
    elif not _is_of_a_library(thing):
        raise Unknown


def _of_function(function: types.FunctionType) -> Iterator[object]:
    yield function.__code__
    yield from function.__defaults__ or ()
    yield from (function.__kwdefaults__ or {}).values()
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError as error:  # not assigned yet
            raise Unknown from error
    if not _in_library(function.__module__):
        for name in _names(function.__code__):
            yield function.__globals__.get(name, _absent)


def _is_of_a_library(thing: object) -> bool:
    """Whether it is a module, class or compiled function of a library, which nobody changes."""
    if isinstance(thing, types.ModuleType):
        return _in_library(thing.__name__)
    if isinstance(thing, types.BuiltinFunctionType):
        return isinstance(thing.__self__, types.ModuleType | None)  # not a method of something that may change
    if isinstance(thing, type | np.ufunc | type(np.sum)):
        return _in_library(getattr(thing, "__module__", "numpy"))
    jitted = type(thing).__module__.partition(".")[0] in ("jax", "jaxlib") and callable(thing)
    return jitted and _in_library(getattr(thing, "__module__", None))


def _in_library(module: str | None) -> bool:
    return (module or "").partition(".")[0] in LIBRARIES


_absent = ...  # in the place of a global that there is none of: an attribute's name, or a builtin's


@functools.lru_cache(maxsize=256)
def _names(code: types.CodeType) -> tuple[str, ...]:
    """The globals and attributes that code names, that of functions inside it too."""
    imports = any(step.opname == "IMPORT_NAME" for step in dis.get_instructions(code))
    if imports or REFLECTION.intersection(code.co_names):
        raise Unknown
    inner = [_names(part) for part in code.co_consts if isinstance(part, types.CodeType)]
    return tuple(dict.fromkeys([*code.co_names, *(name for names in inner for name in names)]))
