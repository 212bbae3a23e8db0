"""One task of ``mamapub``: rows to a reader, and what the flight log says of them. No JVM."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from mama_spark.mama.messages.omnm import decode
from mama_spark.spark.sink.data_source import batch_writer
from mama_spark.spark.sink.job import PartitionReport, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition
from pyspark.sql import types as T

from tests.support.openmama.network import Watched, naming, peer, url_of

SCHEMA = T.StructType(
    [T.StructField("source", T.StringType()), T.StructField("symbol", T.StringType()),
     T.StructField("wBidPrice", T.DecimalType(8, 2)), T.StructField("key", T.IntegerType())]
)  # fmt: skip


def rows(*symbols: str) -> pa.RecordBatch:
    n = len(symbols)
    return pa.record_batch(
        {
            "source": ["S"] * n,
            "symbol": list(symbols),
            "wBidPrice": pa.array(["100.25"] * n).cast(pa.decimal128(8, 2)),
            "key": pa.array(range(n), pa.int32()),
        }
    )


def publish(batch: pa.RecordBatch, log: Path, partition: int = 0, **options: str) -> PartitionReport:
    given = {"flightLog": str(log), "flightLogColumns": "key", "mamaFields": "wBidPrice:109,key::U8", **options}
    job = batch_writer(given, SCHEMA, overwrite=False).job
    return publish_partition(job, TaskInfo(partition, 0, None, None, None, False), iter([batch]))


def outcomes(log: Path) -> list[tuple[Any, ...]]:
    found = [row for part in log.rglob("*.parquet") for row in pq.read_table(part).to_pylist()]
    flights = sorted((row for row in found if row["kind"] == "flight"), key=lambda row: row["key"])
    return [(row["topic"], row["event"], row["ack_level"], row["status"]) for row in flights]


@pytest.mark.spec("OW9", "OW10")
def test_rows_reach_a_reader_and_the_flight_log_says_no_more_than_sent(tmp_path: Path) -> None:
    with naming() as server, peer(url_of(server)) as reader:
        reader.subscribe("S.A")
        reports: list[PartitionReport] = []
        task = threading.Thread(
            target=lambda: reports.append(publish(rows("A", "B", "A"), tmp_path, url=url_of(server),
                                                  waitForSubscribers="1s")), daemon=True)  # fmt: skip
        task.start()
        watched = Watched(reader)
        watched.until(lambda: not task.is_alive(), "the task ends")
        watched.until(lambda: len(watched.of(reader).frames) == 2, "the rows arrive")
        messages = [decode(f.frame.payload) for f in watched.of(reader).frames]
    assert [[(f.name, f.fid, f.type.name) for f in m] for m in messages] == [
        [("MdMsgType", 1, "U8"), ("MdMsgStatus", 2, "U8"), ("wBidPrice", 109, "PRICE"), ("key", 0, "U8")]
    ] * 2
    assert [m.get("key") for m in messages] == [0, 2]
    assert outcomes(tmp_path) == [
        ("S.A", "acked", "sent", None), ("S.B", "published", "none", None), ("S.A", "acked", "sent", None)
    ]  # fmt: skip
    assert (reports[0].counts.acked, reports[0].counts.published, reports[0].stores) == (2, 1, False)


@pytest.mark.spec("OW22")
def test_a_second_task_with_numbers_is_refused_before_it_publishes(tmp_path: Path) -> None:
    """No task knows how many there are: the first one publishes with its numbers, and the write fails."""
    with naming() as server, peer(url_of(server)) as reader:
        reader.subscribe("S.A")
        reports: dict[int, PartitionReport] = {}

        def publish_each() -> None:
            for partition in (1, 0):
                log = tmp_path / str(partition)
                reports[partition] = publish(rows("A", "A"), log, partition, url=url_of(server), mamaNumbers="true")

        task = threading.Thread(target=publish_each, daemon=True)
        task.start()
        watched = Watched(reader)
        watched.until(lambda: not task.is_alive(), "the tasks end")
        watched.until(lambda: len(watched.of(reader).frames) == 2, "the rows of the first task arrive")
        assert [decode(f.frame.payload).get("MdSeqNum") for f in watched.of(reader).frames] == [1, 2]
    assert reports[1].fatal is not None
    assert "write with coalesce(1)" in reports[1].fatal
    assert outcomes(tmp_path / "1") == []
    assert reports[0].fatal is None
