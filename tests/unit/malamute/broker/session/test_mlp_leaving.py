"""Clients that leave have no state left in engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.malamute.broker.engines.ack_tracker import AckTracker
from mama_spark.malamute.broker.engines.durable.engine import DurableEngine
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.extensions import Extension, Feature, write

from tests.support.malamute.session_machine import MachineHarness
from tests.support.tiers import EXPLORE

CLIENTS = 2000 if EXPLORE else 100


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[MachineHarness]:
    """All streams are durable."""

    def durable(stream: bytes) -> DurableEngine:
        return DurableEngine(stream, {"folder": str(tmp_path)})

    desk = MachineHarness(durable, timeout=10.0)
    desk.obedient = False
    yield desk
    for engine in desk.engines.values():
        engine.close()


def acks(desk: MachineHarness) -> AckTracker:
    engine = desk.engines[b"st"]
    assert isinstance(engine, DurableEngine)
    return engine._acks


@pytest.mark.parametrize("features", [Feature.ACKS, Feature.HEADERS], ids=["asks what became of it", "never asks"])
@pytest.mark.parametrize("way", ["CLOSE", "expiry", "takeover"])
def test_the_engine_forgets_what_became_of_messages_of_clients_that_are_gone(
    desk: MachineHarness, features: Feature, way: str
) -> None:
    opening = wire.Open(b"same" if way == "takeover" else b"", write(Extension(features=features)))
    for n in range(CLIENTS):
        desk.send(str(n), opening, wire.StreamWrite(b"st"), wire.StreamSend(b"a"), wire.StreamSend(b"b"))
        if way == "CLOSE":
            desk.send(str(n), wire.Close())
    desk.obey()
    if way == "expiry":
        assert len(acks(desk)) == CLIENTS
        desk.expire(100.0)
    assert len(acks(desk)) == (1 if way == "takeover" else 0)
    assert not any(desk.machine.streams[name].awaited for name in desk.machine.streams)


def test_what_a_client_sent_before_it_left_is_stored_and_the_next_of_its_name_is_told_only_of_its_own(
    desk: MachineHarness,
) -> None:
    opening = wire.Open(b"same", write(Extension(features=Feature.ACKS)))
    desk.send("1", opening, wire.StreamWrite(b"st"), wire.StreamSend(b"a"), wire.StreamSend(b"b"), wire.Close())
    desk.send("2", opening, wire.StreamWrite(b"st"), wire.StreamSend(b"c"))
    desk.obey()
    runs = acks(desk).take(desk.machine.clients.by_identity[b"2"]).acks()
    assert [(run.count, run.first) for run in runs] == [(1, 3)]


def test_what_waited_for_a_client_that_is_gone_is_freed_in_turns() -> None:
    desk = MachineHarness(timeout=0.0, queue=1 << 30)
    for name in ("reader", "writer"):
        desk.open(name)
    desk.send("reader", wire.StreamRead(b"s", b""))
    desk.send("writer", wire.StreamWrite(b"s"))
    (reader,) = (client for client in desk.machine.clients if client.address == b"reader")
    desk.machine.clients.block(reader, [b"what its socket did not take"])
    for _ in range(2500):
        desk.send("writer", wire.StreamSend(b"a", [b"1"]))
    queue = reader.queue
    assert len(queue) == 2500
    desk.send("reader", wire.Close())
    lengths = [len(queue)]
    while desk.machine.has_garbage:
        desk.machine.free_some()
        lengths.append(len(queue))
    assert lengths == [2500, 1500, 500, 0]
