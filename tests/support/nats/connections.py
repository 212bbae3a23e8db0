"""A connection to a NATS server, and time that passes for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mama_spark.nats import NatsSettings
from mama_spark.nats.connection.socket_connection import SocketConnection
from mama_spark.testing.waiting import eventually


class OpenConnection:
    """It is driven by who waits."""

    def __init__(self, connection: SocketConnection) -> None:
        self._connection = connection

    def wait(self) -> None:
        self._connection.drive(0.01)

    @property
    def up(self) -> bool:
        return self._connection.up

    @property
    def why_down(self) -> str:
        return self._connection.why_down

    @property
    def servers(self) -> list[str]:
        """Addresses of those that it knows."""
        return [server.address for server in self._connection.driver.servers.servers]

    def until(self, done: Callable[[], bool]) -> None:
        def look() -> bool:
            self.wait()
            return done()

        eventually(look, "this becomes true")


@contextmanager
def connected(settings: NatsSettings) -> Iterator[OpenConnection]:
    own = SocketConnection(settings)
    own.open()
    try:
        yield OpenConnection(own)
    finally:
        own.close()
