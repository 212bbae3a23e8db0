"""What a durable stream answers to those who read it by sequence (:mod:`mama_spark.malamute.protocol.log_query`).

Each answer is bounded in size and work, so that a reader holds the stream up for milliseconds. What a fetch brings is
made into frames here, in the engine's thread.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from mama_spark.errors import ConfigError, MamaError
from mama_spark.malamute.protocol import log_query as qu
from mama_spark.malamute.protocol.commands import StatusCode, deliver_frame
from mama_spark.malamute.protocol.log_query import LogQuery, LogQueryAnswer, Op, Selection, numbers, texts
from mama_spark.malamute.protocol.patterns import BadPattern, Matcher

from ..frame_columns import unpack
from .settings import DurableSettings
from .store import MAX_REMOVED, MessageStore
from .store_reader import SUFFIX, Row, StoreFull, StoreReader, store_path

Records = list[list[bytes]]
#: Rows that are read at a time while most may not be wanted, and octets of them that one question looks at.
_STEP = 1024
_LOOK_OCTETS = 8 * 1024 * 1024
#: Messages that are counted for one question, and octets that this goes over.
_COUNT = 250_000
_COUNT_OCTETS = 64 * 1024 * 1024
#: Patterns of one question, and octets of them together: their programs are matched against each subject.
MOST_PATTERNS = 256
PATTERN_OCTETS = 16 * 1024
_STAMP = struct.Struct(">3sBHqBHq")  #: extensions, version 1: sequence and time
_ID = struct.Struct(">BH")
_BLOCK = b"MS\x01"
_REMEMBERED = 4096
_SHORTENED = re.compile(r".{100}-[0-9a-f]{32}")  #: the file of a stream with a long name


class _Refused(MamaError):
    """The asker must change something."""


Wanted = Callable[[bytes], bool]
Reading = Callable[[int, int, int, int], list[Row]]


def answer(store: MessageStore, question: LogQuery, settings: DurableSettings) -> tuple[LogQueryAnswer, Records]:
    """Never raises for what is asked.

    :raises ConfigError: the store is damaged
    """
    number, identity = question.number, store.identity.encode()
    try:
        body, records = _DO[question.op](store, question, settings)
    except (BadPattern, _Refused) as e:
        return LogQueryAnswer(number, StatusCode.FAILED, str(e).encode(), identity), []
    except StoreFull as e:
        return LogQueryAnswer(number, StatusCode.INTERNAL_ERROR, str(e).encode(), identity), []
    return LogQueryAnswer(number, identity=identity, body=body), records


def _bounds(store: MessageStore, question: LogQuery, settings: DurableSettings) -> tuple[bytes, Records]:
    first, last = store.bounds()
    return numbers(first, last) + texts(text.encode() for text in limits(settings)), []


def _at(store: MessageStore, question: LogQuery, settings: DurableSettings) -> tuple[bytes, Records]:
    return numbers(store.at(question.numbers[0])), []


def _missing(store: MessageStore, question: LogQuery, settings: DurableSettings) -> tuple[bytes, Records]:
    """What lies in front of the first message is one range, however much it is."""
    after, asked = question.numbers
    first, last = store.bounds()
    up_to = min(asked, last)
    ranges = []
    if after < min(first - 1, up_to):
        ranges.append((after + 1, min(first - 1, up_to)))
        after = ranges[0][1]
    reached = min(up_to, after + _most_counted(store, last + 1 - first))
    if not store.complete(after, reached):
        reached = min(up_to, after + qu.LOOK)
        ranges += store.missing(after, reached)
    if len(ranges) > qu.MOST_RANGES:
        ranges = ranges[: qu.MOST_RANGES]
        reached = ranges[-1][1]
    return numbers(asked if reached >= up_to else reached, *(edge for one in ranges for edge in one)), []


def _most_counted(store: MessageStore, messages: int) -> int:
    """To count messages, their pages are read."""
    octets: int = store.octets
    return max(qu.LOOK, min(_COUNT, _COUNT_OCTETS * max(1, messages) // max(1, octets)))


def _trim(store: MessageStore, question: LogQuery, settings: DurableSettings) -> tuple[bytes, Records]:
    if question.text != store.identity.encode():
        raise _Refused("the stream was deleted and created again")
    store.trim(min(question.numbers[0], store.bounds()[0] + MAX_REMOVED))
    return numbers(store.bounds()[0]), []


def _fetch(store: MessageStore, question: LogQuery, settings: DurableSettings) -> tuple[bytes, Records]:
    after, up_to, rows, octets = question.numbers
    rows, octets = min(max(rows, 1), qu.FETCH_ROWS), min(max(octets, 1), qu.FETCH_OCTETS)
    last = store.bounds()[1]
    up_to = min(up_to, last)
    wanted = _wanted(question)
    reading = store.read_ttl if question.op is Op.STANDING else store.read
    if wanted is None:
        found = reading(after, up_to, rows, octets)
        more = len(found) == rows or sum(len(row[4]) for row in found) >= octets
        reached = found[-1][0] if more else up_to
    else:
        found, reached = _search(reading, after, up_to, rows, octets, wanted)
    return numbers(max(reached, 0), last), list(_frames(store.name, found))


def _block(store: MessageStore, question: LogQuery, settings: DurableSettings) -> tuple[bytes, Records]:
    """A frame costs more than a message in it."""
    body, found = _fetch(store, question, settings)
    if not found:
        return body, []
    heads, contents = [frames[0] for frames in found], [b"".join(frames[1:]) for frames in found]
    lengths = struct.pack(f">{2 * len(found)}I", *map(len, heads), *map(len, contents))
    return body, [[deliver_frame(store.name, b"", b""), lengths, b"".join(heads), b"".join(contents)]]


def _search(reading: Reading, after: int, up_to: int, rows: int, octets: int, wanted: Wanted) -> tuple[list[Row], int]:
    """Those that are wanted, and up to where was looked."""
    found: list[Row] = []
    looked = looked_octets = 0
    while after < up_to and looked < qu.LOOK and looked_octets < _LOOK_OCTETS:
        some = reading(after, up_to, _STEP, qu.FETCH_OCTETS)
        if not some:
            return found, up_to
        for row in some:
            after = row[0]
            size = len(row[4])
            looked, looked_octets = looked + 1, looked_octets + size
            if wanted(row[3]):
                found.append(row)
                rows, octets = rows - 1, octets - size
                if rows <= 0 or octets <= 0:
                    return found, after
    return found, after


def _wanted(question: LogQuery) -> Wanted | None:
    """None = all.

    :raises BadPattern: a pattern is refused, or there are too many
    """
    if question.selection is Selection.ALL:
        return None
    if question.selection is Selection.SUBJECTS:
        return frozenset(question.texts).__contains__
    return _matcher(question.texts)


@lru_cache(maxsize=32)  # a reader asks the same again and again
def _matcher(patterns: tuple[bytes, ...]) -> Wanted:
    if len(patterns) > MOST_PATTERNS or sum(map(len, patterns)) > PATTERN_OCTETS:
        raise BadPattern(f"more than {MOST_PATTERNS} patterns, or {PATTERN_OCTETS} octets of them")
    matcher = Matcher()
    for pattern in patterns:
        matcher.add(pattern)
    return lru_cache(maxsize=_REMEMBERED)(lambda subject: bool(matcher.match(subject)))


def _frames(stream: bytes, rows: Iterable[Row]) -> Iterable[list[bytes]]:
    """STREAM DELIVERs; what is the same for all messages of a sender and subject is made once."""
    heads: dict[tuple[bytes, bytes], bytes] = {}
    pack = _STAMP.pack
    for sequence, time, sender, subject, content, lengths, message_id, headers, _ in rows:
        head = heads.get((sender, subject))
        if head is None:
            head = heads[sender, subject] = deliver_frame(stream, sender, subject)
        frame = head + pack(_BLOCK, 3, 8, sequence, 4, 8, time)
        if message_id:
            frame += _ID.pack(7, len(message_id)) + message_id
        if headers:
            frame += headers[len(_BLOCK) :]  # they are stored as they travel
        yield [frame, content] if lengths is None else [frame, *unpack(content, lengths)]


_DO: dict[Op, Callable[[MessageStore, LogQuery, DurableSettings], tuple[bytes, Records]]] = {
    Op.BOUNDS: _bounds,
    Op.AT: _at,
    Op.MISSING: _missing,
    Op.TRIM: _trim,
    Op.FETCH: _fetch,
    Op.STANDING: _fetch,
    Op.BLOCK: _block,
}


def limits(settings: DurableSettings) -> list[str]:
    """What retention may remove, as ends of sentences."""
    found = {
        "after {:g} seconds (max_age)": settings.max_age,
        "beyond {} octets (max_octets)": settings.max_octets,
        "beyond {} messages (max_messages)": settings.max_messages,
    }
    return [text.format(limit) for text, limit in found.items() if limit is not None]


def stored_streams(settings: Mapping[str, Any]) -> list[bytes]:
    """Names of the streams in the folder of these settings."""
    folder = Path(DurableSettings.parse(b"", settings).folder)
    found = []
    for path in folder.glob(f"*{SUFFIX}"):
        stem = path.name[: -len(SUFFIX)]
        name = b"" if stem == "%" else unquote_to_bytes(stem)
        if _SHORTENED.fullmatch(stem):
            try:
                store = StoreReader(path)
            except ConfigError:
                continue
            name = store.name
            store.close()
        found.append(name)
    return found


def is_stored(name: bytes, settings: Mapping[str, Any]) -> bool:
    try:
        return store_path(DurableSettings.parse(name, settings).folder, name).exists()
    except (MamaError, OSError):
        return False
