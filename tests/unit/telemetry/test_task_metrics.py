"""What tasks export by OpenTelemetry is what happened to the messages that they publish or read."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from mama_spark.contracts.errors import ConfigError, OptionError
from mama_spark.contracts.message import MessageBatch
from mama_spark.mama.discovery.discovery_rows import BAD_RECORD, DiscoveryRow
from mama_spark.memory import MemoryBroker
from mama_spark.memory.logs import MemoryLogs
from mama_spark.options import DiscoveryOptions, SinkOptions
from mama_spark.packing.format import PACK, PACK_ROWS
from mama_spark.spark.discovery.data_source import _counted
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.query_progress import QueryProgress
from mama_spark.spark.sink.job import ColumnPlan, SinkJob, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition
from mama_spark.spark.subscribe.schema import SCHEMA
from mama_spark.telemetry import task_metrics
from mama_spark.telemetry.task_metrics import meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.support.tables import each

TASK = TaskInfo(0, 0, None, None, None, False, "app", "app-1")
READERS: list[InMemoryMetricReader] = []


def make_provider() -> MeterProvider:
    """Named by the option ``metrics``."""
    READERS.append(InMemoryMetricReader())
    return MeterProvider([READERS[-1]])


def not_a_provider() -> int:
    return 3


SETUP = f"{__name__}:make_provider"


@pytest.fixture(autouse=True)
def _anew() -> None:
    meter_provider.cache_clear()


def exported() -> dict[str, list[Any]]:
    data = READERS[-1].get_metrics_data()
    assert data is not None
    return {m.name: list(m.data.data_points) for r in data.resource_metrics for s in r.scope_metrics for m in s.metrics}


def test_counters_are_what_happened(broker: MemoryBroker, tmp_path: Path) -> None:
    given = {"url": f"memory://{broker.name}", "metrics": SETUP}
    o = SinkOptions.parse({**given, "onError": "log", "flightLog": str(tmp_path)})
    rows = [
        pa.record_batch({"topic": ["t.a"] * 500 + ["not a topic"] * 3, "value": [b"%d" % i for i in range(b, b + 503)]})
        for b in (0, 1000)
    ]
    plan = ColumnPlan("topic", (), "value", (), None, "", None, ())
    report = publish_partition(SinkJob(o, plan, False, "run", ()), TASK, iter(rows))
    assert (report.counts.acked, report.counts.failed) == (1000, 6)
    found = exported()
    totals = {name: sum(point.value for point in points) for name, points in found.items() if "latency" not in name}
    assert totals["mama.publisher.messages"] == 1006
    assert totals["mama.publisher.acknowledged"] == 1000
    assert totals["mama.publisher.failed"] == 6
    assert totals["mama.publisher.in_flight"] == 0
    assert {point.attributes["status"] for point in found["mama.publisher.failed"]} == {"BAD_SYMBOL"}
    [latency] = found["mama.publisher.latency"]
    assert 0 < latency.count <= 2 * 16


def test_off_loads_nothing() -> None:
    assert SinkOptions.parse({"url": "memory://a"}).metrics == "off"


@each("text", ["on", "module", "a b:c", ":f", "m:"])
def test_a_wrong_setup_is_an_error_of_the_option(text: str) -> None:
    with pytest.raises(OptionError, match="option metrics must be off, otel or module:function"):
        SinkOptions.parse({"url": "memory://a", "metrics": text})


@each(
    ("setup", "text"),
    [
        ("no_such_module:f", "cannot be called on an executor: No module named 'no_such_module'"),
        (f"{__name__}:nothing", "cannot be called on an executor"),
        (f"{__name__}:not_a_provider", "must return a MeterProvider, and returned 3"),
    ],
)
def test_a_setup_that_is_not_there_says_so(setup: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        meter_provider(setup)


def test_without_opentelemetry_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"pip install 'mama-spark\[otel\]'"):
        task_metrics.meter_provider("otel")


def test_progress_of_queries_is_logged_and_exported(caplog: pytest.LogCaptureFixture) -> None:
    class Progress:
        """As Spark's, of one micro-batch."""

        name, id, batchId, numInputRows, processedRowsPerSecond, batchDuration = "audit", "q", 3, 1200, 600.0, 2000

        class _Source:
            """Of mamasub."""

            endOffset = '{"ORDERS": {"next": 11, "identity": "i"}}'
            latestOffset = '{"ORDERS": {"next": 51, "identity": "i"}}'

        sources = (_Source,)

    class Event:
        """Of Spark's listener bus."""

        progress = Progress

    listener = QueryProgress(SETUP)
    with caplog.at_level("INFO", "mama_spark"):
        listener.onQueryProgress(Event)
    assert caplog.messages == ["query audit, batch 3: 1,200 rows, 600 rows/s, 2.0 s; ORDERS 40 behind"]
    data = READERS[-1].get_metrics_data()
    assert data is not None
    shown = data.to_json()
    assert '"mama.query.rows"' in shown
    assert '"value": 1200' in shown
    assert '"value": 40' in shown


# --- reading tasks ----------------------------------------------------------------------------------------------------


@pytest.fixture
def log() -> Iterator[str]:
    """Ten messages of five bytes, of which one says that it is a pack, and is none."""
    name = uuid4().hex
    headers = [None] * 9 + [{PACK: ["lines"], PACK_ROWS: ["2"]}]
    MemoryLogs(name).log(name).append(MessageBatch.of(["t.a"] * 10, [b"12345"] * 10, headers=headers))
    yield name
    MemoryBroker.forget(name)


def single() -> dict[str, Any]:
    """The only data point of each instrument."""
    return {name: point for name, (point,) in exported().items()}


def read(name: str, **options: str) -> int:
    given = {"url": f"memory://{name}", "topics": "t.>", "metrics": SETUP, **options}
    reader = MamaSubDataSource(given).reader(SCHEMA)
    return sum(made.num_rows for task in reader.partitions() for made in reader.read(task))


def test_messages_bytes_rows_and_what_cannot_be_decoded_are_counted(log: str) -> None:
    assert read(log, minPartitions="1") == 10
    found = single()
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
    assert single()["mama.reader.connection.losses"].value >= 1


def test_events_of_discovery_are_counted() -> None:
    o = DiscoveryOptions.parse({"url": "nats://127.0.0.1:1", "metrics": SETUP})
    rows = [DiscoveryRow("source", "online"), DiscoveryRow("source", BAD_RECORD)]
    assert sum(made.num_rows for made in _counted(o, rows)) == 2
    found = single()
    assert (found["mama.reader.rows"].value, found["mama.reader.undecodable"].value) == (2, 1)
    assert found["mama.reader.rows"].attributes["format"] == "mamadiscovery"
