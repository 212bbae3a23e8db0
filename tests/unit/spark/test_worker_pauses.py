"""What a worker of Spark that is used again visits when it collects its garbage, and when it acknowledges a command."""

from __future__ import annotations

import gc
import os
import pickle
import socket
import sys
import weakref
from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.spark import worker_pauses
from mama_spark.spark.discovery.data_source import changes_reader, image_reader
from mama_spark.spark.discovery.rows import SCHEMA
from mama_spark.spark.sink.data_source import batch_writer, stream_writer
from mama_spark.spark.subscribe.data_source import batch_reader, schema_for, stream_reader
from mama_spark.spark.worker_pauses import TaskObject, acknowledge_at_once, exempt_modules
from pyspark.sql.datasource import InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StringType, StructType

from tests.support.tables import each


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process takes itself for a worker of Spark."""
    monkeypatch.setattr(worker_pauses, "in_worker", lambda: True)
    monkeypatch.setattr(worker_pauses, "_last_count", 0)
    monkeypatch.setattr(worker_pauses, "_frozen_count", 0)
    monkeypatch.setattr(worker_pauses, "_connections", (0, ()))
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


def test_nothing_happens_in_a_process_of_its_own() -> None:
    for _ in range(3):
        exempt_modules()
    assert not gc.get_freeze_count()


@pytest.fixture
def connection() -> Iterator[socket.socket]:
    """The only TCP connection of this process, at the end that delays acknowledgements."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as jvm:
        end, _ = server.accept()
        with end:
            jvm.sendall(b"command")
            assert end.recv(100) == b"command"
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
            yield end


def acknowledges_at_once(end: socket.socket) -> bool:
    return bool(end.getsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK))


def objects_of_commands() -> list[TaskObject]:
    nats, schema = {"url": "nats://localhost"}, StructType().add("topic", StringType()).add("value", StringType())
    columns = from_arrow_schema(SCHEMA)
    of_stream, discovery = {**nats, "stream": "ORDERS"}, nats
    return [
        stream_writer(nats, schema, False),
        batch_writer(nats, schema, False),
        stream_reader(of_stream, schema_for(of_stream), 0, None),
        batch_reader(of_stream, schema_for(of_stream), 0, None),
        changes_reader(discovery, columns),
        image_reader(discovery, columns),
    ]


@pytest.mark.usefixtures("worker")
@pytest.mark.parametrize("which", range(6))
def test_command_is_acknowledged_when_it_arrives(which: int, connection: socket.socket) -> None:
    """Or the JVM would not send the first rows before the kernel's delay of 40 ms is over."""
    command = pickle.dumps(objects_of_commands()[which])
    for _ in range(2):  # also the command of the second task
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 0)
        pickle.loads(command)
        assert acknowledges_at_once(connection)


def test_other_processes_are_left_alone(connection: socket.socket) -> None:
    pickle.loads(pickle.dumps(objects_of_commands()[0]))
    assert not acknowledges_at_once(connection)


def test_connections_are_found_again_after_a_fork(connection: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_pauses, "_connections", (1, ()))
    acknowledge_at_once()
    assert acknowledges_at_once(connection)


def test_connection_that_was_closed_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as one:
        gone = one.fileno()
    monkeypatch.setattr(worker_pauses, "_connections", (os.getpid(), (gone,)))
    acknowledge_at_once()
