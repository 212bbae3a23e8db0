"""Streams in NATS JetStream behind brokers: servers and brokers die, and what was acknowledged is stored."""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from mama_spark.contracts.errors import MamaError, Unavailable
from mama_spark.malamute.bridge.logs import MalamuteLogs
from mama_spark.malamute.bridge.preflight import check_server
from mama_spark.malamute.bridge.settings import MalamuteSettings
from mama_spark.malamute.broker.engines.jetstream import engine, publisher
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.commands import Ok, Pong, StreamDeliver
from mama_spark.malamute.protocol.extensions import AckRun, Feature, StoreOutcome, read
from mama_spark.nats.read.logs import NatsLogs
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.nats.settings import NatsSettings
from mama_spark.testing.waiting import eventually

from tests.support.malamute.broker_process import BrokerProcess
from tests.support.malamute.mlp import MlpSite, Peer
from tests.support.nats.full_disk import limit_files
from tests.support.nats.nats_cluster import Cluster
from tests.support.nats.nats_servers import Admin

PATIENCE = 90.0
NAME = "mlp-st"


class PlainPeer(Peer):
    """A client as the C library is one: no extensions (unless asked for), and nothing is answered to SEND."""

    def publish(self, subject: bytes, *content: bytes) -> None:
        self.send(commands.StreamSend(subject, list(content)))

    def outcomes(self) -> list[tuple[StoreOutcome, int]]:
        """With the feature ACKS: what became of what was sent, however long that takes, and its sequences."""
        pong = self.ask(commands.Ping())
        assert isinstance(pong, Pong)
        return [(run.outcome, run.first + k) for run in read(pong.trailing).acks for k in range(run.count)]

    def deliveries(self, n: int) -> list[StreamDeliver]:
        found = self.take(n)
        assert all(isinstance(one, StreamDeliver) for one in found), found
        return [one for one in found if isinstance(one, StreamDeliver)]


class BrokersHarness(MlpSite):
    """Brokers over the servers of one NATS, and their clients."""

    def over(self, servers: str, **settings: object) -> str:
        """URL of a broker."""
        return self.broker({b".*": ("jetstream", {"servers": servers, **settings})}).endpoint.replace("tcp:", "mlp:")

    def plain(self, url: str, address: bytes = b"", features: Feature | None = None) -> PlainPeer:
        return self.peer(PlainPeer, url, address, features, hwm=0)


@pytest.fixture
def brokers() -> Iterator[BrokersHarness]:
    brokers = BrokersHarness()
    yield brokers
    brokers.close()


class Writer:
    """Publishes 0, 1, 2... with ids, a chunk at a time until it is acknowledged, and remembers sequences."""

    CHUNK = 100

    def __init__(self) -> None:
        self.acked: dict[int, int] = {}

    def write(
        self, url: str, until: int, timeout: float = 3.0, meanwhile: Callable[[int], float | None] | None = None
    ) -> None:
        end = time.monotonic() + PATIENCE
        while len(self.acked) < until:
            assert time.monotonic() < end, f"{len(self.acked)} are acknowledged"
            with suppress(MamaError):  # nobody knows: once more, with the same ids
                self.write_once(url, until, timeout, meanwhile)

    def write_once(
        self, url: str, until: int, timeout: float, meanwhile: Callable[[int], float | None] | None = None
    ) -> None:
        """
        :param meanwhile: what happens behind each chunk, given the number of its first; it may say how many seconds the
            answer may take
        :raises MamaError: nobody knows what became of the last chunk
        """
        with MalamuteClient(url, timeout=timeout) as client:
            client.write("st")
            while len(self.acked) < until:
                first = len(self.acked)
                for n in range(first, first + self.CHUNK):
                    client.send(f"s.{n % 10}", b"payload %d" % n, id=f"id-{n}")
                patience = None if meanwhile is None else meanwhile(first)
                self._take(first, client.sync(patience))

    def _take(self, first: int, runs: tuple[AckRun, ...]) -> None:
        assert sum(run.count for run in runs) == self.CHUNK
        assert {run.outcome for run in runs} <= {StoreOutcome.STORED, StoreOutcome.DUPLICATE}
        sequences = [s for run in runs for s in range(run.first, run.first + run.count)]
        for n, sequence in enumerate(sequences, first):
            self.acked[n] = sequence

    def conserved(self, admin: Admin) -> None:
        """All that was acknowledged is stored under its number, payload equal; nothing twice."""
        stored = admin.messages(NAME)
        payloads = {one.sequence: one.payload for one in stored}
        for n, sequence in self.acked.items():
            assert payloads[sequence] == b"payload %d" % n
        ids = [one.headers["Nats-Msg-Id"][0] for one in stored]
        assert len(set(ids)) == len(ids)


