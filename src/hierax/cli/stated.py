"""A problem in a file of the user's, which commands take as FILE.py:NAME. **The file is executed.**"""

from pathlib import Path
from types import ModuleType
from typing import Annotated, NamedTuple

import typer
from jaxtyping import PyTree

from hierax._base.errors import InputError
from hierax._problem.problem import Problem
from hierax.cli import user_file

Target = Annotated[
    str,
    typer.Argument(
        metavar="FILE.py:NAME",
        help="A function without arguments returning (problem, x0, y0), or a Problem beside x0 and y0. FILE.py is run.",
    ),
]


class Stated(NamedTuple):
    """A problem from a user's file, with its start."""

    problem: Problem
    x0: PyTree
    y0: PyTree


def stated(file: Path, name: str) -> Stated:
    """Run the file, and take the problem of that name with its start."""
    module = user_file.loaded(file)
    found = getattr(module, name, None)
    if found is None:
        raise InputError(f"{file}: has no {name!r}; it defines {', '.join(_candidates(module)) or 'nothing public'}.")
    if isinstance(found, Problem):
        missing = [start for start in ("x0", "y0") if not hasattr(module, start)]
        if missing:
            raise InputError(
                f"{file}: {name} is a Problem, but not where to start: define {' and '.join(missing)} beside it."
            )
        return Stated(found, module.x0, module.y0)
    if not callable(found):
        raise InputError(f"{file}: {name} is {found!r:.40}; needs a Problem or a function returning one.")
    try:
        answer = found()
    except InputError:
        raise
    except Exception as error:
        raise InputError(
            f"{file}{user_file.line_in(file, error)}: {name}() failed: {user_file.shown(error)}"
        ) from error
    if not isinstance(answer, tuple) or len(answer) < 3 or not isinstance(answer[0], Problem):
        raise InputError(f"{file}: {name}() must return (problem, x0, y0), got {type(answer).__name__}.")
    return Stated(*answer[:3])  # an Example has further fields


def _candidates(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (isinstance(value, Problem) or (callable(value) and getattr(value, "__module__", None) == module.__name__))
    ]
