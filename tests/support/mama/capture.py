"""Capture files (``.mplay``): records ``source:transport:symbol:length``, the byte 1D, and the payload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from mama_spark.mama.messages.omnm import BadMessage

MAX_HEADER = 128  #: bytes before the separator
_SEPARATOR = b"\x1d"


@dataclass(frozen=True, slots=True)
class CaptureRecord:
    source: str
    transport: str
    symbol: str
    payload: bytes


def decode_capture(data: bytes) -> Iterator[CaptureRecord]:
    """Yield the records of a file.

    :raises BadMessage: at the first bytes that are no record
    """
    at = 0
    while at < len(data):
        end = data.find(_SEPARATOR, at, at + MAX_HEADER + 1)
        if end < 0:
            raise BadMessage(f"no record at byte {at}: no separator within {MAX_HEADER} bytes")
        try:
            source, transport, rest = data[at:end].decode().split(":", 2)
        except ValueError:
            raise BadMessage(f"the header at byte {at} is not source:transport:symbol:length") from None
        symbol, colon, length = rest.rpartition(":")  # symbols may hold colons
        if not (colon and length.isascii() and length.isdigit() and len(length) < 20):
            raise BadMessage(f"the header at byte {at} is not source:transport:symbol:length")
        at = end + 1 + int(length)
        if at > len(data):
            raise BadMessage(f"the payload at byte {end + 1} is shorter than the {length} bytes announced")
        yield CaptureRecord(source, transport, symbol, data[end + 1 : at])


def encode_capture(records: Iterable[CaptureRecord]) -> bytes:
    """:raises BadMessage: for names that a header cannot hold"""
    parts = []
    for r in records:
        try:
            header = f"{r.source}:{r.transport}:{r.symbol}:{len(r.payload)}".encode()
        except UnicodeEncodeError:
            raise BadMessage(f"{r.source!r}, {r.transport!r}, {r.symbol!r}: names are UTF-8") from None
        if ":" in r.source + r.transport or _SEPARATOR in header or len(header) > MAX_HEADER:
            raise BadMessage(f"{header!r} is no header of a capture record")
        parts += [header, _SEPARATOR, r.payload]
    return b"".join(parts)
