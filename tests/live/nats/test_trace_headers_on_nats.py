"""Trace context in the headers that a real server stores: one a message, of rows and of packs, with the same ids."""

from __future__ import annotations

import pyarrow as pa
import pytest
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.options import SinkOptions
from mama_spark.spark.sink.job import ColumnPlan, SinkJob, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition

from tests.support.nats.mamasub import read

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
TASK = TaskInfo(0, 0, None, None, None, False, "app", "app-1")


@pytest.mark.parametrize("pack", ["off", "arrow"])
@pytest.mark.parametrize("ids", ["true", "false"])  # message by message, and in batches
def test_each_message_has_its_trace_and_a_repetition_stores_nothing(
    nats_server: NatsServer, pack: str, ids: str
) -> None:
    stream = f"TRACE_{pack}_{ids}".upper()
    given = {
        "url": nats_server.url, "stream": stream, "createStream": "true", "pack": pack, "dedup": ids, "idPrefix": "p",
    }  # fmt: skip
    rows = pa.record_batch({"topic": [f"trace.{pack}.{ids}"] * 50, "value": [b"%d" % i for i in range(50)]})
    plan = ColumnPlan("topic", (), "value", (), None, "", None, ())
    for traced in [PARENT, "off"] if ids == "true" else [PARENT]:  # the second time without
        o = SinkOptions.parse({**given, "traceContext": traced})
        report = publish_partition(SinkJob(o, plan, False, "run", ()), TASK, iter([rows]))
        assert report.counts.acked == 50
    packs = read(nats_server.url, stream=stream, unpack="false")
    assert len(packs) == (1 if pack == "arrow" else 50)
    assert all(dict(row["headers"])["traceparent"] == [PARENT] for row in packs)
    rows_read = read(nats_server.url, stream=stream, traceContext="column")
    assert [(row["value"], row["traceparent"]) for row in rows_read] == [(b"%d" % i, PARENT) for i in range(50)]
