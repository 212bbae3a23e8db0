"""The driver's commit of a flight log by number of partitions: their reports are committed at once."""

from __future__ import annotations

import pickle
import shutil
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from mama_spark.flightlog.columns import FlightColumns
from mama_spark.flightlog.commit import commit
from mama_spark.flightlog.folder import WriteId
from mama_spark.flightlog.parts import Part
from mama_spark.flightlog.staging import Staging
from mama_spark.spark.sink.job import PartitionReport

TITLE = "Partition reports that are committed at once"
UNIT = "partitions"
SIZES = (1, 10, 100, 1_000, 2_000)
COLUMNS = {"commit_s": "processor s of the commit", "report": "bytes of a report", "entry": "bytes a part in the log"}
GROWS = "commit_s"
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


def staged(table: Path, write_id: WriteId, rows: int = ROWS) -> Part:
    """One part of a write."""
    staging = Staging(str(table), {}, write_id, 0, 0)
    staging.check()
    staging.add_flights(flights(rows))
    (part,) = staging.close()
    return part


def _parts(table: Path, write_id: WriteId, partitions: int) -> list[Part]:
    """One is staged, and the others are copies of its file under names of their own."""
    first = staged(table, write_id)
    found = [first]
    for number in range(1, partitions):
        path = f"{first.path.removesuffix('.parquet')}-{number}.parquet"
        shutil.copy(table / first.path, table / path)
        found.append(replace(first, path=path))
    return found


def measure(partitions: int) -> dict[str, float]:
    with TemporaryDirectory() as folder:
        table, write_id = Path(folder, "log"), WriteId("query", "run", 0, "nats")
        table.mkdir()
        commit(str(table), {}, WriteId("query", "run", -1, "nats"), [], app=("query", -1))  # the table is there
        parts = _parts(table, write_id, partitions)
        reports = [PartitionReport(write_id, number, 0, parts=[part]) for number, part in enumerate(parts)]
        size = len(pickle.dumps(reports)) / partitions
        before = time.process_time()
        commit(str(table), {}, write_id, parts, app=("query", 0))
        spent = time.process_time() - before
        newest = max((table / "_delta_log").glob("*.json"))
        return {"commit_s": spent, "report": size, "entry": newest.stat().st_size / partitions}
