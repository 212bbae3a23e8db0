"""Answers queries of clients about stored streams (:mod:`mama_spark.malamute.protocol.log_query`). Pure.

Queries go to the engines a few at a time, in turns of the clients, and only while the client's socket takes what it has
queried before, so a reader fills neither an engine nor the broker's memory. What a fetch brings is therefore bounded,
and needs no credit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import replace
from typing import Protocol

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import BadFrame, StatusCode
from mama_spark.malamute.protocol.extensions import Extension, write
from mama_spark.malamute.protocol.log_query import LogQuery, LogQueryAnswer, Op, names_body, number_of, parse_query

from ...engines.commands import AnswerQuery
from ..client_output import ClientOutput
from ..client_session import ClientSession, Frames
from .engine_command_queue import EngineCommandQueue
from .stream_table import StreamTable

#: Queries of one client that may be open, and of one stream that its engine has at a time.
MAX_OPEN = 16
MAX_AT_ENGINE = 4


class ReadableStreams(Protocol):
    """What the shell knows of streams that are not open."""

    def names(self, are_open: Iterable[bytes]) -> list[bytes]:
        """Stored streams, sorted: those of ``are_open`` that can be read, and the others that there are."""
        ...

    def refusal(self, stream: bytes, is_open: bool) -> LogQueryAnswer | None:
        """Why the stream cannot be read; None = it can, and is opened for that if it is not open."""
        ...


class NoReadableStreams:
    """Nothing is stored."""

    def names(self, are_open: Iterable[bytes]) -> list[bytes]:
        return []

    def refusal(self, stream: bytes, is_open: bool) -> LogQueryAnswer | None:
        return LogQueryAnswer(0, StatusCode.NOT_IMPLEMENTED, b"nothing is stored here")


_Queued = tuple[ClientSession, LogQuery]


class LogQueryServer:
    """:param catalog: which stored streams there are"""

    def __init__(
        self, catalog: ReadableStreams, streams: StreamTable, engines: EngineCommandQueue, output: ClientOutput
    ) -> None:
        self._catalog = catalog
        self._streams = streams
        self._engines = engines
        self._output = output
        self._queued: dict[bytes, deque[_Queued]] = {}  # by stream, for its engine
        self._at_engine: dict[bytes, list[_Queued]] = {}
        self._open: dict[ClientSession, int] = {}  # queries that are not answered
        self._parked: dict[ClientSession, list[_Queued]] = {}  # of clients whose sockets take no more

    def ask(self, client: ClientSession, packed: bytes) -> None:
        """The client has announced the feature and sent this query."""
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
        """The engine's answer to its oldest query, and the records of a fetch."""
        at_engine = self._at_engine.get(stream)
        if at_engine:
            at_engine.pop(0)
        if isinstance(client, ClientSession) and client.connected:
            self._close(client)
            self._output.send_or_keep(client, [*records, _pong(answer)])
        self._send_to_engine(stream)

    def unblocked(self, client: ClientSession) -> None:
        """The socket of the client takes more again."""
        for _, query in self._parked.pop(client, ()):
            self._enqueue(client, query)

    def gone(self, client: ClientSession) -> None:
        """Forget the queries of a client; answers of engines to them are dropped."""
        self._parked.pop(client, None)
        if self._open.pop(client, None):
            for stream, queued in list(self._queued.items()):
                self._queued[stream] = deque(entry for entry in queued if entry[0] is not client)

    def stream_lost(self, stream: bytes, reason: bytes) -> None:
        """The engine has failed: all queries about the stream are answered with an error."""
        for client, query in (*self._at_engine.pop(stream, ()), *self._queued.pop(stream, ())):
            if client.connected:
                self._fail(client, query, reason)

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
        """Give the engine as many queries as it may have."""
        queued, at_engine = self._queued.get(stream), self._at_engine.setdefault(stream, [])
        while queued and len(at_engine) < MAX_AT_ENGINE:
            client, query = queued.popleft()
            if not client.connected:
                continue
            if client.blocked:
                self._parked.setdefault(client, []).append((client, query))
                continue
            at_engine.append((client, query))
            self._engines.put(stream, AnswerQuery(client, query))
        if not queued:
            self._queued.pop(stream, None)
        if not at_engine:
            self._at_engine.pop(stream, None)

    def _close(self, client: ClientSession) -> None:
        """One query of the client less is open."""
        left = self._open.get(client, 0) - 1
        if left > 0:
            self._open[client] = left
        else:
            self._open.pop(client, None)

    def _fail(self, client: ClientSession, query: LogQuery, reason: bytes) -> None:
        self._close(client)
        self._reply(client, LogQueryAnswer(query.number, StatusCode.INTERNAL_ERROR, reason))

    def _reply(self, client: ClientSession, answer: LogQueryAnswer) -> None:
        """Answer without an engine; a client that does not read such answers is dropped in the end."""
        self._output.emit(client, _pong(answer))


def _pong(answer: LogQueryAnswer) -> Frames:
    try:
        return commands.encode(commands.Pong(write(Extension(answer=answer.pack()))))
    except BadFrame:  # of an engine of another package
        answer = LogQueryAnswer(answer.number, StatusCode.INTERNAL_ERROR, b"the answer does not fit")
        return commands.encode(commands.Pong(write(Extension(answer=answer.pack()))))
