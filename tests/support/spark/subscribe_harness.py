"""Streams for tests of readers: messages stored by another client, and what a table got of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from deltalake import DeltaTable
from mama_spark.testing.waiting import eventually

from tests.support.nats.nats_servers import Admin

Message = tuple[str, bytes, dict[str, str] | None]


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
