"""The one place that compares event counters: consecutive events, gaps, duplicates, server restarts (TG-46). Pure.

A Tango server counts the events of each attribute and event type in one u32, from 1, shared by all subscribers. The
counter wraps at 2^32, and starts again when the server does. A loss after the newest event cannot be seen here; what
else tells of it says so by :meth:`SequenceTracker.lose`.

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
_MAX_KEPT = 4096  #: bytes
_HASH_SIZE = 16


class SequenceGap(NamedTuple):
    """The events with the counters ``first`` to ``last``, both inclusive, were lost."""

    first: int
    last: int

    @property
    def size(self) -> int:
        return self.last - self.first + 1


class SequenceRestart(NamedTuple):
    """The counter started again: ``first`` followed ``last``. The number of lost events is unknown."""

    last: int
    first: int


class SequenceResult(NamedTuple):
    """Whether a subscriber delivers an event (else it is a duplicate of the last one), and the marker to deliver before
    it."""

    deliver: bool
    marker: SequenceGap | SequenceRestart | None = None


DELIVER, DUPLICATE = SequenceResult(True), SequenceResult(False)


def is_counted_type(event: EventType | None) -> bool:
    """Whether the server counts the events of this type; of ``data_ready`` the device's own code does, in some."""
    return event is not EventType.DATA_READY


#: How the topics of events end that the server does not count.
UNCOUNTED_TOPIC_ENDS = tuple(f".{event.wire_name}".encode() for event in EventType if not is_counted_type(event))


def is_counted(ctr: int) -> bool:
    """Whether this is a counter, not 0: some servers without a database always send 0; in a log, it means unknown."""
    return ctr != 0


def next_counter(ctr: int) -> int:
    return (ctr + 1) % WRAP


def discontinuity(last: int, ctr: int) -> SequenceGap | SequenceRestart | None:
    """The gap or restart between two events of one topic; None: they are consecutive."""
    if ctr == next_counter(last):
        return None
    return SequenceGap(last + 1, ctr - 1) if ctr > last else SequenceRestart(last, ctr)


def is_kept(data: bytes) -> bool:
    """Whether a value is short enough to be kept, to be compared with others; of a longer one only a hash is."""
    return len(data) <= _MAX_KEPT


class SequenceTracker:
    """Remembers the last event of each topic. A topic is any hashable key of one stream of events."""

    __slots__ = ("_last", "_lost")

    def __init__(self) -> None:
        self._last: dict[object, tuple[int, bytes, bytes]] = {}
        self._lost: dict[object, int] = {}  #: topic -> last counter after the newest event that is known to be lost

    def track(self, topic: object, ctr: int, call: bytes, data: bytes) -> SequenceResult:
        """Compare an event with the last one of its topic, and remember it: third frame ``call``, fourth ``data``."""
        kept = data if is_kept(data) else xxhash.xxh3_128_digest(data)
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
        if isinstance(marker, SequenceGap):
            marker = self._without_known(topic, marker)
        return DELIVER if marker is None else SequenceResult(True, marker)

    def _without_known(self, topic: object, gap: SequenceGap) -> SequenceGap | None:
        """The part of a gap that :meth:`lose` has not told of."""
        first = max(gap.first, self._lost.pop(topic, 0) + 1)
        return SequenceGap(first, gap.last) if first <= gap.last else None

    # --- what is known from elsewhere ---

    def newest(self, topic: object) -> object:
        """Stands for the newest event of a topic: the same object as long as none follows. None: there is none."""
        return self._last.get(topic)

    def newest_frames(self, topic: object) -> tuple[bytes, bytes] | None:
        """Third and fourth frame of the newest event; None: there is none, or it is too large to be kept."""
        found = self._last.get(topic)
        return None if found is None or not found[1] or len(found[2]) == _HASH_SIZE else found[1:]

    def begin(self, topic: object, ctr: int) -> None:
        """The server has counted to ``ctr`` before anything was received."""
        self._last.setdefault(topic, (ctr, b"", b""))

    def lose(self, topic: object, until: int) -> SequenceGap | None:
        """The server has sent the events up to the counter ``until``, and those after the newest one will not come;
        returns those that were not known yet. The next event shows no gap for them."""
        last = self._last[topic][0]
        if last < 0:
            return None  # it restarted, and the next event says so
        first = max(last, self._lost.get(topic, 0)) + 1
        if first > until:
            return None
        self._lost[topic] = until
        return SequenceGap(first, until)

    def mark_restarted(self, topic: object) -> None:
        """The server restarted: the next event of this topic follows a restart, whatever its counter."""
        before = self._last.get(topic)
        if before is not None and before[0] >= 0:
            self._last[topic] = (-1 - before[0], b"", b"")  # negative: restarted after this counter
            self._lost.pop(topic, None)

    def forget(self, topic: object) -> None:
        """Treat the next event of this topic as its first one."""
        self._last.pop(topic, None)
        self._lost.pop(topic, None)
