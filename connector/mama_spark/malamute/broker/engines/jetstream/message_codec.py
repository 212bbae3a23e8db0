"""Encodes a Malamute message as a message of a JetStream stream, and back. Pure.

| of the message | in JetStream |
|---|---|
| subject | ``<prefix>.<subject>``: ``mlp.orders.temp.moscow`` for ``temp.moscow`` of stream ``orders``; bytes that \
NATS does not allow become ``%HH`` (:func:`encode_subject`) |
| content | the payload: the joined frames; ``Mlp-Frames`` = their lengths, unless it is one frame |
| sender's address | ``Mlp-Sender`` |
| id | ``Nats-Msg-Id``; a message without id gets ``%!<origin>`` |
| headers | unchanged, or joined in ``Mlp-Headers`` (:func:`header_lines`) |
| ``Mama-Expected-Sequence`` | also ``Nats-Expected-Last-Subject-Sequence`` |
| its publisher | ``Mlp-Origin`` = ``<engine>.<client>.<number>``, unless the id contains it |

Values of ``Mlp-`` headers and ids are printable ASCII, with ``%HH`` for other bytes. Messages of
other publishers (NATS clients) are decoded by the same rules: payload as one frame, its headers, an empty sender.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import quote_from_bytes, unquote_to_bytes

from mama_spark.contracts.headers import MSG_ID, NATS_PREFIX, HeaderLines
from mama_spark.contracts.record_log import Records
from mama_spark.malamute.protocol.commands import MAX_STRING

log = logging.getLogger(__name__)

Header = tuple[bytes, bytes]

SENDER, FRAMES, ORIGIN, HEADERS = "Mlp-Sender", "Mlp-Frames", "Mlp-Origin", "Mlp-Headers"
MAX_FIELD = 65_535  #: bytes of an id, or of a header with its name and the name's length
_EMPTY = "%"  #: an empty part; every other % of ours is followed by two digits
GENERATED_ID = "%!"  #: prefix of generated ids; encoded ids of clients never have it

_VISIBLE = bytes(c for c in range(0x21, 0x7F) if c != ord("%"))
_UNSAFE = re.compile(rb"[\x00-\x20\x7f%*>]")
_UNSAFE_BYTES = re.compile(rb"[\x00-\x20\x7f-\xff%*>]")
_UNSAFE_IN_NAME = re.compile(rb"[^A-Za-z0-9_-]")
_NAME = re.compile(rb"(?!nats-|mlp-|status\Z|description\Z)[0-9a-z!#$&'*+.^_`|~-]+", re.IGNORECASE)
_VALUE = re.compile(rb"[!-~](?:[ -~]*[!-~])?")


class Origin(NamedTuple):
    """The publisher of a message: id of one run of one stream's ``engine``; number of the ``client``'s cursor in it, 0
    = it was not subscribed; ``number`` of the message in it."""

    engine: str
    client: int
    number: int

    def __str__(self) -> str:
        return f"{self.engine}.{self.client}.{self.number}"


class JetStreamMessage(NamedTuple):
    """A message read from the stream; ``origin`` = None: not published by an engine."""

    subject: bytes
    sender: bytes
    content: Sequence[bytes]
    message_id: bytes
    headers: tuple[Header, ...]
    origin: Origin | None


class ConsumedMessage(NamedTuple):
    """One message of the stream; ``time`` in microseconds since the epoch; ``message`` = None: not representable."""

    sequence: int
    time: int
    message: JetStreamMessage | None


class Unreadable(Exception):
    """A message that Malamute cannot represent."""


def _percent(match: re.Match[bytes]) -> bytes:
    return b"%%%02X" % match[0][0]


@lru_cache(4096)
def encode_subject(subject: bytes) -> str:
    """Encode any bytes as tokens of a NATS subject. Printable UTF-8 is kept. Blanks, control characters, ``%``, ``*``,
    ``>`` and bytes that are no UTF-8 become ``%HH``; an empty part (and the empty subject) becomes ``%``, because NATS
    allows no empty tokens."""
    try:
        text = _UNSAFE.sub(_percent, subject).decode()
    except UnicodeDecodeError:
        text = _UNSAFE_BYTES.sub(_percent, subject).decode("ascii")
    return ".".join(token or _EMPTY for token in text.split("."))


def decode_subject(tokens: bytes) -> bytes:
    """The inverse of :func:`encode_subject`; a ``%`` that it would not write is kept."""
    if b"%" not in tokens:
        return tokens
    return b".".join(b"" if token == b"%" else unquote_to_bytes(token) for token in tokens.split(b"."))


def encode_name(stream: bytes) -> str:
    """A Malamute stream's name as one token, valid in the name of a JetStream stream and in a subject."""
    return _UNSAFE_IN_NAME.sub(_percent, stream).decode("ascii") or _EMPTY


def encode_value(value: bytes) -> str:
    return quote_from_bytes(value, _VISIBLE)


