"""What a worker of Spark that is used again visits when it collects its garbage."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
from mama_spark.errors import ConfigError
from mama_spark.spark import worker_pauses
from mama_spark.spark.sink.data_source import stream_writer
from mama_spark.spark.subscribe.data_source import schema_for, stream_reader
from mama_spark.spark.worker_pauses import exempt_modules
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StringType, StructType


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process takes itself for a worker of Spark."""
    monkeypatch.setattr(worker_pauses, "in_worker", lambda: True)
    monkeypatch.setattr(worker_pauses, "_last_count", 0)
    monkeypatch.setattr(worker_pauses, "_frozen_count", 0)
    yield
    gc.unfreeze()


def plan() -> None:
    stream_writer(
        {"url": "nats://localhost"}, StructType().add("topic", StringType()).add("value", StringType()), False
    )


def write() -> None:
    given = {"url": "nats://localhost"}
    writer = stream_writer(given, StructType().add("topic", StringType()).add("value", StringType()), False)
    with pytest.raises(ConfigError, match="inside Spark tasks only"):
        writer.write(iter([]))


def read() -> None:
    given = {"url": "nats://localhost", "stream": "ORDERS"}
    assert not list(stream_reader(given, schema_for(given), 0, None).read(InputPartition(0)))


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("work", [plan, write, read])
def test_modules_are_exempted_when_work_is_repeated(work: Callable[[], None]) -> None:
    for _ in range(3):
        work()
    assert gc.get_freeze_count() > 1_000


@pytest.mark.usefixtures("worker")
def test_nothing_is_exempted_while_modules_come(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("new_module_1", "new_module_2", "new_module_3"):
        exempt_modules()
        assert not gc.get_freeze_count()
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for _ in range(2):
        exempt_modules()
    before = gc.get_freeze_count()
    assert before
    kept = [[number] for number in range(1_000)]
    exempt_modules()
    assert gc.get_freeze_count() == before
    assert len(kept) == 1_000
    monkeypatch.setitem(sys.modules, "new_module_4", ModuleType("new_module_4"))
    for _ in range(2):
        exempt_modules()
    assert gc.get_freeze_count() > before


@pytest.mark.usefixtures("worker")
def test_what_comes_later_is_collected() -> None:
    for _ in range(2):
        exempt_modules()
    cycle = ModuleType("cycle")
    cycle.itself = cycle  # type: ignore[attr-defined]
    gone = weakref.ref(cycle)
    del cycle
    gc.collect()
    assert gone() is None


def test_nothing_happens_in_a_process_of_its_own() -> None:
    for _ in range(3):
        exempt_modules()
    assert not gc.get_freeze_count()
