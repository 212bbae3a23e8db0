"""The Malamute client where a broker talks nonsense, refuses, or falls silent."""

from __future__ import annotations

import threading
import time

import pytest
from mama_spark.contracts.errors import Unavailable
from mama_spark.malamute.broker.broker.broker import Broker
from mama_spark.malamute.client import blocking_calls, connection
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Ok, decode, encode
from mama_spark.malamute.protocol.extensions import AckRun, Extension, Feature, StoreOutcome, write
from mama_spark.testing.clocks import Clock

from tests.support.malamute.malamute_clients import C_CLIENT, PATIENCE
from tests.support.malamute.scripted_broker import Scripted

OK = Ok()


def opened(broker: Scripted, answer: commands.Command = OK) -> MalamuteClient:
    """A client that behaves as the C client."""
    client = MalamuteClient(broker.url, "c", timeout=PATIENCE, **C_CLIENT)
    opening = threading.Thread(target=client.open)
    opening.start()
    identity, _ = broker.get()
    broker.put(identity, *encode(answer))
    opening.join(PATIENCE)
    return client


def test_closing_does_not_wait_for_a_broker_that_goes_before_it_answers() -> None:
    script = Scripted()
    client = opened(script)
    closing = threading.Thread(target=client.close, args=(1e6,))
    closing.start()
    assert decode(script.get()[1]) == commands.Close()
    script.close()
    closing.join(PATIENCE)
    assert not closing.is_alive()


def test_no_call_outlives_its_deadline_though_the_broker_says_nothing(scripted: Scripted) -> None:
    client = opened(scripted, Ok(trailing=write(Extension(features=Feature.ACKS))))
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
    client = opened(scripted)
    writing = threading.Thread(target=lambda: client.write("s"))
    writing.start()
    identity, _ = scripted.get()
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
    for module in (blocking_calls, connection):
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
