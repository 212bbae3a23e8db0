"""Decompresses records whose publisher compressed the payload, as a header says, within a limit of memory. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..contracts.message import Bools
from ..contracts.record_log import Records
from .gathering.value_views import PayloadPlaces, binary_of
from .pack_headers import header_entries, with_some_entries

#: The header, as HTTP spells it and as some clients write it.
ENCODING_HEADERS = ("Content-Encoding", "content-encoding")
#: Arrow's codec of each value of the header. That of ``gzip`` reads the zlib format, HTTP's ``deflate``, too.
CODECS = {
    "gzip": "gzip", "x-gzip": "gzip", "deflate": "gzip", "zstd": "zstd", "br": "brotli", "lz4": "lz4", "bzip2": "bz2",
}  # fmt: skip
#: Payload bytes that are decompressed together, unless one record has more.
CHUNK_BYTES = 16 << 20
_FIRST_PIECE = 64 << 10
_Piece: TypeAlias = pa.Buffer | bytes


class BadEncoding(Exception):
    """A payload that is not what its header says. Internal: readers get the text with the row."""


def decompressed(records: Records, limit: int) -> Iterator[tuple[Records, dict[int, str]]]:
    """All of ``records`` in order, in pieces of bounded memory: either decompressed, without the header, or with the
    reason why each record of the piece could not be decompressed.

    :param limit: bytes of one payload, at most 1 GiB: a piece is one Arrow array, whose offsets have 32 bits
    """
    names = _encodings(records)
    if names is None:
        yield records, {}
        return
    compressed = np.array([name is not None for name in names], np.bool_)
    start, size, pieces, sizes, reasons = 0, 0, list[_Piece](), list[int](), list[str | None]()
    received = PayloadPlaces.of_all(records.payloads).slices()
    for i, (name, payload) in enumerate(zip(names, received, strict=True)):  # messages, not rows
        found: list[_Piece] = [payload]
        why = None
        if name is not None:
            try:
                found = _decompressed(payload, name, limit)
            except BadEncoding as e:
                why = str(e)
        pieces += found
        sizes.append(sum(map(len, found)))
        reasons.append(why)
        size += sizes[-1]
        if size >= CHUNK_BYTES:
            whole = _side_by_side(pieces, sizes)
            yield from _runs(records.slice(start, i + 1), whole, reasons, compressed[start : i + 1])
            start, size, pieces, sizes, reasons = i + 1, 0, [], [], []
    if sizes:
        whole = _side_by_side(pieces, sizes)
        yield from _runs(records.slice(start, len(records)), whole, reasons, compressed[start:])


def _encodings(records: Records) -> list[str | None] | None:
    """The encoding of each record, joined by commas where several are given; None where there is none. None: of no
    record."""
    if records.headers is None:
        return None
    rows, keys, items = header_entries(records.headers)
    at = np.flatnonzero(_are_encodings(keys))
    names: list[str | None] = [None] * len(records)
    found, spelt = pa.array(at), dict[int, str]()
    each = rows[at].tolist(), keys.take(found).to_pylist(), items.take(found).to_pylist()
    for row, key, values in zip(*each, strict=True):
        given = ((value or "").strip().lower() for value in values or ())
        said = ", ".join(name for name in given if name not in ("", "identity"))
        if spelt.setdefault(row, key) != key and names[row] == said:
            continue  # the same header again in its other spelling
        names[row] = ", ".join(filter(None, [names[row], said])) or None
    return names if any(names) else None


def _are_encodings(keys: pa.Array) -> Bools:
    found: Bools = pc.is_in(keys, pa.array(ENCODING_HEADERS)).to_numpy(zero_copy_only=False)
    return found


def _decompressed(payload: pa.Buffer, name: str, limit: int) -> list[_Piece]:
    """The bytes in pieces.

    :raises BadEncoding: unknown encoding, corrupt, cut off, or more bytes than ``limit``
    """
    codec = CODECS.get(name)
    if codec is None:
        raise BadEncoding(f"Content-Encoding: {name[:100]!r} is unknown here; known: {', '.join(CODECS)}")
    pieces, size, step = list[_Piece](), 0, _FIRST_PIECE
    try:
        with pa.CompressedInputStream(pa.BufferReader(payload), codec) as stream:
            while piece := stream.read(min(step, limit + 1 - size)):
                size, step = size + len(piece), 2 * step
                if size > limit:
                    raise BadEncoding(f"it is more than {limit:,} bytes when decompressed (maxDecompressedBytes)")
                pieces.append(piece)
    except (OSError, pa.ArrowException) as e:
        raise BadEncoding(f"Content-Encoding: {name}: {str(e).splitlines()[0][:200]}") from e
    return pieces


def _runs(
    records: Records, payloads: pa.Array, reasons: list[str | None], compressed: Bools
) -> Iterator[tuple[Records, dict[int, str]]]:
    """Each run is of records that could be decompressed, or of others."""
    done = replace(records, payloads=payloads, headers=_without_encoding(records, compressed))
    for failed, run in groupby(range(len(reasons)), lambda i: reasons[i] is not None):
        places = list(run)
        start, stop = places[0], places[-1] + 1
        if failed:
            yield records.slice(start, stop), {i - start: reasons[i] or "" for i in places}
        else:
            yield done.slice(start, stop), {}


def _side_by_side(pieces: list[_Piece], sizes: list[int]) -> pa.Array:
    """The payloads of these sizes, each of one or more pieces: the one copy."""
    return binary_of(b"".join(map(memoryview, pieces)), np.array(sizes, np.int64))


def _without_encoding(records: Records, compressed: Bools) -> pa.Array:
    """The headers without the one of the encoding where the payload is decompressed; null where none is left."""
    headers = records.headers
    assert headers is not None
    rows, keys, _ = header_entries(headers)
    return with_some_entries(headers, np.flatnonzero(~(_are_encodings(keys) & compressed[rows])))
