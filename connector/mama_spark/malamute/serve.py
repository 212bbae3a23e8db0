"""``mama broker``: a Malamute broker for as long as the command runs."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

from ..errors import MamaError, Unavailable
from .broker import Broker, BrokerSettings
from .configuration import load


def run(
    bind: str | None = None,
    conf_file: str | Path | None = None,
    *,
    say: Callable[[str], None] = lambda text: print(text, flush=True),
    stop: threading.Event | None = None,
) -> int:
    """Serve until Ctrl-C or SIGTERM (or ``stop``); the exit code of the command: 0, or 1 when the broker cannot start
    or ended by itself.

    :raises ConfigError: the configuration is wrong
    """
    settings = load(conf_file, bind)
    done = stop or threading.Event()
    before = _on_signals(done)
    broker = Broker(settings)
    try:
        broker.start()
        say(_ready(broker, settings))
        while not done.wait(0.2):
            if broker.error is not None:
                break
        broker.stop()
        return 0
    except Unavailable as e:
        say(f"cannot serve: {e}")
        return 1
    except MamaError as e:
        say(f"the broker ended: {e}")
        return 1
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _ready(broker: Broker, settings: BrokerSettings) -> str:
    engines = [f"{choice.pattern.decode()} {choice.engine}" for choice in settings.engines]
    security = settings.security
    key = f", public key {security.curve_public_key}" if security.curve_public_key else ""
    streams = ", ".join([*engines, "others simple"] if engines else ["all simple"])
    url = broker.endpoint.replace("tcp://", "mlp://", 1)
    return f"ready: {url}  (streams: {streams}; security: {security.mechanism}{key}; Ctrl-C ends it)"


def _on_signals(done: threading.Event) -> list[tuple[signal.Signals, signal.Handlers]]:
    """Signals end the wait; handlers can be set in the main thread only."""
    if threading.current_thread() is not threading.main_thread():
        return []
    before = []
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.signal(number, lambda *_: done.set())
        before.append((number, handler))
    return before  # type: ignore[return-value]
