"""Ctrl-C and SIGTERM without loss: while work is under way the first asks it to end, a second one acts as usual."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

CTRL_C = "Ctrl-C"


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
# The signals that are answered: what to call each, and the handler that it usually has.
_answered: dict[int, tuple[str, Any]] = {
    signal.SIGINT: (CTRL_C, signal.default_int_handler),
    signal.SIGTERM: ("SIGTERM", signal.SIG_DFL),
}


def die_when_terminated() -> None:
    """From now on SIGTERM ends the process at once, whatever is under way: for workers whose results nobody awaits.

    Without it a run under way in the process (`interruptible`) ends early instead, and returns what it has.
    """
    _answered.pop(signal.SIGTERM, None)


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

    def answer(number: int, frame: FrameType | None) -> None:
        name, usual = ours[number]
        if interrupt.asked:
            signal.signal(number, usual)
            signal.raise_signal(number)
        interrupt.ask(name)

    ours = {int(one): known for one, known in _answered.items() if signal.getsignal(one) is known[1]}
    for number in ours:
        signal.signal(number, answer)
    try:
        yield interrupt
    finally:
        _current = None
        for number, (_, usual) in ours.items():
            signal.signal(number, usual)
