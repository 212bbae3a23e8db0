"""Reads the metadata of Arrow IPC messages that may be malicious, by the tables of Message.fbs. Pure.

An Arrow reader allocates what compressed buffers announce before it compares that with what comes out.
"""

from __future__ import annotations

import struct

_RECORD_BATCH = 3  #: Message.fbs, MessageHeader
i32, u16, i64 = (struct.Struct(f"<{code}") for code in "iHq")
_buffer = struct.Struct("<qq")  #: Buffer of Schema.fbs: offset and length


def field(data: memoryview | bytes, table: int, number: int) -> int | None:
    """Position of a field of a flatbuffer table; None = it is absent.

    :raises ValueError: it lies outside
    """
    vtable = table - i32.unpack_from(data, table)[0] if table >= 0 else -1
    if vtable < 0:
        raise ValueError("its metadata points outside")
    (size,) = u16.unpack_from(data, vtable)
    place = 4 + 2 * number
    if place + 2 > size:
        return None
    (offset,) = u16.unpack_from(data, vtable + place)
    return table + offset if offset else None


def root(metadata: memoryview | bytes) -> int:
    """Position of the table Message."""
    return int(i32.unpack_from(metadata, 0)[0])


def header(metadata: memoryview | bytes) -> int:
    """Position of the table ``header`` of a Message.

    :raises ValueError: there is none
    """
    found = field(metadata, root(metadata), 2)
    if found is None:
        raise ValueError("one of its messages has no header")
    return int(found + i32.unpack_from(metadata, found)[0])


def is_record_batch(metadata: bytes) -> bool:
    kind = field(metadata, root(metadata), 1)
    return kind is not None and metadata[kind] == _RECORD_BATCH


def buffers(metadata: bytes, table: int) -> tuple[tuple[int, int], ...]:
    """Offset and length of each buffer of a record batch.

    :raises ValueError: they lie outside
    """
    vector = field(metadata, table, 2)
    if vector is None:
        return ()
    start = vector + i32.unpack_from(metadata, vector)[0]
    (n,) = i32.unpack_from(metadata, start)
    if not 0 <= n <= len(metadata) // 16:
        raise ValueError("its metadata points outside")
    return tuple(_buffer.unpack_from(metadata, start + 4 + 16 * i) for i in range(n))


def plain_bytes(body: memoryview, places: tuple[tuple[int, int], ...]) -> int:
    """Bytes that compressed buffers announce together. Each begins with its own; -1: it is not compressed.

    :raises ValueError: a buffer lies outside, or announces less than nothing
    """
    total = 0
    for offset, size in places:
        if offset < 0 or size < 0 or offset + size > len(body):
            raise ValueError("one of its buffers lies outside")
        if size:
            (announced,) = i64.unpack_from(body, offset)
            if announced < -1:
                raise ValueError("it announces sizes below zero")
            total += size if announced == -1 else announced
    return total
