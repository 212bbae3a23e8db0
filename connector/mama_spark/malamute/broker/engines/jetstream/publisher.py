"""Publishes the messages of a stream without waiting for each acknowledgement.

A driver of the send loop for the engine's thread, which calls :meth:`StreamPublisher.pump`. Every message has an id: if
its answer is lost, it is looked for when no copy of it can be stored any more, and then sent again. A lost connection
does not change the order of messages; a change of the leader may, because a server without a leader rejects one message
and accepts the next.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from mama_spark.contracts.bridge import PublisherBridge
from mama_spark.contracts.errors import ClientClosed, ExpectationFailed, PublishError, Unavailable
from mama_spark.contracts.headers import EXPECTED_LAST
from mama_spark.contracts.message import HEADERS_TYPE, MessageBatch
from mama_spark.malamute.protocol.credit import MESSAGE_OVERHEAD
from mama_spark.malamute.protocol.extensions import StoreOutcome
from mama_spark.malamute.protocol.ttl import ttl_request_of
from mama_spark.options.window_config import RetryPolicy, WindowConfig
from mama_spark.publishing.outage_reporter import WarningTimer
from mama_spark.publishing.window.flight import FlightState
from mama_spark.publishing.window.flight_batch import FlightBatch, StoredFlights, array_of
from mama_spark.publishing.window.send_loop import SendLoop, Span, spans_of
from mama_spark.publishing.window.stream_ends import StreamEnds
from mama_spark.publishing.window.window import Window

from ..ack_tracker import OutcomeRuns
from .message_codec import Header, Origin, encode_id, encode_subject, lines
from .stored_log import StoredLog

log = logging.getLogger(__name__)

#: Most messages without an answer: a server stores as many in about ten milliseconds.
MAX_IN_FLIGHT = 4096
CHUNK, CHUNK_BYTES = 1024, 1024 * 1024
ACK_TIMEOUT = 4.0  #: seconds after which the outcome of a message without an answer is unknown
#: Seconds between attempts: the first, and the longest.
RESEND = 0.05, 1.0
_FOREVER = 10 * 365 * 86400.0


@dataclass(slots=True, eq=False)
class PendingPublish:
    """A message between ACCEPT and its delivery from the stream, or the report of its outcome.

    :ivar cursor_origin: origin of the client's cursor if it subscribes here, else 0
    :ivar expected: sequence of the last message of its subject, without which it is not stored (0: there is none)
    :ivar outcome: None = not known yet
    """

    number: int
    client: Hashable
    cursor_origin: int
    sender: bytes
    subject: bytes
    content: Sequence[bytes]
    message_id: bytes = b""
    headers: tuple[Header, ...] = ()
    expected: int | None = None
    outcome: StoreOutcome | None = None
    sequence: int = 0

    @property
    def size_bytes(self) -> int:
        return MESSAGE_OVERHEAD + sum(map(len, self.content))


def expect_last(message: PendingPublish) -> None:
    """Note which last message of its subject a message replaces, or refuse it
    (:mod:`mama_spark.malamute.protocol.ttl`): markers are the engine's, and no timer runs here that could be
    renewed."""
    asked = ttl_request_of(message.headers)
    if asked is None or asked.renews:
        message.outcome = StoreOutcome.REFUSED
    else:
        message.expected = asked.expected


class AwaitedDeliveries:
    """Messages that were published here and have not come back from the stream, in the order of their numbers."""

    def __init__(self) -> None:
        self._messages: dict[int, PendingPublish] = {}

    def __bool__(self) -> bool:
        return bool(self._messages)

    def add(self, message: PendingPublish) -> None:
        self._messages[message.number] = message

    def take(self, number: int) -> PendingPublish | None:
        return self._messages.pop(number, None)

    def any_up_to(self, number: int) -> bool:
        first = next(iter(self._messages), None)
        return first is not None and first <= number

    def drop(self, position: int) -> None:
        """Do not wait for what the stream, read up to ``position``, will not return: refused, duplicate, or removed."""
        while self._messages:
            number, message = next(iter(self._messages.items()))
            stored = message.outcome is StoreOutcome.STORED
            if message.outcome is None or (stored and message.sequence > position):
                return
            del self._messages[number]

    def clear(self) -> None:
        self._messages.clear()


class ClientOutcomes:
    """Outcomes of one client's messages since its last SYNC; ``pending``: those not in :attr:`runs` yet, in order."""

    __slots__ = ("pending", "runs")

    def __init__(self) -> None:
        self.runs = OutcomeRuns()
        self.pending: deque[PendingPublish] = deque()

    def add(self, message: PendingPublish) -> None:
        if self.pending and len(self.pending) % 1024 == 0:
            self.settle()
        self.pending.append(message)

    def settle(self) -> bool:
        """Move known outcomes to :attr:`runs`; True if all are known."""
        pending = self.pending
        while pending and (outcome := pending[0].outcome) is not None:
            self.runs.add(outcome, pending.popleft().sequence)
        return not pending