@pytest.mark.spec("ML-15", "ML-20")
def test_plain_clients_of_two_brokers_share_a_stream_and_nobody_hears_itself(
    nats_server: NatsServer, brokers: BrokersHarness
) -> None:
    """Subjects of any bytes, several frames, none; sender and stream as everywhere"""
    urls = [brokers.over(nats_server.url) for _ in range(2)]
    clients = [brokers.plain(url, name) for url, name in zip(urls, (b"alice", b"bob"), strict=True)]
    for client in clients:
        for command in (commands.StreamRead(b"st", b""), commands.StreamWrite(b"st")):
            assert isinstance(client.ask(command), Ok)
    sent = [(b"temp.moscow", [b"-3"]), (b"", [b""]), (b"a..*\xff >", [b"one", b"", b"two"]), (b"none", [])]
    for client, other in (clients, clients[::-1]):
        for subject, content in sent:
            client.publish(subject, *content)
        assert [(d.subject, d.content) for d in other.deliveries(4)] == sent
    assert _told(urls[1]) == [("alice", "st", n) for n in range(1, 5)] + [("bob", "st", n) for n in range(5, 9)]
    for client in clients:
        assert isinstance(client.ask(commands.Ping()), Pong), "and nothing of its own came before"


def _told(url: str) -> list[tuple[str, str, int | None]]:
    """Sender, stream and sequence of all that is stored, as one of our own clients reads it."""
    with MalamuteClient(url, timeout=PATIENCE) as client:
        client.read("st", "", after=0)
        return [(one.sender, one.address, one.sequence) for one in (client.receive() for _ in range(8))]


def test_a_stream_that_no_client_has_opened_is_read_from_nats_and_an_open_one_from_the_broker(
    nats_server: NatsServer, brokers: BrokersHarness
) -> None:
    """A broker does not ask NATS for streams that its configuration does not name, and a query makes none."""
    url = brokers.over(nats_server.url)
    with MalamuteLogs(MalamuteSettings(ConnectionSettings((url,))), 0.5) as logs, pytest.raises(Unavailable):
        logs.log("st")
    (told,) = (text for _, text in check_server(MalamuteSettings(ConnectionSettings((url,)), "st")) if "st, " in text)
    assert told.startswith("stream: st, stored by the engine jetstream: it is in NATS")
    assert told.endswith(f"with a url nats://host:port and stream {NAME!r}")
    with NatsLogs(NatsSettings(servers=(nats_server.url,)), PATIENCE) as there:
        assert there.names([]) == []
        Writer().write_once(url, 100, PATIENCE)  # now it is open
        with MalamuteLogs(MalamuteSettings(ConnectionSettings((url,))), PATIENCE) as logs:
            for log in (logs.log("st"), there.log(NAME)):
                found = [value for some in log.read(0, 100) for value in some.payloads.to_pylist()]
                assert found == [b"payload %d" % n for n in range(100)]
    long = brokers.plain(url)
    assert isinstance(long.ask(commands.StreamWrite(b"x" * 255)), Ok), "under a name that NATS takes"
    long.publish(b"long", b"kept")
    assert isinstance(long.ask(commands.Ping()), Pong)
    with MalamuteLogs(MalamuteSettings(ConnectionSettings((url,))), PATIENCE) as logs:
        assert [one for some in logs.log("x" * 255).read(0, 1) for one in some.payloads.to_pylist()] == [b"kept"]


@pytest.mark.own_server
def test_what_was_acknowledged_survives_the_death_of_nats_and_what_waited_follows_in_order(
    nats_server: NatsServer, brokers: BrokersHarness
) -> None:
    url = brokers.over(nats_server.url)
    plain, reader = brokers.plain(url), brokers.plain(url)
    assert isinstance(plain.ask(commands.StreamWrite(b"st")), Ok)
    assert isinstance(reader.ask(commands.StreamRead(b"st", b"^plain$")), Ok)
    writer = Writer()
    crashes = {500, 1_500}

    def crash(first: int) -> None:
        if first in crashes:
            crashes.remove(first)  # the chunk may come again
            for n in range(50):
                plain.publish(b"plain", b"%d" % (first + n))
            nats_server.kill()
            for n in range(50, 100):
                plain.publish(b"plain", b"%d" % (first + n))
            assert isinstance(plain.ask(commands.Ping()), Pong), "others are served"
            nats_server.start()

    writer.write(url, 2_500, meanwhile=crash)
    got = [int(d.content[0]) for d in reader.deliveries(200)]
    assert got == [first + n for first in (500, 1_500) for n in range(100)]
    with Admin(nats_server.url) as admin:
        writer.conserved(admin)


