"""The broker over TCP: recorded conversations, the inputs that are fatal to the reference, limits, and its end."""

from __future__ import annotations

import json
import os
import random
import resource
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zmq
from mama_spark.errors import BackgroundTaskFailed, Unavailable
from mama_spark.malamute.protocol import commands as wire
from mama_spark.malamute.protocol.commands import Command, Error, Ok, Pong, decode, encode
from mama_spark.malamute.protocol.extensions import ALL, AckRun, Extension, Feature, StoreOutcome, read, write
from mama_spark.malamute.protocol.log_query import LogQuery, Op
from mama_spark.services.malamute_broker.broker import broker as broker_module
from mama_spark.services.malamute_broker.broker import loop as broker_loop
from mama_spark.services.malamute_broker.broker.broker import Broker, BrokerSettings, EngineChoice
from mama_spark.services.malamute_broker.engines import Delivery, register
from mama_spark.services.malamute_broker.engines.simple import SimpleEngine
from mama_spark.services.malamute_broker.session.byte_queue import Overflow
from mama_spark.services.malamute_broker.session.settings import SessionSettings
from mama_spark.services.malamute_broker.session.state_machine import ServerMachine
from mama_spark.testing.clocks import Clock
from mama_spark.testing.waiting import until

from tests.support.examples import FULL
from tests.support.processes import resident_memory

VECTORS: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "vectors" / "malamute.json").read_text())
PATIENCE = 60_000  #: ms
OK, INVALID, PONG = Ok(), Error(500), Pong()


class Peer:
    """A raw client."""

    def __init__(self, site: Site, kind: int = zmq.DEALER, hwm: int = 1000) -> None:
        self.socket = site.context.socket(kind)
        self.socket.linger = 0
        self.socket.set_hwm(hwm)
        self.socket.connect(site.broker.endpoint)
        site.peers.append(self)

    def send(self, *commands: Command) -> None:
        for command in commands:
            self.socket.send_multipart(encode(command))

    def frames(self) -> list[bytes]:
        assert self.socket.poll(PATIENCE), "nothing came"
        return self.socket.recv_multipart()

    def get(self, n: int = 1) -> list[Command]:
        return [decode(self.frames()) for _ in range(n)]

    def ask(self, *commands: Command) -> list[Command]:
        """All that comes up to the PONG behind these commands."""
        self.send(*commands, wire.Ping())
        found: list[Command] = []
        while not isinstance(found[-1] if found else None, Pong):
            found += self.get()
        return found[:-1]

    def open(self, address: bytes, features: Feature | None = None) -> Peer:
        trailing = b"" if features is None else write(Extension(features=features))
        self.send(wire.Open(address, trailing))
        (reply,) = self.get()
        assert isinstance(reply, Ok)
        return self


