"""Parses the bytes from a server into frames, each returned when it is complete. Pure.

Announced sizes are compared with what came; no memory is allocated by them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import orjson

from mama_spark.contracts.errors import MamaError

MAX_LINE = 1024 * 1024  #: INFO is long; subjects are as long as their server allows
MAX_MESSAGE = 64 * 1024 * 1024  #: the server's limit for max_payload

_VERSION = "NATS/1.0"
_ARGS = re.compile(rb"[ \t]+")


class ProtocolError(MamaError):
    """The bytes violate the NATS protocol: the connection cannot be read any further."""

    may_have_landed = True


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame of the server.

    :ivar op: ``INFO``, ``MSG``, ``HMSG``, ``PING``, ``PONG``, ``+OK``, ``-ERR``
    :ivar text: text of ``-ERR``
    :ivar status: status of the header block's first line, 0 if it has none
    :ivar end: offset in the buffer after this frame
    """

    op: str
    end: int
    subject: bytes = b""
    sid: bytes = b""
    reply: bytes | None = None
    headers: list[tuple[str, str]] = field(default_factory=list)
    header_size: int = 0
    status: int = 0
    status_text: str = ""
    payload: bytes = b""
    text: str = ""
    info: dict[str, Any] | None = None


def read_frame(data: bytes, start: int = 0) -> Frame | None:
    """The frame that begins at ``start``; None while it is not complete. ProtocolError: no frame, whatever follows."""
    end = data.find(b"\r\n", start, start + MAX_LINE)
    if end < 0:
        if len(data) - start > MAX_LINE:
            raise ProtocolError(f"no end of line within {MAX_LINE} bytes")
        return None
    op, _, rest = data[start:end].partition(b" ")
    op = op.upper()
    if op in (b"MSG", b"HMSG"):
        return _message(data, op == b"HMSG", rest, end + 2)
    return _control(op, rest, end + 2)


def lacking(data: bytes, start: int = 0) -> int:
    """Minimum number of bytes that the incomplete frame at ``start`` lacks."""
    end = data.find(b"\r\n", start, start + MAX_LINE)
    size = data[start:end].rpartition(b" ")[2]
    if end < 0 or data[start:end].upper().startswith(b"INFO") or not size.isdigit():
        return 1
    return max(1, end + 2 + int(size) + 2 - len(data))


def _control(op: bytes, rest: bytes, end: int) -> Frame:
    if op in (b"PING", b"PONG", b"+OK") and not rest.strip():
        return Frame(op.decode(), end)
    if op == b"-ERR":
        text = rest.strip()
        if len(text) < 2 or text[:1] != b"'" or text[-1:] != b"'":
            raise ProtocolError("-ERR without a quoted text")
        return Frame("-ERR", end, text=text[1:-1].decode(errors="replace"))
    if op == b"INFO":
        try:
            info = orjson.loads(rest)
        except orjson.JSONDecodeError as e:
            raise ProtocolError(f"INFO is not JSON: {e}") from None
        if not isinstance(info, dict):
            raise ProtocolError("INFO is not an object")
        return Frame("INFO", end, info=info)
    raise ProtocolError(f"unknown operation {op[:20]!r}")


def _size(text: bytes) -> int:
    if not text.isdigit() or len(text) > 9 or int(text) > MAX_MESSAGE:
        raise ProtocolError(f"size {text[:24]!r}")
    return int(text)


def _message(data: bytes, with_headers: bool, rest: bytes, body: int) -> Frame | None:
    args = _ARGS.split(rest.strip())
    sizes = 2 if with_headers else 1
    if len(args) not in (2 + sizes, 3 + sizes):
        raise ProtocolError(f"{len(args)} arguments in a message line")
    total = _size(args[-1])
    width = _size(args[-2]) if with_headers else 0
    if width > total:
        raise ProtocolError(f"header block of {width} bytes in a message of {total}")
    end = body + total
    if len(data) < end + 2:
        if data[end : end + 2] not in (b"", b"\r"):
            raise ProtocolError("message longer than announced")
        return None
    if data[end : end + 2] != b"\r\n":
        raise ProtocolError("message longer than announced")
    reply = args[2] if len(args) == 3 + sizes else None
    payload = data[body + width : end]
    if not with_headers:
        return Frame("MSG", end + 2, args[0], args[1], reply, payload=payload)
    status, text, headers = _headers(data[body : body + width])
    return Frame("HMSG", end + 2, args[0], args[1], reply, headers, width, status, text, payload)


def _headers(block: bytes) -> tuple[int, str, list[tuple[str, str]]]:
    """Status, its text, and headers. Other lines are skipped: servers pass on, and store, whatever a publisher calls a
    header block."""
    first, *lines = block.decode(errors="replace").split("\r\n")
    code, _, text = first.removeprefix(_VERSION).strip().partition(" ")
    if not (first.startswith(_VERSION) and code.isascii() and code.isdigit() and len(code) <= 3):
        code = text = ""
    entries = (line.partition(":") for line in lines)
    return int(code or 0), text.strip(), [(name, value.lstrip(" ")) for name, colon, value in entries if colon]


class PartialFrame:
    """An incomplete frame at the end of the received bytes. They are joined once, when it may be complete, not with
    each read."""

    def __init__(self) -> None:
        self._pieces: list[bytes | memoryview] = []
        self._had = self._needed = 0

    def __len__(self) -> int:
        return self._had

    def keep(self, data: bytes, at: int) -> None:
        """Keep the incomplete frame that begins at ``at``, if that is not the end of ``data``."""
        self._pieces = [data[at:]] if at < len(data) else []
        self._had = len(data) - at
        self._needed = self._had + lacking(data, at) if self._had else 0

    def add(self, data: bytes, at: int) -> tuple[bytes | None, int]:
        """Add the bytes that it lacks; later ones are not copied. Returns the frame if it may be complete, and the
        offset of the rest."""
        size = self._needed - self._had
        if size == 1:  # or it is not known yet: its first line
            line_end = data.find(b"\n", at)
            size = len(data) - at if line_end < 0 else line_end + 1 - at
        size = min(size, len(data) - at)
        self._pieces.append(memoryview(data)[at : at + size])
        self._had += size
        return b"".join(self._pieces) if self._had >= self._needed else None, at + size
