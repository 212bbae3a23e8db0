"""How many tasks read: as many as the cluster runs at once, where it is known."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from mama_spark.contracts.errors import OptionError
from mama_spark.contracts.message import MessageBatch
from mama_spark.memory import MemoryBroker
from mama_spark.memory.logs import MemoryLogs
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.register import sized_for
from mama_spark.spark.subscribe import task_ranges
from mama_spark.spark.subscribe.data_source import MamaSubReader
from pyspark import cloudpickle

SEQUENCES = 64


@pytest.fixture
def url(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A log in memory with as many records as make many tasks."""
    name = uuid4().hex
    MemoryLogs(name).log(name).append(MessageBatch.of(["orders.a"] * SEQUENCES, [b""] * SEQUENCES))
    monkeypatch.setattr(task_ranges, "MIN_TASK_ROWS", 1)
    yield f"memory://{name}"
    MemoryBroker.forget(name)


def piped(what: Any) -> Any:
    """``what`` in another process."""
    return cloudpickle.loads(cloudpickle.dumps(what))  # type: ignore[no-untyped-call]


def tasks(source: type[MamaSubDataSource], url: str, **options: str) -> int:
    """As Spark does: the class is pickled where it is registered, and used in other processes."""
    there: type[MamaSubDataSource] = piped(source)
    made = piped(there({"url": url, "topics": "orders.>", **options}))
    reader: MamaSubReader = made.reader(made.schema())
    return len(reader.partitions())


def test_a_registered_class_knows_the_size_of_the_cluster(url: str) -> None:
    cores = len(os.sched_getaffinity(0))
    assert tasks(MamaSubDataSource, url) == min(cores, SEQUENCES)
    registered: type[MamaSubDataSource] = sized_for(MamaSubDataSource, 24)  # type: ignore[assignment]
    assert tasks(registered, url) == 24
    assert tasks(registered, url, parallelism="7") == 7
    assert tasks(registered, url, minPartitions="9") == 9
    assert registered.name() == "mamasub"


def test_a_stream_reads_with_as_many_tasks(url: str) -> None:
    registered = sized_for(MamaSubDataSource, 24)
    made = piped(registered)({"url": url, "topics": "orders.>"})
    reader = made.streamReader(made.schema())
    start = reader.initialOffset()
    assert len(reader.partitions(start, reader.latestOffset(start, reader.getDefaultReadLimit()))) == 24


def test_parallelism_beside_min_partitions_has_no_effect_and_is_refused(url: str) -> None:
    with pytest.raises(OptionError, match="option parallelism has no effect with minPartitions"):
        tasks(MamaSubDataSource, url, parallelism="7", minPartitions="9")