class Site:
    """A broker, whose clients need not ping unless it is given a ``timeout``, and its clients.

    :param clock: the broker's
    """

    def __init__(self, clock: Clock, folder: Path | None = None, **machine: Any) -> None:
        self.clock = clock
        self.events: list[tuple[str, bytes, bytes, bytes]] = []
        choices: tuple[EngineChoice, ...] = (
            EngineChoice(b"^slow", "slow-for-tests"),
            EngineChoice(b"^broken", "broken-for-tests"),
            EngineChoice(b"^wild", "wild-for-tests"),
        )
        if folder is not None:
            choices += tuple(EngineChoice(name, "durable", {"folder": str(folder)}) for name in (b"^kept", b"^_MAMA"))
        given = SessionSettings(**{"timeout": 0.0, **machine})
        settings = BrokerSettings("tcp://127.0.0.1:*", given, choices, high_water=20)
        self.broker = Broker(settings, self.events.extend)
        self.broker.start()
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.context.set(zmq.MAX_SOCKETS, 4096)
        self.peers: list[Peer] = []

    def peer(self, address: bytes | None = None, **values: Any) -> Peer:
        peer = Peer(self, **values)
        return peer if address is None else peer.open(address)

    def healthy(self) -> None:
        """A fresh client works in every way."""
        reader, writer = self.peer(b"fresh-reader"), self.peer(b"fresh-writer")
        assert reader.ask(wire.StreamRead(b"fresh", b"^a")) == [OK]
        assert writer.ask(wire.StreamWrite(b"fresh"), wire.StreamSend(b"abc", [b"1"])) == [OK]
        assert reader.get() == [wire.StreamDeliver(b"fresh", b"fresh-writer", b"abc", [b"1"])]

    def until_nobody_is_left(self) -> None:
        """Let time pass until all clients have expired: at a time a second, beyond which it would be deaf."""
        end = time.monotonic() + PATIENCE / 1000
        while self.broker.clients():
            assert time.monotonic() < end, self.broker.clients()
            self.clock.ahead += 1.0
            self.broker.metrics()  # it has looked around

    def rest(self, peer: Peer) -> list[Command]:
        """All that is for a client, also what waits while its socket takes no more. PONG goes before that."""
        assert self.broker._loop is not None
        found = peer.ask()
        while self.broker._loop.clients.blocked:
            found += peer.ask()
        return found + peer.ask()

    def close(self) -> None:
        for peer in self.peers:
            peer.socket.close(0)
        self.context.term()
        self.broker.stop()


Make = Callable[..., Site]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    sites: list[Site] = []
    clock = Clock()
    monkeypatch.setattr(broker_loop, "time", clock)

    def made(**values: Any) -> Site:
        sites.append(Site(clock, **values))
        return sites[-1]

    yield made
    for site in sites:
        site.close()


class SlowEngine(SimpleEngine):
    def flush(self) -> None:
        time.sleep(0.02)


class BrokenEngine(SimpleEngine):
    def flush(self) -> None:
        raise OSError("disk full")


register("slow-for-tests", SlowEngine)


class WildEngine(SimpleEngine):
    """Delivers what fits in no command."""

    def traffic(self, deliver: Callable[[Delivery], object]) -> None:
        def wild(delivery: Delivery) -> None:
            if delivery.subject == b"long":
                deliver(delivery._replace(subject=b"x" * 256))
            else:
                deliver(delivery._replace(extension=Extension(headers=((b"k", b"v" * 65_535),))))

        super().traffic(wild)


register("broken-for-tests", BrokenEngine)
register("wild-for-tests", WildEngine)


OURS = {"aaa80f012c024f4b": "aaa80f012c00", "aaa80f01f4024f4b": "aaa80f01f400"}
SCENARIOS = [v for v in VECTORS if v["kind"] == "scenario"]


@pytest.mark.spec("ML-25")
@pytest.mark.parametrize("vector", SCENARIOS, ids=lambda v: v["name"])
def test_recorded_conversations_over_tcp(make: Make, vector: dict[str, Any]) -> None:
    """Byte for byte but for leftover reasons, and one copy a client: see the tests of the machine."""
    site = make(timeout=60.0)
    peers: dict[str, Peer] = {}
    skipped = 0
    for step in vector["steps"]:
        peer = peers.setdefault(step["client"], site.peer() if step["client"] not in peers else peers[step["client"]])
        frames = [bytes.fromhex(OURS.get(h, h)) for h in step["hex"]]
        if step["dir"] == "C>S":
            peer.socket.send_multipart(frames)
        elif step["dir"] == "none":
            site.until_nobody_is_left()
        elif vector["name"] == "scenario_duplicate_patterns" and frames[1:] == [b"1"] and not skipped:
            skipped += 1
        else:
            assert peer.frames() == frames
    for peer in peers.values():
        assert not peer.socket.poll(50), "and nothing more"


def test_bad_input_is_survived(make: Make) -> None:
    """What each is answered is shown with the machine alone."""
    site = make()
    for vector in [v for v in VECTORS if v["kind"] == "bad"]:
        peer = site.peer(b"bad" if vector.get("state") == "connected" else None)
        peer.socket.send_multipart([bytes.fromhex(h) for h in vector["hex"]])
    site.healthy()


