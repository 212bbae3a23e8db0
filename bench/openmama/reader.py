"""``python -m bench.openmama.reader``: how fast messages of OpenMAMA are decoded, alone and by ``mamasub``.

Messages have ten fields: four stamps, symbol, two prices, two sizes, one letter. The same stream is read by ``mamasub``
as it is, with ``omnm`` and ten columns, and with ``omnm`` and the map; rounds in turn, processor time of Spark and its
tasks. Every round checks the number of rows and the sum of a column.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from mama_spark.contracts.message import MessageBatch
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import MamaMsg
from mama_spark.mama.messages.omnm import decode, encode
from mama_spark.mama.messages.omnm_columns import ColumnDecoder
from mama_spark.options import SinkOptions
from mama_spark.publishing.resilient_publisher import ResilientPublisher
from mama_spark.registry import publisher_bridge
from pyspark.sql import SparkSession

from ..broker import STREAM, Broker
from ..machine import Meter
from ..run import session

BATCH = 4000
FIELDS = (
    "MdMsgType int, MdMsgStatus int, MdSeqNum bigint, MamaSenderId string, wIssueSymbol string, wBidPrice double, "
    "wAskPrice double, wBidSize int, wAskSize int, wBidPartId string"
)
COLUMNS = [column.split()[0] for column in FIELDS.split(", ")]


def message(n: int) -> bytes:
    msg = MamaMsg()
    msg.add(FieldType.U8, "MdMsgType", 1, 0)
    msg.add(FieldType.U8, "MdMsgStatus", 2, 0)
    msg.add(FieldType.U32, "MdSeqNum", 10, n)
    msg.add(FieldType.U64, "MamaSenderId", 20, 72058139498795988)
    msg.add(FieldType.STRING, "wIssueSymbol", 305, ("IBM", "MSFT", "A")[n % 3])
    msg.add(FieldType.F64, "wBidPrice", 237, 100 + n % 1000 / 100)
    msg.add(FieldType.F64, "wAskPrice", 109, 100.5 + n % 1000 / 100)
    msg.add(FieldType.I32, "wBidSize", 238, 100 + n % 50)
    msg.add(FieldType.I32, "wAskSize", 110, 200 + n % 50)
    msg.add(FieldType.STRING, "wBidPartId", 433, "N")
    return encode(msg)


def codec(payloads: list[bytes]) -> dict[str, float]:
    """Microseconds of processor time a message."""
    array = pa.array(payloads, pa.binary())
    offsets = np.frombuffer(array.buffers()[1], np.int32).astype(np.int64)[: len(payloads) + 1]
    decoder = ColumnDecoder()

    def one_by_one() -> None:
        for payload in payloads:
            decode(payload)

    def columns() -> None:
        decoder.decode(array.buffers()[2], offsets[:-1], offsets[1:])

    return {"decode, one by one": _best(one_by_one, len(payloads)), "decode, columns": _best(columns, len(payloads))}


def _best(run: Callable[[], None], n: int) -> float:
    times = []
    for _ in range(10):
        began = time.process_time()
        run()
        times.append(time.process_time() - began)
    return min(times) / n * 1e6


def plain(spark: SparkSession, url: str, rows: int) -> None:
    df = _reader(spark, url).load()
    found, total, size = df.selectExpr("count(*)", "sum(sequence)", "sum(length(value))").first() or (0, 0, 0)
    _check(found, rows, total, rows * (rows + 1) // 2)
    assert size


def typed(spark: SparkSession, url: str, rows: int) -> None:
    df = _reader(spark, url).option("omnm", "true").option("fields", FIELDS).load()
    others = [f"count({name})" for name in COLUMNS]
    found, total, *counts = df.selectExpr("count(*)", "sum(MdSeqNum)", *others).first() or (0, 0)
    _check(found, rows, total, rows * (rows - 1) // 2)
    assert set(counts) == {rows}


def only_typed(spark: SparkSession, url: str, rows: int) -> None:
    df = _reader(spark, url).option("omnm", "true").schema(FIELDS).load()
    others = [f"count({name})" for name in COLUMNS]
    found, total, *counts = df.selectExpr("count(*)", "sum(MdSeqNum)", *others).first() or (0, 0)
    _check(found, rows, total, rows * (rows - 1) // 2)
    assert set(counts) == {rows}


def struct(spark: SparkSession, url: str, rows: int) -> None:
    df = _reader(spark, url).option("omnm", "true").load()
    found, total, fields = df.selectExpr("count(*)", "sum(mama.seq_num)", "sum(size(mama.fields))").first() or (0, 0, 0)
    _check(found, rows, total, rows * (rows - 1) // 2)
    assert fields == 10 * rows


WAYS = {"as it is": plain, "ten columns and mama": typed, "ten columns (.schema)": only_typed, "map": struct}


def _reader(spark: SparkSession, url: str) -> Any:
    return spark.read.format("mamasub").option("url", url).option("stream", STREAM).option("minPartitions", 2)


def _check(found: int, rows: int, total: int, expected: int) -> None:
    if (found, total) != (rows, expected):
        raise SystemExit(f"{found} rows came instead of {rows}, or others: sum {total} instead of {expected}")


def fill(broker: Broker, rows: int) -> None:
    options = SinkOptions.parse({"url": broker.url, "topic": "b.any", "dedup": "false", "ackMode": "batch"})
    writer = ResilientPublisher(lambda: publisher_bridge(options), max_in_flight=50_000)
    for first in range(0, rows, BATCH):
        payloads = [message(n) for n in range(first, min(rows, first + BATCH))]
        writer.write(MessageBatch.of(["b.OM.IBM"] * len(payloads), payloads))
    if not writer.drain(120):
        raise SystemExit("the log does not take the messages")
    writer.close()


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    for what, us in codec([message(n) for n in range(BATCH)]).items():
        print(f"{what:24s} {us:6.2f} us {1e6 / us:12,.0f} messages/s of one core", flush=True)
    with tempfile.TemporaryDirectory() as folder, Broker(Path(folder) / "nats") as broker:
        spark = session(Path(folder))
        try:
            import mama_spark

            mama_spark.register(spark)
            fill(broker, args.rows)
            times = measure(spark, broker, args.rows, args.rounds)
        finally:
            spark.stop()
    base = statistics.median(times["as it is"])
    for name, us_all in times.items():
        us = statistics.median(us_all)
        print(f"mamasub, {name:24s} {us:6.2f} us of processor a message, {base / us:5.2f} of the rate as it is")
    return 0


def measure(spark: SparkSession, broker: Broker, rows: int, rounds: int) -> dict[str, list[float]]:
    times: dict[str, list[float]] = {name: [] for name in WAYS}
    for round_ in range(rounds + 1):
        for name, way in WAYS.items():
            with Meter(broker.pid) as meter:
                way(spark, broker.url, rows)
            if round_:  # the first one warms up
                times[name].append((meter.client + meter.server) / rows * 1e6)
                print(f"  {name:24s} {times[name][-1]:6.2f} us", flush=True)
    return times


if __name__ == "__main__":
    raise SystemExit(main())
