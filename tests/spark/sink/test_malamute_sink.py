"""``mamapub`` to a Malamute broker: every row has its one outcome, and it is true."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession

from tests.support.malamute.restartable_broker import RestartableMalamuteBroker
from tests.support.spark.sink_harness import numbered_orders


def write(df: DataFrame, url: str, log: Path, **options: str) -> list[dict[str, Any]]:
    options = {"url": url, "flightLog": str(log), "flightLogColumns": "k", **options}
    df.write.format("mamapub").options(**options).mode("append").save()
    rows: list[dict[str, Any]] = DeltaTable(str(log)).to_pyarrow_table().to_pylist()
    return [row for row in rows if row["kind"] == "flight"]


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
