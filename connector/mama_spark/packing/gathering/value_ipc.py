"""Writes and reads record batches of one binary column without nulls as Arrow IPC messages, many at a time. Pure.

The bytes are those of :meth:`pyarrow.RecordBatch.serialize`. Its metadata has the same length for every batch of a
schema; only numbers in it differ, which are written into a copy of it.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ...contracts.message import Int64s
from ..ipc import BatchNumbers, batch_numbers
from .value_views import INLINE, PayloadPlaces, Views, binary_of, joined

_ALIGN = 8


class ValueFrames:
    """The frames around the values of packs.

    :param schema: one binary column
    :param begin: bytes before each message, a multiple of eight
    """

    def __init__(self, schema: pa.Schema, begin: bytes, end: bytes) -> None:
        # of buffers: pa.array would load pandas
        offsets = pa.py_buffer(np.array([0, 1], np.int32))
        value = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(b"x")])
        sample = pa.RecordBatch.from_arrays([value], schema=schema).serialize().to_pybytes()
        size = 8 + int.from_bytes(sample[4:8], "little")
        self._begin = begin
        self._head = np.frombuffer(begin + sample[:size], np.int64)
        self._numbers: BatchNumbers = batch_numbers(sample[8:size])
        self._closing = bytes(_ALIGN - 1) + end
        self._end = len(end)

    def heads(self, sizes: Int64s, starts: Int64s) -> tuple[pa.Buffer, Int64s]:
        """The heads before the values: begin, metadata and offsets of each pack, one after the other, and where each
        begins, with the end of the last.

        :param sizes: bytes of each value
        :param starts: first value of each pack, with the end of the last
        """
        rows = np.diff(starts)
        upto = np.concatenate(([0], np.cumsum(sizes)))
        words = len(self._head) + (rows + 2) // 2  # of 64 bits: offsets of 32 bits, one more than rows, padded
        begin = np.concatenate(([0], np.cumsum(words)))
        out = np.zeros(int(begin[-1]), np.int64)
        value_bytes = upto[starts[1:]] - upto[starts[:-1]]
        out[begin[:-1, None] + np.arange(len(self._head))] = self._metadata(rows, value_bytes)
        offsets, first = out.view(np.int32), 2 * (begin[:-1] + len(self._head))  # of each pack
        places = np.repeat(first - starts[:-1], rows) + np.arange(len(sizes))
        offsets[places] = upto[:-1] - np.repeat(upto[starts[:-1]], rows)
        offsets[first + rows] = value_bytes
        return pa.py_buffer(out), begin * 8

    def ends(self, value_bytes: Int64s, buffer: int) -> tuple[Views, pa.Buffer]:
        """Views of what stands behind the values of each pack: padding, and the end.

        :param value_bytes: bytes of the values of each pack
        :param buffer: number that the buffer returned will have
        """
        table = np.zeros((_ALIGN, 4), np.int32)
        for padding in range(_ALIGN):
            text = self._closing[_ALIGN - 1 - padding :]
            table[padding, 0] = len(text)
            if len(text) <= INLINE:
                table[padding].view(np.uint8)[4 : 4 + len(text)] = np.frombuffer(text, np.uint8)
            else:
                table[padding, 2:] = buffer, _ALIGN - 1 - padding
        return table[-value_bytes % _ALIGN], pa.py_buffer(self._closing)

    def read(self, payloads: PayloadPlaces, rows: Int64s) -> pa.Array | None:
        """All values of packs that were written like this, in one copy; None = one of them was not, has another number
        of rows than ``rows`` announces, or a value is short."""
        sizes = payloads.sizes
        n = 8 * len(self._head)
        if not len(sizes) or int(sizes.min()) < n + self._end or int(rows.min()) < 1:
            return None
        pieces = payloads.pieces()
        heads = np.frombuffer(b"".join([piece[:n] for piece in pieces]), np.int64).reshape(len(pieces), -1)
        value_bytes = heads[:, (self._numbers.data + 8) // 8 + (len(self._begin) + 8) // 8]
        padded = (4 * (rows + 1) + _ALIGN - 1) // _ALIGN * _ALIGN
        ends = np.frombuffer(b"".join([piece[-self._end :] for piece in pieces]), np.uint8).reshape(len(pieces), -1)
        alike = (
            int(value_bytes.min()) >= 0
            and (value_bytes <= sizes).all()
            and (heads == self._metadata(rows, value_bytes)).all()
            and (sizes == n + padded + (value_bytes + _ALIGN - 1) // _ALIGN * _ALIGN + self._end).all()
            and (ends == np.frombuffer(self._closing[_ALIGN - 1 :], np.uint8)).all()
        )
        return _values(payloads, pieces, n, rows, n + padded, value_bytes) if alike else None

    def _metadata(self, rows: Int64s, value_bytes: Int64s) -> npt.NDArray[np.int64]:
        found = np.tile(self._head, (len(rows), 1))
        at = self._numbers
        offsets = 4 * (rows + 1)
        padded = (offsets + _ALIGN - 1) // _ALIGN * _ALIGN
        body = padded + (value_bytes + _ALIGN - 1) // _ALIGN * _ALIGN
        shift = (len(self._begin) + 8) // 8
        values = ((at.rows, rows), (at.node, rows), (at.offsets + 8, offsets), (at.data, padded),
                  (at.data + 8, value_bytes), (at.body, body))  # fmt: skip
        for place, numbers in values:
            found[:, place // 8 + shift] = numbers
        return found


def _values(
    payloads: PayloadPlaces,
    pieces: list[memoryview],
    offsets_at: int,
    rows: Int64s,
    values_at: Int64s,
    value_bytes: Int64s,
) -> pa.Array | None:
    """Values of packs whose offsets and bytes lie at these places of each, if the offsets are in order."""
    each = zip(pieces, rows.tolist(), strict=True)
    packs = [np.frombuffer(piece, np.int32, n + 1, offsets_at) for piece, n in each]  # packs, not rows
    offsets = np.concatenate(packs).astype(np.int64)  # so that no difference overflows
    last = np.cumsum(rows + 1) - 1
    begins = np.ones(len(offsets), np.bool_)
    begins[last] = False
    first = offsets[begins]
    lengths = offsets[1:][begins[:-1]] - first
    good = not offsets[last - rows].any() and (offsets[last] <= value_bytes).all() and int(lengths.min()) > INLINE
    if not good:
        return None
    views = np.zeros((len(lengths), 4), np.int32)
    views[:, 0], views[:, 3] = lengths, first + np.repeat(payloads.begins + values_at, rows)
    views[:, 2] = np.repeat(payloads.which, rows)
    return binary_of(joined(views, payloads.buffers), lengths)
