"""Buckets that ``mamapub`` writes: what nats-py's KeyValue reads of them, and byte for byte what it writes itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import nats
import pyarrow as pa
import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.spark.sink.data_source import batch_writer
from mama_spark.spark.sink.job import PartitionReport, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition
from nats.js.kv import KeyValue
from pyspark.sql.pandas.types import from_arrow_schema

from tests.support.nats.nats_servers import Admin

T = TypeVar("T")
Row = dict[str, Any]
FIELDS = {"key": pa.string(), "value": pa.binary(), "operation": pa.string(), "expectedRevision": pa.int64(), "ttl": pa.string()}


def write(url: str, rows: list[Row], *, attempt: int = 0, types: dict[str, pa.DataType] | None = None, **options: str) -> PartitionReport:
    """Rows as one attempt at one partition."""
    kinds = {**FIELDS, **(types or {})}
    names = [name for name in kinds if any(name in row for row in rows)]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([(name, kinds[name]) for name in names]))
    given = {"url": url, "bucket": "B", "waitTimeout": "2s", "retryDeadline": "10s", "idPrefix": "once", **options}
    job = batch_writer(given, from_arrow_schema(batch.schema), False).job
    return publish_partition(job, TaskInfo(0, attempt, None, None, None, False), iter([batch]))


def foreign(url: str, work: Callable[[Any], Awaitable[T]]) -> T:
    """What is done by nats-py's JetStream context."""

    async def run() -> T:
        client = await nats.connect(url)
        try:
            return await work(client.jetstream())
        finally:
            await client.close()

    return asyncio.run(run())


def by_nats_py(url: str, work: Callable[[KeyValue], Awaitable[T]], bucket: str = "B") -> T:
    async def run(js: Any) -> T:
        return await work(await js.key_value(bucket))

    return foreign(url, run)


def make(url: str, **config: Any) -> None:
    foreign(url, lambda js: js.create_key_value(bucket=config.pop("bucket", "B"), **config))


def test_nats_py_reads_what_was_written(nats_server: NatsServer) -> None:
    url = nats_server.url
    make(url, history=5)
    report = write(url, [{"key": f"device.{n}", "value": b"v%d" % n} for n in range(100)])
    assert (report.counts.acked, report.fatal) == (100, None)
    write(url, [{"key": "device.1", "operation": "delete"}, {"key": "device.2", "value": b"", "operation": "purge"}], idPrefix="2")
    write(url, [{"key": "device.3", "value": b"new"}], idPrefix="3", types={"value": pa.string()})

    async def look(kv: KeyValue) -> tuple[Any, ...]:
        past = [[(e.operation, e.value, e.revision) for e in await kv.history(f"device.{n}")] for n in (1, 2, 3)]
        return len(await kv.keys()), past, (await kv.get("device.3")).value

    assert by_nats_py(url, look) == (
        98,
        [
            [(None, b"v1", 2), ("DEL", b"", 101)],
            [("PURGE", b"", 102)],
            [(None, b"v3", 4), (None, b"new", 103)],
        ],
        b"new",
    )
