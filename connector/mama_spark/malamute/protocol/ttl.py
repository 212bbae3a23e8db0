"""Expiry of messages with a time to live (TTL): deadlines, renewals and expired subjects. Pure.

A message with the header ``Mama-Ttl: <ms>`` becomes the *running* message of its subject, and starts its timer. If the
subject receives nothing newer in that time, the engine appends a *marker* to it: an empty message with
``Mama-Marker: MaxAge``, numbered and delivered like any other. A message without the header, or with ``Mama-Ttl: 0``,
stops the timer. A *renewal* (``Mama-Renewal`` with any value) is not stored: it restarts the timer and is answered
DUPLICATE, with the sequence of the running message; without a running timer it is REFUSED. Timers use the broker's
clock; a restart of the broker restarts them.

A message with ``Mama-Expected-Sequence: <n>`` is stored only if the running message of its subject has this sequence
(0: no timer runs there): compare-and-set. Otherwise it is answered DUPLICATE, with the sequence of the running
message. Without ``Mama-Ttl``, or as a renewal, it is REFUSED; so is a ``Mama-Marker`` of a client.

The running message of a subject survives retention. Beyond ``max_running`` subjects of a stream, messages with a
TTL are REFUSED; so is one of more than 1 MiB.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

TTL = b"Mama-Ttl"
RENEWAL = b"Mama-Renewal"
MARKER = b"Mama-Marker"
EXPECTED = b"Mama-Expected-Sequence"
EXPIRED = b"MaxAge"
HEADERS = frozenset((TTL, RENEWAL, MARKER))  #: that concern a time to live

#: Most bytes of a message with a TTL: such messages are exempt from retention.
MOST_BYTES = 1024 * 1024
#: Seconds after which storing a marker is retried.
RETRY = 1.0
_LONGEST = 10**12  # ms; thirty years
_MOST_SEQUENCE = 10**19 - 1


class TtlRequest(NamedTuple):
    """The time to live that the headers of a message ask for: 0 = stop the timer, None = no such header; ``expected``:
    sequence of the message that must run, None = any, or none."""

    milliseconds: int | None = None
    renews: bool = False
    expected: int | None = None


def ttl_request_of(headers: Iterable[tuple[bytes, bytes]]) -> TtlRequest | None:
    """The request; None: REFUSED, for a header of the engine's, an invalid value, or an expectation without a time
    to live."""
    first: dict[bytes, bytes] = {}
    for name, value in headers:
        first.setdefault(name, value)
    renews, expects = RENEWAL in first, EXPECTED in first
    milliseconds = None if renews or TTL not in first else _number(first[TTL], _LONGEST)
    expected = _number(first[EXPECTED], _MOST_SEQUENCE) if expects else None
    wrong = (TTL in first and not renews and milliseconds is None) or (
        expects and (expected is None or milliseconds is None)
    )
    return None if MARKER in first or wrong else TtlRequest(milliseconds, renews, expected)


def _number(value: bytes, most: int) -> int | None:
    good = value.isdigit() and len(value) <= len(str(most)) and int(value) <= most
    return int(value) if good else None


@dataclass(slots=True)
class _Running:
    """A running timer: it expires at ``due``; ``planned`` is the time of its heap entry, at most ``due``."""

    sequence: int
    ttl: float
    due: float
    planned: float


class ExpiryQueue:
    """Subjects with a running timer, by time of expiry (a heap); ``tick`` is a monotonic clock in seconds."""

    def __init__(self, tick: Callable[[], float]) -> None:
        self.tick = tick
        self._running: dict[bytes, _Running] = {}
        self._heap: list[tuple[float, bytes]] = []

    def __len__(self) -> int:
        return len(self._running)

    def __contains__(self, subject: bytes) -> bool:
        return subject in self._running

    def start(self, subject: bytes, sequence: int, ttl: float) -> None:
        """Start the timer of a message, which replaces an earlier one of the subject."""
        due, before = self.tick() + ttl, self._running.get(subject)
        planned = due if before is None else min(due, before.planned)
        self._running[subject] = _Running(sequence, ttl, due, planned)
        if before is None or planned < before.planned:
            self._plan(planned, subject)

    def renew(self, subject: bytes) -> int | None:
        """Restart the timer of the subject. Returns the sequence of its message; None if it has no timer."""
        one = self._running.get(subject)
        if one is None:
            return None
        one.due = self.tick() + one.ttl
        return one.sequence

    def sequence(self, subject: bytes) -> int:
        """Sequence of the subject's message; 0 if it has no timer."""
        one = self._running.get(subject)
        return 0 if one is None else one.sequence

    def end(self, subject: bytes) -> None:
        self._running.pop(subject, None)

    def expired(self) -> list[bytes]:
        """Expired subjects in order of expiry, which is the order of their markers. A subject is returned again after
        :data:`RETRY` until :meth:`end` is called for it."""
        found: list[tuple[float, bytes]] = []
        now = self.tick() if self._heap else 0.0
        while self._heap and self._heap[0][0] <= now:
            planned, subject = heapq.heappop(self._heap)
            one = self._running.get(subject)
            if one is None or one.planned != planned:
                continue
            over = one.due <= now
            if over:
                found.append((one.due, subject))
            one.planned = now + RETRY if over else one.due
            self._plan(one.planned, subject)
        return [subject for _, subject in sorted(found)]

    @property
    def next(self) -> float | None:
        """Earliest time at which :meth:`expired` may return a subject."""
        return self._heap[0][0] if self._heap else None

    def _plan(self, at: float, subject: bytes) -> None:
        heapq.heappush(self._heap, (at, subject))
        if len(self._heap) > 2 * len(self._running) + 1024:
            self._heap = [(one.planned, subject) for subject, one in self._running.items()]
            heapq.heapify(self._heap)


