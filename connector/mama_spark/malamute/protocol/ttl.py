"""Expiry of messages with a time to live: deadlines, renewals, and what has expired. Pure.

A message with the header ``Mama-Ttl: <ms>`` *runs*: when nothing newer came to its subject for so long, the engine
itself appends a *marker* there, an empty message with ``Mama-Marker: MaxAge``, numbered and delivered like any other. A
message without the header, or with ``Mama-Ttl: 0``, ends what ran. A *renewal* (``Mama-Renewal``, whatever its value)
is not stored: it begins the time anew and is answered DUPLICATE, with the sequence of what runs; where nothing runs it
is REFUSED. Time is the broker's, and after its restart everything that runs begins anew.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

TTL = b"Mama-Ttl"
RENEWAL = b"Mama-Renewal"
MARKER = b"Mama-Marker"
EXPIRED = b"MaxAge"  #: value of :data:`MARKER`

#: Octets that a message with a time to live may have: it is kept although retention would remove it.
MOST_OCTETS = 1024 * 1024
#: Seconds after which a marker that could not be stored is tried again.
RETRY = 1.0
_LONGEST = 10**12  # ms; thirty years


class TtlDirective(Enum):
    """What a message wants that is no number of milliseconds."""

    RENEW = "renew"
    BAD = "bad"  #: a header that only the engine may write, or that cannot be read


def ttl_directive_of(headers: Iterable[tuple[bytes, bytes]]) -> int | TtlDirective | None:
    """Milliseconds to live (0 = it ends what ran), or :class:`TtlDirective`; None for a message with none of these
    headers."""
    found: int | TtlDirective | None = None
    for name, value in headers:
        if name == MARKER:
            return TtlDirective.BAD
        if name == RENEWAL:
            found = TtlDirective.RENEW
        elif name == TTL and found is None:
            short = value.isdigit() and len(value) <= len(str(_LONGEST))
            found = int(value) if short and int(value) <= _LONGEST else TtlDirective.BAD
    return found


@dataclass(slots=True)
class _Running:
    """:ivar due: when it expires
    :ivar planned: when the heap looks at it, not later than that
    """

    sequence: int
    ttl: float
    due: float
    planned: float


class ExpiryQueue:
    """Subjects with a message whose time to live runs, by the time at which it ends (a heap).

    Times are seconds of one monotonic clock.
    """

    def __init__(self) -> None:
        self._running: dict[bytes, _Running] = {}
        self._heap: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, subject: bytes) -> bool:
        return subject in self._running

    def start(self, subject: bytes, sequence: int, ttl: float, now: float) -> None:
        """The time of this message begins now; it replaces an earlier message of the subject."""
        due, before = now + ttl, self._running.get(subject)
        planned = due if before is None else min(due, before.planned)
        self._running[subject] = _Running(sequence, ttl, due, planned)
        if before is None or planned < before.planned:
            self._plan(planned, subject)

    def renew(self, subject: bytes, now: float) -> int | None:
        """The time of the subject's message begins again. Returns its sequence; None: the subject has none."""
        one = self._running.get(subject)
        if one is None:
            return None
        one.due = now + one.ttl
        return one.sequence

    def sequence(self, subject: bytes) -> int | None:
        """Sequence of the subject's message; None: it has none."""
        one = self._running.get(subject)
        return None if one is None else one.sequence

    def end(self, subject: bytes) -> None:
        """The subject has no message any more."""
        self._running.pop(subject, None)

    def expired(self, now: float) -> list[bytes]:
        """Subjects whose time is over, in the order in which it ended, so that markers are stored in that order.
        A subject is returned again after :data:`RETRY` until :meth:`end` is called for it."""
        found: list[tuple[float, bytes]] = []
        while self._heap and self._heap[0][0] <= now:
            planned, subject = heapq.heappop(self._heap)
            one = self._running.get(subject)
            if one is None or one.planned != planned:
                continue  # an entry of an earlier message
            over = one.due <= now
            if over:
                found.append((one.due, subject))
            one.planned = now + RETRY if over else one.due
            self._plan(one.planned, subject)
        return [subject for _, subject in sorted(found)]

    @property
    def next(self) -> float | None:
        """Time at which :meth:`expired` may return something."""
        return self._heap[0][0] if self._heap else None

    def _plan(self, at: float, subject: bytes) -> None:
        heapq.heappush(self._heap, (at, subject))
        if len(self._heap) > 2 * len(self._running) + 1024:
            self._heap = [(one.planned, subject) for subject, one in self._running.items()]
            heapq.heapify(self._heap)


class TtlTracker:
    """Times to live of stored messages, and of those of the batch that is being stored.

    :param most: limit of subjects with a running time to live
    :param tick: monotonic clock, seconds
    """

    def __init__(self, most: int, tick: Callable[[], float]) -> None:
        self.tick = tick
        self._most = most
        self._index = ExpiryQueue()
        self._unstored: dict[int, int] = {}  # messages not stored yet: sequence -> milliseconds

    def __bool__(self) -> bool:
        return bool(self._unstored or len(self._index))

    def load(self, running: Iterable[tuple[bytes, int, int]]) -> None:
        """Take over stored messages: subject, sequence and milliseconds. Their time begins now."""
        now = self.tick()
        for subject, sequence, ttl in running:
            self._index.start(subject, sequence, ttl / 1000, now)

    def note(self, sequence: int, subject: bytes, ttl: int, octets: int) -> bool:
        """Add a message that will be stored. False: refused, because it is too large or there are too many."""
        if ttl:
            full = len(self._index) + len(self._unstored) >= self._most
            if octets > MOST_OCTETS or (full and subject not in self._index):
                return False
        self._unstored[sequence] = ttl
        return True

    def renew(self, subject: bytes) -> int | None:
        """See :meth:`ExpiryQueue.renew`."""
        return self._index.renew(subject, self.tick())

    def repeated(self, subject: bytes, sequence: int) -> None:
        """A stored message was sent again: if its time runs, it begins again."""
        if self._index.sequence(subject) == sequence:
            self.renew(subject)

    def changes(self, batch: Iterable[tuple[int, bytes]]) -> dict[bytes, tuple[int, int]]:
        """Changes that a batch (sequences and subjects) makes: subject -> sequence of its message, and milliseconds of
        its time to live (0 = none any more)."""
        found: dict[bytes, tuple[int, int]] = {}
        if self:
            for sequence, subject in batch:
                ttl = self._unstored.get(sequence)
                if ttl is not None:
                    found[subject] = sequence, ttl
                elif subject in found or subject in self._index:
                    found[subject] = sequence, 0
        return found

    def settle(self, changes: Mapping[bytes, tuple[int, int]]) -> None:
        """The batch was stored (``changes``), or refused (no changes)."""
        self._unstored.clear()
        now = self.tick()
        for subject, (sequence, ttl) in changes.items():
            if ttl:
                self._index.start(subject, sequence, ttl / 1000, now)
            else:
                self._index.end(subject)

    def expired(self) -> list[bytes]:
        """See :meth:`ExpiryQueue.expired`."""
        return self._index.expired(self.tick()) if len(self._index) else []

    @property
    def seconds_to_next_expiry(self) -> float | None:
        """Seconds until :meth:`expired` may return something; None: no time runs."""
        due = self._index.next
        return None if due is None else max(0.001, due - self.tick())
