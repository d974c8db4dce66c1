"""Names that have moved to the package hierax-lab: they go on working for a while, and say where they are now."""

import importlib
import warnings
from typing import Any

from hierax._base.errors import HieraxWarning, MissingExtra

GET_THE_LAB = "pip install hierax-lab"
GOES_IN = "0.3"  # the version without the old names; docs/project/versioning.md says how long they stay


def from_the_lab(module: str, name: str, names: tuple[str, ...], now_in: str) -> Any:
    """What `module.name` has become, for the `__getattr__` of that module; warns, or says how to get the lab.

    Args:
        module: the old home, as a user writes it.
        name: what is asked for.
        names: the names of the old home that have moved; others were never there.
        now_in: the new home, a module of hierax_lab.
    """
    if name not in names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    try:
        found = getattr(importlib.import_module(now_in), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "hierax_lab":
            raise
        raise MissingExtra(f"{module}.{name} is now {now_in}.{name}, of another package: {GET_THE_LAB}") from error
    warnings.warn(
        f"{module}.{name} goes in version {GOES_IN}: write {now_in}.{name} instead.", HieraxWarning, stacklevel=3
    )
    return found
