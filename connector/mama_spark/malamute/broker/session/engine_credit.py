"""Lends the credit of clients to engines with flow control, and recalls unused credit. Pure.

:class:`~mama_spark.malamute.protocol.credit.CreditAllocator` decides; this module sends the commands to engines.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..engines.commands import GiveCredit, RecallCredit
from .client_session import ClientSession
from .counters import SessionClock
from .streams.engine_command_queue import EngineCommandQueue


class EngineCredit:
    """Lends the credit of all clients."""

    def __init__(self, engines: EngineCommandQueue, clock: SessionClock) -> None:
        self._engines = engines
        self._clock = clock
        self._rotating: dict[ClientSession, None] = {}  # a stream of theirs waits for shares of others

    def __len__(self) -> int:
        """Number of clients that :meth:`rotate` checks; some may need no rotation any more."""
        return len(self._rotating)

    def add_stream(self, client: ClientSession, stream: bytes) -> None:
        """Add a stream that the client subscribed to; the engine delivers nothing until credit is lent."""
        self._engines.put(stream, GiveCredit(client, 0))
        client.allocator.add_stream(stream)
        self.balance(client)

    def balance(self, client: ClientSession) -> None:
        """Lend free credit; recall unused credit if more is needed."""
        allocator = client.allocator
        if client.blocked or not client.connected or not len(allocator):
            return
        free = allocator.free(client.credit, len(client.lent_deliveries))
        for stream, amount in allocator.lend(free):
            self._engines.put(stream, GiveCredit(client, amount))
            free -= amount
        if free <= 0:
            self._recall(client, allocator.recall(len(client.queue) > 0, self._clock.now))
            if allocator.rotation_due is not None:
                self._rotating[client] = None

    def rotate(self, now: float) -> None:
        """Recall unused shares for streams that waited for one at least the rotation interval."""
        for client in list(self._rotating):
            due = client.allocator.rotation_due
            if client.connected and due is not None and due > now:
                continue
            del self._rotating[client]
            if client.connected and due is not None:
                self._recall(client, client.allocator.rotate())

    def next_rotation(self) -> float | None:
        times = (client.allocator.rotation_due for client in self._rotating)
        return min((time for time in times if time is not None), default=None)

    def _recall(self, client: ClientSession, streams: Iterable[bytes]) -> None:
        for stream in streams:
            self._engines.put(stream, RecallCredit(client))