class StreamPublisher:
    """Publishes to one log.

    :param bridge: acknowledges each message with its sequence, and says what may still be stored
    :param engine: id of the engine, for the origin of messages
    :param buffer: bytes that may wait; more messages are refused
    :param patience: seconds to wait for a server that may have messages; then they are sent again
    """

    def __init__(self, bridge: PublisherBridge, log: StoredLog, engine: str, buffer: int, patience: float) -> None:
        self._bridge, self._log, self.patience = bridge, log, patience
        self._engine, self._prefix, self._buffer = engine, log.prefix, buffer
        retry = RetryPolicy.doubling(*RESEND, _FOREVER)
        self._window = Window(WindowConfig(MAX_IN_FLIGHT, MAX_IN_FLIGHT - 1, ACK_TIMEOUT, retry, ordered=True))
        self._loop = SendLoop(bridge, self._window, check=self)
        self._ends = StreamEnds(0)
        self._queue: deque[PendingPublish] = deque()
        self._chunk: FlightBatch = self._window.open(0)
        self._spans: deque[Span] = deque()  # of the chunk, not sent yet
        self._topic = pa.array([f"{log.prefix}.{encode_subject(b'')}"])
        self._refusing = False
        self._reports = WarningTimer()
        self.waiting = 0  #: bytes of messages without an outcome
        self.cause = ""  #: why NATS acknowledges nothing, as long as it does not
        self.last = 0  #: highest sequence that the server has acknowledged
        self.stalled_since: float | None = None  #: monotonic time since which no message was acknowledged

    @property
    def busy(self) -> bool:
        return bool(self._queue or self._spans or self._window.in_flight)

    @property
    def down(self) -> bool:
        return not self._window.connected

    def open(self) -> None:
        """Connect, and check that a stream of NATS takes the topic.

        :raises ConfigError, Unavailable: see :class:`~mama_spark.contracts.bridge.PublisherBridge`
        """
        self._bridge.open()
        self._check(MessageBatch.of([""], [b""]))

    def close(self) -> None:
        self._bridge.close()

    def put(self, message: PendingPublish) -> None:
        """Queue a message, or refuse it because too many bytes wait."""
        if self.waiting + message.size_bytes > self._buffer and self.waiting:
            message.outcome = StoreOutcome.REFUSED
            if not self._refusing:
                self._refusing = True
                log.error("messages are refused: %d bytes wait for NATS already (%s)%s",
                          self.waiting, self._prefix, self._because())  # fmt: skip
            return
        if self._refusing:
            self._refusing = False
            log.warning("messages are taken again (%s)", self._prefix)
        self.waiting += message.size_bytes
        self._queue.append(message)

    def pump(self, timeout: float) -> None:
        """Send queued messages and process answers; waits up to ``timeout`` seconds if answers are outstanding.

        :raises Unavailable: the connection is closed for good
        :raises ConfigError: the stream was deleted
        """
        now = time.monotonic()
        try:
            self._send()
            polled = self._loop.receive(timeout if self.busy else 0.0)
        except ClientClosed as e:
            raise Unavailable(f"the connection to NATS is closed: {e}") from e
        self._settle()
        if polled.acks:
            self.stalled_since, self.cause = None, ""
        if self._window.resends or self.down:
            self.stalled_since = self.stalled_since or now
        if not self.busy:
            self.stalled_since = None

    def report_stall(self, stream: bytes, seconds: float, now: float) -> None:
        """Ask NATS why it has acknowledged nothing for ``seconds``, and say it, once in 30 s and with what fails by
        it; takes some seconds at most."""
        if not self._reports.due(now):
            return
        self.cause = self._bridge.explain_missing_acks()
        if self.cause and self.stalled_since:
            log.error("stream %r: nothing was acknowledged for %.0f s, %d bytes wait: %s",
                      stream, seconds, self.waiting, self.cause)  # fmt: skip

    def _because(self) -> str:
        return f": {self.cause}" if self.cause else ""

    def _send(self) -> None:
        self._loop.resend()
        while (self._spans or self._queue) and not (self._loop.bridge_full or self.down or self._window.resends):
            if not self._spans:
                self._open_chunk()
                continue
            if not self._loop.launch_spans(self._chunk, self._spans):
                return

    def _open_chunk(self) -> None:
        chunk: list[PendingPublish] = []
        chunk_bytes = 0
        while self._queue and len(chunk) < CHUNK and chunk_bytes < CHUNK_BYTES:
            chunk.append(self._queue.popleft())
            chunk_bytes += chunk[-1].size_bytes
        batch = batch_of(chunk, self._engine, self._prefix)
        self._ends.note(time.monotonic(), self.last)
        # what the messages expect does not forbid to send them again: what is stored is found by its id first
        self._chunk = self._window.open(len(chunk), batch, chunk)
        good = np.ones(len(chunk), np.bool_)
        for row, error in self._check(batch):
            self._window.reject(self._chunk, np.array([row]), error, time.monotonic())
            good[row] = False
        self._spans = spans_of(good)

    def _check(self, batch: MessageBatch) -> list[tuple[int, PublishError]]:
        """Messages that cannot be sent, and why. One topic stands for all, as the stream takes each: one question."""
        topics = pa.DictionaryArray.from_arrays(np.zeros(len(batch), np.int32), self._topic)
        return self._bridge.prepare(replace(batch, topics=topics)).rejected

    def stored(self, batches: Sequence[MessageBatch], since: float) -> list[list[StoredFlights]]:
        ids = [[] if messages.ids is None else messages.ids.to_pylist() for messages in batches]
        known = self._log.sequences_of({one for some in ids for one in some}, self._ends.before(since))
        found = []
        for some in ids:
            sequences = np.array([known.get(one, 0) for one in some])
            rows = np.flatnonzero(sequences)
            found.append([StoredFlights(self._prefix, rows, sequences[rows])] if len(rows) else [])
        log.info("of %d messages without an answer, %d are stored (%s)",
                 sum(map(len, ids)), len(known), self._prefix)  # fmt: skip
        return found

    def _settle(self) -> None:
        settled = self._window.take_settled()
        copied = sum(int(flights.perhaps_twice()[rows].sum()) for flights, rows in settled)
        if copied:
            log.warning("%d messages may be stored twice: they were sent again while a server that does not answer may "
                        "have them (on_silent_server=publish, %s)", copied, self._prefix)  # fmt: skip
        for flights, rows in settled:
            for row in array_of(rows).tolist():
                message: PendingPublish = flights.context[row]
                self.waiting -= message.size_bytes
                if flights.state[row] == FlightState.ACKED:
                    message.sequence = int(flights.sequence[row])
                    self.last = max(self.last, message.sequence)
                    known = flights.duplicate[row] and message.message_id  # our own ids are repeated only by resends
                    message.outcome = StoreOutcome.DUPLICATE if known else StoreOutcome.STORED
                    continue
                error = flights.errors[row]
                if message.expected is not None and isinstance(error, ExpectationFailed):
                    message.sequence, message.outcome = last_sequence_in(str(error)), StoreOutcome.DUPLICATE
                    continue
                message.outcome = StoreOutcome.REFUSED
                log.warning("a message on %r is refused: %s", message.subject, error)
        for flights, _ in settled:
            if not flights.open:  # the window's index keeps it until the next send
                flights.messages = flights.context = None


