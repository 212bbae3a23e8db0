"""Encodes the image of a discovery read as one compressed Arrow table in chunks that fit into messages. Pure."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pyarrow as pa

from ..contracts.arrow_metadata import buffers, header, is_record_batch, plain_bytes
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
CHUNK = 512 * 1024  #: bytes of one message
_BLOCK = 4096  #: events of a list that readers get at once


def blocks(events: list[DiscoveryEvent]) -> Iterator[list[DiscoveryEvent]]:
    """The events in lists of some thousand."""
    for i in range(0, len(events), _BLOCK):
        yield events[i : i + _BLOCK]


def _check_size(data: pa.Buffer) -> None:
    """Sum up what the compressed buffers announce.

    :raises ValueError: it is too much
    """
    total, source = 0, pa.BufferReader(data)
    pa.ipc.read_message(source)  # the schema
    while source.tell() < len(data):
        try:
            message = pa.ipc.read_message(source)
        except EOFError:
            return
        metadata = message.metadata.to_pybytes()
        if not is_record_batch(metadata):
            raise ValueError("no record batch of an image")
        total += plain_bytes(memoryview(message.body or b""), buffers(metadata, header(metadata)))
        if total > MAX_BYTES:
            raise ValueError(f"an image of more than {MAX_BYTES:,} bytes")


def pack(changes: list[DiscoveryEvent], chunk: int = CHUNK) -> list[bytes]:
    """Messages of at most ``chunk`` bytes; at least one."""
    rows = [_row(change) for change in changes]
    columns = [pa.array([row[i] for row in rows], field.type) for i, field in enumerate(_SCHEMA)]
    table = pa.Table.from_arrays(columns, schema=_SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    return [data[i : i + chunk] for i in range(0, len(data), chunk)]


def _row(c: DiscoveryEvent) -> tuple[object, ...]:
    name, number = (None, None) if c.source is None else (c.source.name, c.source.id)
    return c.kind.value, c.at, c.origin, c.sequence, name, number, c.payload, c.topic, c.info


def unpack(chunks: list[bytes], start: int = 0, stop: int | None = None) -> list[DiscoveryEvent]:
    """The events ``start`` (inclusive) to ``stop`` (exclusive; None = all that follow).

    :raises ValueError: chunks are missing (``pyarrow.ArrowInvalid`` is one), or the image is larger than
        :data:`MAX_BYTES`
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
