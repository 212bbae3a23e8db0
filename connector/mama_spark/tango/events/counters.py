"""What the counters of events tell: nothing lost, a gap, a second copy, a restart (TG-46). Pure.

A server counts the events of each attribute and type, for all subscribers together, from 1 on; the counter wraps at
2^32, and begins anew when the server does. What it cannot tell is a loss behind the last event that came.

========================= ============================================== ====================================
counter                   and                                            is
========================= ============================================== ====================================
any                       the topic is new here                          a beginning: the event
any                       the server is known to have begun anew         a restart, and the event
the last one              it is 0                                        no counter: the event
the last one              frames 2 and 3 are those of the last event     a second copy: nothing
the last one              they are not                                   the event
the last one + 1          2^32 - 1 is followed by 0                      the event
greater                                                                  a gap, and the event
smaller                                                                  a restart, and the event
========================= ============================================== ====================================

Servers send the first event after a new client came twice, to all subscribers. Some servers without a database send 0
for ever, so equal zeros prove nothing. The counter of ``data_ready`` is the user's own in some servers: not for here.
"""

from __future__ import annotations

from typing import NamedTuple

import xxhash

WRAP = 2**32
#: what is kept of the data of the last event: the octets, or a hash of many
_KEPT = 4096


class SequenceGap(NamedTuple):
    """Events ``first`` to ``last``, both inclusive, did not come."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """How many."""
        return self.last - self.first + 1


class SequenceRestart(NamedTuple):
    """The counter began anew: after ``last`` came ``first``. How many events are missing, nobody knows."""

    last: int
    first: int


class SequenceResult(NamedTuple):
    """What to do with an event.

    :ivar deliver: False: it is the second copy of the last one
    :ivar marker: tell this first
    """

    deliver: bool
    marker: SequenceGap | SequenceRestart | None = None


DELIVER, COPY = SequenceResult(True), SequenceResult(False)


class SequenceTracker:
    """The last event of each topic. A topic is any hashable thing that tells one stream of events from others."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[object, tuple[int, bytes, bytes]] = {}

    def __len__(self) -> int:
        return len(self._last)

    def __repr__(self) -> str:
        return f"<SequenceTracker of {len(self._last)} topics>"

    def see(self, topic: object, ctr: int, call: bytes, data: bytes) -> SequenceResult:
        """An event came; ``call`` and ``data`` are its third and fourth frame."""
        kept = data if len(data) <= _KEPT else xxhash.xxh3_128_digest(data)
        before = self._last.get(topic)
        self._last[topic] = (ctr, call, kept)
        if before is None:
            return DELIVER
        last = before[0]
        if ctr == last + 1 and ctr:  # nearly always
            return DELIVER
        if last < 0:
            return SequenceResult(True, SequenceRestart(-1 - last, ctr))
        if ctr == last:
            return COPY if ctr and before[1] == call and before[2] == kept else DELIVER
        if ctr == 0 and last == WRAP - 1:
            return DELIVER
        if ctr > last:
            return SequenceResult(True, SequenceGap(last + 1, ctr - 1))
        return SequenceResult(True, SequenceRestart(last, ctr))

    def restarted(self, topic: object) -> None:
        """The server began anew: the next event is behind a restart, whatever its counter."""
        before = self._last.get(topic)
        if before is not None and before[0] >= 0:
            self._last[topic] = (-1 - before[0], b"", b"")

    def forget(self, topic: object) -> None:
        """The next event of this topic is a beginning."""
        self._last.pop(topic, None)
