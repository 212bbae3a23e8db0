"""Matches rows with stored ones: tables of the rows in the streams, by the digest of their content. Pure. One thread
uses a table: that of the task."""

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

#: The contents of the rows of packed messages, shape (rows, 16), and how many rows each message has.
Unpack = Callable[[Records], tuple[Digests, Int64s]]


class StoredRows:
    """:ivar rows: with the content that default ids name, or that is named by the user's ids
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
        """As :meth:`.FoundRows.numbers`, by the place of the content in ``digests``."""
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
        if not len(parsed.rows):
            return  # dead letters alone
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


class StreamTables(NamedTuple):
    """The stored rows of one stream, of earlier attempts of this run and of earlier runs; None = there was none."""

    own: StoredRows | None = None
    earlier: StoredRows | None = None

    @property
    def tables(self) -> list[StoredRows]:
        return [table for table in self if table is not None]


#: Writes the next claim of a stream's log, or reads the one that is there, and notes it in the table.
MakeClaim = Callable[[str, FoundRows, Distinct], None]
#: Name of each stream, and numbers of the messages that it takes.
ByStream = Iterable[tuple[str, Int64s]]


class Matching:
    """The stored rows of one attempt, by stream; each settles one row.

    :param partition: of the attempt
    :param shared: rows of earlier runs may be rows of other partitions: they are claimed before they settle one
    :ivar streams: streams whose markers name this attempt
    """

    def __init__(self, partition: int, *, shared: bool) -> None:
        self._partition, self._shared = partition, shared
        self.streams: dict[str, StreamTables] = {}

    @property
    def repeats(self) -> bool:
        """Something may be stored already."""
        return any(some.tables for some in self.streams.values())

    def rows(self, streams: ByStream, digests: Digests, claim: MakeClaim) -> tuple[Found, list[StoredFlights]]:
        """Match these rows: the result for each row, and the same by stream."""
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
        """The stored messages whose ids are not of rows: for dead letters."""
        parts = []
        for name, rows in streams:
            known = {text: sequence for table in self.streams[name].tables for text, sequence in table.others.items()}
            here = [(row, known[ids[row]]) for row in rows.tolist() if ids[row] in known]
            if here:
                parts.append(StoredFlights(name, *(np.array(column, np.int64) for column in zip(*here, strict=True))))
        return parts

    def free_numbers(self, streams: ByStream, digests: Digests, numbers: Int64s) -> Int64s:
        """Numbers for the ids of messages that are published, none that a stored message of this partition has;
        ``numbers``: how many messages of the same content were published before each."""
        result = numbers.copy()
        for name, rows in streams:
            taken = [table.numbers(digests[rows], self._partition) for table in self.streams[name].tables]
            for i in set().union(*taken):
                used = np.unique(np.concatenate([some[i] for some in taken if i in some]))
                at = rows[i]
                result[at] = free_numbers(numbers[at : at + 1], used)[0]
        return result


# --- claims: which stored rows of earlier runs the tasks of this run have settled their rows with ---------------------
#
# Where a run has another number of partitions than the one before, equal rows may lie in two of its partitions while
# one of them is stored, with an id that names neither. So before a task settles a row with a stored one, it claims it.
# The claims of a run are one log in the store of the markers: the claims with the keys ``claim.0``, ``claim.1``, ...,
# each written by compare-and-set, so that all tasks see them in one order. A claim says how many rows of which contents
# a partition takes; they are the first ones that are free, so all tasks that have read the same stored rows agree on
# which these are. A repeated task finds the claims of its partition in the log and uses them again. A claim of another
# run is void, and is overwritten by the next one with its number.

MOST_CLAIMED = 16_384  #: contents in one claim: 16 bytes each


@dataclass(frozen=True, slots=True)
class Claim:
    """:ivar contents: with the number of rows of each; a claim of another run has none"""

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
    """None for an empty value; ConfigError: it is none of ours."""
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
