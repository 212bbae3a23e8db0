"""Buckets: written by attempts of ``mamapub`` in this process, and by nats-py's KeyValue."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import nats
import pyarrow as pa
from mama_spark.spark.sink.data_source import batch_writer
from mama_spark.spark.sink.job import PartitionReport, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition
from nats.js.errors import NoKeysError
from nats.js.kv import KeyValue
from pyspark.sql.pandas.types import from_arrow_schema

T = TypeVar("T")
Row = dict[str, Any]
FIELDS = {
    "key": pa.string(),
    "value": pa.binary(),
    "operation": pa.string(),
    "expectedRevision": pa.int64(),
    "ttl": pa.string(),
}


def write(
    url: str, rows: list[Row], *, attempt: int = 0, types: dict[str, pa.DataType] | None = None, **options: str
) -> PartitionReport:
    """Rows as one attempt at one partition; with a flight log, also the commit."""
    kinds = {**FIELDS, **(types or {})}
    names = [name for name in kinds if any(name in row for row in rows)]
    batch = pa.RecordBatch.from_pylist(rows, pa.schema([(name, kinds[name]) for name in names]))
    given = {"url": url, "bucket": "B", "waitTimeout": "2s", "retryDeadline": "10s", "idPrefix": "once", **options}
    writer = batch_writer(given, from_arrow_schema(batch.schema), False)
    report = publish_partition(writer.job, TaskInfo(0, attempt, None, None, None, False), iter([batch]))
    if "flightLog" in options:
        writer.commit([report])
    return report


def by_client(url: str, work: Callable[[Any], Awaitable[T]]) -> T:
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

    return by_client(url, run)


def make(url: str, **config: Any) -> None:
    by_client(url, lambda js: js.create_key_value(bucket=config.pop("bucket", "B"), **config))


async def certain(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer of a method that watches: nats-py finds nothing when all came before it looked at its consumer."""
    while True:
        try:
            return await ask()
        except NoKeysError:
            await asyncio.sleep(0.05)
