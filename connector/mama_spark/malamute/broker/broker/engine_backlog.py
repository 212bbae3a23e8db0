"""Commands that one engine has not answered, and the policy for an engine that does not keep up. Pure.

All clients share one ROUTER socket, so the broker can only stop reading all of them. This is right for an engine that
makes progress: TCP then stops its senders and nothing is lost. It is wrong for a stalled engine, so the broker stops
reading only while the engine keeps a minimum pace. Messages for a slower engine are queued up to a limit in bytes;
:class:`~mama_spark.malamute.broker.session.settings.EngineBacklogPolicy` decides about further ones.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from mama_spark.malamute.protocol.credit import send_cost

from ..engines.commands import AcceptBlock, AcceptMessage, EngineCommand

#: Batches that an engine may lag behind before reading stops.
MAX_LAG = 64
#: Batches from which bytes are counted; fewer are bounded by the limits of a round.
COUNTED = 8
#: Seconds per batch up to which reading stops for an engine.
PACE = 0.05


class EngineBacklog:
    """Counts the batches that one engine has not begun, and measures its pace.

    :param limit: bytes at which the backlog is full; it is no longer full at half of that
    """

    __slots__ = ("limit", "octets", "full", "_sizes", "_since", "_pace")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.octets = 0
        self.full = False
        self._sizes: deque[int] = deque()
        self._since = 0.0  # when the engine last began a batch
        self._pace = 0.0  # seconds per batch, moving average

    def __repr__(self) -> str:
        return f"<EngineBacklog {len(self._sizes)} batches, {self.octets} octets{', full' if self.full else ''}>"

    def __len__(self) -> int:
        return len(self._sizes)

    def posted(self, batch: Sequence[EngineCommand], now: float) -> None:
        """To be called when a batch was posted to the engine."""
        if not self._sizes:
            self._since = now
        size = sum(map(_octets, batch)) if len(self._sizes) >= COUNTED else 0
        self._sizes.append(size)
        self.octets += size
        self.full = self.full or self.octets > self.limit

    def update(self, waiting: int, now: float) -> None:
        """Set the number of batches that the engine has not begun."""
        begun = len(self._sizes) - waiting
        if begun <= 0:
            return
        self._pace += ((now - self._since) / begun - self._pace) * min(1.0, begun / 8)
        self._since = now
        for _ in range(begun):
            self.octets -= self._sizes.popleft()
        self.full = self.full and self.octets > self.limit // 2

    def keeps_pace(self, now: float) -> bool:
        """Whether the engine is fast enough to stop reading for it."""
        return self._pace <= PACE and now - self._since <= PACE


def _octets(command: EngineCommand) -> int:
    if isinstance(command, AcceptBlock):
        contents = command.block.contents
        return send_cost(sum(map(len, contents)), len(contents))
    return send_cost(sum(map(len, command.content)) if isinstance(command, AcceptMessage) else 0, 1)
