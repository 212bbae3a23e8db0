"""Streams of an engine under test, driven as the broker drives them."""

from __future__ import annotations

import threading
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq

from ..broker.engines import Delivery, StreamEngine, engine_class
from ..broker.engines.base import shared_threads
from ..broker.engines.commands import (
    AcceptBlock,
    AcceptMessage,
    AnswerQuery,
    CancelSubscriptions,
    CommandDone,
    CompilePattern,
    EngineCommand,
    GiveCredit,
    QueryAnswered,
    RecallCredit,
    Report,
    SyncOutcomes,
)
from ..broker.engines.engine_threads import EngineHandle, EngineThreads, ReportSocket
from ..protocol.extensions import Extension
from ..protocol.log_query import LogQuery
from ..protocol.message_blocks import MessageBlock

TIMEOUT = 60.0  #: seconds for what a sound engine does at once


@dataclass(frozen=True)
class EngineKind:
    """The engine under test; it stores and numbers messages if ``stored``.

    :ivar settings: settings of a fresh stream, each time the same place
    :ivar bad_patterns: patterns that it refuses
    """

    engine: type[StreamEngine] | str
    settings: Mapping[str, Any] = field(default_factory=dict)
    stored: bool = False
    bad_patterns: tuple[bytes, ...] = (b"(", b"[", b"*", b"a**", b")", b"(a*)*")


class Ref:
    """A client as the server would refer to it."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<Ref {self.name}>"


class DrivenStream(EngineHandle):
    """A stream whose commands are methods, in batches that :meth:`flush` sends."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        name: bytes,
        engine: str | type[StreamEngine] = "simple",
        settings: Mapping[str, Any] | None = None,
        threads: EngineThreads | None = None,
    ) -> None:
        self.batch: list[EngineCommand] = []
        super().__init__(context, name, engine_class(engine) if isinstance(engine, str) else engine, settings, threads)

    def compile(self, client: Hashable, pattern: bytes, after: int | None = None) -> None:
        self.batch.append(CompilePattern(client, pattern, after))

    def cancel(self, client: Hashable) -> None:
        self.batch.append(CancelSubscriptions(client))

    def accept(
        self,
        client: Hashable,
        address: bytes,
        subject: bytes,
        content: Sequence[bytes],
        extension: Extension | None = None,
    ) -> None:
        self.batch.append(AcceptMessage(client, address, subject, content, extension))

    def accept_block(self, client: Hashable, address: bytes, block: MessageBlock) -> None:
        self.batch.append(AcceptBlock(client, address, block))

    def credit(self, client: Hashable, amount: int | None) -> None:
        self.batch.append(GiveCredit(client, amount))

    def recall(self, client: Hashable) -> None:
        self.batch.append(RecallCredit(client))

    def sync(self, client: Hashable) -> None:
        self.batch.append(SyncOutcomes(client))

    def ask(self, client: Hashable, query: LogQuery) -> None:
        self.batch.append(AnswerQuery(client, query))

    def flush(self) -> None:
        if self.batch:
            self.post(self.batch)

    def send(self, *frames: bytes) -> None:
        """Send a command made of strings."""
        self.post(frames)

    def post(self, command: list[EngineCommand] | tuple[bytes, ...]) -> None:
        batch, self.batch = self.batch, []
        if batch and batch is not command:
            super().post(batch)
        super().post(command)


class EngineSetup:
    """Streams of one kind and the server's end of them; ``own_thread``: one for each stream, even where the broker lets
    streams of this engine share some."""

    def __init__(self, kind: EngineKind, own_thread: bool = False) -> None:
        self.kind = kind
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.traffic = ReportSocket(self.context)
        self.made: list[DrivenStream] = []
        self.shared: EngineThreads | None = None
        most = shared_threads(engine_class(kind.engine) if isinstance(kind.engine, str) else kind.engine)
        if most and not own_thread:
            self.shared = EngineThreads(self.context, "shared", most)

    def stream(self, name: bytes = b"st", traffic: bool = True) -> DrivenStream:
        stream = DrivenStream(self.context, name, self.kind.engine, self.kind.settings, threads=self.shared)
        self.made.append(stream)
        if traffic:
            self.traffic.add(stream)
            assert self.answers(stream) == [CommandDone()]
        return stream

    def report(
        self, stream: DrivenStream, answers: int, kind: type[CommandDone] | type[QueryAnswered] = CommandDone
    ) -> Report:
        """Everything that the stream reports up to this many answers."""
        stream.flush()
        found: Report = []
        end = time.monotonic() + TIMEOUT
        while sum(isinstance(one, kind) for one in found) < answers:
            assert time.monotonic() < end, f"{found} and no more"
            taken = self.traffic.take(1.0)
            if taken is not None:
                assert taken[0] is stream
                found += taken[1]
        return found

    def answers(self, stream: DrivenStream, n: int = 1) -> list[CommandDone]:
        return [one for one in self.report(stream, n) if isinstance(one, CommandDone)]

    def compile(self, stream: DrivenStream, client: Hashable, *patterns: bytes) -> None:
        for pattern in patterns:
            stream.compile(client, pattern)
        assert self.answers(stream, len(patterns)) == [CommandDone()] * len(patterns)

    def cancel(self, stream: DrivenStream, client: Hashable) -> None:
        stream.cancel(client)
        assert self.answers(stream) == [CommandDone()]

    def publish(self, stream: DrivenStream, client: Hashable, *subjects: bytes) -> list[tuple[Hashable, bytes]]:
        """Publish messages with these subjects; client and subject of each delivery, in order."""
        for subject in subjects:
            stream.accept(client, b"sender", subject, [b"content"])
        return [(d.client, d.subject) for d in self.deliveries(stream)]

    def deliveries(self, stream: DrivenStream) -> list[Delivery]:
        stream.sync(Ref("who asks"))
        return [one for one in self.report(stream, 1) if isinstance(one, Delivery)]

    def ask(self, stream: DrivenStream, *questions: LogQuery) -> list[QueryAnswered]:
        """The answers, in their order."""
        client = Ref("who asks")
        for question in questions:
            stream.ask(client, question)
        found = [one for one in self.report(stream, len(questions), QueryAnswered) if isinstance(one, QueryAnswered)]
        assert [(one.client, one.answer.number) for one in found] == [(client, one.number) for one in questions]
        return found

    def threads(self) -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name.startswith("stream-")]

    def close(self) -> None:
        for stream in self.made:
            stream.destroy(TIMEOUT)
            assert stream.ended, "the engine ends"
        if self.shared is not None:
            self.shared.close(TIMEOUT)
        self.traffic.close()
        self.context.term()
