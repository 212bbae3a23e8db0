"""Attempts at partitions without Spark, for tests of ``exactlyOnce``: the sink's own code, in this process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import pyarrow as pa
from mama_spark.spark.sink.data_source import batch_writer, stream_writer
from mama_spark.spark.sink.job import PartitionReport, SinkJob, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from tests.support.nats.nats_servers import FetchedMessage

STREAM = "ONCE"
Row = tuple[str, bytes]


def rows(first: int, last: int, *, copies: int = 1) -> list[Row]:
    """Different rows, each ``copies`` times one after another."""
    return [(f"once.{n // copies % 3}", b"row %d" % (n // copies)) for n in range(first, last)]


def batches(given: Iterable[Row], size: int = 100, pause: float = 0.0) -> Iterator[pa.RecordBatch]:
    """Record batches, which come with pauses."""
    some = list(given)
    for start in range(0, len(some), size):
        if start:
            time.sleep(pause)
        topics, values = zip(*some[start : start + size], strict=True)
        yield pa.record_batch({"topic": pa.array(topics, pa.string()), "value": pa.array(values, pa.binary())})


@dataclass
class Query:
    """One batch of a streaming query, or a batch write.

    :ivar batch: None: a batch write
    :ivar more: string columns besides topic and value
    :ivar headers: there is a column of headers
    """

    url: str
    options: dict[str, str] = field(default_factory=dict)
    batch: int | None = 7
    more: tuple[str, ...] = ()
    headers: bool = False

    def job(self) -> SinkJob:
        given = {"url": self.url, "exactlyOnce": "true", "waitTimeout": "1s", "retryDeadline": "10s", **self.options}
        make = batch_writer if self.batch is None else stream_writer
        schema = StructType().add("topic", StringType()).add("value", BinaryType())
        for name in self.more:
            schema.add(name, StringType())
        if self.headers:
            schema.add("headers", MapType(StringType(), ArrayType(StringType())))
        return make(given, schema, False).job

    def attempt(
        self,
        given: Iterable[Row] | Iterator[pa.RecordBatch],
        *,
        partition: int = 0,
        run: str = "run",
        attempt: int = 0,
    ) -> PartitionReport:
        """Publish a partition."""
        name, run_id = (None, None) if self.batch is None else ("query", run)
        info = TaskInfo(partition, attempt, name, self.batch, run_id, False)
        come = given if isinstance(given, Iterator) else batches(given)
        return publish_partition(self.job(), info, come)

    def with_options(self, **more: str) -> Query:
        return replace(self, options={**self.options, **more})


def values(messages: Iterable[FetchedMessage]) -> Counter[Row]:
    """Rows that are stored, packed or not."""
    found: Counter[Row] = Counter()
    for message in messages:
        pack = message.headers.get("Mama-Pack", [""])[0]
        if pack.startswith("lines"):
            found.update((message.topic, value) for value in message.payload.split(b"\n"))
        elif pack:
            table = pa.ipc.open_stream(message.payload).read_all()
            found.update((message.topic, value) for value in table["value"].to_pylist())
        else:
            found[message.topic, message.payload] += 1
    return found