def header_lines(headers: Sequence[Header]) -> list[tuple[str, str]]:
    """Headers of a message as NATS header lines. If a name is repeated, is no valid NATS name or begins with ``Nats-``
    (which the server interprets), or a value is not printable, all headers go into ``Mlp-Headers`` instead, as
    ``name=value&name=value`` in order."""
    names = {name.lower() for name, _ in headers}
    plain = len(names) == len(headers) and all(_NAME.fullmatch(n) and _VALUE.fullmatch(v) for n, v in headers)
    if plain:
        return [(name.decode(), value.decode()) for name, value in headers]
    return [(HEADERS, "&".join(f"{quote_from_bytes(n, b'')}={quote_from_bytes(v, b'')}" for n, v in headers))]


def lines(
    sender: bytes, content: Sequence[bytes], message_id: bytes, headers: Sequence[Header], origin: Origin
) -> list[tuple[str, str]]:
    found = [(SENDER, encode_value(sender))] if sender else []
    if len(content) != 1:
        found.append((FRAMES, ".".join(str(len(frame)) for frame in content) or "-"))
    if message_id:
        found.append((ORIGIN, str(origin)))
    if headers:
        found += header_lines(headers)
    return found


def encode_id(message_id: bytes, origin: Origin) -> str:
    return encode_value(message_id) if message_id else f"{GENERATED_ID}{origin}"


def decode_id(value: bytes) -> bytes:
    """The inverse of :func:`encode_id` for an id that a client gave."""
    return unquote_to_bytes(value) if b"%" in value else value


def decode(subject: str, payload: bytes, headers: Iterable[tuple[str, str]]) -> JetStreamMessage:
    """Decode a message of the stream.

    :param subject: subject without the prefix
    :raises Unreadable: subject or sender are longer than a string or a NUL, or a header does not fit in a field
    """
    sender, message_id, lengths = b"", b"", b""
    origin: Origin | None = None
    found: list[Header] = []
    for name, text in headers:
        value = text.encode()
        if name == MSG_ID:
            if text.startswith(GENERATED_ID):
                origin = _origin(value[len(GENERATED_ID) :])
            else:
                message_id = decode_id(value)
        elif name == ORIGIN:
            origin = _origin(value)
        elif name == SENDER:
            sender = unquote_to_bytes(value)
        elif name == FRAMES:
            lengths = value
        elif name == HEADERS:
            found += _unpacked(value)
        elif name and not name.lower().startswith(NATS_PREFIX):
            found.append((name.encode(), value))
    plain = decode_subject(subject.encode())
    for one in (plain, sender):
        if len(one) > MAX_STRING or b"\0" in one:
            raise Unreadable(f"{one[:60]!r} is no string of Malamute")
    largest = max(len(message_id), *(2 + len(name) + len(value) for name, value in found), 0)
    if largest > MAX_FIELD:
        raise Unreadable(f"an id or header of {largest} bytes; Malamute carries {MAX_FIELD}")
    return JetStreamMessage(plain, sender, _frames(payload, lengths), message_id, tuple(found), origin)


def decode_records(records: Records, prefix: str, stream: str) -> list[ConsumedMessage]:
    """All messages; those that Malamute cannot represent are named in the log."""
    found = []
    columns = (records.sequences.tolist(), records.times.tolist(), records.topics.to_pylist())
    rows = zip(*columns, records.payloads.to_pylist(), headers_of(records), strict=True)
    for sequence, time, topic, payload, headers in rows:
        try:
            message = decode(topic[len(prefix) + 1 :], payload, headers)
        except Unreadable as e:
            log.warning("message %d of stream %r is left out: %s", sequence, stream, e)
            message = None
        found.append(ConsumedMessage(sequence, time, message))
    return found


def headers_of(records: Records) -> Iterator[Iterable[tuple[str, str]]]:
    if records.headers is None:
        return iter([()] * len(records))
    names, values, starts = HeaderLines.of(records.headers)
    lines = list(zip(names.to_pylist(), values.to_pylist(), strict=True))
    return (lines[start:end] for start, end in pairwise(starts.tolist()))


def _origin(value: bytes) -> Origin | None:
    engine, _, rest = value.partition(b".")
    client, _, number = rest.partition(b".")
    if not (client.isdigit() and number.isdigit() and len(rest) < 40):
        return None
    return Origin(engine.decode("latin-1"), int(client), int(number))


def _unpacked(value: bytes) -> list[Header]:
    pairs = (one.partition(b"=") for one in value.split(b"&"))
    return [(unquote_to_bytes(name), unquote_to_bytes(text)) for name, _, text in pairs]


def _frames(payload: bytes, lengths: bytes) -> list[bytes]:
    """One frame if the lengths do not match the payload."""
    if not lengths:
        return [payload]
    if lengths == b"-":
        return [] if not payload else [payload]
    parts = lengths.split(b".")
    if not all(part.isdigit() and len(part) < 12 for part in parts):
        return [payload]
    frames, at = [], 0
    for part in parts:
        frames.append(payload[at : at + int(part)])
        at += int(part)
    return frames if at == len(payload) else [payload]
