"""The driver's commit of a flight log by number of micro-batches before it, of one part each, merged every hundred."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from . import grown_logs

TITLE = "Micro-batches, merged every hundred (`flightLogCompactEvery=100`)"
UNIT = "micro-batches"
SIZES = (1, 10, 100, 1_000, 10_000)
COLUMNS = {
    "commit_ms": "processor ms of the next commit", "checkpoint_s": "processor s of a checkpoint",
    "checkpoint_mb": "MB of it", "log_mb": "MB of the Delta log",
}  # fmt: skip
GROWS = "commit_ms"
MERGED = 100


def entries(first: list[dict[str, Any]], number: int) -> Iterator[list[dict[str, Any]]]:
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


def measure(number: int) -> dict[str, float]:
    with TemporaryDirectory() as folder:
        table = Path(folder, "log")
        grown_logs.append(table, entries(grown_logs.first_entry(table), number))
        found = grown_logs.cost(table)
        return {**found, "log_mb": sum(file.stat().st_size for file in (table / "_delta_log").iterdir()) / 1e6}
