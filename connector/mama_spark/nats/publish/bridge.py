"""Publishes to JetStream: the implementation of :class:`mama_spark.contracts.bridge.PublisherBridge` for NATS."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
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
    Refusals,
    ValidationResult,
)
from mama_spark.contracts.errors import ClientClosed, MamaError, PublishError, Rejected, Unavailable
from mama_spark.contracts.message import Int64s, MessageBatch
from mama_spark.options.stream_names import StreamRange

from ..connection import nats_py_compat as compat
from ..connection.client_errors import from_client
from ..connection.connection import MAX_UNWRITTEN, Connection
from ..connection.event_loop import EventLoopThread
from ..connection.pool import POOL
from ..errors import not_entitled
from ..protocol import headers as hd
from ..protocol.acks import AckColumns, PubAck, Reply
from ..protocol.frames import MAX_CONTROL_LINE, TOKEN_WIDTH, Framer
from ..protocol.frames import ReplySubject as ReplyTo
from ..settings import NatsSettings, shown_server
from ..stream_set import StreamSet
from .ack_queue import AckQueue
from .client_rows import client_rows
from .fast_ingest import FastIngestPublisher
from .missing_acks import ANSWER_TIME
from .requests import NatsRequests
from .sent_topics import SentTopics
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
        self._base = 0
        self._sent_topics = SentTopics()
        self._framer: Framer | None = None
        self._fast_ingest: FastIngestPublisher | None = None
        self._waiting_for_capacity = False
        self._unacknowledged: deque[tuple[int, Int64s]] = deque()
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
            self.on_closed(str(e))

    def _use(self, connection: Connection) -> None:
        self._connection = connection
        self._base = connection.next_token
        self._framer = Framer(ReplyTo(connection.inbox) if self.mode != "none" else None)
        self._fast_ingest = FastIngestPublisher(
            connection, self._ack_queue, self.settings, self._router, partial(self._write, connection)
        )
        connection.listener = self
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
        if rejections:
            wrong = np.zeros(len(names) + 1, np.bool_)
            wrong[list(rejections)] = True
            indices = pc.fill_null(batch.topics.indices, len(names)).to_numpy(zero_copy_only=False)
            for row in np.flatnonzero(wrong[indices]).tolist():
                bad.setdefault(row, rejections[int(indices[row])])
        return ValidationResult(sorted(bad.items()), non_retriable)

    # --- sending ---------------------------------------------------------------------------------------------

    def send(self, batch: MessageBatch, first_token: int) -> int:
        """See :class:`~mama_spark.contracts.bridge.PublisherBridge`."""
        connection = self._connection
        if connection is None or connection.closed:
            raise ClientClosed("the bridge is not open")
        capacity = min(MAX_UNWRITTEN - connection.unwritten, _CHUNK)
        attached_soon = not connection.owned and not connection.up and connection.client.is_connected
        if capacity <= 0 or not (connection.up or attached_soon) or not len(batch):
            self._waiting_for_capacity = True
            return 0
        ends = np.cumsum(batch.sizes())
        n = max(1, int(np.searchsorted(ends, capacity, "right")))
        part, order = batch.slice(0, n) if n < len(batch) else batch, None
        if self._set is not None:
            subjects, order = self._set.route(part.topics)
            part = replace(part, topics=subjects)
        if self.mode == "batch":
            assert self._fast_ingest is not None
            stream_for = self._router.stream_for if self._set is None else self._set.stream_of_subject
            taken = self._fast_ingest.send(part, first_token, stream_for)
            self._waiting_for_capacity = taken < n
            self._sent_topics.add(first_token, part.topics.slice(0, taken))
            return taken
        self._sent_topics.add(first_token, part.topics)
        self._write(connection, part, first_token, order)
        return len(part)

    def _write(self, connection: Connection, part: MessageBatch, first_token: int, order: Int64s | None = None) -> None:
        wire_token = self._base + first_token
        connection.next_token = max(connection.next_token, wire_token + len(part))  # tokens of batches included
        if not connection.fast:
            connection.publish(client_rows(part, connection.inbox.decode(), wire_token, self.mode != "none"))
            if self.mode == "none":
                self._answer_none(first_token, len(part))
            return
        assert self._framer is not None
        frames = self._framer.frames(part, wire_token, order)
        if self.mode == "none":
            self._unacknowledged.append((frames.size, np.arange(first_token, first_token + len(part))))
        connection.write(frames)

    def _answer_none(self, first: int, n: int) -> None:
        self._ack_queue.acks(Acks(np.arange(first, first + n), None, None, None, time.monotonic()))

    def flush(self) -> None:
        """See :class:`~mama_spark.contracts.bridge.PublisherBridge`."""
        if (
            self._fast_ingest is not None
            and self._fast_ingest.busy
            and self._connection is not None
            and self._connection.up
        ):
            self._fast_ingest.end_all()

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

    # --- events of the connection, on the loop's thread ---------------------------------------------------------

    def on_acks(self, columns: list[AckColumns]) -> None:
        now = time.monotonic()
        for c in columns:
            tokens = np.concatenate(c.tokens) - self._base
            sequences, duplicates = np.concatenate(c.sequences), np.concatenate(c.duplicates)
            if tokens.min() < 0:  # answers to the previous bridge on this connection
                mine = tokens >= 0
                tokens, sequences, duplicates = tokens[mine], sequences[mine], duplicates[mine]
            if len(tokens) and not self._is_elsewhere(c.stream, c.domain):
                repeated, known = bool(duplicates.any()), sequences if self.mode == "message" else None
                self._ack_queue.acks(Acks(tokens, known, duplicates if repeated else None, c.stream, now, c.domain))
                self._answered(tokens, stored_anew=not repeated)

    def _is_elsewhere(self, stream: str, domain: str | None) -> bool:
        """Whether an acknowledgement comes from another domain than that of the settings, where a stream takes the same
        topic: the intended stream has not stored the message. From another stream of the same domain, the account has
        led the message there, and nothing more is published."""
        wanted = self.settings.js_domain
        if wanted is None or wanted == domain:
            if (stray := self._router.stray(stream)) is not None:
                self._ack_queue.fail(stray)
            return stray is not None
        where = "no domain" if domain is None else f"the domain {domain!r}"
        self._warn(
            f"stream {stream!r} of {where} takes these topics, too: its acknowledgements do not count, because "
            f"jsDomain={wanted}"
        )
        return True

    def _answered(self, tokens: Int64s, *, refused: bool = False, stored_anew: bool = False) -> None:
        if self._fast_ingest is not None and self._fast_ingest.sending_alone:
            self._fast_ingest.on_answer(tokens, refused=refused, stored_anew=stored_anew)

    def on_reply(self, subject: bytes, reply: Reply) -> None:
        connection = self._connection
        if connection is None:
            return
        last = subject[len(connection.inbox) :]
        if not (last.isdigit() and len(last) == TOKEN_WIDTH):
            if self._fast_ingest is not None:
                self._fast_ingest.on_reply(subject, reply)
            return
        token = int(last) - self._base
        now = time.monotonic()
        if token < 0:
            return
        tokens = np.array([token])
        if isinstance(reply, PubAck):
            if self._is_elsewhere(reply.stream, reply.domain):
                return
            duplicate = np.array([True]) if reply.duplicate else None
            known = np.array([reply.sequence]) if self.mode == "message" else None
            self._ack_queue.acks(Acks(tokens, known, duplicate, reply.stream, now, reply.domain))
            self._answered(tokens, stored_anew=not reply.duplicate)
        elif isinstance(reply, PublishError):
            self._ack_queue.refusals(Refusals(tokens, reply, now))
            self._answered(tokens, refused=True)

    def on_denied(self, kind: str, subject: str, exact: bool) -> None:
        now = time.monotonic()
        if kind != "publish":
            error = not_entitled(subject)
            self._ack_queue.event(
                BridgeEvent(EventKind.CLOSED, f"no permission to subscribe to {subject!r}", now, None, error)
            )
            return
        error = not_entitled(subject)
        tokens = self._sent_topics.take(subject, exact)
        if len(tokens):
            self._ack_queue.refusals(Refusals(tokens, error, now))
            if self._fast_ingest is not None and self.mode == "batch":
                self._fast_ingest.on_denied(tokens, error)
            self._answered(tokens, refused=True)

    def on_unsent(self, token: int, error: BaseException) -> None:
        translated = from_client(error)
        if not isinstance(translated, PublishError):
            if isinstance(translated, Unavailable):
                return  # the connection breaks: DISCONNECTED or the timeout settles it
            translated = Rejected(str(translated))
        self._ack_queue.refusals(Refusals(np.array([token - self._base]), translated, time.monotonic()))

    def on_disconnected(self) -> None:
        self._unacknowledged.clear()
        if self._fast_ingest is not None:
            self._fast_ingest.on_disconnected()
        self._ack_queue.event(BridgeEvent(EventKind.DISCONNECTED, "the connection to NATS was lost", time.monotonic()))

    def on_reconnected(self) -> None:
        if self._fast_ingest is not None and self._fast_ingest.resolve(self._reconnected):
            return
        self._reconnected()

    def _reconnected(self) -> None:
        self._ack_queue.event(BridgeEvent(EventKind.RECONNECTED, "connected to NATS again", time.monotonic()))

    def on_closed(self, info: str) -> None:
        text = f"the connection to NATS was closed for good: {info}"
        self._ack_queue.event(BridgeEvent(EventKind.CLOSED, text, time.monotonic(), error=Rejected(text)))

    def on_written(self, size: int) -> None:
        left = size
        while self._unacknowledged and left >= self._unacknowledged[0][0]:
            taken, tokens = self._unacknowledged.popleft()
            left -= taken
            self._ack_queue.acks(Acks(tokens, None, None, None, time.monotonic()))
        if (
            self._waiting_for_capacity
            and self._connection is not None
            and self._connection.unwritten < MAX_UNWRITTEN // 2
        ):
            self._waiting_for_capacity = False
            self._ack_queue.wake()
