"""A connection to a NATS server, and time that passes for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mama_spark.nats import NatsSettings
from mama_spark.nats.connection.socket_connection import SocketConnection
from mama_spark.nats.protocol.parser import Frame
from mama_spark.testing.waiting import TIMEOUT, eventually


class OpenConnection(SocketConnection):
    """It is driven by who waits."""

    @property
    def servers(self) -> list[str]:
        """Addresses of those that it knows."""
        return [server.address for server in self.driver.servers.servers]

    def until(self, done: Callable[[], bool]) -> None:
        def look() -> bool:
            self.drive(0.01)
            return done()

        eventually(look, "this becomes true")

    def echoes(self) -> bool:
        """A message goes to the server and comes back."""
        got: list[Frame] = []
        sid = self.subscribe("echo.>", got.append, TIMEOUT)
        self.publish("echo.a", b"hi", headers={"K": "v"})
        self.ping(TIMEOUT)
        self.unsubscribe(sid)
        return [(frame.payload, frame.headers) for frame in got] == [(b"hi", [("K", "v")])]


@contextmanager
def connected(settings: NatsSettings) -> Iterator[OpenConnection]:
    own = OpenConnection(settings)
    own.open()
    try:
        yield own
    finally:
        own.close()
