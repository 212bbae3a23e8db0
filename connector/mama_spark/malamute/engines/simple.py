"""The engine of the specification's example (ML-06): in memory, nothing is stored.

A message goes to whoever is subscribed at that moment, or it is lost. Copy this to begin an engine of your own.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from ..extensions import Extension
from ..patterns import Matcher
from . import Delivery, StreamEngine

#: Subjects whose receivers are remembered: most streams have few subjects, and matching is most of the work.
REMEMBERED = 4096


class SimpleEngine(StreamEngine):
    def __init__(self, name: bytes, settings: Mapping[str, Any] | None = None) -> None:
        super().__init__(name, settings)
        self._matcher = Matcher()
        self._selectors: dict[bytes, dict[Hashable, None]] = {}  # pattern -> its clients, in order of subscription
        self._patterns: dict[Hashable, set[bytes]] = {}
        self._receivers: dict[bytes, tuple[Hashable, ...]] = {}  # subject -> clients

    def __repr__(self) -> str:
        return f"<SimpleEngine {self.name!r}, {len(self._selectors)} patterns, {len(self._patterns)} clients>"

    def compile(self, client: Hashable, pattern: bytes, after: int | None = None) -> None:
        self._matcher.add(pattern)
        self._selectors.setdefault(pattern, {})[client] = None
        self._patterns.setdefault(client, set()).add(pattern)
        self._receivers.clear()

    def cancel(self, client: Hashable) -> None:
        for pattern in self._patterns.pop(client, ()):
            clients = self._selectors[pattern]
            del clients[client]
            if not clients:
                del self._selectors[pattern]
                self._matcher.discard(pattern)
        self._receivers.clear()

    def accept(
        self,
        client: Hashable,
        address: bytes,
        subject: bytes,
        content: Sequence[bytes],
        extension: Extension | None = None,
    ) -> None:
        receivers = self._receivers.get(subject)
        if receivers is None:
            receivers = self._match(subject)
        for receiver in receivers:
            if receiver is not client and receiver != client:
                self._deliver(Delivery(receiver, address, subject, content, extension))

    def _match(self, subject: bytes) -> tuple[Hashable, ...]:
        """Each client once, however many of its patterns match."""
        found: dict[Hashable, None] = {}
        for pattern in self._matcher.match(subject):
            found.update(self._selectors[pattern])
        if len(self._receivers) >= REMEMBERED:
            self._receivers.clear()
        receivers = self._receivers[subject] = tuple(found)
        return receivers
