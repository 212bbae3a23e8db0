"""What a reading task exports by OpenTelemetry is what it read."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest
from mama_spark.contracts.message import MessageBatch
from mama_spark.mama.discovery.discovery_rows import BAD_RECORD, DiscoveryRow
from mama_spark.memory import MemoryBroker
from mama_spark.memory.logs import MemoryLogs
from mama_spark.options import DiscoveryOptions
from mama_spark.packing.format import PACK, PACK_ROWS
from mama_spark.spark.discovery.data_source import _counted
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.subscribe.schema import SCHEMA
from mama_spark.telemetry.provider import meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

READERS: list[InMemoryMetricReader] = []


def make_provider() -> MeterProvider:
    """Named by the option ``metrics``."""
    READERS.append(InMemoryMetricReader())
    return MeterProvider([READERS[-1]])


SETUP = f"{__name__}:make_provider"


@pytest.fixture
def log() -> Iterator[str]:
    """Ten messages of five octets, of which one says that it is a pack, and is none."""
    meter_provider.cache_clear()
    name = uuid4().hex
    headers = [None] * 9 + [{PACK: ["lines"], PACK_ROWS: ["2"]}]
    MemoryLogs(name).log(name).append(MessageBatch.of(["t.a"] * 10, [b"12345"] * 10, headers=headers))
    yield name
    MemoryBroker.forget(name)


def exported() -> dict[str, Any]:
    """The only data point of each instrument."""
    data = READERS[-1].get_metrics_data()
    assert data is not None
    points = {
        m.name: list(m.data.data_points) for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics
    }
    assert all(len(found) == 1 for found in points.values())
    return {name: found[0] for name, found in points.items()}


def read(name: str, **options: str) -> int:
    given = {"url": f"memory://{name}", "topics": "t.>", "metrics": SETUP, **options}
    reader = MamaSubDataSource(given).reader(SCHEMA)
    return sum(made.num_rows for task in reader.partitions() for made in reader.read(task))


def test_messages_octets_rows_and_what_cannot_be_decoded_are_counted(log: str) -> None:
    assert read(log, minPartitions="1") == 10
    found = exported()
    counted = {name.removeprefix("mama.reader."): p.value for name, p in found.items() if hasattr(p, "value")}
    assert counted == {"messages": 10, "payload": 50, "rows": 10, "undecodable": 1, "connection.losses": 0}
    assert found["mama.reader.messages"].attributes == {"format": "mamasub", "bridge": "memory", "stream": log}
    assert 0 <= found["mama.reader.delay"].sum < 60
    assert found["mama.reader.fetch.duration"].count == 1


def test_an_outage_is_a_lost_connection(log: str) -> None:
    reader = MamaSubDataSource({"url": f"memory://{log}", "topics": "t.>", "metrics": SETUP}).reader(SCHEMA)
    [task] = reader.partitions()
    memory = MemoryBroker.get(log)
    memory.up = False
    threading.Timer(0.2, setattr, (memory, "up", True)).start()
    assert sum(made.num_rows for made in reader.read(task)) == 10
    assert exported()["mama.reader.connection.losses"].value >= 1


def test_events_of_discovery_are_counted() -> None:
    meter_provider.cache_clear()
    o = DiscoveryOptions.parse({"url": "nats://127.0.0.1:1", "metrics": SETUP})
    rows = [DiscoveryRow("source", "online"), DiscoveryRow("source", BAD_RECORD)]
    assert sum(made.num_rows for made in _counted(o, rows)) == 2
    found = exported()
    assert (found["mama.reader.rows"].value, found["mama.reader.undecodable"].value) == (2, 1)
    assert found["mama.reader.rows"].attributes["format"] == "mamadiscovery"
