"""``mama serve``: a NATS server with JetStream and a demo stream on this machine, for trials, until Ctrl-C."""

from __future__ import annotations

import argparse
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

from mama_spark.contracts.errors import OptionError, Unavailable
from mama_spark.options.urls import is_port

from ...console.output import say_as
from ...console.signals import stop_on_signals
from ..connection.socket_connection import SocketConnection
from ..jetstream import streams
from ..jetstream.client import JetStream
from ..server.nats_server import NatsServer
from ..settings import NatsSettings

#: Images and texts of Tango have some megabytes; NATS allows 64 MB, and recommends at most 8.
CONFIGURATION = "max_payload: 8MB"
DEMO = "DEMO"
DEMO_SUBJECTS = ["flights.>", "demo.>"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    text = "port for clients, where every format connects without a url; 0: a free one (default: %(default)s)"
    parser.add_argument("--port", type=int, default=4222, help=text)
    parser.add_argument("--json", action="store_true", help='each line as JSON: {"text": ...}')
    parser.add_argument("--store", type=Path, help="folder that keeps the streams (default: a temporary one)")


def run(args: argparse.Namespace) -> int:
    """Run the command. OptionError: the port is none."""
    if not is_port(str(args.port)):
        raise OptionError(f"--port is from 0 to 65535, got {args.port}")
    with stop_on_signals() as stop:
        serve(args.port, args.store, stop=stop, say=say_as(args.json))
    return stop.exit_code


def serve(port: int, store: str | Path | None, *, stop: threading.Event, say: Callable[[str], None]) -> None:
    """Serve until ``stop`` is set.

    :param port: port of the clients; 0 = a free one
    :param store: folder of the streams, kept; None = a temporary one
    :raises MamaError: it cannot serve, or ended by itself
    """
    server = NatsServer(None, port=port, store=store, config=CONFIGURATION)
    try:
        try:
            server.start()
        except Unavailable as e:
            if server.port_taken:
                raise OptionError(f"port {port} is in use; choose another with --port") from e
            raise
        add_demo_stream(server.url)
        kept = f"streams are kept in {store}" if store else "streams are gone when it ends"
        say(f"ready: {server.url}  (stream {DEMO}: {', '.join(DEMO_SUBJECTS)}; {kept}; Ctrl-C ends it)")
        while not stop.wait(0.5):
            if not server.running:
                raise Unavailable("nats-server ended by itself")
    finally:
        server.stop()


def add_demo_stream(url: str) -> None:
    """Create the stream that the examples publish to, if missing. ConfigError, Unavailable: it cannot be created."""
    settings = NatsSettings((url,))
    connection = SocketConnection(settings)
    connection.open()
    with contextlib.closing(connection):
        api = JetStream(lambda: connection, settings.connect_timeout)
        if streams.stream_info(api, streams.StreamCache(), DEMO) is None:
            streams.create(api, DEMO, DEMO_SUBJECTS, settings)
