"""Progress of an experiment on stderr, where it is no terminal."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def lines_on_stderr(every: float) -> Iterator[Callable[[str], None]]:
    """A function that takes what is under way; every `every` seconds a thread writes the latest of it to stderr."""
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
