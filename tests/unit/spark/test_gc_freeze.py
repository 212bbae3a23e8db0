"""What a worker of Spark that is used again visits when it collects its garbage."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.spark import gc_freeze
from mama_spark.spark.gc_freeze import exempt_modules
from mama_spark.spark.sink.data_source import stream_writer
from mama_spark.spark.subscribe.data_source import schema_for, stream_reader
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StringType, StructType

from tests.support.tables import each


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    """Nothing is exempted when a test begins; `tests.support.memory` exempts what files before have left."""
    gc.unfreeze()
    yield
    gc.unfreeze()


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process takes itself for a worker of Spark."""
    monkeypatch.setattr(gc_freeze, "in_worker", lambda: True)
    monkeypatch.setattr(gc_freeze, "_last_count", 0)
    monkeypatch.setattr(gc_freeze, "_frozen_count", 0)


GIVEN = {"url": "nats://localhost", "gcFreeze": "true"}
COLUMNS = StructType().add("topic", StringType()).add("value", StringType())


def plan() -> None:
    stream_writer(GIVEN, COLUMNS, False)


def write() -> None:
    writer = stream_writer(GIVEN, COLUMNS, False)
    with pytest.raises(ConfigError, match="inside Spark tasks only"):
        writer.write(iter([]))


def read() -> None:
    given = {**GIVEN, "stream": "ORDERS"}
    assert not list(stream_reader(given, schema_for(given), 0, None).read(InputPartition(0)))


def is_visited(something: object) -> bool:
    """Whether a collection visits it: what is exempted is in no generation.

    The count of exempted objects shows less: it falls when any of them ends, as objects of other threads do.
    """
    return any(one is something for one in gc.get_objects())


@pytest.mark.usefixtures("worker")
@each("work", [plan, write, read])
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
    assert gc.get_freeze_count()
    later = [object]
    exempt_modules()
    assert is_visited(later)
    monkeypatch.setitem(sys.modules, "new_module_4", ModuleType("new_module_4"))
    for _ in range(2):
        exempt_modules()
    assert not is_visited(later)


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


def test_nothing_is_exempted_in_a_process_of_its_own_or_unless_it_is_asked_for(request: pytest.FixtureRequest) -> None:
    for _ in range(3):
        exempt_modules()
    assert not gc.get_freeze_count()
    request.getfixturevalue("worker")
    for _ in range(3):
        stream_writer({"url": "nats://localhost"}, COLUMNS, False)
    assert not gc.get_freeze_count()
