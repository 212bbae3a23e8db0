"""The rows of a round: the same whenever they are asked for, each with a payload of its own."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

_BATCH = 500


@dataclass(frozen=True)
class Amount:
    """Micro-batches, partitions of each, rows of each partition, bytes of a payload."""

    batches: int
    partitions: int
    rows: int
    size: int = 100


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


def expected(amount: Amount) -> Counter[tuple[str, bytes]]:
    """Topic and payload of all."""
    places = itertools.product(range(amount.batches), range(amount.partitions), range(amount.rows))
    return Counter((topic(row), payload(amount, batch, partition, row)) for batch, partition, row in places)
