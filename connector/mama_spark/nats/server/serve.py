"""``mama serve``: a JetStream server on this machine for trials, while the command runs."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

from mama_spark.contracts.errors import Unavailable

from ..connection.connection import Connection
from ..connection.event_loop import EventLoopThread
from ..jetstream import streams
from ..jetstream.api import JetStreamClient
from ..settings import NatsSettings
from .nats_server import NatsServer

#: Images and texts of Tango have some megabytes; NATS allows 64 MB, and recommends at most 8.
CONFIGURATION = "max_payload: 8MB"
DEMO = "DEMO"
DEMO_SUBJECTS = ["flights.>", "demo.>"]


def run(
    port: int = 0,
    store: str | Path | None = None,
    *,
    stop: threading.Event,
    say: Callable[[str], None] = lambda text: print(text, flush=True),
) -> None:
    """Serve until ``stop`` is set.

    :param port: of the clients; 0 = a free one
    :param store: folder of the streams, kept; None = a temporary one
    :raises MamaError: it cannot serve, or ended by itself
    """
    server = NatsServer(None, port=port, store=store, config=CONFIGURATION)
    try:
        server.start()
        add_demo_stream(server.url)
        kept = f"streams are kept in {store}" if store else "streams are gone when it ends"
        say(f"ready: {server.url}  (stream {DEMO}: {', '.join(DEMO_SUBJECTS)}; {kept}; Ctrl-C ends it)")
        while not stop.wait(0.5):
            if not server.running:
                raise Unavailable("nats-server ended by itself")
    finally:
        server.stop()


def add_demo_stream(url: str) -> None:
    """Create the stream that the examples publish to; an existing one stays as it is.

    :raises ConfigError, Unavailable: it cannot be created
    """
    settings = NatsSettings((url,))
    loop = EventLoopThread()

    async def make() -> None:
        connection = await Connection.connect(loop, settings)
        try:
            api = JetStreamClient(connection, settings.connect_timeout)
            if await streams.stream_info(api, streams.StreamCache(), DEMO) is None:
                await streams.create(api, DEMO, DEMO_SUBJECTS, settings)
        finally:
            await connection.close()

    try:
        loop.run(make(), 60, "making the demo stream")
    finally:
        loop.stop()
