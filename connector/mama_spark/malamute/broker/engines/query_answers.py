"""Parts of the answers to log queries that engines share: limits, which messages are selected, and their frames. Pure.

A row is a tuple: sequence, time (microseconds since the epoch), sender, subject, content, lengths of its frames, id,
headers (see :mod:`.frame_columns`), and what else an engine needs.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any

from mama_spark.contracts.errors import MamaError
from mama_spark.malamute.protocol.commands import deliver_frame
from mama_spark.malamute.protocol.log_query import LogQuery, Selection
from mama_spark.malamute.protocol.patterns import BadPattern, Matcher

from .frame_columns import unpack

QueryRecords = list[list[bytes]]
Row = tuple[Any, ...]
Wanted = Callable[[bytes], bool]
#: Most patterns of one query, and their octets in total: each is matched against each subject.
MAX_PATTERNS = 256
PATTERN_OCTETS = 16 * 1024
_STAMP = struct.Struct(">3sBHqBHq")  #: extensions, version 1: sequence and time
_ID = struct.Struct(">BH")
_BLOCK = b"MS\x01"
_CACHED_SUBJECTS = 4096


class BadQuery(MamaError):
    """The query is wrong; a retry cannot succeed."""


def limits(
    max_age: float | None, max_octets: int | None, max_messages: int | None, max_per_subject: int | None = None
) -> list[bytes]:
    """Descriptions of messages that retention may remove, as ends of sentences; None, 0 and less = no limit."""
    found = {
        "after {:g} seconds (max_age)": max_age,
        "beyond {} octets (max_octets)": max_octets,
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
    if len(patterns) > MAX_PATTERNS or sum(map(len, patterns)) > PATTERN_OCTETS:
        raise BadPattern(f"more than {MAX_PATTERNS} patterns, or {PATTERN_OCTETS} octets of them")
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
            frame += headers[len(_BLOCK) :]  # headers are stored in their wire encoding
        yield [frame, content] if lengths is None else [frame, *unpack(content, lengths)]


def as_block(stream: bytes, found: QueryRecords) -> QueryRecords:
    """STREAM DELIVERs as one block: a frame costs more than a message in it."""
    if not found:
        return []
    heads, contents = [frames[0] for frames in found], [b"".join(frames[1:]) for frames in found]
    lengths = struct.pack(f">{2 * len(found)}I", *map(len, heads), *map(len, contents))
    return [[deliver_frame(stream, b"", b""), lengths, b"".join(heads), b"".join(contents)]]


def ids_block(stream: bytes, sequences: Sequence[int], ids: Sequence[bytes]) -> QueryRecords:
    """Sequences and ids as one STREAM DELIVER; none if there are none."""
    if not ids:
        return []
    n = len(ids)
    lengths = struct.pack(f">{n}H", *map(len, ids))
    return [[deliver_frame(stream, b"", b""), struct.pack(f">{n}Q", *sequences), lengths, b"".join(ids)]]
