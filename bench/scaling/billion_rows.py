"""The driver's commit of a flight log by its rows, as metadata: parts of 10,000 rows that nothing has merged."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from . import grown_logs

TITLE = "Rows of a flight log in parts of 10,000, not merged"
UNIT = "rows"
SIZES = (1_000_000, 10_000_000, 100_000_000, 1_000_000_000)
COLUMNS = {
    "files": "files", "commit_ms": "processor ms of the next commit", "checkpoint_s": "processor s of a checkpoint",
    "checkpoint_mb": "MB of it",
}  # fmt: skip
GROWS = "commit_ms"
PART, A_COMMIT = 10_000, 100


def _entries(first: list[dict[str, Any]], files: int) -> Iterator[list[dict[str, Any]]]:
    add = next(action["add"] for action in first if "add" in action)
    stats = add["stats"].replace('"numRecords":1000', f'"numRecords":{PART}').replace(" ", "")
    for begin in range(0, files, A_COMMIT):
        numbers = range(begin, min(files, begin + A_COMMIT))
        yield [{"add": {**add, "path": f"parts/query/{begin}/{n:032x}.parquet", "stats": stats}} for n in numbers]


def measure(rows: int) -> dict[str, float]:
    with TemporaryDirectory() as folder:
        table, files = Path(folder, "log"), rows // PART
        grown_logs.append(table, _entries(grown_logs.first_entry(table), files))
        return {"files": files, **grown_logs.cost(table)}
