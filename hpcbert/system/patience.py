"""Handle interrupts patiently: let a running command give its answer first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

# Ctrl-C, the signal of a scheduler or a shutdown, and the end of a connection.
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class DeferredInterrupts:
    """Lets a running command give its answer, and hpcbert record it.

    An interrupt takes effect at the next `check`, or in a pause. A second one takes effect at once.
    """

    def __init__(self) -> None:
        self._asked = 0
        self._resting = False

    def note(self, _number: int, _frame: FrameType | None) -> None:
        """Handle a signal."""
        self._asked += 1
        if self._resting or self._asked > 1:
            raise KeyboardInterrupt

    def check(self) -> None:
        """Take effect now.

        Raises:
            KeyboardInterrupt: An interrupt is waiting.
        """
        if self._asked:
            raise KeyboardInterrupt

    def pausing(self, pause: Callable[[float], None]) -> Callable[[float], None]:
        """Return a function that sleeps, except after an interrupt."""

        def wait(seconds: float) -> None:
            self.check()
            self._resting = True
            try:
                pause(seconds)
            finally:
                self._resting = False

        return wait


@contextmanager
def defer_interrupts() -> Iterator[DeferredInterrupts]:
    """Handle signals patiently; ignored ones, as under nohup, stay ignored.

    Raises:
        KeyboardInterrupt: Somebody interrupted.
    """
    patience = DeferredInterrupts()
    is_main_thread = threading.current_thread() is threading.main_thread()
    handled_signals = [
        number
        for number in _SIGNALS
        if is_main_thread and signal.getsignal(number) != signal.SIG_IGN
    ]
    previous_handlers = {
        handled_signal: signal.signal(handled_signal, patience.note)
        for handled_signal in handled_signals
    }
    try:
        yield patience
        patience.check()
    finally:
        for handled_signal, handler in previous_handlers.items():
            signal.signal(handled_signal, handler)
