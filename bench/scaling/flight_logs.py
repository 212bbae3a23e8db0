"""The driver's commit of a flight log: by partitions, and by what the log has from before."""

from __future__ import annotations

import json
import pickle
import shutil
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
from deltalake import DeltaTable
from mama_spark.flightlog.columns import FlightColumns
from mama_spark.flightlog.commit import commit
from mama_spark.flightlog.folder import WriteId
from mama_spark.flightlog.parts import Part
from mama_spark.flightlog.staging import Staging
from mama_spark.spark.sink.job import PartitionReport

COMMITS = 20  #: whose median is told
MERGED = 100  #: micro-batches
PART, A_COMMIT = 10_000, 100
PORTION = 100_000


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


def staged(table: Path, write_id: WriteId, rows: int = 1_000) -> Part:
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


def partition_reports(partitions: int) -> dict[str, float]:
    """The driver's commit of a flight log by number of partitions: their reports are committed at once."""
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


def first_entry(table: Path) -> list[dict[str, Any]]:
    """Makes the table, with one commit of one part; the actions of this commit."""
    write_id = WriteId("query", "run", 0, "nats")
    table.mkdir()
    commit(str(table), {}, write_id, [staged(table, write_id)], app=("query", 0))
    return [json.loads(line) for line in (table / "_delta_log" / f"{1:020d}.json").read_text().splitlines()]


def append(table: Path, entries: Iterator[list[dict[str, Any]]]) -> None:
    """One entry after the other, from version 2 on."""
    for version, actions in enumerate(entries, 2):
        text = "\n".join(json.dumps(action, separators=(",", ":")) for action in actions)
        (table / "_delta_log" / f"{version:020d}.json").write_text(text)


def cost(table: Path) -> dict[str, float]:
    """Of a checkpoint, and of a commit after it: the median of :data:`COMMITS`."""
    log = DeltaTable(str(table))
    before = time.process_time()
    log.create_checkpoint()
    written = time.process_time() - before
    size = sum(file.stat().st_size for file in (table / "_delta_log").glob("*.checkpoint*.parquet"))
    spent = []
    for number in range(COMMITS):
        write_id = WriteId("later", "run", number, "nats")
        parts = [staged(table, write_id)]
        before = time.process_time()
        commit(str(table), {}, write_id, parts, app=("later", number))
        spent.append(time.process_time() - before)
    return {"commit_ms": 1e3 * statistics.median(spent), "checkpoint_s": written, "checkpoint_mb": size / 1e6}


def _merged_entries(first: list[dict[str, Any]], number: int) -> Iterator[list[dict[str, Any]]]:
    """Of the commits after the first one, and of those that merge."""
    add = next(action["add"] for action in first if "add" in action)
    waiting = [add]
    for batch in range(1, number):
        own = {**add, "path": add["path"].replace("query/0/", f"query/{batch}/")}
        yield [_own(action, batch, own) for action in first]
        waiting.append(own)
        if len(waiting) == MERGED:
            merged = {**add, "path": add["path"].replace("query/0/", f"merged/{batch}/"), "dataChange": False}
            yield [{"add": merged}, *({"remove": _removal(one)} for one in waiting)]
            waiting = []


def _own(action: dict[str, Any], batch: int, add: dict[str, Any]) -> dict[str, Any]:
    if "add" in action:
        return {"add": add}
    return {"txn": {**action["txn"], "version": batch}} if "txn" in action else action


def _removal(add: dict[str, Any]) -> dict[str, Any]:
    kept = {name: add[name] for name in ("path", "partitionValues", "size")}
    return {**kept, "deletionTimestamp": add["modificationTime"], "dataChange": False, "extendedFileMetadata": True}


def micro_batches(number: int) -> dict[str, float]:
    """The commit by number of micro-batches before it, of one part each, merged every hundred."""
    with TemporaryDirectory() as folder:
        table = Path(folder, "log")
        append(table, _merged_entries(first_entry(table), number))
        found = cost(table)
        return {**found, "log_mb": sum(file.stat().st_size for file in (table / "_delta_log").iterdir()) / 1e6}


def _part_entries(first: list[dict[str, Any]], files: int) -> Iterator[list[dict[str, Any]]]:
    add = next(action["add"] for action in first if "add" in action)
    stats = add["stats"].replace('"numRecords":1000', f'"numRecords":{PART}').replace(" ", "")
    for begin in range(0, files, A_COMMIT):
        numbers = range(begin, min(files, begin + A_COMMIT))
        yield [{"add": {**add, "path": f"parts/query/{begin}/{n:032x}.parquet", "stats": stats}} for n in numbers]


def billion_rows(rows: int) -> dict[str, float]:
    """The driver's commit of a flight log by its rows, as metadata: parts of 10,000 rows that nothing has merged."""
    with TemporaryDirectory() as folder:
        table, files = Path(folder, "log"), rows // PART
        append(table, _part_entries(first_entry(table), files))
        return {"files": files, **cost(table)}


def flight_log_rows(rows: int) -> dict[str, float]:
    """Bytes of a flight log by its rows (``flightLogLevel=outcomes``), as one task writes them."""
    with TemporaryDirectory() as folder:
        staging = Staging(str(Path(folder, "log")), {}, WriteId("query", "run", 0, "nats"), 0, 0)
        staging.check()
        portions = [flights(min(PORTION, rows - first), first) for first in range(0, rows, PORTION)]
        before = time.process_time()
        for portion in portions:
            staging.add_flights(portion)
        size = sum(part.size for part in staging.close())
        return {"log_mb": size / 1e6, "row": size / rows, "write_s": time.process_time() - before}