def last_sequence_in(text: str) -> int:
    """The sequence that an error names which refuses an expected one; 0 = it names none."""
    found = re.search(r"sequence: (\d{1,18})", text)
    return int(found[1]) if found else 0


def batch_of(messages: Sequence[PendingPublish], engine: str, prefix: str) -> MessageBatch:
    names: list[str] = []
    values: list[str] = []
    starts = [0]
    ids = []
    for message in messages:
        origin = Origin(engine, message.cursor_origin, message.number)
        for name, value in lines(message.sender, message.content, message.message_id, message.headers, origin):
            names.append(name)
            values.append(value)
        if message.expected is not None:
            names.append(EXPECTED_LAST)
            values.append(str(message.expected))
        starts.append(len(names))
        ids.append(encode_id(message.message_id, origin))
    return MessageBatch(
        pa.array(
            [f"{prefix}.{encode_subject(message.subject)}" for message in messages], pa.string()
        ).dictionary_encode(),
        pa.array(_bodies(messages), pa.binary()),
        _headers(names, values, starts) if names else None,
        pa.array(ids, pa.string()),
    )


def _bodies(messages: Iterable[PendingPublish]) -> list[bytes]:
    return [message.content[0] if len(message.content) == 1 else b"".join(message.content) for message in messages]


def _headers(names: list[str], values: list[str], starts: list[int]) -> pa.Array:
    """Each name has one value."""
    ones = pa.array(np.arange(len(values) + 1, dtype=np.int32))
    lists = pa.ListArray.from_arrays(ones, pa.array(values, pa.string()))
    return pa.MapArray.from_arrays(pa.array(starts, pa.int32()), pa.array(names, pa.string()), lists, type=HEADERS_TYPE)