class TtlTracker(ExpiryQueue):
    """TTLs of stored messages, and of the batch that is being stored; at most ``most`` subjects have running timers."""

    def __init__(self, most: int, tick: Callable[[], float]) -> None:
        super().__init__(tick)
        self._most = most
        self._unstored: dict[int, int] = {}  # messages not stored yet: sequence -> milliseconds

    def __bool__(self) -> bool:
        return bool(self._unstored or len(self))

    def load(self, running: Iterable[tuple[bytes, int, int]]) -> None:
        """The timers of stored messages start now: subject, sequence and milliseconds."""
        for subject, sequence, ttl in running:
            self.start(subject, sequence, ttl / 1000)

    def note(self, sequence: int, subject: bytes, ttl: int, message_bytes: int) -> bool:
        """Add a message that will be stored. False: refused, because it or the number of timers is too large."""
        if ttl:
            full = len(self) + len(self._unstored) >= self._most
            if message_bytes > MOST_BYTES or (full and subject not in self):
                return False
        self._unstored[sequence] = ttl
        return True

    def repeated(self, subject: bytes, sequence: int) -> None:
        """Restart the timer, if it runs, of a stored message that was sent again."""
        if self.sequence(subject) == sequence:
            self.renew(subject)

    def changes(self, batch: Iterable[tuple[int, bytes]]) -> dict[bytes, tuple[int, int]]:
        """Changes of a batch (sequences and subjects): subject -> sequence of its message and TTL in milliseconds
        (0 = stop the timer)."""
        found: dict[bytes, tuple[int, int]] = {}
        if self:
            for sequence, subject in batch:
                ttl = self._unstored.get(sequence)
                if ttl is not None:
                    found[subject] = sequence, ttl
                elif subject in found or subject in self:
                    found[subject] = sequence, 0
        return found

    def settle(self, changes: Mapping[bytes, tuple[int, int]]) -> None:
        """Apply the changes of a stored batch; no changes if it was refused."""
        self._unstored.clear()
        for subject, (sequence, ttl) in changes.items():
            if ttl:
                self.start(subject, sequence, ttl / 1000)
            else:
                self.end(subject)

    @property
    def seconds_to_next_expiry(self) -> float | None:
        """Seconds until :meth:`expired` may return a subject; None without a running timer."""
        due = self.next
        return None if due is None else max(0.001, due - self.tick())
