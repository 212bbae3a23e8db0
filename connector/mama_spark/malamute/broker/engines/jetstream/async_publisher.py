"""Publishes messages to a JetStream stream without waiting for each acknowledgement.

Messages are sent in columns, many at a time. Every message has an id for deduplication, so that it can be resent if its
outcome is unknown after a lost connection or a change of the leader. Resends begin when every earlier send is answered
or timed out, so a lost connection does not change the order; a change of the leader may, because a server without a
leader rejects one message and accepts the next. The owner calls :meth:`AsyncPublisher.pump`.

It has a loop of its own because nothing may be sent again once the server may have forgotten its id, counted from the
first send that may have been stored, while the deadline of a :class:`~mama_spark.options.window.RetryPolicy` counts
from the first send, also from one that was refused. Of :mod:`mama_spark.publishing.window` it takes the rule which
errors allow a resend, :func:`~mama_spark.publishing.window.retry.may_resend`.
"""

from __future__ import annotations

import logging
import re
import time
from collections import deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.bridge import Acks, EventKind, Refusals
from mama_spark.contracts.errors import (
    AckTimeout,
    ClientClosed,
    ExpectationFailed,
    OutcomeUnknown,
    PublishError,
    Unavailable,
)
from mama_spark.contracts.message import HEADERS_TYPE, MessageBatch
from mama_spark.malamute.protocol.extensions import StoreOutcome
from mama_spark.nats.protocol import headers as hd
from mama_spark.nats.publish.bridge import NatsBridge
from mama_spark.nats.settings import NatsSettings
from mama_spark.publishing.ids.id_lifetime import known_for
from mama_spark.publishing.window.retry import may_resend

from .message_codec import Header, Origin, encode_id, encode_subject, lines

log = logging.getLogger(__name__)

#: Most messages without an answer: a server stores as many in about ten milliseconds.
MAX_IN_FLIGHT = 4096
#: Most messages and octets of one send.
CHUNK, CHUNK_OCTETS = 1024, 1024 * 1024
ACK_TIMEOUT = 4.0  #: seconds after which the outcome of a message without an answer is unknown
#: Delays between attempts.
RESEND = Backoff(0.05, 1.0)
_OVERHEAD = 200  #: approximate memory overhead of a waiting message, in octets


