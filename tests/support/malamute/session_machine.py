"""A session machine with engines that execute its commands at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from mama_spark.malamute.broker.engines import Delivery, StreamEngine
from mama_spark.malamute.broker.engines.commands import (
    AcceptMessage,
    CancelSubscriptions,
    CompilePattern,
    EngineCommand,
    GiveCredit,
    SyncOutcomes,
)
from mama_spark.malamute.broker.engines.simple import SimpleEngine
from mama_spark.malamute.broker.session.clients import ClientSession
from mama_spark.malamute.broker.session.settings import SessionSettings
from mama_spark.malamute.broker.session.state_machine import ServerMachine
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Command, Error, Ok, Pong, StatusCode, decode, encode
from mama_spark.malamute.protocol.extensions import Extension, Feature, write
from mama_spark.malamute.protocol.log_query import LogQueryAnswer
from mama_spark.malamute.protocol.patterns import BadPattern

OK, INVALID, FAILED, PONG = Ok(), Error(500), Error(300), Pong()


class Catalog:
    """Streams of which none is stored; the engines of those that hold deliver only against credit."""

    def has_flow_control(self, stream: bytes) -> bool:
        return stream.startswith(b"holds")

    def names(self, are_open: Iterable[bytes]) -> list[bytes]:
        return []

    def refusal(self, stream: bytes, is_open: bool) -> LogQueryAnswer | None:
        return LogQueryAnswer(0, StatusCode.NOT_IMPLEMENTED, b"nothing is stored here")


def server(**values: Any) -> ServerMachine:
    return ServerMachine(SessionSettings(**values), Catalog())


class MachineHarness:
    """A machine with engines, obeyed at once, and what every client received.

    :param make: makes the engine of a stream
    """

    def __init__(self, make: Callable[[bytes], StreamEngine] = SimpleEngine, **values: Any) -> None:
        self._make = make
        self.machine = server(**values)
        self.engines: dict[bytes, StreamEngine] = {}
        self.received: dict[bytes, list[list[bytes]]] = {}
        self.now = 0.0
        self.obedient = True

    def feed(self, client: str, frames: list[bytes]) -> None:
        self.machine.receive(client.encode(), frames, self.now)
        if self.obedient:
            self.obey()

    def send(self, client: str, *commands: Command) -> list[Command]:
        """What the client has received after these."""
        for command in commands:
            self.feed(client, encode(command))
        return self.got(client)

    def open(self, client: str, address: str | None = None, features: Feature | None = None) -> None:
        trailing = b"" if features is None else write(Extension(features=features))
        (reply,) = self.send(client, wire.Open((client if address is None else address).encode(), trailing))
        assert isinstance(reply, Ok)

    def got(self, client: str) -> list[Command]:
        return [decode(frames) for frames in self.received.pop(client.encode(), [])]

    def obey(self) -> None:
        machine = self.machine
        while len(machine.clients.outgoing) or len(machine.streams.commands):
            for client, frames in machine.clients.take_output():
                identity = client.identity if isinstance(client, ClientSession) else client
                self.received.setdefault(identity, []).append(frames)
            for stream, commands in machine.streams.take_commands().items():
                self._engine(stream, commands)

    def _engine(self, stream: bytes, commands: list[EngineCommand]) -> None:
        engine = self.engines.get(stream)
        if engine is None:
            engine = self.engines[stream] = self._make(stream)
            engine.start()
        self._out: list[Delivery] = []
        engine.traffic(lambda delivery: self._out.append(delivery))
        answers: list[tuple[str | None, Any]] = []
        for command in commands:
            error, runs = None, None
            match command:
                case AcceptMessage():
                    engine.accept(command.client, command.address, command.subject, command.content, command.extension)
                    continue
                case GiveCredit(client, amount):
                    engine.credit(client, amount)
                    continue
                case SyncOutcomes(client):
                    runs = engine.sync(client)
                case CompilePattern(client, pattern, after):
                    try:
                        engine.compile(client, pattern, after)
                    except BadPattern as e:
                        error = str(e)
                case CancelSubscriptions(client):
                    engine.cancel(client)
            answers.append((error, runs or ()))
        engine.flush()
        for error, runs in answers:
            self.machine.command_done(stream, error, runs() if callable(runs) else runs)
        self.machine.deliveries.delivered(stream, self._out)

    def expire(self, after: float) -> None:
        self.now += after
        self.machine.expire(self.now)
        self.obey()

    def end_idle_streams(self) -> None:
        """As the broker does, after streams were without clients for long enough."""
        for _ in range(2):  # the first look notes which are without clients
            self.now += self.machine.settings.stream_idle
            for stream in self.machine.streams.idle(self.now):
                del self.engines[stream]
                self.machine.stream_ended(stream)


def written(desk: MachineHarness, stream: bytes = b"st", client: str = "w") -> None:
    desk.open(client)
    assert desk.send(client, wire.StreamWrite(stream)) == [OK]


def subjects(commands: list[Command]) -> list[bytes]:
    return [c.subject for c in commands if isinstance(c, wire.StreamDeliver)]


ALL = Feature.CREDIT | Feature.SEQUENCE | Feature.ACKS | Feature.CONFIRM | Feature.HEADERS
