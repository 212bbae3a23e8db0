"""Answers log queries (:mod:`mama_spark.malamute.protocol.log_query`) about a :class:`QueriedStore`. Pure.

Each answer is limited in size and work, so that a reader delays the stream by milliseconds. Messages are encoded as
frames here, in the engine's thread.

A row is a tuple: sequence, time (microseconds since the epoch), sender, subject, content, lengths of its frames, id,
headers (see :func:`pack` and :func:`pack_headers`), and what else an engine needs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Any, Protocol

from mama_spark.contracts.errors import MamaError, Unavailable
from mama_spark.malamute.protocol import log_query as qu
from mama_spark.malamute.protocol.commands import StatusCode, deliver_frame
from mama_spark.malamute.protocol.extensions import Extension, read, write
from mama_spark.malamute.protocol.log_query import LogQuery, LogQueryAnswer, Op, Selection, numbers, texts
from mama_spark.malamute.protocol.patterns import BadPattern, Matcher

QueryRecords = list[list[bytes]]
Row = tuple[Any, ...]
Wanted = Callable[[bytes], bool]
#: Rows that were found, ascending, and the sequence up to which all were looked at.
Rows = Iterator[tuple[Sequence[Row], int]]
#: Bytes that one query reads, about.
SEARCH_BYTES = 8 * 1024 * 1024
#: Sequences that one query about missing ones examines, where it must count.
COUNTED = 250_000
#: Subjects that are looked up one by one.
FEW_SUBJECTS = 64
#: Most patterns of one query, and their bytes in total: each is matched against each subject.
MAX_PATTERNS = 256
PATTERN_BYTES = 16 * 1024
_STAMP = struct.Struct(">3sBHqBHq")  #: extensions, version 1: sequence and time
_ID = struct.Struct(">BH")
_BLOCK = b"MS\x01"
_CACHED_SUBJECTS = 4096


class BadQuery(MamaError):
    """The query is wrong; a retry cannot succeed."""


WRONG: tuple[type[Exception], ...] = (BadPattern, BadQuery)


class QueriedStore(Protocol):
    """Stored messages; a call may cover its range ``after < sequence <= up_to`` only up to the sequence returned."""

    @property
    def name(self) -> bytes: ...

    @property
    def identity(self) -> str: ...

    def bounds(self) -> tuple[int, int]:
        """Sequences of the first and the last message; first = last + 1 if there is none."""
        ...

    def limits(self) -> list[bytes]: ...

    def sequence_at(self, time: int) -> int:
        """Sequence of the first message of this time or later; last + 1 if there is none."""
        ...

    def missing(self, after: int, up_to: int) -> tuple[list[tuple[int, int]], int]:
        """Ranges, both ends inclusive, of removed messages."""
        ...

    def trim(self, before: int) -> None:
        """Remove messages with a lower sequence: all of them, or some."""
        ...

    def scan(self, after: int, up_to: int, rows: int, max_bytes: int) -> Rows:
        """At most so many rows, with about so many bytes of content."""
        ...

    def subjects(self, after: int, up_to: int) -> Rows:
        """Sequence and subject of :data:`~mama_spark.malamute.protocol.log_query.LOOK` messages at most, without
        reading contents."""
        ...

    def ids(self, after: int, up_to: int, rows: int, prefix: bytes) -> tuple[Iterable[Row], int]:
        """Sequence, id and subject of the messages whose id begins with ``prefix``, among about ``rows``."""
        ...

    def last_of(self, subjects: Sequence[bytes], after: int, up_to: int) -> list[Row]:
        """The last message of each of these subjects that has, or had, a time to live, ascending."""
        ...

    def last_of_each(self, after: int, up_to: int, rows: int, max_bytes: int) -> Rows:
        """Rows like those of :meth:`scan`, of what :meth:`last_of` finds for any subject.

        :raises BadQuery: the store does not find them
        """
        ...


def answer(
    store: QueriedStore, query: LogQuery, wrong: tuple[type[Exception], ...] = WRONG
) -> tuple[LogQueryAnswer, QueryRecords]:
    """The answer and the frames of the messages before it; errors of ``wrong`` say that the query is wrong."""
    number, identity = query.number, store.identity.encode()
    handler = _HANDLERS.get(query.op)
    if handler is None:
        reason = f"this engine does not answer {query.op.name}"
        return LogQueryAnswer(number, StatusCode.NOT_IMPLEMENTED, reason.encode(), identity), []
    try:
        body, records = handler(store, query)
    except wrong as e:
        return LogQueryAnswer(number, StatusCode.FAILED, str(e).encode(), identity), []
    except Unavailable as e:
        return LogQueryAnswer(number, StatusCode.INTERNAL_ERROR, str(e).encode(), identity), []
    return LogQueryAnswer(number, identity=identity, body=body), records


def _bounds(store: QueriedStore, query: LogQuery) -> tuple[bytes, QueryRecords]:
    return numbers(*store.bounds()) + texts(store.limits()), []


def _at(store: QueriedStore, query: LogQuery) -> tuple[bytes, QueryRecords]:
    return numbers(store.sequence_at(query.numbers[0])), []


def _missing(store: QueriedStore, query: LogQuery) -> tuple[bytes, QueryRecords]:
    after, asked = query.numbers
    up_to = min(asked, store.bounds()[1])
    ranges, reached = store.missing(after, up_to)
    if len(ranges) > qu.MOST_RANGES:
        ranges = ranges[: qu.MOST_RANGES]
        reached = ranges[-1][1]
    return numbers(asked if reached >= up_to else reached, *(edge for one in ranges for edge in one)), []


def _trim(store: QueriedStore, query: LogQuery) -> tuple[bytes, QueryRecords]:
    if query.text != store.identity.encode():
        raise BadQuery("the stream was deleted and created again")
    store.trim(query.numbers[0])
    return numbers(store.bounds()[0]), []


def _match(store: QueriedStore, query: LogQuery) -> tuple[bytes, QueryRecords]:
    after, asked, most = query.numbers
    most, wanted, found = max(most, 1), selection_test(query), 0
    reached = up_to = min(asked, store.bounds()[1])
    for part, covered in store.subjects(after, up_to):
        reached = covered
        for sequence, subject in part:
            found += wanted is None or wanted(subject)
            if found == most:
                return numbers(sequence, most), []
    return numbers(asked if reached >= up_to else reached, found), []


def _fetch(store: QueriedStore, query: LogQuery) -> tuple[bytes, QueryRecords]:
    after, up_to, rows, max_bytes = query.numbers
    rows, max_bytes = min(max(rows, 1), qu.FETCH_ROWS), min(max(max_bytes, 1), qu.FETCH_BYTES)
    last, wanted = store.bounds()[1], selection_test(query)
    reached = up_to = min(up_to, last)
    examined = (rows, max_bytes) if wanted is None else (qu.LOOK, SEARCH_BYTES)
    read = store.last_of_each if query.op is Op.STANDING else store.scan
    found: list[Row] = []
    for part, covered in read(after, up_to, *examined):
        reached = covered
        for row in part:
            if wanted is None or wanted(row[3]):
                found.append(row)
                rows, max_bytes = rows - 1, max_bytes - len(row[4])
                if rows <= 0 or max_bytes <= 0:
                    return numbers(row[0], last), list(frames_of(store.name, found))
    return numbers(max(reached, 0), last), list(frames_of(store.name, found))


def _standing(store: QueriedStore, query: LogQuery) -> tuple[bytes, QueryRecords]:
    after, up_to, _, _ = query.numbers
    if query.selection is not Selection.SUBJECTS or len(query.texts) > FEW_SUBJECTS:
        return _fetch(store, query)
    last = store.bounds()[1]
    found = store.last_of(query.texts, after, min(up_to, last))
    return numbers(min(up_to, last), last), list(frames_of(store.name, found))


def _block(store: QueriedStore, query: LogQuery) -> tuple[bytes, QueryRecords]:
    body, found = _fetch(store, query)
    return body, as_block(store.name, found)


def _ids(store: QueriedStore, query: LogQuery) -> tuple[bytes, QueryRecords]:
    after, up_to, rows, _ = query.numbers
    last, wanted = store.bounds()[1], selection_test(query)
    some, reached = store.ids(after, min(up_to, last), rows, query.text)
    found = [(sequence, one) for sequence, one, subject in some if wanted is None or wanted(subject)]
    return numbers(max(reached, 0), last), ids_block(store.name, found)


_HANDLERS: dict[Op, Callable[[QueriedStore, LogQuery], tuple[bytes, QueryRecords]]] = {
    Op.BOUNDS: _bounds,
    Op.AT: _at,
    Op.MISSING: _missing,
    Op.TRIM: _trim,
    Op.FETCH: _fetch,
    Op.STANDING: _standing,
    Op.BLOCK: _block,
    Op.MATCH: _match,
    Op.IDS: _ids,
}


def limits(
    max_age: float | None, max_bytes: int | None, max_messages: int | None, max_per_subject: int | None = None
) -> list[bytes]:
    """Descriptions of messages that retention may remove, as ends of sentences; None, 0 and less = no limit."""
    found = {
        "after {:g} seconds (max_age)": max_age,
        "beyond {} bytes (max_bytes)": max_bytes,
        "beyond {} messages (max_messages)": max_messages,
        "beyond {} messages of a subject (max_per_subject)": max_per_subject,
    }
    return [text.format(limit).encode() for text, limit in found.items() if limit is not None and limit > 0]


def selection_test(query: LogQuery) -> Wanted | None:
    """The test of a selection; None = all messages.

    :raises BadPattern: a pattern is refused, or there are too many
    """
    if query.selection is Selection.ALL:
        return None
    if query.selection is Selection.SUBJECTS:
        return frozenset(query.texts).__contains__
    return _matcher(query.texts)


@lru_cache(maxsize=32)  # a reader repeats its query
def _matcher(patterns: tuple[bytes, ...]) -> Wanted:
    if len(patterns) > MAX_PATTERNS or sum(map(len, patterns)) > PATTERN_BYTES:
        raise BadPattern(f"more than {MAX_PATTERNS} patterns, or {PATTERN_BYTES} bytes of them")
    matcher = Matcher()
    for pattern in patterns:
        matcher.add(pattern)
    return lru_cache(maxsize=_CACHED_SUBJECTS)(lambda subject: bool(matcher.match(subject)))


def frames_of(stream: bytes, rows: Iterable[Row]) -> Iterable[list[bytes]]:
    """Encode rows as STREAM DELIVERs; the common part of a sender and subject is encoded once."""
    heads: dict[tuple[bytes, bytes], bytes] = {}
    pack = _STAMP.pack
    for sequence, time, sender, subject, content, lengths, message_id, headers, *_ in rows:
        head = heads.get((sender, subject))
        if head is None:
            head = heads[sender, subject] = deliver_frame(stream, sender, subject)
        frame = head + pack(_BLOCK, 3, 8, sequence, 4, 8, time)
        if message_id:
            frame += _ID.pack(7, len(message_id)) + message_id
        if headers:
            frame += headers[len(_BLOCK) :]
        yield [frame, content] if lengths is None else [frame, *unpack(content, lengths)]


def as_block(stream: bytes, found: QueryRecords) -> QueryRecords:
    """STREAM DELIVERs as one block: a frame costs more than a message in it."""
    if not found:
        return []
    heads, contents = [frames[0] for frames in found], [b"".join(frames[1:]) for frames in found]
    lengths = struct.pack(f">{2 * len(found)}I", *map(len, heads), *map(len, contents))
    return [[deliver_frame(stream, b"", b""), lengths, b"".join(heads), b"".join(contents)]]


def ids_block(stream: bytes, found: Sequence[tuple[int, bytes]]) -> QueryRecords:
    """Sequences and ids as one STREAM DELIVER; none if there are none."""
    if not found:
        return []
    n, (sequences, ids) = len(found), zip(*found, strict=True)
    lengths = struct.pack(f">{n}H", *map(len, ids))
    return [[deliver_frame(stream, b"", b""), struct.pack(f">{n}Q", *sequences), lengths, b"".join(ids)]]


def pack(content: Sequence[bytes]) -> tuple[bytes, bytes | None]:
    """The joined frames, and their lengths (4 bytes each); None = one frame, the usual case."""
    if len(content) == 1:
        return content[0], None
    return b"".join(content), struct.pack(f">{len(content)}I", *map(len, content))


def unpack(content_bytes: bytes, lengths: bytes | None) -> list[bytes]:
    if lengths is None:
        return [content_bytes]
    frames, at = [], 0
    for (length,) in struct.iter_unpack(">I", lengths):
        frames.append(content_bytes[at : at + length])
        at += length
    return frames


def pack_headers(headers: tuple[tuple[bytes, bytes], ...]) -> bytes | None:
    return write(Extension(headers=headers)) if headers else None


def unpack_headers(stored: bytes | None) -> tuple[tuple[bytes, bytes], ...]:
    return read(stored).headers if stored else ()
