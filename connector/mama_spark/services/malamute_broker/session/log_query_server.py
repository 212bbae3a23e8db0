"""Where clients ask about stored streams (:mod:`mama_spark.malamute.protocol.log_query`). Pure.

Questions go to the engines a few at a time, by turns of the clients, and only while the asker's socket takes what it
has asked for before: neither an engine nor the broker's memory is a reader's to fill. What a fetch brings is therefore
bounded, and needs no credit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, Protocol

from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import BadFrame, StatusCode
from mama_spark.malamute.protocol.extensions import Extension, write
from mama_spark.malamute.protocol.log_query import LogQuery, LogQueryAnswer, Op, names_body, number_of, parse_query

from ..engines.commands import AnswerQuery
from .clients import ClientSession, Frames, SessionSettings
from .delivery_scheduler import DeliveryScheduler, frames_size

#: Questions of one client that may wait, and of one stream that its engine has at a time.
MOST_WAITING = 16
AT_ENGINE = 4


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


_Asked = tuple[ClientSession, LogQuery]


class LogQueryServer(DeliveryScheduler):
    """The part of :class:`~mama_spark.services.malamute_broker.session.state_machine.ServerMachine` that answers
    questions."""

    def __init__(self, settings: SessionSettings, shelf: ReadableStreams | None = None) -> None:
        super().__init__(settings)
        self.streams: set[bytes] = set()
        self._shelf = shelf or NoReadableStreams()
        self._questions: dict[bytes, deque[_Asked]] = {}  # stream -> waiting for their turn
        self._at_engine: dict[bytes, list[_Asked]] = {}
        self._waiting: dict[ClientSession, int] = {}  # questions that are not answered
        self._parked: dict[ClientSession, list[_Asked]] = {}  # of clients whose sockets take no more

    def _add_stream(self, stream: bytes) -> None:
        raise NotImplementedError

    def _ask(self, client: ClientSession, packed: bytes) -> None:
        """A client that announced the feature asks."""
        question = parse_query(packed)
        if question is None:
            number = number_of(packed)
            if number is not None:
                self._reply_to(client, LogQueryAnswer(number, StatusCode.FAILED, b"the question is not understood"))
        elif question.op is Op.NAMES:
            names = self._shelf.names(self.streams)
            self._reply_to(client, LogQueryAnswer(question.number, body=names_body(names, question.text)))
        elif self._waiting.get(client, 0) >= MOST_WAITING:
            self._reply_to(client, LogQueryAnswer(question.number, StatusCode.FAILED, b"too many questions at a time"))
        elif (refusal := self._why_not(question.stream)) is not None:
            self._reply_to(client, replace(refusal, number=question.number))
        else:
            self._add_stream(question.stream)
            self._waiting[client] = self._waiting.get(client, 0) + 1
            self._queue(client, question)

    def _why_not(self, stream: bytes) -> LogQueryAnswer | None:
        refusal = self._shelf.refusal(stream, stream in self.streams)
        if refusal is None and stream not in self.streams and len(self.streams) >= self.settings.streams:
            return LogQueryAnswer(0, StatusCode.FAILED, b"too many streams")
        return refusal

    def _reply_to(self, client: ClientSession, answer: LogQueryAnswer) -> None:
        """Without an engine; who does not read such answers is dropped in the end."""
        self._emit(client, _pong(answer))

    def _queue(self, client: ClientSession, question: LogQuery) -> None:
        if client.blocked:
            self._parked.setdefault(client, []).append((client, question))
            return
        if question.stream not in self.streams:  # lost while the question was parked
            self._unanswered(client, question, b"the stream was lost")
            return
        self._questions.setdefault(question.stream, deque()).append((client, question))
        self._serve(question.stream)

    def _serve(self, stream: bytes) -> None:
        """Give the engine as many questions as it may have."""
        waiting, given = self._questions.get(stream), self._at_engine.setdefault(stream, [])
        while waiting and len(given) < AT_ENGINE:
            client, question = waiting.popleft()
            if not client.alive:
                continue
            if client.blocked:
                self._parked.setdefault(client, []).append((client, question))
                continue
            given.append((client, question))
            self._order(stream, AnswerQuery(client, question))
        if not waiting:
            self._questions.pop(stream, None)
        if not given:
            self._at_engine.pop(stream, None)

    def answered(self, stream: bytes, client: Any, answer: LogQueryAnswer, records: list[Frames]) -> None:
        """The engine's answer to its oldest question, and what a fetch brings."""
        given = self._at_engine.get(stream)
        if given:
            given.pop(0)
        if isinstance(client, ClientSession) and client.alive:
            self._settled(client)
            self._hand_in(client, answer, records)
        self._serve(stream)

    def _settled(self, client: ClientSession) -> None:
        left = self._waiting.get(client, 0) - 1
        if left > 0:
            self._waiting[client] = left
        else:
            self._waiting.pop(client, None)

    def _hand_in(self, client: ClientSession, answer: LogQueryAnswer, records: list[Frames]) -> None:
        """Records and answer together, so that they are one after another whatever else there is."""
        messages = [*records, _pong(answer)]
        if client.blocked:
            for frames in messages:
                client.replies.put(frames, frames_size(frames))
        else:
            self.out += [(client, frames) for frames in messages]

    def unblock(self, client: ClientSession) -> None:
        super().unblock(client)
        for _, question in self._parked.pop(client, ()):
            self._queue(client, question)

    def _leave(self, client: ClientSession) -> None:
        """The client is gone; what the engines have of it is answered to nobody."""
        self._parked.pop(client, None)
        if self._waiting.pop(client, None):
            for stream, waiting in list(self._questions.items()):
                self._questions[stream] = deque(asked for asked in waiting if asked[0] is not client)

    def _unanswerable(self, stream: bytes, reason: str) -> None:
        """The engine of the stream is gone."""
        for client, question in (*self._at_engine.pop(stream, ()), *self._questions.pop(stream, ())):
            if client.alive:
                self._unanswered(client, question, reason.encode("utf-8", "backslashreplace"))

    def _unanswered(self, client: ClientSession, question: LogQuery, reason: bytes) -> None:
        self._settled(client)
        self._reply_to(client, LogQueryAnswer(question.number, StatusCode.INTERNAL_ERROR, reason))


def _pong(answer: LogQueryAnswer) -> Frames:
    try:
        return commands.encode(commands.Pong(write(Extension(answer=answer.pack()))))
    except BadFrame:  # an engine of somebody else's
        answer = LogQueryAnswer(answer.number, StatusCode.INTERNAL_ERROR, b"the answer does not fit")
        return commands.encode(commands.Pong(write(Extension(answer=answer.pack()))))
