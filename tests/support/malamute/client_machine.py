"""A client machine that is driven by hand: its calls, what it says, and what it is told."""

from __future__ import annotations

from typing import Any

from mama_spark.malamute.client.calls import Call
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.malamute.client.state_machine import ClientMachine
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Command, Ok, decode, encode
from mama_spark.malamute.protocol.extensions import Extension, Feature, write

FAR = 1e9
ALL = Feature.CREDIT | Feature.SEQUENCE | Feature.ACKS | Feature.CONFIRM | Feature.HEADERS


def said(machine: ClientMachine) -> list[Command]:
    out, machine.out = machine.out, []
    return [decode(frames) for frames in out]


def told(machine: ClientMachine, *commands: Command, now: float = 0.0) -> None:
    for command in commands:
        machine.receive(encode(command), now)


def client(address: str = "me", features: Feature | None = None, **values: Any) -> ClientMachine:
    """As the C client, unless it announces features."""
    return ClientMachine(ConnectionSettings(address=address, features=features, **values))


def connected(features: Feature | None = None, **values: Any) -> ClientMachine:
    machine = client(features=features, **values)
    call = machine.connect(0.0, FAR)
    told(machine, Ok(trailing=write(Extension(features=features)) if features else b""))
    assert call.done
    assert call.error is None
    said(machine)
    return machine


def do(machine: ClientMachine, command: Command, now: float = 0.0, deadline: float = FAR) -> Call | None:
    """What an application does to make the client say this; the call, if it is one."""
    match command:
        case wire.Open():
            return machine.connect(now, deadline)
        case wire.Ping():
            return machine.ping(now, deadline)
        case wire.Close():
            return machine.close(deadline)
        case wire.StreamWrite() | wire.StreamRead() | wire.StreamCancel() | wire.ServiceOffer():
            return machine.call(command, deadline)
        case wire.StreamSend():
            machine.send_frames([encode(command)])
        case wire.MailboxSend() | wire.ServiceSend():
            machine.send_message(command)
        case wire.Credit():
            machine.give_credit(command.amount)
    return None
