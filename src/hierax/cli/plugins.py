"""Commands of other packages: each is an entry point of the group "hierax.commands" that names a `typer.Typer`.

A package is looked for where a command is asked for that hierax itself does not have, or for the list in the help, and
is imported where its command is called. So no plugin slows down or breaks another command.
"""

from importlib.metadata import EntryPoint, entry_points

import typer

from hierax._base.errors import InputError
from hierax._base.imports import GET_THE_LAB

GROUP = "hierax.commands"
LAB = {  # the commands of hierax-lab, and what the help says of them
    "bench": "Benchmarks: collections of problems, random problems, speed.",
    "datasets": "List the data sets, and whether each can be loaded now.",
    "reproduce": "Run an experiment of the paper and say which of its statements hold.",
}


class NoSuchCommand(InputError):
    """A command of a package that is not installed: wrong use, as a misspelt command is."""


def found() -> dict[str, EntryPoint]:
    """The commands of installed packages by name."""
    return {point.name: point for point in entry_points(group=GROUP)}


def summary(point: EntryPoint) -> str:
    """What the help says of a command, without importing it."""
    return LAB.get(point.name) or f"A command of the package {_package(point)}."


def loaded(name: str) -> typer.core.TyperCommand | typer.core.TyperGroup | None:
    """The command of that name of another package; None where no package is known to have it."""
    point = found().get(name)
    if point is None:
        if name in LAB:
            raise NoSuchCommand(f"hierax {name} is a command of the package hierax-lab: {GET_THE_LAB}")
        return None
    try:
        return typer.main.get_command(point.load())  # type: ignore[return-value]  # the base class of the two is private
    except Exception as error:
        said = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise InputError(f"hierax {name}: the package {_package(point)} cannot be loaded: {said}") from error


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module.partition(".")[0]
