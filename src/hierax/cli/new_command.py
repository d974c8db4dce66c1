"""`hierax new`: a file to begin with. What it writes is template.py of this folder, as it is."""

import shlex
from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from hierax._base.errors import InputError

EXAMPLE = "Example: hierax new problem.py"


def new_problem(
    file: Annotated[Path, typer.Argument(metavar="FILE.py", help="The file to write; it must not be there yet.")],
) -> None:
    """Write a commented problem to begin with, which can be solved as it is."""
    if file.suffix != ".py":
        raise InputError(f"{file}: needs a name that ends in .py, for example problem.py.")
    text = resources.files("hierax.cli").joinpath("template.py").read_text("utf-8")
    try:
        with open(file, "x", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError as error:
        raise InputError(f"{file}: is there already, and stays as it is; name another file.") from error
    except OSError as error:
        raise InputError(f"{file}: cannot be written ({error.strerror}); name another place.") from error
    target = shlex.quote(f"{file}:problem")
    print(f"Written to {file}. Read it, then:")
    print(f"  hierax check {target}    is it what the methods assume?")
    print(f"  hierax solve {target}    an answer, and whether it can be trusted")
