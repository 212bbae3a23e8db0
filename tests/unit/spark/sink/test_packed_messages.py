"""One partition's write of packed messages without a JVM, against the in-memory broker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from mama_spark.contracts.bridge import Ack, Capabilities
from mama_spark.contracts.errors import ConfigError
from mama_spark.flightlog.schema import packed_rows_field
from mama_spark.memory import MemoryBroker
from mama_spark.options import SinkOptions
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.sink.job import ColumnPlan, PartitionReport, SinkJob
from mama_spark.spark.sink.open_write import check_capabilities
from mama_spark.spark.sink.partition_writer import publish_partition
from mama_spark.spark.subscribe.schema import SCHEMA

from tests.support.spark import memory_harness
from tests.support.spark.memory_harness import TASK, flights
from tests.support.spark.unpacked_rows import rows

PLAN = replace(memory_harness.PLAN, log=("k",))
TYPED = replace(PLAN, value=None, typed=("n", "id"), log=())
MESSAGES = replace(PLAN, headers="headers", headers_form="map", id="id")
LOG = (packed_rows_field([pa.field("k", pa.int64())]),)


def orders(n: int, size: int = 500) -> list[pa.RecordBatch]:
    return [
        pa.record_batch(
            {
                "topic": [f"t.{i % 3}" for i in range(start, start + size)],
                "value": [b"order %d" % i for i in range(start, start + size)],
                "k": list(range(start, start + size)),
            }
        )
        for start in range(0, n, size)
    ]


def publish(
    broker: MemoryBroker, log: Path, batches: Sequence[pa.RecordBatch], plan: ColumnPlan = PLAN, **options: str
) -> PartitionReport:
    given = {"pack": "arrow", "packMaxRows": "100", **options}
    return memory_harness.publish(
        memory_harness.job(broker, log, plan, fields=LOG if plan.log else (), **given), batches
    )


def stored(broker: MemoryBroker) -> list[tuple[str, bytes]]:
    packs = broker.messages()
    messages = [(m.topic, m.payload, {name: values[0] for name, values in m.headers.items()}) for m in packs]
    return [(row["topic"], row["value"]) for row in rows(*messages, failOnCorrupt="true")] if messages else []


@pytest.mark.parametrize("compression", ["lz4", "zstd"])
@pytest.mark.parametrize("pack", ["lines", "arrow"])
def test_compressed_packs_have_the_ids_and_rows_of_plain_ones(tmp_path: Path, pack: str, compression: str) -> None:
    found = []
    ways = {"packCompression": "none"}, {"packCompression": compression}
    for options in (*ways, {"packCompression": compression, "packCompressionLevel": "9"}):
        broker = MemoryBroker.get(uuid4().hex)
        publish(broker, tmp_path / broker.name, orders(1_000), PLAN, pack=pack, idPrefix="q", **options)
        sizes = [flight["size"] for flight in flights(tmp_path / broker.name)]
        found.append((stored(broker), [m.id for m in broker.messages()], sum(sizes)))
        MemoryBroker.forget(broker.name)
    plain, default, ninth = found
    assert default[:2] == ninth[:2] == plain[:2]
    assert len(plain[0]) == 1_000
    assert default[2] < plain[2]


@pytest.mark.parametrize("pack", ["lines", "arrow"])
def test_a_flight_carries_rows_and_the_log_has_their_number_and_columns(
    broker: MemoryBroker, tmp_path: Path, pack: str
) -> None:
    report = publish(broker, tmp_path, orders(2_000), pack=pack)
    assert (report.counts.rows, report.counts.acked, report.fatal) == (2_000, 2_000, None)
    log = flights(tmp_path)
    assert {f["event"] for f in log} == {"acked"}
    assert sum(f["rows"] for f in log) == 2_000
    assert len(log) == len(broker.messages()) == 21  # 667, 667 and 666 rows of three topics
    for f in log:
        assert len(f["packed"]) == f["rows"] <= 100
        assert [int(f["topic"][2:])] * f["rows"] == [entry["k"] % 3 for entry in f["packed"]]
    assert sorted(entry["k"] for f in log for entry in f["packed"]) == list(range(2_000))
    for topic in ("t.0", "t.1", "t.2"):
        numbers = [int(v.split()[1]) for t, v in stored(broker) if t == topic]
        assert numbers == list(range(int(topic[2:]), 2_000, 3))
    assert {m.headers["Mama-Pack"][0] for m in broker.messages()} == {f"{pack};v=1"}


def test_the_same_rows_in_the_same_order_store_nothing_twice(broker: MemoryBroker, tmp_path: Path) -> None:
    """Also when they come in other batches."""
    publish(broker, tmp_path / "1", orders(3_000))
    once = len(broker.messages())
    report = publish(broker, tmp_path / "2", orders(3_000, size=750))
    assert (report.counts.acked, report.counts.duplicates) == (3_000, 3_000)
    assert len(broker.messages()) == once


@pytest.mark.parametrize("options", [{}, {"dedup": "false"}], ids=["ids", "no ids"])
def test_flight_ids_are_unique(broker: MemoryBroker, tmp_path: Path, options: dict[str, Any]) -> None:
    rows = [pa.record_batch({"topic": ["t", None] * 300, "value": [b"same"] * 600, "k": list(range(600))})]
    report = publish(broker, tmp_path, rows, **options)
    ids = Counter(f["flight_id"] for f in flights(tmp_path))
    assert set(ids.values()) == {1}
    assert len(ids) == 303
    assert (report.counts.acked, report.counts.failed) == (300, 300)


def test_rows_that_cannot_be_packed_have_flights_of_their_own(broker: MemoryBroker, tmp_path: Path) -> None:
    values = [b"good", b"two\nlines", None, b"good", b"\n"]
    rows = pa.record_batch({"topic": ["t", "t", "t", None, "t"], "value": values, "k": [0, 1, 2, 3, 4]})
    report = publish(broker, tmp_path, [rows], pack="lines")
    told = {f["packed"][0]["k"]: (f["event"], f["rows"], f["info"]) for f in flights(tmp_path)}
    assert told[0] == ("acked", 1, None)
    for k, reason in ((1, "line feed"), (2, "the value is null"), (3, "topic"), (4, "line feed")):
        assert told[k][:2] == ("completed_exceptionally", 1)
        assert reason in told[k][2]
    assert (report.counts.rows, report.counts.failed, report.counts.row_errors) == (5, 4, 4)
    assert stored(broker) == [("t", b"good")]


def test_headers_without_effect_inside_a_pack_fail_their_row(broker: MemoryBroker, tmp_path: Path) -> None:
    names = ["own", "Nats-Expected-Last-Sequence", "nats-ttl", "Mama-Pack", "Mama-Packing"]
    headers = pa.array([[(name, "1")] for name in names], pa.map_(pa.string(), pa.string()))
    columns = {"topic": ["t"] * 5, "value": [b"v"] * 5, "k": [1] * 5, "headers": headers, "id": list("abcde")}
    report = publish(broker, tmp_path, [pa.record_batch(columns)], MESSAGES)
    assert (report.counts.acked, report.counts.failed) == (2, 3)
    (message,) = broker.messages()
    assert message.headers["Mama-Pack-Rows"] == ["2"]
    assert {f["flight_id"] for f in flights(tmp_path) if f["event"] != "acked"} == {"b", "c", "d"}


def test_headers_come_back_as_without_packing_parts_of_the_topic_among_them(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    headers = pa.array([[("a", "1")], [], None, [("a", "2")]], pa.map_(pa.string(), pa.string()))
    parts = {"source": ["s", "s", "s", None], "symbol": ["x", "x", "x", "x"]}
    rows = pa.record_batch({**parts, "value": [b"1", b"2", b"3", b"4"], "headers": headers})
    plan = replace(MESSAGES, topic=None, parts=(("source", "source"), ("symbol", "symbol")), id=None, log=())
    found = []
    for i, (pack, more) in enumerate([("off", {}), ("arrow", {"packMaxRows": "100"})]):
        given = {"url": f"memory://{broker.name}", "topicPrefix": pack, "pack": pack, **more}
        publish_partition(SinkJob(SinkOptions.parse(given), plan, False, f"run {i}", ()), TASK, iter([rows]))
        reader = MamaSubDataSource({"url": f"memory://{broker.name}", "topics": f"{pack}.>"}).reader(SCHEMA)
        read = [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]
        assert [row["pack_index"] is None for row in read] == [pack == "off"] * 4
        found.append({row["value"]: row["headers"] for row in read})
    assert found[0] == found[1]
    assert ("Mama-Source", ["s"]) in found[1][b"3"]


def test_dead_letters_are_single_unchanged_rows(broker: MemoryBroker, tmp_path: Path) -> None:
    broker.denied.add("t")
    headers = pa.array([[("a", "1")], [], None], pa.map_(pa.string(), pa.string()))
    columns = {"topic": ["t"] * 3, "value": [b"x", b"y", b"z"], "k": [1] * 3, "headers": headers, "id": list("abc")}
    options = {"onError": "deadletter", "deadLetterTopic": "dead"}
    report = publish(broker, tmp_path, [pa.record_batch(columns)], MESSAGES, **options)
    assert (report.counts.failed, report.counts.dead_lettered) == (3, 3)
    letters = broker.messages()
    assert {m.topic for m in letters} == {"dead"}
    assert {m.payload: (m.id or "").split("-run-")[0] for m in letters} == {b"x": "a-dlq", b"y": "b-dlq", b"z": "c-dlq"}
    assert letters[0].headers["a"] == ["1"]
    assert not any("Mama-Pack" in m.headers for m in letters)
    assert {m.headers["Mama-Error-Topic"][0] for m in letters} == {"t"}
    (flight,) = [f for f in flights(tmp_path) if f["event"] != "acked"]
    assert (flight["rows"], flight["dead_lettered"], flight["topic"]) == (3, True, "t")
    assert flight["status"] == "PUBLISH_ERROR_NOT_ENTITLED"
    assert sum(report.counts.reasons.values()) == 3


def test_dead_letters_of_typed_rows_are_packs_of_one_row(broker: MemoryBroker, tmp_path: Path) -> None:
    broker.denied.add("t")
    rows = pa.record_batch({"topic": ["t", "t", None], "n": [1, None, 3], "id": ["a", None, "c"]})
    options = {"onError": "deadletter", "deadLetterTopic": "dead"}
    report = publish(broker, tmp_path, [rows], TYPED, **options)
    assert (report.counts.failed, report.counts.dead_lettered) == (3, 3)
    letters = broker.messages()
    assert len(letters) == 3
    assert {m.headers["Mama-Pack-Rows"][0] for m in letters} == {"1"}
    assert {v for _, v in stored(broker)} == {
        b'{"n":1,"id":"a"}', b'{"n":null,"id":null}', b'{"n":3,"id":"c"}',
    }  # fmt: skip
    assert len({m.id for m in letters}) == 3


def test_lost_acknowledgements_resend_packs_and_count_rows_once(broker: MemoryBroker, tmp_path: Path) -> None:
    broker.then(["lose", "503", "drop", "disconnect", "dup", "409", "late"])
    report = publish(broker, tmp_path, orders(1_500), waitTimeout="300", retryBackoff="20", flightLogLevel="all")
    assert (report.counts.rows, report.counts.acked) == (1_500, 1_500)
    assert sorted(stored(broker)) == sorted((f"t.{i % 3}", b"order %d" % i) for i in range(1_500))
    for event in ("published", "acked"):
        assert sum(f["rows"] for f in flights(tmp_path) if f["event"] == event) == 1_500


def test_a_row_above_the_limit_of_the_pack_travels_alone_and_one_above_the_middleware_s_fails_alone(
    broker: MemoryBroker, tmp_path: Path
) -> None:
    sizes = [10, 5_000, 10, 2_000_000, 10]
    rows = pa.record_batch({"topic": ["t"] * 5, "value": [b"x" * n for n in sizes], "k": list(range(5))})
    report = publish(broker, tmp_path, [rows], packMaxBytes="2000")
    assert (report.counts.acked, report.counts.failed) == (4, 1)
    assert [len(v) for _, v in stored(broker)] == [10, 5_000, 10, 10]
    (failed,) = [f for f in flights(tmp_path) if f["event"] != "acked"]
    assert (failed["rows"], failed["packed"]) == (1, [{"k": 3}])


@pytest.mark.parametrize("pack", ["lines", "arrow"])
def test_packs_that_are_too_large_with_their_headers_are_sent_as_halves(
    broker: MemoryBroker, tmp_path: Path, pack: str
) -> None:
    """Parts of the topic are headers, for which no room was left; one row is too large by itself."""
    sizes = [1_000] * 2_500 + [2_000_000]
    values = [b"%0*d" % (size, i) for i, size in enumerate(sizes)]
    n = len(sizes)
    rows = pa.record_batch({"source": ["s" * 4_000] * n, "symbol": ["x"] * n, "value": values, "k": range(n)})
    plan = replace(PLAN, topic=None, parts=(("source", "source"), ("symbol", "symbol")))
    options = {"topic": "t", "pack": pack, "packMaxBytes": str(1 << 20), "packMaxRows": "100000"}
    report = publish(broker, tmp_path, [rows], plan, **options)
    assert (report.counts.rows, report.counts.acked, report.counts.failed) == (n, n - 1, 1)
    assert sorted(v for _, v in stored(broker)) == sorted(values[:-1])
    log = flights(tmp_path)
    assert sorted(entry["k"] for f in log for entry in f["packed"]) == list(range(n))
    (failed,) = [f for f in log if f["event"] != "acked"]
    assert failed["packed"] == [{"k": n - 1}]
    assert len({f["flight_id"] for f in log}) == len(log) > 4


CAN = Capabilities(Ack.STORED, True, True, True, False, 1 << 20, 1024)


@pytest.mark.parametrize(
    ("without", "why"),
    [({"packs": False}, "memory bridge carries no packed messages"), ({"headers": False}, "carries no headers")],
)
def test_middlewares_that_cannot_carry_packs_say_so(without: dict[str, Any], why: str) -> None:
    options = SinkOptions.parse({"url": "memory://x", "pack": "arrow"})
    check_capabilities(options, CAN)
    with pytest.raises(ConfigError, match=why):
        check_capabilities(options, replace(CAN, **without))
