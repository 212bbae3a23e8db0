"""Ways to read the first rows of a stream, each row with topic, payload, headers, sequence and time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from .broker import STREAM

FETCH = 1000
PARTITIONS = 2

#: session, URL and number of rows -> rows that came, and the sum of their sequences
Read = Callable[[SparkSession, str, int], tuple[int, int]]


@dataclass(frozen=True)
class ReadContender:
    """One way.

    :ivar rows: how many at 100 B and at 1 kB, enough for some seconds
    """

    name: str
    title: str
    rows: tuple[int, int]
    read: Read


# --- written by hand ---------------------------------------------------------------------------------------


async def fetch(url: str, after: int, up_to: int) -> AsyncIterator[list[Any]]:
    """What a careful user writes: a pull consumer without acknowledgements, a thousand messages a fetch."""
    import nats
    from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

    connection = await nats.connect(url)
    config = ConsumerConfig(
        deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=after + 1, ack_policy=AckPolicy.NONE
    )
    consumer = await connection.jetstream().pull_subscribe("", stream=STREAM, config=config)
    while after < up_to:
        messages = await consumer.fetch(min(FETCH, up_to - after), timeout=10)
        after = messages[-1].metadata.sequence.stream
        yield messages
    await connection.close()


def row(message: Any) -> tuple[Any, ...]:
    where = message.metadata
    return message.subject, message.data, message.headers, where.sequence.stream, where.timestamp


def fetch_loop(_: SparkSession, url: str, rows: int) -> tuple[int, int]:
    async def count() -> tuple[int, int]:
        found = total = 0
        async for messages in fetch(url, 0, rows):
            taken = [row(m) for m in messages]
            found += len(taken)
            total += sum(r[3] for r in taken)
        return found, total

    return asyncio.run(count())


class Range(InputPartition):
    def __init__(self, after: int, up_to: int) -> None:
        self.after, self.up_to = after, up_to


class SimpleReader(DataSourceReader):
    """The 30-line data source around :func:`fetch`."""

    def __init__(self, url: str, rows: int) -> None:
        self._url, self._rows = url, rows

    def partitions(self) -> Sequence[InputPartition]:
        edges = [self._rows * i // PARTITIONS for i in range(PARTITIONS + 1)]
        return [Range(low, high) for low, high in pairwise(edges)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Range)
        loop = asyncio.new_event_loop()
        fetched = fetch(self._url, partition.after, partition.up_to)
        names = ["topic", "value", "headers", "sequence", "timestamp"]
        types = [pa.string(), pa.binary(), pa.map_(pa.string(), pa.string()), pa.int64(), pa.timestamp("us", "UTC")]
        while (messages := loop.run_until_complete(anext(fetched, None))) is not None:
            columns = zip(*map(row, messages), strict=True)
            yield pa.record_batch([pa.array(c, t) for c, t in zip(columns, types, strict=True)], names)
        loop.close()


class SimpleSubSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "benchsimplesub"

    def schema(self) -> str:
        return "topic string, value binary, headers map<string,string>, sequence bigint, timestamp timestamp"

    def reader(self, schema: StructType) -> SimpleReader:
        return SimpleReader(self.options["url"], int(self.options["rows"]))


def simple_source(spark: SparkSession, url: str, rows: int) -> tuple[int, int]:
    return counted(spark.read.format("benchsimplesub").option("url", url).option("rows", rows).load())


def counted(df: Any) -> tuple[int, int]:
    found, total, size = df.selectExpr("count(*)", "sum(sequence)", "sum(length(value))").first()
    assert size, "the payloads came, too"
    return int(found), int(total)


# --- this connector ----------------------------------------------------------------------------------------


def log(_: SparkSession, url: str, rows: int) -> tuple[int, int]:
    from mama_spark.nats import NatsSettings
    from mama_spark.nats.read.logs import NatsLogs

    found = total = 0
    with NatsLogs(NatsSettings((url,))) as logs:
        for records in logs.log(STREAM).read(0, rows):
            found += len(records)
            total += int(records.sequences.sum())
    return found, total


def mamasub(spark: SparkSession, url: str, rows: int) -> tuple[int, int]:
    reader = spark.read.format("mamasub").option("url", url).option("topics", "b.>")
    return counted(
        reader.option("endingOffsets", f'{{"{STREAM}": {rows + 1}}}').option("minPartitions", PARTITIONS).load()
    )


READERS = [
    ReadContender("fetch", "nats-py `fetch(1000)` in a loop, no Spark", (120_000, 80_000), fetch_loop),
    ReadContender("log", "**read()** of the log, no Spark", (1_000_000, 300_000), log),
    ReadContender("sub-simple", "a 30-line Python data source around `fetch(1000)`", (160_000, 100_000), simple_source),
    ReadContender("mamasub", "**mamasub**", (1_000_000, 300_000), mamasub),
]
