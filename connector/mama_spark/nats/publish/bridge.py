"""Publishes to JetStream: the implementation of :class:`mama_spark.contracts.bridge.PublisherBridge` for NATS."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow.compute as pc

from mama_spark.contracts.bridge import (
    Ack,
    Acks,
    BridgeEvent,
    Capabilities,
    EventKind,
    PollResult,
    PublisherBridge,
    ValidationResult,
)
from mama_spark.contracts.errors import BadRow, ClientClosed, MamaError, PublishError
from mama_spark.contracts.headers import MSG_ID
from mama_spark.contracts.message import Int64s, MessageBatch
from mama_spark.options.stream_names import StreamRange

from ..connection import nats_py_compat as compat
from ..connection.connection import MAX_UNWRITTEN, Connection, Row
from ..connection.event_loop import EventLoopThread
from ..connection.pool import POOL
from ..protocol import headers as hd
from ..protocol.frames import MAX_CONTROL_LINE, TOKEN_WIDTH, Framer
from ..protocol.frames import ReplySubject as ReplyTo
from ..settings import NatsSettings, shown_server
from ..stream_set import StreamSet
from .ack_queue import AckQueue
from .answers import NatsAnswers
from .fast_ingest import FastIngestPublisher
from .missing_acks import ANSWER_TIME
from .requests import NatsRequests
from .stream_router import StreamRouter

#: Maximum bytes of frames of one call of ``send``.
_CHUNK = 4 * 1024 * 1024


class NatsBridge(PublisherBridge):
    """Publishes to JetStream over one pooled connection.

    :ivar warnings: warnings of :meth:`open` and :meth:`prepare`, for the log
    """

    def __init__(self, settings: NatsSettings) -> None:
        self.settings = settings
        self.warnings: list[str] = []
        self._attached: tuple[Any, EventLoopThread | None] | None = None
        self._connection: Connection | None = None
        self._ack_queue = AckQueue()
        self._router = StreamRouter(settings, self._warn)
        self._set = self._router.set
        self._framer: Framer | None = None
        self._fast_ingest: FastIngestPublisher | None = None
        self._answers: NatsAnswers | None = None
        self._max_payload = 1024 * 1024
        self._requests: NatsRequests | None = None

    @classmethod
    def attach(
        cls, js: Any, *, loop: asyncio.AbstractEventLoop | None = None, dedup: bool = True, **options: Any
    ) -> NatsBridge:
        """A bridge over a live JetStream context of the caller, on the context's event loop; uses public calls only.

        :param js: ``nats.js.JetStreamContext``
        :param loop: the client's loop; None = found from the client, or else the running one
        :raises ConfigError: the loop cannot be found
        """
        loop = loop or compat.loop_of(js)
        bridge = cls(NatsSettings(dedup=dedup, fast=False, ack_mode="message", **options))
        bridge._attached = (js, EventLoopThread(loop))
        return bridge

    def __repr__(self) -> str:
        return f"<NatsBridge {self.mode}, {'closed' if self._connection is None else repr(self._connection)}>"

    @property
    def mode(self) -> str:
        """``message`` (an ack per message), ``batch`` (fast ingest: an ack settles a prefix, no sequences) or ``none``.

        With ``ack_mode="auto"`` it is known after the first :meth:`prepare`.
        """
        return self._router.mode

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
            max_payload=self._max_payload,
            max_topic=MAX_CONTROL_LINE - reply - 24 - (self._set.longest_prefix if self._set else 0),
            discovery=True,
        )

    @property
    def connected_to(self) -> str:
        """Name and version of the server."""
        if self._connection is None:
            return "nothing"
        client = self._connection.client
        return f"nats-server {client.connected_server_version} at {shown_server(client.connected_url)}"

    def describe_streams(self) -> list[str]:
        """The streams that were looked up, one line each."""
        return self._router.describe()

    def describe_load(self, streams: StreamRange) -> list[str]:
        """How messages are spread over a stream set, a line for the set and one for each stream.

        :raises ConfigError: a write would be refused, members that are missing aside
        """
        if self._connection is None:
            raise ClientClosed("the bridge is not open")
        return self._router.describe_load(self._connection, StreamSet(streams))

    # --- opening ---------------------------------------------------------------------------------------------

    def open(self) -> None:
        """See :class:`~mama_spark.contracts.bridge.PublisherBridge`."""
        if self._attached is not None:
            self._open_attached(*self._attached)
            return
        connection = POOL.checkout(self.settings)
        self._use(connection)
        try:
            connection.loop.run(self._router.check(connection), self._router.time_to_check(), "checking JetStream")
        except BaseException:
            self.close()
            raise

    def _open_attached(self, js: Any, loop: EventLoopThread | None) -> None:
        assert loop is not None
        client = compat.client_of(js)
        connection = Connection(loop, client, False, compat.api_prefix_of(js))
        connection.owned = False
        self._use(connection)
        compat.add_callbacks(
            client, connection.on_error, connection.on_disconnected, connection.on_reconnected, connection.on_closed
        )
        if loop.here():
            loop.loop.create_task(self._start_attached(connection))
        else:
            loop.run(connection.start(self.settings.connect_timeout), self.settings.connect_timeout + 1, "subscribing")

    async def _start_attached(self, connection: Connection) -> None:
        try:
            await connection.start(self.settings.connect_timeout)
        except MamaError as e:
            assert self._answers is not None
            self._answers.on_closed(str(e))

    def _use(self, connection: Connection) -> None:
        self._connection = connection
        self._framer = Framer(ReplyTo(connection.inbox) if self.mode != "none" else None)
        self._fast_ingest = FastIngestPublisher(
            connection, self._ack_queue, self.settings, self._router, partial(self._write, connection)
        )
        connection.listener = self._answers = NatsAnswers(
            connection, self._fast_ingest, self._ack_queue, self._router, self._warn
        )
        connection.loop.on_death(self._ack_queue.fail)
        if connection.client.max_payload:
            self._max_payload = connection.client.max_payload

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
        """See :class:`~mama_spark.contracts.bridge.PublisherBridge`."""
        bad, non_retriable = hd.check(batch, self._max_payload)
        names = batch.topics.dictionary
        rejections = self._router.rejections(self._connection, names, self.capabilities.max_topic)
        if self.mode == "batch" and non_retriable is not None:
            bad.update((row, bad.get(row, error)) for row, error in self._not_in_batches(batch).items())
        if rejections:
            wrong = np.zeros(len(names) + 1, np.bool_)
            wrong[list(rejections)] = True
            indices = pc.fill_null(batch.topics.indices, len(names)).to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(wrong[indices]).tolist():
                bad.setdefault(row, rejections[int(indices[row])])
        return ValidationResult(sorted(bad.items()), non_retriable)

    def _not_in_batches(self, batch: MessageBatch) -> dict[int, PublishError]:
        """Rows that fast ingest would acknowledge and not store, unless all go on without it."""
        text = f"fast ingest stores no message with {hd.NOT_IN_BATCHES}"
        rows = hd.rows_with(batch, hd.NOT_IN_BATCHES)
        if not len(rows) or self._router.fall_back_to_messages(text):
            return {}
        return dict.fromkeys(rows.tolist(), BadRow(f"{text}: use ackMode=message"))

    # --- sending ---------------------------------------------------------------------------------------------

    def send(self, batch: MessageBatch, first_token: int) -> int:
        """See :class:`~mama_spark.contracts.bridge.PublisherBridge`."""
        connection = self._connection
        if connection is None or connection.closed:
            raise ClientClosed("the bridge is not open")
        answers = self._answers
        assert answers is not None
        assert self._fast_ingest is not None
        capacity = min(MAX_UNWRITTEN - connection.unwritten, _CHUNK)
        attached_soon = not connection.owned and not connection.up and connection.client.is_connected
        if capacity <= 0 or not (connection.up or attached_soon) or not len(batch):
            answers.waiting_for_capacity = True
            return 0
        ends = np.cumsum(batch.sizes())
        n = max(1, int(np.searchsorted(ends, capacity, "right")))
        part, order = batch.slice(0, n) if n < len(batch) else batch, None
        if self._set is not None:
            subjects, order = self._set.route(part.topics)
            part = replace(part, topics=subjects)
        if self.mode == "batch":
            stream_for = self._router.stream_for if self._set is None else self._set.stream_of_subject
            taken = self._fast_ingest.send(part, first_token, stream_for)
            answers.waiting_for_capacity = taken < n
            answers.sent_topics.add(first_token, part.topics.slice(0, taken))
            return taken
        answers.sent_topics.add(first_token, part.topics)
        self._write(connection, part, first_token, order)
        return len(part)

    def _write(self, connection: Connection, part: MessageBatch, first_token: int, order: Int64s | None = None) -> None:
        assert self._answers is not None
        assert self._framer is not None
        wire_token = self._answers.base + first_token
        connection.next_token = max(connection.next_token, wire_token + len(part))  # tokens of batches included
        if not connection.fast:
            connection.publish(_client_rows(part, connection.inbox.decode(), wire_token, self.mode != "none"))
            if self.mode == "none":
                tokens = np.arange(first_token, first_token + len(part))
                self._ack_queue.acks(Acks(tokens, None, None, None, time.monotonic()))
            return
        frames = self._framer.frames(part, wire_token, order)
        if self.mode == "none":
            self._answers.unacknowledged.append((frames.size, np.arange(first_token, first_token + len(part))))
        connection.write(frames)

    def flush(self) -> None:
        """See :class:`~mama_spark.contracts.bridge.PublisherBridge`."""
        connection, ingest = self._connection, self._fast_ingest
        if ingest is not None and ingest.busy and connection is not None and connection.up:
            ingest.end_all()

    def poll(self, timeout: float, want: int = 1) -> PollResult:
        """See :class:`~mama_spark.contracts.bridge.PublisherBridge`."""
        if self._fast_ingest is not None and (self.mode == "batch" or self._fast_ingest.busy):
            return self._fast_ingest.poll(timeout, want)
        return self._ack_queue.wait(timeout, want)

    def explain_missing_acks(self) -> str:
        """See :class:`~mama_spark.contracts.bridge.PublisherBridge`."""
        connection = self._connection
        if connection is None or not connection.up:
            return "" if connection is None else connection.why_down
        try:
            work = self._router.explain_missing_acks(connection, self.connected_to)
            return connection.loop.run(work, 4 * ANSWER_TIME, "asking JetStream")
        except MamaError as e:
            return f"{self.connected_to} acknowledges nothing, and does not say why: {e}"

    def requests(self) -> NatsRequests:
        """Requests and replies over the same connection; see :class:`~mama_spark.contracts.bridge.RequestBridge`.

        :raises ClientClosed: the bridge is not open
        """
        if self._connection is None:
            raise ClientClosed("the bridge is not open")
        if self._requests is None:
            self._requests = NatsRequests(self._connection, self.settings.connect_timeout)
        return self._requests

    def close(self) -> None:
        """See :class:`~mama_spark.contracts.bridge.PublisherBridge`."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        connection.listener = None
        connection.loop.forget(self._ack_queue.fail)
        if connection.owned:
            POOL.give_back(self.settings, connection)
        elif connection.loop.alive:
            with contextlib.suppress(MamaError):
                connection.loop.soon(lambda: connection.loop.loop.create_task(connection.release()))


