"""Log queries: questions of a client about stored streams, and their answers. Pure.

A question is in the trailing bytes of a PING, its answer in those of a PONG (:mod:`.extensions`, fields 10 and 11; only
between peers that both announced :attr:`~.extensions.Feature.LOG`). A question has a number, which the answer repeats:
answers are sent when they are ready, and other PONGs do not wait for them. Layout, all numbers unsigned and big-endian
unless noted::

    question  op (1 byte), number (number-4), stream (string), then by op
    answer    number (number-4), code (number-2), reason (string), identity (string), then by op

| op | question | answer |
|---|---|---|
| 1 NAMES | after (string): names greater than this one, in order of bytes | more (1 byte), strings |
| 2 BOUNDS | - | first, last (number-8 each), then strings: limits that may remove messages, a sentence each |
| 3 AT | time (number-8, signed, microseconds since the epoch) | sequence (number-8) of the first message from then on |
| 4 MISSING | after, up to (number-8 each) | reached (number-8), then pairs (number-8 each): missing ranges |
| 5 TRIM | before (number-8), identity (string): only if the stream has it | first (number-8) |
| 6 FETCH | after, up to (number-8 each), rows, bytes (number-4 each), selection | reached, last (number-8 each) |
| 7 STANDING | as FETCH | as FETCH |
| 8 BLOCK | as FETCH | as FETCH |
| 9 MATCH | after, up to (number-8 each), most (number-4), selection | reached, found (number-8 each) |
| 10 IDS | as FETCH, with prefix (string) before the selection | as FETCH |

A selection is empty (every message), or kind (1 byte) and texts (length (number-2), text): subjects (kind 1) or
patterns (kind 2, any of which matches). The messages of FETCH are sent as STREAM DELIVERs immediately before the
answer, each with sequence and time, and with id and headers if it has them; they use no credit. BLOCK returns the same
messages in one STREAM DELIVER (none if there is no message) with three content frames: the lengths (number-4 each) of
all command frames that FETCH would send, then of all contents; these command frames, joined; the contents, joined.
MATCH counts the selected messages behind ``after`` up to ``reached``, at most ``most``, and sends none.
IDS returns sequences and ids of the messages whose id begins with ``prefix``, in one STREAM DELIVER (none if there is
no such message) with three content frames: the sequences (number-8 each), the lengths of the ids (number-2 each), the
ids, joined.
STANDING returns the last message of each subject that ever had a time to live (:mod:`.ttl`).

The answer and the work for one question are bounded: MISSING, FETCH, MATCH and IDS return the last sequence they
covered (``reached``), TRIM the sequence of the first message left, NAMES whether there are more; the client continues
from there. ``identity`` is that of the stream; it changes when the stream is deleted and created again.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from .commands import BadFrame, StatusCode, shortened, string

#: Most messages and bytes that one FETCH returns; a larger message is returned alone.
FETCH_ROWS = 4096
FETCH_BYTES = 1024 * 1024
#: Sequences that one MISSING or FETCH examines, and ranges in one answer.
LOOK = 16_384
MOST_RANGES = 4000
NAMES_BYTES = 60_000
_HEAD = struct.Struct(">BI")
_ANSWER = struct.Struct(">IH")
_LARGEST = 2**63 - 1


class Op(IntEnum):
    NAMES = 1
    BOUNDS = 2
    AT = 3
    MISSING = 4
    TRIM = 5
    FETCH = 6
    STANDING = 7
    BLOCK = 8
    MATCH = 9
    IDS = 10


class Selection(IntEnum):
    ALL = 0
    SUBJECTS = 1
    PATTERNS = 2


#: Numbers of each question in order: q unsigned (limited to the range of sequences), t signed, i of four bytes.
_NUMBERS: dict[Op, str] = {
    Op.NAMES: "",
    Op.BOUNDS: "",
    Op.AT: "t",
    Op.MISSING: "qq",
    Op.TRIM: "q",
    Op.FETCH: "qqii",
    Op.STANDING: "qqii",
    Op.BLOCK: "qqii",
    Op.MATCH: "qqi",
    Op.IDS: "qqii",
}
_WITH_TEXT = (Op.NAMES, Op.TRIM, Op.IDS)
_WITH_SELECTION = (Op.FETCH, Op.STANDING, Op.BLOCK, Op.MATCH, Op.IDS)
_WIDTH = {"q": 8, "t": 8, "i": 4}


@dataclass(frozen=True, slots=True)
class LogQuery:
    """A question.

    :ivar number: chosen by the client, repeated in the answer
    :ivar numbers: numbers by op, in the order of the table above
    :ivar text: NAMES: ``after``; TRIM: the identity; IDS: ``prefix``
    """

    op: Op
    number: int
    stream: bytes = b""
    numbers: tuple[int, ...] = ()
    text: bytes = b""
    selection: Selection = Selection.ALL
    texts: tuple[bytes, ...] = ()

    def pack(self) -> bytes:
        """The question, encoded.

        :raises BadFrame: a value does not fit in its field
        """
        parts = [_HEAD.pack(self.op, self.number), string(self.stream)]
        try:
            for kind, value in zip(_NUMBERS[self.op], self.numbers, strict=True):
                parts.append(value.to_bytes(_WIDTH[kind], "big", signed=kind == "t"))
        except OverflowError:
            raise BadFrame(f"{self.op.name}: {value} does not fit") from None
        if self.op in _WITH_TEXT:
            parts.append(string(self.text))
        if self.selection:
            parts.append(bytes([self.selection]))
            for one in self.texts:
                if len(one) > 65_535:
                    raise BadFrame(f"a subject or pattern of {len(one)} bytes")
                parts.append(struct.pack(">H", len(one)) + one)
        packed = b"".join(parts)
        if len(packed) > 65_535:
            raise BadFrame(f"a question of {len(packed)} bytes: too many subjects or patterns")
        return packed


def parse_query(packed: bytes) -> LogQuery | None:
    """The query; None = not understood. Never raises."""
    try:
        op, number = _HEAD.unpack_from(packed)
        stream, at = _string(packed, _HEAD.size)
        kind = Op(op)
        numbers = []
        for width in _NUMBERS[kind]:
            end = at + _WIDTH[width]
            if end > len(packed):
                return None
            value = int.from_bytes(packed[at:end], "big", signed=width == "t")
            numbers.append(min(value, _LARGEST))
            at = end
        text = b""
        if kind in _WITH_TEXT:
            text, at = _string(packed, at)
        if at == len(packed) or kind not in _WITH_SELECTION:
            return LogQuery(kind, number, stream, tuple(numbers), text)
        texts = tuple(_texts(packed, at + 1))
        return LogQuery(kind, number, stream, tuple(numbers), text, Selection(packed[at]), texts)
    except (struct.error, ValueError, IndexError):
        return None


def number_of(packed: bytes) -> int | None:
    """The number of a question that may otherwise be malformed."""
    return int(_HEAD.unpack_from(packed)[1]) if len(packed) >= _HEAD.size else None


@dataclass(frozen=True, slots=True)
class LogQueryAnswer:
    """An answer.

    :ivar code: SUCCESS; FAILED: the question is wrong; NOT_IMPLEMENTED: the stream is not stored, or by an engine that
        answers no questions (then ``identity`` is the engine's name); INTERNAL_ERROR: a later attempt may succeed
    :ivar body: see the table of this module; empty unless SUCCESS
    """

    number: int
    code: int = StatusCode.SUCCESS
    reason: bytes = b""
    identity: bytes = b""
    body: bytes = b""

    def pack(self) -> bytes:
        head = _ANSWER.pack(self.number, self.code)
        return b"".join((head, string(shortened(self.reason)), string(self.identity), self.body))


def parse_answer(packed: bytes) -> LogQueryAnswer | None:
    """The answer; None = not understood. Never raises."""
    try:
        number, code = _ANSWER.unpack_from(packed)
        reason, at = _string(packed, _ANSWER.size)
        identity, at = _string(packed, at)
    except (struct.error, ValueError, IndexError):
        return None
    return LogQueryAnswer(number, code, reason, identity, packed[at:])


def numbers(*values: int) -> bytes:
    return b"".join(value.to_bytes(8, "big") for value in values)


def parse_numbers(body: bytes, count: int) -> tuple[tuple[int, ...], bytes]:
    """The first ``count`` number-8s, and the bytes after them.

    :raises BadFrame: there are fewer
    """
    end = 8 * count
    if len(body) < end:
        raise BadFrame("an answer that is cut short")
    return tuple(int.from_bytes(body[at : at + 8], "big") for at in range(0, end, 8)), body[end:]


def texts(values: Iterable[bytes]) -> bytes:
    """Encode texts, each as much as a string takes."""
    return b"".join(string(shortened(value)) for value in values)


def parse_texts(body: bytes) -> list[bytes]:
    """Decode the texts that :func:`texts` encoded.

    :raises BadFrame: the last one is truncated
    """
    found, at = [], 0
    try:
        while at < len(body):
            text, at = _string(body, at)
            found.append(text)
    except (ValueError, IndexError):
        raise BadFrame("an answer that is cut short") from None
    return found


def names_body(names: Sequence[bytes], after: bytes) -> bytes:
    page, size, more = [], 0, False
    for name in names[bisect_right(names, after) if after else 0 :]:
        size += 1 + len(name)
        if size > NAMES_BYTES:
            more = True
            break
        page.append(string(name))
    return bytes([more]) + b"".join(page)


def _string(raw_bytes: bytes, at: int) -> tuple[bytes, int]:
    end = at + 1 + raw_bytes[at]
    if end > len(raw_bytes):
        raise ValueError
    return raw_bytes[at + 1 : end], end


def _texts(raw_bytes: bytes, at: int) -> list[bytes]:
    found = []
    while at < len(raw_bytes):
        end = at + 2 + int.from_bytes(raw_bytes[at : at + 2], "big")
        if at + 2 > len(raw_bytes) or end > len(raw_bytes):
            raise ValueError
        found.append(raw_bytes[at + 2 : end])
        at = end
    return found
