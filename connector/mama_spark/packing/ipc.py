"""Reads one arrow pack that may be malicious: announced sizes are compared with the bytes before anything is allocated.
Pure.

An Arrow reader trusts two kinds of numbers that cost the sender nothing: the announced size of a compressed buffer, and
the rows of columns without buffers. The format has no types without buffers; version 1 has no compression, and version
2 limits what all buffers may announce together by a header. So every row takes bits of the announced bytes.
"""

from __future__ import annotations

import struct
from functools import lru_cache
from typing import NamedTuple

import pyarrow as pa

from ..contracts.arrow_metadata import buffers as buffers_of
from ..contracts.arrow_metadata import field, header, i32, i64, is_record_batch, plain_bytes, root, u16
from ..contracts.errors import SchemaError
from .format import BadPack, check_types

_MARK = b"\xff\xff\xff\xff"
_END = _MARK + bytes(4)
_SCHEMA_BYTES = 64 << 10  #: largest schema that is cached
_METADATA_BYTES = 4 << 10  #: largest metadata of a record batch that is cached


def read_pack(payload: pa.Buffer, rows: int, limit: int | None = None) -> pa.RecordBatch:
    """The rows of an arrow pack; shares memory with ``payload`` where nothing is compressed.

    :param rows: announced number
    :param limit: bytes that compressed buffers may have together; None = nothing may be compressed
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
            _check_compressed(data[body:end], buffers, limit)
        message = pa.ipc.read_message(payload.slice(at, end - at))
        batch = pa.ipc.read_record_batch(message, schema)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, IndexError, struct.error, SchemaError) as e:
        raise BadPack(str(e).splitlines()[0][:200]) from e
    return batch


def _message_end(data: memoryview, at: int) -> int:
    """End of the metadata of the message that begins at ``at``."""
    (size,) = i32.unpack_from(data, at + 4)
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
    order = field(metadata, header(metadata), 0)
    if order is not None and u16.unpack_from(metadata, order)[0]:
        raise BadPack("its numbers are big-endian")
    return schema


_cached_schema = lru_cache(64)(_read_schema)


#: Where compressed buffers lie in the body, and their sizes; None = nothing is compressed.
_Buffers = tuple[tuple[int, int], ...] | None


def _sizes_in(metadata: bytes) -> tuple[int, int, _Buffers]:
    return _cached_sizes(metadata) if len(metadata) <= _METADATA_BYTES else _record_batch(metadata)


def _record_batch(metadata: bytes) -> tuple[int, int, _Buffers]:
    if not is_record_batch(metadata):
        raise BadPack("its second message is no record batch")
    size = field(metadata, root(metadata), 3)
    table = header(metadata)
    length = field(metadata, table, 0)
    rows = 0 if length is None else i64.unpack_from(metadata, length)[0]
    body = 0 if size is None else i64.unpack_from(metadata, size)[0]
    if rows < 0 or body < 0:
        raise BadPack("it announces sizes below zero")
    return rows, body, None if field(metadata, table, 3) is None else buffers_of(metadata, table)


class BatchNumbers(NamedTuple):
    """Places of numbers of 64 bits in the metadata of a record batch with one binary column.

    :ivar rows: rows of the batch; ``node``: of the column
    :ivar offsets, data: offset of each buffer, which its length follows
    :ivar body: bytes of the body
    """

    rows: int
    node: int
    offsets: int
    data: int
    body: int


def batch_numbers(metadata: bytes) -> BatchNumbers:
    """The places in metadata that Arrow has written, of a batch that is not empty."""
    table = header(metadata)
    body, rows = field(metadata, root(metadata), 3), field(metadata, table, 0)
    vectors = [field(metadata, table, number) for number in (1, 2)]
    assert body is not None
    assert rows is not None
    node, buffers = (at + i32.unpack_from(metadata, at)[0] + 4 for at in vectors if at is not None)
    return BatchNumbers(rows, node, buffers + 16, buffers + 32, body)


def _check_compressed(body: memoryview, buffers: tuple[tuple[int, int], ...], limit: int | None) -> None:
    if limit is None:
        raise BadPack("it is compressed")
    total = plain_bytes(body, buffers)
    if total > limit:
        raise BadPack(f"its buffers have {total:,} bytes without compression and it announces {limit:,}")


_cached_sizes = lru_cache(256)(_record_batch)  # packs with equal numbers of rows and bytes have equal metadata
