"""``python -m bench.exactly_once``: what ``exactlyOnce`` costs a task, and how fast stored ids are read back.

Processor time of this process, in interleaved rounds, because wall-clock times of a shared machine drift. Each task has
one partition of 100,000 rows of 100 bytes, as the sink's own code publishes it, without Spark.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from mama_spark.nats.connection.pool import POOL
from mama_spark.nats.ledger import NatsBatchLedger
from mama_spark.nats.read.logs import NatsLogs
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.nats.settings import NatsSettings
from mama_spark.publishing.exactly_once.matching import IdReader, StoredRows
from mama_spark.spark.sink.data_source import stream_writer
from mama_spark.spark.sink.job import TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition
from pyspark.sql.types import BinaryType, StringType, StructType

SCHEMA = StructType().add("topic", StringType()).add("value", BinaryType())
STREAM, SUBJECTS, BATCH = "BENCH", 16, 10_000
PREFIX = "query-{}-0-"


def rows(n: int) -> Iterator[pa.RecordBatch]:
    for first in range(0, n, BATCH):
        numbers = range(first, min(n, first + BATCH))
        topics = pa.array([f"bench.{i % SUBJECTS}" for i in numbers])
        values = pa.array([(b"%d" % i).ljust(100, b"x") for i in numbers], pa.binary())
        yield pa.record_batch({"topic": topics, "value": values})


class Bench:
    """One server and the writes to it."""

    def __init__(self, url: str) -> None:
        self._url, self._batch = url, 0
        self.settings = NatsSettings(servers=(url,))

    def create(self) -> None:
        with NatsLogs(self.settings) as logs:
            config = {"name": STREAM, "subjects": ["bench.>"], "storage": "file", "duplicate_window": 1_000_000_000}
            logs.api.request(f"STREAM.CREATE.{STREAM}", config)

    def task(self, n: int, *, exactly_once: bool) -> tuple[float, float]:
        """Publish a partition of a new batch: processor time and wall-clock time."""
        self._batch += 1
        given = {"url": self._url, "exactlyOnce": "true"} if exactly_once else {"url": self._url}
        job = stream_writer(given, SCHEMA, False).job
        batches = list(rows(n))
        wall, processor = time.perf_counter(), time.process_time()
        report = publish_partition(job, TaskInfo(0, 0, "query", self._batch, "run", False), iter(batches))
        assert report.counts.acked == n, report
        return time.process_time() - processor, time.perf_counter() - wall

    def pairs(self, n: int, rounds: int) -> tuple[list[tuple[float, float]], list[tuple[float, float]]]:
        """Tasks with the option and without, in turns, each first in every other round."""
        found: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for number in range(rounds + 1):
            for exactly_once in (bool(number % 2), not number % 2):
                found[exactly_once].append(self.task(n, exactly_once=exactly_once))
        return found[True][1:], found[False][1:]  # the first ones warm up

    def read_as_mamasub(self, up_to: int) -> float:
        """Processor time of the reader of ``mamasub``."""
        with NatsLogs(self.settings) as logs:
            began = time.process_time()
            assert sum(len(records) for records in logs.log(STREAM).read(0, up_to)) == up_to
            return time.process_time() - began

    def read_back(self, batch: int, after: int, up_to: int) -> tuple[float, float]:
        """Processor time of reading ids back, and bytes for each row found."""
        prefix = PREFIX.format(batch)
        ledger, table, reader = NatsBatchLedger(self.settings, 30.0), StoredRows(after, len(prefix) - 2), IdReader()
        ledger.open()
        try:
            began = time.process_time()
            for some in ledger.read(STREAM, after, up_to, prefix.encode()):
                reader.add(table, some)
            table.finish()
            spent = time.process_time() - began
        finally:
            ledger.close()
        assert len(table) == up_to - after
        return spent, table.rows.nbytes / len(table)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--rounds", type=int, default=5)
    options.add_argument("--rows", type=int, default=600_000, help="rows that are read back")
    options.add_argument("--quick", action="store_true", help="does it run at all: few rows, one round")
    args = options.parse_args()
    if args.quick:
        args.rounds, args.rows = 1, 20_000
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, NatsServer(Path(folder)) as server:
        bench = Bench(server.url)
        bench.create()
        bench.task(args.rows, exactly_once=True)
        sub, back = [], []
        for _ in range(args.rounds):
            sub.append(bench.read_as_mamasub(args.rows))
            spent, size = bench.read_back(1, 0, args.rows)
            back.append(spent)
        ratio = statistics.median(a / b for a, b in zip(sub, back, strict=True))
        each = statistics.median(back) / args.rows * 1e6
        print(f"read back: {each:.2f} us of processor time an id, {size:.0f} bytes a row")
        print(f"           {ratio:.2f} times as many a second as mamasub's reader of the same messages")
        for n in (1, 100_000):
            with_it, without = bench.pairs(n, args.rounds * (20 if n == 1 else 5))
            more = [statistics.median(a[i] - b[i] for a, b in zip(with_it, without, strict=True)) for i in (0, 1)]
            share = more[0] / statistics.median(b[0] for b in without)
            best = min(a[0] for a in with_it) - min(b[0] for b in without)
            print(
                f"a task of {n:,} rows: {more[0] * 1e3:+.1f} ms of processor time ({share:+.1%}; "
                f"{best * 1e3:+.1f} ms between the fastest), {more[1] * 1e3:+.1f} ms of wall-clock time"
            )
    POOL.clear()


if __name__ == "__main__":
    main()
