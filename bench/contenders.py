"""Ways to publish the rows of a DataFrame (columns ``topic`` string, ``value`` binary), each row acknowledged."""

from __future__ import annotations

import asyncio
import subprocess
import uuid
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql.datasource import DataSource, DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

WINDOW = 4000  #: futures that the hand-written contenders keep open

Publish = Callable[[DataFrame, str, Path], None]


@dataclass(frozen=True)
class Contender:
    """One way.

    :ivar rows: how many at 100 B and at 1 kB, enough for some seconds
    :ivar publish: from Spark; or None, and ``mode`` is the C program's
    :ivar ids: sends ``Nats-Msg-Id``, whose memory the server must be relieved of afterwards
    """

    name: str
    title: str
    rows: tuple[int, int]
    publish: Publish | None = None
    mode: str = ""
    ids: bool = False
    goal: bool = False  #: also at 1 kB without FULL=1
    full: bool = False  #: only with FULL=1


# --- written by hand ---------------------------------------------------------------------------------------


def await_each(df: DataFrame, url: str, work: Path) -> None:
    """What most users write."""

    def part(rows: Iterable[Row]) -> None:
        import nats

        async def publish() -> None:
            connection = await nats.connect(url)
            stream = connection.jetstream()
            for row in rows:
                await stream.publish(row.topic, bytes(row.value))
            await connection.close()

        asyncio.run(publish())

    df.foreachPartition(part)


async def _gather(url: str, pairs: Iterable[tuple[str, bytes]], prefix: str | None) -> None:
    import nats

    connection = await nats.connect(url)
    stream = connection.jetstream(publish_async_max_pending=WINDOW)
    futures: list[Any] = []
    for n, (topic, value) in enumerate(pairs):
        headers = {"Nats-Msg-Id": f"{prefix}-{n}"} if prefix else None
        futures.append(await stream.publish_async(topic, value, headers=headers))
        if len(futures) >= 5 * WINDOW:  # bounded memory; a refusal raises here
            await asyncio.gather(*futures[: 4 * WINDOW])
            del futures[: 4 * WINDOW]
    await asyncio.gather(*futures)
    await connection.close()


def gather_futures(df: DataFrame, url: str, work: Path, ids: bool = False) -> None:
    """What a careful user writes."""

    def part(rows: Iterable[Row]) -> None:
        pairs = ((row.topic, bytes(row.value)) for row in rows)
        asyncio.run(_gather(url, pairs, uuid.uuid4().hex if ids else None))

    df.foreachPartition(part)


def gather_futures_with_ids(df: DataFrame, url: str, work: Path) -> None:
    gather_futures(df, url, work, ids=True)


class SimpleWriter(DataSourceArrowWriter):
    def __init__(self, url: str | None) -> None:
        self._url = url

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        if self._url is None:
            for _ in iterator:
                pass
            return WriterCommitMessage()
        pairs = (
            pair
            for batch in iterator
            for pair in zip(batch["topic"].to_pylist(), batch["value"].to_pylist(), strict=True)
        )
        asyncio.run(_gather(self._url, pairs, None))
        return WriterCommitMessage()


class SimpleStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, url: str | None) -> None:
        self._writer = SimpleWriter(url)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        return self._writer.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        pass


class SimpleSource(DataSource):
    """The 30-line data source: publishes to the option ``url``, or drops everything without it."""

    @classmethod
    def name(cls) -> str:
        return "benchsimple"

    def writer(self, schema: StructType, overwrite: bool) -> SimpleWriter:
        return SimpleWriter(self.options.get("url"))

    def streamWriter(self, schema: StructType, overwrite: bool) -> SimpleStreamWriter:
        return SimpleStreamWriter(self.options.get("url"))


def simple_source(df: DataFrame, url: str, work: Path) -> None:
    df.write.format("benchsimple").option("url", url).mode("append").save()


def drop_everything(df: DataFrame, url: str, work: Path) -> None:
    df.write.format("benchsimple").mode("append").save()


# --- this connector ----------------------------------------------------------------------------------------


def flight_log(work: Path) -> Path:
    return work / "flights"


def sink(log: bool = True, **options: str) -> Publish:
    def publish(df: DataFrame, url: str, work: Path) -> None:
        writer = df.write.format("mamapub").option("url", url).options(**options)
        if log:
            writer = writer.option("flightLog", str(flight_log(work)))
        writer.mode("append").save()

    return publish


# --- the ceiling -------------------------------------------------------------------------------------------


def compile_ceiling(folder: Path) -> Path:
    program = folder / "ceiling"
    source = Path(__file__).with_name("ceiling.c")
    subprocess.run(["gcc", "-O2", "-o", str(program), str(source)], check=True)
    return program


def run_ceiling(program: Path, port: int, rows: int, size: int, mode: str) -> None:
    command = [str(program), str(port), "b.ceiling", str(rows), str(size), mode]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise RuntimeError(f"ceiling {mode}: {done.stderr}")


FAST = (2_000_000, 700_000)

CONTENDERS = [
    Contender("await", "`foreachPartition`, awaited `js.publish`", (24_000, 24_000), await_each),
    Contender("async", "`foreachPartition`, `publish_async`, futures gathered", (240_000, 200_000), gather_futures),
    Contender("async-id", "the same with `Nats-Msg-Id`", (200_000, 180_000), gather_futures_with_ids, ids=True),
    Contender("simple", "the same in a 30-line Python data source", (280_000, 240_000), simple_source),
    Contender(
        "sink-batch", "**mamapub**, `dedup=false`, `ackMode=batch`", FAST,
        sink(dedup="false", ackMode="batch"), goal=True,
    ),
    Contender(
        "sink-batch-nolog", "the same without a flight log", FAST, sink(log=False, dedup="false", ackMode="batch")
    ),
    Contender(
        "sink-message", "**mamapub**, `dedup=false`, `ackMode=message`", FAST,
        sink(dedup="false", ackMode="message"), goal=True,
    ),
    Contender("sink-dedup", "**mamapub**, defaults (`dedup=true`)", FAST, sink(), ids=True, goal=True),
    Contender("c-acks", "C program, one acknowledgement a message", FAST, mode="acks", goal=True),
    Contender("c-acks-id", "C program, the same with `Nats-Msg-Id`", FAST, mode="acks-id", ids=True, goal=True),
    Contender("c-fast", "C program, fast ingest", FAST, mode="fast", goal=True),
    Contender("c-fast-id", "C program, fast ingest with `Nats-Msg-Id`", FAST, mode="fast-id", ids=True, full=True),
    Contender(
        "sink-message-nolog", "**mamapub**, `dedup=false`, `ackMode=message`, no flight log", FAST,
        sink(log=False, dedup="false", ackMode="message"), full=True,
    ),
    Contender(
        "sink-dedup-nolog", "**mamapub**, `dedup=true`, no flight log", FAST, sink(log=False), ids=True, full=True
    ),
    Contender(
        "sink-dedup-batch", "**mamapub**, `dedup=true`, `ackMode=batch`", FAST, sink(ackMode="batch"), ids=True,
        full=True,
    ),
    Contender(
        "sink-order", "**mamapub**, `order=partition`", FAST, sink(order="partition"), ids=True, full=True
    ),
    Contender(
        "drop", "Spark hands Arrow batches to Python, which drops them", (4_000_000, 1_500_000),
        drop_everything, full=True,
    ),
]  # fmt: skip