def test_a_req_socket_is_ignored(make: Make) -> None:
    site = make()
    site.peer(kind=zmq.REQ).socket.send(b"\xaa\xa8\x02")
    site.healthy()
    assert site.broker.counters()["malformed"] == 1


def test_fatal_inputs_of_the_reference_one_after_another(make: Make) -> None:
    """Section 5: each of these ends or stalls the reference broker."""
    site = make()
    stranger = site.peer()
    stranger.send(wire.Close(), wire.Close())
    assert stranger.get(2) == [OK, OK]
    older, newer = site.peer(b"same"), site.peer(b"same")
    older.send(wire.Close())
    assert older.get() == [OK]
    assert newer.ask() == []
    newer.socket.send_multipart([*encode(wire.Ping()), b"extra"])
    for pattern in (b")", b"*", b"+", b"a**", b"(a*)*"):
        (refused,) = newer.ask(wire.StreamRead(b"A", pattern))
        assert isinstance(refused, Error)
        assert refused.code == 300
    assert newer.ask(wire.StreamRead(b"A", b"x"), wire.StreamRead(b"B", b"x"), wire.StreamCancel(b"B")) == [OK] * 3
    newer.send(wire.Close())
    writer = site.peer(b"w")
    assert writer.ask(wire.StreamWrite(b"A"), wire.StreamSend(b"x")) == [OK]
    for frames in ([b""], [b"\xaa\xa8\x06\x20abc"]):
        writer.socket.send_multipart(frames)
    site.healthy()


@pytest.mark.spec("S5")
def test_ping_as_the_only_command_and_then_silence(make: Make) -> None:
    site = make(timeout=60.0)
    peer = site.peer()
    peer.send(wire.Ping())
    assert peer.get() == [INVALID]
    site.peer(b"goes")
    site.until_nobody_is_left()
    site.healthy()


@pytest.mark.spec("S3", "S4")
def test_clients_and_streams_are_listed(make: Make) -> None:
    site = make()
    peers = {name: site.peer(name) for name in (b"a", b"b", b"c")}
    site.peer(b"")
    assert site.broker.clients() == [b"a", b"b", b"c"]
    peers[b"a"].ask(wire.StreamWrite(b"one"), wire.StreamRead(b"two", b""), wire.StreamRead(b"one", b""))
    assert site.broker.streams() == [b"one", b"two"]
    peers[b"a"].send(wire.Close())
    peers[b"a"].get()
    peers[b"b"].ask(wire.StreamWrite(b"three"))
    assert site.broker.clients() == [b"b", b"c"]
    assert site.broker.streams() == [b"one", b"three", b"two"], "streams survive their producer"
    kinds = [kind for kind, address, *_ in site.events if address == b"a"]
    assert kinds == ["CONNECTED", "WRITING", *["SUBSCRIBED"] * 2, *["UNSUBSCRIBED"] * 2, "STOPPED", "GONE"]
    assert repr(site.broker).startswith(f"<Broker {site.broker.endpoint} <ServerMachine 3 clients, 3 streams")


@pytest.mark.spec("C13", "C14")
def test_a_writer_that_is_gone_right_after_sending_is_heard(make: Make) -> None:
    site = make()
    reader, writer = site.peer(b"r"), site.peer(b"w")
    reader.ask(wire.StreamRead(b"st", b""))
    writer.send(wire.StreamWrite(b"st"), *[wire.StreamSend(b"%d" % n, [b"x"]) for n in range(100)], wire.Close())
    got = reader.get(100)
    assert [d.subject for d in got if isinstance(d, wire.StreamDeliver)] == [b"%d" % n for n in range(100)]


def test_large_messages_and_many_frames_pass(make: Make) -> None:
    site = make()
    reader, writer = site.peer(b"r"), site.peer(b"w")
    reader.ask(wire.StreamRead(b"st", b""))
    bodies = [[b"x" * 5_000_000], [b"y"] * 300, [b""], []]
    writer.send(wire.StreamWrite(b"st"), *[wire.StreamSend(b"s", body) for body in bodies])
    assert [list(d.content) for d in reader.get(4) if isinstance(d, wire.StreamDeliver)] == bodies


