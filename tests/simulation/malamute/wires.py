"""Connections of clients to a broker: messages come in order, late, or never; none comes twice."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from ..kernel import Host, Scheduler

Frames = Sequence[bytes]


class Lane:
    """One direction of a connection.

    :ivar under_way: messages that have not come
    :ivar held: nothing comes until it is released
    :ivar cut: nothing comes any more
    """

    def __init__(self, scheduler: Scheduler, to: Host, come: Callable[[Frames], None]) -> None:
        self._scheduler, self._to, self._life, self._come = scheduler, to, to.life, come
        self._free = 0.0
        self.under_way: deque[Frames] = deque()
        self.held = self.cut = False

    def send(self, frames: Frames) -> None:
        if not self.cut:
            self.under_way.append(frames)
            self._later()

    def release(self) -> None:
        """What was held comes."""
        self.held = False
        for _ in self.under_way:
            self._later()

    def _later(self) -> None:
        scheduler = self._scheduler
        self._free = max(self._free, scheduler.now + scheduler.random.uniform(0.0001, 0.005))
        scheduler.call_at(self._free, self._next, self._to)

    def _next(self) -> None:
        if self.under_way and not self.held and not self.cut and self._to.life == self._life:
            self._come(self.under_way.popleft())


class Wire:
    """A connection of one client.

    :param identity: by which the broker knows it
    :ivar most: messages to the client that may be under way before its socket takes no more
    """

    def __init__(self, identity: bytes, up: Lane, down: Lane, most: int, lost: Callable[[Wire], None]) -> None:
        self.identity, self.up, self.down, self.most, self._lost = identity, up, down, most, lost

    def cut(self, *, seen: bool) -> None:
        """Nothing comes any more.

        :param seen: the client sees that it is so
        """
        if not self.up.cut:
            self.up.cut = self.down.cut = True
            if seen:
                self._lost(self)

    def hold(self) -> None:
        self.up.held = self.down.held = True

    def release(self) -> None:
        self.up.release()
        self.down.release()
