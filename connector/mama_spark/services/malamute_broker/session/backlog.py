"""What waits for one engine, and what the broker does about an engine that is behind. Pure.

All clients come through one ROUTER socket, so that only all of them can be held by not reading. That is right for an
engine that goes on: TCP then holds its senders, nothing is lost, and a round that is read still has something of
everybody. It is wrong for one that stands still, so an engine is waited for only as long as it keeps a pace; what is
sent to one that does not waits for it, up to a limit in octets, and beyond that :class:`BacklogPolicy` says what
happens.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import StrEnum

from ..engines.commands import AcceptBlock, AcceptMessage, EngineCommand

#: Batches that an engine may be behind before reading stops for it.
BEHIND = 64
#: Batches from which on octets are counted; what waits in fewer is bounded by what one round reads.
COUNTED = 8
#: Seconds a batch that an engine may take, and still be waited for.
PACE = 0.05
#: Octets of memory that a command, or a message that waits, takes beyond those of its frames, about.
OVERHEAD = 256


class BacklogPolicy(StrEnum):
    """What is done with messages to a stream whose engine does not keep up, once its backlog is full."""

    DROP_NEWEST = "drop-newest"  #: they are lost; a client that is told what becomes of its messages is disconnected
    DISCONNECT = "disconnect"  #: they are lost, and so is the client that sent them
    HOLD = "hold"  #: nothing is lost: nobody is read before the engine has gone on, however long that takes


class Backlog:
    """Batches that one engine has not begun.

    :param limit: octets from which on the backlog is full, until it is half of that
    """

    __slots__ = ("limit", "octets", "full", "_sizes", "_since", "_pace")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.octets = 0
        self.full = False
        self._sizes: deque[int] = deque()
        self._since = 0.0  # the engine last began one
        self._pace = 0.0  # seconds a batch

    def __repr__(self) -> str:
        return f"<Backlog {len(self._sizes)} batches, {self.octets} octets{', full' if self.full else ''}>"

    def __len__(self) -> int:
        return len(self._sizes)

    def posted(self, batch: Sequence[EngineCommand], now: float) -> None:
        if not self._sizes:
            self._since = now
        size = sum(map(_octets, batch)) if len(self._sizes) >= COUNTED else 0
        self._sizes.append(size)
        self.octets += size
        self.full = self.full or self.octets > self.limit

    def look(self, waiting: int, now: float) -> None:
        """The engine has not begun ``waiting`` batches."""
        begun = len(self._sizes) - waiting
        if begun <= 0:
            return
        self._pace += ((now - self._since) / begun - self._pace) * min(1.0, begun / 8)
        self._since = now
        for _ in range(begun):
            self.octets -= self._sizes.popleft()
        self.full = self.full and self.octets > self.limit // 2

    def keeps_pace(self, now: float) -> bool:
        """Is it worth while to wait for this engine?"""
        return self._pace <= PACE and now - self._since <= PACE


def _octets(command: EngineCommand) -> int:
    if isinstance(command, AcceptBlock):
        contents = command.block.contents
        return OVERHEAD * len(contents) + sum(map(len, contents))
    return OVERHEAD + (sum(map(len, command.content)) if isinstance(command, AcceptMessage) else 0)
