"""A broker and plain clients: conversations, endpoints, engines that fail, limits, bad input."""

from __future__ import annotations

import os
import random
import resource
import socket
import struct
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
from mama_spark.contracts.errors import Unavailable
from mama_spark.malamute.broker.broker import broker as broker_module
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings
from mama_spark.malamute.broker.engines.durable.engine import DurableEngine
from mama_spark.malamute.broker.engines.simple import SimpleEngine
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Error, Ok, encode
from mama_spark.malamute.protocol.extensions import ALL, Extension, Feature, write
from mama_spark.malamute.protocol.log_query import LogQuery, Op
from mama_spark.testing.waiting import until

from tests.support.clocks import Clock
from tests.support.malamute.mlp import Peer
from tests.support.malamute.raw_malamute_clients import OK, Make, Site
from tests.support.memory import alone
from tests.support.tiers import EXPLORE
from tests.support.vectors import vectors


def test_large_messages_and_many_frames_pass(make: Make) -> None:
    site = make()
    reader, writer = site.peer(b"r"), site.peer(b"w")
    reader.until_pong(wire.StreamRead(b"st", b""))
    bodies = [[b"x" * 5_000_000], [b"y"] * 300, [b""], []]
    writer.send(wire.StreamWrite(b"st"), *[wire.StreamSend(b"s", body) for body in bodies])
    assert [list(d.content) for d in reader.take(4) if isinstance(d, wire.StreamDeliver)] == bodies


# --- A broker serves all endpoints of its configuration at once -------------------------------------------------------


def _ipv6() -> list[str]:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind(("::1", 0))
        except OSError:
            return []  # a machine without IPv6
    return ["tcp://[::1]:*"]


def test_clients_of_all_endpoints_meet(tmp_path: Path) -> None:
    endpoints = ("tcp://127.0.0.1:*", f"ipc://{tmp_path}/broker.ipc", *_ipv6())
    with Broker(BrokerSettings(endpoints)) as broker:
        assert broker.endpoint == broker.endpoints[0]
        urls = [endpoint.replace("tcp://", "mlp://") for endpoint in broker.endpoints]
        assert len(urls) == len(endpoints)
        with MalamuteClient(urls[0], "reader") as reader:
            reader.read("s", "")
            for url in urls:
                with MalamuteClient(url, "writer") as writer:
                    writer.write("s")
                    writer.send(url[:255], b"")
                    writer.sync()
                message = reader.receive(timeout=60)
                assert message is not None
                assert message.subject == url


# --- the broker and engines that are slow, die, cannot be made, or deliver what fits in no command --------------------


@pytest.mark.parametrize("subject", [b"long", b"large header"])
def test_an_engine_that_delivers_what_fits_in_no_command_ends_its_stream_and_no_other(
    make: Make, caplog: Any, subject: bytes
) -> None:
    site = make()
    reader, writer = site.peer().open(b"r", ALL & ~Feature.CREDIT), site.peer(b"w")
    reader.ask(wire.StreamRead(b"wild", b""))
    writer.send(wire.StreamWrite(b"wild"), wire.StreamSend(subject))
    until(lambda: b"wild" not in site.broker.streams())
    assert "delivers what no client can be sent" in caplog.text
    site.healthy()
    while not isinstance(answer := reader.ask(wire.StreamRead(b"wild", b"")), Ok):  # once the engine has ended
        assert isinstance(answer, Error)


