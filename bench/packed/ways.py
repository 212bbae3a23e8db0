"""Ways to publish and to read the same rows, for :mod:`bench.packed`: packed messages, one message a row, and Kafka."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from mama_spark.spark.formats import MamaSubDataSource
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ..broker import STREAM
from ..contenders import drop_everything, run_ceiling, sink
from ..kafka import TUNED, KafkaBroker

PARTITIONS = 2
TOPICS = 16


@dataclass
class Workload:
    """What all ways share."""

    spark: SparkSession
    url: str
    port: int
    work: Path
    kafka: KafkaBroker | None = None
    program: Path | None = None


# --- rows ------------------------------------------------------------------------------------------------------


def values(spark: SparkSession, rows: int, size: int) -> DataFrame:
    """Distinct values of one size, 16 topics in turn; they cost Spark almost nothing to make. Strings, as ``to_json``
    gives them: binary values are copied once more by Spark when it hands them to Python."""
    filler = "x" * (size - 11)
    return spark.range(0, rows, 1, PARTITIONS).selectExpr(
        f"concat('b.s', cast(id % {TOPICS} + 10 as string)) AS topic",
        f"concat(cast(id + 1000000000 as string), '-', '{filler}') AS value",
    )


def trades(spark: SparkSession, rows: int) -> DataFrame:
    """Five columns and a topic."""
    return spark.range(0, rows, 1, PARTITIONS).selectExpr(
        f"concat('b.s', cast(id % {TOPICS} + 10 as string)) AS topic",
        "id AS trade",
        "concat('SYM', cast(id % 500 as string)) AS instrument",
        "id * 0.01D AS price",
        "cast(id % 1000 as int) AS quantity",
        "timestamp_micros(1700000000000000 + id) AS at",
    )


# --- publishing ------------------------------------------------------------------------------------------------

#: Stage, rows as a DataFrame (the C program needs none), how many, and bytes a value.
Publish = Callable[[Workload, DataFrame, int, int], None]


@dataclass(frozen=True)
class Way:
    """One way to publish.

    :ivar rows: how many, by bytes a value (0: five columns), enough for some seconds; no entry = not at this size
    :ivar where: whose broker counts: ``nats``, ``packs`` (rows inside the messages), ``kafka``, or nobody
    :ivar forget: the server remembers an id a row, and must be relieved of that
    """

    name: str
    title: str
    rows: dict[int, int]
    publish: Publish
    where: str
    forget: bool = False


def packed_sink(pack: str, log: bool = True, /, **options: str) -> Publish:
    write = sink(log=log, pack=pack, **options)

    def publish(stage: Workload, df: DataFrame, rows: int, size: int) -> None:
        write(df, stage.url, stage.work)

    return publish


def _pack_and_drop(stage: Workload, df: DataFrame, rows: int, size: int) -> None:
    df.write.format("benchpack").option("url", stage.url).option("pack", "lines").mode("append").save()


def kafka_sink(settings: dict[str, str]) -> Publish:
    def publish(stage: Workload, df: DataFrame, rows: int, size: int) -> None:
        assert stage.kafka is not None
        stage.kafka.write(df, settings)

    return publish


def _ceiling(stage: Workload, df: DataFrame, rows: int, size: int) -> None:
    assert stage.program is not None
    run_ceiling(stage.program, stage.port, rows, size, "acks")


def _drop(stage: Workload, df: DataFrame, rows: int, size: int) -> None:
    drop_everything(df, stage.url, stage.work)


PACKED = {100: 4_000_000, 1000: 1_500_000}
LARGE = {"packMaxBytes": "262144", "packMaxRows": "4000"}  #: as large as the batches of the tuned Kafka sink
WAYS = [
    Way("kafka", "Spark's Kafka sink, defaults", {100: 1_000_000, 1000: 400_000}, kafka_sink({}), "kafka"),
    Way(
        "kafka-tuned", "Spark's Kafka sink, linger 50 ms, batches of 256 KiB, buffer of 64 MiB",
        {100: 2_500_000, 1000: 1_000_000}, kafka_sink(TUNED), "kafka",
    ),
    Way("lines", "**mamapub**, `pack=lines`", PACKED, packed_sink("lines"), "packs"),
    Way("arrow", "**mamapub**, `pack=arrow` with `value`", PACKED, packed_sink("arrow"), "packs"),
    Way("lines-tuned", "**mamapub**, `pack=lines`, packs of 256 KiB", PACKED, packed_sink("lines", **LARGE), "packs"),
    Way(
        "arrow-tuned", "**mamapub**, `pack=arrow` with `value`, packs of 256 KiB", PACKED,
        packed_sink("arrow", **LARGE), "packs",
    ),
    Way("off", "**mamapub**, `pack=off`", {100: 600_000}, packed_sink("off"), "nats", forget=True),
    Way("c-acks", "C program, one message a row, no ids", {100: 1_000_000, 1000: 500_000}, _ceiling, "nats"),
    Way("drop", "Spark hands Arrow batches to Python, which drops them", PACKED, _drop, ""),
    Way("pack", "the same, packed and hashed before they are dropped", PACKED, _pack_and_drop, ""),
    Way("nolog", "**mamapub**, `pack=lines`, no flight log", PACKED, packed_sink("lines", False), "packs"),
    Way("typed", "**mamapub**, `pack=arrow`, typed", {0: 2_500_000}, packed_sink("arrow"), "packs"),
    Way("json", "**mamapub**, `pack=lines` of JSON", {0: 1_000_000}, packed_sink("lines"), "packs"),
    Way("drop-typed", "Spark hands Arrow batches to Python, which drops them", {0: 2_500_000}, _drop, ""),
]  # fmt: skip


def frame(spark: SparkSession, rows: int, size: int) -> DataFrame:
    return values(spark, rows, size) if size else trades(spark, rows)


# --- counting --------------------------------------------------------------------------------------------------


def packed_rows(url: str, whole: bool) -> int:
    """Rows in the stream: a packed message has as many as its header says.

    :param whole: fetch the payloads, too, unpack them with what a reader in Python has at hand, and compare
    """

    async def count() -> int:
        import nats
        from nats.js.api import AckPolicy, ConsumerConfig

        connection = await nats.connect(url)
        stream = connection.jetstream()
        left = (await stream.stream_info(STREAM)).state.messages
        config = ConsumerConfig(ack_policy=AckPolicy.NONE, headers_only=not whole)
        consumer = await stream.pull_subscribe("", stream=STREAM, config=config)
        rows = 0
        while left:
            messages = await consumer.fetch(min(50 if whole else 500, left), timeout=30)  # of 256 KiB each, maybe
            left -= len(messages)
            for m in messages:
                headers = m.headers or {}
                rows += int(headers.get("Mama-Pack-Rows", "1"))
                if whole and (found := _unpacked(headers, m.data)) != int(headers["Mama-Pack-Rows"]):
                    raise RuntimeError(f"a pack of {found} rows announces {headers['Mama-Pack-Rows']}")
        await connection.close()
        return rows

    return asyncio.run(count())


def _unpacked(headers: dict[str, str], payload: bytes) -> int:
    if headers["Mama-Pack"].startswith("lines"):
        return payload.count(b"\n") + 1
    with pa.ipc.open_stream(payload) as stream:
        return int(stream.read_all().num_rows)


# --- reading ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReadWay:
    name: str
    title: str
    read: Callable[[Workload], DataFrame]


def _mamasub(stage: Workload) -> DataFrame:
    return stage.spark.read.format("mamasub").options(**_subscription(stage.url)).load()


def _memory(stage: Workload) -> DataFrame:
    return stage.spark.read.format("benchmemory").option("folder", str(memory(stage.work))).load()


def _kafka_source(stage: Workload) -> DataFrame:
    assert stage.kafka is not None
    return stage.kafka.read(stage.spark)


def _subscription(url: str) -> dict[str, str]:
    return {"url": url, "topics": "b.>", "minPartitions": str(PARTITIONS)}


READ_WAYS = [
    ReadWay("mamasub", "**mamasub** of packed rows", _mamasub),
    ReadWay("memory", "a Python Arrow source that yields the same batches from memory", _memory),
    ReadWay("kafka-source", "Spark's Kafka source", _kafka_source),
]


def memory(work: Path) -> Path:
    return work / "memory"


def keep_batches(stage: Workload) -> None:
    """Write down what each task of ``mamasub`` yields, in files that stay in the page cache."""
    source = MamaSubDataSource(_subscription(stage.url))
    schema = source.schema()
    reader = source.reader(schema)
    memory(stage.work).mkdir()
    (memory(stage.work) / "schema.json").write_text(json.dumps(schema.jsonValue()))
    for i, part in enumerate(reader.partitions()):
        batches = reader.read(part)
        first = next(batches)
        with (
            pa.OSFile(str(memory(stage.work) / f"{i}.arrow"), "wb") as file,
            pa.ipc.new_file(file, first.schema) as out,
        ):
            out.write_batch(first)
            for batch in batches:
                out.write_batch(batch)


class MemoryPart(InputPartition):
    def __init__(self, path: str) -> None:
        self.path = path


class MemoryReader(DataSourceReader):
    def __init__(self, folder: str) -> None:
        self._folder = folder

    def partitions(self) -> Sequence[InputPartition]:
        return [MemoryPart(str(path)) for path in sorted(Path(self._folder).glob("*.arrow"))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, MemoryPart)
        with pa.memory_map(partition.path) as file:
            kept = pa.ipc.open_file(file)
            for i in range(kept.num_record_batches):
                yield kept.get_batch(i)


class MemorySource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "benchmemory"

    def schema(self) -> StructType:
        kept: dict[str, Any] = json.loads((Path(self.options["folder"]) / "schema.json").read_text())
        return StructType.fromJson(kept)

    def reader(self, schema: StructType) -> MemoryReader:
        return MemoryReader(self.options["folder"])


def found_in(df: DataFrame) -> tuple[int, int]:
    """Rows and bytes of their values."""
    rows, size = df.selectExpr("count(*)", "sum(length(value))").first()  # type: ignore[misc]
    return int(rows), int(size)
