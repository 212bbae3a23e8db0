"""``python -m bench.tango.archive``: what ``jobs/tango_archive.py`` takes of a processor, for 10 million events a day.

The events are change events of 1,000 attributes as ``mama record`` writes them. Processor time is that of Spark, driver
and workers, and of the log's server, user and system; without its start, and without what Java compiles at first.
``steady``: micro-batches of 1,160 events, which are 116 a second and a trigger each 10 s; ``strategies``: the same with
a strategy for all attributes; ``bulk``: as much as there is at once.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from delta import configure_spark_with_delta_pip
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import RecordLog
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.options import SubscribeOptions
from mama_spark.registry import log_bridge
from mama_spark.tango.events.event_codec import CallInfo, Event, encode
from mama_spark.tango.log.records import RecordFrames, RecordHeads, RecordKind, record_topic
from mama_spark.tango.log.records import encode as encode_records
from mama_spark.tango.topics import event_topic
from mama_spark.tango.types import AttributeValue, DataType, EventType, ValueKind
from pyspark.sql import SparkSession

from tests.support.nats.nats_servers import Admin

from ..machine import tree_cpu

ATTRIBUTES, CHUNK, DAY, SECONDS = 1_000, 5_000, 10_000_000, 86_400
BATCH = 1_160  #: 10 s of a day of 10 million events
STRATEGIES = {"*/*/*/*.absChange": "0.5", "*/*/*/*.every": "10m"}
SPARK = {
    "spark.log.level": "ERROR", "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1", "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
}  # fmt: skip
archive_job = importlib.import_module("mama_spark.jobs.tango_archive")


def fill(log: RecordLog, first: int, count: int) -> None:
    """Append events ``first`` to ``first + count - 1``."""
    names = [
        event_topic("lab:10000", f"bench/cell/{n // 10}", f"value{n % 10}", EventType.CHANGE) for n in range(1_000)
    ]
    for begin in range(first, first + count, CHUNK):
        numbers = range(begin, min(begin + CHUNK, first + count))
        topics = [names[number % ATTRIBUTES] for number in numbers]
        frames = []
        for number, topic in zip(numbers, topics, strict=True):
            at = 1_790_000_000 * 10**9 + number * 8_640_000
            value = AttributeValue(
                topic.attribute or "", ValueKind.DOUBLE, np.array([number * 0.001]), at, data_type=DataType.DOUBLE
            )
            frames.append(encode(Event(topic, CallInfo(number // ATTRIBUTES + 1), value)))
        heads = RecordHeads(RecordKind.EVENT, 1_790_000_000 * 10**9, np.array(numbers) // ATTRIBUTES + 1)
        payloads = encode_records(heads, RecordFrames(*map(list, zip(*frames, strict=True))))
        log.append(MessageBatch(pa.array(map(record_topic, topics)).dictionary_encode(), payloads))


class Archive:
    """A log with an archive of it.

    :param limit: events of a micro-batch; 0: as many as there are
    :param strategies: table of the configuration file
    """

    def __init__(self, spark: SparkSession, url: str, folder: Path, limit: int, strategies: dict[str, Any]) -> None:
        self._spark, self._count = spark, 0
        self._conf: dict[str, dict[str, Any]] = {
            "mamasub": {"url": url, "stream": "TANGO", **({"maxOffsetsPerTrigger": limit} if limit else {})},
            "archive": {"path": f"{folder}/archive"},
            "stream": {"checkpointLocation": f"{folder}/checkpoint", "trigger": "availableNow"},
            "strategies": strategies,
        }
        bridge = log_bridge(SubscribeOptions.parse({"url": url, "stream": "TANGO"}), 60.0)
        bridge.open()
        self._log = bridge.log("TANGO")

    def run(self, count: int) -> float:
        """Write more events into the log and archive them; processor seconds of the archive."""
        fill(self._log, self._count, count)
        self._count += count
        before = tree_cpu(os.getpid())
        archive_job.run(self._spark, self._conf)
        return tree_cpu(os.getpid()) - before


def measure(spark: SparkSession, kind: str, count: int, limit: int, strategies: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder) / "nats") as server:
        with Admin(server.url) as admin:
            admin.create_stream("TANGO", ["tango.>"])
        archive = Archive(spark, server.url, Path(folder), limit, strategies)
        archive.run(limit * 5 or 20_000)  # until Java has compiled it
        each = archive.run(count) / count
    print(
        f"{kind}: {count:,} events, {each * 1e6:,.0f} processor µs an event, {1 / each:,.0f} events/s of a core; "
        f"10 million a day: {each * DAY:,.0f} s, {each * DAY / SECONDS:.1%} of a core",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scale", type=float, default=1.0, help="of the number of events")
    parser.add_argument("--kinds", default="steady,strategies,bulk")
    given = parser.parse_args()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("bench-tango-archive")
    for name, value in SPARK.items():
        builder = builder.config(name, value)
    spark = archive_job.session(configure_spark_with_delta_pip(builder))
    for kind in given.kinds.split(","):
        bulk = kind == "bulk"
        count = round(400_000 * given.scale) if bulk else BATCH * round(30 * given.scale)
        measure(spark, kind, count, 0 if bulk else BATCH, STRATEGIES if kind == "strategies" else {})
    spark.stop()


if __name__ == "__main__":
    main()