def test_a_stream_that_cannot_be_made_is_told_and_disturbs_nobody(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    monkeypatch.setattr(broker_module, "_SOCKETS", 0)  # leaves 16 sockets for the broker and all streams
    peer = make().peer(b"a")
    replies = [peer.ask(wire.StreamWrite(b"slow%d" % n)) for n in range(20)]
    refused = [reply for reply in replies if isinstance(reply, Error)]
    assert replies[0] == OK
    assert refused
    assert all(reply.code == 502 and b"Too many open files" in reply.reason for reply in refused)
    assert peer.until_pong(wire.StreamWrite(b"slow0")) == [OK]


def test_stopping_loses_nothing_that_was_accepted(make: Make) -> None:
    site = make()
    reader, writer = site.peer(b"r"), site.peer(b"w")
    reader.until_pong(wire.StreamRead(b"slow", b""))
    assert writer.until_pong(wire.StreamWrite(b"slow"), *[wire.StreamSend(b"%d" % n) for n in range(500)]) == [OK]
    site.broker.stop()
    assert [d.subject for d in reader.take(500) if isinstance(d, wire.StreamDeliver)] == [b"%d" % n for n in range(500)]


# --- the broker's start and end, and how many streams it holds -------------------------------------------------------


def test_many_streams_and_as_many_clients(make: Make) -> None:
    """And ZeroMQ gives 1023 sockets to whoever does not ask for more."""
    site, count = make(), 1000 if EXPLORE else 350
    readers = [site.peer() for _ in range(count)]
    for n, reader in enumerate(readers):
        reader.send(wire.Open(b"r%d" % n), wire.StreamRead(b"s%d" % n, b""))
    for reader in readers:
        assert reader.take(2) == [OK, OK]
    writer = site.peer(b"w")
    for n in range(count):
        writer.send(wire.StreamWrite(b"s%d" % n), wire.StreamSend(b"x", [b"%d" % n]))
    for n, reader in enumerate(readers):
        assert reader.get() == wire.StreamDeliver(b"s%d" % n, b"w", b"x", [b"%d" % n])
    assert len(site.broker.streams()) == count
    assert len(site.broker.clients()) == count + 1


def _read_many_streams(folder: Path) -> None:
    site, count = Site(Clock(), folder), 300
    reader = site.peer(b"r", hwm=0)
    for kind in (b"simple", b"kept"):
        assert reader.until_pong(wire.StreamRead(kind, b"")) == [OK]
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for kind in (b"simple", b"kept"):
        assert reader.until_pong(*[wire.StreamRead(b"%s%d" % (kind, n), b"") for n in range(count)]) == [OK] * count
    descriptors, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
    shared = SimpleEngine.shared_threads + DurableEngine.shared_threads + 1  # and a clock
    assert threads - before[1] < shared
    assert descriptors - before[0] <= 2 * shared, "each thread has a socket"
    assert not list(folder.glob("kept*")), "nor anything on the disk"
    writer = site.peer(b"w")
    for kind in (b"simple", b"kept"):
        writer.send(wire.StreamWrite(b"%s7" % kind), wire.StreamSend(b"x", [kind]))
        got = reader.get()
        assert isinstance(got, wire.StreamDeliver)
        assert got.content == [kind]
    site.close()


def test_streams_that_have_only_readers_cost_neither_threads_nor_descriptors(tmp_path: Path) -> None:
    alone(_read_many_streams, tmp_path)


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
    with pytest.raises(Unavailable, match=f"cannot bind {taken}"):
        Broker(BrokerSettings(("tcp://127.0.0.1:*", taken))).start()
    with Broker(BrokerSettings("mlp://127.0.0.1:*")) as broker:
        assert broker.endpoint.startswith("tcp://127.0.0.1:")
    broker.stop()


# --- The broker over TCP: the inputs that are fatal to the reference, and any others ----------------------------------


def test_bad_input_is_survived(make: Make) -> None:
    """What each is answered is shown with the machine alone."""
    site = make()
    for vector in [v for v in vectors("malamute") if v["kind"] == "bad"]:
        peer = site.peer(b"bad" if vector.get("state") == "connected" else None)
        peer.socket.send_multipart([bytes.fromhex(h) for h in vector["hex"]])
    site.healthy()


def test_a_req_socket_is_ignored(make: Make) -> None:
    site = make()
    site.peer(kind=zmq.REQ).socket.send(b"\xaa\xa8\x02")
    site.healthy()
    assert site.broker.counters()["malformed"] == 1


def beside(chance: random.Random) -> bytes:
    """What our own clients say behind the last field, or what it may have become on its way."""
    question = LogQuery(chance.choice(list(Op)[1:]), chance.randrange(99), chance.choice([b"kept", b"a"]), ())
    numbers = {Op.AT: (5,), Op.TRIM: (9,), Op.MISSING: (1, 9**9), Op.MATCH: (1, 9**9, 5)}.get(question.op, (0, 9, 9, 9))
    question = replace(question, numbers=() if question.op is Op.BOUNDS else numbers)
    header = chance.choice([b"Mama-Ttl", b"Mama-Renewal", b"Mama-Marker", b"Mama-Expected-Sequence"])
    extensions = [
        Extension(features=ALL), Extension(question=question.pack()), Extension(block=chance.choice([0, 1, 2, 9999])),
        Extension(after=chance.choice([0, 1, 2**63])), Extension(headers=((header, b"20"),)),
        Extension(message_id=b"%d" % chance.randrange(9), headers=((b"k", b"v"),)),
    ]  # fmt: skip
    block = write(chance.choice(extensions))
    return damaged(block, chance) if chance.random() < 0.3 else block


def damaged(frame: bytes, chance: random.Random) -> bytes:
    changed = bytearray(frame)
    changed[chance.randrange(len(changed))] = chance.randrange(256)
    return bytes(changed)[: chance.randint(1, len(changed))]


def noise(chance: random.Random) -> list[bytes]:
    """A valid command, one of ours, a mutated one, or anything."""
    names = [b"", b"a", b"fuzz", b"kept", b"_MAMA_EVENTS", b".*", b"(", b"x" * 255]
    cls = wire.COMMANDS[chance.randint(1, 18)]
    kinds: dict[str, list[Any]] = {"s": names, "2": [0, 1, 300, 65535], "4": [0, 1, 99]}
    values: dict[str, Any] = {name: chance.choice(kinds[kind]) for name, kind in cls.layout}
    frames = encode(cls(**values))
    if chance.random() < 0.4:
        frames[0] += beside(chance)
    if cls.has_content and chance.random() < 0.1:  # a block
        sends = [encode(wire.StreamSend(chance.choice(names), [b"x"])) for _ in range(2)]
        frames += [
            struct.pack(">4I", *(len(one) for two in zip(*sends, strict=True) for one in two)),
            *map(b"".join, zip(*sends, strict=True)),
        ]
    elif cls.has_content:
        frames += [chance.randbytes(chance.randrange(50)) for _ in range(chance.randrange(3))]
    way = chance.random()
    if way < 0.3:
        frames[0] = damaged(frames[0], chance)
    elif way < 0.4:
        frames = [chance.randbytes(chance.randrange(40)) for _ in range(chance.randint(1, 4))]
    return frames


@pytest.mark.parametrize("count", [20_000 if EXPLORE else 2_000, pytest.param(1_000_000, marks=pytest.mark.explore)])
def test_any_frames_leave_the_broker_as_it_was(make: Make, tmp_path: Path, count: int) -> None:
    site = make(folder=tmp_path, timeout=10.0, streams=20, patterns=20)
    site.healthy()  # makes its stream, before the noise has made as many as there may be
    chance = random.Random(7)
    peers: list[Peer] = []
    for n in range(count):
        if n % (count // 20) == 0:  # others come
            peers = [site.peer(b"fuzz%d" % k) for k in range(3)]
        peer = chance.choice(peers)
        peer.socket.send_multipart(noise(chance))
        if n % 100 == 0:
            site.clock.ahead += 1.0  # some expire meanwhile
            while peer.socket.poll(0):
                peer.socket.recv_multipart()
    probe = site.peer(b"probe")
    assert probe.until_pong() == []
    loop = site.broker._loop
    assert loop is not None
    assert len(loop.machine.streams) <= 20
    site.until_nobody_is_left()

    def nothing_is_left() -> bool:
        site.clock.ahead += 1.0
        engines = loop.engines
        tables = (loop.clients.blocked, engines._starting, engines._lagging, engines._ending, engines._abandoned)
        return site.broker.streams() == [b"_MAMA_EVENTS"] and not any(tables)

    until(nothing_is_left, site.broker.metrics)
    site.healthy()
