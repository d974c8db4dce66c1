"""Files of the user's that a command is given as FILE.py:NAME. **The file is executed**, as Python would run it."""

import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

from hierax._base.errors import InputError


def split(target: str) -> tuple[Path, str]:
    """The file and the name of FILE.py:NAME; the file exists."""
    file, colon, name = target.rpartition(":")
    if not colon or not file or not name.isidentifier():
        raise InputError(f"{target!r}: needs a file and a name in it, FILE.py:NAME, for example model.py:problem.")
    if not Path(file).is_file():
        raise InputError(f"{file}: there is no such file.")
    return Path(file), name


def loaded(file: Path) -> ModuleType:
    """Import a user's file as Python would run it: its own folder comes first in the search path."""
    spec = importlib.util.spec_from_file_location(file.stem, file)
    if spec is None or spec.loader is None:
        raise InputError(f"{file}: is not a Python file (its name must end in .py).")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{file}{line_in(file, error)}: {shown(error)}") from error
    finally:
        sys.path.pop(0)
    return module


def shown(error: Exception) -> str:
    """An error of the user's code in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def line_in(file: Path, error: Exception) -> str:
    """`, line N` of the user's file, as deep in the traceback as it is on it."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file.resolve()]
    return f", line {lines[-1]}" if lines else ""
