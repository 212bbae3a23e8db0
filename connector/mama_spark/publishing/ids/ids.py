"""Message ids that are the same in every attempt of a task, in whatever order its rows come.

Pure. An id is ``<prefix>-<batch>-<partition>-<h>-<n>``. Its format is a contract, version 1:

* ``h``: 32 lower-case hexadecimal digits, XXH3-128 (seed 0, canonical byte order, as ``xxhsum -H2`` prints it) of::

      u32 length of topic, topic, u32 number of headers,
      for each header, ascending by the bytes of its name:
          u32 length of name, name, u32 number of values, for each value in its order: u32 length, value
      payload

  Where each message says its stream: behind u32 length of stream, stream. Ids count for one stream, so equal rows of
  two streams are two rows, whose numbers ``n`` do not depend on which came first.
  Integers are little-endian, text is UTF-8. No headers and a null map are the same. A name that stands twice in a
  map keeps the order of the map.
* ``n``: decimal, how many equal rows (equal ``h``) this partition gave before.

Two laws make a retry safe. *Within one maker no id is ever given twice*, and an id names its content; so however a
first attempt ended and in whatever order the second one sees the rows, a broker that deduplicates on the id stores
each row at least once. And *the same multiset of rows gives the same set of ids in any order*, so it stores each row
at most once. Memory is bounded, so the second law has an exception, which may cost a duplicate: a false positive of
the filter (with the default memory one row in a thousand of ten million, six rows of one million), and a partition
with more distinct repeated rows than the table of repeats holds (393,000 with the default memory).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from xxhash import xxh3_128, xxh3_128_digest

from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.message import (
    BYTES_OF_HEADERS,
    Int64s,
    MessageBatch,
    fixed_width,
    join_columns,
    lengths_of,
    offsets_of,
    payload_bounds,
    u32_column,
)

from .key_table import BloomFilter, KeyTable, UInt64s

#: XXH3-128 of the content of each message, shape (n, 16).
Digests = npt.NDArray[np.uint8]

#: What an id ends with, behind a hyphen, for Python and for the SQL of delta-rs and Spark; the group is ``h``.
ID_END = "[0-9]{1,9}-([0-9a-f]{32})-[0-9]{1,9}"
IDS_MEMORY = 32 << 20  #: bytes, for some ten million rows
_HEX = np.frombuffer(b"".join(b"%02x" % i for i in range(256)), np.uint16)
_CHUNK = 16_384  #: rows hashed together: bounds the copies
_LARGE = 2_048  #: from this many bytes a row on, payloads are hashed where they lie
_BY_NAME = itemgetter(0)


class IdMaker:
    """Ids of the rows of one partition, in any number of batches.

    :param prefix: names the query or run; ConfigError: it has control characters
    :param batch: batch of the stream, 0 in batch writes without one
    :param memory: bound in bytes of all that is remembered
    """

    def __init__(self, prefix: str, batch: int, partition: int, memory: int = IDS_MEMORY) -> None:
        if any(ord(c) < 32 or ord(c) == 127 for c in prefix):
            raise ConfigError(f"the id prefix must not contain control characters, got {prefix!r}")
        if memory < 4096:
            raise ConfigError(f"ids need at least 4096 bytes of memory, got {memory}")
        self.prefix = f"{prefix}-{batch}-"  #: of the ids of all partitions
        self._head = f"{self.prefix}{partition}-".encode()
        self._seen = BloomFilter(memory * 11 // 16)
        slots = 1 << (memory // 64).bit_length() - 1
        self._repeats = KeyTable(1, slots, 0.75, first=slots)
        self._overflow = np.zeros(max(1, memory // 32 // 8), np.int64)

    def ids(
        self,
        batch: MessageBatch,
        digests: npt.NDArray[np.uint8] | None = None,
        renumber: Callable[[Int64s], Int64s] | None = None,
    ) -> pa.Array:
        """One id a row: a string array of ``len(batch)``. Null elements count as empty ones.
        ``renumber``: makes the numbers ``n`` from how many equal rows came before each."""
        if not len(batch):
            return pa.array([], pa.string())
        digests = digest(batch) if digests is None else digests
        numbers = self._numbers(np.ascontiguousarray(digests).view(np.uint64)[:, 0])
        return self._text(digests, numbers if renumber is None else renumber(numbers))

    @property
    def nbytes(self) -> int:
        return self._seen.nbytes + self._repeats.nbytes + self._overflow.nbytes

    def _numbers(self, keys: UInt64s) -> Int64s:
        """Number of equal rows before each, here and in earlier batches. 64 bits of the hash are the key: two rows
        that share them share a count, which only makes it too high."""
        ordered = np.sort(keys)
        if (ordered[1:] != ordered[:-1]).all():
            return self._starts(keys, np.ones(len(keys), np.int64))
        distinct, inverse, counts = np.unique(keys, return_inverse=True, return_counts=True)
        order = np.argsort(inverse, kind="stable")
        ranks = np.empty(len(keys), np.int64)
        ranks[order] = np.arange(len(keys)) - np.repeat(np.cumsum(counts) - counts, counts)
        numbers: Int64s = self._starts(distinct, counts.astype(np.int64))[inverse] + ranks
        return numbers

    def _starts(self, keys: UInt64s, counts: Int64s) -> Int64s:
        starts = np.zeros(len(keys), np.int64)
        old = self._seen.add(keys)
        again = np.flatnonzero(old | (counts > 1))
        if not len(again):
            return starts
        # keys of the filter that the repeats lack were given once, with number 0
        slots = self._repeats.find((keys[again],), old[again].astype(np.int64) + 1)  # one more than were given
        held, left = slots >= 0, slots < 0
        starts[again[held]] = self._repeats.numbers[slots[held]] - 1
        self._repeats.numbers[slots[held]] += counts[again[held]]
        if left.any():
            starts[again[left]] = self._spill(keys[again[left]], counts[again[left]])
        return starts

    def _spill(self, keys: UInt64s, counts: Int64s) -> Int64s:
        """The first numbers once the repeats are full: shared counters, which only rise, so no number comes twice."""
        cells = (keys % np.uint64(len(self._overflow))).astype(np.int64)
        order = np.argsort(cells, kind="stable")
        before = np.cumsum(counts[order]) - counts[order]
        _, first, group = np.unique(cells[order], return_index=True, return_inverse=True)
        starts = np.empty(len(keys), np.int64)
        starts[order] = 1 + self._overflow[cells[order]] + before - before[first][group]
        np.add.at(self._overflow, cells, counts)
        return starts

    def _text(self, digests: npt.NDArray[np.uint8], numbers: Int64s) -> pa.Array:
        n, head = len(digests), self._head
        if numbers.any():
            hexes = fixed_width(_HEX[digests].view(np.uint8).reshape(n, 32))
            digits = pc.cast(pa.array(numbers), pa.string()).cast(pa.binary())
            joined = pc.binary_join_element_wise(pa.scalar(head), hexes, pa.scalar(b"-"), digits, pa.scalar(b""))
            return joined.cast(pa.string())
        text = np.empty((n, len(head) + 34), np.uint8)
        text[:, : len(head)] = np.frombuffer(head, np.uint8)
        text[:, len(head) : -2] = _HEX[digests].view(np.uint8).reshape(n, 32)
        text[:, -2:] = np.frombuffer(b"-0", np.uint8)
        return fixed_width(text).cast(pa.string())


class ParsedIds(NamedTuple):
    """Ids of one batch, taken apart.

    :ivar rows: rows whose ids have this form, ascending; the others are of other messages (dead letters)
    :ivar digests: ``h``, shape (rows, 16)
    """

    rows: Int64s
    digests: npt.NDArray[np.uint8]
    partitions: Int64s
    numbers: Int64s


def parse(ids: Sequence[bytes], head: int) -> ParsedIds:
    """Take ids apart; ``head``: length of an id before the partition."""
    rows: Int64s = np.arange(len(ids))
    found = _parse_alike(ids, head) if ids else None
    if found is None:
        good = [i for i, text in enumerate(ids) if _ID.fullmatch(text, head)]
        rows, parts = np.array(good, np.int64), [part for i in good for part in ids[i][head:].split(b"-")]
        digests = np.frombuffer(bytes.fromhex(b"".join(parts[1::3]).decode()), np.uint8).reshape(-1, 16)
        partitions, numbers = (np.array(list(map(int, some)), np.int64) for some in (parts[0::3], parts[2::3]))
        found = digests, partitions, numbers
    return ParsedIds(rows, *found)


_ID = re.compile(ID_END.encode())
_NIBBLES = np.full(256, 255, np.uint8)
_NIBBLES[np.frombuffer(b"0123456789abcdef", np.uint8)] = np.arange(16)


def _parse_alike(ids: Sequence[bytes], head: int) -> tuple[npt.NDArray[np.uint8], Int64s, Int64s] | None:
    """The parts of :func:`parse` without a loop, for ids whose parts are equally long, as most are: those of one
    partition whose rows all differ. None for others."""
    first = _ID.fullmatch(ids[0], head)
    whole = b"".join(ids)
    width = len(ids[0])
    if first is None or len(whole) != width * len(ids) or set(map(len, ids)) != {width}:
        return None
    text = np.frombuffer(whole, np.uint8).reshape(len(ids), width)
    dash = ids[0].index(b"-", head)
    nibbles: npt.NDArray[np.uint8] = _NIBBLES[text[:, dash + 1 : dash + 33]]
    partitions, numbers = _digits(text[:, head:dash]), _digits(text[:, dash + 34 :])
    dashes = (text[:, dash] == ord("-")).all() and (text[:, dash + 33] == ord("-")).all()
    if not dashes or partitions is None or numbers is None or int(nibbles.max()) == 255:
        return None
    digests = np.left_shift(nibbles[:, 0::2], 4, dtype=np.uint8) | nibbles[:, 1::2]
    return digests, partitions, numbers


def _digits(text: npt.NDArray[np.uint8]) -> Int64s | None:
    """Decimal numbers of one width; None if a character is no digit."""
    values = text.astype(np.int64) - ord("0")
    if values.size and (int(values.min()) < 0 or int(values.max()) > 9):
        return None
    numbers: Int64s = values @ (10 ** np.arange(text.shape[1] - 1, -1, -1, dtype=np.int64))
    return numbers


def texts(head: str, partitions: Int64s, digests: npt.NDArray[np.uint8], numbers: Int64s) -> pa.Array:
    """The ids that :func:`parse` takes apart."""
    hexes = fixed_width(_HEX[digests].view(np.uint8).reshape(len(digests), 32))
    strings = [pc.cast(pa.array(some), pa.string()).cast(pa.binary()) for some in (partitions, numbers)]
    dash = pa.scalar(b"-")
    joined = pc.binary_join_element_wise(
        pa.scalar(head.encode()), strings[0], dash, hexes, dash, strings[1], pa.scalar(b"")
    )
    return joined.cast(pa.string())


def digest(batch: MessageBatch) -> npt.NDArray[np.uint8]:
    """The 16 bytes of ``h`` of every message, shape (n, 16)."""
    parts = [_digest(batch.slice(i, _CHUNK)) for i in range(0, len(batch), _CHUNK)]
    return np.frombuffer(b"".join(parts), np.uint8).reshape(len(batch), 16)


def _digest(batch: MessageBatch) -> bytes:
    offsets, data = payload_bounds(batch.payloads), memoryview(batch.payloads.buffers()[2] or b"")
    ends = offsets.tolist()
    large = ends[-1] - ends[0] >= _LARGE * len(batch)
    heads = _heads(batch, few=large)
    if large:
        return b"".join([_streamed(h, data[a:b]) for h, a, b in zip(heads, ends, ends[1:], strict=False)])
    base = ends[0]
    body = bytes(data[base : ends[-1]])
    ends = (offsets - base).tolist()
    # the one loop over rows: about 300 ns each, of which the hash itself takes a third
    return b"".join([xxh3_128_digest(h + body[a:b]) for h, a, b in zip(heads, ends, ends[1:], strict=False)])


def _streamed(head: bytes, payload: memoryview) -> bytes:
    hasher = xxh3_128(head)
    hasher.update(payload)
    out: bytes = hasher.digest()
    return out


def _heads(batch: MessageBatch, *, few: bool) -> list[bytes]:
    """The bytes before the payload, for each row; ``few``: a loop over rows costs less than calls for columns."""
    names, indices = batch.topics.dictionary.to_pylist(), batch.topics.indices
    topics = [counted((name or "").encode()) for name in names] + [counted(b"")]
    codes = (indices.fill_null(len(names)) if indices.null_count else indices).to_pylist()
    if batch.headers is None or batch.headers.null_count == len(batch):
        topics = [topic + bytes(4) for topic in topics]
        heads = [topics[c] for c in codes]
    else:
        headers = _headers_of_few(batch.headers) if few else _headers(batch.headers).to_pylist()
        heads = [topics[c] + h for c, h in zip(codes, headers, strict=True)]
    if batch.streams is None:
        return heads
    streams = [counted(name.encode()) for name in batch.streams.dictionary.to_pylist()]
    return [streams[c] + head for c, head in zip(batch.streams.indices.to_pylist(), heads, strict=True)]


def counted(value: bytes) -> bytes:
    """A text behind its length, so that no two lists of texts are the same bytes."""
    return _u32(len(value)) + value


def _u32(number: int) -> bytes:
    return number.to_bytes(4, "little")


def _headers_of_few(maps: pa.MapArray) -> list[bytes]:
    known: dict[tuple[bytes, tuple[bytes | None, ...]], tuple[bytes, bytes]] = {}  # most entries come again
    found = []
    for entries in maps.view(BYTES_OF_HEADERS).to_pylist():
        parts = []
        for name, values in entries or ():
            entry = name, tuple(values or ())
            part = known.get(entry)
            if part is None:
                texts = [counted(value or b"") for value in entry[1]]
                part = known[entry] = name, counted(name) + _u32(len(texts)) + b"".join(texts)
            parts.append(part)
        parts.sort(key=_BY_NAME)  # stable: equal names keep their order
        found.append(_u32(len(parts)) + b"".join([text for _, text in parts]))
    return found


def _headers(maps: pa.MapArray) -> pa.Array:
    """The header part of ``h``'s input, a binary value a row."""
    starts = maps.offsets.to_numpy().astype(np.int64)
    sizes = np.where(maps.is_valid().to_numpy(zero_copy_only=False), np.diff(starts), 0)
    picked = pa.array(np.repeat(starts[:-1] - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum()))
    names, lists = maps.keys.take(picked), maps.items.take(picked)
    rows = np.repeat(np.arange(len(maps)), sizes)
    coded = names.cast(pa.binary()).dictionary_encode()
    rank = np.argsort(np.argsort(np.array(coded.dictionary.to_pylist() or [b""], object), kind="stable"))
    order = np.lexsort((rank[coded.indices.to_numpy()], rows))  # stable: equal names keep their order
    values = join_columns([u32_column(lengths_of(lists.flatten())), lists.flatten().cast(pa.binary()).fill_null(b"")])
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy()
    grouped = pc.binary_join(pa.ListArray.from_arrays(offsets_of(counts), values), b"")
    entry = join_columns([u32_column(lengths_of(names)), names.cast(pa.binary()), u32_column(counts), grouped]).take(
        pa.array(order)
    )
    return join_columns([u32_column(sizes), pc.binary_join(pa.ListArray.from_arrays(offsets_of(sizes), entry), b"")])
