"""Answers log queries about a durable stream (:mod:`mama_spark.malamute.protocol.log_query`), and lists stored streams.

Each answer is limited in size and work, so that a reader delays the stream by milliseconds. Messages that a fetch
returns are encoded as frames here, in the engine's thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from mama_spark.contracts.errors import ConfigError, MamaError
from mama_spark.malamute.protocol import log_query as qu
from mama_spark.malamute.protocol.commands import StatusCode
from mama_spark.malamute.protocol.log_query import LogQuery, LogQueryAnswer, Op, Selection, numbers, texts
from mama_spark.malamute.protocol.patterns import BadPattern

from ..query_answers import BadQuery, QueryRecords, Row, Wanted, as_block, frames_of, ids_block, limits, selection_test
from .settings import DurableSettings
from .store import MAX_REMOVED, MessageStore
from .store_reader import SUFFIX, StoreFull, StoreReader, store_path

#: Rows per read of a search, and most octets of rows that one query examines.
_SEARCH_ROWS = 1024
_SEARCH_OCTETS = 8 * 1024 * 1024
#: Most messages counted for one query, and their octets.
_COUNTED = 250_000
_COUNTED_OCTETS = 64 * 1024 * 1024
#: Subjects that are looked up one by one, and messages whose ids are read at least.
_FEW_SUBJECTS = 64
_SHORTENED = re.compile(r".{100}-[0-9a-f]{32}")  #: the file of a stream with a long name


ReadRows = Callable[[int, int, int, int], list[Row]]


def answer(store: MessageStore, query: LogQuery, settings: DurableSettings) -> tuple[LogQueryAnswer, QueryRecords]:
    """The answer to a query, and the frames of the messages before it. A wrong query has an answer with an error.

    :raises ConfigError: the store is damaged
    """
    number, identity = query.number, store.identity.encode()
    handler = _HANDLERS.get(query.op)
    if handler is None:
        reason = f"this engine does not answer {query.op.name}"
        return LogQueryAnswer(number, StatusCode.NOT_IMPLEMENTED, reason.encode(), identity), []
    try:
        body, records = handler(store, query, settings)
    except (BadPattern, BadQuery) as e:
        return LogQueryAnswer(number, StatusCode.FAILED, str(e).encode(), identity), []
    except StoreFull as e:
        return LogQueryAnswer(number, StatusCode.INTERNAL_ERROR, str(e).encode(), identity), []
    return LogQueryAnswer(number, identity=identity, body=body), records


def _bounds(store: MessageStore, query: LogQuery, settings: DurableSettings) -> tuple[bytes, QueryRecords]:
    first, last = store.bounds()
    return numbers(first, last) + texts(limits(settings.max_age, settings.max_octets, settings.max_messages)), []


def _at(store: MessageStore, query: LogQuery, settings: DurableSettings) -> tuple[bytes, QueryRecords]:
    return numbers(store.at(query.numbers[0])), []


def _missing(store: MessageStore, query: LogQuery, settings: DurableSettings) -> tuple[bytes, QueryRecords]:
    """All sequences before the first message are one range."""
    after, asked = query.numbers
    first, last = store.bounds()
    up_to = min(asked, last)
    ranges = []
    if after < min(first - 1, up_to):
        ranges.append((after + 1, min(first - 1, up_to)))
        after = ranges[0][1]
    reached = min(up_to, after + _count_limit(store, last + 1 - first))
    if not store.complete(after, reached):
        reached = min(up_to, after + qu.LOOK)
        ranges += store.missing(after, reached)
    if len(ranges) > qu.MOST_RANGES:
        ranges = ranges[: qu.MOST_RANGES]
        reached = ranges[-1][1]
    return numbers(asked if reached >= up_to else reached, *(edge for one in ranges for edge in one)), []


def _count_limit(store: MessageStore, messages: int) -> int:
    """Number of messages to count, limited because counting reads their pages."""
    octets: int = store.octets
    return max(qu.LOOK, min(_COUNTED, _COUNTED_OCTETS * max(1, messages) // max(1, octets)))


def _trim(store: MessageStore, query: LogQuery, settings: DurableSettings) -> tuple[bytes, QueryRecords]:
    if query.text != store.identity.encode():
        raise BadQuery("the stream was deleted and created again")
    store.trim(min(query.numbers[0], store.bounds()[0] + MAX_REMOVED))
    return numbers(store.bounds()[0]), []


def _fetch(store: MessageStore, query: LogQuery, settings: DurableSettings) -> tuple[bytes, QueryRecords]:
    after, up_to, rows, octets = query.numbers
    rows, octets = min(max(rows, 1), qu.FETCH_ROWS), min(max(octets, 1), qu.FETCH_OCTETS)
    last = store.bounds()[1]
    up_to = min(up_to, last)
    wanted = selection_test(query)
    read = store.read_ttl if query.op is Op.STANDING else store.read
    if wanted is None:
        found = read(after, up_to, rows, octets)
        more = len(found) == rows or sum(len(row[4]) for row in found) >= octets
        reached = found[-1][0] if more else up_to
    else:
        found, reached = _search(read, after, up_to, rows, octets, wanted)
    return numbers(max(reached, 0), last), list(frames_of(store.name, found))


def _last_of_subjects(store: MessageStore, query: LogQuery, settings: DurableSettings) -> tuple[bytes, QueryRecords]:
    after, up_to, _, _ = query.numbers
    if query.selection is not Selection.SUBJECTS or len(query.texts) > _FEW_SUBJECTS:
        return _fetch(store, query, settings)
    last = store.bounds()[1]
    found = store.ttl_of(query.texts, after, min(up_to, last))
    return numbers(min(up_to, last), last), list(frames_of(store.name, found))


def _ids(store: MessageStore, query: LogQuery, settings: DurableSettings) -> tuple[bytes, QueryRecords]:
    after, up_to, rows, _ = query.numbers
    first, last = store.bounds()
    after, up_to = max(after, first - 1), min(up_to, last)
    each = max(1, store.octets // max(1, last + 1 - first))  # ids stand behind the contents: these are read, too
    reached = min(up_to, after + max(_FEW_SUBJECTS, min(rows, qu.LOOK, _SEARCH_OCTETS // each)))
    wanted = selection_test(query)
    found = store.ids_of(after, reached, query.text)
    if wanted is not None:
        found = [row for row in found if wanted(row[2])]
    body = numbers(max(reached, 0), last)
    if not found:
        return body, []
    sequences, ids, _ = zip(*found, strict=True)
    return body, ids_block(store.name, sequences, ids)


def _match(store: MessageStore, query: LogQuery, settings: DurableSettings) -> tuple[bytes, QueryRecords]:
    after, asked, most = query.numbers
    up_to = min(asked, store.bounds()[1])
    some = store.subjects(after, up_to, qu.LOOK)
    wanted = selection_test(query)
    matching = [sequence for sequence, subject in some if wanted is None or wanted(subject)]
    if len(matching) >= max(most, 1):
        return numbers(matching[max(most, 1) - 1], max(most, 1)), []
    return numbers(some[-1][0] if len(some) == qu.LOOK else asked, len(matching)), []


def _block(store: MessageStore, query: LogQuery, settings: DurableSettings) -> tuple[bytes, QueryRecords]:
    body, found = _fetch(store, query, settings)
    return body, as_block(store.name, found)


def _search(read: ReadRows, after: int, up_to: int, rows: int, octets: int, wanted: Wanted) -> tuple[list[Row], int]:
    """The selected rows, and the last sequence examined."""
    found: list[Row] = []
    examined = examined_octets = 0
    while after < up_to and examined < qu.LOOK and examined_octets < _SEARCH_OCTETS:
        some = read(after, up_to, _SEARCH_ROWS, qu.FETCH_OCTETS)
        if not some:
            return found, up_to
        for row in some:
            after = row[0]
            size = len(row[4])
            examined, examined_octets = examined + 1, examined_octets + size
            if wanted(row[3]):
                found.append(row)
                rows, octets = rows - 1, octets - size
                if rows <= 0 or octets <= 0:
                    return found, after
    return found, after


_HANDLERS: dict[Op, Callable[[MessageStore, LogQuery, DurableSettings], tuple[bytes, QueryRecords]]] = {
    Op.BOUNDS: _bounds,
    Op.AT: _at,
    Op.MISSING: _missing,
    Op.TRIM: _trim,
    Op.FETCH: _fetch,
    Op.STANDING: _last_of_subjects,
    Op.BLOCK: _block,
    Op.MATCH: _match,
    Op.IDS: _ids,
}


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
