"""Signs of life of an experiment: a bar where stderr is a terminal, a line now and then elsewhere."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def lines_on_stderr(every: float) -> Iterator[Callable[[str], None]]:
    """A function that takes what is under way; a thread writes the latest of it to stderr every so many seconds."""
    begin, ended, latest = time.perf_counter(), threading.Event(), [""]

    def tell() -> None:
        while not ended.wait(every):
            try:
                sys.stderr.write(f"hierax: {time.perf_counter() - begin:.0f} s, {latest[0]}\n")
                sys.stderr.flush()
            except (OSError, ValueError):  # nobody reads them any more
                return

    def say(text: str) -> None:
        latest[0] = text

    thread = threading.Thread(target=tell, name="hierax-lab progress", daemon=True)
    thread.start()
    try:
        yield say
    finally:
        ended.set()
        thread.join()


@contextmanager
def shown_progress(total: int, unit: str) -> Iterator[Callable[[int], None]]:
    """A function that takes how many of `total` are done, and draws a bar where stderr is a terminal."""
    console = Console(stderr=True)
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    columns = TextColumn(f"hierax, {unit}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda done: bar.update(task, completed=done)
