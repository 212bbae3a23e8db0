"""Clients that leave have no state left in engines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mama_spark.malamute.broker.engines.commands import AcceptMessage, CancelSubscriptions, SyncOutcomes
from mama_spark.malamute.broker.engines.durable.engine import DurableEngine
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import encode
from mama_spark.malamute.protocol.extensions import Extension, Feature, write

from tests.support.malamute.session_machine import MachineHarness as SessionHarness
from tests.support.malamute.session_machine import server
from tests.support.tiers import EXPLORE

CLIENTS = 2000 if EXPLORE else 100


class MachineHarness:
    """A machine and one durable engine, which executes its commands batch by batch."""

    def __init__(self, folder: Path) -> None:
        self.machine = server(timeout=10.0)
        self.engine = DurableEngine(b"st", {"folder": str(folder)})
        self.engine.start()

    def say(self, identity: bytes, *commands: wire.Command, now: float = 0.0) -> None:
        for command in commands:
            self.machine.receive(identity, encode(command), now)

    def obey(self) -> None:
        while orders := self.machine.streams.take_commands():
            answers: list[Any] = []
            for command in orders[b"st"]:
                if isinstance(command, AcceptMessage):
                    self.engine.accept(
                        command.client, command.address, command.subject, command.content, command.extension
                    )
                elif isinstance(command, CancelSubscriptions):
                    self.engine.cancel(command.client)
                    answers.append(())
                else:
                    answers.append(self.engine.sync(command.client) if isinstance(command, SyncOutcomes) else ())
            self.engine.flush()
            for runs in answers:
                self.machine.command_done(b"st", None, runs() if callable(runs) else runs)
        self.machine.clients.take_output()


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[MachineHarness]:
    desk = MachineHarness(tmp_path)
    yield desk
    desk.engine.close()


@pytest.mark.parametrize("features", [Feature.ACKS, Feature.HEADERS], ids=["asks what became of it", "never asks"])
@pytest.mark.parametrize("way", ["CLOSE", "expiry", "takeover"])
def test_the_engine_forgets_what_became_of_messages_of_clients_that_are_gone(
    desk: MachineHarness, features: Feature, way: str
) -> None:
    opening = wire.Open(b"same" if way == "takeover" else b"", write(Extension(features=features)))
    for n in range(CLIENTS):
        identity = b"%d" % n
        desk.say(identity, opening, wire.StreamWrite(b"st"), wire.StreamSend(b"a"), wire.StreamSend(b"b"))
        if way == "CLOSE":
            desk.say(identity, wire.Close())
    desk.obey()
    if way == "expiry":
        assert len(desk.engine._acks) == CLIENTS
        desk.machine.expire(100.0)
        desk.obey()
    assert len(desk.engine._acks) == (1 if way == "takeover" else 0)
    assert not any(desk.machine.streams[name].awaited for name in desk.machine.streams)


def test_what_a_client_sent_before_it_left_is_stored_and_the_next_of_its_name_is_told_only_of_its_own(
    desk: MachineHarness,
) -> None:
    opening = wire.Open(b"same", write(Extension(features=Feature.ACKS)))
    desk.say(b"1", opening, wire.StreamWrite(b"st"), wire.StreamSend(b"a"), wire.StreamSend(b"b"), wire.Close())
    desk.say(b"2", opening, wire.StreamWrite(b"st"), wire.StreamSend(b"c"))
    desk.obey()
    (runs,) = [
        runs() if callable(runs) else runs for runs in [desk.engine.sync(desk.machine.clients.by_identity[b"2"])]
    ]
    assert [(run.count, run.first) for run in runs] == [(1, 3)]


def test_what_waited_for_a_client_that_is_gone_is_freed_in_turns() -> None:
    desk = SessionHarness(timeout=0.0, queue=1 << 30)
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
