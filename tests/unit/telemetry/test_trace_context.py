"""W3C trace context in the headers of messages: put in by mamapub, taken out by mamasub, and of no influence else."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any
from uuid import uuid4

import mama_spark
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import ConfigError, OptionError, SchemaError
from mama_spark.contracts.message import MessageBatch
from mama_spark.memory.broker import MemoryBroker
from mama_spark.options import SinkOptions
from mama_spark.options.values import is_traceparent
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.sink.encoding.columns import plan_columns
from mama_spark.spark.sink.encoding.headers import with_trace_headers
from mama_spark.spark.sink.job import ColumnPlan, PartitionReport, SinkJob, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition
from mama_spark.spark.trace_column import valid_traces
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pyspark.sql.types import IntegerType, StringType, StructField, StructType

from tests.support.tables import each

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT, OTHER = f"00-{TRACE}-{SPAN}-01", f"00-{TRACE[::-1]}-{SPAN[::-1]}-00"
TASK = TaskInfo(0, 0, None, None, None, False, "app", "app-1")
PLAN = ColumnPlan("topic", (), "value", (), None, "", None, ())
Headers = dict[str, list[str]]

# --- what is valid, and how it becomes a header -------------------------------------------------------------------


@each(
    ("text", "valid"),
    [
        (PARENT, True),
        (OTHER, True),
        (PARENT.replace("00-", "01-", 1), True),
        (PARENT.replace("00-", "01-", 1) + "-more", True),
        (PARENT + "-more", False),
        (PARENT + "-", False),
        (PARENT.replace("00-", "ff-", 1), False),
        (PARENT.upper(), False),
        (f"00-{'0' * 32}-{SPAN}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (PARENT[:-1], False),
        ("", False),
        ("a\r\nNats-Msg-Id: 7", False),
    ],
)
def test_validity_is_that_of_w3c(text: str, valid: bool) -> None:
    assert is_traceparent(text) == valid
    assert valid_traces(pa.array([text, None, PARENT])).to_pylist() == [text if valid else None, None, PARENT]


def headers_of(batch: MessageBatch) -> list[Headers]:
    if batch.headers is None:
        return [{}] * len(batch)
    return [dict(one or []) for one in batch.headers.to_pylist()]


@given(
    st.lists(
        st.tuples(
            st.none() | st.dictionaries(st.sampled_from(["a", "Traceparent"]), st.lists(st.text("xyz"), max_size=3)),
            st.sampled_from([None, PARENT, OTHER]),
        ),
        max_size=8,
    ),
    st.integers(0, 3), st.integers(0, 3), st.booleans(),
)  # fmt: skip
def test_other_headers_stay_and_an_own_one_wins(
    messages: list[tuple[Headers | None, str | None]], start: int, less: int, each: bool
) -> None:
    batch = MessageBatch.of(["t"] * len(messages), [b"x"] * len(messages), [headers for headers, _ in messages])
    batch = replace(batch, traces=pa.array([text for _, text in messages], pa.string()) if each else None)
    left = max(0, len(messages) - start - less)
    batch, messages = batch.slice(start, left), messages[start : start + left]
    found = with_trace_headers(batch, None if each else PARENT, None, 1 << 20)
    expected = []
    for headers, text in messages:
        value = text if each else PARENT
        new = {} if value is None or "Traceparent" in (headers or {}) else {"traceparent": [value]}
        expected.append({**(headers or {}), **new})
    assert headers_of(found) == expected
    assert found.traces is None


def test_a_message_without_room_stays_without() -> None:
    payloads, headers = [b"x" * 700, b"x" * 500, b"x" * 500], [{"h": ["v"]}, {"h": ["v"]}, {"h": ["v" * 200]}]
    batch = MessageBatch.of(["t"] * 3, payloads, headers)  # type: ignore[arg-type]
    found = with_trace_headers(batch, PARENT, "a=b", 1000)
    assert [list(one) for one in headers_of(found)] == [["h"], ["h", "traceparent", "tracestate"], ["h"]]
    plain = with_trace_headers(replace(batch, headers=None), PARENT, None, 1000)
    assert [list(one) for one in headers_of(plain)] == [[], ["traceparent"], ["traceparent"]]


# --- a partition --------------------------------------------------------------------------------------------------


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> InMemorySpanExporter:
    """Spans that the tracer provider of this process exports."""
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    return exporter


def publish(broker: MemoryBroker, plan: ColumnPlan = PLAN, n: int = 3, **given: str) -> PartitionReport:
    o = SinkOptions.parse({"url": f"memory://{broker.name}", "idPrefix": "p", **given})
    columns = {"topic": ["t.a"] * n, "value": [b"%d" % i for i in range(n)]}
    if plan.trace is not None:
        columns["trace"] = [PARENT, "nonsense", None][:n]
    rows = pa.record_batch(columns)
    return publish_partition(SinkJob(o, plan, False, "run", ()), TASK, iter([rows]))


def stored(broker: MemoryBroker) -> list[tuple[str | None, bytes, Headers]]:
    """Id, payload and headers."""
    reader = MamaSubDataSource({"url": f"memory://{broker.name}", "topics": ">", "unpack": "false"})
    batch = reader.reader(reader.schema())
    rows = [row for task in batch.partitions() for made in batch.read(task) for row in made.to_pylist()]
    return [(row["id"], row["value"], dict(row["headers"] or [])) for row in rows]


def test_messages_of_a_partition_carry_the_context_of_its_span(
    broker: MemoryBroker, spans: InMemorySpanExporter
) -> None:
    assert publish(broker, traceContext=PARENT).counts.acked == 3
    [span] = spans.get_finished_spans()
    assert span.context is not None
    assert span.parent is not None
    assert (f"{span.context.trace_id:032x}", f"{span.parent.span_id:016x}") == (TRACE, SPAN)
    header = f"00-{TRACE}-{span.context.span_id:016x}-01"
    assert [headers["traceparent"] for _, _, headers in stored(broker)] == [[header]] * 3


def test_without_a_tracer_provider_the_trace_of_the_driver_travels_on(broker: MemoryBroker) -> None:
    assert publish(broker, traceContext=PARENT).counts.acked == 3
    assert [headers for _, _, headers in stored(broker)] == [{"traceparent": [PARENT]}] * 3


def test_the_environment_names_the_parent(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEPARENT", OTHER)
    monkeypatch.setenv("TRACESTATE", "a=b")
    publish(broker, traceContext="true")
    assert stored(broker)[0][2] == {"traceparent": [OTHER], "tracestate": ["a=b"]}


def test_each_row_has_its_own_and_an_invalid_one_is_ignored(broker: MemoryBroker) -> None:
    assert publish(broker, replace(PLAN, trace="trace"), traceContext="trace").counts.acked == 3
    assert [headers.get("traceparent") for _, _, headers in stored(broker)] == [[PARENT], None, None]


@each("pack", ["off", "lines", "arrow"])
def test_ids_payloads_and_cuts_do_not_depend_on_it(pack: str) -> None:
    found = []
    for traced in ("off", PARENT, OTHER):
        broker = MemoryBroker.get(uuid4().hex)
        options = {"pack": pack, **({} if pack == "off" else {"packMaxRows": "40"}), "traceContext": traced}
        assert publish(broker, PLAN, 100, **options).counts.acked == 100
        messages = stored(broker)
        assert all(("traceparent" in headers) == (traced != "off") for _, _, headers in messages)
        found.append([
            (id, payload, {name: v for name, v in headers.items() if name != "traceparent"})
            for id, payload, headers in messages
        ])  # fmt: skip
        MemoryBroker.forget(broker.name)
    assert found[0] == found[1] == found[2]
    assert len(found[0]) == (100 if pack == "off" else 3)


def test_a_trace_that_is_not_there_is_said(broker: MemoryBroker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRACEPARENT", raising=False)
    assert "option traceContext=true finds no trace" in (publish(broker, traceContext="true").fatal or "")
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    assert "pip install 'mama-spark[otel]'" in (publish(broker, traceContext="true").fatal or "")


def test_options_and_columns_that_do_not_fit_are_refused() -> None:
    fields = [StructField("topic", StringType()), StructField("value", StringType()), StructField("n", IntegerType())]
    with pytest.raises(OptionError, match="a packed message of several rows has one header"):
        SinkOptions.parse({"url": "memory://a", "traceContext": "trace", "pack": "lines"})
    o = SinkOptions.parse({"url": "memory://a", "traceContext": "n"})
    with pytest.raises(SchemaError, match="option traceContext: column 'n' must be string, it is int"):
        plan_columns(StructType(fields), o)
    plan = plan_columns(
        StructType([fields[0], fields[2], StructField("N2", StringType())]), replace(o, trace_context="n2")
    )
    assert (plan.trace, plan.json) == ("N2", ("n",)), "it is no part of the message"


def test_the_current_span_is_what_the_option_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mama_spark.trace_context() == "off"
    with TracerProvider().get_tracer("t").start_as_current_span("job") as span:
        context = span.get_span_context()
        assert mama_spark.trace_context().startswith(f"00-{context.trace_id:032x}-{context.span_id:016x}-")
        assert SinkOptions.parse({"url": "memory://a", "traceContext": mama_spark.trace_context()}).trace_column is None
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match="option traceContext needs OpenTelemetry"):
        mama_spark.trace_context()


# --- reading ------------------------------------------------------------------------------------------------------


def read(broker: MemoryBroker, **given: str) -> list[dict[str, Any]]:
    source = MamaSubDataSource({"url": f"memory://{broker.name}", "topics": ">", **given})
    reader = source.reader(source.schema())
    return [row for task in reader.partitions() for made in reader.read(task) for row in made.to_pylist()]


def test_readers_get_a_column(broker: MemoryBroker) -> None:
    publish(broker, replace(PLAN, trace="trace"), traceContext="trace")
    rows = read(broker, traceContext="column", includeHeaders="false")
    assert [row["traceparent"] for row in rows] == [PARENT, None, None]
    assert "traceparent" not in read(broker)[0]


def test_rows_of_a_pack_share_the_header(broker: MemoryBroker) -> None:
    publish(broker, n=10, pack="lines", traceContext=PARENT)
    assert [row["traceparent"] for row in read(broker, traceContext="column")] == [PARENT] * 10


def test_a_reading_task_is_a_span_with_links(broker: MemoryBroker, spans: InMemorySpanExporter) -> None:
    publish(broker, replace(PLAN, trace="trace"), traceContext="trace")
    read(broker, traceContext="links", minPartitions="1")
    [span] = spans.get_finished_spans()
    assert span.kind is trace.SpanKind.CONSUMER
    assert [f"{link.context.trace_id:032x}" for link in span.links] == [TRACE]
