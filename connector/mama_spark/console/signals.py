"""Signals that end a long-running subcommand."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stop_on_signals() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set; the handlers are installed in the main thread only, and restored."""
    stop = threading.Event()
    main = threading.current_thread() is threading.main_thread()
    before = [(n, signal.signal(n, lambda *_: stop.set())) for n in (signal.SIGINT, signal.SIGTERM) if main]
    try:
        yield stop
    finally:
        for number, handler in before:
            signal.signal(number, handler)
