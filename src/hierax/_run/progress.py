"""The progress bar of a run (rich), on stderr; off outside a terminal."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from hierax._base.lazy import lazy

rich_console, rich_progress = lazy("rich.console"), lazy("rich.progress")

SHOWN = ("upper", "violation", "gap", "stationarity")
Show = Callable[[int, dict[str, Any] | None], None]


@contextmanager
def progress_bar(wanted: bool | None, total: int) -> Iterator[Show]:
    """A function `show(steps_done, record)`; it does nothing where no bar is wanted."""
    if wanted is False or (wanted is None and not sys.stderr.isatty()):
        yield lambda done, record: None
        return
    columns = (
        rich_progress.TextColumn("hierax"),
        rich_progress.BarColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TimeRemainingColumn(),
        rich_progress.TextColumn("{task.fields[text]}"),
    )
    with rich_progress.Progress(*columns, console=rich_console.Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total, text="")

        def show(done: int, record: dict[str, Any] | None) -> None:
            known = [name for name in SHOWN if record is not None and name in record]
            text = "  ".join(f"{name} {float(np.median((record or {})[name])):.3g}" for name in known)
            bar.update(task, completed=done, text=text)

        yield show
