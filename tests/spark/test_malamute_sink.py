"""``mamapub`` to a Malamute broker: every row has its one outcome, and it is true."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from mama_spark.malamute.broker import Broker, BrokerSettings, EngineChoice
from mama_spark.malamute.client import MalamuteClient, Message
from mama_spark.malamute.clients import Settings
from mama_spark.malamute.extensions import Feature
from mama_spark.testing.oracle import Outcome, conserve
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

PATIENCE = 60.0


def serve(folder: Path, **machine: Any) -> Iterator[str]:
    engines = (EngineChoice(b"^orders$", "durable", {"folder": str(folder)}),)
    with Broker(BrokerSettings("tcp://127.0.0.1:*", Settings(timeout=60.0, **machine), engines, linger=0.5)) as broker:
        yield broker.endpoint.replace("tcp://", "mlp://")


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    yield from serve(tmp_path / "streams")


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[str]:
    """A broker that announces none of our extensions."""
    yield from serve(tmp_path / "streams", features=Feature(0))


def orders(spark: SparkSession, n: int) -> DataFrame:
    return spark.range(0, n, 1, 2).selectExpr(
        "concat('orders.r', cast(id % 7 as string)) AS topic", "cast(concat('row ', id) as binary) AS value", "id AS k"
    )


def write(df: DataFrame, url: str, log: Path, **options: str) -> list[dict[str, Any]]:
    options = {"url": url, "flightLog": str(log), "flightLogColumns": "k", **options}
    df.write.format("mamapub").options(**options).mode("append").save()
    rows: list[dict[str, Any]] = DeltaTable(str(log)).to_pyarrow_table().to_pylist()
    return [row for row in rows if row["kind"] == "flight"]


def failure(df: DataFrame, url: str, **options: str) -> str:
    with pytest.raises((PySparkException, Py4JJavaError)) as e:
        df.write.format("mamapub").options(url=url, **options).mode("append").save()
    return str(e.value)


def receive(reader: MalamuteClient, n: int) -> list[Message]:
    return [reader.receive() for _ in range(n)]


def check(flights: list[dict[str, Any]], sent: DataFrame, got: list[Message]) -> None:
    payloads = {r.k: (r.topic, bytes(r.value)) for r in sent.collect()}
    outcomes = [
        Outcome(*payloads[f["k"]], f["event"], f["may_have_landed"], -1 if f["sequence"] is None else f["sequence"])
        for f in flights
    ]
    stored = [(m.sequence or -n - 2, m.subject, b"".join(m.content)) for n, m in enumerate(got)]
    conserve(outcomes, stored, sent=len(payloads)).raise_faults()


def test_rows_of_a_durable_stream_are_stored_once_under_the_sequences_of_the_flight_log(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    """ML-15, ML-22; a repeated batch with ``txnAppId`` under another version of the log stores nothing twice."""
    df = orders(spark, 3000)
    flights = write(df, f"{url}/orders", tmp_path / "log", idPrefix="job")
    assert {(f["event"], f["ack_level"], f["stream"], f["duplicate"], f["bridge"]) for f in flights} == {
        ("acked", "stored", "orders", False, "malamute")
    }
    again = write(df, url, tmp_path / "log2", idPrefix="job", stream="orders")
    assert all(f["duplicate"] for f in again)
    assert {f["k"]: f["sequence"] for f in again} == {f["k"]: f["sequence"] for f in flights}
    with MalamuteClient(url, timeout=PATIENCE) as reader:
        reader.read("orders", after=0)
        got = receive(reader, 3000)
        reader.sync()
    check(flights, df, got)
    assert {m.id for m in got} == {f["flight_id"] for f in flights}


def test_a_stream_in_memory_is_accepted_with_headers_and_without_sequences(
    spark: SparkSession, url: str, tmp_path: Path
) -> None:
    df = orders(spark, 200).selectExpr("*", "map('Kind', 'demo') AS headers")
    with MalamuteClient(url, timeout=PATIENCE) as reader:
        reader.read("memory", "^orders")
        flights = write(df, url, tmp_path / "log", stream="memory")
        got = receive(reader, 200)
    check(flights, df, got)
    assert {(f["event"], f["ack_level"], f["sequence"]) for f in flights} == {("acked", "accepted", None)}
    assert {m.headers for m in got} == {(("Kind", "demo"),)}


def test_through_a_foreign_broker_rows_are_accepted_and_headers_refused(
    spark: SparkSession, foreign: str, tmp_path: Path
) -> None:
    df = orders(spark, 200)
    with MalamuteClient(foreign, timeout=PATIENCE, features=None) as reader:
        reader.read("memory")
        flights = write(df, foreign, tmp_path / "log", stream="memory")
        check(flights, df, receive(reader, 200))
    assert {(f["event"], f["ack_level"], f["sequence"]) for f in flights} == {("acked", "accepted", None)}
    text = failure(df.drop("k").selectExpr("*", "map('Kind', 'demo') AS headers"), foreign, stream="memory")
    assert "this broker carries no headers" in text


def test_what_only_the_user_can_change_is_said(spark: SparkSession, url: str) -> None:
    df = orders(spark, 2).drop("k")
    assert "no stream is named" in failure(df, url)
    text = failure(df, url, stream="s", user="u", password="secret-word")
    assert "the broker wants another security mechanism" in text or "do login and keys go with the broker" in text
    assert "secret-word" not in text
