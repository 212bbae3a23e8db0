"""One write and one query over many streams: what a task spends before its first row, and the driver for a batch."""

from __future__ import annotations

import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.spark.subscribe.data_source import schema_for, stream_reader
from pyspark.sql.streaming.datasource import ReadAllAvailable

from bench.stream_sets import publish

TITLE = "Streams of a set"
UNIT = "streams"
SIZES = (10, 100, 1_000)
COLUMNS = {
    "write_s": "processor s of a task with 10,000 rows", "plan_s": "processor s of the driver for a batch that is read",
    "offset": "bytes of a checkpoint", "server_mb": "MB of memory, server",
}  # fmt: skip
GROWS = "plan_s"
ROWS = 10_000


def measure(number: int) -> dict[str, float]:
    with TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        streams = {"streams": f"orders-{{0..{number - 1}}}"}
        publish(server.url, streams, 0, ROWS, ROWS)  # makes the streams
        written = publish(server.url, streams, 1, ROWS, ROWS)
        given = {"url": server.url, "streams": "orders-*", "startingOffsets": "earliest"}
        reader = stream_reader(given, schema_for(given), time.time_ns() // 1_000, 2)
        start = reader.initialOffset()
        before = time.process_time()
        end = reader.latestOffset(start, ReadAllAvailable())
        planned = reader.partitions(start, end)
        spent = time.process_time() - before
        if sum(len(task.range) for task in planned) != 2 * ROWS:
            raise SystemExit("not all rows are planned")
        memory = psutil.Process(server.pid).memory_info().rss / 1e6
        return {"write_s": written, "plan_s": spent, "offset": len(json.dumps(end)), "server_mb": memory}
