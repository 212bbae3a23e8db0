"""Serves metrics, and lists, of a program over HTTP, in a thread of its own."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable
from mama_spark.options.urls import is_port, on_all_interfaces

from .exposition import CONTENT_TYPE, Metric, exposition, prometheus_client

logger = logging.getLogger(__name__)

Pages = Mapping[str, tuple[str, Callable[[], str]]]


@contextmanager
def served_metrics(
    address: str | None,
    measure: Callable[[], Sequence[Metric]],
    say: Callable[[str], object],
    warn: Callable[[str], object],
) -> Iterator[None]:
    """Serve ``/metrics`` while the block runs; nothing without an address.

    :param measure: called in threads of the server
    :param say: gets the address
    :raises ConfigError: the address is invalid, or prometheus-client is not installed
    :raises Unavailable: the address cannot be bound
    """
    if address is None:
        yield
        return
    prometheus_client()
    server = MetricsServer(address, {"/metrics": (CONTENT_TYPE, lambda: exposition(measure()))})
    try:
        for text in all_interfaces_warnings("metrics", address):
            warn(text)
        say(f"metrics: {server.url}/metrics")
        yield
    finally:
        server.close()


def all_interfaces_warnings(what: str, address: str) -> list[str]:
    """Warnings that everybody in the networks of this machine can read ``what`` at ``host:port``: one, or none."""
    if not on_all_interfaces(address.rpartition(":")[0]):
        return []
    return [f"the {what} at {address} are on all interfaces and have no login: name one interface"]


class MetricsServer:
    """Serves ``pages`` by path: functions that return content type and text.

    :param address: ``host:port``; with port 0 the system chooses
    :raises ConfigError: the address is invalid
    :raises Unavailable: the address cannot be bound
    """

    def __init__(self, address: str, pages: Pages) -> None:
        host, sep, port = address.rpartition(":")
        if not sep or not host or not is_port(port):
            raise ConfigError(f"metrics are served at host:port, not at {address!r}")
        try:
            self._server = _Server((host.strip("[]"), int(port)), pages)
        except OSError as e:
            raise Unavailable(f"cannot serve metrics at {address}: {e.strerror or e}") from e
        self.url = f"http://{host}:{self._server.server_address[1]}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, name="mama-metrics", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], pages: Pages) -> None:
        self.pages = pages
        super().__init__(address, _Handler)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log one line; most often the peer has closed the connection."""
        logger.warning("a request for metrics from %s failed: %s", client_address[0], sys.exc_info()[1])


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout = 10.0  # for a silent peer

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path.split("?", 1)[0])
        if page is None:
            self._answer(404, "text/plain", f"there are {', '.join(self.server.pages)}\n")
            return
        kind, make = page
        try:
            self._answer(200, kind, make())
        except MamaError as e:
            self._answer(503, "text/plain", f"{e}\n")

    def _answer(self, status: int, kind: str, body: str) -> None:
        body_bytes = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body_bytes)))
        self.end_headers()
        self.wfile.write(body_bytes)

    def log_message(self, format: str, *values: object) -> None:
        """Without a line for each request."""
