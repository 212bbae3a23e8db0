"""Replies to clients: after all engines have answered, only to requests, and not to expired calls."""

from __future__ import annotations

from mama_spark.malamute.client.state_machine import ClientMachine, ClientSettings
from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Command, Confirm, Ok, Pong, decode, encode
from mama_spark.malamute.protocol.extensions import AckRun, Extension, Feature, StoreOutcome, read, write
from mama_spark.services.malamute_broker.session.settings import SessionSettings
from mama_spark.services.malamute_broker.session.state_machine import ServerMachine

from tests.support.tables import each


def opened(machine: ServerMachine, client: bytes, features: Feature) -> None:
    machine.receive(client, encode(commands.Open(client, write(Extension(features=features)))), 0.0)
    machine.take_output()


def said(machine: ServerMachine) -> list[Command]:
    out = machine.take_output()
    return [decode(frames) for _, frames in out]


def test_a_ping_is_answered_when_the_engines_of_all_streams_have_answered() -> None:
    machine = ServerMachine(SessionSettings())
    opened(machine, b"w", Feature.ACKS)
    for stream in (b"a", b"b"):
        machine.receive(b"w", encode(commands.StreamWrite(stream)), 0.0)
        machine.command_done(stream)
        machine.receive(b"w", encode(commands.StreamSend(b"s", [b"1"])), 0.0)
    said(machine)
    machine.receive(b"w", encode(commands.Ping()), 0.0)
    run = AckRun(StoreOutcome.STORED, 1, 1)
    machine.command_done(b"b", outcomes=(run,))
    assert said(machine) == []
    machine.command_done(b"a", outcomes=(run,))
    (pong,) = said(machine)
    assert isinstance(pong, Pong)
    assert read(pong.trailing).acks == (run, run)


@each("service", [False, True])
@each("tracker", [b"", b"t"])
def test_who_sends_a_letter_without_a_tracker_is_told_nothing_of_it(tracker: bytes, service: bool) -> None:
    machine = ServerMachine(SessionSettings())
    opened(machine, b"w", Feature.CONFIRM)
    opened(machine, b"r", Feature(0))
    if service:
        machine.receive(b"r", encode(commands.ServiceOffer(b"r", b"")), 0.0)
        said(machine)
    letter = (commands.ServiceSend if service else commands.MailboxSend)(b"r", b"s", tracker)
    machine.receive(b"w", encode(letter), 0.0)
    assert [type(command) is Confirm for command in said(machine)].count(True) == bool(tracker)


def test_a_subscription_that_was_cancelled_does_not_come_back_after_a_reconnect() -> None:
    client = ClientMachine(ClientSettings(b"me"))
    client.connect(0.0, 9.0)
    client.receive(encode(Ok()), 0.0)
    for stream in (b"kept", b"left"):
        client.read(stream, b".*", 9.0)
        client.receive(encode(Ok()), 0.0)
    client.cancel(b"left", 9.0)
    client.receive(encode(Ok()), 0.0)
    client.lost(1.0)
    client.receive(encode(Ok()), 1.0)
    asked = [decode(frames) for frames in client.out]
    assert [command.stream for command in asked if isinstance(command, commands.StreamRead)] == [b"kept"]
