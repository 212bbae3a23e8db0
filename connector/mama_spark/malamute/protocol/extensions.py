"""Extensions of MLP between mama-spark's own clients and broker: bytes after the last field of a command. Pure.

Other implementations ignore these bytes. A client announces its features in OPEN; only then does the broker extend the
commands it sends. Layout, version 1::

    block   "MS" (4d 53), version (1 byte, 01), field*
    field   tag (1 byte), length (number-2), value

| tag | field | value | in |
|---|---|---|---|
| 1 | features | number-4: 1 credit, 2 sequence, 4 acks, 8 confirm, 16 headers, 32 log, 64 send credit, \
128 discovery, 256 message blocks | OPEN; OK of OPEN: those the broker supports |
| 2 | send credit | number-4: how many more bytes the client may send (:class:`.SendWindow`) | OK of OPEN, PONG |
| 3 | sequence | number-8: the message's number in its stream | DELIVER |
|   |   | number-8: the subscription begins after it | OK of a READ without `after` |
| 4 | time | number-8: time of storage, microseconds since the epoch | DELIVER |
| 5 | after | number-8: replay messages with a higher number | READ |
| 6 | acks | 13-byte runs: outcome (1 byte), count (number-4), first sequence (number-8); the field may be \
repeated | PONG |
| 7 | message id | 1 to 65,535 bytes; a stored stream stores an id once | SEND, DELIVER |
| 8 | header | length of the name (number-2), name, value; one field per value, in order | SEND, DELIVER |
| 9 | stored | number-4: 1 = the stream is stored: it numbers its messages, and stores an id once | OK of WRITE |
| 10 | question | about stored streams, see :mod:`.log_query` | PING |
| 11 | answer | to a question | PONG |
| 12 | message block | number-4: messages in this command (:mod:`.message_blocks`) | SEND |

Numbers are unsigned and big-endian. A receiver ignores fields with an unknown tag or an invalid value, and blocks that
are truncated, of another version or without ``MS``. It never reports an error. A message has at most
:data:`~mama_spark.contracts.headers.MAX_HEADERS` headers: the broker disconnects a client that sends more.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from mama_spark.contracts.headers import MAX_HEADERS

from .commands import BadFrame

VERSION = 1
_MAGIC = b"MS" + bytes([VERSION])
_FIELD = struct.Struct(">BH")
_RUN = struct.Struct(">BIQ")


class Feature(IntFlag):
    CREDIT = 1  #: nothing is delivered before its first CREDIT
    SEQUENCE = 2  #: and time of a delivery
    ACKS = 4  #: outcomes of sends, in the PONG of the next PING
    CONFIRM = 8  #: CONFIRM commands about mailbox and service messages, in both directions
    HEADERS = 16  #: message ids and headers
    LOG = 32  #: questions about stored streams
    SENDING = 64  #: a send window; only with ACKS
    DISCOVERY = 128  #: it may write discovery records to the broker's own stream, and causes no events there
    BLOCKS = 256  #: several messages as one command (:mod:`.message_blocks`)


ALL = Feature(sum(Feature))


class StoreOutcome(IntEnum):
    ACCEPTED = 0  #: the engine has them; it stores nothing
    STORED = 1
    DUPLICATE = 2  #: their ids were stored before; ``first`` is then the sequence of the first of them
    REFUSED = 3  #: not stored and not delivered


@dataclass(frozen=True, slots=True)
class AckRun:
    """``count`` sends with one outcome and consecutive sequences; runs are in the order of the sends."""

    outcome: StoreOutcome
    count: int
    first: int = 0  #: sequence of the first; 0 where the engine does not number

    @property
    def last(self) -> int:
        return self.first + self.count - 1 if self.first else 0


@dataclass(slots=True, unsafe_hash=True)  # not frozen: that costs a microsecond per message
class Extension:
    """The fields of one block; None or empty = missing. Treat instances as immutable."""

    features: Feature | None = None
    credit: int | None = None
    sequence: int | None = None
    time: int | None = None
    after: int | None = None
    acks: tuple[AckRun, ...] = ()
    message_id: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    stored: int | None = None
    question: bytes = b""
    answer: bytes = b""
    block: int | None = None
    too_many: bool = False  #: fields: none of them is read


NO_EXTENSION = Extension()


def of_stored(sequence: int, time: int, message_id: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> Extension:
    """The extension of a delivered message; twice as fast as the constructor with keywords."""
    return Extension(None, None, sequence, time, None, (), message_id, headers)


_NUMBERS = {
    1: ("features", 4), 2: ("credit", 4), 3: ("sequence", 8), 4: ("time", 8), 5: ("after", 8), 9: ("stored", 4),
    12: ("block", 4),
}  # fmt: skip
_ACKS, _MESSAGE_ID, _HEADER = 6, 7, 8
_ID_FIRST = _MAGIC + bytes([_MESSAGE_ID])
_QUESTION, _ANSWER = 10, 11
_BYTES = {_MESSAGE_ID: "message_id", _QUESTION: "question", _ANSWER: "answer"}
_MAX_FIELDS = MAX_HEADERS + 64  #: of a block
_MOST_RUNS = 65_535 // 13  #: per field; further runs go into further fields


def write(extension: Extension) -> bytes:
    """Encode the block; empty for an extension without fields.

    :raises BadFrame: a value does not fit
    """
    parts = []
    try:
        for tag, (name, width) in _NUMBERS.items():
            value = getattr(extension, name)
            if value is not None:
                parts.append(_FIELD.pack(tag, width) + int(value).to_bytes(width, "big"))
        for at in range(0, len(extension.acks), _MOST_RUNS):
            some = extension.acks[at : at + _MOST_RUNS]
            runs = b"".join(_RUN.pack(run.outcome, run.count, run.first) for run in some)
            parts.append(_FIELD.pack(_ACKS, len(runs)) + runs)
        if extension.message_id:
            parts.append(_FIELD.pack(_MESSAGE_ID, len(extension.message_id)) + extension.message_id)
        for key, text in extension.headers:
            parts.append(_FIELD.pack(_HEADER, 2 + len(key) + len(text)) + struct.pack(">H", len(key)) + key + text)
        if extension.question:
            parts.append(_FIELD.pack(_QUESTION, len(extension.question)) + extension.question)
        if extension.answer:
            parts.append(_FIELD.pack(_ANSWER, len(extension.answer)) + extension.answer)
    except (OverflowError, struct.error) as e:
        raise BadFrame(f"an extension does not fit: {e}") from None
    return _MAGIC + b"".join(parts) if parts else b""


def only_id(trailing: bytes) -> bytes | None:
    """The message id if it is the only field, empty if there is no extension; None = use :func:`read`."""
    if trailing.startswith(_ID_FIRST) and 6 < len(trailing) == 6 + (trailing[4] << 8 | trailing[5]):
        return trailing[6:]
    return None if trailing else b""


def read(trailing: bytes) -> Extension:
    """Decode the bytes after a command's last field. Never raises."""
    message_id = only_id(trailing)
    if message_id:
        return Extension(message_id=message_id)  # fast path of the most frequent extension
    if not trailing.startswith(_MAGIC):
        return NO_EXTENSION
    fields = _split(trailing)
    if fields is None:
        return Extension(too_many=True)
    found: dict[str, object] = {}
    headers: list[tuple[bytes, bytes]] = []
    acks: list[AckRun] = []
    for tag, value in fields:
        if tag in _NUMBERS:
            name, width = _NUMBERS[tag]
            if len(value) == width:
                number = int.from_bytes(value, "big")
                found[name] = Feature(number) & ALL if name == "features" else number
        elif tag == _ACKS:
            acks.extend(_runs(value))
        elif tag in _BYTES and value:
            found[_BYTES[tag]] = value
        elif tag == _HEADER and len(value) >= 2:
            end = 2 + int.from_bytes(value[:2], "big")
            if end <= len(value):
                headers.append((value[2:end], value[end:]))
    if len(headers) > MAX_HEADERS:
        return Extension(too_many=True)
    return Extension(headers=tuple(headers), acks=tuple(acks), **found)  # type: ignore[arg-type]


def _split(block: bytes) -> list[tuple[int, bytes]] | None:
    """Tags and values; None: too many."""
    fields: list[tuple[int, bytes]] = []
    at = len(_MAGIC)
    while at < len(block):
        if at + _FIELD.size > len(block):
            return []
        tag, length = _FIELD.unpack_from(block, at)
        at += _FIELD.size
        if at + length > len(block):
            return []
        if len(fields) == _MAX_FIELDS:
            return None
        fields.append((tag, block[at : at + length]))
        at += length
    return fields


def _runs(value: bytes) -> tuple[AckRun, ...]:
    if len(value) % _RUN.size:
        return ()
    try:
        return tuple(AckRun(StoreOutcome(outcome), count, first) for outcome, count, first in _RUN.iter_unpack(value))
    except ValueError:  # an outcome of a later version of the protocol
        return ()
