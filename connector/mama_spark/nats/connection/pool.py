"""The NATS connections of this process (:mod:`mama_spark.contracts.connection_pool`)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from mama_spark.contracts.connection_pool import IDLE, ConnectionPool
from mama_spark.contracts.errors import MamaError

from ..settings import NatsSettings
from . import event_loop
from .connection import Connection

__all__ = ["IDLE", "POOL", "NatsPool"]


class NatsPool(ConnectionPool[Connection]):
    """Lends connections to bridges, by their settings."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(_usable, _close, _later, clock)

    def checkout(self, settings: NatsSettings) -> Connection:
        """A connection for these settings: an idle one, or a new one.

        :raises ConfigError, Unavailable: none is idle, and none can be made
        """
        connection = self.take(settings.connection_key)
        if connection is not None:
            return connection
        loop = event_loop.shared()
        return loop.run(Connection.connect(loop, settings), settings.connect_timeout * 2 + 5, "connecting to NATS")

    def give_back(self, settings: NatsSettings, connection: Connection) -> None:
        """Return it to the pool; never raises."""
        self.put(settings.connection_key, connection)


def _usable(connection: Connection) -> bool:
    return connection.up and connection.loop.alive and not connection.closed


def _close(connections: list[Connection]) -> None:
    for connection in connections:
        if connection.loop.alive:
            with contextlib.suppress(MamaError):
                connection.loop.soon(lambda one: one.loop.loop.create_task(one.close()), connection)


def _later(seconds: float, call: Callable[[], None], connection: Connection) -> None:
    with contextlib.suppress(MamaError):
        connection.loop.soon(connection.loop.loop.call_later, seconds, call)


POOL = NatsPool()
