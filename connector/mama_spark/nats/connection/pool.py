"""The NATS connections of this process (:mod:`mama_spark.contracts.connection_pool`); each borrower drives its own."""

from __future__ import annotations

from mama_spark.contracts.connection_pool import ConnectionPool

from ..settings import NatsSettings
from .socket_connection import SocketConnection
from .socket_driver import SILENT


class NatsPool(ConnectionPool[SocketConnection]):
    """Lends connections by their settings. Idle connections are not read."""

    def __init__(self) -> None:
        super().__init__(_answers, _close_sockets)

    def checkout(self, settings: NatsSettings) -> SocketConnection:
        """An idle connection for these settings, or a new one. ConfigError, Unavailable: none can be made."""
        connection = self.take(settings.connection_key)
        if connection is None:
            connection = SocketConnection(settings)
            connection.open()
        return connection

    def give_back(self, settings: NatsSettings, connection: SocketConnection) -> None:
        """Never raises."""
        self.put(settings.connection_key, connection)


def _answers(connection: SocketConnection) -> bool:
    """Whether it is up, and owes the last publisher nothing. A lost connection is not restored for this, and one to a
    server that another connection has left is not tried."""
    if connection.up:
        connection.drive(0)
    return connection.up and not connection.unwritten and connection.driver.servers.current not in SILENT


def _close_sockets(connections: list[SocketConnection]) -> None:
    for connection in connections:
        connection.close()


POOL = NatsPool()
