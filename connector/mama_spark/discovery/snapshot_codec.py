"""Encodes the image of a discovery read, so that the same reader can read it again. Pure.

One compressed Arrow table, cut into chunks that fit into messages.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from ..contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey

_SCHEMA = pa.schema(
    [
        ("kind", pa.string()),
        ("at", pa.int64()),
        ("origin", pa.string()),
        ("sequence", pa.int64()),
        ("name", pa.string()),
        ("id", pa.uint64()),
        ("payload", pa.large_binary()),
        ("topic", pa.string()),
        ("info", pa.string()),
    ]
)


#: Bytes of an image that is read: compressed zeros can be a ten-thousandth of them.
MAX_BYTES = 256 << 20
_i32, _u16, _i64 = (struct.Struct(f"<{code}") for code in "iHq")


def _check_size(data: pa.Buffer) -> None:
    """Sum up what the compressed buffers announce. Arrow allocates that, and then compares it with what comes out.

    :raises ValueError: it is too much
    """
    total, source = 0, pa.BufferReader(data)
    pa.ipc.read_message(source)  # the schema
    while source.tell() < len(data):
        try:
            message = pa.ipc.read_message(source)
        except EOFError:
            return
        body = memoryview(message.body or b"")
        for offset, length in _buffers(message.metadata.to_pybytes()):
            total += max(length, _i64.unpack_from(body, offset)[0] if length >= _i64.size else 0)
        if total > MAX_BYTES:
            raise ValueError(f"an image of more than {MAX_BYTES:,} bytes")


def _buffers(metadata: bytes) -> Iterator[tuple[int, int]]:
    """Offset and length of each buffer of a record batch, by the tables of Message.fbs."""
    header = _field(metadata, int(_i32.unpack_from(metadata, 0)[0]), 2)
    vector = _field(metadata, header + _i32.unpack_from(metadata, header)[0], 2)
    vector += _i32.unpack_from(metadata, vector)[0]
    for i in range(_i32.unpack_from(metadata, vector)[0]):
        at = vector + 4 + 16 * i
        yield _i64.unpack_from(metadata, at)[0], _i64.unpack_from(metadata, at + 8)[0]


def _field(metadata: bytes, table: int, number: int) -> int:
    """Position of a field of a flatbuffer table.

    :raises ValueError: it is absent
    """
    fields = table - _i32.unpack_from(metadata, table)[0]
    size, place = _u16.unpack_from(metadata, fields)[0], 4 + 2 * number
    offset = _u16.unpack_from(metadata, fields + place)[0] if place + 2 <= size else 0
    if not offset:
        raise ValueError("no record batch of an image")
    return int(table + offset)


def pack(changes: list[DiscoveryEvent], chunk: int) -> list[bytes]:
    """Messages of at most ``chunk`` bytes; at least one."""
    columns = [
        [c.kind.value for c in changes],
        [c.at for c in changes],
        [c.origin for c in changes],
        [c.sequence for c in changes],
        [None if c.source is None else c.source.name for c in changes],
        [None if c.source is None else c.source.id for c in changes],
        [c.payload for c in changes],
        [c.topic for c in changes],
        [c.info for c in changes],
    ]
    table = pa.Table.from_arrays(
        [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)], schema=_SCHEMA
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    return [data[i : i + chunk] for i in range(0, len(data), chunk)]


def unpack(chunks: list[bytes], start: int = 0, stop: int | None = None) -> list[DiscoveryEvent]:
    """The events ``start`` (inclusive) to ``stop`` (exclusive; None = all that follow).

    :raises ValueError: these are not all the chunks of an image (``pyarrow.ArrowInvalid`` is one), or it is larger
        than :data:`MAX_BYTES`
    """
    data = pa.py_buffer(b"".join(chunks))
    try:
        _check_size(data)
        with pa.ipc.open_stream(data) as reader:
            table = reader.read_all()
            # a reader with a limit comes again and again, for a few events each time
            rows = table.slice(start, None if stop is None else stop - start).to_pylist()
    except (OSError, EOFError, IndexError, struct.error) as e:  # cut off in the middle
        raise ValueError(str(e)) from e
    return [
        DiscoveryEvent(
            DiscoveryEventKind(row["kind"]),
            row["at"],
            row["origin"],
            row["sequence"],
            None if row["name"] is None else SourceKey(row["name"], row["id"]),
            row["payload"],
            row["topic"],
            row["info"],
        )
        for row in rows
    ]
