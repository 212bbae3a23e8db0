"""One partition's write without a JVM, against the in-memory broker."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pyarrow as pa
import pytest
from mama_spark.bridges.memory import MemoryBroker
from mama_spark.errors import Unavailable
from mama_spark.flightlog.columns import FlightColumns
from mama_spark.flightlog.staging import Staging
from mama_spark.options import SinkOptions
from mama_spark.spark.columns import ColumnPlan
from mama_spark.spark.task import PartitionReport, SinkJob, TaskFacts, publish_partition

PLAN = ColumnPlan("topic", (), "value", (), None, "", None, ())
FACTS = TaskFacts(0, 0, None, None, None, False)


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    name = uuid4().hex
    yield MemoryBroker.get(name)
    MemoryBroker.forget(name)


def batches(n: int) -> Iterator[pa.RecordBatch]:
    for b in range(n):
        values = [b"%d-%d" % (b, i) for i in range(500)]
        yield pa.record_batch({"topic": [f"t.{i % 7}" for i in range(500)], "value": values})


def publish(
    broker: MemoryBroker, log: Path, rows: Iterator[pa.RecordBatch], options: dict[str, str]
) -> PartitionReport:
    given = {"url": f"memory://{broker.name}", "flightLog": str(log), **options}
    return publish_partition(SinkJob(SinkOptions.parse(given), PLAN, False, "run", ()), FACTS, rows)


def test_a_partition_reports_counts_and_parts(broker: MemoryBroker, tmp_path: Path) -> None:
    report = publish(broker, tmp_path / "log", batches(8), {})
    assert (report.tally.rows, report.tally.acked, report.fatal) == (4000, 4000, None)
    assert sum(part.counts["acked"] for part in report.parts) == 4000
    assert len(broker.messages()) == 4000


@pytest.mark.parametrize("options", [{}, {"onError": "deadletter", "deadLetterTopic": "dead"}], ids=["fail", "dead"])
def test_storage_that_fails_at_the_end_leaves_no_one_waiting(
    broker: MemoryBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str]
) -> None:
    """The log fails when all rows were handed over and several blocks are still to be told."""
    logging, handed_over = threading.Event(), threading.Event()

    def refuse(_: Staging, __: FlightColumns) -> None:
        logging.set()
        handed_over.wait(60)
        raise Unavailable("the disk is gone")

    def rows() -> Iterator[pa.RecordBatch]:
        for i, batch in enumerate(batches(3)):
            yield batch
            if i == 0:
                assert logging.wait(60)
        handed_over.set()

    monkeypatch.setattr(Staging, "flights", refuse)
    with pytest.raises(Unavailable, match="the disk is gone"):
        publish(broker, tmp_path / "log", rows(), options)
