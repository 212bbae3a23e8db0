"""Durable streams in a broker of its own process, which is killed, starved of disk, and started twice."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings, EngineChoice
from mama_spark.malamute.broker.session.settings import SessionSettings
from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Error, Ok, Pong, StreamDeliver
from mama_spark.malamute.protocol.extensions import AckRun, Extension, Feature, StoreOutcome, read, write
from mama_spark.testing.waiting import until

from tests.support.malamute.mlp import Peer
from tests.support.processes import resident_memory

SETTLED = (StoreOutcome.STORED, StoreOutcome.DUPLICATE)
FEATURES = Feature.CREDIT | Feature.SEQUENCE | Feature.ACKS | Feature.HEADERS
PROGRAM = """
import resource, sys
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings, EngineChoice
from mama_spark.malamute.broker.session.settings import SessionSettings

folder, limit = sys.argv[1], int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
engines = (EngineChoice(b".*", "durable", {"folder": folder}),)
settings = BrokerSettings("tcp://127.0.0.1:*", SessionSettings(timeout=0, pong_silence=0), engines)
with Broker(settings) as broker:
    print(broker.endpoint, flush=True)
    sys.stdin.read()
"""


class Process:
    """A broker with durable streams; ``limit`` = octets that one of its files may have."""

    def __init__(self, folder: Path, limit: int = 0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), str(limit)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.endpoint = self.process.stdout.readline().strip()

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()
        self.process.wait(60)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def start(limit: int = 0) -> Process:
        made.append(Process(tmp_path, limit))
        return made[-1]

    yield start
    for process in made:
        if process.process.returncode is None:
            process.kill()


@contextmanager
def broker_here(folder: Path) -> Iterator[str]:
    """The same in this process; its endpoint."""
    engines = (EngineChoice(b".*", "durable", {"folder": str(folder)}),)
    with Broker(BrokerSettings("tcp://127.0.0.1:*", SessionSettings(timeout=0), engines, linger=0.5)) as broker:
        yield broker.endpoint


class Publisher(Peer):
    """Understands extensions."""

    def publish(self, n: int, content: bytes = b"", ids: bool = True) -> None:
        extension = write(Extension(message_id=b"id-%d" % n)) if ids else b""
        self.send(commands.StreamSend(b"s.%d" % (n % 10), [content or b"%d" % n], trailing=extension))

    def read(self, up_to: int, pattern: bytes = b"", after: int = 0) -> list[tuple[int, bytes, bytes]]:
        """Sequence, id and content of what is delivered until this sequence comes, with credit for a few at a time."""
        assert isinstance(self.ask(commands.StreamRead(b"st", pattern, write(Extension(after=after)))), Ok)
        found: list[tuple[int, bytes, bytes]] = []
        while not found or found[-1][0] < up_to:
            if len(found) % 500 == 0:
                self.send(commands.Credit(500))
            delivery = self.get()
            assert isinstance(delivery, StreamDeliver)
            extension = read(delivery.trailing)
            assert extension.sequence is not None
            found.append((extension.sequence, extension.message_id, delivery.content[0]))
        return found


class Sockets:
    """Clients of one test."""

    def __init__(self) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.peers: list[Peer] = []

    def publisher(self, endpoint: str) -> Publisher:
        made = Publisher(self.context, endpoint, high_water=0)
        self.peers.append(made)
        return made.open(features=FEATURES)

    def plain(self, endpoint: str, address: bytes, high_water: int) -> Peer:
        """Of another implementation."""
        self.peers.append(Peer(self.context, endpoint, high_water=high_water))
        return self.peers[-1].open(address)


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    sockets = Sockets()
    yield sockets
    for peer in sockets.peers:
        peer.socket.close()
    sockets.context.term()


class Writer:
    """Publishes messages 0, 1, 2... in chunks and remembers what was acknowledged."""

    CHUNK = 100

    def __init__(self, sockets: Sockets) -> None:
        self.sockets = sockets
        self.acked: dict[int, int] = {}  # message -> sequence

    def write(self, endpoint: str, until: int, on_the_way: int = 5) -> None:
        """Send what is not acknowledged, from the first on, until so many are; chunks are then still on the way."""
        peer = self.sockets.publisher(endpoint)
        assert isinstance(peer.ask(commands.StreamWrite(b"st")), Ok)
        next_one = next(n for n in range(len(self.acked) + 1) if n not in self.acked)
        chunks: list[range] = []
        while len(self.acked) < until:
            while len(chunks) < on_the_way:
                chunks.append(range(next_one, next_one + self.CHUNK))
                next_one += self.CHUNK
                for n in chunks[-1]:
                    peer.publish(n)
                peer.send(commands.Ping())
            pong = peer.get()
            assert isinstance(pong, Pong)
            self._take(chunks.pop(0), read(pong.trailing).acks)

    def _take(self, chunk: range, runs: tuple[AckRun, ...]) -> None:
        assert sum(run.count for run in runs) == len(chunk)
        assert all(run.outcome in SETTLED for run in runs)
        sequences = (s for run in runs for s in range(run.first, run.first + run.count))
        for n, sequence in zip(chunk, sequences, strict=True):
            assert self.acked.setdefault(n, sequence) == sequence


@pytest.mark.spec("ML-01", "ML-22")
def test_what_was_acknowledged_survives_the_death_of_the_broker_in_mid_write(
    broker: Callable[..., Process], sockets: Sockets, tmp_path: Path
) -> None:
    """Everything acknowledged is there under its number, in order, without holes, nothing twice."""
    writer = Writer(sockets)
    for goal in (700, 1_500):
        process = broker()
        writer.write(process.endpoint, goal)
        process.kill()
    with broker_here(tmp_path) as endpoint:
        writer.write(endpoint, 3_000)
        found = sockets.publisher(endpoint).read(max(writer.acked.values()))
    assert [sequence for sequence, _, _ in found] == list(range(1, len(found) + 1))
    ids = [message_id for _, message_id, _ in found]
    assert len(set(ids)) == len(ids)
    by_sequence = {sequence: content for sequence, _, content in found}
    for n, sequence in writer.acked.items():
        assert by_sequence[sequence] == b"%d" % n
    assert [int(content) for _, _, content in found] == sorted(int(content) for _, _, content in found)


@pytest.mark.spec("ML-22")
def test_replay_over_the_wire_meets_what_is_published_meanwhile(sockets: Sockets, tmp_path: Path) -> None:
    with broker_here(tmp_path) as endpoint:
        writer = Writer(sockets)
        writer.write(endpoint, 1_000, on_the_way=1)
        reader = sockets.publisher(endpoint)
        assert [s for s, _, _ in reader.read(500)][-1] == 500
        writer.write(endpoint, 2_000, on_the_way=1)
        follower = sockets.publisher(endpoint)
        found = follower.read(1_990, b"0$", after=995)
    assert [s for s, _, _ in found] == [s for n, s in sorted(writer.acked.items()) if n % 10 == 0 and 995 < s <= 1_991]


def _resident(process: Process) -> int:
    """Octets of memory that the broker has."""
    return resident_memory(process.process.pid)


@pytest.mark.spec("ML-21")
def test_a_reader_without_credit_that_stops_for_a_while_loses_nothing_and_costs_no_memory(
    broker: Callable[..., Process], sockets: Sockets
) -> None:
    """A client of another implementation, which never gives credit. The store is what holds."""
    process = broker()
    reader = sockets.plain(process.endpoint, b"slow", high_water=100)
    assert isinstance(reader.ask(commands.StreamRead(b"st", b"")), Ok)
    peer = sockets.publisher(process.endpoint)
    assert isinstance(peer.ask(commands.StreamWrite(b"st")), Ok)
    before = _resident(process)
    total, padding = 6_000, b"." * 8_000
    for n in range(total):
        peer.publish(n, b"%d" % n + padding, ids=False)
        if n % 200 == 199:
            assert isinstance(peer.ask(commands.Ping()), Pong)
    # all of it, if the broker kept what waits; half of that is far above what its allocator and the store's pages take
    assert _resident(process) - before < total * len(padding) // 2
    for n in range(total):
        delivery = reader.get()
        assert isinstance(delivery, StreamDeliver)
        assert delivery.content[0].rstrip(b".") == b"%d" % n


def test_a_second_broker_on_the_same_store_is_refused(
    broker: Callable[..., Process], sockets: Sockets, tmp_path: Path
) -> None:
    first = broker()
    writer = Writer(sockets)
    writer.write(first.endpoint, 100)
    with broker_here(tmp_path) as endpoint:
        second = sockets.publisher(endpoint)
        answer = second.ask(commands.StreamWrite(b"st"))
        assert isinstance(answer, Error)
        assert answer.code == 502
        assert b"is open elsewhere" in answer.reason
        assert isinstance(second.ask(commands.StreamWrite(b"another")), Ok), "and serves other streams"
        writer.write(first.endpoint, 200)
        first.kill()
        until(lambda: isinstance(second.ask(commands.StreamWrite(b"st")), Ok))  # the lock ends with its owner


def test_without_room_on_the_disk_messages_are_refused_and_the_broker_lives(
    broker: Callable[..., Process], sockets: Sockets, tmp_path: Path
) -> None:
    process = broker(3_000_000)
    peer = sockets.publisher(process.endpoint)
    assert isinstance(peer.ask(commands.StreamWrite(b"st")), Ok)
    runs: list[AckRun] = []
    for n in range(120):
        peer.publish(n, b"x" * 50_000)
        pong = peer.ask(commands.Ping())
        assert isinstance(pong, Pong)
        runs += read(pong.trailing).acks
    stored = [run.first for run in runs if run.outcome is StoreOutcome.STORED]
    assert {run.outcome for run in runs} == {StoreOutcome.STORED, StoreOutcome.REFUSED}
    assert stored == list(range(1, len(stored) + 1)), "numbers of what was refused are not lost"
    assert [s for s, _, _ in sockets.publisher(process.endpoint).read(stored[-1])] == stored
    process.kill()
    with broker_here(tmp_path) as endpoint:
        peer = sockets.publisher(endpoint)
        assert isinstance(peer.ask(commands.StreamWrite(b"st")), Ok)
        peer.publish(1000)
        pong = peer.ask(commands.Ping())
        assert isinstance(pong, Pong)
        assert read(pong.trailing).acks == (AckRun(StoreOutcome.STORED, 1, len(stored) + 1),)
        assert len(sockets.publisher(endpoint).read(len(stored) + 1)) == len(stored) + 1
