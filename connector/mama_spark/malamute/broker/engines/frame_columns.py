"""Packs the content frames of a message, and its headers, into one column value each. Pure."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from mama_spark.malamute.protocol.extensions import Extension, read, write


def pack(content: Sequence[bytes]) -> tuple[bytes, bytes | None]:
    """The joined frames, and their lengths (4 octets each); None = one frame, the usual case."""
    if len(content) == 1:
        return content[0], None
    return b"".join(content), struct.pack(f">{len(content)}I", *map(len, content))


def unpack(octets: bytes, lengths: bytes | None) -> list[bytes]:
    """The frames of :func:`pack`."""
    if lengths is None:
        return [octets]
    frames, at = [], 0
    for (length,) in struct.iter_unpack(">I", lengths):
        frames.append(octets[at : at + length])
        at += length
    return frames


def pack_headers(headers: tuple[tuple[bytes, bytes], ...]) -> bytes | None:
    """The headers in their wire encoding; None = no headers."""
    return write(Extension(headers=headers)) if headers else None


def unpack_headers(stored: bytes | None) -> tuple[tuple[bytes, bytes], ...]:
    return read(stored).headers if stored else ()
