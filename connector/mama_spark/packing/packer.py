"""Gathers rows by destination and cuts them into packs. Pure: nothing here waits or sends.

Rows of one destination (stream, topic, and the parts of the topic) keep their order. A pack is cut as soon as it is
full, so the cuts depend on the rows of the destination alone, until the gathered bytes exceed the limit: then the
largest unfinished packs are cut first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ..contracts.message import HEADERS_TYPE, Bools, Int64s, MessageBatch
from .codec import Codec
from .format import PACK, PACK_ROWS
from .gathering.value_views import ValueViews, binary_of, joined

#: Bytes of rows that wait for their packs to be full, in one partition, at most.
GATHER_BYTES = 32 << 20
#: Bytes and packs that are encoded and yielded together. More than ``CUT_BYTES``, so that a cut is mostly one block:
#: each costs some two milliseconds beside its rows.
BLOCK_BYTES, BLOCK_PACKS = 20 << 20, 2_048
#: So many new rows or bytes are cut into packs, if they are at least half of the bytes that already wait, so that
#: waiting rows are copied a bounded number of times.
CUT_ROWS, CUT_BYTES = 65_536, 16 << 20
#: Number of a row that is stored already. It counts where packs are cut, so that the others are packed as they were the
#: first time, and is in no pack.
STORED = -1
_NO_COLUMNS = pa.RecordBatch.from_arrays([], schema=pa.schema([]))
#: Rows are added in such pieces: a batch of Spark may have 64 MB, and usually has 10,000 rows.
_PIECE_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows that can be packed, in columns of equal length.

    :ivar topics: dictionary<int32, string>, no nulls
    :ivar numbers: numbers of the rows in the partition, int64, or :data:`STORED`
    :ivar streams: dictionary<int32, string>; None = the one of the transport
    :ivar parts: string columns that become headers of the message, by the name of the header; null = no such header
    :ivar extra: columns for the flight log, which are not packed
    """

    topics: pa.DictionaryArray
    columns: pa.RecordBatch
    numbers: Int64s
    streams: pa.DictionaryArray | None = None
    parts: pa.RecordBatch | None = None
    extra: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def nbytes(self) -> int:
        held = (self.columns, self.extra)
        return 16 * len(self) + sum(int(part.nbytes) for part in held if part is not None)

    def slice(self, offset: int, length: int) -> Rows:
        return self._each(lambda part: part.slice(offset, length), self.numbers[offset : offset + length])

    def take(self, rows: Int64s) -> Rows:
        index = pa.array(rows)
        return self._each(lambda part: part.take(index), self.numbers[rows])

    def _each(self, change: Any, numbers: Int64s) -> Rows:
        changed: dict[str, Any] = {"numbers": numbers}
        for f in fields(self):
            part = getattr(self, f.name)
            if f.name != "numbers" and part is not None:
                changed[f.name] = change(part)
        return replace(self, **changed)


@dataclass(frozen=True, slots=True)
class Packed:
    """Packs as messages without ids, and the rows in them, pack by pack.

    :ivar starts: int64[packs + 1]: pack ``i`` carries ``starts[i + 1] - starts[i]`` rows
    :ivar numbers: numbers of the rows in the partition
    """

    batch: MessageBatch
    starts: Int64s
    numbers: Int64s
    extra: pa.RecordBatch | None = None

    def __len__(self) -> int:
        return len(self.batch)

    @property
    def rows(self) -> Int64s:
        counts: Int64s = np.diff(self.starts)
        return counts


