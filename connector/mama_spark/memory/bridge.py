"""The in-memory bridge: a broker inside the process, with faults by script. For tests, and for users without a broker.

``memory://name`` names a :class:`MemoryBroker`, shared by all bridges of this name in the process. It assigns
sequences, deduplicates by id, has a capacity, and handles each message by the next word of its script (``kill`` and
``disconnect`` affect the connection that sent it), or by ``ack`` when the script is empty::

    ack         stored, acknowledged
    dup         stored, acknowledged twice
    lose        stored, the answer is lost
    drop        neither stored nor answered
    late        stored, acknowledged at :meth:`MemoryBroker.release`
    503         not stored, answered "no responders"
    429         not stored, answered "too many requests"
    409         stored, but answered "message id is in process"
    reject      not stored, refused for good
    unknown     stored, acknowledged, and a second acknowledgement has an unknown token
    disconnect  not stored; the connection is lost and reconnected
    kill        not stored; the connection is closed for good
    full        not accepted: ``send`` returns before this message
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar
from uuid import uuid4

import numpy as np
import pyarrow.compute as pc

from mama_spark.contracts.bridge import (
    Ack,
    Acks,
    BridgeEvent,
    Capabilities,
    EventKind,
    EventStyle,
    PollResult,
    PublisherBridge,
    Refusals,
    RequestMessage,
    ValidationResult,
)
from mama_spark.contracts.errors import (
    BadTopic,
    ConfigError,
    DuplicateInFlight,
    NoResponders,
    PermissionDenied,
    PublishError,
    RateLimited,
    Rejected,
    TooLarge,
    Unavailable,
)
from mama_spark.contracts.headers import HeaderLines, reject_lines
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.topics import why_unpublishable

Headers = dict[str, list[str]]

_ERRORS: dict[str, PublishError] = {
    "503": NoResponders("no responders", 503),
    "429": RateLimited("too many requests", 429),
    "409": DuplicateInFlight("message id is in process", 10158),
    "reject": Rejected("refused by the script", 400),
}
FAULTS = frozenset({"ack", "lose", "drop", "late", "dup", "unknown", "disconnect", "kill", "full", *_ERRORS})


@dataclass(frozen=True, slots=True)
class MemoryMessage:
    """One record of a broker's log."""

    sequence: int
    topic: str
    payload: bytes
    headers: Headers
    id: str | None
    time: int = 0  #: microseconds since the epoch; never falls


class MemoryBroker:
    """The server of one name. Thread-safe."""

    _all: ClassVar[dict[str, MemoryBroker]] = {}
    _guard: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self, name: str) -> None:
        self.name = name
        self.capacity: int | None = None  #: messages; more are rejected
        self.up = True  #: False: connecting and sending fail
        self.script: deque[str] = deque()
        self.denied: set[str] = set()  #: topics without permission to publish
        self.identity = uuid4().hex  #: differs for a later broker of the same name
        self.deleted: set[int] = set()  #: sequences of messages that were deleted
        self.progress: dict[str, int] = {}  #: last sequence reported by each reader, by its name
        self._log: list[MemoryMessage] = []
        self._ids: dict[str, int] = {}
        self._late: list[tuple[MemoryBridge, int, int, bool]] = []
        self._listeners: dict[str, list[MemoryRequests]] = {}
        self._requesters: dict[int, MemoryRequests] = {}  # requesters by the number in the reply address
        self._lock = threading.RLock()

    @classmethod
    def get(cls, name: str) -> MemoryBroker:
        """The broker of this name, created if missing."""
        with cls._guard:
            return cls._all.setdefault(name, cls(name))

    @classmethod
    def forget(cls, name: str) -> None:
        """Drop the broker of this name and its messages."""
        with cls._guard:
            cls._all.pop(name, None)

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
        for bridge, token, sequence, duplicate in late:
            bridge._answer([token], [sequence], [duplicate])
        return len(late)

    def _store(self, topic: str, payload: bytes, headers: Headers, id_: str | None) -> tuple[int, bool] | None:
        """Store a message; (sequence, whether it is a duplicate), None when full."""
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

    def __repr__(self) -> str:
        return f"<MemoryBroker {self.name}, {len(self._log)} stored>"


