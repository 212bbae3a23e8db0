"""Commands that one engine has not answered, and the policy for an engine that does not keep up. Pure.

All clients come through one ROUTER socket, so the broker can only stop reading all of them. That is right for an engine
that goes on: TCP then stops its senders, nothing is lost, and a round that is read has messages of every client. It is
wrong for an engine that stands still, so an engine is waited for only while it keeps a minimum pace. What is sent to a
slower one is queued up to a limit in octets; :class:`EngineBacklogPolicy` says what happens beyond it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum

from ..engines.commands import AcceptBlock, AcceptMessage, EngineCommand

#: Batches that an engine may lag behind before reading stops for it.
MAX_LAG = 64
#: Batches from which on octets are counted; what waits in fewer is bounded by what one round reads.
COUNTED = 8
#: Seconds that an engine may take for a batch, and still be waited for.
PACE = 0.05
#: Octets of memory, about, that a command or a queued message takes beyond those of its frames.
OVERHEAD = 256


class EngineBacklogPolicy(StrEnum):
    """What happens to messages for a stream whose engine does not keep up, once its backlog is full."""

    DROP_NEWEST = "drop-newest"  #: they are lost; a client that gets acknowledgements is disconnected
    DISCONNECT = "disconnect"  #: they are lost, and so is the client that sent them
    HOLD = "hold"  #: nothing is lost: no client is read until the engine goes on, however long that takes


class EngineBacklog:
    """Counts the batches that one engine has not begun, and how fast it begins them.

    :param limit: octets from which on the backlog is full, until it is half of that
    """

    __slots__ = ("limit", "octets", "full", "_sizes", "_since", "_pace")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.octets = 0
        self.full = False
        self._sizes: deque[int] = deque()
        self._since = 0.0  # when the engine last began a batch
        self._pace = 0.0  # seconds a batch, moving average

    def __repr__(self) -> str:
        return f"<EngineBacklog {len(self._sizes)} batches, {self.octets} octets{', full' if self.full else ''}>"

    def __len__(self) -> int:
        return len(self._sizes)

    def posted(self, batch: Sequence[EngineCommand], now: float) -> None:
        """A batch was handed to the engine."""
        if not self._sizes:
            self._since = now
        size = sum(map(_octets, batch)) if len(self._sizes) >= COUNTED else 0
        self._sizes.append(size)
        self.octets += size
        self.full = self.full or self.octets > self.limit

    def update(self, waiting: int, now: float) -> None:
        """The engine has not begun ``waiting`` batches now."""
        begun = len(self._sizes) - waiting
        if begun <= 0:
            return
        self._pace += ((now - self._since) / begun - self._pace) * min(1.0, begun / 8)
        self._since = now
        for _ in range(begun):
            self.octets -= self._sizes.popleft()
        self.full = self.full and self.octets > self.limit // 2

    def keeps_pace(self, now: float) -> bool:
        """The engine is fast enough to be waited for."""
        return self._pace <= PACE and now - self._since <= PACE


def _octets(command: EngineCommand) -> int:
    if isinstance(command, AcceptBlock):
        contents = command.block.contents
        return OVERHEAD * len(contents) + sum(map(len, contents))
    return OVERHEAD + (sum(map(len, command.content)) if isinstance(command, AcceptMessage) else 0)