class Packer:
    """Packs of one partition.

    :param max_bytes: payload bytes of a pack at most; a row that needs more travels alone
    :param max_waiting: bytes of rows that may wait
    """

    def __init__(self, codec: Codec, *, max_rows: int, max_bytes: int, max_waiting: int = GATHER_BYTES) -> None:
        self._codec = codec
        self._max_rows = max_rows
        self._max_bits = max(8, max_bytes * 8 - codec.fixed_bits)
        self._max_waiting = max_waiting
        self._old: Rows | None = None  # rows that were left over by earlier cuts
        self._new: list[Rows] = []
        self._new_bytes = self._new_rows = 0

    @property
    def nbytes(self) -> int:
        return self._old_bytes + self._new_bytes

    @property
    def _old_bytes(self) -> int:
        return 0 if self._old is None else self._old.nbytes

    def add(self, rows: Rows) -> Iterator[Packed]:
        """Add rows; yields full packs, which are encoded while they are iterated: iterate to the end."""
        step = max(1, len(rows) * _PIECE_BYTES // max(1, rows.nbytes))
        for start in range(0, len(rows), step):
            piece = rows.slice(start, min(step, len(rows) - start)) if step < len(rows) else rows
            self._new.append(replace(piece, columns=self._codec.normal(piece.columns)))
            self._new_bytes += piece.nbytes
            self._new_rows += len(piece)
            enough = self._new_rows >= CUT_ROWS or self._new_bytes >= CUT_BYTES
            if (enough and self._new_bytes >= self._old_bytes // 2) or self.nbytes > self._max_waiting:
                yield from self._cut(everything=False)

    def finish(self) -> Iterator[Packed]:
        if self._new or self._old is not None:
            yield from self._cut(everything=True)

    def _cut(self, *, everything: bool) -> Iterator[Packed]:
        rows = [*([] if self._old is None else [self._old]), *self._new]
        n_old = 0 if self._old is None else len(self._old)
        values = self._codec.views([r.columns for r in rows])
        if len(self._new) > 1 and values is None:  # what must be joined takes the old rows along
            rows, n_old = [_concatenated(rows)], 0
        self._old, self._new, self._new_bytes, self._new_rows = None, [], 0, 0
        waiting = _Waiting(self._codec, rows, values)
        order, places = _by_destination(waiting.labels)
        bits = np.concatenate([self._codec.row_bits(r.columns) for r in rows])
        upto = np.zeros(len(bits) + 1, np.int64)
        np.cumsum(bits if order is None else bits[order], out=upto[1:])
        starts, unfinished = cuts(upto, places, self._max_rows, self._max_bits)
        weights = upto[starts[1:]] - upto[starts[:-1]]
        held = weights.astype(np.float64) * (sum(r.nbytes for r in rows) / max(1, int(upto[-1])))
        go = np.ones(len(unfinished), np.bool_) if everything else self._due(unfinished, held)
        if not go.all():
            left = ranges(starts[:-1][~go], starts[1:][~go])
            self._old = _compact(waiting.take(left if order is None else order[left]))
        # Packs that begin with an old row go first, each the first of its place: where rows must be copied to stand
        # side by side, those of the others, which have new rows only, are copied once.
        heads = starts[:-1] if order is None else order[starts[:-1]]
        new = heads >= n_old
        groups = [np.flatnonzero(go & ~new), np.flatnonzero(go & new)]
        for packs in groups if values is None else [np.concatenate(groups)]:
            blocks = np.maximum(np.cumsum(weights[packs]) // (BLOCK_BYTES * 8), np.arange(len(packs)) // BLOCK_PACKS)
            for some in filter(len, np.split(packs, np.flatnonzero(np.diff(blocks)) + 1)):
                made = waiting.encoded(order, starts[:-1][some], starts[1:][some])
                if len(made):
                    yield made

    def _due(self, unfinished: Bools, held: npt.NDArray[np.floating[Any]]) -> Bools:
        """The packs to send now: the finished ones, and of the others the largest when too many bytes wait."""
        go = ~unfinished
        waiting = np.flatnonzero(unfinished)
        total = held[waiting].sum()
        if total > self._max_waiting:
            largest = waiting[np.argsort(-held[waiting], kind="stable")]
            enough = int(np.searchsorted(np.cumsum(held[largest]), total - self._max_waiting / 2)) + 1
            go[largest[:enough]] = True
        return go


class _Waiting:
    """Rows of which packs are made, one after the other.

    :param values: values of all rows; None = a pack has more than values
    :ivar labels: the rows without what is packed
    """

    def __init__(self, codec: Codec, rows: list[Rows], values: ValueViews | None) -> None:
        self._codec, self._rows, self._values = codec, rows, values
        labels = [replace(r, columns=_NO_COLUMNS) for r in rows]
        self.labels = labels[0] if len(labels) == 1 else _concatenated(labels)

    def encoded(self, order: Int64s | None, starts: Int64s, ends: Int64s) -> Packed:
        """Packs of the rows from each start to its end, counted in the order given."""
        index = ranges(starts, ends)
        index = index if order is None else order[index]
        lengths, left = ends - starts, self.labels.numbers[index] != STORED
        whole = bool(left.all())
        if not whole:
            lengths = np.add.reduceat(left, np.cumsum(lengths) - lengths, dtype=np.int64)
            lengths, index = lengths[lengths > 0], index[left]
        local = np.concatenate(([0], np.cumsum(lengths)))
        if self._values is not None:
            payloads = self._codec.encode_views(self._values.take(index), local)
            numbers, extra = self.labels.numbers[index], self.labels.extra
            batch = _messages(self._codec, self.labels, payloads, local, index[local[:-1]])
            return Packed(batch, local, numbers, None if extra is None else extra.take(pa.array(index)))
        first, begin = int(starts[0]), sum(map(len, self._rows[:-1]))  # of the last rows
        if whole and order is None and first >= begin and (starts[1:] == ends[:-1]).all():
            return packed(self._codec, self._rows[-1].slice(first - begin, len(index)), local)
        return packed(self._codec, _taken(self._rows, index), local)

    def take(self, index: Int64s) -> Rows:
        if self._values is None:
            return _taken(self._rows, index)
        some = self._values.take(index)
        column = binary_of(joined(some.views, some.buffers), some.sizes)
        columns = pa.RecordBatch.from_arrays([column], schema=self._rows[0].columns.schema)
        return replace(self.labels.take(index), columns=columns)


def packed(codec: Codec, rows: Rows, starts: Int64s) -> Packed:
    """Packs of rows that are grouped already, in the types of ``codec``."""
    batch = _messages(codec, rows, codec.encode(rows.columns, starts), starts, starts[:-1])
    return Packed(batch, starts, rows.numbers, rows.extra)


def _messages(codec: Codec, rows: Rows, payloads: pa.Array, starts: Int64s, heads: Int64s) -> MessageBatch:
    """A message a pack; ``heads``: places in ``rows`` of the first row of each pack."""
    return MessageBatch(
        _compacted(rows.topics.take(pa.array(heads))),
        payloads,
        _headers(codec.format.value, np.diff(starts), rows.parts, heads),
        streams=None if rows.streams is None else _compacted(rows.streams.take(pa.array(heads))),
    )


def cuts(upto: Int64s, places: Int64s, max_rows: int, max_bits: int) -> tuple[Int64s, Bools]:
    """First rows of packs, ascending, with the end of the last; and which packs are the last of their destination and
    could take more rows.

    :param upto: int64[rows + 1]: bits of all rows before
    :param places: first row of each destination, with the end of the last
    """
    begin, end = places[:-1], places[1:]
    bits = upto[end] - upto[begin]
    long = np.flatnonzero((bits > max_bits) | (end - begin > max_rows))
    more = []
    for start, stop in zip(begin[long].tolist(), end[long].tolist(), strict=True):
        at = start
        while True:  # packs, not rows
            fits = int(upto.searchsorted(upto[at] + max_bits, "right")) - 1
            at = max(at + 1, min(fits, at + max_rows))
            if at >= stop:
                break
            more.append(at)
    starts = np.sort(np.concatenate((places, np.array(more, np.int64)))) if more else places
    unfinished: Bools = np.zeros(len(starts) - 1, np.bool_)
    unfinished[np.searchsorted(starts, end) - 1] = True
    unfinished &= np.diff(starts) < max_rows
    return starts, unfinished


def _by_destination(rows: Rows) -> tuple[Int64s | None, Int64s]:
    """The order that groups rows by destination (None: they are grouped), and where each destination begins."""
    codes: npt.NDArray[np.integer[Any]] = rows.topics.indices.to_numpy(zero_copy_only=False)
    others = [] if rows.streams is None else [rows.streams]
    if rows.parts is not None:
        others += [column.dictionary_encode() for column in rows.parts.columns]
    for column in others:
        distinct = len(column.dictionary) + 1
        index = column.indices.fill_null(distinct - 1).to_numpy(zero_copy_only=False)
        codes = np.unique(codes.astype(np.int64) * distinct + index, return_inverse=True)[1]
    order = None
    if codes.max(initial=0) < 1 << 16:
        codes = codes.astype(np.uint16)  # which numpy sorts by radix
    if (codes[1:] < codes[:-1]).any():
        order = np.argsort(codes, kind="stable")
        codes = codes[order]
    inner = np.flatnonzero(codes[1:] != codes[:-1]) + 1
    return order, np.concatenate(([0], inner, [len(codes)])).astype(np.int64)


def ranges(starts: Int64s, ends: Int64s) -> Int64s:
    lengths = ends - starts
    first = np.cumsum(lengths) - lengths
    numbers: Int64s = np.repeat(starts - first, lengths) + np.arange(int(lengths.sum()))
    return numbers


def _concatenated(rows: list[Rows]) -> Rows:
    joined: dict[str, Any] = {"numbers": np.concatenate([r.numbers for r in rows])}
    for f in fields(Rows):
        parts = [getattr(r, f.name) for r in rows]
        if f.name != "numbers" and parts[0] is not None:
            joined[f.name] = _one(parts)
    return replace(rows[0], **joined)


def _one(parts: list[Any]) -> Any:
    if len(parts) == 1:
        return parts[0]
    if isinstance(parts[0], pa.RecordBatch):
        if not parts[0].num_columns:
            return parts[0]
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]
    return pa.chunked_array(parts).unify_dictionaries().combine_chunks()


def _taken(rows: list[Rows], index: Int64s) -> Rows:
    """Rows at ``index``, counted through all of ``rows``."""
    begin = sum(map(len, rows[:-1]))
    last = index >= begin
    if last.all():
        return rows[-1].take(index - begin)
    if not last.any():
        return rows[0].take(index)
    place = np.empty(len(index), np.int64)
    place[np.argsort(last, kind="stable")] = np.arange(len(index))
    return _concatenated([rows[0].take(index[~last]), rows[-1].take(index[last] - begin)]).take(place)


def _compact(rows: Rows) -> Rows:
    streams = None if rows.streams is None else _compacted(rows.streams)
    return replace(rows, topics=_compacted(rows.topics), streams=streams)


def _compacted(column: pa.DictionaryArray) -> pa.DictionaryArray:
    used, codes = np.unique(column.indices.to_numpy(zero_copy_only=False), return_inverse=True)
    if len(used) == len(column.dictionary):
        return column
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)), column.dictionary.take(pa.array(used)))


def _headers(form: str, counts: Int64s, parts: pa.RecordBatch | None, heads: Int64s) -> pa.Array:
    """A map a pack. The loop is over packs."""
    maps = [[(PACK, [form]), (PACK_ROWS, [str(n)])] for n in counts.tolist()]
    if parts is not None:
        few = parts.take(pa.array(heads))
        for name, column in zip(few.schema.names, few.columns, strict=True):
            for entries, value in zip(maps, column.to_pylist(), strict=True):
                if value is not None:
                    entries.append((name, [value]))
    return pa.array(maps, HEADERS_TYPE)
