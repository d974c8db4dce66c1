"""What commands take: a problem in a file of the user's, as FILE.py:NAME, and a folder. **The file is executed.**"""

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer
from jaxtyping import PyTree

from hierax._base.errors import InputError
from hierax._problem.problem import Problem

TARGET = "A function without arguments returning (problem, x0, y0), or a Problem beside x0 and y0. FILE.py is run."
Target = Annotated[str, typer.Argument(metavar="FILE.py:NAME", help=TARGET)]
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results.", show_default=False)]


def split(target: str) -> tuple[Path, str]:
    """The file and the name of FILE.py:NAME; the file exists."""
    file, colon, name = target.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise InputError(f"{target!r}: needs a file and a name in it, FILE.py:NAME, for example model.py:problem.")
    if not Path(file).is_file():
        raise InputError(f"{file}: there is no such file.")
    return Path(file), name


def stated(file: Path, name: str) -> tuple[Problem, PyTree, PyTree]:
    """Run the file, and take the problem of that name with its start x0, y0."""
    module = _loaded(file)
    found = getattr(module, name, None)
    if found is None:
        raise InputError(f"{file}: has no {name!r}; it defines {', '.join(_candidates(module)) or 'nothing public'}.")
    if isinstance(found, Problem):
        missing = [start for start in ("x0", "y0") if not hasattr(module, start)]
        if missing:
            raise InputError(f"{file}: {name} is a Problem without a start: define {' and '.join(missing)} beside it.")
        return found, module.x0, module.y0
    if not callable(found):
        raise InputError(f"{file}: {name} is {found!r:.40}; needs a Problem or a function returning one.")
    try:
        answer = found()
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{file}{_line_in(file, error)}: {name}() failed: {_shown(error)}") from error
    if not isinstance(answer, tuple) or len(answer) < 3 or not isinstance(answer[0], Problem):
        raise InputError(f"{file}: {name}() must return (problem, x0, y0), got {type(answer).__name__}.")
    return answer[0], answer[1], answer[2]  # an Example has further fields


def _loaded(file: Path) -> ModuleType:
    """Import a user's file as Python would run it: its own folder comes first in the search path."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file}: is not a Python file (its name must end in .py).")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{file}{_line_in(file, error)}: {_shown(error)}") from error
    finally:
        sys.path.pop(0)
    return module


def _candidates(module: ModuleType) -> list[str]:
    """The public names of problems, and of what may return one."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    own = {name for name, value in public.items() if getattr(value, "__module__", None) == module.__name__}
    return [name for name, value in public.items() if isinstance(value, Problem) or (callable(value) and name in own)]


def _shown(error: Exception) -> str:
    """An error of the user's code in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def _line_in(file: Path, error: Exception) -> str:
    """`, line N` of the user's file, as deep in the traceback as it is on it."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file.resolve()]
    return f", line {lines[-1]}" if lines else ""
