"""Matches rows with stored rows by the digest of their content. Pure. Only the task's thread uses the tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import orjson
from xxhash import xxh3_128_digest

from mama_spark.contracts.batch_ledger import StoredIds
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.message import Int64s
from mama_spark.contracts.record_log import Records

from ..ids import ids as message_ids
from ..ids.ids import Digests
from ..window.flight_batch import StoredFlights
from .found_rows import Distinct, Found, FoundRows, Keys, free_numbers, keys_of

#: Unpacks messages: digests of their rows, shape (rows, 16), and the number of rows of each message.
Unpack = Callable[[Records], tuple[Digests, Int64s]]


class StoredRows:
    """Rows of a batch that one stream has stored.

    :ivar rows: by the content that default ids name, or by the user's ids
    :ivar others: sequence by id of messages with other ids (dead letters)
    :ivar packs: numbers in the ids of packed messages, by partition and hash of the pack
    """

    def __init__(self, after: int, head: int) -> None:
        self.head = head  #: length of an id before the partition
        self.rows = FoundRows(after)
        self.others: dict[bytes, int] = {}
        self.packs: dict[tuple[int, bytes], list[int]] = {}

    def __len__(self) -> int:
        return len(self.rows) + len(self.others)

    def numbers(self, digests: Digests, partition: int) -> dict[int, Int64s]:
        """As :meth:`.FoundRows.numbers`, by index of the digest."""
        if not self.packs:
            return self.rows.numbers(keys_of(digests), partition)
        found = {i: self.packs.get((partition, one.tobytes())) for i, one in enumerate(digests)}
        return {i: np.unique(np.array(numbers, np.int64)) for i, numbers in found.items() if numbers is not None}

    def finish(self) -> None:
        """Called after the last messages."""
        self.rows.finish()


@dataclass(frozen=True, slots=True)
class IdReader:
    """Reads rows from stored messages: by default ids if ``prefixed``, else by the user's; ``unpack``: reads packs."""

    prefixed: bool = True
    unpack: Unpack | None = None

    def add(self, table: StoredRows, found: StoredIds) -> None:
        if not self.prefixed:
            zeros = np.zeros(len(found.ids), np.int64)
            table.rows.add(keys_of(digests_of_ids(found.ids)), found.sequences, zeros, zeros)
            return
        parsed = message_ids.parse(found.ids, table.head)
        if len(parsed.rows) < len(found.ids):
            for i in np.setdiff1d(np.arange(len(found.ids)), parsed.rows).tolist():
                table.others[found.ids[i]] = int(found.sequences[i])
        if not len(parsed.rows):
            return  # only dead letters
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
    """Digests of the user's ids, each of which stands for its row."""
    return np.frombuffer(b"".join(map(xxh3_128_digest, ids)), np.uint8).reshape(len(ids), 16)


class StreamTables(NamedTuple):
    """Stored rows of one stream, by earlier attempts of this run and by earlier runs; None = no such attempt."""

    own: StoredRows | None = None
    earlier: StoredRows | None = None

    @property
    def tables(self) -> list[StoredRows]:
        return [table for table in self if table is not None]


#: Writes the next claim of a stream's log, or reads the stored one, and applies it to the table.
MakeClaim = Callable[[str, FoundRows, Distinct], None]
#: Name of each stream, and indices of the messages that it takes.
ByStream = Iterable[tuple[str, Int64s]]


