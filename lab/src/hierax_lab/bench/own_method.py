"""A method in a file of the user's, which `hierax bench run` takes as FILE.py:NAME. **The file is executed.**"""

import importlib.util
import sys
import traceback
from pathlib import Path

from hierax import InputError


def split(target: str) -> tuple[Path, str]:
    """The file and the name of FILE.py:NAME; the file exists."""
    file, _, name = target.rpartition(":")
    if not file.endswith(".py") or not name.isidentifier():
        raise InputError(f"{target!r}: needs a file and a name in it, FILE.py:NAME, for example my_method.py:Mine.")
    if not Path(file).is_file():
        raise InputError(f"{file}: there is no such file.")
    return Path(file), name


def named_in(target: str) -> object:
    """What FILE.py:NAME names. The file is run as Python would: its own folder comes first in the search path."""
    file, name = split(target)
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(file.resolve().parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{file}{line_in(file, error)}: {shown(error)}") from error
    finally:
        sys.path.pop(0)
    if not hasattr(module, name):
        public = [one for one in vars(module) if not one.startswith("_")]
        raise InputError(f"{file}: has no {name!r}; it defines {', '.join(public) or 'nothing public'}.")
    return getattr(module, name)


def shown(error: Exception) -> str:
    """An error of the user's code in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def line_in(file: Path, error: Exception) -> str:
    """`, line N`, where the error has come from a line of the file."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == file.resolve()]
    return f", line {lines[-1]}" if lines else ""
