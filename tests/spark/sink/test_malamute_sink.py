"""``mamapub`` to a Malamute broker: every row has its one outcome, and it is true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from tests.support.malamute.plain_broker import SEND, PlainBroker
from tests.support.malamute.restartable_broker import RestartableMalamuteBroker
from tests.support.spark.sink_harness import check_conserved, numbered_orders


@pytest.fixture
def foreign() -> Iterator[PlainBroker]:
    """A broker that knows none of our extensions."""
    with PlainBroker() as broker:
        yield broker


def write(df: DataFrame, url: str, log: Path, **options: str) -> list[dict[str, Any]]:
    options = {"url": url, "flightLog": str(log), "flightLogColumns": "k", **options}
    df.write.format("mamapub").options(**options).mode("append").save()
    rows: list[dict[str, Any]] = DeltaTable(str(log)).to_pyarrow_table().to_pylist()
    return [row for row in rows if row["kind"] == "flight"]


def failure(df: DataFrame, url: str, **options: str) -> str:
    with pytest.raises((PySparkException, Py4JJavaError)) as e:
        df.write.format("mamapub").options(url=url, **options).mode("append").save()
    return str(e.value)


def test_through_a_foreign_broker_rows_are_accepted_without_ids_and_headers_are_refused(
    spark: SparkSession, foreign: PlainBroker, tmp_path: Path
) -> None:
    df = numbered_orders(spark, 200).selectExpr("*", "concat('id-', k % 10) AS id")
    ids = {"idColumn": "id", "onDuplicateId": "warn", "stream": "st"}
    flights = write(df, foreign.url, tmp_path / "log", **ids)
    got = [(-n - 2, subject, b"".join(content)) for n, (_, subject, content) in enumerate(foreign.sent)]
    check_conserved(flights, df.collect(), got)
    assert {(f["event"], f["ack_level"], f["sequence"], f["duplicate"], f["stream"]) for f in flights} == {
        ("acked", "accepted", None, None, "st")
    }
    assert {f["flight_id"] for f in flights} == {f"id-{i}" for i in range(10)}, "the log knows the row by its id"
    assert all(frames[0].endswith(subject.encode()) for frames, (_, subject, _) in zip(
        foreign.commands(SEND), foreign.sent, strict=True
    )), "and the broker does not"  # fmt: skip
    headed = df.drop("k").selectExpr("*", "map('Kind', 'demo') AS headers")
    assert "200 rows were not published" in (said := failure(headed, foreign.url, **ids))
    assert "this broker carries no headers" in said
    letters = {"onError": "deadletter", "deadLetterTopic": "dead"}
    assert "dead letters have headers, which this broker" in failure(df.drop("k"), foreign.url, **ids, **letters)
    assert len(foreign.sent) == 200


def spread(spark: SparkSession, n: int, broker: RestartableMalamuteBroker) -> DataFrame:
    """Rows over the streams A, B, C, which are durable, and `memory`."""
    a, b, c = map(broker.named, "ABC")
    return numbered_orders(spark, n).selectExpr(
        "*", f"element_at(array('{a}', '{b}', 'memory', '{c}'), cast(k % 4 as int) + 1) stream"
    )


@pytest.mark.spec("ML-15")
def test_each_row_goes_to_the_stream_of_its_column_and_the_flight_log_says_which(
    spark: SparkSession, durable: RestartableMalamuteBroker, tmp_path: Path
) -> None:
    """Ids count for one stream, and are repeated by a job that runs again."""
    df = spread(spark, 200, durable)
    flights = write(df, durable.url, tmp_path / "log", idPrefix="job")
    wanted = {r.k: (r.stream, r.topic, bytes(r.value)) for r in df.collect()}
    assert {f["k"]: f["stream"] for f in flights} == {k: stream for k, (stream, _, _) in wanted.items()}
    for name in "ABC":
        stream = durable.named(name)
        found = {m.sequence: (stream, m.topic, m.payload) for m in durable.messages(name)}
        mine = [f for f in flights if f["stream"] == stream]
        assert len(found) == len(mine) == 50
        assert {(f["ack_level"], f["duplicate"]) for f in mine} == {("stored", False)}
        assert [found[f["sequence"]] for f in mine] == [wanted[f["k"]] for f in mine]
    memory = {(f["event"], f["ack_level"], f["sequence"], f["duplicate"]) for f in flights if f["stream"] == "memory"}
    assert memory == {("acked", "accepted", None, None)}
    again = write(df, durable.url, tmp_path / "again", idPrefix="job")
    assert {f["duplicate"] for f in again if f["stream"] != "memory"} == {True}
    assert {f["k"]: f["sequence"] for f in again} == {f["k"]: f["sequence"] for f in flights}
    assert [len(durable.messages(name)) for name in "ABC"] == [50] * 3


def test_rows_without_a_stream_are_bad_rows_and_dead_letters_go_to_the_stream_of_the_option(
    spark: SparkSession, durable: RestartableMalamuteBroker, tmp_path: Path
) -> None:
    df = spread(spark, 40, durable).selectExpr(
        "topic", "value", "k", "if(k % 10 = 0, if(k = 0, '', null), stream) AS stream"
    )
    assert "the stream is null" in failure(df.drop("k"), durable.url)
    letters = {"onError": "deadletter", "deadLetterTopic": "dead"}
    said = failure(df.drop("k"), durable.url, **letters)
    assert "dead letters need a stream for deadLetterTopic: give the option stream" in said
    flights = write(df, durable.url, tmp_path / "log", stream=durable.named("DEAD"), **letters)
    assert {f["k"] for f in flights if f["event"] != "acked"} == {f["k"] for f in flights if f["dead_lettered"]}
    dead = durable.messages("DEAD")
    assert sorted(m.payload for m in dead) == sorted(f"row {k}".encode() for k in (0, 10, 20, 30))
    assert {m.topic for m in dead} == {"dead"}
    assert {m.headers["Mama-Error-Status"][0] for m in dead} == {"INVALID_ARG"}
