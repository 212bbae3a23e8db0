"""A connection to a NATS server as publishers have it, and one as readers have it, for what must hold of both."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from mama_spark.nats import NatsSettings
from mama_spark.nats.connection.connection import Connection
from mama_spark.nats.connection.event_loop import EventLoopThread
from mama_spark.nats.connection.socket_connection import SocketConnection
from mama_spark.testing.waiting import TIMEOUT, eventually

KINDS = pytest.mark.parametrize("kind", ["publisher", "reader"])


class OpenConnection:
    """Either of them.

    :ivar wait: lets time pass for it
    """

    def __init__(self, connection: SocketConnection | Connection, wait: Callable[[], None]) -> None:
        self._connection, self.wait = connection, wait

    @property
    def up(self) -> bool:
        return self._connection.up

    @property
    def why_down(self) -> str:
        return self._connection.why_down

    @property
    def servers(self) -> list[str]:
        """Addresses of those that it knows."""
        if isinstance(self._connection, SocketConnection):
            return [server.address for server in self._connection.driver.servers.servers]
        return [f"{server.hostname}:{server.port}" for server in self._connection.client.discovered_servers]

    def until(self, done: Callable[[], bool]) -> None:
        def look() -> bool:
            self.wait()
            return done()

        eventually(look, "this becomes true")


@contextmanager
def connected(kind: str, settings: NatsSettings) -> Iterator[OpenConnection]:
    """:param kind: of :data:`KINDS`"""
    if kind == "publisher":
        own = SocketConnection(settings)
        own.open()
        try:
            yield OpenConnection(own, lambda: own.drive(0.01))
        finally:
            own.close()
        return
    loop = EventLoopThread()
    connection = loop.run(Connection.connect(loop, settings), TIMEOUT, "connecting")
    try:
        yield OpenConnection(connection, lambda: None)
    finally:
        loop.run(connection.close(), TIMEOUT, "closing")
        loop.stop()
