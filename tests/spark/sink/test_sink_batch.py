"""Batch writes of ``mamapub`` against real servers: every row has its one outcome, and it is true."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.support.malamute.restartable_broker import RestartableBroker
from tests.support.spark.sink_harness import check_conserved, numbered_orders

Rows = list[dict[str, Any]]
#: What does not depend on the middleware is shown on one or the other.
on_nats = pytest.mark.parametrize("room", ["nats"], indirect=True)
on_malamute = pytest.mark.parametrize("room", ["malamute"], indirect=True)


@pytest.fixture
def log(tmp_path: Path) -> str:
    return str(tmp_path / "flight_log")


def write(df: DataFrame, room: RestartableBroker, **options: str) -> None:
    """To the stream ORDERS; if the server stands still for a while, it is sent nothing twice."""
    given = {**room.options("ORDERS"), "waitTimeout": "60s", **options}
    df.write.format("mamapub").options(**given).mode("append").save()


def table(path: str | Path) -> Rows:
    """The rows of a table, of a flight log those of flights."""
    rows: Rows = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return [row for row in rows if row.get("kind", "flight") == "flight"]


@on_nats
@pytest.mark.parametrize(("options", "sequences"), [({}, True), ({"ackMode": "batch"}, False)], ids=str)
def test_every_row_is_acked_stored_and_logged_once(
    spark: SparkSession, room: RestartableBroker, log: str, options: dict[str, str], sequences: bool
) -> None:
    room.create("ORDERS", "orders.>")
    df = numbered_orders(spark, 1_000)
    write(df, room, flightLog=log, flightLogColumns="k", **options)
    flights = table(log)
    assert Counter(f["event"] for f in flights) == {"acked": 1_000}
    assert {f["ack_level"] for f in flights} == {"stored"}
    assert all((f["sequence"] is not None) == sequences for f in flights)
    assert all(f["committed"] and f["latency_us"] >= 0 and f["sends"] == 1 for f in flights)
    assert len({f["flight_id"] for f in flights}) == 1_000
    check_conserved(flights, df.collect(), [(m.sequence, m.topic, m.payload) for m in room.messages("ORDERS")])


@on_nats
def test_json_headers_ids_prefix_and_parts_reach_the_broker(
    spark: SparkSession, room: RestartableBroker, log: str
) -> None:
    room.create("ORDERS", "p.>")
    df = spark.sql(
        "SELECT 'src' AS source, 'sym.1' AS symbol, cast(null as string) AS root, map('h', 'ü', 'g', '2') AS headers, "
        "'id-é-1' AS id, 1.50BD AS price, timestamp'2026-01-02 03:04:05' AS at, cast('nan' as double) AS nothing"
    )
    write(df, room, flightLog=log, topicPrefix="p", idColumn="id")
    (message,) = room.messages("ORDERS")
    assert message.topic == "p.src.sym.1"
    assert message.payload == b'{"price":1.50,"at":"2026-01-02T03:04:05Z","nothing":"NaN"}'
    assert message.headers == {
        "h": ["ü"], "g": ["2"], "Mama-Source": ["src"], "Mama-Symbol": ["sym.1"], room.id_header: ["id-é-1"],
    }  # fmt: skip
    (flight,) = table(log)
    assert flight["flight_id"] == "id-é-1"
    # the same id again: stored once, and the flight log says so
    write(df, room, flightLog=log, topicPrefix="p", idColumn="id")
    assert len(room.messages("ORDERS")) == 1
    assert sorted(f["duplicate"] for f in table(log)) == [False, True]


BAD_ROWS = """
SELECT * FROM VALUES
  (0, 'orders.ok', 'v', map('a', '1'), 'i0'),
  (1, null, 'v', null, 'i1'),
  (2, 'orders.*', 'v', null, 'i2'),
  (3, 'orders..x', 'v', null, 'i3'),
  (4, 'orders.a b', 'v', null, 'i4'),
  (5, 'orders.x', null, null, 'i5'),
  (6, 'orders.x', 'v', map('a', 'x\\r\\nNats-Msg-Id: forged'), 'i6'),
  (7, 'orders.x', 'v', map('bad name:', '1'), 'i7'),
  (8, 'orders.x', 'v', map('Nats-Msg-Id', '1'), 'i8'),
  (9, 'orders.x', 'v', null, null),
  (10, 'elsewhere.x', 'v', null, 'i10'),
  (11, repeat('orders.', 700), 'v', null, 'i11'),
  (12, 'orders.日本', '', null, 'i12')
AS t(k, topic, value, headers, id)
"""
GOOD_ON_NATS = {0, 12}
#: It has no header of its own, and no topic that another stream would take.
GOOD_ON_MALAMUTE = {0, 8, 10, 12}


@on_nats
def test_bad_rows_fail_alone_with_a_reason_and_without_a_retry(
    spark: SparkSession, room: RestartableBroker, log: str
) -> None:
    room.create("ORDERS", "orders.>")
    with pytest.raises((PySparkException, Py4JJavaError)) as e:
        write(spark.sql(BAD_ROWS).repartition(2), room, flightLog=log, flightLogColumns="k", idColumn="id")
    for part in ("11 rows were not published: 13 rows: 2 acked, 11 failed, 0 timed out", "first failures", log):
        assert part in str(e.value)
    flights = {f["k"]: f for f in table(log)}
    assert len(flights) == 13
    assert {f["task_attempt"] for f in flights.values()} == {0}
    assert {f["committed"] for f in flights.values()} == {False}
    for k, flight in flights.items():
        assert flight["event"] == ("acked" if k in GOOD_ON_NATS else "completed_exceptionally"), flight
        assert (flight["info"] is None) == (k in GOOD_ON_NATS)
        assert flight["may_have_landed"] is False
    assert {m.topic for m in room.messages("ORDERS")} == {"orders.ok", "orders.日本"}
    assert flights[1]["status"] == flights[2]["status"] == "BAD_SYMBOL"
    assert flights[5]["payload"] is None or flights[5]["payload"] == b""
    assert flights[2]["payload"] == b"v"


@on_malamute
def test_dead_letters_go_to_topic_and_table_in_full(
    spark: SparkSession, room: RestartableBroker, log: str, tmp_path: Path
) -> None:
    room.create("ORDERS", "orders.>", "dead")
    dead = str(tmp_path / "dead")
    write(
        spark.sql(BAD_ROWS), room, flightLog=log, flightLogColumns="k", idColumn="id",
        onError="deadletter", deadLetterTopic="dead", deadLetterTable=dead,
    )  # fmt: skip
    letters = [m for m in room.messages("ORDERS") if m.topic == "dead"]
    bad = set(range(13)) - GOOD_ON_MALAMUTE
    assert len(letters) == len(bad)
    assert all(set(m.headers) >= {f"Mama-Error-{x}" for x in ("Status", "Code", "Info", "Topic")} for m in letters)
    assert "i2-dlq" in {m.headers[room.id_header][0].partition("-dlq")[0] + "-dlq" for m in letters}
    rows = table(dead)
    assert len(rows) == len(bad)
    assert {r["flight_id"] for r in rows} >= {f"i{k}" for k in bad - {9}}
    assert {r["k"] for r in rows} == bad
    assert Counter(bool(f["dead_lettered"]) for f in table(log)) == {True: len(bad), False: len(GOOD_ON_MALAMUTE)}
