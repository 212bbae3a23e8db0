"""Columns of headers of many records: parts of them, and which records are packs, of which format and how many rows.
Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..contracts.headers import MAX_PACK_ROWS, MSG_ID
from ..contracts.message import HEADERS_TYPE, Int64s, MessageBatch, payload_sizes
from ..contracts.record_log import Records
from .format import MAX_PLAIN_BYTES, PACK, PACK_BYTES, PACK_ENCODING, PACK_ROWS

#: Headers up to which a loop over them is faster than the calls for columns.
FEW_HEADERS = 1024


class PackHeaders(NamedTuple):
    """The headers of packs, one element a record.

    :ivar formats: string, null = no pack
    :ivar rows: string, null = not given; unchecked
    :ivar counts: the same as numbers; -1 = no number from 1 to the limit
    :ivar encodings: string, of compressed packs of lines; null = not given
    :ivar plain_bytes: bytes of compressed packs without compression; -1 = no number from 1 to the limit
    """

    formats: pa.Array
    rows: pa.Array
    counts: Int64s
    encodings: pa.Array
    plain_bytes: Int64s

    def slice(self, start: int, stop: int) -> PackHeaders:
        n = stop - start
        return PackHeaders(
            self.formats.slice(start, n), self.rows.slice(start, n), self.counts[start:stop],
            self.encodings.slice(start, n), self.plain_bytes[start:stop],
        )  # fmt: skip

    def sizes(self, payloads: pa.Array) -> Int64s:
        """Bytes of each record without compression, as it announces them."""
        return np.maximum(payload_sizes(payloads), self.plain_bytes)

    def announced(self, payloads: pa.Array) -> Int64s:
        """Announced rows of each record, which may be wrong, limited to what its bytes could hold."""
        counts = np.minimum(np.maximum(self.counts, 1), 8 * self.sizes(payloads) + 1)
        if self.formats.null_count:
            counts[self.formats.is_null().to_numpy(zero_copy_only=False)] = 1
        return counts


def pack_headers(records: Records) -> PackHeaders | None:
    """The headers of packs; None = none of the records is a pack."""
    if records.headers is None:
        return None
    names = (PACK, PACK_ROWS, PACK_ENCODING, PACK_BYTES)
    formats, rows, encodings, plain_bytes = first_values(records.headers, *names)
    if formats.null_count == len(records):
        return None
    return PackHeaders(formats, rows, _numbers(rows, MAX_PACK_ROWS), encodings, _numbers(plain_bytes, MAX_PLAIN_BYTES))


def announced_rows(records: Records) -> Int64s:
    """Announced rows of each record (:meth:`PackHeaders.announced`)."""
    packs = pack_headers(records)
    return np.ones(len(records), np.int64) if packs is None else packs.announced(records.payloads)


def rows_of_messages(batch: MessageBatch) -> Int64s:
    """Rows that each message announces; 1 for what is no pack."""
    if batch.headers is None:
        return np.ones(len(batch), np.int64)
    return np.maximum(_numbers(first_values(batch.headers, PACK_ROWS)[0], MAX_PACK_ROWS), 1)


def _numbers(texts: pa.Array, most: int) -> Int64s:
    """-1 = no number from 1 to the limit."""

    def number(text: str) -> int:
        found = int(text) if re.fullmatch("[1-9][0-9]{0,8}", text) else -1
        return found if found <= most else -1

    return map_distinct(texts, number, -1)


def map_distinct(texts: pa.Array, meaning: Callable[[str], int], missing: int) -> Int64s:
    """``meaning`` of each text, called once for each distinct one: packs of one batch mostly have the same headers."""
    if texts.null_count == len(texts):
        return np.full(len(texts), missing, np.int64)
    if len(texts) <= FEW_HEADERS:
        each = texts.to_pylist()
        numbers = {text: missing if text is None else meaning(text) for text in set(each)}
        return np.array([numbers[text] for text in each], np.int64)
    known = texts.dictionary_encode()
    meanings = np.array([*map(meaning, known.dictionary.to_pylist()), missing], np.int64)
    codes = known.indices.fill_null(len(meanings) - 1) if texts.null_count else known.indices
    found: Int64s = meanings[codes.to_numpy()]
    return found


def first_values(headers: pa.MapArray, *names: str) -> list[pa.Array]:
    """The first value of the header of each name of each message, null where it has none: string arrays."""
    rows, keys, items = header_entries(headers)
    if len(keys) <= FEW_HEADERS:
        return _first_of_few(len(headers), names, rows.tolist(), keys.to_pylist(), items)
    offsets = items.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    found = []
    for name in names:
        named = np.flatnonzero(pc.equal(keys, name).to_numpy(zero_copy_only=False))
        named = named[offsets[named + 1] > offsets[named]]  # a name without a value is no header
        if not len(named):
            found.append(pa.nulls(len(headers), pa.string()))
            continue
        at = np.full(len(headers), -1, np.int64)
        at[rows[named][::-1]] = offsets[named][::-1]  # the first one counts
        found.append(as_type(items.values.take(pa.array(at, mask=at < 0)), pa.string()))
    return found


def _first_of_few(
    n: int, names: tuple[str, ...], rows: list[int], keys: list[str], items: pa.ListArray
) -> list[pa.Array]:
    found: dict[str, dict[int, int]] = {name: {} for name in names}
    starts = items.offsets.to_pylist()
    for row, key, (start, end) in zip(rows, keys, pairwise(starts), strict=True):
        if key in found and end > start:
            found[key].setdefault(row, start)
    first, last = starts[0], starts[-1]
    values = as_type(items.values.slice(first, last - first), pa.string()).to_pylist()
    return [
        pa.array([values[at[row] - first] if row in at else None for row in range(n)], pa.string())
        if (at := found[name]) else pa.nulls(n, pa.string())
        for name in names
    ]  # fmt: skip


def header_entries(headers: pa.MapArray) -> tuple[Int64s, pa.Array, pa.ListArray]:
    """Row, name and list of values of every header."""
    offsets = headers.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    first, last = int(offsets[0]), int(offsets[-1])
    rows = np.repeat(np.arange(len(headers)), np.diff(offsets))
    return rows, headers.keys.slice(first, last - first), headers.items.slice(first, last - first)


def with_some_entries(headers: pa.MapArray, kept: Int64s) -> pa.MapArray:
    """The headers with the entries ``kept`` of :func:`header_entries` only; null where none is left."""
    return _taken(len(headers), *header_entries(headers), kept)


def _taken(n: int, rows: Int64s, keys: pa.Array, items: pa.ListArray, kept: Int64s) -> pa.MapArray:
    index = pa.array(kept)
    return map_of_entries(n, rows[kept], keys.take(index), items.take(index))


def split_ids(headers: pa.MapArray, keep: bool) -> tuple[pa.Array, pa.Array]:
    """The ids of messages, and with ``keep`` the headers without them; null where there are none."""
    (ids,) = first_values(headers, MSG_ID)
    if not keep:
        return ids, pa.nulls(len(headers), HEADERS_TYPE)
    rows, keys, items = header_entries(headers)
    others = np.flatnonzero(pc.not_equal(keys, MSG_ID).to_numpy(zero_copy_only=False))
    if len(others) == len(keys):
        return ids, headers.cast(HEADERS_TYPE)
    return ids, _taken(len(headers), rows, keys, items, others) if len(others) else pa.nulls(len(headers), HEADERS_TYPE)


def map_of_entries(n: int, rows: Int64s, names: pa.Array, values: pa.Array) -> pa.MapArray:
    """Headers of ``n`` messages; null for a message without.

    :param rows: ascending, one an entry
    :param values: lists
    """
    counts = np.bincount(rows, minlength=n)
    offsets = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    starts = pa.array(offsets, mask=np.append(counts == 0, False))
    return pa.MapArray.from_arrays(starts, names, values).cast(HEADERS_TYPE)


def map_of_lines(n: int, rows: Int64s, names: pa.Array, values: pa.Array) -> pa.MapArray | None:
    """The map of :func:`map_of_entries`, of one value an entry; None: a message has a name twice."""
    codes = names.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    if len(np.unique(rows * (codes.max() + 1) + codes)) < len(rows):
        return None
    return map_of_entries(n, rows, names, one_value_lists(values))


def one_value_lists(values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(np.arange(len(values) + 1, dtype=np.int32)), values)


def as_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    return column if column.type == kind else column.cast(kind)