class MemoryBridge(PublisherBridge):
    """One connection to a :class:`MemoryBroker`.

    :param name: of the broker (``memory://name``)
    :param max_payload: bytes of headers and payload together
    :param acks: False: nothing is acknowledged (``ackMode=none``)
    :param events: which of OpenMAMA's callback styles reports asynchronous errors
    """

    def __init__(
        self,
        name: str,
        *,
        max_payload: int = 1 << 20,
        max_topic: int = 1024,
        acks: bool = True,
        events: EventStyle = EventStyle.PUBLISHER,
    ) -> None:
        self.broker = MemoryBroker.get(name)
        self._capabilities = Capabilities(
            ack=Ack.STORED if acks else Ack.NONE, sequence=acks, dedup=True, headers=True, ordered=False,
            max_payload=max_payload, max_topic=max_topic, events=events,
        )  # fmt: skip
        self._arrived = threading.Condition()
        self._polled = PollResult()
        self._answer_count = 0
        self._open = False
        self._requests = MemoryRequests(self)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def open(self) -> None:
        if not self.broker.up:
            raise Unavailable(f"memory://{self.broker.name} is down")
        self._open = True

    def prepare(self, batch: MessageBatch) -> ValidationResult:
        bad: dict[int, PublishError] = {}
        faults = [None if t is None else _topic_fault(t, self.capabilities.max_topic) for t in
                    batch.topics.dictionary.to_pylist()]  # fmt: skip
        if any(v is None for v in faults) or batch.topics.null_count or any(faults):
            for row, code in enumerate(batch.topics.indices.to_pylist()):
                fault = "the topic is null" if code is None else faults[code]
                if fault:
                    bad[row] = BadTopic(fault)
        sizes = pc.fill_null(pc.binary_length(batch.payloads), 0).to_numpy().astype(np.int64)
        if batch.headers is not None:
            reject_lines(HeaderLines.of(batch.headers), bad)
            for row, pairs in enumerate(batch.headers.to_pylist()):
                sizes[row] += _header_size(pairs or [])
        for row in np.flatnonzero(sizes > self.capabilities.max_payload).tolist():
            bad.setdefault(row, TooLarge(f"{sizes[row]} bytes, the most is {self.capabilities.max_payload}"))
        return ValidationResult(sorted(bad.items()))

    def send(self, batch: MessageBatch, first_token: int) -> int:
        if not self._open or not self.broker.up:
            return 0
        topics, payloads = batch.topics.to_pylist(), batch.payloads.to_pylist()
        headers = [None] * len(batch) if batch.headers is None else batch.headers.to_pylist()
        ids = [None] * len(batch) if batch.ids is None else batch.ids.to_pylist()
        tokens: list[int] = []
        sequences: list[int] = []
        duplicates: list[bool] = []
        accepted = 0
        with self.broker._lock:
            script = self.broker.script
            for accepted in range(len(batch) + 1):
                if accepted == len(batch):
                    break
                fault = script.popleft() if script else "ack"
                if fault == "full":
                    break
                token = first_token + accepted
                if fault in ("disconnect", "kill"):
                    self._answer(tokens, sequences, duplicates)
                    self._drop_connection(fault == "kill")
                    return accepted + 1
                if fault == "drop":
                    continue
                if fault in ("503", "429", "reject"):
                    self._refuse(token, _ERRORS[fault])
                    continue
                if topics[accepted] in self.broker.denied:
                    self._refuse(token, PermissionDenied(f"no permission to publish to {topics[accepted]!r}"))
                    continue
                stored = self.broker._store(
                    topics[accepted],
                    payloads[accepted],
                    {k: list(v) for k, v in headers[accepted] or ()},
                    ids[accepted],
                )
                if stored is None:
                    self._refuse(token, Rejected("maximum messages exceeded", 10077))
                elif fault == "409":
                    self._refuse(token, _ERRORS[fault])
                elif fault == "late":
                    self.broker._late.append((self, token, *stored))
                elif fault != "lose":
                    answers = {"dup": [token, token], "unknown": [token, token + (1 << 60)]}.get(fault, [token])
                    tokens += answers
                    sequences += [stored[0]] * len(answers)
                    duplicates += [stored[1]] * len(answers)
        self._answer(tokens, sequences, duplicates)
        return accepted

    def flush(self) -> None:
        """Does nothing: each message is answered individually."""

    def poll(self, timeout: float, want: int = 1) -> PollResult:
        with self._arrived:
            self._arrived.wait_for(
                lambda: self._answer_count >= want or self._polled.refusals or self._polled.events, max(0.0, timeout)
            )
            polled, self._polled, self._answer_count = self._polled, PollResult(), 0
        return polled

    def requests(self) -> MemoryRequests:
        """Requests and replies over the same connection."""
        return self._requests

    def close(self) -> None:
        self._open = False
        self._requests.close()

    def _answer(self, tokens: list[int], sequences: list[int], duplicates: list[bool]) -> None:
        if not tokens or self.capabilities.ack is Ack.NONE:
            return
        acks = Acks(
            np.array(tokens, np.int64), np.array(sequences, np.int64), np.array(duplicates, np.bool_),
            self.broker.name, time.monotonic(),
        )  # fmt: skip
        with self._arrived:
            self._polled.acks.append(acks)
            self._answer_count += len(tokens)
            self._arrived.notify_all()

    def _refuse(self, token: int, error: PublishError) -> None:
        if self.capabilities.ack is Ack.NONE:
            return
        with self._arrived:
            self._polled.refusals.append(Refusals(np.array([token], np.int64), error, time.monotonic()))
            self._answer_count += 1
            self._arrived.notify_all()

    def _drop_connection(self, for_good: bool) -> None:
        now = time.monotonic()
        with self._arrived:
            self._polled.events.append(BridgeEvent(EventKind.DISCONNECTED, "the script cut the connection", now))
            if for_good:
                self._open = False
                self._polled.events.append(BridgeEvent(EventKind.CLOSED, "the script closed the connection", now))
            else:
                self._polled.events.append(BridgeEvent(EventKind.RECONNECTED, "connected again", now))
            self._arrived.notify_all()

    def __repr__(self) -> str:
        return f"<MemoryBridge memory://{self.broker.name} {'open' if self._open else 'closed'}>"


class MemoryRequests:
    """Requests and replies of one :class:`MemoryBridge`; every listener of a topic gets a copy."""

    def __init__(self, bridge: MemoryBridge) -> None:
        self._bridge = bridge
        self._broker = bridge.broker
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
        """Stop receiving requests and replies."""
        with self._broker._lock:
            self._broker._requesters.pop(id(self), None)
            for listeners in self._broker._listeners.values():
                if self in listeners:
                    listeners.remove(self)

    def _check(self, topic: str | None) -> None:
        if not self._bridge._open or not self._broker.up:
            raise Unavailable(f"memory://{self._broker.name} is not connected")
        if topic is not None and (fault := _topic_fault(topic, self._bridge.capabilities.max_topic)):
            raise BadTopic(fault)


def _topic_fault(topic: str, longest: int) -> str | None:
    fault = why_unpublishable(topic)
    if fault is None and len(topic.encode()) > longest:
        return f"topic of {len(topic.encode())} bytes, the most is {longest}"
    return fault


def _header_size(pairs: list[tuple[str, list[str] | None]]) -> int:
    return sum(len(name) + len((v or "").encode()) + 4 for name, values in pairs for v in values or ())
