"""The broker inside the process, shared by all connections to its name: its log, its script of faults, and requests."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Self
from uuid import uuid4

from mama_spark.contracts.bridge import RequestMessage
from mama_spark.contracts.errors import (
    BadTopic,
    ConfigError,
    DuplicateInFlight,
    NoResponders,
    PermissionDenied,
    PublishError,
    RateLimited,
    Rejected,
    Unavailable,
)
from mama_spark.contracts.topics import why_unpublishable

Headers = dict[str, list[str]]

ERRORS: dict[str, PublishError] = {
    "503": NoResponders("no responders", 503),
    "429": RateLimited("too many requests", 429),
    "409": DuplicateInFlight("message id is in process", 10158),
    "reject": Rejected("refused by the script", 400),
}
FAULTS = frozenset({"ack", "lose", "drop", "late", "dup", "unknown", "disconnect", "kill", "full", *ERRORS})
#: Bytes.
MOST_TOPIC = 1024
#: Acknowledges: tokens, their sequences, and which are duplicates.
Answer = Callable[[list[int], list[int], list[bool]], None]


@dataclass(frozen=True, slots=True)
class MemoryMessage:
    sequence: int
    topic: str
    payload: bytes
    headers: Headers
    id: str | None
    time: int = 0  #: microseconds since the epoch; never falls


class OfOneName:
    """Base of objects of which a process has one for each class and name."""

    _all: ClassVar[dict[tuple[type, str], Any]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str) -> None:
        self.name = name

    @classmethod
    def get(cls, name: str) -> Self:
        with cls._guard:
            made: Self = cls._all.setdefault((cls, name), cls(name))
            return made

    @classmethod
    def forget(cls, name: str) -> None:
        with cls._guard:
            cls._all.pop((cls, name), None)


class MemoryBroker(OfOneName):
    """The server of one name. Thread-safe."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.capacity: int | None = None  #: messages; more are rejected
        self.up = True  #: False: connecting and sending fail
        self.script: deque[str] = deque()
        self.denied: set[str] = set()  #: topics without permission to publish
        self.identity = uuid4().hex  #: differs for a later broker of the same name
        self.deleted: set[int] = set()  #: sequences of messages that were deleted
        self.progress: dict[str, int] = {}  #: last sequence reported by each reader, by its name
        self._log: list[MemoryMessage] = []
        self._ids: dict[str, int] = {}
        self._late: list[tuple[Answer, int, int, bool]] = []
        self._listeners: dict[str, list[MemoryRequests]] = {}
        self._requesters: dict[int, MemoryRequests] = {}  # by the number in the reply address
        self._lock = threading.RLock()

    def then(self, faults: Iterable[str]) -> None:
        """Append to the script.

        :raises ConfigError: on a word that is no fault
        """
        words = list(faults)
        if unknown := set(words) - FAULTS:
            raise ConfigError(f"no such fault: {sorted(unknown)}; there are {sorted(FAULTS)}")
        with self._lock:
            self.script.extend(words)

    def messages(self) -> list[MemoryMessage]:
        """The stored messages, in order of sequence."""
        with self._lock:
            return [m for m in self._log if m.sequence not in self.deleted]

    def last(self) -> int:
        """Sequence of the newest message, whether it was deleted or not."""
        with self._lock:
            return len(self._log)

    def delete(self, sequences: Iterable[int]) -> None:
        """Delete messages; their sequences stay unused."""
        with self._lock:
            self.deleted.update(s for s in sequences if 0 < s <= len(self._log))

    def restore(self, last: int) -> None:
        """Be as when ``last`` was the newest message, as a server that an older copy was restored in."""
        with self._lock:
            del self._log[last:]
            self._ids = {id_: sequence for id_, sequence in self._ids.items() if sequence <= last}

    def release(self) -> int:
        """Acknowledge the messages of the fault ``late``; returns their number."""
        with self._lock:
            late, self._late = self._late, []
        for answer, token, sequence, duplicate in late:
            answer([token], [sequence], [duplicate])
        return len(late)

    def _store(self, topic: str, payload: bytes, headers: Headers, id_: str | None) -> tuple[int, bool] | None:
        """Sequence of the stored message and whether it is a duplicate; None: the log is full."""
        if id_ and id_ in self._ids:
            return self._ids[id_], True
        if self.capacity is not None and len(self._log) - len(self.deleted) >= self.capacity:
            return None
        sequence = len(self._log) + 1
        # Time of day: stamps messages; never falls.
        now = max(time.time_ns() // 1000, self._log[-1].time if self._log else 0)
        self._log.append(MemoryMessage(sequence, topic, payload, headers, id_, now))
        if id_:
            self._ids[id_] = sequence
        return sequence, False


class MemoryRequests:
    """Requests and replies of one connection; every listener of a topic gets a copy."""

    def __init__(self, broker: MemoryBroker, is_open: Callable[[], bool]) -> None:
        self._broker, self._is_open = broker, is_open
        self._received: deque[RequestMessage] = deque()
        self._inboxes: dict[int, str] = {}  # inbox -> topic

    def request(self, topic: str, payload: bytes, inbox: int) -> None:
        self._check(topic)
        self._inboxes[inbox] = topic
        with self._broker._lock:
            listeners = list(self._broker._listeners.get(topic, ()))
        if topic in self._broker.denied:
            self._received.append(
                RequestMessage(topic, b"", inbox, None, PermissionDenied(f"no permission to publish to {topic!r}"))
            )
        elif not listeners:
            self._received.append(
                RequestMessage(topic, b"", inbox, None, NoResponders(f"no listener for requests to {topic!r}", 503))
            )
        for other in listeners:
            other._received.append(RequestMessage(topic, payload, None, f"{id(self)}.{inbox}"))
            self._broker._requesters[id(self)] = self

    def forget(self, inbox: int) -> None:
        self._inboxes.pop(inbox, None)

    def reply(self, to: str, payload: bytes) -> None:
        self._check(None)
        requester, _, inbox = to.partition(".")
        other = self._broker._requesters.get(int(requester))
        if other is not None and (topic := other._inboxes.get(int(inbox))) is not None:
            other._received.append(RequestMessage(topic, payload, int(inbox)))

    def listen(self, topic: str) -> None:
        self._check(topic)
        with self._broker._lock:
            self._broker._listeners.setdefault(topic, []).append(self)

    def unlisten(self, topic: str) -> None:
        with self._broker._lock, contextlib.suppress(KeyError, ValueError):
            self._broker._listeners[topic].remove(self)

    def received(self) -> list[RequestMessage]:
        return [self._received.popleft() for _ in range(len(self._received))]

    def close(self) -> None:
        with self._broker._lock:
            self._broker._requesters.pop(id(self), None)
            for listeners in self._broker._listeners.values():
                if self in listeners:
                    listeners.remove(self)

    def _check(self, topic: str | None) -> None:
        if not self._is_open() or not self._broker.up:
            raise Unavailable(f"memory://{self._broker.name} is not connected")
        if topic is not None and (fault := topic_fault(topic)):
            raise BadTopic(fault)


def topic_fault(topic: str) -> str | None:
    """Why a topic cannot be published to here; None: it can."""
    fault = why_unpublishable(topic)
    if fault is None and len(topic.encode()) > MOST_TOPIC:
        return f"topic of {len(topic.encode())} bytes, the most is {MOST_TOPIC}"
    return fault
