"""Signals that end a long-running subcommand."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .exit_codes import FINE, INTERRUPTED


class StopEvent(threading.Event):
    """Set by a signal; ``exit_code``: of the command that the signal ended in order."""

    exit_code = FINE

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self.exit_code = INTERRUPTED if number == signal.SIGINT else FINE
        self.set()


@contextmanager
def stop_on_signals() -> Iterator[StopEvent]:
    """An event that Ctrl-C and SIGTERM set; the handlers are installed in the main thread only, and restored."""
    stop = StopEvent()
    main = threading.current_thread() is threading.main_thread()
    before = [(n, signal.signal(n, stop.on_signal)) for n in (signal.SIGINT, signal.SIGTERM) if main]
    try:
        yield stop
    finally:
        for number, handler in before:
            signal.signal(number, handler)
