"""Follows what a discovery bridge tells."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from mama_spark.contracts.bridge import DiscoveryBridge, DiscoveryEvent, DiscoveryEventKind, Position, SourceKey
from mama_spark.testing.waiting import eventually

DESK, TWIN = SourceKey("desk", 7), SourceKey("desk", 8)
RECORD, SUSPECT, OFFLINE, EVENT = (
    DiscoveryEventKind.RECORD, DiscoveryEventKind.SUSPECT, DiscoveryEventKind.OFFLINE, DiscoveryEventKind.EVENT,
)  # fmt: skip
IMAGE_END, GAP = DiscoveryEventKind.IMAGE_END, DiscoveryEventKind.GAP
READERS = (DiscoveryEventKind.SUBSCRIBED, DiscoveryEventKind.UNSUBSCRIBED)


class Follower:
    """Reads on and keeps what it was told; readers of streams are left out, for tests make some."""

    def __init__(self, bridge: DiscoveryBridge, start: Position | None = None, *, readers: bool = False) -> None:
        self.bridge, self.readers = bridge, readers
        self.at = bridge.initial_offset("latest") if start is None else start
        self.found: list[DiscoveryEvent] = []

    def step(self, limit: int | None = None) -> list[DiscoveryEvent]:
        end = self.bridge.latest_offset(self.at, limit)
        new = [c for block in self.bridge.read(self.at, end) for c in block]
        self.at = end
        self.found += new if self.readers else [c for c in new if c.kind not in READERS]
        return new

    def until(self, enough: Callable[[list[DiscoveryEvent]], Any], patience: float = 60.0) -> list[DiscoveryEvent]:
        def true() -> bool:
            self.step()
            return bool(enough(self.found))

        try:
            eventually(true, "told", patience)
        except AssertionError:
            raise AssertionError(f"only {self.found[-20:]}") from None
        return self.found

    def kinds(self, source: SourceKey = DESK) -> list[DiscoveryEventKind]:
        return [c.kind for c in self.found if c.source == source]

    def lives(self, source: SourceKey = DESK) -> None:
        """Somebody renews it: one record was told, and one more each time that it came back, for renewals may be late
        where the machine is busy. Waits until it is back."""

        def told(_: list[DiscoveryEvent]) -> bool:
            letters = "".join(kind.value[0] for kind in self.kinds(source))
            return re.fullmatch("r([so]+r)*", letters) is not None

        self.until(told)


def has(
    kind: DiscoveryEventKind, source: SourceKey | None = DESK, times: int = 1
) -> Callable[[list[DiscoveryEvent]], bool]:
    return lambda found: sum(c.kind is kind and c.source == source for c in found) >= times
