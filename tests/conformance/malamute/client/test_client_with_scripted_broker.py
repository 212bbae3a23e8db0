"""The Malamute client where a broker talks nonsense, refuses, or falls silent."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import MamaError, Unavailable
from mama_spark.malamute.broker.broker.broker import Broker
from mama_spark.malamute.client import client as client_module
from mama_spark.malamute.client import connection
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Ok, Pong, decode, encode
from mama_spark.malamute.protocol.extensions import AckRun, Extension, Feature, StoreOutcome, write
from mama_spark.testing.clocks import Clock

from tests.support.malamute.malamute_clients import C_CLIENT, PATIENCE
from tests.support.malamute.scripted_broker import Scripted

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[3] / "vectors" / "malamute.json").read_text())


def act(client: MalamuteClient, command: commands.Command) -> Any:
    """The call that makes the client say this."""
    match command:
        case commands.StreamWrite():
            return client.write(command.stream)
        case commands.StreamRead():
            return client.read(command.stream, command.pattern)
        case commands.StreamCancel():
            return client.cancel(command.stream)
        case commands.ServiceOffer():
            return client.offer(command.address, command.pattern)
        case commands.StreamSend():
            return client.send(command.subject, command.content)
        case commands.MailboxSend():
            return client.mailbox(command.address, command.subject, command.content)
        case commands.ServiceSend():
            return client.request(command.address, command.subject, command.content)
        case commands.Ping():
            return client.sync()
        case commands.Open():
            return client.open()
        case _:
            return client.close()


def test_a_recorded_conversation_byte_for_byte(scripted: Scripted) -> None:
    """The others are played with the machine alone."""
    (vector,) = [v for v in VECTORS if v["name"] == "session_a"]
    clients: dict[str, MalamuteClient] = {}
    identities: dict[str, bytes] = {}
    calls: list[threading.Thread] = []
    for step in vector["steps"]:
        who, frames = step["client"], [bytes.fromhex(h) for h in step["hex"]]
        command = decode(frames)
        if step["dir"] == "C>S":
            if isinstance(command, commands.Open):
                address = command.address.decode()
                clients[who] = MalamuteClient(scripted.url, address, timeout=PATIENCE, **C_CLIENT)
            calls.append(threading.Thread(target=act, args=(clients[who], command)))
            calls[-1].start()
            identities[who], got = scripted.get()
            assert got == frames
        else:
            scripted.put(identities[who], *frames)
            if isinstance(command, commands.StreamDeliver | commands.MailboxDeliver | commands.ServiceDeliver):
                message = clients[who].receive()
                assert message.content == tuple(command.content)
                assert message.sender.encode() == command.sender
            elif isinstance(command, Ok | Pong):
                calls[-1].join(PATIENCE)
                assert not calls[-1].is_alive()
    for one in clients.values():
        one.close(timeout=0.05)
    for thread in calls:
        thread.join(PATIENCE)


def test_nonsense_from_a_broker_is_ignored(scripted: Scripted) -> None:
    client = MalamuteClient(scripted.url, "c", timeout=PATIENCE, **C_CLIENT)
    opening = threading.Thread(target=client.open)
    opening.start()
    identity, _ = scripted.get()
    for answer in (
        [b""],
        [b"\xaa"],
        [b"\xaa\xa8\x63"],
        [b"nonsense", b"and more"],
        encode(commands.Ping()),
        encode(Ok()),
    ):
        scripted.put(identity, *answer)
    opening.join(PATIENCE)
    assert client.connected
    client.close(0.05)


def test_closing_does_not_wait_for_a_broker_that_goes_before_it_answers() -> None:
    script = Scripted()
    client = MalamuteClient(script.url, "c", timeout=PATIENCE, **C_CLIENT)
    opening = threading.Thread(target=client.open)
    opening.start()
    identity, _ = script.get()
    script.put(identity, *encode(Ok()))
    opening.join(PATIENCE)
    closing = threading.Thread(target=client.close, args=(1e6,))
    closing.start()
    assert decode(script.get()[1]) == commands.Close()
    script.close()
    closing.join(PATIENCE)
    assert not closing.is_alive()


def test_a_broker_that_refuses_says_why(scripted: Scripted) -> None:
    found: list[BaseException] = []

    def attempt() -> None:
        try:
            MalamuteClient(scripted.url, "c", timeout=PATIENCE).open()
        except MamaError as e:
            found.append(e)

    thread = threading.Thread(target=attempt)
    thread.start()
    identity, _ = scripted.get()
    scripted.put(identity, *encode(commands.Error(300, b"not today")))
    thread.join(PATIENCE)
    assert [str(e) for e in found] == ["connecting was refused with 300: not today"]


def test_no_call_outlives_its_deadline_though_the_broker_says_nothing(scripted: Scripted) -> None:
    client = MalamuteClient(scripted.url, "c", timeout=PATIENCE, **C_CLIENT)
    opening = threading.Thread(target=client.open)
    opening.start()
    identity, _ = scripted.get()
    scripted.put(identity, *encode(Ok(trailing=write(Extension(features=Feature.ACKS)))))
    opening.join(PATIENCE)
    for call in (
        lambda: client.write("s", timeout=0.05),
        lambda: client.read("s", "", timeout=0.05),
        lambda: client.offer("s", "", timeout=0.05),
        lambda: client.cancel("s", timeout=0.05),
        lambda: client.sync(timeout=0.05),
        lambda: client.receive(timeout=0.05),
    ):
        with pytest.raises(Unavailable, match="in time"):
            call()
    client.close(timeout=0.05)


def test_a_broker_that_takes_nothing_makes_senders_wait_and_then_tells_them(scripted: Scripted) -> None:
    client = MalamuteClient(scripted.url, "c", timeout=PATIENCE, **C_CLIENT)
    opening = threading.Thread(target=client.open)
    opening.start()
    identity, _ = scripted.get()
    scripted.put(identity, *encode(Ok()))
    opening.join(PATIENCE)
    writing = threading.Thread(target=lambda: client.write("s"))
    writing.start()
    scripted.get()
    scripted.put(identity, *encode(Ok()))
    writing.join(PATIENCE)
    with pytest.raises(Unavailable, match="sending: nothing in time"):
        flood(client)
    began = time.monotonic()
    client.close(timeout=0.05)
    client.close(timeout=PATIENCE)
    assert time.monotonic() - began < PATIENCE, "closing again does not wait for what will never come"


def flood(client: MalamuteClient) -> None:
    for _ in range(500):
        client.send("x", bytes(1_000_000), timeout=0.5)


def test_a_client_whose_process_was_stopped_has_not_lost_its_broker(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the broker said meanwhile is yet to be read."""
    clock = Clock()
    for module in (client_module, connection):
        monkeypatch.setattr(module, "time", clock)
    with MalamuteClient(broker.endpoint, "c", timeout=PATIENCE) as client:
        client.write("s")
        for _ in range(10):
            clock.ahead += 100.0
            client.send("x")
            assert client.sync() == (AckRun(StoreOutcome.ACCEPTED, 1),)
        assert client.reconnects == 0


def test_a_silent_broker_is_left_for_the_next_one(scripted: Scripted, broker: Broker) -> None:
    url = f"{scripted.url},{broker.endpoint}"
    with MalamuteClient(url, "c", timeout=PATIENCE, silence=0.3) as client:
        client.write("s")
        assert broker.streams() == [b"s"]
