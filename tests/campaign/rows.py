"""The rows of a round: the same whenever they are asked for, each with a payload of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa

_BATCH = 500


@dataclass(frozen=True)
class Amount:
    """Micro-batches, partitions of each, rows of each partition, bytes of a payload."""

    batches: int
    partitions: int
    rows: int
    size: int = 100

    @property
    def total(self) -> int:
        return self.batches * self.partitions * self.rows

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def payload(amount: Amount, batch: int, partition: int, row: int) -> bytes:
    """Sorts by partition, batch and row."""
    return (b"%d.%03d.%07d." % (partition, batch, row)).ljust(amount.size, b"x")


def partition_of(value: bytes) -> bytes:
    return value.partition(b".")[0]


def topic(row: int) -> str:
    return f"campaign.{row % 3}"


def of_partition(amount: Amount, batch: int, partition: int) -> Iterator[pa.RecordBatch]:
    """Columns topic and value."""
    for first in range(0, amount.rows, _BATCH):
        numbers = range(first, min(first + _BATCH, amount.rows))
        values = [payload(amount, batch, partition, row) for row in numbers]
        yield pa.record_batch({"topic": [topic(row) for row in numbers], "value": pa.array(values, pa.binary())})


def expected(amount: Amount) -> set[tuple[str, bytes]]:
    """Topic and payload of all."""
    return {
        (topic(row), payload(amount, batch, partition, row))
        for batch in range(amount.batches)
        for partition in range(amount.partitions)
        for row in range(amount.rows)
    }
