"""Flight logs that have become long: the entries of the Delta log, without the files that they name."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from deltalake import DeltaTable
from mama_spark.flightlog.commit import commit
from mama_spark.flightlog.folder import WriteId

from .partition_reports import staged

COMMITS = 20


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