class Matching:
    """Stored rows that one attempt can match, by stream; each matches one row.

    :param shared: stored rows of earlier runs may belong to other partitions: they are claimed before they match a row
    :ivar streams: streams whose markers name this attempt
    """

    def __init__(self, partition: int, *, shared: bool) -> None:
        self._partition, self._shared = partition, shared
        self.streams: dict[str, StreamTables] = {}

    @property
    def repeats(self) -> bool:
        return any(some.tables for some in self.streams.values())

    def rows(self, streams: ByStream, digests: Digests, claim: MakeClaim) -> tuple[Found, list[StoredFlights]]:
        """Match rows with stored rows: the result for each row, and the settled rows of each stream."""
        found, parts, keys = Found.nothing(len(digests)), [], keys_of(digests)
        for name, rows in streams:
            own, earlier = self.streams[name]
            for table, shared in ((own, False), (earlier, self._shared)):
                left = rows[found.sequence[rows] < 0]
                if table is not None and len(left) and len(table.rows):
                    wanted = Distinct.of(keys.take(left))
                    plan = table.rows.plan(wanted)
                    while shared and len((new := plan.claims()).keys):
                        claim(name, table.rows, new.head(MOST_CLAIMED))
                        plan = table.rows.plan(wanted)
                    found.put(left, table.rows.take(plan))
            matched = rows[found.sequence[rows] >= 0]
            if len(matched):
                parts.append(StoredFlights(name, matched, found.sequence[matched]))
        return found, parts

    def others(self, streams: ByStream, ids: Sequence[bytes]) -> list[StoredFlights]:
        """Stored dead letters with these ids, by stream."""
        parts = []
        for name, rows in streams:
            known = {text: sequence for table in self.streams[name].tables for text, sequence in table.others.items()}
            here = [(row, known[ids[row]]) for row in rows.tolist() if ids[row] in known]
            if here:
                parts.append(StoredFlights(name, *(np.array(column, np.int64) for column in zip(*here, strict=True))))
        return parts

    def free_numbers(self, streams: ByStream, digests: Digests, numbers: Int64s) -> Int64s:
        """Numbers for the ids of new messages, unused by the stored messages of this partition; ``numbers``: how many
        messages of equal content were published before each."""
        result = numbers.copy()
        for name, rows in streams:
            taken = [table.numbers(digests[rows], self._partition) for table in self.streams[name].tables]
            for i in set().union(*taken):
                used = np.unique(np.concatenate([some[i] for some in taken if i in some]))
                at = rows[i]
                result[at] = free_numbers(numbers[at : at + 1], used)[0]
        return result


# --- claims: stored rows of earlier runs, each reserved for one partition of this run ---------------------------------
#
# If a run has another number of partitions than the run before, two of its partitions may hold equal rows while only
# one is stored, under an id that names neither. So a task claims a stored row before it matches a row with it. The
# claims of a run form one log beside the markers: keys ``claim.0``, ``claim.1``, ..., each written by compare-and-set,
# so all tasks see one order. A claim takes a number of rows of each content for one partition: the first free ones, so
# all tasks that have read the same stored rows agree on them. A repeated task reuses the claims of its partition. A
# claim of another run is void, and the next claim with its number overwrites it.

MOST_CLAIMED = 16_384  #: contents in one claim: 16 bytes each


@dataclass(frozen=True, slots=True)
class Claim:
    """Contents, with numbers of rows, that a partition reserves; void for other runs."""

    batch: int
    run: str
    partition: int
    contents: Distinct


def encode_claim(claim: Claim) -> bytes:
    keys, counts = claim.contents.keys, claim.contents.counts
    head = orjson.dumps({"batch": claim.batch, "run": claim.run, "partition": claim.partition, "n": len(keys)})
    columns = (keys.high.astype("<u8"), keys.low.astype("<u4"), counts.astype("<u4"))
    return b"\n".join((head, b"".join(column.tobytes() for column in columns)))


def decode_claim(value: bytes) -> Claim | None:
    """None for an empty value; ConfigError: another program wrote it."""
    if not value:
        return None
    head, _, body = value.partition(b"\n")
    try:
        found = orjson.loads(head)
        n = int(found["n"])
        if len(body) != 16 * n:
            raise ValueError("its length is wrong")
        high = np.frombuffer(body, "<u8", n)
        low, counts = (np.frombuffer(body, "<u4", n, at) for at in (8 * n, 12 * n))
        contents = Distinct(Keys(high, low), counts.astype(np.int64))
        return Claim(int(found["batch"]), str(found["run"]), int(found["partition"]), contents)
    except (ValueError, TypeError, KeyError) as e:
        raise ConfigError(f"not a claim of mama-spark ({e}): {value[:100]!r}; does something else write there?") from e