@pytest.mark.thorough
def test_a_broker_that_is_killed_loses_nothing_that_it_acknowledged(
    nats_server: NatsServer, brokers: BrokersHarness, tmp_path: Path
) -> None:
    where = f'engine = "jetstream"\nservers = "{nats_server.url}"'
    writer, process = Writer(), BrokerProcess(tmp_path / "broker", ".*", engine=where)
    process.start()

    def kill(first: int) -> float | None:
        if first < 500:
            return None
        process.kill()
        return 1.0

    with pytest.raises(MamaError):
        writer.write_once(process.url, 10_000, PATIENCE, kill)
    assert len(writer.acked) == 500, "the rest was on the way"
    writer.write(brokers.over(nats_server.url), 1_200)
    with Admin(nats_server.url) as admin:
        writer.conserved(admin)


@pytest.mark.thorough
def test_a_stream_of_three_replicas_goes_on_when_its_leader_is_killed(tmp_path: Path, brokers: BrokersHarness) -> None:
    with Cluster(tmp_path / "cluster") as cluster, Admin(cluster.url) as admin:
        eventually(lambda: "error" not in admin.api("INFO"), "JetStream is ready")
        config = {"name": NAME, "subjects": ["mlp.st.>"], "num_replicas": 3, "storage": "file"}
        eventually(lambda: "error" not in admin.api(f"STREAM.CREATE.{NAME}", config), "three peers are known")
        urls = [brokers.over(cluster.url) for _ in range(2)]
        reader = brokers.plain(urls[1])
        assert isinstance(reader.ask(commands.StreamRead(b"st", b"")), Ok)
        writer = Writer()

        def kill(first: int) -> None:
            if first == 500 and all(node.running for node in cluster.nodes):
                leader = eventually(lambda: admin.info(NAME)["cluster"].get("leader"), "a leader")
                cluster.node(str(leader)).kill()

        writer.write(urls[0], 1_500, timeout=10.0, meanwhile=kill)
        writer.conserved(admin)
        got = [d.content[0] for d in reader.deliveries(1_500)]
        assert sorted(got) == sorted(b"payload %d" % n for n in range(1_500)), "each once, over the other broker"


@pytest.mark.own_server
def test_beyond_the_buffer_messages_are_refused_and_the_others_stored(
    nats_server: NatsServer, brokers: BrokersHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """What is said about an outage is true: refused = not stored, stored = stored."""
    client = brokers.plain(brokers.over(nats_server.url, buffer=100_000), features=Feature.ACKS)
    assert isinstance(client.ask(commands.StreamWrite(b"st")), Ok)
    client.publish(b"before", b"x")
    assert client.outcomes() == [(StoreOutcome.STORED, 1)]
    nats_server.kill()
    for n in range(100):
        client.publish(b"during", b"%5d" % n * 1000)
    eventually(lambda: "messages are refused" in caplog.text, "the buffer is full")
    nats_server.start()
    outcomes = client.outcomes()
    with Admin(nats_server.url) as admin:
        stored = {one.sequence: int(one.payload[:5]) for one in admin.messages(NAME)[1:]}
    assert len(outcomes) == 100
    assert {outcome for outcome, _ in outcomes} == {StoreOutcome.STORED, StoreOutcome.REFUSED}
    assert {s: n for n, (outcome, s) in enumerate(outcomes) if outcome is StoreOutcome.STORED} == stored


@pytest.mark.own_server
@pytest.mark.skipif(sys.platform != "linux", reason="limits of another process are set on Linux only")
def test_a_full_disk_of_nats_is_named_in_the_log_of_the_broker_and_what_waits_is_stored_after_its_restart(
    nats_server: NatsServer, brokers: BrokersHarness, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publisher, "ACK_TIMEOUT", 0.5)
    monkeypatch.setattr(engine, "CHECK_STREAM", 0.5)
    client = brokers.plain(brokers.over(nats_server.url, buffer=1_500_000), features=Feature.ACKS)
    assert isinstance(client.ask(commands.StreamWrite(b"st")), Ok)
    client.publish(b"before", b"x")
    assert client.outcomes() == [(StoreOutcome.STORED, 1)]
    limit_files(nats_server)
    for n in range(1_000):
        client.publish(b"during", b"%5d" % n * 200)
    eventually(lambda: "answers, but stores nothing: stream 'mlp-st' stays at" in caplog.text, "the cause is said")
    for n in range(1_000):
        client.publish(b"beyond", b"%5d" % n * 200)
    refused = "bytes wait for NATS already (mlp.st): nats-server"
    eventually(lambda: refused in caplog.text, "what is refused is refused with the cause")
    limit_files(nats_server, resource.RLIM_INFINITY)
    nats_server.restart()
    outcomes = client.outcomes()
    with Admin(nats_server.url) as admin:
        stored = {one.sequence for one in admin.messages(NAME)[1:]}
    assert len(outcomes) == 2_000
    assert {s for outcome, s in outcomes if outcome is StoreOutcome.STORED} == stored
