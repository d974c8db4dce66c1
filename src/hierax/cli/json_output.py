"""`hierax solve --json`: one JSON document on stdout and nothing else there, whatever the user's file prints."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from typing import TextIO

FORMAT = "hierax solve 1"


@contextmanager
def stdout_kept_for_json(wanted: bool) -> Iterator[TextIO]:
    """Where it is wanted, whatever is printed from now on goes to stderr; the stream it yields is the real stdout.

    Libraries that print from C write to the file descriptor, and may do so as late as at the end of the process. So
    the descriptor stays with stderr, and the document goes to a copy of it.
    """
    real = sys.stdout
    if not wanted:
        yield real
        return
    with ExitStack() as stack:
        stack.enter_context(redirect_stdout(sys.stderr))
        try:
            descriptor, errors = real.fileno(), sys.stderr.fileno()
        except io.UnsupportedOperation:  # no files, but what a test has put there
            yield real
            return
        real.flush()
        copy = stack.enter_context(os.fdopen(os.dup(descriptor), "w", encoding="utf-8"))
        os.dup2(errors, descriptor)
        yield copy
