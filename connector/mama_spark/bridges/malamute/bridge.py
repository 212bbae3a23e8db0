"""The Malamute bridge: streams of a broker behind the contract of :mod:`mama_spark.bridge`.

Messages go out in chunks; what a chunk has for one stream is followed by a PING: replies come in order, so the PONG
says that the broker has taken them. Our own broker says in it what the stream's engine did with the messages, with
sequences where the stream is stored.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mama_spark.bridge import (
    Ack,
    Acks,
    BridgeEvent,
    Capabilities,
    EventKind,
    PollResult,
    Refusals,
    ValidationResult,
)
from mama_spark.errors import (
    ClientClosed,
    ConfigError,
    MamaError,
    OutcomeUnknown,
    OutOfResources,
    Rejected,
    Unavailable,
)
from mama_spark.malamute.client.calls import Call, CallFailed
from mama_spark.malamute.client.connection_settings import endpoint
from mama_spark.malamute.client.states import ClientState
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.extensions import AckRun, Feature, StoreOutcome
from mama_spark.message import Int64s, MessageBatch

from . import frames as fr
from .pool import POOL, PooledConnection, refusal
from .settings import MalamuteSettings

log = logging.getLogger("mama_spark")

#: Most octets of payload in one call of ``send``.
_CHUNK = 1024 * 1024
#: Most messages in one: what is in doubt when a connection breaks, and how soon answers come.
_MESSAGES = 1024
_NEVER = float("inf")
_NO_STREAM = "no stream is named: give the option stream, a column stream, or mlp://host:port/stream"


@dataclass(slots=True)
class _Chunk:
    """Messages of one stream that one PING covers."""

    tokens: Int64s
    stream: str
    call: Call


class MalamuteBridge:
    """Publishes over one connection, to the stream of the settings or to the one that each message names."""

    def __init__(self, settings: MalamuteSettings) -> None:
        self.settings = settings
        self._connection: PooledConnection | None = None
        self._carries = False  # the broker is ours: ids and headers reach readers
        self._stored = False  # the stream of the settings is
        self._by_row = False
        self._chunks: deque[_Chunk] = deque()
        self._refused: list[Refusals] = []
        self._unanswered = False  # sent without asking for an answer
        self._down = False
        self._changed = ""  # what came back is another broker than the one that was opened
        self._told = False

    def __repr__(self) -> str:
        where = self.settings.stream or "streams"
        if self._connection is None:
            return f"<MalamuteBridge {where} closed>"
        link = self._connection.link
        return f"<MalamuteBridge {where} at {link.endpoint}, {link.machine.state.value}, {len(self._chunks)} chunks>"

    @property
    def capabilities(self) -> Capabilities:
        """Where messages name their streams, these may differ: ``stored`` is said of those that are, with sequence."""
        acks, stored = self.settings.acks, self._carries and (self._by_row or self._stored)
        return Capabilities(
            ack=Ack.NONE if not acks else Ack.STORED if stored else Ack.ACCEPTED,
            sequence=acks and stored,
            dedup=stored and self.settings.dedup,
            headers=self._carries,
            ordered=False,
            max_payload=fr.MAX_PAYLOAD,
            max_topic=fr.MAX_TOPIC,
        )

    # --- opening and closing -------------------------------------------------------------------------------------

    def open(self) -> None:
        """See :class:`~mama_spark.bridge.PublisherBridge`."""
        s = self.settings
        if s.stream is None and s.dead_letters:
            raise ConfigError("dead letters need a stream for deadLetterTopic: give the option stream")
        try:
            connection = POOL.lease(s.link, s.connect_timeout)
        except CallFailed as e:
            kind = Unavailable if e.code == StatusCode.INTERNAL_ERROR else ConfigError
            raise kind(f"{','.join(map(endpoint, s.link.urls))}: {e}") from e
        link = connection.link
        self._carries = Feature.HEADERS in link.machine.features
        try:
            if s.dead_letters and not self._carries:
                raise ConfigError(f"{link.endpoint}: dead letters have headers, which this broker does not carry")
            if s.stream is not None:
                self._stored = self._opened(connection, s.stream)
        except BaseException:
            link.close(0.0)
            raise
        if s.dedup and not self._carries and not connection.warned:
            connection.warned = True
            log.warning(
                "%s: this broker carries no ids, so dedup is off: a resend may be delivered twice", link.endpoint
            )
        self._connection = connection

    def _opened(self, connection: PooledConnection, stream: str) -> bool:
        """Is the stream stored?"""
        link, call = connection.link, None
        with link.changed:
            if stream not in connection.streams:
                connection.ask(stream)
                call = connection.streams[stream].call
                assert call is not None
                call.deadline = time.monotonic() + self.settings.connect_timeout
        try:
            if call is not None:
                link.wait(call, f"writing to {stream!r}")
        except CallFailed as e:
            kind = Unavailable if e.code == StatusCode.INTERNAL_ERROR else ConfigError
            raise kind(f"{link.endpoint}: {refusal(stream, e).info}") from e
        with link.changed:
            connection.answered()
            return connection.streams[stream].stored

    def close(self) -> None:
        """See :class:`~mama_spark.bridge.PublisherBridge`."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if self._quiet(connection):
            POOL.give_back(connection)
        else:
            connection.link.close(self.settings.connect_timeout)

    def _quiet(self, connection: PooledConnection) -> bool:
        """Nothing comes any more that the next user of the connection would have to know of."""
        link = connection.link
        if self._chunks or self._down or not connection.usable:
            return False
        if self._unanswered:
            try:
                with link.changed:
                    call = link.machine.ping(time.monotonic(), time.monotonic() + self.settings.connect_timeout)
                link.wait(call, "handing over what was sent")
            except MamaError:
                return False
        return True

    # --- sending -------------------------------------------------------------------------------------------------

    def prepare(self, batch: MessageBatch) -> ValidationResult:
        """See :class:`~mama_spark.bridge.PublisherBridge`. Streams are asked for when they are sent to."""
        if batch.streams is None and self.settings.stream is None:
            raise ConfigError(_NO_STREAM)
        self._by_row = self._by_row or batch.streams is not None
        # ids make a resend safe in stored streams alone, and which these are is not known yet
        non_retriable = None if batch.streams is None or self.settings.resend else np.ones(len(batch), np.bool_)
        return ValidationResult(fr.check(batch, self._carries), non_retriable)

    def send(self, batch: MessageBatch, first_token: int) -> int:
        """See :class:`~mama_spark.bridge.PublisherBridge`."""
        connection = self._connection
        if connection is None:
            raise ClientClosed("the bridge is not open")
        link = connection.link
        allowance = link.machine.send_window  # what the broker takes; more comes as it answers
        room = min(link.capacity, _CHUNK if allowance is None else min(_CHUNK, allowance))
        if not len(batch) or room <= 0 or self._down or self._changed or not connection.usable:
            return 0  # a new connection is told by poll first
        ends = np.cumsum(batch.sizes())
        n = min(max(1, int(np.searchsorted(ends, room, "right"))), _MESSAGES)
        part = batch.slice(0, n)
        if not self._carries:
            part = replace(part, headers=None, ids=None)
        groups = fr.by_stream(part, self.settings.stream or "")
        n = self._known(connection, groups, n)
        ready = [(name, rows[rows < n]) for name, rows in groups if n and rows[0] < n]
        parcels = [(name, rows, self._frames(connection, name, part, rows, n)) for name, rows in ready]
        with link.changed:
            if not n or self._down or not connection.usable:
                return 0
            for name, rows, messages in parcels:
                self._hand_over(connection, name, rows + first_token, messages)
            link.count_queued(int(ends[n - 1]) + 64 * n)
        link.wake()
        return n

    def _known(self, connection: PooledConnection, groups: list[tuple[str, Int64s]], n: int) -> int:
        """How many of the first ``n`` messages may go: the broker has answered for their streams."""
        with connection.link.changed:
            connection.answered()
            for name, rows in groups:
                stream = connection.streams.get(name)
                if stream is None:
                    try:
                        connection.ask(name)
                    except MamaError:
                        return 0
                if stream is None or stream.call is not None:
                    n = min(n, int(rows[0]))
                elif name == self.settings.stream and stream.stored != self._stored and stream.error is None:
                    self._changed = "the stream is stored no more" if self._stored else "the stream is stored now"
        connection.link.wake()
        return n

    def _frames(
        self, connection: PooledConnection, name: str, part: MessageBatch, rows: Int64s, n: int
    ) -> list[Sequence[bytes]]:
        """Of each message, or of one block with all of them."""
        if connection.streams[name].error is not None:
            return []
        messages = part.slice(0, n) if len(rows) == n else part.take(rows)
        together = len(messages) > 1 and Feature.BLOCKS in connection.link.machine.features
        return [fr.block(messages)] if together else fr.frames(messages)

    def _hand_over(
        self, connection: PooledConnection, name: str, tokens: Int64s, messages: list[Sequence[bytes]]
    ) -> None:
        stream, machine = connection.streams[name], connection.link.machine
        if stream.error is not None:
            self._refused.append(Refusals(tokens, stream.error, time.monotonic()))
            if stream.error.retryable:
                connection.ask(name)
            return
        connection.switch(name)
        if len(messages) < len(tokens):
            machine.send_block(messages[0], len(tokens))
        else:
            machine.send_frames(messages)
        if self.settings.acks:
            self._chunks.append(_Chunk(tokens, name, machine.ping(time.monotonic(), _NEVER)))
        else:
            self._unanswered = True

    def flush(self) -> None:
        """Every chunk is answered by itself: nothing to do."""

    # --- answers -------------------------------------------------------------------------------------------------

    def poll(self, timeout: float, want: int = 1) -> PollResult:
        """See :class:`~mama_spark.bridge.PublisherBridge`."""
        connection = self._connection
        if connection is None:
            return PollResult()
        link = connection.link
        with link.changed:
            link.changed.wait_for(lambda: self._worth(connection, want), max(0.0, timeout))
            polled = PollResult()
            self._settle(polled)
            self._watch(connection, polled)
        return polled

    def _worth(self, connection: PooledConnection, want: int) -> bool:
        """Is it worth while to wake the caller?"""
        if self._refused or connection.answered():
            return True
        answered = 0
        for chunk in self._chunks:
            if not chunk.call.done:
                break
            if any(run.outcome is StoreOutcome.REFUSED for run in chunk.call.extension.acks):
                return True
            answered += 0 if chunk.call.error else len(chunk.tokens)
        return answered >= want or bool(self._news(connection))

    def _settle(self, polled: PollResult) -> None:
        now = time.monotonic()
        polled.refusals.extend(self._refused)
        self._refused.clear()
        while self._chunks and self._chunks[0].call.done:
            chunk = self._chunks.popleft()
            if chunk.call.error is None:  # else the connection was lost, and the event says so
                _answers(chunk, now, polled)

    def _news(self, connection: PooledConnection) -> str:
        link = connection.link
        if self._changed or link.fatal is not None or link.machine.state in (ClientState.FAILED, ClientState.CLOSED):
            return "" if self._told else "closed"
        if not self._down and not connection.usable:
            return "down"
        return "up" if self._down and link.connected else ""

    def _watch(self, connection: PooledConnection, polled: PollResult) -> None:
        """What happened to the connection, as events."""
        now, link = time.monotonic(), connection.link
        if self._news(connection) == "down":
            self._down = True
            connection.renew()
            self._chunks.clear()
            text = link.explain("publishing", "the connection was lost")
            polled.events.append(BridgeEvent(EventKind.DISCONNECTED, text, now))
        if self._news(connection) == "up":
            self._down = False
            connection.renew()
            if self._carries != (Feature.HEADERS in link.machine.features):
                self._changed = "a broker of another kind answers"
            polled.events.append(BridgeEvent(EventKind.RECONNECTED, f"connected to {link.endpoint} again", now))
        if self._news(connection) == "closed":
            self._told = True
            text = link.explain("publishing", self._changed or str(link.fatal or "the broker refused the connection"))
            polled.events.append(BridgeEvent(EventKind.CLOSED, text, now, error=Rejected(text)))


def _answers(chunk: _Chunk, now: float, polled: PollResult) -> None:
    """What the PONG says of the chunk's messages, in their order."""
    left = chunk.tokens
    for run in chunk.call.extension.acks or (AckRun(StoreOutcome.ACCEPTED, len(left)),):
        tokens, left = left[: run.count], left[run.count :]
        n = len(tokens)
        if not n:
            continue
        if run.outcome is StoreOutcome.REFUSED:
            error = OutOfResources(f"stream {chunk.stream!r} did not store it")
            polled.refusals.append(Refusals(tokens, error, now))
            continue
        sequences = np.arange(run.first, run.first + n, dtype=np.int64) if run.first else None
        duplicates = (
            np.full(n, run.outcome is StoreOutcome.DUPLICATE) if run.outcome is not StoreOutcome.ACCEPTED else None
        )
        polled.acks.append(Acks(tokens, sequences, duplicates, chunk.stream, now))
    if len(left):
        polled.refusals.append(Refusals(left, OutcomeUnknown("the broker did not say what became of it"), now))
