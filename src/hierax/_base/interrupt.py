"""Ctrl-C without loss: while work is under way the first one asks it to end, a second one raises as usual."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class Interrupt:
    """Whether Ctrl-C was pressed since the work began."""

    def __init__(self) -> None:
        self.asked = False

    def ask(self) -> None:
        """Ask the work to end at its next look, with what it has."""
        self.asked = True

    def clear(self) -> None:
        """Forget the request: it was obeyed."""
        self.asked = False


_current: Interrupt | None = None


@contextlib.contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Within it Ctrl-C only sets `asked`; the second raises KeyboardInterrupt. Nested uses share the outermost's.

    Signals reach the main thread alone: in others nothing is changed.
    """
    global _current  # handlers of signals belong to the process
    if _current is not None or threading.current_thread() is not threading.main_thread():
        yield _current or Interrupt()
        return
    interrupt = _current = Interrupt()
    before = signal.getsignal(signal.SIGINT)

    def on_ctrl_c(number: int, frame: FrameType | None) -> None:
        if interrupt.asked:
            signal.default_int_handler(number, frame)
        interrupt.ask()

    ours = before is signal.default_int_handler  # a caller that handles Ctrl-C in its own way keeps it
    if ours:
        signal.signal(signal.SIGINT, on_ctrl_c)
    try:
        yield interrupt
    finally:
        _current = None
        if ours:
            signal.signal(signal.SIGINT, before)