def test_acknowledgements_come_behind_what_a_slow_engine_took(make: Make) -> None:
    site = make()
    writer = site.peer().open(b"w", Feature.ACKS)
    writer.send(wire.StreamWrite(b"slow"), *[wire.StreamSend(b"s")] * 7, wire.Ping())
    ok, pong = writer.get(2)
    assert ok == OK
    assert isinstance(pong, Pong)
    assert read(pong.trailing).acks == (AckRun(StoreOutcome.ACCEPTED, 7),)


def test_an_engine_that_dies_is_told_to_its_clients_and_to_no_others(make: Make, caplog: Any) -> None:
    site = make()
    peer = site.peer(b"a")
    peer.send(wire.StreamRead(b"broken", b"x"))
    assert peer.get() == [Error(502, b"disk full")]
    assert peer.ask() == []
    site.healthy()
    assert "disk full" in caplog.text


@pytest.mark.parametrize("subject", [b"long", b"large header"])
def test_an_engine_that_delivers_what_fits_in_no_command_ends_its_stream_and_no_other(
    make: Make, caplog: Any, subject: bytes
) -> None:
    site = make()
    reader, writer = site.peer().open(b"r", ALL & ~Feature.CREDIT), site.peer(b"w")
    reader.send(wire.StreamRead(b"wild", b""))
    reader.get()
    writer.send(wire.StreamWrite(b"wild"), wire.StreamSend(subject))
    until(lambda: b"wild" not in site.broker.streams())
    assert "delivers what no client can be sent" in caplog.text
    site.healthy()
    reader.send(wire.StreamRead(b"wild", b""))
    while not isinstance(answer := reader.get()[0], Ok):  # once the engine has ended
        assert isinstance(answer, Error)
        reader.send(wire.StreamRead(b"wild", b""))


@pytest.mark.parametrize("overflow", Overflow)
def test_a_reader_that_stops_costs_no_more_than_its_limit(make: Make, overflow: Overflow) -> None:
    """The reference's memory grows by 1.1 KB a message until the reader expires."""
    limit, body = 1_000_000, b"x" * 10_000
    site = make(queue=limit, overflow=overflow)
    reader, writer, other = site.peer(b"r", hwm=10), site.peer(b"w"), site.peer(b"other")
    reader.ask(wire.StreamRead(b"st", b""))
    other.ask(wire.StreamRead(b"st", b"^last$"))
    writer.ask(wire.StreamWrite(b"st"))
    total = 4000
    for n in range(total):
        writer.send(wire.StreamSend(b"%d" % n, [body]))
        if n % 100 == 99:
            writer.ask()
    writer.send(wire.StreamSend(b"last"))
    assert other.get() == [wire.StreamDeliver(b"st", b"w", b"last", [])], "nobody else is held up"
    if overflow is Overflow.DISCONNECT:
        assert site.broker.clients() == [b"other", b"w"]
        return
    held = total - site.broker.counters()["lost_deliveries"]
    assert held * len(body) < limit + 40 * len(body) + 15_000_000, "the limit, and what ZeroMQ and the kernel hold"
    numbers = []
    for command in site.rest(reader):
        assert isinstance(command, wire.StreamDeliver)
        numbers.append(command.subject)
    assert numbers[-1] == b"last" or overflow is Overflow.DROP_NEWEST, "which may have room for one so small"
    kept = [int(n) for n in numbers if n != b"last"]
    assert kept == sorted(set(kept))
    assert len(kept) < total
    if overflow is Overflow.DROP_NEWEST:
        fit = limit // (len(body) + 350)
        assert kept[:fit] == list(range(fit)), "the oldest, without a hole"
    else:
        fit = limit // (len(body) + 350) - 1
        assert kept[-fit:] == list(range(total - fit, total)), "the newest, without a hole"
    assert reader.ask() == [], "and it is still a client"


