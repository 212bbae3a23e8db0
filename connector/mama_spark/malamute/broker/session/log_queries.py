"""Answers queries of clients about stored streams (:mod:`mama_spark.malamute.protocol.log_query`). Pure.

Queries are sent to the engines a few at a time, round robin over the clients, and only while the client's socket
accepts the answers to earlier queries. The memory for fetched messages is therefore bounded, without credit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Protocol

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import BadFrame, StatusCode
from mama_spark.malamute.protocol.extensions import Extension, write
from mama_spark.malamute.protocol.log_query import (
    LogQuery,
    LogQueryAnswer,
    Op,
    names_body,
    number_of,
    parse_query,
)

from ..engines.commands import AnswerQuery
from .client_session import ClientSession, Frames
from .connections import Connections
from .streams import Streams

#: Most open queries of one client, and most queries at one stream's engine.
MAX_OPEN = 16
MAX_AT_ENGINE = 4


class ReadableStreams(Protocol):
    """The caller's knowledge of stored streams, open or not."""

    def names(self, are_open: Iterable[bytes]) -> list[bytes]:
        """Names of all readable stored streams, sorted; ``are_open`` are the open streams."""
        ...

    def refusal(self, stream: bytes, is_open: bool) -> LogQueryAnswer | None:
        """Why the stream cannot be read; None = it can, and is opened if necessary."""
        ...


class NoReadableStreams:
    """Nothing is stored."""

    def names(self, are_open: Iterable[bytes]) -> list[bytes]:
        return []

    def refusal(self, stream: bytes, is_open: bool) -> LogQueryAnswer | None:
        return LogQueryAnswer(0, StatusCode.NOT_IMPLEMENTED, b"nothing is stored here")


_Queued = tuple[ClientSession, LogQuery]


class LogQueryServer:
    """:param catalog: the stored streams"""

    def __init__(self, catalog: ReadableStreams, clients: Connections, streams: Streams) -> None:
        self._catalog = catalog
        self._clients = clients
        self._streams = streams
        self._queued: dict[bytes, deque[_Queued]] = {}  # by stream, for its engine
        self._sent_queries: dict[bytes, list[_Queued]] = {}
        self._open: dict[ClientSession, int] = {}  # number of unanswered queries
        self._parked: dict[ClientSession, list[_Queued]] = {}  # of clients with blocked sockets

    def ask(self, client: ClientSession, packed: bytes) -> None:
        """Process a query of a client that announced the feature."""
        query = parse_query(packed)
        if query is None:
            number = number_of(packed)
            if number is not None:
                self._reply(client, LogQueryAnswer(number, StatusCode.FAILED, b"the question is not understood"))
        elif query.op is Op.NAMES:
            names = self._catalog.names(self._streams)
            self._reply(client, LogQueryAnswer(query.number, body=names_body(names, query.text)))
        elif self._open.get(client, 0) >= MAX_OPEN:
            self._reply(client, LogQueryAnswer(query.number, StatusCode.FAILED, b"too many questions at a time"))
        elif (refusal := self._refusal(query.stream)) is not None:
            self._reply(client, replace(refusal, number=query.number))
        else:
            self._streams.add(query.stream)
            self._open[client] = self._open.get(client, 0) + 1
            self._enqueue(client, query)

    def answered(self, stream: bytes, client: Hashable, answer: LogQueryAnswer, records: list[Frames]) -> None:
        """Process the engine's answer to its oldest query, with the records of a fetch."""
        sent = self._sent_queries.get(stream)
        if sent:
            sent.pop(0)
        if isinstance(client, ClientSession) and client.connected:
            self._close(client)
            self._clients.send_or_keep(client, [*records, _pong(answer)])
        self._send_to_engine(stream)

    def unblocked(self, client: ClientSession) -> None:
        """To be called when the client's socket is unblocked."""
        for _, query in self._parked.pop(client, ()):
            self._enqueue(client, query)

    def gone(self, client: ClientSession) -> None:
        """Forget the queries of a client; answers of engines to them are dropped."""
        self._parked.pop(client, None)
        if self._open.pop(client, None):
            for stream, queued in list(self._queued.items()):
                self._queued[stream] = deque(entry for entry in queued if entry[0] is not client)

    def stream_lost(self, stream: bytes, reason: bytes) -> None:
        """Process the failure of an engine: all queries about the stream are answered with an error."""
        for client, query in (*self._sent_queries.pop(stream, ()), *self._queued.pop(stream, ())):
            if client.connected:
                self._fail(client, query, reason)

    def asks_about(self, stream: bytes) -> bool:
        """Whether a query about the stream is not answered."""
        parked = (query for queries in self._parked.values() for _, query in queries)
        waits = self._queued.get(stream) or self._sent_queries.get(stream)
        return bool(waits) or any(query.stream == stream for query in parked)

    def stream_ended(self, stream: bytes) -> None:
        """Forget a stream about which nothing is asked."""
        self._queued.pop(stream, None)
        self._sent_queries.pop(stream, None)

    def _refusal(self, stream: bytes) -> LogQueryAnswer | None:
        refusal = self._catalog.refusal(stream, stream in self._streams)
        if refusal is None and not self._streams.may_add(stream):
            return LogQueryAnswer(0, StatusCode.FAILED, b"too many streams")
        return refusal

    def _enqueue(self, client: ClientSession, query: LogQuery) -> None:
        if client.blocked:
            self._parked.setdefault(client, []).append((client, query))
            return
        if query.stream not in self._streams:  # lost while the query was parked
            self._fail(client, query, b"the stream was lost")
            return
        self._queued.setdefault(query.stream, deque()).append((client, query))
        self._send_to_engine(query.stream)

    def _send_to_engine(self, stream: bytes) -> None:
        """Send queued queries to the engine, up to its limit."""
        queued, sent = self._queued.get(stream), self._sent_queries.setdefault(stream, [])
        while queued and len(sent) < MAX_AT_ENGINE:
            client, query = queued.popleft()
            if not client.connected:
                continue
            if client.blocked:
                self._parked.setdefault(client, []).append((client, query))
                continue
            sent.append((client, query))
            self._streams.put(stream, AnswerQuery(client, query))
        if not queued:
            self._queued.pop(stream, None)
        if not sent:
            self._sent_queries.pop(stream, None)

    def _close(self, client: ClientSession) -> None:
        """Decrease the number of the client's open queries."""
        left = self._open.get(client, 0) - 1
        if left > 0:
            self._open[client] = left
        else:
            self._open.pop(client, None)

    def _fail(self, client: ClientSession, query: LogQuery, reason: bytes) -> None:
        self._close(client)
        self._reply(client, LogQueryAnswer(query.number, StatusCode.INTERNAL_ERROR, reason))

    def _reply(self, client: ClientSession, answer: LogQueryAnswer) -> None:
        """Answer without an engine; a client that does not read its replies is dropped at the limit of replies."""
        self._clients.emit(client, _pong(answer))


def _pong(answer: LogQueryAnswer) -> Frames:
    try:
        return commands.encode(commands.Pong(write(Extension(answer=answer.pack()))))
    except BadFrame:  # an invalid answer of an engine from another package
        answer = LogQueryAnswer(answer.number, StatusCode.INTERNAL_ERROR, b"the answer does not fit")
        return commands.encode(commands.Pong(write(Extension(answer=answer.pack()))))
