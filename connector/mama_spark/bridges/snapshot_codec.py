"""Encodes the image of a discovery read, so that the same reader can read it again. Pure.

One compressed Arrow table, cut into chunks that fit into messages.
"""

from __future__ import annotations

import pyarrow as pa

from ..bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey

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


def unpack(chunks: list[bytes]) -> list[DiscoveryEvent]:
    """:raises ValueError: these are not all the chunks of an image (``pyarrow.ArrowInvalid`` is one)"""
    try:
        with pa.ipc.open_stream(b"".join(chunks)) as reader:
            rows = reader.read_all().to_pylist()
    except OSError as e:  # cut off in the middle
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
