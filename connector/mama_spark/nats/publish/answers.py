"""Puts acknowledgements, refusals and events of a bridge's connection into its queue."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.bridge import Acks, BridgeEvent, EventKind, Refusals
from mama_spark.contracts.errors import MamaError, PermissionDenied, PublishError, Rejected, Unavailable
from mama_spark.contracts.message import Int64s, MessageBatch

from ..connection.socket_connection import MAX_UNWRITTEN, SocketConnection
from ..error_codes import not_entitled, not_subscribed
from ..protocol.acks import AckColumns, PubAck, Reply
from ..protocol.frames import TOKEN_WIDTH
from .ack_queue import AckQueue
from .conflicts import Conflicts
from .fast_ingest import FastIngestPublisher
from .fences import Fences
from .stream_router import StreamRouter

if TYPE_CHECKING:
    from .client_connection import CallersClient

_REMEMBERED = 128 * 1024  #: sends


class NatsAnswers:
    """A :class:`~mama_spark.nats.connection.socket_connection.ConnectionListener`.

    :param fast_ingest: None = no batches
    :param fences: learns of lost and new connections; None = without ``exactlyOnce``
    :param conflicts: interprets refusals of changes that expect a revision; None = without a bucket
    :ivar base: token on the wire of the bridge's token 0
    :ivar unacknowledged: bytes and tokens of sends that count as answered once written
    :ivar waiting_for_capacity: the publisher has more to send, and is woken when there is room
    """

    def __init__(
        self,
        connection: SocketConnection | CallersClient,
        fast_ingest: FastIngestPublisher | None,
        queue: AckQueue,
        router: StreamRouter,
        warn: Callable[[str], None],
        fences: Fences | None = None,
        conflicts: Conflicts | None = None,
    ) -> None:
        self._connection, self._fast_ingest, self._queue = connection, fast_ingest, queue
        self._router, self._warn, self.base = router, warn, connection.next_token
        self._fences, self._conflicts = fences, conflicts
        self.sent = LatestSends()
        self.unacknowledged: deque[tuple[int, Int64s]] = deque()
        self.waiting_for_capacity = False

    def on_acks(self, columns: list[AckColumns]) -> None:
        now = time.monotonic()
        for c in columns:
            tokens = np.concatenate(c.tokens) - self.base
            sequences, duplicates = np.concatenate(c.sequences), np.concatenate(c.duplicates)
            if tokens.min() < 0:  # answers to the previous bridge on this connection
                mine = tokens >= 0
                tokens, sequences, duplicates = tokens[mine], sequences[mine], duplicates[mine]
            if len(tokens) and not self._is_elsewhere(c.stream, c.domain, tokens):
                repeated, known = bool(duplicates.any()), sequences if self._router.acks.mode == "message" else None
                self._queue.acks(Acks(tokens, known, duplicates if repeated else None, c.stream, now, c.domain))
                self._answered(tokens, stored_anew=0 if repeated else int(sequences.max()))

    def _is_elsewhere(self, stream: str, domain: str | None, tokens: Int64s) -> bool:
        """Whether an acknowledgement does not count: a stream of another domain than ``jsDomain`` takes the same topic,
        and the intended stream has not stored the message. Another stream of the same domain got the message by the
        account's mapping: then nothing more is published."""
        wanted = self._router.settings.js_domain
        if wanted is None or wanted == domain:
            if (stray := self._router.stray(stream, lambda: self.sent.of(tokens))) is not None:
                self._queue.fail(stray)
            return stray is not None
        where = "no domain" if domain is None else f"the domain {domain!r}"
        self._warn(
            f"stream {stream!r} of {where} takes these topics, too: its acknowledgements do not count, because "
            f"jsDomain={wanted}"
        )
        return True

    def _answered(self, tokens: Int64s, *, refused: bool = False, stored_anew: int = 0) -> None:
        if self._fast_ingest is not None and self._fast_ingest.alone.under_way:
            self._fast_ingest.alone.on_answer(tokens, refused=refused, stored_anew=stored_anew)

    def on_reply(self, subject: bytes, reply: Reply) -> None:
        last = subject[len(self._connection.inbox) :]
        if not (last.isdigit() and len(last) == TOKEN_WIDTH):
            if self._fast_ingest is not None:
                self._fast_ingest.on_reply(subject, reply)
            return
        token = int(last) - self.base
        now = time.monotonic()
        if token < 0:
            return
        tokens = np.array([token])
        if isinstance(reply, PubAck):
            if self._is_elsewhere(reply.stream, reply.domain, tokens):
                return
            duplicate = np.array([True]) if reply.duplicate else None
            known = np.array([reply.sequence]) if self._router.acks.mode == "message" else None
            self._queue.acks(Acks(tokens, known, duplicate, reply.stream, now, reply.domain))
            self._answered(tokens, stored_anew=0 if reply.duplicate else reply.sequence)
        elif isinstance(reply, PublishError):
            if self._conflicts is not None and self._conflicts.takes(token, self.sent.message(token), reply):
                return
            self._queue.refusals(Refusals(tokens, reply, now))
            self._answered(tokens, refused=True)

    def on_denied(self, kind: str, subject: str, exact: bool) -> None:
        now = time.monotonic()
        if kind != "publish":
            text = str(not_subscribed(kind, subject))
            self._queue.event(BridgeEvent(EventKind.CLOSED, text, now, error=PermissionDenied(text)))
            return
        error = not_entitled(subject)
        tokens = self.sent.take(subject, exact)
        if len(tokens):
            self._queue.refusals(Refusals(tokens, error, now))
            if self._fast_ingest is not None and self._router.acks.mode == "batch":
                self._fast_ingest.on_denied(tokens, error)
            self._answered(tokens, refused=True)

    def on_unsent(self, token: int, error: MamaError) -> None:
        if isinstance(error, Unavailable) and not isinstance(error, PublishError):
            return  # the connection breaks: DISCONNECTED or the timeout settles it
        refusal = error if isinstance(error, PublishError) else Rejected(str(error))
        self._queue.refusals(Refusals(np.array([token - self.base]), refusal, time.monotonic()))

    def on_disconnected(self, why: str = "") -> None:
        self.unacknowledged.clear()
        if self._fences is not None:
            self._fences.disconnected()
        if self._fast_ingest is not None:
            self._fast_ingest.alone.on_disconnected()
        text = "the connection to NATS was lost" + (why and f": {why}")
        self._queue.event(BridgeEvent(EventKind.DISCONNECTED, text, time.monotonic()))

    def on_reconnected(self) -> None:
        if self._fences is not None:
            self._fences.connected()
        if self._fast_ingest is None or not self._fast_ingest.resolve(self._reconnected):
            self._reconnected()

    def _reconnected(self) -> None:
        self._queue.event(BridgeEvent(EventKind.RECONNECTED, "connected to NATS again", time.monotonic()))

    def on_closed(self, info: str) -> None:
        text = f"the connection to NATS was closed for good: {info}"
        self._queue.event(BridgeEvent(EventKind.CLOSED, text, time.monotonic(), error=Rejected(text)))

    def on_written(self, size: int) -> None:
        left = size
        while self.unacknowledged and left >= self.unacknowledged[0][0]:
            taken, tokens = self.unacknowledged.popleft()
            left -= taken
            self._queue.acks(Acks(tokens, None, None, None, time.monotonic()))
        if self.waiting_for_capacity and self._connection.unwritten < MAX_UNWRITTEN // 2:
            self.waiting_for_capacity = False
            self._queue.wake()


