"""What a partition exports by OpenTelemetry is what happened to its messages."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest
from mama_spark.contracts.errors import ConfigError, OptionError
from mama_spark.memory.broker import MemoryBroker
from mama_spark.options import SinkOptions
from mama_spark.spark.query_progress import QueryProgress
from mama_spark.spark.sink.job import ColumnPlan, SinkJob, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition
from mama_spark.telemetry import provider as provider_module
from mama_spark.telemetry.provider import meter_provider
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from tests.support.tables import each

READER = InMemoryMetricReader()
TASK = TaskInfo(0, 0, None, None, None, False, "app", "app-1")


def make_provider() -> MeterProvider:
    """Named by the option ``metrics``."""
    return MeterProvider([READER])


def not_a_provider() -> int:
    return 3


@pytest.fixture
def broker() -> Iterator[MemoryBroker]:
    meter_provider.cache_clear()
    name = uuid4().hex
    yield MemoryBroker.get(name)
    MemoryBroker.forget(name)


def exported() -> dict[str, list[Any]]:
    data = READER.get_metrics_data()
    assert data is not None
    return {
        metric.name: list(metric.data.data_points)
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }


def test_counters_are_what_happened(broker: MemoryBroker, tmp_path: Path) -> None:
    given = {"url": f"memory://{broker.name}", "metrics": f"{__name__}:make_provider"}
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
    meter_provider.cache_clear()
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"pip install 'mama-spark\[otel\]'"):
        provider_module.meter_provider("otel")


def test_progress_of_queries_is_logged_and_exported(caplog: pytest.LogCaptureFixture) -> None:
    meter_provider.cache_clear()

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

    listener = QueryProgress(f"{__name__}:make_again")
    with caplog.at_level("INFO", "mama_spark"):
        listener.onQueryProgress(Event)
    assert caplog.messages == ["query audit, batch 3: 1,200 rows, 600 rows/s, 2.0 s; ORDERS 40 behind"]
    data = AGAIN.get_metrics_data()
    assert data is not None
    shown = data.to_json()
    assert '"mama.query.rows"' in shown
    assert '"value": 1200' in shown
    assert '"value": 40' in shown


AGAIN = InMemoryMetricReader()


def make_again() -> MeterProvider:
    return MeterProvider([AGAIN])
