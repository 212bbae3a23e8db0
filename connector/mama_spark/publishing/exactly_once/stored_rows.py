"""Which rows the messages of a batch carry that were found in a stream. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from xxhash import xxh3_128_digest

from mama_spark.contracts.batch_ledger import StoredIds
from mama_spark.contracts.message import Int64s
from mama_spark.contracts.record_log import Records

from ..ids import ids as message_ids
from ..ids.ids import Digests
from .found_rows import FoundRows, keys_of

#: The contents of the rows of packed messages, shape (rows, 16), and how many rows each message has.
Unpack = Callable[[Records], tuple[Digests, Int64s]]


class StoredRows:
    """:ivar rows: with the content that default ids name
        or that is named by the user's ids
    :ivar others: messages with other ids (dead letters): id -> sequence
    :ivar packs: numbers of the ids of packed messages, by partition and hash of the pack
    """

    def __init__(self, after: int, head: int) -> None:
        self.head = head  #: length of an id before the partition
        self.rows = FoundRows(after)
        self.others: dict[bytes, int] = {}
        self.packs: dict[tuple[int, bytes], list[int]] = {}

    def __len__(self) -> int:
        return len(self.rows) + len(self.others)

    def numbers(self, digests: Digests, partition: int) -> dict[int, Int64s]:
        """The numbers that ids of messages of this partition have for contents, by the place of the content in
        ``digests``; without those for which there are none."""
        if not self.packs:
            return self.rows.numbers(keys_of(digests), partition)
        found = {i: self.packs.get((partition, one.tobytes())) for i, one in enumerate(digests)}
        return {i: np.unique(np.array(numbers, np.int64)) for i, numbers in found.items() if numbers is not None}

    def finish(self) -> None:
        """After the last messages."""
        self.rows.finish()


@dataclass(frozen=True, slots=True)
class IdReader:
    """:ivar prefixed: messages have default ids, which name their content; else ids are the user's
    :ivar unpack: for packed messages; None = a message is a row
    """

    prefixed: bool = True
    unpack: Unpack | None = None

    def add(self, table: StoredRows, found: StoredIds) -> None:
        """Note messages."""
        if not self.prefixed:
            zeros = np.zeros(len(found.ids), np.int64)
            table.rows.add(keys_of(digests_of_ids(found.ids)), found.sequences, zeros, zeros)
            return
        parsed = message_ids.parse(found.ids, table.head)
        if len(parsed.rows) < len(found.ids):
            for i in np.setdiff1d(np.arange(len(found.ids)), parsed.rows).tolist():
                table.others[found.ids[i]] = int(found.sequences[i])
        sequences = found.sequences[parsed.rows]
        if self.unpack is None:
            table.rows.add(keys_of(parsed.digests), sequences, parsed.partitions, parsed.numbers)
            return
        assert found.records is not None
        for partition, one, number in zip(
            parsed.partitions.tolist(), parsed.digests, parsed.numbers.tolist(), strict=True
        ):
            table.packs.setdefault((partition, one.tobytes()), []).append(number)
        digests, counts = self.unpack(found.records.take(parsed.rows))
        each = np.repeat(np.arange(len(counts)), counts)
        numbers = np.zeros(len(each), np.int64)
        table.rows.add(keys_of(digests), sequences[each], parsed.partitions[each], numbers)


def digests_of_ids(ids: Sequence[bytes]) -> Digests:
    """Of rows whose ids are the user's: an id stands for the row."""
    return np.frombuffer(b"".join(map(xxh3_128_digest, ids)), np.uint8).reshape(len(ids), 16)