@dataclass(slots=True, eq=False)
class PendingPublish:
    """A message between ACCEPT and its delivery from the stream, or the report of its outcome.

    :ivar cursor_origin: origin of the client's cursor if it subscribes here, else 0
    :ivar expected: sequence of the last message of its subject, without which it is not stored (0: there is none)
    :ivar outcome: None = not known yet
    :ivar first_sent: monotonic time of the first send that may have been stored; None = certainly not stored
    :ivar last_sent: monotonic time of the last send
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
    first_sent: float | None = None
    last_sent: float = 0.0

    @property
    def octets(self) -> int:
        return _OVERHEAD + sum(map(len, self.content))


class AsyncPublisher:
    """:param engine: id of the engine, for the origin of messages
    :param prefix: of the subjects
    :param window: the server's deduplication window, seconds
    :param buffer: octets that may wait; more messages are refused
    """

    def __init__(self, settings: NatsSettings, engine: str, prefix: str, window: float, buffer: int) -> None:
        self._bridge = NatsBridge(settings)
        self._engine, self._prefix, self._window, self._buffer = engine, prefix, window, buffer
        self._queue: deque[PendingPublish] = deque()
        self._in_flight: dict[int, PendingPublish] = {}  # by token, in the order of sending
        self._timed_out: dict[int, PendingPublish] = {}  # timed out, by token; an answer may still arrive
        self._retry_queue: list[PendingPublish] = []
        self._delays = RESEND.delays()
        self._next_try = 0.0
        self._token = 0
        self._refusing = False
        self.waiting = 0  #: octets of messages without an outcome
        self.cause = ""  #: why NATS acknowledges nothing, as long as it does not
        self.last = 0  #: highest sequence that the server has acknowledged
        self.down = False  #: the connection is lost
        self.stalled_since: float | None = None  #: monotonic time since which no message was acknowledged

    def __repr__(self) -> str:
        state = "down" if self.down else "stalled" if self.stalled_since else "up"
        return f"<AsyncPublisher {state}, {len(self._queue)} queued, {len(self._in_flight)} in flight>"

    @property
    def busy(self) -> bool:
        """Whether messages have no outcome yet."""
        return bool(self._queue or self._in_flight or self._retry_queue)

    def open(self) -> None:
        """:raises ConfigError, Unavailable: see :class:`~mama_spark.contracts.bridge.PublisherBridge`"""
        self._bridge.open()

    def close(self) -> None:
        self._bridge.close()

    def put(self, message: PendingPublish) -> None:
        """Queue a message, or refuse it because too many octets wait."""
        if self.waiting + message.octets > self._buffer and self.waiting:
            message.outcome = StoreOutcome.REFUSED
            if not self._refusing:
                self._refusing = True
                log.error("messages are refused: %d octets wait for NATS already (%s)%s",
                          self.waiting, self._prefix, self._because())  # fmt: skip
            return
        if self._refusing:
            self._refusing = False
            log.warning("messages are taken again (%s)", self._prefix)
        self.waiting += message.octets
        self._queue.append(message)

    def pump(self, timeout: float) -> None:
        """Send queued messages and process answers; waits up to ``timeout`` seconds if answers are outstanding.

        :raises Unavailable: the connection is closed for good, or was lost for longer than ids are surely known
        """
        now = time.monotonic()
        self._send(now)
        self._poll(timeout if self.busy else 0.0)
        self._time_out(time.monotonic())
        if not self.busy:
            self.stalled_since = None

    def explain_missing_acks(self) -> str:
        """Ask NATS why it acknowledges nothing; takes some seconds at most. It is told with what fails by it."""
        self.cause = self._bridge.explain_missing_acks()
        return self.cause

    def _because(self) -> str:
        return f": {self.cause}" if self.cause else ""

    # --- sending -------------------------------------------------------------------------------------------------

    def _send(self, now: float) -> None:
        if self._retry_queue and not self._in_flight:
            self._queue.extendleft(sorted(self._retry_queue, key=lambda message: -message.number))
            self._retry_queue.clear()
        while self._queue and not (self.down or self._retry_queue) and now >= self._next_try:
            if len(self._in_flight) >= MAX_IN_FLIGHT or not self._send_chunk(now):
                return

    def _send_chunk(self, now: float) -> bool:
        """Send one chunk; False if the connection accepts no more now."""
        chunk: list[PendingPublish] = []
        octets = 0
        while self._queue and len(chunk) < CHUNK and octets < CHUNK_OCTETS:
            message = self._queue.popleft()
            if message.outcome is None:  # else an earlier send was answered meanwhile
                self._check_age(message, now)
                chunk.append(message)
                octets += message.octets
        batch = batch_of(chunk, self._engine, self._prefix)
        rejected, _ = hd.check(batch, self._bridge.capabilities.max_payload)
        if rejected:
            for row, error in rejected.items():
                self._settle(chunk[row], StoreOutcome.REFUSED)
                log.warning("a message on %r is refused: %s", chunk[row].subject, error)
            rows = [row for row in range(len(chunk)) if row not in rejected]
            batch, chunk = batch.take(np.array(rows, np.int64)), [chunk[row] for row in rows]
        if not chunk:
            return True
        try:
            n = self._bridge.send(batch, self._token)
        except ClientClosed as e:
            raise Unavailable(f"the connection to NATS is closed: {e}") from e
        for token, message in enumerate(chunk[:n], self._token):
            message.first_sent, message.last_sent = message.first_sent or now, now
            self._in_flight[token] = message
        self._token += n
        self._queue.extendleft(reversed(chunk[n:]))
        return n == len(chunk)

    def _check_age(self, message: PendingPublish, now: float) -> None:
        if message.first_sent is not None and now - message.first_sent > known_for(self._window):
            raise Unavailable(
                f"nothing was heard of NATS for {now - message.first_sent:.0f} s; the server surely recognises what "
                f"was sent before for {known_for(self._window):g} s only (half of its duplicate window), so nobody can "
                f"say whether it is stored{self._because()}"
            )

    # --- answers -------------------------------------------------------------------------------------------------

    def _poll(self, timeout: float) -> None:
        polled = self._bridge.poll(timeout)
        for acks in polled.acks:
            self._acknowledge(acks)
        for refusals in polled.refusals:
            self._reject(refusals)
        for event in polled.events:
            if event.kind is EventKind.DISCONNECTED:
                self.down = True
                self._back_off()
                self._fail_send(self._in_flight.values(), OutcomeUnknown(event.info))
                self._in_flight.clear()
                self._timed_out.clear()
            elif event.kind is EventKind.RECONNECTED:
                self.down, self._next_try = False, 0.0
            elif event.kind is EventKind.CLOSED:
                raise Unavailable(event.info)
            else:
                log.warning("%s", event.info)

    def _acknowledge(self, acks: Acks) -> None:
        assert acks.sequences is not None, "acknowledgements a message have sequences"
        n = len(acks.tokens)
        repeats = [False] * n if acks.duplicates is None else acks.duplicates.tolist()
        for token, sequence, repeat in zip(acks.tokens.tolist(), acks.sequences.tolist(), repeats, strict=True):
            message = self._in_flight.pop(token, None) or self._timed_out.pop(token, None)
            if message is not None and message.outcome is None:
                message.sequence = sequence
                known = repeat and message.message_id  # the engine's own ids are repeated only by resends
                self._settle(message, StoreOutcome.DUPLICATE if known else StoreOutcome.STORED)
                self.last = max(self.last, sequence)
        self.stalled_since, self.cause = None, ""
        self._delays.reset()

    def _reject(self, refusals: Refusals) -> None:
        refused = [self._in_flight.pop(token, None) for token in refusals.tokens.tolist()]
        self._fail_send([message for message in refused if message is not None], refusals.error)
        if self._retry_queue:
            self._back_off()

    def _fail_send(self, messages: Iterable[PendingPublish], error: PublishError) -> None:
        """Queue messages whose last send failed with ``error`` for a resend, or settle them if it is not retryable.
        Every message has an id, so resends are stored once."""
        for message in messages:
            if message.outcome is not None:
                continue
            if message.expected is not None and isinstance(error, ExpectationFailed):
                message.sequence = last_sequence_in(str(error))
                self._settle(message, StoreOutcome.DUPLICATE)
                continue
            if not may_resend(error):
                self._settle(message, StoreOutcome.REFUSED)
                log.warning("a message on %r is refused: %s", message.subject, error)
                continue
            if not error.may_have_landed and message.first_sent == message.last_sent:
                message.first_sent = None
            self._retry_queue.append(message)

    def _time_out(self, now: float) -> None:
        """Queue messages for a resend whose answer is overdue."""
        oldest = next(iter(self._in_flight.values()), None)
        if oldest is None or now - oldest.last_sent < ACK_TIMEOUT:
            return
        late = [token for token, message in self._in_flight.items() if now - message.last_sent >= ACK_TIMEOUT]
        for token in late:
            self._timed_out[token] = self._in_flight.pop(token)
        self._fail_send(map(self._timed_out.__getitem__, late), AckTimeout(f"no answer within {ACK_TIMEOUT:g} s"))
        self._back_off()

    def _back_off(self) -> None:
        now = time.monotonic()
        self.stalled_since = self.stalled_since or now
        if now >= self._next_try:
            self._next_try = now + self._delays.next()

    def _settle(self, message: PendingPublish, outcome: StoreOutcome) -> None:
        message.outcome = outcome
        self.waiting -= message.octets


def last_sequence_in(text: str) -> int:
    """The sequence that an error names which refuses an expected one; 0 = it names none."""
    found = re.search(r"sequence: (\d{1,18})", text)
    return int(found[1]) if found else 0


def batch_of(messages: Sequence[PendingPublish], engine: str, prefix: str) -> MessageBatch:
    """Messages as a batch of columns, one row per message."""
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
            names.append(hd.EXPECTED_LAST)
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
    """Lines as :data:`~mama_spark.contracts.message.HEADERS_TYPE`; each name has one value."""
    ones = pa.array(np.arange(len(values) + 1, dtype=np.int32))
    lists = pa.ListArray.from_arrays(ones, pa.array(values, pa.string()))
    return pa.MapArray.from_arrays(pa.array(starts, pa.int32()), pa.array(names, pa.string()), lists, type=HEADERS_TYPE)
