"""A stream set beside one stream: processor time a message, of the publisher and of the server, without Spark.

``python -m bench.stream_sets [--rows N] [--rounds N]``: both are written in turn, each by two processes, to a server of
its own for each write. On machines with few cores a set gains nothing: what is compared is what it costs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
import pyarrow as pa
from mama_spark.nats.server.nats_server import NatsServer

PROCESSES, TOPICS, PAYLOAD = 2, 400, 100
WAYS: dict[str, dict[str, str]] = {"one stream": {}, "set of 4": {"streams": "orders-{0..3}"}}


def publish(url: str, options: dict[str, str], partition: int, rows: int, topics: int = TOPICS) -> float:
    """Processor seconds of this process for one partition."""
    from mama_spark.spark.sink.data_source import batch_writer
    from mama_spark.spark.sink.job import TaskInfo
    from mama_spark.spark.sink.partition_writer import publish_partition
    from pyspark.sql.types import BinaryType, StringType, StructType

    schema = StructType().add("topic", StringType()).add("value", BinaryType())
    given = {"url": url, "createStream": "true", "retryDeadline": "60s", **options}
    job = batch_writer(given, schema, False).job
    size = 10_000

    def batches(first: int, last: int) -> list[pa.RecordBatch]:
        return [
            pa.record_batch(
                {
                    "topic": [f"orders.r{n % topics}" for n in range(begin, min(last, begin + size))],
                    "value": [b"%0*d" % (PAYLOAD, n) for n in range(begin, min(last, begin + size))],
                }
            )
            for begin in range(first, last, size)
        ]

    made = batches(partition * rows, (partition + 1) * rows)
    before = time.process_time()
    report = publish_partition(job, TaskInfo(partition, 0, None, None, None, False), iter(made))
    spent = time.process_time() - before
    if report.counts.acked != rows:
        raise SystemExit(f"not all rows were acknowledged: {report.counts.sentence()} {report.fatal or ''}")
    return spent


def measure(options: dict[str, str], rows: int) -> tuple[float, float, int]:
    """Microseconds of a processor a row, of the publishers and of the server, and the server's threads."""
    with TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        process = psutil.Process(server.pid)
        before = sum(process.cpu_times()[:2])
        with multiprocessing.get_context("spawn").Pool(PROCESSES) as pool:
            tasks = [(server.url, options, number, rows // PROCESSES) for number in range(PROCESSES)]
            spent = sum(pool.starmap(publish, tasks))
        served = sum(process.cpu_times()[:2]) - before
        return spent / rows * 1e6, served / rows * 1e6, process.num_threads()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    found: dict[str, list[tuple[float, float, int]]] = {name: [] for name in WAYS}
    for _ in range(args.rounds):
        for name in WAYS:
            found[name].append(measure(WAYS[name], args.rows))
    print(f"{'':12}{'publisher':>12}{'server':>12}{'threads':>10}   microseconds of a processor a row")
    for name, rounds in found.items():
        publisher, server, threads = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{name:12}{publisher:12.2f}{server:12.2f}{threads:10.0f}")
    one, many = (statistics.median(p + s for p, s, _ in found[name]) for name in WAYS)
    print(f"{one / many:.2f} times the work of one stream a second, where the processor is the limit")


if __name__ == "__main__":
    main()