class _Header(str):
    """Key of a header in the client's dictionary, which has one value a key: each value gets a key of its own."""

    _name: str

    def __new__(cls, name: str, k: int) -> _Header:
        made = super().__new__(cls, f"{name} {k}")
        made._name = name
        return made

    def strip(self, chars: str | None = None, /) -> str:
        """The name that the client writes."""
        return self._name


def _client_rows(part: MessageBatch, inbox: str, token: int, reply: bool) -> list[Row]:
    """Messages as arguments of nats-py's public ``publish``, for connections without the fast path."""
    n = len(part)
    ids: list[Any] = [None] * n if part.ids is None else part.ids.to_pylist()
    pairs: list[Any] = [None] * n if part.headers is None else part.headers.to_pylist()
    rows: list[Row] = []
    for i, (topic, payload) in enumerate(zip(part.topics.to_pylist(), part.payloads.to_pylist(), strict=True)):
        headers: dict[str, str] = {MSG_ID: ids[i]} if ids[i] is not None else {}
        for name, values in pairs[i] or ():
            headers.update((_Header(name, k), value) for k, value in enumerate(values or ()))
        to = f"{inbox}{token + i:0{TOKEN_WIDTH}d}" if reply else ""
        rows.append((token + i, topic, payload, to, headers or None))
    return rows
