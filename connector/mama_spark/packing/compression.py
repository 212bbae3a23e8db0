"""Compresses the packs of a batch of messages, and undoes it. Pure; ``docs/reference/packed-messages.md``, version 2.

The last step before a pack is sent and the first after it was read: cuts, ids and rows are those of plain packs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pyarrow as pa

from ..contracts.message import HEADERS_TYPE, MessageBatch
from .format import ENCODINGS, MAX_PLAIN_BYTES, PACK, PACK_BYTES, PACK_ENCODING, BadPack, PackFormat
from .gathering.value_views import PayloadPlaces, binary_of

Headers = list[tuple[str, list[str]]]
#: One pack in another version of the format; None = it stays as it is.
_Change = Callable[[Headers, pa.Buffer], tuple[Headers, pa.Buffer | bytes] | None]


class PackCompressor:
    """Compresses packs of either format: a pack of lines as a whole, of an arrow pack each buffer.

    :param name: a key of :data:`~.format.ENCODINGS`
    :param level: level of the codec; None = its default
    :raises ValueError: the codec has no such level
    """

    def __init__(self, name: str, level: int | None = None) -> None:
        self.name = name
        self._codec = pa.Codec(ENCODINGS[name], level)
        self._options = pa.ipc.IpcWriteOptions(compression=self._codec)

    def compress(self, batch: MessageBatch) -> MessageBatch:
        """Compress packs, unless that makes them no smaller; messages other than packs of version 1 stay."""
        return _changed(batch, self._compressed)

    def _compressed(self, headers: Headers, payload: pa.Buffer) -> tuple[Headers, pa.Buffer | bytes] | None:
        named = _pack_format(headers)
        if named is PackFormat.LINES:
            small, form = self._codec.compress(payload), PackFormat.LINES_2
        elif named is PackFormat.ARROW:
            small, form = _rewritten(payload, self._options), PackFormat.ARROW_2
        else:
            return None
        encoding = [(PACK_ENCODING, [self.name])] if form is PackFormat.LINES_2 else []
        size_headers = [*encoding, (PACK_BYTES, [str(payload.size)])]
        if small.size + sum(len(name) + len(values[0]) + 4 for name, values in size_headers) >= payload.size:
            return None
        return _with_format(headers, form) + size_headers, small


def plain(batch: MessageBatch) -> MessageBatch:
    """Undo :meth:`PackCompressor.compress`, for packs that this process has made: sizes are not checked."""
    return _changed(batch, _plain)


def _plain(headers: Headers, payload: pa.Buffer) -> tuple[Headers, pa.Buffer | bytes] | None:
    named = _pack_format(headers)
    by_name = {name: values[0] for name, values in headers if values}
    if named is PackFormat.LINES_2:
        whole: pa.Buffer | bytes = decompressed_lines(payload, by_name[PACK_ENCODING], int(by_name[PACK_BYTES]))
        return _with_format(headers, PackFormat.LINES), whole
    if named is PackFormat.ARROW_2:
        return _with_format(headers, PackFormat.ARROW), _rewritten(payload)
    return None


def _rewritten(payload: pa.Buffer, options: pa.ipc.IpcWriteOptions | None = None) -> pa.Buffer:
    with pa.ipc.open_stream(payload) as stream:
        rows = stream.read_next_batch()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema, options=options) as out:
        out.write_batch(rows)
    return sink.getvalue()


def decompressed_lines(payload: pa.Buffer, encoding: str, size: int) -> bytes:
    """The payload of a pack of lines without compression.

    :param size: bytes that it announces, at most :data:`~.format.MAX_PLAIN_BYTES`
    :raises BadPack: unknown encoding, corrupt, or of another size
    """
    if encoding not in ENCODINGS:
        raise BadPack(f"{PACK_ENCODING}: {encoding[:100]!r} is unknown here")
    if size > MAX_PLAIN_BYTES:
        raise BadPack(f"it announces {size:,} bytes; at most {MAX_PLAIN_BYTES:,} are read")
    try:
        # not Codec.decompress: where fewer bytes come than announced, it leaves what was in memory
        with pa.CompressedInputStream(pa.BufferReader(payload), ENCODINGS[encoding]) as stream:
            whole: bytes = stream.read(size)
            more = stream.read(1)
    except (OSError, pa.ArrowException) as e:
        raise BadPack(f"{PACK_ENCODING}: {encoding}: {str(e).splitlines()[0][:200]}") from e
    if more or len(whole) != size:
        there = f"more than {size:,}" if more else f"{len(whole):,}"
        raise BadPack(f"it has {there} bytes when decompressed and announces {size:,}")
    return whole


def _changed(batch: MessageBatch, change: _Change) -> MessageBatch:
    if batch.headers is None:
        return batch
    headers, payloads, changes = batch.headers.to_pylist(), list[pa.Buffer | bytes](), 0
    for i, payload in enumerate(PayloadPlaces.of_all(batch.payloads).slices()):
        own = headers[i]
        made = None if own is None else change(own, payload)
        if made is not None:
            headers[i], changes = made[0], changes + 1
        payloads.append(payload if made is None else made[1])
    if not changes:
        return batch
    sizes = np.array([len(payload) for payload in payloads], np.int64)
    column = binary_of(b"".join(map(memoryview, payloads)), sizes)
    return replace(batch, payloads=column, headers=pa.array(headers, HEADERS_TYPE))


def _pack_format(headers: Headers) -> PackFormat | None:
    named = next((values[0] for name, values in headers if name == PACK and values), None)
    return None if named is None else PackFormat(named)


def _with_format(headers: Headers, form: PackFormat) -> Headers:
    """Headers of a pack in this format, without what tells of a compression."""
    return [
        (name, [form.value] if name == PACK else values)
        for name, values in headers
        if name not in (PACK_ENCODING, PACK_BYTES)
    ]
