"""The durable streams of a real broker as logs, over tcp, against the suite that every log must pass."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import MatchRange
from mama_spark.malamute.bridge.logs import MalamuteLogs
from mama_spark.malamute.bridge.settings import MalamuteSettings
from mama_spark.malamute.broker.broker.broker import Broker, BrokerSettings, EngineChoice
from mama_spark.malamute.broker.engines.durable.engine import DurableEngine
from mama_spark.malamute.broker.engines.durable.store_reader import store_path
from mama_spark.malamute.broker.session.settings import SessionSettings
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.malamute.protocol import log_query
from mama_spark.malamute.protocol.extensions import Feature
from mama_spark.options import SubscribeOptions
from mama_spark.registry import log_bridge
from mama_spark.testing.log_suite import LogSetup, LogSuite, everything, numbers, rows
from mama_spark.testing.waiting import eventually

from tests.support.malamute.broker_process import BrokerHere, BrokerProcess
from tests.support.nats.mamasub import StreamQuery, read

TIMEOUT = 60.0


def logs(url: str, stream: str | None = None, pattern: str | None = None, timeout: float = TIMEOUT) -> MalamuteLogs:
    return MalamuteLogs(MalamuteSettings(ConnectionSettings((url,)), stream), timeout, pattern)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    engines = (EngineChoice(b"^st$", "durable", {"folder": str(tmp_path / "streams")}),)
    with Broker(BrokerSettings("tcp://127.0.0.1:*", SessionSettings(timeout=TIMEOUT), engines, linger=0.5)) as broker:
        yield broker


class TestMalamuteLogs(LogSuite):
    @pytest.fixture
    def site(self, broker: Broker, tmp_path: Path) -> LogSetup:
        def fill(batch: MessageBatch) -> None:
            with logs(broker.endpoint) as bridge:
                bridge.log("st").append(batch)

        def delete(sequences: Sequence[int]) -> None:
            with closing(sqlite3.connect(store_path(tmp_path / "streams", b"st"), 60.0)) as db:
                db.executemany("DELETE FROM messages WHERE sequence = ?", [(n,) for n in sequences])
                db.commit()

        return LogSetup(make=lambda: logs(broker.endpoint), name="st", fill=fill, delete=delete)


# --- ranges by what matches ------------------------------------------------------------------------------------------


def test_records_that_match_a_pattern_are_found_in_more_than_one_question(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_query, "LOOK", 64)
    topics = ["t.rare" if i % 100 == 99 else "t.common" for i in range(1_000)]
    with logs(broker.endpoint, pattern="rare$") as bridge:
        found = bridge.log("st")
        found.append(MessageBatch.of(topics, [b""] * 1_000))
        assert found.match_range(0, 1_000, [], 4) == MatchRange(400, 4)
        assert found.match_range(150, 950, [], 99) == MatchRange(950, 8)


def test_the_last_message_of_each_subject_is_a_row_then_each_change(broker: Broker) -> None:
    def store(*subjects: str) -> None:
        with logs(broker.endpoint) as bridge:
            bridge.log("st").append(MessageBatch.of(list(subjects), [b""] * len(subjects)))

    store("a.1", "a.2", "a.1", "b")
    options = {"url": broker.endpoint.replace("tcp://", "mlp://") + "/st", "latestPerTopic": "true"}
    query = StreamQuery(**options, topics="a.>", maxOffsetsPerTrigger="1")
    found = [[row["sequence"] for row in query.batch(limited=True)] for _ in range(3)]
    store("a.1", "b", "a.1")
    found += [[row["sequence"] for row in query.batch()]]
    assert found == [[2], [3], [], [5, 7]]
    assert [(row["sequence"], row["operation"]) for row in read(**options)] == [(2, "put"), (6, "put"), (7, "put")]


def test_the_marker_of_an_expired_message_is_no_value_of_its_subject(broker: Broker) -> None:
    with logs(broker.endpoint) as bridge:
        log = bridge.log("st")
        log.append(MessageBatch.of(["stays", "ends"], [b"1", b"2"], [None, {"Mama-Ttl": ["50"]}]))
        eventually(lambda: bridge.log("st").opened.last == 3, "the second has expired")
    options = {"url": broker.endpoint.replace("tcp://", "mlp://") + "/st", "latestPerTopic": "true"}
    assert [row["topic"] for row in read(**options)] == ["stays"]
    found = read(**options, includeDeleted="true")
    assert [(row["topic"], row["operation"]) for row in found] == [("stays", "put"), ("ends", "expired")]


# --- which logs there are --------------------------------------------------------------------------------------------


def test_who_reads_makes_no_stream(tmp_path: Path) -> None:
    folder = tmp_path / "streams"
    engines = (EngineChoice(b"^orders[.]", "durable", {"folder": str(folder)}),)
    with Broker(BrokerSettings("tcp://127.0.0.1:*", engines=engines, linger=0.5)) as broker, logs(broker.endpoint) as b:
        assert b.names(()) == []
        with pytest.raises(ConfigError, match=r"stream 'orders.typo' at .*: there is no such stream"):
            b.log("orders.typo")
        with pytest.raises(ConfigError, match="there is no such stream"):
            b.log("")
        assert broker.streams() == []
        assert not folder.exists()


def test_streams_are_found_in_memory_on_disk_and_in_the_configuration(tmp_path: Path) -> None:
    folder = str(tmp_path)
    long = "x" * 250
    for name in ("on.disk", "grüße/1", long):
        engine = DurableEngine(name.encode(), {"folder": folder})
        engine.start()
        engine.accept("w", b"", b"s", [b"1"])
        engine.flush()
        engine.close()
    engines = (
        EngineChoice(rb"^named\.once$", "durable", {"folder": folder}),
        EngineChoice(b"^[a-z]", "durable", {"folder": folder}),
    )
    with Broker(BrokerSettings("tcp://127.0.0.1:*", engines=engines, linger=0.5)) as broker, logs(broker.endpoint) as b:
        assert b.names(()) == sorted(["on.disk", "grüße/1", long, "named.once"])
        assert broker.streams() == []
        for name, last in (("on.disk", 1), ("grüße/1", 1), (long, 1), ("named.once", 0)):
            assert b.log(name).bounds().last == last
        assert len(broker.streams()) == 4


def test_a_stream_that_is_named_is_the_only_log_and_topics_find_no_streams_of_our_own(tmp_path: Path) -> None:
    engines = (EngineChoice(b".", "durable", {"folder": str(tmp_path)}),)
    with Broker(BrokerSettings("tcp://127.0.0.1:*", engines=engines, linger=0.5)) as broker:
        with MalamuteClient(broker.endpoint, timeout=TIMEOUT) as client:
            for name in ("a", "b", "MAMA_BATCHES"):
                client.write(name)
        with logs(broker.endpoint) as b:
            eventually(
                lambda: b.names(()) == ["MAMA_BATCHES", "_MAMA_EVENTS", "a", "b"], "the broker tells of its clients"
            )
            assert b.names(["t"]) == ["a", "b"]
        with logs(broker.endpoint, "b") as b:
            assert b.names(()) == b.names(["t"]) == ["b"]
        with logs(broker.endpoint, "none") as b:
            assert b.names(()) == []


def test_a_stream_is_there_as_soon_as_it_is_written_to(tmp_path: Path) -> None:
    """Whoever looked just before has no old list: a recorder that starts anew would forget what it knew."""
    engines = (EngineChoice(b".", "durable", {"folder": str(tmp_path)}),)
    with (
        Broker(BrokerSettings("tcp://127.0.0.1:*", engines=engines, linger=0.5)) as broker,
        logs(broker.endpoint) as b,
        MalamuteClient(broker.endpoint, timeout=TIMEOUT) as client,
    ):
        for number in range(20):
            name = f"s{number:02}"
            assert name not in b.names(["t"])
            client.write(name)
            assert name in b.names(["t"])


def test_a_stream_in_memory_says_not_implemented(tmp_path: Path) -> None:
    with Broker(BrokerSettings("tcp://127.0.0.1:*", linger=0.5)) as broker:
        with MalamuteClient(broker.endpoint, timeout=TIMEOUT) as client:
            client.write("memory")
        with logs(broker.endpoint) as b:
            assert b.names(()) == []
            with pytest.raises(
                ConfigError, match=r"NOT_IMPLEMENTED: stream 'memory' at .*the engine simple keeps nothing"
            ):
                b.log("memory")


def test_through_a_broker_that_is_not_ours_it_says_not_implemented_and_why() -> None:
    foreign = SessionSettings(features=Feature(0))
    with Broker(BrokerSettings("tcp://127.0.0.1:*", foreign, linger=0.5)) as broker:
        bridge = logs(broker.endpoint)
        with pytest.raises(ConfigError, match=r"NOT_IMPLEMENTED.*forget a message once it is delivered"):
            bridge.open()
        bridge.close()


# --- what is read ----------------------------------------------------------------------------------------------------


def test_ids_come_as_headers_and_odd_bytes_are_shown(broker: Broker) -> None:
    with MalamuteClient(broker.endpoint, timeout=TIMEOUT) as client, logs(broker.endpoint) as b:
        client.write("st")
        client.send(b"s.\xff", [b"one", b"", b"two"], id="id-1", headers={"K": ["1", "2"], "L": [""]})
        client.send("plain", b"x")
        client.send("none", ())
        client.sync()
        found = everything(b.log("st").read(0, 10))
    assert [(r.topic, r.payload, r.headers) for r in found] == [
        ("s.\\xff", b"onetwo", {"Nats-Msg-Id": ["id-1"], "K": ["1", "2"], "L": [""]}),
        ("plain", b"x", None),
        ("none", b"", None),
    ]


@pytest.mark.spec("ML-12")
def test_a_pattern_selects_as_READ_does(broker: Broker) -> None:
    """Searched, not anchored."""
    topics = ["temp.moscow", "rain.moscow", "temp.madrid", "a.temp.b"]
    with logs(broker.endpoint) as b:
        b.log("st").append(MessageBatch.of(topics, [b""] * 4))
    for pattern, wanted in (("temp.", [1, 3, 4]), (r"^temp\.", [1, 3]), ("m(osc|adr)", [1, 2, 3]), ("x", [])):
        with logs(broker.endpoint, pattern=pattern) as b:
            assert numbers(b.log("st").read(0, 4)) == wanted
            assert numbers(b.log("st").read(0, 4, ["rain.*"])) == [2], "topics win"
    options = SubscribeOptions.parse({"url": broker.endpoint.replace("tcp", "mlp"), "stream": "st", "pattern": "rain"})
    with log_bridge(options, TIMEOUT) as b:
        assert numbers(b.log("st").read(0, 4)) == [2], "by the option, too"
    with logs(broker.endpoint, pattern="(") as b, pytest.raises(ConfigError, match="not a pattern"):
        list(b.log("st").read(0, 4))
    with logs(broker.endpoint) as b:
        assert numbers(b.log("st").read(0, 4, ["temp.moscow", "x"] + [f"x.{i}" for i in range(1000)])) == [1]
        with pytest.raises(ConfigError, match="too many subjects or patterns"):
            list(b.log("st").read(0, 4, [f"topic.{i:050}" for i in range(2_000)]))


def test_messages_larger_than_a_fetch_come_one_by_one_and_in_order(broker: Broker) -> None:
    sizes = [10, 3_000_000, 10, 5_000_000, 900_000, 900_000, 0]
    with logs(broker.endpoint) as b:
        log = b.log("st")
        log.append(MessageBatch.of(["t"] * 7, [bytes([i]) * n for i, n in enumerate(sizes)]))
        found = everything(log.read(0, 7))
        assert [len(r.payload) for r in found] == sizes
        assert numbers(log.read(1, 6)) == [2, 3, 4, 5, 6]


def test_limits_warn_and_what_they_remove_during_a_read_is_left_out(tmp_path: Path) -> None:
    settings = {"folder": str(tmp_path), "max_messages": 15_000, "max_age": "1h"}
    engines = (EngineChoice(b"^st$", "durable", settings),)
    with Broker(BrokerSettings("tcp://127.0.0.1:*", engines=engines, linger=0.5)) as broker, logs(broker.endpoint) as b:
        log = b.log("st")
        assert log.warnings() == [
            "stream 'st' removes records after 3600 seconds (max_age)",
            "stream 'st' removes records beyond 15000 messages (max_messages)",
        ]
        batch = MessageBatch.of(["t"] * 5_000, [b"x" * 100] * 5_000)
        for _ in range(3):
            log.append(batch)
        reading = log.read(0, 15_000)
        first = next(reading)
        log.append(batch)
        log.append(batch)
        assert log.bounds().first == 10_001
        got = first.sequences.tolist() + numbers(reading)
        assert got[-5_000:] == list(range(10_001, 15_001))
        assert got == sorted(set(got))
        assert got[:4096] == list(range(1, 4097))
        assert log.missing(0, 15_000) == [(1, 10_000)]


# --- faults ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def here(tmp_path: Path) -> Iterator[BrokerHere]:
    with BrokerHere(tmp_path / "broker") as here:
        yield here


def some(n: int, size: int = 1000) -> MessageBatch:
    return MessageBatch.of([f"t.{i % 3}" for i in range(n)], [b"%d " % i + b"x" * size for i in range(n)])


def test_a_broker_that_is_killed_in_the_middle_of_a_read_is_waited_for(tmp_path: Path) -> None:
    with BrokerProcess(tmp_path / "broker") as process, logs(process.url) as b:
        process.store("orders", some(12_000))
        log = b.log("orders")
        reading = log.read(0, 12_000)
        found = [*rows(next(reading)), *rows(next(reading))]
        process.kill()
        process.start()
        found += everything(reading)
        assert log.bounds().last == 12_000
    assert [(r.sequence, r.payload[:6]) for r in found] == [
        (i + 1, (b"%d " % i + b"xxxxxx")[:6]) for i in range(12_000)
    ]


def test_who_is_gone_for_too_long_is_unavailable(here: BrokerHere) -> None:
    here.store("orders", some(5_000))
    with logs(here.url) as b:
        log = b.log("orders")
        reading = log.read(0, 5_000)
        next(reading)
        b._queries.timeout = 1.0
        here.stop()
        with pytest.raises(Unavailable, match=r"connection was lost|not connected|nobody listens"):
            list(reading)
        with pytest.raises(Unavailable):
            log.bounds()


def test_a_stream_that_was_deleted_and_made_again_is_not_mistaken_for_the_old_one(here: BrokerHere) -> None:
    here.store("orders", some(10_000))
    with logs(here.url) as b:
        log = b.log("orders")
        identity = log.bounds().identity
        reading = log.read(0, 10_000)
        next(reading)
        here.stop()
        shutil.rmtree(here.streams)
        here.start()
        here.store("orders", some(10_000))
        with pytest.raises(ConfigError, match="deleted and created again"):
            list(reading)
        for ask in (lambda: log.sequence_at(0), lambda: log.missing(0, 1), lambda: log.trim(5)):
            with pytest.raises(ConfigError, match="deleted and created again"):
                ask()
        assert log.bounds().identity != identity
        assert b.log("orders").sequence_at(0) == 1
