"""The end of a command that runs until somebody ends it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """Set by Ctrl-C and SIGTERM, while this lasts; handlers can be set in the main thread only."""
    stop = threading.Event()
    main = threading.current_thread() is threading.main_thread()
    before = [(n, signal.signal(n, lambda *_: stop.set())) for n in (signal.SIGINT, signal.SIGTERM) if main]
    try:
        yield stop
    finally:
        for number, handler in before:
            signal.signal(number, handler)
