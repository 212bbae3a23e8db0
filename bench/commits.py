"""The driver's commit of a flight log by number of partitions: processor time, and bytes of reports and of the log.

``python -m bench.commits [--partitions 1,10,100,1000,2000] [--rounds N]``: each partition has one part with 1,000 rows.
"""

from __future__ import annotations

import argparse
import pickle
import shutil
import statistics
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from mama_spark.flightlog.columns import FlightColumns
from mama_spark.flightlog.commit import commit
from mama_spark.flightlog.parts import Part
from mama_spark.flightlog.staging import Staging
from mama_spark.flightlog.write_id import WriteId
from mama_spark.spark.sink.job import PartitionReport

ROWS = 1_000


def flights(n: int, seed: int = 0) -> FlightColumns:
    """As a stream with ids of its own and 400 topics has them."""
    chance = np.random.default_rng(seed)
    times = 1_790_000_000_000_000 + np.arange(n, dtype=np.int64) * 10
    hashes = chance.bytes(16 * n)
    query = "58d87e07-d753-4f2b-bcb3-abba270042a7"
    ids = pa.array([f"{query}-0-0-{hashes[16 * row : 16 * row + 16].hex()}-0" for row in range(n)])
    topics = pa.array([f"orders.r{row % 400}" for row in range(n)]).dictionary_encode()
    values: dict[str, Any] = {
        "latency_us": chance.integers(300, 30_000, n), "stream": "ORDERS", "ack_level": "stored",
        "sequence": np.arange(n), "duplicate": np.zeros(n, np.bool_),
    }  # fmt: skip
    return FlightColumns(ids, topics, np.full(n, 100, np.int32), np.ones(n, np.uint8), times, times, **values)


def parts_of(table: Path, write_id: WriteId, partitions: int) -> list[Part]:
    """One is staged, and the others are copies of its file under names of their own."""
    staging = Staging(str(table), {}, write_id, 0, 0)
    staging.check()
    staging.add_flights(flights(ROWS))
    (first,) = staging.close()
    found = [first]
    for number in range(1, partitions):
        path = f"{first.path.removesuffix('.parquet')}-{number}.parquet"
        shutil.copy(table / first.path, table / path)
        found.append(replace(first, path=path))
    return found


def measure(partitions: int) -> tuple[float, float, float, float]:
    """Processor seconds and seconds of a commit; bytes a partition of the reports and of the Delta log."""
    with TemporaryDirectory() as folder:
        table, write_id = Path(folder, "log"), WriteId("query", "run", 0, "nats")
        table.mkdir()
        commit(str(table), {}, WriteId("query", "run", -1, "nats"), [], app=("query", -1))  # the table is there
        parts = parts_of(table, write_id, partitions)
        reports = [PartitionReport(write_id, number, 0, parts=[part]) for number, part in enumerate(parts)]
        size = len(pickle.dumps(reports)) / partitions
        before, at = time.process_time(), time.monotonic()
        commit(str(table), {}, write_id, parts, app=("query", 0))
        spent, took = time.process_time() - before, time.monotonic() - at
        newest = max((table / "_delta_log").glob("*.json"))
        return spent, took, size, newest.stat().st_size / partitions


def size_of_a_million_rows() -> float:
    """Bytes in a flight log with the level ``outcomes``."""
    with TemporaryDirectory() as folder:
        staging = Staging(str(Path(folder, "log")), {}, WriteId("query", "run", 0, "nats"), 0, 0)
        staging.check()
        for seed in range(10):
            staging.add_flights(flights(100_000, seed))
        return float(sum(part.size for part in staging.close()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", default="1,10,100,1000,2000")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    print(f"a flight log grows by {size_of_a_million_rows() / 1e6:.1f} MB a million rows (flightLogLevel=outcomes)")
    print(f"{'partitions':>10}{'processor s':>14}{'seconds':>10}{'report bytes':>14}{'log bytes':>11}   a partition")
    for number in map(int, args.partitions.split(",")):
        rounds = [measure(number) for _ in range(args.rounds)]
        spent, took, size, log = (statistics.median(column) for column in zip(*rounds, strict=True))
        print(f"{number:10,}{spent:14.3f}{took:10.2f}{size:14.0f}{log:11.0f}", flush=True)


if __name__ == "__main__":
    main()
