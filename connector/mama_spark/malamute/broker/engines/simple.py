"""The engine of the specification's example (ML-06), a template for your own: it stores nothing. Pure."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, ClassVar

from mama_spark.malamute.protocol.extensions import Extension

from .base import Delivery, StreamEngine
from .subscription_index import SubscriptionIndex


class SimpleEngine(StreamEngine):
    shared_threads: ClassVar[int] = 2  # it never waits, so more would only take turns at Python's lock

    def __init__(self, name: bytes, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, settings)
        self._subscriptions: SubscriptionIndex[Hashable] = SubscriptionIndex()
        self._patterns: dict[Hashable, set[bytes]] = {}

    def may_end(self) -> bool:
        """False for an engine that is derived from this one: it may keep more than subscriptions."""
        return type(self) is SimpleEngine and not self._patterns

    def compile(self, client: Hashable, pattern: bytes, after: int | None = None) -> None:
        self._subscriptions.add(pattern, client)
        self._patterns.setdefault(client, set()).add(pattern)

    def cancel(self, client: Hashable) -> None:
        self._subscriptions.remove(client, self._patterns.pop(client, ()))

    def accept(
        self,
        client: Hashable,
        address: bytes,
        subject: bytes,
        content: Sequence[bytes],
        extension: Extension | None = None,
    ) -> None:
        for receiver in self._subscriptions.receivers(subject):
            if receiver is not client and receiver != client:
                self._deliver(Delivery(receiver, address, subject, content, extension))
