"""The folder of `hierax solve`: what an earlier run has left there, and what this one leaves.

While a run is under way run.json says so; a run that was killed is gone on with or kept, never lost by beginning anew.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from hierax._base.errors import InputError
from hierax._base.text import as_json
from hierax._run.checkpoints import clear, numbers_in
from hierax._run.method import AbstractMethod
from hierax._run.solution import Solution
from hierax.reports.folder import ANSWER, RUN, RUNNING, begin_run, draw_history, draw_or_say, write_json, write_run

CHECKPOINT = "checkpoint"  # what a run leaves in its folder for --resume
Out = Annotated[Path | None, typer.Option("--out", help="Folder for the results.", show_default=False)]


class Settings(NamedTuple):
    """Options that a resumed run takes over from the run it goes on with; None: not given."""

    method: str | None
    max_steps: int | None
    seed: int | None


def with_earlier(asked: Settings, folder: Path, known_methods: list[str]) -> Settings:
    """The options of the run to resume, where the command does not set them.

    Where there is no run it begins: one command serves for the first time and after every kill, also after one that hit
    before there was a folder.
    """
    earlier = _earlier(folder)
    if earlier is None:
        print(f"Nothing to resume in {folder}: the run begins.")
        return asked
    if earlier["status"]["name"] != RUNNING and not numbers_in(folder / CHECKPOINT):
        raise InputError(f"{folder}: nothing to resume, {CHECKPOINT} is missing; run without --resume first.")
    known = Settings(*(earlier["settings"].get(name) for name in Settings._fields))
    if known.method not in known_methods:
        raise InputError(f"{folder / RUN}: knows no method {known.method!r}; it knows {', '.join(known_methods)}.")
    return Settings(
        asked.method or known.method,
        asked.max_steps or known.max_steps,
        known.seed if asked.seed is None else asked.seed,
    )


def begin_anew(folder: Path) -> None:
    """Clear the folder of an earlier run's checkpoints; refuse where that run was killed and can go on."""
    earlier = _earlier(folder)
    if earlier is not None and earlier["status"]["name"] == RUNNING and numbers_in(folder / CHECKPOINT):
        raise InputError(
            f"--out {folder}: holds a run that was killed, or is under way. Add --resume to go on with it, name "
            f"another folder, or remove {folder / CHECKPOINT}."
        )
    clear(folder / CHECKPOINT)


@contextmanager
def under_way(folder: Path, settings: Mapping[str, object]) -> Iterator[None]:
    """The folder says that a run is under way; where the run is refused, it says what it said before."""
    path = folder / RUN
    try:
        before = path.read_bytes() if path.is_file() else None
        begin_run(folder, settings)
    except OSError as error:
        raise InputError(f"--out {folder}: cannot be written to ({error}). Name another folder.") from error
    try:
        yield
    except InputError:
        path.unlink() if before is None else path.write_bytes(before)
        raise


def write(folder: Path, solution: Solution, settings: Mapping[str, object], answer: Mapping[str, object]) -> None:
    """Everything that a run leaves in its folder; where that cannot be written, the answer is printed at least."""
    try:
        write_json(folder / ANSWER, answer)
        write_run(folder, solution, settings)
        if isinstance(solution.method, AbstractMethod) and solution.state is not None:
            draw_or_say(lambda: draw_history(folder), print)
    except OSError:
        print(json.dumps(as_json(answer)))
        raise


def _earlier(folder: Path) -> dict[str, Any] | None:
    """What run.json says of the run in the folder; None: there is none."""
    path = folder / RUN
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = json.loads(path.read_text("utf-8"))
        _ = found["status"]["name"], found["settings"]["method"]
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: is damaged ({error}). Name another folder, or remove it.") from error
    return found
