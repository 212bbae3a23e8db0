"""Streams for tests of readers: messages stored by another client, and what a table got of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from mama_spark.testing.waiting import eventually
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.nats.nats_servers import Admin

Message = tuple[str, bytes, dict[str, str] | None]
PATIENCE = 240


def publish(admin: Admin, messages: Iterable[Message]) -> None:
    """Publish, and wait until the server has taken all: not until they are stored."""

    async def send() -> None:
        for topic, payload, headers in messages:
            await admin._client.publish(topic, payload, headers=headers)
        await admin._client.flush()

    admin._run(send())


def store(admin: Admin, stream: str, messages: Iterable[Message]) -> int:
    """Publish, and wait until all are stored; the last sequence."""
    listed = list(messages)
    before = int(admin.info(stream)["state"]["last_seq"])
    publish(admin, listed)
    last = before + len(listed)
    eventually(lambda: int(admin.info(stream)["state"]["last_seq"]) >= last, f"{len(listed)} messages are stored")
    return last


def plain(topic: str, n: int, first: int = 0) -> list[Message]:
    """``n`` different messages."""
    return [(topic, f"{topic} {i}".encode(), None) for i in range(first, first + n)]


def parquet_rows(path: Path) -> list[dict[str, Any]]:
    """Of a table that a query writes, as far as its batches are committed."""
    listed = sorted((path / "_spark_metadata").glob("[0-9]*"))
    files = [json.loads(line)["path"] for one in listed for line in one.read_text().splitlines()[1:]]
    return [row for file in files for row in pq.read_table(file.removeprefix("file://")).to_pylist()]


def delta_rows(path: Path | str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().to_pylist()
    return rows


class ReadQuery:
    """A query of ``mamasub`` into a folder of Parquet files for each batch, which a batch that is run again replaces.

    :param options: of the format
    """

    def __init__(self, spark: SparkSession, folder: Path, **options: str) -> None:
        self.spark, self.folder, self.options = spark, folder, options
        self.table, self.checkpoint = folder / "table", folder / "checkpoint"

    def read(self, **options: str) -> DataFrame:
        return self.spark.readStream.format("mamasub").options(**{**self.options, **options}).load()

    def start(self, frame: DataFrame | None = None, /, *, available_now: bool = True, **options: str) -> StreamingQuery:
        writer = (self.read(**options) if frame is None else frame).writeStream.foreachBatch(self.keep)
        writer = writer.option("checkpointLocation", str(self.checkpoint))
        when = {"availableNow": True} if available_now else {"processingTime": "200 milliseconds"}
        return writer.trigger(**when).start()

    def keep(self, rows: DataFrame, batch: int) -> None:
        rows.write.mode("overwrite").parquet(str(self.table / str(batch)))

    def run(self, frame: DataFrame | None = None, /, **options: str) -> StreamingQuery:
        """Take what is there, and end."""
        query = self.start(self.read(**options) if frame is None else frame)
        assert query.awaitTermination(PATIENCE)
        return query

    def fail(self, frame: DataFrame) -> str:
        query = self.start(frame)
        with pytest.raises(StreamingQueryException) as e:
            query.awaitTermination(PATIENCE)
        return str(e.value)

    def rows(self) -> list[dict[str, Any]]:
        batches = [folder for folder in self.table.glob("*") if (folder / "_SUCCESS").exists()]
        return [row for folder in batches for row in pq.read_table(folder).to_pylist()]

    def sequences(self, stream: str | None = None) -> list[int]:
        return sorted(row["sequence"] for row in self.rows() if stream in (None, row["stream"]))
