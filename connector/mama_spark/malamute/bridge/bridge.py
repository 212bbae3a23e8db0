"""The publisher bridge to Malamute brokers: the contract of :mod:`mama_spark.contracts.bridge` over one connection.

Messages are sent in chunks, and the messages of a chunk for one stream are followed by a PING: replies come in order,
so the PONG acknowledges them. From our own broker it carries their outcomes, with sequences where the stream is stored.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

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
from mama_spark.contracts.errors import ClientClosed, ConfigError, MamaError, OutcomeUnknown, OutOfResources, Rejected
from mama_spark.contracts.message import Int64s, MessageBatch
from mama_spark.malamute.client.calls import Call, CallFailed, refused
from mama_spark.malamute.client.states import ClientState
from mama_spark.malamute.protocol.commands import MAX_STRING
from mama_spark.malamute.protocol.extensions import AckRun, Feature, StoreOutcome

from . import frames as fr
from .pool import POOL, PooledConnection, WritableStream, stream_error
from .settings import MalamuteSettings

log = logging.getLogger("mama_spark")

#: Most bytes of payload in one call of ``send``.
_CHUNK_BYTES = 1024 * 1024
#: Most messages in one: their outcomes are unknown when a connection breaks, and a PONG comes no sooner.
_CHUNK_MESSAGES = 1024
_NEVER = float("inf")
_NO_STREAM = "no stream is named: give the option stream, a column stream, or mlp://host:port/stream"


@dataclass(slots=True)
class _Chunk:
    """Messages of one stream that one PING acknowledges."""

    tokens: Int64s
    stream: str
    call: Call
    opened: WritableStream


class MalamuteBridge(PublisherBridge):
    """Publishes to the stream of the settings, or to the one that each message names."""

    def __init__(self, settings: MalamuteSettings) -> None:
        self.settings = settings
        self._pooled: PooledConnection | None = None
        self._carries_headers = False  # and ids, to the readers: the broker is ours
        self._stored = False
        self._streams_by_row = False
        self._chunks: deque[_Chunk] = deque()
        self._refused: list[Refusals] = []
        self._sent_unacknowledged = False
        self._down = False
        self._incompatible = ""  # why the bridge cannot go on after a reconnect
        self._close_reported = False

    def __repr__(self) -> str:
        where = self.settings.stream or "streams"
        if self._pooled is None:
            return f"<MalamuteBridge {where} closed>"
        connection = self._pooled.connection
        state = f"{connection.endpoint}, {connection.machine.state.value}"
        return f"<MalamuteBridge {where} at {state}, {len(self._chunks)} chunks>"

    @property
    def capabilities(self) -> Capabilities:
        """Abilities at the broker. Streams that messages name may differ: only acknowledgements of stored ones have
        sequences."""
        acks, stored = self.settings.acks, self._carries_headers and (self._streams_by_row or self._stored)
        return Capabilities(
            ack=Ack.NONE if not acks else Ack.STORED if stored else Ack.ACCEPTED,
            sequence=acks and stored,
            dedup=stored and self.settings.dedup,
            headers=self._carries_headers,
            ordered=False,
            max_payload=fr.MAX_PAYLOAD,
            max_topic=MAX_STRING,
        )

    def open(self) -> None:
        s = self.settings
        if s.stream is None and s.dead_letters:
            raise ConfigError("dead letters need a stream for deadLetterTopic: give the option stream")
        pooled = POOL.checkout(s.connection, s.connect_timeout)
        connection = pooled.connection
        self._carries_headers = Feature.HEADERS in connection.machine.features
        try:
            if s.dead_letters and not self._carries_headers:
                raise ConfigError(f"{connection.endpoint}: dead letters have headers, which this broker does not carry")
            if s.stream is not None:
                self._stored = self._open_stream(pooled, s.stream)
        except BaseException:
            connection.close(0.0)
            raise
        if s.dedup and not self._carries_headers and not pooled.warned:
            pooled.warned = True
            log.warning(
                "%s: this broker carries no ids, so dedup is off: a resend may be delivered twice", connection.endpoint
            )
        self._pooled = pooled

    def _open_stream(self, pooled: PooledConnection, stream: str) -> bool:
        """Open the stream of the settings; True if it is stored."""
        connection, call = pooled.connection, None
        with connection.changed:
            if stream not in pooled.streams:
                pooled.open_stream(stream)
                call = pooled.streams[stream].call
                assert call is not None
                call.deadline = time.monotonic() + self.settings.connect_timeout
        try:
            if call is not None:
                connection.wait(call, f"writing to {stream!r}")
        except CallFailed as e:
            raise refused(e.code, f"{connection.endpoint}: {stream_error(stream, e).info}") from e
        with connection.changed:
            pooled.take_answers()
            return pooled.streams[stream].stored

    def close(self) -> None:
        pooled, self._pooled = self._pooled, None
        if pooled is None:
            return
        if self._drained(pooled):
            POOL.give_back(pooled)
        else:
            pooled.connection.close(self.settings.connect_timeout)

    def _drained(self, pooled: PooledConnection) -> bool:
        """Wait for all answers; True if the connection can be given back."""
        connection = pooled.connection
        if self._chunks or self._down or not pooled.usable:
            return False
        if self._sent_unacknowledged:
            try:
                with connection.changed:
                    call = connection.machine.ping(time.monotonic(), time.monotonic() + self.settings.connect_timeout)
                connection.wait(call, "waiting for the broker")
            except MamaError:
                return False
        return True

    def prepare(self, batch: MessageBatch) -> ValidationResult:
        """Streams are opened when messages are sent to them."""
        if batch.streams is None and self.settings.stream is None:
            raise ConfigError(_NO_STREAM)
        self._streams_by_row = self._streams_by_row or batch.streams is not None
        # ids make a resend safe only in stored streams, and it is not known yet which are
        non_retriable = None if batch.streams is None or self.settings.resend else np.ones(len(batch), np.bool_)
        return ValidationResult(fr.check(batch, self._carries_headers), non_retriable)

    def send(self, batch: MessageBatch, first_token: int) -> int:
        pooled = self._pooled
        if pooled is None:
            raise ClientClosed("the bridge is not open")
        connection = pooled.connection
        window = connection.machine.send_window.left  # grows when the broker answers
        capacity = min(connection.capacity, _CHUNK_BYTES if window is None else min(_CHUNK_BYTES, window))
        if not len(batch) or capacity <= 0 or self._down or self._incompatible or not pooled.usable:
            return 0  # poll reports a new connection first
        ends = np.cumsum(batch.sizes())
        n = min(max(1, int(np.searchsorted(ends, capacity, "right"))), _CHUNK_MESSAGES)
        part = batch.slice(0, n)
        if not self._carries_headers:
            part = replace(part, headers=None, ids=None)
        groups = fr.by_stream(part, self.settings.stream or "")
        n = self._writable_rows(pooled, groups, n)
        ready = [(name, rows[rows < n]) for name, rows in groups if n and rows[0] < n]
        encoded = [(name, rows, self._frames(pooled, name, part, rows, n)) for name, rows in ready]
        with connection.changed:
            if not n or self._down or not pooled.usable:
                return 0
            for name, rows, messages in encoded:
                self._send_group(pooled, name, rows + first_token, messages)
            connection.count_queued(int(ends[n - 1]) + 64 * n)
        connection.wake()
        return n

    def _writable_rows(self, pooled: PooledConnection, groups: list[tuple[str, Int64s]], n: int) -> int:
        """Number of the first ``n`` messages that may be sent: the broker has answered for their streams."""
        with pooled.connection.changed:
            pooled.take_answers()
            for name, rows in groups:
                stream = pooled.streams.get(name)
                if stream is None:
                    try:
                        pooled.open_stream(name)
                    except MamaError:
                        return 0
                if stream is None or stream.call is not None:
                    n = min(n, int(rows[0]))
                elif name == self.settings.stream and stream.stored != self._stored and stream.error is None:
                    self._incompatible = (
                        "the stream is not stored any more" if self._stored else "the stream is stored now"
                    )
        pooled.connection.wake()
        return n

    def _frames(
        self, pooled: PooledConnection, name: str, part: MessageBatch, rows: Int64s, n: int
    ) -> list[Sequence[bytes]]:
        if pooled.streams[name].error is not None:
            return []
        messages = part.slice(0, n) if len(rows) == n else part.take(rows)
        together = len(messages) > 1 and Feature.BLOCKS in pooled.connection.machine.features
        return [fr.block(messages)] if together else fr.frames(messages)

    def _send_group(self, pooled: PooledConnection, name: str, tokens: Int64s, messages: list[Sequence[bytes]]) -> None:
        stream, machine = pooled.streams[name], pooled.connection.machine
        if stream.error is not None:
            self._refused.append(Refusals(tokens, stream.error, time.monotonic()))
            if stream.error.retryable:
                pooled.open_stream(name)
            return
        pooled.switch(name)
        machine.send_frames(messages, len(tokens))
        if self.settings.acks:
            self._chunks.append(_Chunk(tokens, name, machine.ping(time.monotonic(), _NEVER), stream))
        else:
            self._sent_unacknowledged = True

    def flush(self) -> None:
        """Do nothing: every chunk is answered."""

    def poll(self, timeout: float, want: int = 1) -> PollResult:
        pooled = self._pooled
        if pooled is None:
            return PollResult()
        connection = pooled.connection
        with connection.changed:
            connection.changed.wait_for(lambda: self._should_wake(pooled, want), max(0.0, timeout))
            polled = PollResult()
            self._take_answers(polled)
            self._report_connection(pooled, polled)
        return polled

    def _should_wake(self, pooled: PooledConnection, want: int) -> bool:
        if self._refused or pooled.take_answers():
            return True
        answered = 0
        for chunk in self._chunks:
            if not chunk.call.done:
                break
            if any(run.outcome is StoreOutcome.REFUSED for run in chunk.call.extension.acks):
                return True
            answered += 0 if chunk.call.error else len(chunk.tokens)
        return answered >= want or bool(self._connection_change(pooled))

    def _take_answers(self, polled: PollResult) -> None:
        now = time.monotonic()
        polled.refusals.extend(self._refused)
        self._refused.clear()
        while self._chunks and self._chunks[0].call.done:
            chunk = self._chunks.popleft()
            if chunk.call.error is None:  # else the connection was lost, which an event reports
                _report_outcomes(chunk, now, polled)

    def _connection_change(self, pooled: PooledConnection) -> str:
        connection = pooled.connection
        ended = connection.fatal is not None or connection.machine.state in (ClientState.FAILED, ClientState.CLOSED)
        if self._incompatible or ended:
            return "" if self._close_reported else "closed"
        if not self._down and not pooled.usable:
            return "down"
        return "up" if self._down and connection.connected else ""

    def _report_connection(self, pooled: PooledConnection, polled: PollResult) -> None:
        now, connection = time.monotonic(), pooled.connection
        if self._connection_change(pooled) == "down":
            self._down = True
            pooled.renew()
            self._chunks.clear()
            text = connection.explain("publishing", "the connection was lost")
            polled.events.append(BridgeEvent(EventKind.DISCONNECTED, text, now))
        if self._connection_change(pooled) == "up":
            self._down = False
            pooled.renew()
            if self._carries_headers != (Feature.HEADERS in connection.machine.features):
                self._incompatible = "a broker of another kind answers"
            polled.events.append(BridgeEvent(EventKind.RECONNECTED, f"connected to {connection.endpoint} again", now))
        if self._connection_change(pooled) == "closed":
            self._close_reported = True
            cause = self._incompatible or str(connection.fatal or "the broker refused the connection")
            text = connection.explain("publishing", cause)
            polled.events.append(BridgeEvent(EventKind.CLOSED, text, now, error=Rejected(text)))


def _report_outcomes(chunk: _Chunk, now: float, polled: PollResult) -> None:
    """A PONG carries the outcomes in the order of the messages."""
    left, stored = chunk.tokens, chunk.opened.stored
    for run in chunk.call.extension.acks or (AckRun(StoreOutcome.ACCEPTED, len(left)),):
        if stored and run.outcome is StoreOutcome.ACCEPTED:  # the engine that had them has ended
            break
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
        polled.refusals.append(Refusals(left, OutcomeUnknown("the broker reported no outcome"), now))
