"""Audits a flight log without Spark: what is stored is read into a temporary table, and delta-rs compares the two."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable, convert_to_deltalake

from ..contracts.errors import ConfigError
from ..contracts.message import HEADERS_TYPE, MessageBatch, fixed_width, payload_sizes
from ..contracts.record_log import Bounds, RecordLog, RecordLogBridge, Records
from ..flightlog.reading import Row, open_log, query
from ..flightlog.schema import TIMESTAMP
from ..options import SubscribeOptions
from ..packing.format import PACK
from ..packing.pack_headers import split_ids
from ..publishing.ids.ids import ID_END, Digests, digest
from ..registry import log_bridge
from .comparison import MARGIN, Comparison, FlightSelection, compare, rest_question, spans_question
from .result import Audit, Span

#: Of the table: where a message is, what it is, whether it is a packed one, and whether its content is the one that its
#: id names (null: nobody can tell, since the id names none, or since headers are no part of it or were changed).
STORED = pa.schema(
    [
        pa.field("stream", pa.string()),
        pa.field("sequence", pa.int64()),
        pa.field("time", TIMESTAMP),
        pa.field("id", pa.string()),
        pa.field("topic", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("pack", pa.bool_()),
        pa.field("fits", pa.bool_()),
    ]
)


def stored_columns(
    stream: str,
    sequences: pa.Array,
    times: pa.Array,
    topics: pa.Array,
    payloads: pa.Array,
    ids: pa.Array,
    headers: pa.Array | None,
) -> pa.RecordBatch:
    """Messages of one stream as rows of :data:`STORED`. ``times``: int64 µs, or timestamps; ``headers``: without the
    ids; null, or None for all, where there are none."""
    n = len(sequences)
    packs = pa.array(np.zeros(n, np.bool_))
    if headers is not None:
        headers = headers.cast(HEADERS_TYPE)
        packs = pc.map_lookup(headers, pa.scalar(PACK), "first").is_valid()
    coded = topics if pa.types.is_dictionary(topics.type) else topics.dictionary_encode()
    columns = (
        pa.repeat(stream, n), sequences, times, ids, topics, pa.array(payload_sizes(payloads)), packs,
        _fits(MessageBatch(coded, payloads, headers), ids, stream),
    )  # fmt: skip
    cast = [column.cast(field.type) for column, field in zip(columns, STORED, strict=True)]
    return pa.RecordBatch.from_arrays(cast, schema=STORED)


def stored_records(stream: str, records: Records) -> pa.RecordBatch:
    """The columns of :func:`stored_columns`, from records of a log."""
    ids, headers = pa.nulls(len(records), pa.string()), records.headers
    if headers is not None:
        ids, headers = split_ids(headers, True)
    where = pa.array(records.sequences), pa.array(records.times)
    return stored_columns(stream, *where, records.topics, records.payloads, ids, headers)


def _fits(messages: MessageBatch, ids: pa.Array, stream: str) -> pa.Array:
    """Whether each message has the content that its id names; null: not known. The server may add headers, and a pack
    gets its own after its id, so other content of a message with headers proves nothing."""
    if ids.null_count == len(ids):
        return pa.nulls(len(ids), pa.bool_())
    named = pc.struct_field(pc.extract_regex(ids, f"-{ID_END}$".replace("(", "(?P<content>")), "content")
    fits = pc.equal(named, _hex(digest(messages)))
    if pc.any(pc.invert(fits)).as_py():  # the ids of a write whose rows name their streams depend on these
        streams = pa.DictionaryArray.from_arrays(pa.array(np.zeros(len(ids), np.int32)), pa.array([stream]))
        again = MessageBatch(messages.topics, messages.payloads, messages.headers, streams=streams)
        fits = pc.or_(fits, pc.equal(named, _hex(digest(again))))
    if messages.headers is None:
        return fits
    return pc.if_else(pc.and_(messages.headers.is_valid(), pc.invert(fits)), pa.scalar(None, pa.bool_()), fits)


def _hex(digests: Digests) -> pa.Array:
    text = np.frombuffer(digests.tobytes().hex().encode(), np.uint8)
    return fixed_width(text.reshape(len(digests), 32)).cast(pa.string())


#: Sequences that are compared at a time: a few hundred megabytes.
PART = 500_000


def audit(
    path: str,
    storage: dict[str, str],
    o: SubscribeOptions,
    selection: FlightSelection,
    *,
    foreign: bool = False,
    later: float = MARGIN,
    limit: int = 5,
    on_read: Callable[[int], object] = lambda n: None,
) -> Audit:
    """Compare flights with what is stored.

    :param storage: delta-rs' storage options
    :param foreign: whether whatever is not in the log is a finding
    :param later: see :func:`span_of`
    :param limit: examples of each finding
    :param on_read: called with the number of messages of each batch that was read
    :raises FlightLogError: no flight log there
    :raises ConfigError: a stream is not there, or cannot be read
    :raises Unavailable: storage or middleware cannot be reached
    """
    table, name = open_log(path, storage), o.bridge_name
    flights = query(table, storage, spans_question(selection, name))
    found = Audit(path, table.version(), query(table, storage, rest_question(selection, name)), limit)
    if not flights:
        return found
    with TemporaryDirectory(prefix="mama-audit-") as folder:
        bridge = log_bridge(o, o.wait_timeout)
        bridge.open()
        try:
            with pq.ParquetWriter(f"{folder}/stored.parquet", STORED) as file:
                for some in _stored(bridge, flights, found.spans, later):
                    file.write_batch(some)
                    on_read(len(some))
        finally:
            bridge.close()
        convert_to_deltalake(folder)
        stored = DeltaTable(folder)

        compared = Comparison(selection, name, found.spans, foreign=foreign)
        unnumbered = any(row["unnumbered"] for row in flights)
        compare(found, compared, lambda sql: query(table, storage, sql, stored=stored), PART, unnumbered=unnumbered)
    return found


def span_of(log: RecordLog, flights: Row, later: float = MARGIN) -> Span:
    """The range of a stream with these flights (a row of :func:`~.comparison.spans_question`) and copies of them, which
    may have been stored ``later`` seconds after: a server that stood still stores what it has when it goes on."""
    bounds, first, last = log.bounds(), flights["first"], flights["last"]
    ends = first - timedelta(seconds=MARGIN), last + timedelta(seconds=later)
    low, high = (log.sequence_at(_micros(at)) for at in ends)
    if flights["low"] is not None:  # the clocks may differ by more
        low, high = min(low, flights["low"]), max(high, flights["high"] + 1)
    made, up_to = _moment(log.made), min(high - 1, bounds.last)
    return Span(bounds, max(low, bounds.first) - 1, up_to, gaps=log.removal.between, made=made)


def span_after(log: RecordLog, span: Span) -> Span:
    """The range as the stream is now, so that messages removed during the audit do not count as missing."""
    bounds = _bounds(log, span)
    oldest = next(iter(log.read(bounds.first - 1, bounds.first)), None) if bounds.first > 1 else None
    since = _moment(None if oldest is None else int(oldest.times[0]))
    return replace(span, bounds=replace(bounds, last=span.bounds.last), since=since)


def _bounds(log: RecordLog, span: Span) -> Bounds:
    """The bounds of the stream that ``span`` was read from.

    :raises ConfigError: the stream was created again since
    """
    bounds = log.bounds()
    if bounds.identity != span.bounds.identity:
        raise ConfigError(f"stream {log.name!r} was deleted and created again since it was read: audit once more")
    return bounds


def ago(age: float | None) -> datetime | None:
    # Time of day: it is compared with that of events.
    return None if age is None else datetime.now(UTC) - timedelta(seconds=age)


def _moment(micros: int | None) -> datetime | None:
    return None if micros is None else datetime.fromtimestamp(micros / 1e6, UTC)


def _micros(at: datetime) -> int:
    return round(at.timestamp() * 1e6)


def _stored(
    bridge: RecordLogBridge, wanted: list[Row], spans: dict[str, Span], later: float
) -> Iterator[pa.RecordBatch]:
    """The messages of the streams; adds their ranges to ``spans``."""
    for flights in wanted:
        log = bridge.log(flights["stream"])
        span = span_of(log, flights, later)
        for some in log.read(span.after, span.up_to):
            yield stored_records(log.name, some)
        spans[log.name] = span_after(log, span)


def delete(o: SubscribeOptions, found: Audit) -> None:
    """Delete later copies; leave a stream alone if it lost a message to be kept.

    :raises ConfigError: no permission, the middleware cannot delete, or since the audit a stream was created again or
        lost a message to be kept
    """
    bridge = log_bridge(o, o.wait_timeout)
    bridge.open()
    try:
        for name in dict.fromkeys(stream for stream, *_ in found.copies):
            copies, kept = zip(*[places for stream, *places in found.copies if stream == name], strict=True)
            log = bridge.log(name)
            _bounds(log, found.spans[name])
            ordered, missing = sorted(kept), log.missing(min(kept) - 1, max(kept))
            if gone := sum(bisect_right(ordered, high) - bisect_left(ordered, low) for low, high in missing):
                text = f"stream {name!r} has lost {gone:,} messages since it was read, of which copies are stored"
                raise ConfigError(f"{text}: nothing was deleted there; audit once more")
            log.delete(copies)
    finally:
        bridge.close()
