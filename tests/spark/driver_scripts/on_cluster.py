"""An application for a cluster: publish rows as a batch, read them back as a stream and as a batch, and look at
discovery.

The argument is JSON: ``folder`` (of gate and results), ``options`` of ``mamapub``, ``rows``, ``partitions``, ``steps``,
and perhaps ``first`` (number of the first row), ``shuffled`` (the rows come out of a shuffle), ``barrier`` (all
partitions are written at once), ``slow`` (a partition whose first attempt stands still, ``slow_for`` seconds after the
second begins; attempts at it leave a file each). The last rows of each partition wait until the file ``open`` is in
``folder``.
Nothing of the tests can be imported here: no other machine has it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql import DataFrame, SparkSession

SCHEMA = "topic STRING, value STRING"
GATE = 300.0
Given = dict[str, Any]


def gated(gate: Path, slow: int, slow_for: float) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For ``mapInArrow``.

    :param slow: this partition stands still when it is tried for the first time, until it is tried again and
        ``slow_for`` seconds more; -1 = none
    """

    def wait(end: float) -> None:
        while not gate.exists() and time.monotonic() < end:
            time.sleep(0.02)

    def hold(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        context = TaskContext.get()
        end = time.monotonic() + GATE
        if context is not None and context.partitionId() == slow:
            gate.with_name(f"attempt-{context.attemptNumber()}").touch()
            if context.attemptNumber() == 0:
                yield from (next(batches),)
                while not gate.with_name("attempt-1").exists() and time.monotonic() < end:
                    time.sleep(0.05)
                time.sleep(slow_for)
        held = next(batches, None)
        for batch in batches:
            yield held
            held = batch
        wait(end)
        if held is not None:
            yield held

    return hold


def rows(spark: SparkSession, given: Given) -> DataFrame:
    shuffled, partitions = given.get("shuffled", False), int(given["partitions"])
    first = int(given.get("first", 0))
    numbers = spark.range(first, first + int(given["rows"]), 1, 2 if shuffled else partitions)
    named = numbers.selectExpr("concat('orders.r', id % 5) AS topic", "concat('order ', id) AS value")
    named = named.repartition(partitions, "value") if shuffled else named
    slow, slow_for = int(given.get("slow", -1)), float(given.get("slow_for", GATE))
    hold = gated(Path(given["folder"], "open"), slow, slow_for)
    return named.mapInArrow(hold, SCHEMA, barrier=given.get("barrier", False))


def publish(spark: SparkSession, given: Given) -> None:
    rows(spark, given).write.format("mamapub").options(**given["options"]).mode("append").save()


def read_stream(spark: SparkSession, given: Given) -> None:
    """Everything, into Parquet files."""
    messages = spark.readStream.format("mamasub").options(url=given["options"]["url"], topics="orders.>").load()
    text = messages.selectExpr("topic", "cast(value AS string) AS value")
    at = {"path": f"{given['folder']}/read", "checkpointLocation": f"{given['folder']}/read-checkpoint"}
    text.writeStream.format("parquet").options(**at).trigger(availableNow=True).start().awaitTermination()


def pause(spark: SparkSession, given: Given) -> None:
    """Until the file ``go`` is in the folder."""
    Path(given["folder"], "paused").touch()
    end = time.monotonic() + GATE
    while not Path(given["folder"], "go").exists() and time.monotonic() < end:
        time.sleep(0.1)


def read_batch(spark: SparkSession, given: Given) -> dict[str, Any]:
    messages = spark.read.format("mamasub").options(url=given["options"]["url"], topics="orders.>").load()
    tasks = messages.rdd.getNumPartitions()
    return {"read": messages.selectExpr("value").distinct().count(), "tasks": tasks}


def discover(spark: SparkSession, given: Given) -> dict[str, Any]:
    found = spark.read.format("mamadiscovery").option("url", given["options"]["url"]).load()
    kinds = found.groupBy("kind").count().collect()
    return {"discovered": {row["kind"]: row["count"] for row in kinds}}


STEPS: dict[str, Callable[[SparkSession, Given], dict[str, Any] | None]] = {
    "publish": publish, "read_stream": read_stream, "read_batch": read_batch, "discover": discover, "pause": pause,
}  # fmt: skip


def main() -> None:
    given: Given = json.loads(sys.argv[1])
    spark = SparkSession.builder.appName("on a cluster").getOrCreate()
    results: dict[str, Any] = {}
    for step in given["steps"]:
        results |= STEPS[step](spark, given) or {}
    Path(given["folder"], "results.json").write_text(json.dumps(results))
    spark.stop()


if __name__ == "__main__":
    main()
