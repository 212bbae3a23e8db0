"""Reads one arrow pack that may be malicious: announced sizes are compared with the bytes before anything is allocated.
Pure.

An Arrow reader trusts two kinds of numbers that cost the sender nothing: the announced size of a compressed buffer,
and the rows of columns without buffers. The format has no types without buffers; version 1 has no compression, and
version 2 limits what all buffers may announce together by a header. So every row takes bits of the announced bytes.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from ..contracts.errors import SchemaError
from .format import BadPack, check_types

_RECORD_BATCH = 3  #: Message.fbs, MessageHeader
_MARK = b"\xff\xff\xff\xff"
_END = _MARK + bytes(4)
_SCHEMA_BYTES = 64 << 10  #: largest schema that is cached
_METADATA_BYTES = 4 << 10  #: largest metadata of a record batch that is cached

_i32, _u16, _i64 = (struct.Struct(f"<{code}") for code in "iHq")
_buffer = struct.Struct("<qq")  #: Buffer of Schema.fbs: offset and length


def read_pack(payload: pa.Buffer, rows: int, plain_bytes: int | None = None) -> pa.RecordBatch:
    """The rows of an arrow pack; shares memory with ``payload`` where nothing is compressed.

    :param rows: as announced
    :param plain_bytes: that compressed buffers may have together; None = nothing may be compressed
    :raises BadPack: it is no pack, or has another number of rows
    """
    data = memoryview(payload).cast("B")
    try:
        at = _message_end(data, 0)
        schema = _schema_of(bytes(data[:at]))
        body = _message_end(data, at)
        announced, body_bytes, buffers = _sizes_in(bytes(data[at + 8 : body]))
        if announced != rows:
            raise BadPack(f"it has {announced:,} rows and announces {rows:,}")
        end = body + body_bytes
        if bytes(data[end:]) != _END:
            raise BadPack("it does not end where its only batch ends")
        if buffers is not None:
            _check_compressed(data[body:end], buffers, plain_bytes)
        message = pa.ipc.read_message(payload.slice(at, end - at))
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, IndexError, struct.error, SchemaError) as e:
        raise BadPack(str(e).splitlines()[0][:200]) from e
    return batch


def _message_end(data: memoryview, at: int) -> int:
    """End of the metadata of the message that begins at ``at``."""
    (size,) = _i32.unpack_from(data, at + 4)
    end = at + 8 + size
    if data[at : at + 4] != _MARK or size <= 0 or end > len(data):
        raise BadPack(f"byte {at} does not begin a whole Arrow message")
    return int(end)


def _schema_of(head: bytes) -> pa.Schema:
    return _cached_schema(head) if len(head) <= _SCHEMA_BYTES else _read_schema(head)


def _read_schema(head: bytes) -> pa.Schema:
    schema = pa.ipc.read_schema(pa.py_buffer(head))
    check_types(schema)
    metadata = memoryview(head)[8:]
    order = _field(metadata, _header(metadata), 0)
    if order is not None and _u16.unpack_from(metadata, order)[0]:
        raise BadPack("its numbers are big-endian")
    return schema


_cached_schema = lru_cache(64)(_read_schema)


#: Where compressed buffers lie in the body, and their sizes; None = nothing is compressed.
_Buffers = tuple[tuple[int, int], ...] | None


def _sizes_in(metadata: bytes) -> tuple[int, int, _Buffers]:
    return _cached_sizes(metadata) if len(metadata) <= _METADATA_BYTES else _record_batch(metadata)


def _record_batch(metadata: bytes) -> tuple[int, int, _Buffers]:
    """Rows, body bytes and compressed buffers that a record batch announces."""
    (root,) = _i32.unpack_from(metadata, 0)
    kind = _field(metadata, root, 1)
    if kind is None or metadata[kind] != _RECORD_BATCH:
        raise BadPack("its second message is no record batch")
    size = _field(metadata, root, 3)
    table = _header(metadata)
    length = _field(metadata, table, 0)
    rows = 0 if length is None else _i64.unpack_from(metadata, length)[0]
    body = 0 if size is None else _i64.unpack_from(metadata, size)[0]
    if rows < 0 or body < 0:
        raise BadPack("it announces sizes below zero")
    return rows, body, None if _field(metadata, table, 3) is None else _buffers_of(metadata, table)


class BatchNumbers(NamedTuple):
    """Where numbers of 64 bits stand in the metadata of a record batch with one binary column.

    :ivar rows: of the batch; ``node``: of the column
    :ivar offsets, data: offset of each buffer, which its length follows
    :ivar body: octets of the body
    """

    rows: int
    node: int
    offsets: int
    data: int
    body: int


def batch_numbers(metadata: bytes) -> BatchNumbers:
    """The places in metadata that Arrow has written, of a batch that is not empty."""
    (root,) = _i32.unpack_from(metadata, 0)
    table = _header(metadata)
    body, rows = _field(metadata, root, 3), _field(metadata, table, 0)
    vectors = [_field(metadata, table, field) for field in (1, 2)]
    assert body is not None
    assert rows is not None
    node, buffers = (at + _i32.unpack_from(metadata, at)[0] + 4 for at in vectors if at is not None)
    return BatchNumbers(rows, node, buffers + 16, buffers + 32, body)


def _buffers_of(metadata: bytes, table: int) -> tuple[tuple[int, int], ...]:
    vector = _field(metadata, table, 2)
    if vector is None:
        return ()
    start = vector + _i32.unpack_from(metadata, vector)[0]
    (n,) = _i32.unpack_from(metadata, start)
    if not 0 <= n <= len(metadata) // 16:
        raise BadPack("its metadata points outside")
    return tuple(_buffer.unpack_from(metadata, start + 4 + 16 * i) for i in range(n))


def _check_compressed(body: memoryview, buffers: tuple[tuple[int, int], ...], limit: int | None) -> None:
    """Each compressed buffer begins with its size without compression; -1: it is not compressed."""
    if limit is None:
        raise BadPack("it is compressed")
    total = 0
    for offset, size in buffers:
        if offset < 0 or size < 0 or offset + size > len(body):
            raise BadPack("one of its buffers lies outside")
        if size:
            (announced,) = _i64.unpack_from(body, offset)
            if announced < -1:
                raise BadPack("it announces sizes below zero")
            total += size if announced == -1 else announced
    if total > limit:
        raise BadPack(f"its buffers have {total:,} bytes without compression and it announces {limit:,}")


_cached_sizes = lru_cache(256)(_record_batch)  # packs with equal numbers of rows and bytes have equal metadata


def _header(metadata: memoryview | bytes) -> int:
    """Position of the table ``header`` of a Message (Message.fbs)."""
    (root,) = _i32.unpack_from(metadata, 0)
    header = _field(metadata, root, 2)
    if header is None:
        raise BadPack("one of its messages has no header")
    return int(header + _i32.unpack_from(metadata, header)[0])


def _field(data: memoryview | bytes, table: int, number: int) -> int | None:
    """Position of a field of a flatbuffer table; None = it is absent."""
    if table < 0:
        raise BadPack("its metadata points outside")
    vtable = table - _i32.unpack_from(data, table)[0]
    if vtable < 0:
        raise BadPack("its metadata points outside")
    (size,) = _u16.unpack_from(data, vtable)
    place = 4 + 2 * number
    if place + 2 > size:
        return None
    (offset,) = _u16.unpack_from(data, vtable + place)
    return table + offset if offset else None
