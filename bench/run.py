"""``python -m bench.run``: all contenders in one interleaved run, a table, and one JSON file of everything measured.

Inside a round the order is random, and ratios are taken within a round: the speed of a shared machine drifts by more
than what is compared. The count in the broker is checked after every run; one row too many or too few ends it.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .result import RESULTS, ROOT, facts, finish, run_record

# before the JVM starts: Python workers import this package by name
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable

from pyspark.sql import DataFrame, SparkSession

from . import report
from .broker import Broker
from .contenders import CONTENDERS, Contender, SimpleSource, compile_ceiling, flight_log, run_ceiling, sink
from .machine import Meter, WorkerMemory, rounds, wait_until_quiet
from .readers import READERS, ReadContender, SimpleSubSource

SIZES = (100, 1000)
TOPICS = 16


@dataclass
class Bench:
    """What all runs share. ``runs`` collects one record a run."""

    spark: SparkSession
    broker: Broker
    work: Path
    scale: float = 1.0
    runs: list[dict[str, Any]] = field(default_factory=list)
    program: Path | None = None
    full: bool = False
    patient: bool = True  #: warm up, and wait for a quiet machine before each run

    def frame(self, rows: int, size: int) -> DataFrame:
        """Distinct rows that cost Spark almost nothing to make (``rpad`` alone costs 8 us a row at 1 kB)."""
        filler = "x" * (size - 11)
        return self.spark.range(0, rows, 1, 2).selectExpr(
            f"concat('b.s', cast(id % {TOPICS} + 10 as string)) AS topic",
            f"cast(concat(cast(id + 1000000000 as string), '-', '{filler}') as binary) AS value",
        )

    def run(self, contender: Contender, size: int, rows: int, round_: int) -> None:
        """One measured run; ``round_`` -1 warms up and is not recorded."""
        broker, work = self.broker, self.work
        broker.purge()
        shutil.rmtree(flight_log(work), ignore_errors=True)
        if round_ >= 0 and self.patient:
            wait_until_quiet()
        with Meter(broker.pid) as meter:
            if contender.publish is not None:
                contender.publish(self.frame(rows, size), broker.url, work)
            else:
                assert self.program is not None
                run_ceiling(self.program, broker.port, rows, size, contender.mode)
        stored = broker.count()
        if contender.name != "drop" and stored != rows:
            raise RuntimeError(f"{contender.name}: {rows} rows sent, {stored} in the broker")
        log = (
            sum(f.stat().st_size for f in flight_log(work).rglob("*") if f.is_file())
            if flight_log(work).exists()
            else 0
        )
        if contender.ids:
            broker.purge()
            broker.restart()
        if round_ < 0:
            return
        self._keep(run_record(contender.name, size, round_, rows, meter) | {"log_bytes_per_row": log / rows})

    def _keep(self, record: dict[str, Any]) -> None:
        self.runs.append(record)
        print(f"  {record['name']:20s} {record['size']:5d} B  {record['rate']:10,.0f} rows/s", flush=True)

    def rounds(self, contenders: list[Contender], sizes: list[int], n: int, minutes: float) -> None:
        ends = time.monotonic() + minutes * 60
        for size in sizes:
            column, left = SIZES.index(size), (ends - time.monotonic()) / 60
            for round_ in rounds(n, f"{size} B", left, warm_up=self.patient):
                for contender in random.sample(contenders, len(contenders)):
                    if size != SIZES[0] and not contender.goal and not self.full:
                        continue
                    rows = max(200, int(contender.rows[column] * self.scale))
                    self.run(contender, size, max(200, rows // 20) if round_ < 0 else rows, round_)

    def fill(self, rows: int, size: int) -> None:
        """Let the stream hold exactly these rows."""
        sink(log=False, dedup="false", ackMode="batch")(self.frame(rows, size), self.broker.url, self.work)
        if (stored := self.broker.count()) != rows:
            raise RuntimeError(f"{rows} rows sent, {stored} in the broker")

    def read(self, contender: ReadContender, size: int, rows: int, round_: int) -> None:
        """One measured run of a reader; ``round_`` -1 warms up and is not recorded."""
        if round_ >= 0 and self.patient:
            wait_until_quiet()
        with Meter(self.broker.pid) as meter:
            found = contender.read(self.spark, self.broker.url, rows)
        if found != (rows, rows * (rows + 1) // 2):
            raise RuntimeError(f"{contender.name}: of the sequences 1 to {rows} came (number, sum) {found}")
        if round_ >= 0:
            self._keep(run_record(contender.name, size, round_, rows, meter))

    def reading(self, contenders: list[ReadContender], sizes: list[int], n: int, minutes: float) -> None:
        """Rounds of readers; a new stream for each size, so that sequences begin with 1."""
        ends = time.monotonic() + minutes * 60
        for size in sizes:
            column = SIZES.index(size)
            rows = {c.name: max(2000, int(c.rows[column] * self.scale)) for c in contenders}
            self.broker.make_again()
            self.fill(max(rows.values()), size)
            left = (ends - time.monotonic()) / 60
            for round_ in rounds(n, f"reading {size} B", left, warm_up=self.patient):
                for contender in random.sample(contenders, len(contenders)):
                    all_of_it = rows[contender.name]
                    self.read(contender, size, max(2000, all_of_it // 20) if round_ < 0 else all_of_it, round_)

    def micro_batches(self, batches: int) -> dict[str, float]:
        """Median milliseconds of a micro-batch of ten rows, with the sink and with one that does nothing."""
        times: dict[str, list[float]] = {"sink": [], "nothing": []}
        for turn in range(4):
            name = ("nothing", "sink")[turn % 2]
            work = self.work / f"micro-{turn}"
            rows = (
                self.spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 10).option("numPartitions", 2)
            )
            df = rows.load().selectExpr(
                "concat('b.m', value % 16) AS topic", "cast(cast(value as string) as binary) AS value"
            )
            writer = df.writeStream.outputMode("append").option("checkpointLocation", str(work / "checkpoint"))
            if name == "sink":
                writer = (
                    writer.format("mamapub").option("url", self.broker.url).option("flightLog", str(work / "flights"))
                )
            else:
                writer = writer.format("benchsimple")
            query = writer.start()
            deadline = time.monotonic() + 120 + batches
            while query.isActive and (query.lastProgress or {"batchId": -1})["batchId"] < batches + 5:
                if time.monotonic() > deadline:
                    raise RuntimeError(f"{name}: no {batches} micro-batches in time")
                time.sleep(0.05)
            progress = [p for p in query.recentProgress if p["batchId"] >= 5]  # the first ones warm up
            query.stop()
            if query.exception() is not None:
                raise RuntimeError(f"{name}: {query.exception()}")
            times[name] += [p["durationMs"]["triggerExecution"] for p in progress]
        return {name: statistics.median(values) for name, values in times.items()}

    def memory(self, millions: tuple[int, int]) -> list[dict[str, Any]]:
        """Peak memory of a worker against the rows of its partition, ids and flight log on."""
        found = []
        for rows in (m * 1_000_000 for m in millions):
            self.broker.purge()
            shutil.rmtree(flight_log(self.work), ignore_errors=True)
            with WorkerMemory() as memory:
                sink()(self.frame(2 * rows, 100), self.broker.url, self.work)
            if (stored := self.broker.count()) != 2 * rows:
                raise RuntimeError(f"memory: {2 * rows} rows sent, {stored} in the broker")
            found.append({"rows_per_partition": rows, "peak_mb": memory.peak / 2**20})
            print(f"  {rows:,} rows a partition: worker at most {memory.peak / 2**20:.0f} MB", flush=True)
            self.broker.purge()
            self.broker.restart()
        return found


def session(work: Path, jars: Sequence[str] = (), settings: dict[str, Any] | None = None) -> SparkSession:
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("mama-spark bench")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(work / "spark"))
        .config("spark.jars", ",".join(jars))
        .config(map=settings or {})
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(SimpleSource)
    spark.dataSource.register(SimpleSubSource)
    return spark


def choose(only: str, full: bool) -> tuple[list[Contender], list[ReadContender]]:
    if not only:
        return [c for c in CONTENDERS if full or not c.full], READERS
    names = only.split(",")
    known = [c.name for c in CONTENDERS] + [c.name for c in READERS]
    if unknown := set(names) - set(known):
        raise SystemExit(f"unknown: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return [c for c in CONTENDERS if c.name in names], [c for c in READERS if c.name in names]


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.run", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sizes", default="100,1000", help="payload bytes, of 100 and 1000")
    parser.add_argument("--scale", type=float, default=1.0, help="factor on the number of rows")
    parser.add_argument("--only", default="", help="comma list of contenders")
    parser.add_argument("--minutes", type=float, default=16.0, help="begin no other publishing round after it")
    parser.add_argument("--read-minutes", type=float, default=4.0, help="the same for reading")
    parser.add_argument("--micro", type=int, default=60, help="micro-batches to measure, 0 = none")
    parser.add_argument("--full", action="store_true", help="every combination, 10 million rows a partition; hours")
    parser.add_argument("--quick", action="store_true", help="does it run at all: few rows, one round, not warm")
    parser.add_argument("--out", type=Path, default=RESULTS / "latest.json")
    args = parser.parse_args(argv)
    if args.quick:
        args.rounds, args.sizes, args.scale, args.micro = 1, "100", min(args.scale, 0.005), min(args.micro, 3)
    if args.full:
        args.minutes, args.read_minutes = 600.0, 60.0
    return args


def main(argv: list[str] | None = None) -> int:
    args = arguments(argv)
    contenders, readers = choose(args.only, args.full)
    with (
        tempfile.TemporaryDirectory(prefix="mama-bench-", ignore_cleanup_errors=True) as folder,
        Broker(Path(folder) / "broker") as broker,
    ):
        work = Path(folder)
        spark = session(work)
        bench = Bench(spark, broker, work, args.scale, full=args.full, patient=not args.quick)
        if any(c.mode for c in contenders):
            bench.program = compile_ceiling(work)
        sizes = [int(s) for s in args.sizes.split(",")]
        bench.rounds(contenders, sizes if contenders else [], args.rounds, args.minutes)
        bench.reading(readers, sizes if readers else [], args.rounds, args.read_minutes)
        result: dict[str, Any] = {"facts": facts(), "runs": bench.runs}
        if args.micro:
            result["micro_batch_ms"] = bench.micro_batches(args.micro)
        if args.full:
            result["memory"] = bench.memory((1, 10))
        spark.stop()
    finish(result, args.out, report.text, report.__name__)
    return 0


if __name__ == "__main__":
    sys.exit(main())