def test_a_reader_that_dies_without_close_leaves_nothing_behind(make: Make) -> None:
    site = make(timeout=60.0)
    reader, writer = site.peer(b"r", hwm=10), site.peer(b"w")
    reader.ask(wire.StreamRead(b"st", b""))
    writer.ask(wire.StreamWrite(b"st"))
    loop = site.broker._loop
    assert loop is not None
    n = 0
    while not loop.clients.blocked:
        writer.ask(*[wire.StreamSend(b"s", [b"x" * 10_000])] * 100)
        n += 1
        assert n < 1000
    reader.socket.close(0)
    site.until_nobody_is_left()
    until(lambda: not loop.clients.blocked)
    site.healthy()


def test_tcp_asks_after_clients_that_say_nothing(make: Make) -> None:
    """Else the connection of a host that vanished would stay for ever: its client expires, and nothing is sent."""
    site = make()
    site.peer(b"silent")
    port = int(site.broker.endpoint.rpartition(":")[2])

    def timer() -> tuple[str, float]:
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            local, _, state, _, timer = line.split()[1:6]
            if int(local.partition(":")[2], 16) == port and state == "01":  # established
                kind, _, ticks = timer.partition(":")
                return kind, int(ticks, 16) / os.sysconf("SC_CLK_TCK")
        return "", 0.0

    until(lambda: timer()[0] == "02")  # what was sent is acknowledged, and all is quiet
    assert 1 < timer()[1] <= 60, "a probe after a minute at most; the system's own is after two hours"


def test_a_reader_with_credit_gets_all_though_it_is_slow(make: Make) -> None:
    site = make()
    reader, writer = site.peer(hwm=10).open(b"r", Feature.CREDIT), site.peer(b"w")
    reader.ask(wire.StreamRead(b"st", b""))
    writer.ask(wire.StreamWrite(b"st"), *[wire.StreamSend(b"%d" % n, [b"x" * 1000]) for n in range(1000)])
    got: list[bytes] = []
    while len(got) < 1000:
        assert reader.ask() == [], "nothing beyond credit"
        reader.send(wire.Credit(100))
        got += [d.subject for d in reader.get(100) if isinstance(d, wire.StreamDeliver)]
    assert got == [b"%d" % n for n in range(1000)]


def beside(chance: random.Random) -> bytes:
    """What our own clients say behind the last field, or what it may have become on its way."""
    question = LogQuery(chance.choice(list(Op)[1:]), chance.randrange(99), chance.choice([b"kept", b"a"]), ())
    numbers = {Op.AT: (5,), Op.TRIM: (9,), Op.MISSING: (1, 9**9)}.get(question.op, (0, 9, 9, 9))
    question = replace(question, numbers=() if question.op is Op.BOUNDS else numbers)
    block = write(
        chance.choice(
            [
                Extension(features=ALL),
                Extension(question=question.pack()),
                Extension(block=chance.choice([0, 1, 2, 9999])),
                Extension(after=chance.choice([0, 1, 2**63])),
                Extension(message_id=b"%d" % chance.randrange(9), headers=((b"k", b"v"),)),
                Extension(headers=((chance.choice([b"Mama-Ttl", b"Mama-Renewal", b"Mama-Marker"]), b"20"),)),
            ]
        )
    )
    if chance.random() < 0.3:
        changed = bytearray(block)
        changed[chance.randrange(len(changed))] = chance.randrange(256)
        block = bytes(changed)[: chance.randint(1, len(changed))]
    return block


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
    if way < 0.3 and frames[0]:
        frame = bytearray(frames[0])
        frame[chance.randrange(len(frame))] = chance.randrange(256)
        frames[0] = bytes(frame)[: chance.randint(1, len(frame))]
    elif way < 0.4:
        frames = [chance.randbytes(chance.randrange(40)) for _ in range(chance.randint(1, 4))]
    return frames


