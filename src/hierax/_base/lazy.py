"""The one place that puts off an import: heavy or optional third-party modules are loaded at their first use."""

import importlib
from types import ModuleType
from typing import Any

from hierax._base.errors import MissingExtra


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
