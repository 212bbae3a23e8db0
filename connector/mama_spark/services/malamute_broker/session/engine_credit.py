"""Lends the credit of clients to engines with flow control, and recalls what they do not use. Pure.

The rule is :class:`~mama_spark.malamute.protocol.credit.CreditAllocator`; here it becomes commands for engines.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..engines.commands import GiveCredit, RecallCredit
from .client_session import ClientSession
from .counters import SessionClock
from .streams.engine_command_queue import EngineCommandQueue


class EngineCredit:
    """For all clients."""

    def __init__(self, engines: EngineCommandQueue, clock: SessionClock) -> None:
        self._engines = engines
        self._clock = clock
        self._rotating: dict[ClientSession, None] = {}  # a stream of theirs waits for the shares of others

    def __len__(self) -> int:
        """Clients whose credit has to rotate, or had to, or that are gone: :meth:`rotate` has to look."""
        return len(self._rotating)

    def add_stream(self, client: ClientSession, stream: bytes) -> None:
        """The client subscribed; the engine delivers nothing until some credit is lent."""
        self._engines.put(stream, GiveCredit(client, 0))
        client.allocator.add_stream(stream)
        self.balance(client)

    def balance(self, client: ClientSession) -> None:
        """Lend what is free; recall what is not used if more is needed."""
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
        """Recall unused shares where a stream has waited for one long enough."""
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