@dataclass(slots=True)
class _Run:
    first_token: int
    topics: pa.DictionaryArray
    messages: MessageBatch | None


class LatestSends:
    """Topics and messages of the latest sends, in runs, oldest first: a permission violation names only a subject. One
    thread adds, another one may take."""

    def __init__(self) -> None:
        self._runs: deque[_Run] = deque()

    def add(self, first_token: int, topics: pa.DictionaryArray, messages: MessageBatch | None = None) -> None:
        """Add a run of sends with tokens from ``first_token``; :meth:`message` returns the ``messages``."""
        self._runs.append(_Run(first_token, topics, messages))
        while len(self._runs) > 1 and self._runs[1].first_token < first_token - _REMEMBERED:
            self._runs.popleft()

    def message(self, token: int) -> MessageBatch | None:
        """The message of this send, if it is remembered."""
        run = next((run for run in reversed(self._runs) if run.first_token <= token), None)
        if run is None or run.messages is None or token - run.first_token >= len(run.messages):
            return None
        return run.messages.slice(token - run.first_token, 1)

    def of(self, tokens: Int64s) -> set[str]:
        found: set[str] = set()
        for run in list(self._runs):
            rows = tokens[(tokens >= run.first_token) & (tokens < run.first_token + len(run.topics))] - run.first_token
            if len(rows):
                found.update(filter(None, run.topics.take(pa.array(rows)).unique().to_pylist()))
        return found

    def take(self, subject: str, exact: bool) -> Int64s:
        """Tokens of the sends to ``subject``, each returned once. Not ``exact``: ``subject`` is in lower case."""
        found = []
        for run in list(self._runs):
            names = run.topics.dictionary.to_pylist()
            mine = [j for j, n in enumerate(names) if n is not None and (n if exact else n.lower()) == subject]
            if mine:
                rows = np.flatnonzero(np.isin(run.topics.indices.to_numpy(zero_copy_only=False), mine))
                found.append(rows + run.first_token)
                run.topics = _without_topics(run.topics, mine)
        return np.concatenate(found) if found else np.array([], np.int64)


def _without_topics(topics: pa.DictionaryArray, mine: list[int]) -> pa.DictionaryArray:
    """Topics with some set to null, so that their sends are settled once."""
    indices = topics.indices.to_numpy(zero_copy_only=False)
    mask = pa.array(np.isin(indices, mine))
    return pa.DictionaryArray.from_arrays(
        pc.if_else(mask, pa.scalar(None, topics.indices.type), topics.indices), topics.dictionary
    )
