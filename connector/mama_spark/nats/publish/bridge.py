"""Publishes to JetStream: the implementation of :class:`mama_spark.contracts.bridge.PublisherBridge` for NATS.

The connection lives on the publisher's thread: its calls drive the socket.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.bridge import (
    Ack,
    BridgeEvent,
    Capabilities,
    EventKind,
    OnTheWay,
    PollResult,
    PublisherBridge,
    Refusals,
    ValidationResult,
)
from mama_spark.contracts.errors import BadRow, ClientClosed, MamaError, PublishError, Unavailable
from mama_spark.contracts.message import Int64s, MessageBatch
from mama_spark.options.stream_names import StreamRange

from ..connection.pool import POOL
from ..connection.socket_connection import MAX_UNWRITTEN, SocketConnection
from ..jetstream.answers import StreamInfo
from ..jetstream.client import JetStream
from ..jetstream.set_members import describe_load
from ..jetstream.streams import stream_names
from ..protocol import headers as hd
from ..protocol.frames import MAX_CONTROL_LINE, TOKEN_WIDTH, Framer
from ..protocol.frames import ReplySubject as ReplyTo
from ..settings import NatsSettings
from ..stream_set import StreamSet
from .ack_queue import AckQueue
from .answers import NatsAnswers
from .conflicts import Conflicts
from .fast_ingest import FastIngestPublisher
from .fences import Fences
from .missing_acks import ANSWER_TIME
from .requests import NatsRequests
from .stream_router import StreamRouter, jetstream_of

#: Maximum bytes of frames of one call of ``send``.
_CHUNK = 4 * 1024 * 1024
_LAST_WORD = 1.0  #: seconds for the server to read all that was sent; then its connection is closed
_MAX_PAYLOAD = 1024 * 1024  #: until a server has told its limit


class NatsBridge(PublisherBridge):
    """Publishes to JetStream over one pooled connection; ``warnings`` of open and prepare are for the log."""

    def __init__(self, settings: NatsSettings) -> None:
        self.settings = settings
        self.warnings: list[str] = []
        self._connection: SocketConnection | None = None
        self._ack_queue = AckQueue()
        self._router = StreamRouter(settings, self._warn)
        self._set = self._router.set
        self._framer: Framer | None = None
        self._fast_ingest: FastIngestPublisher | None = None
        self._answers: NatsAnswers | None = None
        self._fences: Fences | None = None  # with exactlyOnce
        self._conflicts: Conflicts | None = None  # with a bucket
        self._requests: NatsRequests | None = None
        self._checked_for = 0  # largest ``max_payload`` for which messages were checked

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} {self.mode}, {'closed' if self._connection is None else repr(self._connection)}>"
        )

    @property
    def mode(self) -> str:
        """How messages are acknowledged; with ``ackMode=auto`` known after the first topics."""
        return self._router.acks.mode

    @property
    def capabilities(self) -> Capabilities:
        acks = {"none": Ack.NONE}.get(self.mode, Ack.STORED)
        reply = 0 if self.mode == "none" else 60 + TOKEN_WIDTH
        return Capabilities(
            ack=acks,
            sequence=self.mode == "message",
            dedup=self.settings.dedup,
            headers=True,
            ordered=self.mode == "batch" and self.settings.dedup and self.settings.ordered,  # in each stream
            max_payload=self._max_payload(),
            max_topic=MAX_CONTROL_LINE - reply - 24 - (self._set.longest_prefix if self._set else 0),
        )

    @property
    def connected_to(self) -> str:
        return "nothing" if self._connection is None else self._connection.server

    def _max_payload(self) -> int:
        return _MAX_PAYLOAD if self._connection is None else self._connection.info.max_payload

    def describe_streams(self) -> list[str]:
        return self._router.describe()

    def describe_load(self, streams: StreamRange) -> list[str]:
        """Spread of the messages over a stream set: a line for the set, and one for each stream.
        ConfigError: a write would be refused, for more than missing members."""
        if self._connection is None:
            raise ClientClosed("the bridge is not open")
        api = jetstream_of(self._connection, self.settings)
        return describe_load(api, StreamSet(streams), self.settings.grow_streams)

    # --- opening ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        connection = self._connection = POOL.checkout(self.settings)
        self._framer = Framer(ReplyTo(connection.inbox) if self.mode != "none" else None)
        self._fast_ingest = FastIngestPublisher(
            connection, self._ack_queue, self.settings, self._router, self._write, self._drive
        )
        if self.settings.exactly_once:
            connection.driver.discard_unsent(True)
            self._fences = Fences(self.settings, connection, self._router.topic_of_each_stream)
        if self.settings.bucket is not None:
            api = JetStream(lambda: connection, ANSWER_TIME, ANSWER_TIME)
            self._conflicts = Conflicts(api, self._ack_queue, self._router.stream_for)
        connection.listener = self._answers = NatsAnswers(
            connection, self._fast_ingest, self._ack_queue, self._router, self._warn, self._fences, self._conflicts
        )
        try:
            self._router.check(connection)
        except BaseException:
            self.close()
            raise

    def _warn(self, text: str) -> None:
        """Warn once per bridge, and in the log once a minute per connection, because a connection serves many tasks."""
        if text in self.warnings:
            return
        self.warnings.append(text)
        connection = self._connection
        if connection is None or connection.cached(text) is None:
            self._ack_queue.event(BridgeEvent(EventKind.WARNING, text, time.monotonic()))
        if connection is not None:
            connection.cache(text, True)

    # --- preparing -------------------------------------------------------------------------------------------

    def prepare(self, batch: MessageBatch) -> ValidationResult:
        most = self._max_payload()
        self._checked_for = max(self._checked_for, most)
        looked_into = "" if self._conflicts is None or batch.ids is None else hd.EXPECTED_LAST
        bad, non_retriable = hd.check(batch, most, looked_into)
        names = batch.topics.dictionary
        if self._connection is not None and self._connection.info.version_numbers < hd.TTL_SINCE:
            error = BadRow(f"{self.connected_to} keeps a message with {hd.TTL} for ever: 2.11 or newer removes it")
            bad.update((row, error) for row in hd.rows_with(batch, hd.TTL).tolist() if row not in bad)
        rejections = self._router.rejections(self._connection, names, self.capabilities.max_topic)
        if non_retriable is not None:
            bad.update((row, bad.get(row, error)) for row, error in self._expecting_an_id(batch).items())
        if rejections:
            wrong = np.zeros(len(names) + 1, np.bool_)
            wrong[list(rejections)] = True
            indices = pc.fill_null(batch.topics.indices, len(names)).to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(wrong[indices]).tolist():
                bad.setdefault(row, rejections[int(indices[row])])
        return ValidationResult(sorted(bad.items()), non_retriable)

    def _expecting_an_id(self, batch: MessageBatch) -> dict[int, PublishError]:
        """Bad rows among those that expect the id of the message before them: fast ingest, unless the bridge gives it
        up, acknowledges them and stores nothing; replicated streams may not survive them."""
        rows = hd.rows_with(batch, hd.EXPECTED_LAST_ID)
        error: PublishError | None = None
        if len(rows) and self.mode == "batch":
            text = f"fast ingest stores no message with {hd.EXPECTED_LAST_ID}"
            if not self._router.acks.fall_back_to_messages(text):
                error = BadRow(f"{text}: use ackMode=message")
        found: dict[int, PublishError] = {}
        for row, topic in zip(rows.tolist(), batch.topics.take(pa.array(rows)).to_pylist(), strict=True):
            if error is not None:
                found[row] = error
            elif topic is not None and self._router.is_replicated(topic):
                found[row] = BadRow(hd.ENDS_REPLICATED_STREAMS)
        return found

    # --- sending ---------------------------------------------------------------------------------------------

    def send(self, batch: MessageBatch, first_token: int) -> int:
        capacity, answers = self._capacity(), self._answers
        assert answers is not None
        if capacity <= 0 or not len(batch):
            answers.waiting_for_capacity = True
            return 0
        ends = np.cumsum(batch.sizes())
        n = max(1, int(np.searchsorted(ends, capacity, "right")))
        if self._max_payload() < self._checked_for:
            bad, _ = hd.check(batch.slice(0, n), self._max_payload())
            if 0 in bad:
                self._ack_queue.refusals(Refusals(np.array([first_token]), bad[0], time.monotonic()))
                return 1
            n = min(bad, default=n)
        part, order = batch.slice(0, n) if n < len(batch) else batch, None
        if self._set is not None:
            subjects, order = self._set.route(part.topics)
            part = replace(part, topics=subjects)
        if self.mode == "batch":
            assert self._fast_ingest is not None
            stream_for = self._router.stream_for if self._set is None else self._set.stream_of_subject
            taken = self._fast_ingest.send(part, first_token, stream_for)
            if self._fences is not None:
                self._fences.sent = first_token + taken
            answers.waiting_for_capacity = taken < n
            answers.sent.add(first_token, part.topics.slice(0, taken))
            return taken
        kept = None
        if self._conflicts is not None:
            part = self._conflicts.expecting(part)
            kept = replace(part, payloads=part.topics.indices)  # payloads are large
        answers.sent.add(first_token, part.topics, kept)
        if self._fences is not None:
            self._fences.sent = first_token + len(part)
        self._write(part, first_token, order)
        return len(part)

    def _capacity(self) -> int:
        """Bytes that can be taken now; 0 while the connection is down or silent. ClientClosed: not open."""
        connection = self._connection
        if connection is None or connection.closed:
            raise ClientClosed("the bridge is not open")
        connection.driver.catch_up()
        if self._fences is not None and connection.doubted:
            return 0  # rows would wait for the fate of this server, while another one can take them
        return min(MAX_UNWRITTEN - connection.unwritten, _CHUNK) if connection.up else 0

    def _write(self, part: MessageBatch, first_token: int, order: Int64s | None = None) -> None:
        connection, answers = self._connection, self._answers
        assert connection is not None
        assert answers is not None
        assert self._framer is not None
        wire_token = answers.base + first_token
        connection.next_token = max(connection.next_token, wire_token + len(part))  # tokens of batches included
        frames = self._framer.frames(part, wire_token, order)
        if self.mode == "none":
            answers.unacknowledged.append((frames.size, np.arange(first_token, first_token + len(part))))
        connection.write(frames)

    def flush(self) -> None:
        connection, ingest = self._connection, self._fast_ingest
        if ingest is not None and ingest.busy and connection is not None and connection.up:
            ingest.end_all()

    def poll(self, timeout: float, want: int = 1) -> PollResult:
        if self._fast_ingest is not None and (self.mode == "batch" or self._fast_ingest.busy):
            return self._fast_ingest.poll(timeout, want)
        return self._drive(timeout, want)

    def _drive(self, timeout: float, want: int) -> PollResult:
        conflicts = self._conflicts
        if self._connection is not None:
            self._connection.drive(timeout, lambda: self._ack_queue.ready(want) or bool(conflicts))
            if conflicts:
                conflicts.resolve()
        return self._ack_queue.take()

    def explain_missing_acks(self) -> str:
        connection = self._connection
        if connection is None:
            return ""
        api = JetStream(lambda: connection, ANSWER_TIME, ANSWER_TIME)

        def last_sequence(stream: str) -> int:
            return StreamInfo.of(api.request(f"STREAM.INFO.{stream}")).last

        if not connection.up:
            return connection.why_down
        return self._router.explain_missing_acks(
            last_sequence, lambda topic: stream_names(api, topic), self.connected_to
        )

    def on_the_way(self, tokens: Int64s, topics: pa.DictionaryArray) -> OnTheWay | None:
        return None if self._fences is None else self._fences.on_the_way(tokens, self._router.rows_by_stream(topics))

    def abort_unsent(self, why: str) -> None:
        if self._connection is not None:
            self._connection.driver.abort_unsent(why)

    def sent_to(self) -> tuple[str, ...]:
        return () if self._fences is None else self._fences.sent_to()

    def duplicate_window(self) -> float | None:
        return self._router.duplicate_window()

    def requests(self) -> NatsRequests | None:
        """See :class:`~mama_spark.contracts.bridge.RequestBridge`; over the same connection. ClientClosed: not open."""
        if self._connection is None:
            raise ClientClosed("the bridge is not open")
        if self._requests is None:
            self._requests = NatsRequests(self._connection, self.settings.connect_timeout)
        return self._requests

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        if self.mode == "none" and connection.up:
            with contextlib.suppress(Unavailable):  # bytes that the server has not read end with the connection
                connection.ping(self.settings.retry_deadline)
        connection.listener = None
        if self._fast_ingest is not None:
            self._fast_ingest.alone.close()
        if self._fences is not None:
            self._fences.close()
            try:
                connection.ping(_LAST_WORD)
                connection.driver.discard_unsent(False)
            except MamaError:  # the next bridge must not find messages of this one in transit
                connection.driver.abort_unsent("its publisher has ended")
                connection.close()
        self._ack_queue.keep_warnings()
        POOL.give_back(self.settings, connection)
