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

import threading
import time

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
    ValidationResult,
)
from mama_spark.contracts.errors import PermissionDenied, PublishError, Rejected, TooLarge, Unavailable
from mama_spark.contracts.headers import HeaderLines, reject_lines
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.topics import bad_topics

from .broker import ERRORS, MOST_TOPIC, MemoryBroker, MemoryRequests, topic_fault


class MemoryBridge(PublisherBridge):
    """One connection to a :class:`MemoryBroker`.

    :param max_payload: bytes of headers and payload together
    :param acks: False: nothing is acknowledged (``ackMode=none``)
    :param events: OpenMAMA's style of callbacks that reports asynchronous errors
    """

    def __init__(
        self, name: str, *, max_payload: int = 1 << 20, acks: bool = True, events: EventStyle = EventStyle.PUBLISHER
    ) -> None:
        self.broker = MemoryBroker.get(name)
        self._capabilities = Capabilities(
            ack=Ack.STORED if acks else Ack.NONE, sequence=acks, dedup=True, headers=True, ordered=False,
            max_payload=max_payload, max_topic=MOST_TOPIC, events=events,
        )  # fmt: skip
        self._arrived = threading.Condition()
        self._polled = PollResult()
        self._answer_count = 0
        self._open = False
        self._requests = MemoryRequests(self.broker, lambda: self._open)

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    def open(self) -> None:
        if not self.broker.up:
            raise Unavailable(f"memory://{self.broker.name} is down")
        self._open = True

    def prepare(self, batch: MessageBatch) -> ValidationResult:
        bad = bad_topics(batch.topics, topic_fault)
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
                    self._refuse(token, ERRORS[fault])
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
                    self._refuse(token, ERRORS[fault])
                elif fault == "late":
                    self.broker._late.append((self._answer, token, *stored))
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


def _header_size(pairs: list[tuple[str, list[str] | None]]) -> int:
    return sum(len(name) + len((v or "").encode()) + 4 for name, values in pairs for v in values or ())
