"""``python -m bench.kills``: drivers of a streaming query killed with SIGKILL, and the rows that are stored twice then.

A query publishes files of rows, one a micro-batch: by ``mamapub`` with ``exactlyOnce`` and with its defaults,
and, with ``--kafka`` (after ``scripts/setup.sh kafka``), by Spark's Kafka sink. Its JVM is killed when two fifths of a
file more are stored, and started again after a pause that is longer than the duplicate window, and so on; then it ends.
It prints a table, of which ``docs/explanation/reliability.md`` has a run.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
from mama_spark.nats.read.logs import NatsLogs
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.nats.settings import NatsSettings

os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import SparkSession

from .kafka import KafkaBroker, jars
from .run import session

STREAM, SCHEMA = "BENCH", "topic STRING, value STRING"
FILES, ROWS = 2, 16_000
WINDOW, PAUSE = 1.0, 2.0  #: seconds


def slowly(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Some 4,000 rows a second of each partition, so that a kill meets the middle of a batch."""
    for batch in batches:
        yield batch
        time.sleep(batch.num_rows / 4_000)


def drive(given: dict[str, Any]) -> None:
    """The process that is killed."""
    folder = Path(given["folder"])
    builder = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", "400")
    spark = builder.config("spark.jars", ",".join(given["jars"])).getOrCreate()
    frame = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1).json(str(folder / "input"))
    frame = frame.repartition(2).mapInArrow(slowly, SCHEMA)
    if given["format"] == "kafka":
        frame = frame.selectExpr("value")
    writer = frame.writeStream.format(given["format"]).options(**given["options"])
    writer = writer.option("checkpointLocation", str(folder / "checkpoint")).trigger(availableNow=True)
    writer.start().awaitTermination()
    spark.stop()


def write_input(folder: Path) -> None:
    (folder / "input").mkdir(parents=True)
    for number in range(FILES):
        lines = [json.dumps({"topic": f"b.{n % 4}", "value": f"{number} {n}"}) for n in range(ROWS)]
        file = folder / "input" / f"{number}.json"
        file.write_text("\n".join(lines))
        os.utime(file, (number + 1, number + 1))


def kill_and_count(given: dict[str, Any], count: Callable[[], int], kills: int) -> None:
    """Run the driver until it has finished, killed ``kills`` times."""
    folder = Path(given["folder"])
    write_input(folder)
    for run in range(kills + 1):
        enough = count() + ROWS * 2 // 5
        with (folder / f"driver-{run}.out").open("wb") as out:
            command = [sys.executable, "-m", "bench.kills", "--driver", json.dumps(given)]
            driver = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True)
        if run == kills:
            if driver.wait(600):
                raise RuntimeError((folder / f"driver-{run}.out").read_text()[-2_000:])
            return
        while count() < enough and driver.poll() is None:
            time.sleep(0.05)
        for child in psutil.Process(driver.pid).children(recursive=True):
            if child.name() == "java":
                child.send_signal(signal.SIGKILL)
        driver.kill()
        driver.wait()
        time.sleep(PAUSE)


def on_nats(folder: Path, kills: int, options: dict[str, str]) -> tuple[int, int]:
    """Messages that are stored, and how many different ones."""
    with NatsServer(folder / "nats") as server, NatsLogs(NatsSettings(servers=(server.url,))) as logs:
        config = {"name": STREAM, "subjects": ["b.>"], "storage": "file", "duplicate_window": int(WINDOW * 1e9)}
        logs.api.request(f"STREAM.CREATE.{STREAM}", config)
        log = logs.log(STREAM)
        given = {"format": "mamapub", "options": {"url": server.url, **options}, "folder": str(folder), "jars": []}
        kill_and_count(given, lambda: log.bounds().last, kills)
        values = [value for records in log.read(0, log.bounds().last) for value in records.payloads.to_pylist()]
        return len(values), len(set(values))


def on_kafka(folder: Path, kills: int) -> tuple[int, int]:
    """The same in Kafka."""
    with KafkaBroker(folder / "kafka") as broker:
        spark = session(folder, jars()["connector_jars"], {})
        broker.new_topic(spark)
        options = {"kafka.bootstrap.servers": broker.servers, "topic": broker.topic}
        given = {"format": "kafka", "options": options, "folder": str(folder), "jars": jars()["connector_jars"]}
        kill_and_count(given, lambda: broker.count(spark), kills)
        stored = broker.read(spark)
        return stored.count(), stored.select("value").distinct().count()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--kafka", action="store_true")
    parser.add_argument("--driver", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.driver:
        drive(json.loads(args.driver))
        return
    with tempfile.TemporaryDirectory() as name:
        ways: dict[str, Callable[[Path], tuple[int, int]]] = {
            "`mamapub`, `exactlyOnce=true`": lambda folder: on_nats(folder, args.kills, {"exactlyOnce": "true"}),
            "`mamapub`, defaults": lambda folder: on_nats(folder, args.kills, {}),
        }
        if args.kafka:
            ways = {"Spark's Kafka sink": lambda folder: on_kafka(folder, args.kills), **ways}
        print("| sink | rows | kills | lost | stored twice |\n|---|--:|--:|--:|--:|", flush=True)
        for number, (title, way) in enumerate(ways.items()):
            folder = Path(name) / str(number)
            folder.mkdir()
            stored, different = way(folder)
            lost, twice = FILES * ROWS - different, stored - different
            print(f"| {title} | {FILES * ROWS:,} | {args.kills} | {lost:,} | {twice:,} |", flush=True)


if __name__ == "__main__":
    main()
