"""Answers queries of clients about stored streams (:mod:`mama_spark.malamute.protocol.log_query`). Pure.

Queries go to the engines a few at a time, round robin over the clients, and only while the client's socket accepts
earlier answers. This bounds the memory for fetched messages without credit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import replace

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import BadFrame, StatusCode
from mama_spark.malamute.protocol.extensions import Extension, write
from mama_spark.malamute.protocol.log_query import LogQuery, LogQueryAnswer, Op, names_body, number_of, parse_query

from ..engines.commands import AnswerQuery
from .clients import ClientSession, Connections, Frames
from .streams import Stream, StreamCatalog, Streams

#: Most open queries of one client, and most queries at one stream's engine.
MAX_OPEN = 16
MAX_AT_ENGINE = 4


class LogQueryServer:
    """Queries wait in their stream (:class:`~.streams.Stream`), or in their client while its socket is blocked."""

    def __init__(self, catalog: StreamCatalog, clients: Connections, streams: Streams) -> None:
        self._catalog = catalog
        self._clients = clients
        self._streams = streams

    def ask(self, client: ClientSession, packed: bytes) -> None:
        """The client announced the feature."""
        query = parse_query(packed)
        if query is None:
            number = number_of(packed)
            if number is not None:
                self._reply(client, LogQueryAnswer(number, StatusCode.FAILED, b"the question is not understood"))
        elif query.op is Op.NAMES:
            names = self._catalog.names(self._streams)
            self._reply(client, LogQueryAnswer(query.number, body=names_body(names, query.text)))
        elif client.open_queries >= MAX_OPEN:
            self._reply(client, LogQueryAnswer(query.number, StatusCode.FAILED, b"too many questions at a time"))
        elif (refusal := self._refusal(query.stream)) is not None:
            self._reply(client, replace(refusal, number=query.number))
        else:
            self._streams.add(query.stream)
            client.open_queries += 1
            self._enqueue(client, query)

    def answered(self, stream: bytes, client: Hashable, answer: LogQueryAnswer, records: list[Frames]) -> None:
        if stream in self._streams and self._streams[stream].asked:
            self._streams[stream].asked.popleft()
        if isinstance(client, ClientSession) and client.connected:
            client.open_queries -= 1
            self._clients.send_or_keep(client, [*records, _pong(answer)])
        if stream in self._streams:
            self._send_to_engine(stream)

    def unblocked(self, client: ClientSession) -> None:
        parked, client.parked_queries = client.parked_queries, []
        for query in parked:
            self._enqueue(client, query)

    def gone(self, client: ClientSession) -> None:
        """Forget the queries of a client; answers of engines to them are dropped."""
        client.parked_queries = []
        if client.open_queries:
            for name in self._streams:
                stream = self._streams[name]
                stream.queries = deque(entry for entry in stream.queries if entry[0] is not client)

    def stream_lost(self, lost: Stream, reason: bytes) -> None:
        """The engine failed: all queries about the stream are answered with an error."""
        for client, query in (*lost.asked, *lost.queries):
            if client.connected:
                self._fail(client, query, reason)

    def _refusal(self, stream: bytes) -> LogQueryAnswer | None:
        refusal = self._catalog.refusal(stream, stream in self._streams)
        if refusal is None and not self._streams.may_add(stream):
            return LogQueryAnswer(0, StatusCode.FAILED, b"too many streams")
        return refusal

    def _enqueue(self, client: ClientSession, query: LogQuery) -> None:
        if client.blocked:
            client.parked_queries.append(query)
        elif query.stream not in self._streams:  # lost while the query was parked
            self._fail(client, query, b"the stream was lost")
        else:
            self._streams[query.stream].queries.append((client, query))
            self._send_to_engine(query.stream)

    def _send_to_engine(self, name: bytes) -> None:
        stream = self._streams[name]
        while stream.queries and len(stream.asked) < MAX_AT_ENGINE:
            client, query = stream.queries.popleft()
            if client.blocked:
                client.parked_queries.append(query)
            else:
                stream.asked.append((client, query))
                self._streams.put(name, AnswerQuery(client, query))

    def _fail(self, client: ClientSession, query: LogQuery, reason: bytes) -> None:
        client.open_queries -= 1
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