def resident() -> int:
    return resident_memory(os.getpid())


@pytest.mark.parametrize("count", [20_000 if FULL else 5_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
def test_any_frames_leave_the_broker_as_it_was(make: Make, tmp_path: Path, count: int) -> None:
    site = make(folder=tmp_path, timeout=10.0, streams=20, patterns=20)
    site.healthy()  # makes its stream, before the noise has made as many as there may be
    chance = random.Random(7)
    peers: list[Peer] = []
    before = 0
    for n in range(count):
        if n % (count // 20) == 0:  # others come
            peers = [site.peer(b"fuzz%d" % k) for k in range(3)]
        peer = chance.choice(peers)
        peer.socket.send_multipart(noise(chance))
        if n % 100 == 0:
            site.clock.ahead += 1.0  # some expire meanwhile
            while peer.socket.poll(0):
                peer.socket.recv_multipart()
        if n == count // 2:
            before = resident()
    probe = site.peer(b"probe")
    assert probe.ask() == []
    assert resident() - before < 100_000_000
    machine = site.broker._loop.machine if site.broker._loop else None
    assert machine is not None
    assert len(machine.streams) <= 20
    site.until_nobody_is_left()
    site.healthy()


def test_many_streams_and_as_many_clients(make: Make) -> None:
    """Each stream has three sockets, and ZeroMQ gives 1023 to whoever does not ask for more."""
    site, count = make(), 1000 if FULL else 350
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


def test_many_subscriptions(make: Make) -> None:
    site, count = make(), 10_000 if FULL else 1_000
    reader, writer = site.peer(b"r", hwm=0), site.peer(b"w")
    for start in range(0, count, 500):
        assert reader.ask(*[wire.StreamRead(b"st", b"^dev%d$" % n) for n in range(start, start + 500)]) == [OK] * 500
    writer.ask(wire.StreamWrite(b"st"))
    subjects = [b"dev%d" % n for n in range(0, count + 500, 50)]
    writer.send(*[wire.StreamSend(subject) for subject in subjects])
    got = [d.subject for d in reader.get(count // 50) if isinstance(d, wire.StreamDeliver)]
    assert got == subjects[: count // 50]


def test_a_stream_that_cannot_be_made_is_told_and_disturbs_nobody(monkeypatch: pytest.MonkeyPatch, make: Make) -> None:
    monkeypatch.setattr(broker_module, "_SOCKETS", 0)  # leaves 16 sockets for the broker and all streams
    site = make()
    peer = site.peer(b"a")
    replies: list[Command] = []
    for n in range(10):
        peer.send(wire.StreamWrite(b"%d" % n))
        replies += peer.get()
    refused = [reply for reply in replies if isinstance(reply, Error)]
    assert replies[0] == OK
    assert refused
    assert all(reply.code == 502 and b"Too many open files" in reply.reason for reply in refused)
    assert peer.ask(wire.StreamWrite(b"0")) == [OK]


def test_streams_are_limited_by_open_files_and_it_is_said(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1024, 4096))
    changed: list[Any] = []
    monkeypatch.setattr(resource, "setrlimit", lambda kind, limits: changed.append(limits))
    with Broker(BrokerSettings("tcp://127.0.0.1:*")) as broker:
        assert broker._loop is not None
        assert broker._loop.machine.settings.streams == (4096 - 2048) // 3
    assert changed == [(4096, 4096)]
    assert "4096 open files allow 682 streams, not 4096" in caplog.text


def test_stopping_loses_nothing_that_was_accepted(make: Make) -> None:
    site = make()
    reader, writer = site.peer(b"r"), site.peer(b"w")
    reader.ask(wire.StreamRead(b"slow", b""))
    assert writer.ask(wire.StreamWrite(b"slow"), *[wire.StreamSend(b"%d" % n) for n in range(500)]) == [OK]
    site.broker.stop()
    assert [d.subject for d in reader.get(500) if isinstance(d, wire.StreamDeliver)] == [b"%d" % n for n in range(500)]


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
