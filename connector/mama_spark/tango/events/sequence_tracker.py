"""The one place that compares event counters: consecutive events, gaps, duplicates, server restarts (TG-46). Pure.

A Tango server counts the events of each attribute and event type in one u32, from 1, shared by all subscribers. The
counter wraps at 2^32, and starts again when the server does. A loss after the newest event cannot be detected.

========================= ============================================== ====================================
counter                   condition                                      result
========================= ============================================== ====================================
any                       first event of this topic                      deliver
any                       the server is known to have restarted          restart, then deliver
equal to the last one     it is 0                                        deliver: this server does not count
equal to the last one     frames 3 and 4 equal those of the last event   duplicate: drop
equal to the last one     they differ                                    deliver
the last one + 1          2^32 - 1 is followed by 0                      deliver
greater                                                                  gap, then deliver
smaller                                                                  restart, then deliver
========================= ============================================== ====================================

Servers send the first event after a new subscription twice, to all subscribers. :func:`is_counted_type` and
:func:`is_counted` decide which counters can be compared.
"""

from __future__ import annotations

from typing import NamedTuple

import xxhash

from ..types import EventType

WRAP = 2**32
#: Data of at most so many octets is kept to recognise a duplicate; of longer data only a hash.
_MAX_KEPT = 4096


class SequenceGap(NamedTuple):
    """The events with the counters ``first`` to ``last``, both inclusive, were lost."""

    first: int
    last: int

    @property
    def size(self) -> int:
        """Number of lost events."""
        return self.last - self.first + 1


class SequenceRestart(NamedTuple):
    """The counter started again: ``first`` followed ``last``. The number of lost events is unknown."""

    last: int
    first: int


class SequenceResult(NamedTuple):
    """What a subscriber does with an event.

    :ivar deliver: False: the event is a duplicate of the last one
    :ivar marker: to be delivered before the event
    """

    deliver: bool
    marker: SequenceGap | SequenceRestart | None = None


DELIVER, DUPLICATE = SequenceResult(True), SequenceResult(False)


def is_counted_type(event: EventType | None) -> bool:
    """Does the server count the events of this type? Of ``data_ready`` the device's own code does, in some servers."""
    return event is not EventType.DATA_READY


#: How the topics of events end that the server does not count.
UNCOUNTED_TOPIC_ENDS = tuple(f".{event.wire_name}".encode() for event in EventType if not is_counted_type(event))


def is_counted(ctr: int) -> bool:
    """Is this a counter? Some servers without a database always send 0; in a log, 0 stands for an unknown counter."""
    return ctr != 0


def next_counter(ctr: int) -> int:
    """The counter that a server gives to the event after this one."""
    return (ctr + 1) % WRAP


def discontinuity(last: int, ctr: int) -> SequenceGap | SequenceRestart | None:
    """The gap or restart between two events of one topic; None: they are consecutive."""
    if ctr == next_counter(last):
        return None
    return SequenceGap(last + 1, ctr - 1) if ctr > last else SequenceRestart(last, ctr)


class SequenceTracker:
    """Remembers the last event of each topic. A topic is any hashable key of one stream of events."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        self._last: dict[object, tuple[int, bytes, bytes]] = {}

    def __len__(self) -> int:
        return len(self._last)

    def __repr__(self) -> str:
        return f"<SequenceTracker of {len(self._last)} topics>"

    def track(self, topic: object, ctr: int, call: bytes, data: bytes) -> SequenceResult:
        """Compare an event with the last one of its topic, and remember it.

        :param call: the third frame
        :param data: the fourth frame
        """
        kept = data if len(data) <= _MAX_KEPT else xxhash.xxh3_128_digest(data)
        before = self._last.get(topic)
        self._last[topic] = (ctr, call, kept)
        if before is None:
            return DELIVER
        last = before[0]
        if ctr == last + 1 and ctr:  # nearly always; spares a call
            return DELIVER
        if last < 0:
            return SequenceResult(True, SequenceRestart(-1 - last, ctr))
        if ctr == last:
            return DUPLICATE if is_counted(ctr) and before[1] == call and before[2] == kept else DELIVER
        marker = discontinuity(last, ctr)
        return DELIVER if marker is None else SequenceResult(True, marker)

    def mark_restarted(self, topic: object) -> None:
        """The server restarted: the next event of this topic follows a restart, whatever its counter."""
        before = self._last.get(topic)
        if before is not None and before[0] >= 0:
            self._last[topic] = (-1 - before[0], b"", b"")  # negative: restarted after this counter

    def forget(self, topic: object) -> None:
        """Treat the next event of this topic as its first one."""
        self._last.pop(topic, None)
