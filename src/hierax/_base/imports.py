"""Imports that are put off, of heavy or optional modules, and names that have moved to the package hierax-lab."""

import importlib
from collections.abc import Callable
from types import ModuleType
from typing import Any

from hierax._base.errors import MissingExtra, warn


class _Lazy(ModuleType):
    """Stands for a module until an attribute of it is asked for."""

    def __init__(self, name: str, extra: str | None) -> None:
        super().__init__(name)
        self._extra = extra

    def __getattr__(self, attribute: str) -> Any:
        try:
            module = importlib.import_module(self.__name__)
        except ImportError as error:
            if self._extra is None:
                raise
            package = self.__name__.partition(".")[0]
            raise MissingExtra(f"this needs {package}: pip install 'hierax[{self._extra}]'") from error
        return getattr(module, attribute)


def lazy(name: str, extra: str | None = None) -> Any:
    """The module `name`, imported when it is first used; where it belongs to an `extra`, the error says which.

    Args:
        name: of the module, for example "scipy.optimize".
        extra: of hierax, that brings the module's package; None: it is always there.

    Examples:
        >>> special = lazy("scipy.special")
        >>> float(special.expit(0.0))
        0.5
    """
    return _Lazy(name, extra)


GET_THE_LAB = "pip install hierax-lab"
GOES_IN = "0.3"  # the version without the old names; docs/project/versioning.md says how long they stay


def moved(module: str, names: str) -> Callable[[str], Any]:
    """The `__getattr__` of a module whose names have moved to the lab: it warns, or says how to get the lab.

    Args:
        module: the old home, as a user writes it; the new one is the module of hierax_lab that is called alike.
        names: that have moved; others were never there.
    """
    now_in = module.replace("hierax", "hierax_lab", 1)

    def forwarded(name: str) -> Any:
        if name not in names.split():
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        try:
            found = getattr(importlib.import_module(now_in), name)
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "hierax_lab":
                raise
            raise MissingExtra(f"{module}.{name} is now {now_in}.{name}, of another package: {GET_THE_LAB}") from error
        warn(f"{module}.{name} goes in version {GOES_IN}: write {now_in}.{name} instead.")
        return found

    return forwarded
