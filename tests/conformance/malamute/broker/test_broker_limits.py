"""The broker's start and end, and how many streams and subscriptions it holds."""

from __future__ import annotations

import os
import resource
import threading
from pathlib import Path
from typing import Any

import pytest
from mama_spark.errors import BackgroundTaskFailed, Unavailable
from mama_spark.malamute.protocol import commands as wire
from mama_spark.services.malamute_broker.broker.broker import Broker, BrokerSettings
from mama_spark.services.malamute_broker.engines.durable.engine import DurableEngine
from mama_spark.services.malamute_broker.engines.simple import SimpleEngine
from mama_spark.services.malamute_broker.session.state_machine import ServerMachine

from tests.support.malamute.raw_malamute_clients import OK, Make
from tests.support.tiers import EXPLORE


def test_many_streams_and_as_many_clients(make: Make) -> None:
    """And ZeroMQ gives 1023 sockets to whoever does not ask for more."""
    site, count = make(), 1000 if EXPLORE else 350
    readers = [site.peer() for _ in range(count)]
    for n, reader in enumerate(readers):
        reader.send(wire.Open(b"r%d" % n), wire.StreamRead(b"s%d" % n, b""))
    for reader in readers:
        assert reader.get(2) == [OK, OK]
    writer = site.peer(b"w")
    for n in range(count):
        writer.send(wire.StreamWrite(b"s%d" % n), wire.StreamSend(b"x", [b"%d" % n]))
    for n, reader in enumerate(readers):
        assert reader.get() == [wire.StreamDeliver(b"s%d" % n, b"w", b"x", [b"%d" % n])]
    assert len(site.broker.streams()) == count
    assert len(site.broker.clients()) == count + 1


def test_streams_that_have_only_readers_cost_neither_threads_nor_descriptors(make: Make, tmp_path: Path) -> None:
    site, count = make(folder=tmp_path), 300
    reader = site.peer(b"r", hwm=0)
    for kind in (b"simple", b"kept"):
        assert reader.ask(wire.StreamRead(kind, b"")) == [OK]
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for kind in (b"simple", b"kept"):
        assert reader.ask(*[wire.StreamRead(b"%s%d" % (kind, n), b"") for n in range(count)]) == [OK] * count
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    shared = SimpleEngine.shared_threads + DurableEngine.shared_threads + 1  # and a clock
    assert threads - before[1] < shared
    assert descriptors - before[0] <= 2 * shared, "each thread has a socket"
    assert not list(tmp_path.glob("kept*")), "nor anything on the disk"
    writer = site.peer(b"w")
    for kind in (b"simple", b"kept"):
        writer.send(wire.StreamWrite(b"%s7" % kind), wire.StreamSend(b"x", [kind]))
        got = reader.get()[0]
        assert isinstance(got, wire.StreamDeliver)
        assert got.content == [kind]


def test_many_subscriptions(make: Make) -> None:
    site, count = make(), 10_000 if EXPLORE else 1_000
    reader, writer = site.peer(b"r", hwm=0), site.peer(b"w")
    for start in range(0, count, 500):
        assert reader.ask(*[wire.StreamRead(b"st", b"^dev%d$" % n) for n in range(start, start + 500)]) == [OK] * 500
    writer.ask(wire.StreamWrite(b"st"))
    subjects = [b"dev%d" % n for n in range(0, count + 500, 50)]
    writer.send(*[wire.StreamSend(subject) for subject in subjects])
    got = [d.subject for d in reader.get(count // 50) if isinstance(d, wire.StreamDeliver)]
    assert got == subjects[: count // 50]


def test_streams_are_limited_by_open_files_and_it_is_said(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    changed: list[Any] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: changed.append(limits))
    with Broker(BrokerSettings("tcp://127.0.0.1:*")) as broker:
        assert broker._loop is not None
        assert broker._loop.machine.settings.streams == (4096 - 2048) // 4
    assert changed == [(4096, 4096)]
    assert "4096 open files allow 512 streams, not 4096" in caplog.text


def test_a_broker_starts_where_it_can_and_says_where_not(make: Make) -> None:
    taken = make().broker.endpoint
    with pytest.raises(Unavailable, match="cannot bind"):
        Broker(BrokerSettings(taken)).start()
    broker = Broker(BrokerSettings("mlp://127.0.0.1:*"))
    assert repr(broker).endswith("stopped>")
    with broker:
        assert broker.endpoint.startswith("tcp://127.0.0.1:")
    broker.stop()


def test_a_loop_that_dies_is_told_when_it_is_stopped(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def defect(machine: ServerMachine) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(ServerMachine, "next_expiry", defect)
    broker = Broker(BrokerSettings("tcp://127.0.0.1:*"))
    broker.start()
    with pytest.raises(BackgroundTaskFailed, match="a defect"):
        broker.stop()
    assert "a defect" in caplog.text
