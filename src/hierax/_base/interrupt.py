"""Ctrl-C and SIGTERM without loss: while work is under way the first asks it to end, a second one acts as usual."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

CTRL_C, TERMINATED = "Ctrl-C", "SIGTERM"


class Interrupt:
    """Whether Ctrl-C was pressed, or the process was asked to terminate, since the work began.

    Attributes:
        asked: whether the work is asked to end at its next look, with what it has.
        by: what asked: "Ctrl-C" or "SIGTERM".

    Examples:
        >>> import hierax as hx
        >>> interrupt = hx.extend.Interrupt()
        >>> interrupt.ask()
        >>> interrupt.asked, interrupt.by
        (True, 'Ctrl-C')
    """

    def __init__(self) -> None:
        self.asked = False
        self.by = CTRL_C

    def ask(self, by: str = CTRL_C) -> None:
        """Ask the work to end at its next look, with what it has."""
        self.asked, self.by = True, by

    def clear(self) -> None:
        """Forget the request: it was obeyed."""
        self.asked = False


_current: Interrupt | None = None
_signals = {signal.SIGINT, signal.SIGTERM}  # that are answered


def die_when_terminated() -> None:
    """From now on SIGTERM ends the process at once, whatever is under way: for workers whose results nobody awaits.

    Without it a run under way in the process (`interruptible`) ends early instead, and returns what it has.
    """
    _signals.discard(signal.SIGTERM)


@contextlib.contextmanager
def interruptible() -> Iterator[Interrupt]:
    """Within it Ctrl-C and SIGTERM only set `asked`; the second one raises KeyboardInterrupt, or ends the process.

    Nested uses share the outermost's. Signals reach the main thread alone: in others nothing is changed, and a caller
    that handles a signal in its own way keeps its handler.

    Examples:
        >>> import hierax as hx
        >>> with hx.extend.interruptible() as interrupt:
        ...     done = [piece for piece in range(3) if not interrupt.asked]
        >>> done
        [0, 1, 2]
    """
    global _current  # handlers of signals belong to the process
    if _current is not None or threading.current_thread() is not threading.main_thread():
        yield _current or Interrupt()
        return
    interrupt = _current = Interrupt()

    def on_ctrl_c(number: int, frame: FrameType | None) -> None:
        if interrupt.asked:
            signal.default_int_handler(number, frame)
        interrupt.ask()

    def on_terminate(number: int, frame: FrameType | None) -> None:
        if interrupt.asked:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        interrupt.ask(TERMINATED)

    ours = {signal.SIGINT: (signal.default_int_handler, on_ctrl_c), signal.SIGTERM: (signal.SIG_DFL, on_terminate)}
    answered = {number: usual for number, (usual, _) in ours.items() if number in _signals}
    before = {number: usual for number, usual in answered.items() if signal.getsignal(number) is usual}
    for number in before:
        signal.signal(number, ours[number][1])
    try:
        yield interrupt
    finally:
        _current = None
        for number, handler in before.items():
            signal.signal(number, handler)
