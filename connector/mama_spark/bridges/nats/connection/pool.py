"""The NATS connections of this process (:mod:`mama_spark.bridges.connection_pool`)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from mama_spark.bridges.connection_pool import IDLE, ConnectionPool
from mama_spark.errors import MamaError

from ..settings import NatsSettings
from . import event_loop as loops
from .connection import Connection

__all__ = ["IDLE", "POOL", "NatsPool"]


class NatsPool(ConnectionPool[Connection]):
    """Connections by their settings."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(_usable, _close, _later, clock)

    def lease(self, settings: NatsSettings) -> Connection:
        """A connection for these settings, warm if there is one.

        :raises ConfigError, Unavailable: there is none and none can be made
        """
        link = self.take(settings.connection_key)
        if link is not None:
            return link
        loop = loops.shared()
        return loop.run(Connection.connect(loop, settings), settings.connect_timeout * 2 + 5, "connecting to NATS")

    def give_back(self, settings: NatsSettings, link: Connection) -> None:
        """The lease is over; never raises."""
        self.put(settings.connection_key, link)


def _usable(link: Connection) -> bool:
    return link.up and link.loop.alive and not link.closed


def _close(links: list[Connection]) -> None:
    for link in links:
        if link.loop.alive:
            with contextlib.suppress(MamaError):
                link.loop.soon(lambda one: one.loop.loop.create_task(one.close()), link)


def _later(seconds: float, call: Callable[[], None], link: Connection) -> None:
    with contextlib.suppress(MamaError):
        link.loop.soon(link.loop.loop.call_later, seconds, call)


POOL = NatsPool()
