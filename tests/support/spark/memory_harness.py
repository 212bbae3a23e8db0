"""The sink and the readers without Spark: one partition to a broker in memory, and a log in memory that is read."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import Bounds
from mama_spark.memory import MemoryBroker
from mama_spark.memory.logs import MemoryLog, MemoryLogs
from mama_spark.options import SinkOptions
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.sink.job import ColumnPlan, PartitionReport, SinkJob, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition
from mama_spark.spark.subscribe.offsets import Loss, Offsets, reconcile

PLAN = ColumnPlan("topic", (), "value", (), None, "", None, ())
TASK = TaskInfo(0, 0, None, None, None, False)


def job(
    broker: MemoryBroker,
    log: Path | None,
    plan: ColumnPlan = PLAN,
    /,
    *,
    run: str = "run",
    fields: Sequence[pa.Field] = (),
    **options: str,
) -> SinkJob:
    given = {"url": f"memory://{broker.name}", **({} if log is None else {"flightLog": str(log)}), **options}
    return SinkJob(SinkOptions.parse(given), plan, False, run, tuple(fields))


def reconciled(
    start: Offsets, bounds: Mapping[str, Bounds], replacing: Collection[str] = ()
) -> tuple[Offsets, list[Loss]]:
    """``reconcile`` of positions whose times are not known, so that no log is asked."""
    resumed = {s: p.resume(partial(MemoryLogs("").log, s), bounds[s]) for s, p in start.items() if s in bounds}
    return reconcile(start, bounds, resumed, replacing)


def publish(one: SinkJob, rows: Iterable[pa.RecordBatch], task: TaskInfo = TASK) -> PartitionReport:
    return publish_partition(one, task, iter(rows))


def logged(folder: Path) -> list[dict[str, Any]]:
    """All rows of the parts of a table."""
    return [row for part in folder.rglob("*.parquet") for row in pq.read_table(part).to_pylist()]


def flights(folder: Path) -> list[dict[str, Any]]:
    """Those of them that are of flights."""
    return [row for row in logged(folder) if row.get("kind", "flight") == "flight"]


class FilledLog:
    """A log in memory."""

    def __init__(self, name: str) -> None:
        self.name, self.rows = name, 0

    @property
    def log(self) -> MemoryLog:
        return MemoryLogs(self.name).log(self.name)

    def append(
        self, payloads: list[bytes], topic: str = "orders.a", headers: dict[str, list[str]] | None = None
    ) -> None:
        n = len(payloads)
        self.log.append(MessageBatch.of([topic] * n, payloads, None if headers is None else [headers] * n))

    def put(self, n: int, topic: str = "orders.a") -> None:
        """Different messages."""
        self.append([f"{i}".encode() for i in range(self.rows + 1, self.rows + n + 1)], topic)
        self.rows += n

    def source(self, **options: str) -> MamaSubDataSource:
        return MamaSubDataSource({"url": f"memory://{self.name}", "topics": "orders.>", **options})
