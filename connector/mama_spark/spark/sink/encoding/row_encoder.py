"""Encodes Arrow batches of a DataFrame as messages, columns to columns; lists the rows that cannot be a message."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.errors import BadRow, BadTopic, PublishError
from mama_spark.contracts.message import HeaderEntries, Int64s, MessageBatch, RowCodec
from mama_spark.contracts.topics import PART_HEADERS, join_parts, present_parts, topic_head
from mama_spark.packing.json_text import json_rows
from mama_spark.packing.pack_headers import one_value_lists

from ...trace_column import valid_traces
from ..job import ColumnPlan
from ..stages import SinkBatch
from .headers import header_maps, part_entries


class RowEncoder:
    """Turns record batches into :class:`~..stages.SinkBatch`, by a plan made on the driver.

    :param for_packing: parts of the topic are returned as columns, since they become headers of the packed message;
        where rows have headers, they are headers of each row, too
    """

    def __init__(
        self, plan: ColumnPlan, topic: str | None, topic_prefix: str | None, *, for_packing: bool = False
    ) -> None:
        self._plan = plan
        self._for_packing = for_packing
        self._topic = topic
        self._head = topic_head(topic_prefix)

    def encode(self, rows: pa.RecordBatch, first: int = 0) -> SinkBatch:
        """``first`` is the number of the first row in the partition."""
        plan, rejected = self._plan, dict[int, PublishError]()
        topics = self._topics(rows, rejected)
        typed = rows.select(list(plan.typed)) if plan.typed else None
        if typed is not None:  # one that is no UTF-8 would make readers refuse all others of its pack
            for name in plan.typed:
                for row in _invalid(rows.column(name)):
                    rejected.setdefault(row, BadRow(f"column {name!r} has text that is not UTF-8"))
            payloads = pa.repeat(pa.scalar(b""), rows.num_rows)
        elif plan.value is None:
            payloads, refused = json_rows(rows, plan.json)
            for row, why in refused.items():
                rejected.setdefault(row, BadRow(f"{why}; cast it to a string"))
        else:
            payloads = _binary(rows.column(plan.value))
            if payloads.null_count:
                _reject(rejected, payloads, BadRow.of_null("payloads", "the value is null"))
                payloads = payloads.fill_null(b"")
        ids = None
        if plan.id is not None:
            ids = rows.column(plan.id).cast(pa.string())
            if ids.null_count:
                _reject(rejected, ids, BadRow.of_null("ids", "the id is null"))
                ids = ids.fill_null("")
            for row in (invalid := _invalid(ids)):
                rejected.setdefault(row, BadRow("the id is not UTF-8"))
            ids = _without(ids, invalid)
        extra = rows.select(list(plan.log)) if plan.log else None
        traces = None if plan.trace is None else valid_traces(rows.column(plan.trace).cast(pa.string()))
        batch = MessageBatch(
            topics, payloads, self._headers(rows, rejected), ids, self._streams(rows, rejected), traces
        )
        numbers = np.arange(first, first + rows.num_rows)
        return SinkBatch(
            batch, sorted(rejected.items()), numbers, extra, self._parts(rows) if self._for_packing else None, typed
        )

    def destinations(self, rows: pa.RecordBatch) -> MessageBatch:
        ignored: dict[int, PublishError] = {}
        payloads = pa.repeat(pa.scalar(b""), rows.num_rows)
        return MessageBatch(self._topics(rows, ignored), payloads, streams=self._streams(rows, ignored))

    def _parts(self, rows: pa.RecordBatch) -> pa.RecordBatch | None:
        if not self._plan.parts:
            return None
        columns = present_parts(rows.column(name).cast(pa.string()) for _, name in self._plan.parts)
        return pa.RecordBatch.from_arrays(columns, [PART_HEADERS[part] for part, _ in self._plan.parts])

    def _topics(self, rows: pa.RecordBatch, rejected: dict[int, PublishError]) -> pa.DictionaryArray:
        plan = self._plan
        if self._topic is not None:
            zeros = pa.array(np.zeros(rows.num_rows, np.int32))
            return pa.DictionaryArray.from_arrays(zeros, pa.array([self._head + self._topic]))
        if (parts := self._parts(rows)) is None:
            column = rows.column(plan.topic)
            what = "the topic is null"
        else:
            column = join_parts(parts.columns)
            what = f"all of {', '.join(name for _, name in plan.parts)} are null or empty"
        coded = _dictionary_encoded(column, BadTopic, "topics", what, rejected)
        if not self._head:
            return coded
        names = pc.binary_join_element_wise(self._head, coded.dictionary, "")
        return pa.DictionaryArray.from_arrays(coded.indices, names)

    def _streams(self, rows: pa.RecordBatch, rejected: dict[int, PublishError]) -> pa.DictionaryArray | None:
        name = self._plan.stream
        if name is None:
            return None
        return _dictionary_encoded(rows.column(name), BadRow, "streams", "the stream is null", rejected)

    def _headers(self, rows: pa.RecordBatch, rejected: dict[int, PublishError]) -> pa.Array | None:
        plan, entries = self._plan, []
        if plan.headers is not None:
            column = rows.column(plan.headers)
            if column.null_count < len(column):
                entries.append(_HEADER_FORMS[plan.headers_form](column, rejected))
        parts = self._parts(rows)
        if parts is not None and not (self._for_packing and plan.headers is None):
            entries += part_entries(parts)
        return header_maps(entries, rows.num_rows) if entries else None


def _dictionary_encoded(
    column: pa.Array, error: type[BadRow], what: str, null: str, rejected: dict[int, PublishError]
) -> pa.DictionaryArray:
    """Strings as a dictionary without nulls; rows with null are rejected: ``null`` says why."""
    coded = column.cast(pa.string()).dictionary_encode()
    if invalid := _invalid(coded.dictionary):
        same = pc.is_in(coded.indices, pa.array(invalid, coded.indices.type)).to_numpy(zero_copy_only=False)
        for row in np.flatnonzero(same).tolist():
            rejected.setdefault(row, error("it is not UTF-8"))
        coded = pa.DictionaryArray.from_arrays(coded.indices, _without(coded.dictionary, invalid))
    if not coded.null_count:
        return coded
    _reject(rejected, coded, error.of_null(what, null))
    names = pa.concat_arrays([coded.dictionary, pa.array([""])])
    return pa.DictionaryArray.from_arrays(coded.indices.fill_null(len(names) - 1), names)


def _entries(column: pa.Array) -> tuple[Int64s, pa.Array]:
    """Row, and index into the flattened children, of those children that count: those of null elements do not."""
    offsets = np.asarray(column.offsets).astype(np.int64)
    sizes = np.where(np.asarray(column.is_valid()), np.diff(offsets), 0)
    starts = np.repeat(offsets[:-1] - np.cumsum(sizes) + sizes, sizes)
    return np.repeat(np.arange(len(column)), sizes), pa.array(starts + np.arange(int(sizes.sum())))


def _from_map(column: pa.Array, rejected: dict[int, PublishError]) -> HeaderEntries:
    rows, picked = _entries(column)
    return _without_nulls(rows, column.keys.take(picked), column.items.take(picked), rejected, one_value_lists)


def _from_multimap(column: pa.Array, rejected: dict[int, PublishError]) -> HeaderEntries:
    rows, picked = _entries(column)
    names, lists = column.keys.take(picked), column.items.take(picked)
    inner, _ = _entries(lists)
    for at in inner[np.asarray(lists.flatten().is_null())].tolist():
        rejected.setdefault(int(rows[at]), BadRow(f"header {names[at].as_py()!r} has a null value"))
    filled = pa.ListArray.from_arrays(lists.offsets, pc.fill_null(lists.values.cast(pa.string()), ""))
    entries = _without_nulls(rows, names, lists, rejected, lambda v: v)
    kept = np.asarray(lists.is_valid())
    return HeaderEntries(entries.rows, entries.names, filled.take(pa.array(np.flatnonzero(kept))))


def _from_kafka(column: pa.Array, rejected: dict[int, PublishError]) -> HeaderEntries:
    rows, picked = _entries(column)
    pairs = column.values.take(picked)
    there = np.flatnonzero(np.asarray(pairs.is_valid()))
    rows, pairs = rows[there], pairs.take(pa.array(there))
    names, raw = pairs.field("key"), pairs.field("value").cast(pa.binary())
    try:
        texts = raw.cast(pa.string())
    except pa.ArrowInvalid:
        decoded = []
        for at, value in enumerate(raw.to_pylist()):
            try:
                decoded.append(None if value is None else value.decode())
            except UnicodeDecodeError:
                rejected.setdefault(int(rows[at]), BadRow(f"header {names[at].as_py()!r} is not UTF-8"))
                decoded.append("")
        texts = pa.array(decoded, pa.string())
    if names.null_count:
        for row in rows[np.asarray(names.is_null())].tolist():
            rejected.setdefault(int(row), BadRow("a header has no name"))
        names = names.fill_null("")
    return _without_nulls(rows, names, texts, rejected, one_value_lists)


def _without_nulls(
    rows: Int64s,
    names: pa.Array,
    values: pa.Array,
    rejected: dict[int, PublishError],
    wrap: Callable[[pa.Array], pa.Array],
) -> HeaderEntries:
    if values.null_count:
        null = np.asarray(values.is_null())
        for at in np.flatnonzero(null).tolist():
            rejected.setdefault(int(rows[at]), BadRow(f"header {names[at].as_py()!r} has a null value"))
        keep = np.flatnonzero(~null)
        rows, names, values = rows[keep], names.take(pa.array(keep)), values.take(pa.array(keep))
    return HeaderEntries(rows, names, wrap(values))


_HEADER_FORMS = {"map": _from_map, "multimap": _from_multimap, "kafka": _from_kafka}


def _binary(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        return column.cast(pa.binary())
    if pa.types.is_large_string(column.type):
        return column.cast(pa.large_binary())
    return column


def _invalid(column: pa.Array) -> list[int]:
    """Elements with text that is no UTF-8: a string of Spark may hold any bytes, and readers would see others."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return [at for at in range(len(column)) if len(column) == 1 or _invalid(column.take(pa.array([at])))]
    return []


def _without(column: pa.Array, rows: list[int]) -> pa.Array:
    return pc.if_else(np.isin(np.arange(len(column)), rows), "", column) if rows else column


def _reject(rejected: dict[int, PublishError], column: pa.Array, error: PublishError) -> None:
    for row in np.flatnonzero(np.asarray(column.is_null())).tolist():
        rejected.setdefault(row, error)


class CodecRows:
    """Turns record batches into :class:`~..stages.SinkBatch`, by a plan made on the driver.

    The payload of a row that cannot be encoded is its columns as JSON, for dead letters and the flight log.
    """

    def __init__(self, plan: ColumnPlan, codec: RowCodec) -> None:
        self._plan, self._codec = plan, codec

    def encode(self, rows: pa.RecordBatch, first: int = 0) -> SinkBatch:
        encoded = self._codec.encode(self._named(rows))
        rejected, payloads = dict(encoded.bad), encoded.payloads
        ids = None
        if self._plan.id is not None:
            ids = rows.column(self._plan.id).cast(pa.string())
            for row in np.flatnonzero(np.asarray(ids.is_null())).tolist():
                rejected.setdefault(row, BadRow.of_null("ids", "the id is null"))
            ids = ids.fill_null("")
        entries = list(encoded.headers)
        if self._plan.headers is not None:
            own = _HEADER_FORMS[self._plan.headers_form](rows.column(self._plan.headers), rejected)
            for name, why in encoded.reserved.items():
                for row in own.rows[np.asarray(pc.equal(pc.utf8_lower(own.names), name).fill_null(False))].tolist():
                    rejected.setdefault(row, BadRow(f"header {name!r} is not for the headers: {why}"))
            entries.append(own)
        headers = header_maps(entries, rows.num_rows) if entries else None
        if rejected:
            payloads = self._with_json(rows, payloads, sorted(rejected))
        extra = rows.select(list(self._plan.log)) if self._plan.log else None
        messages = MessageBatch(encoded.topics, payloads, headers, ids)
        numbers = np.arange(first, first + rows.num_rows)
        return SinkBatch(messages, sorted(rejected.items()), numbers, extra)

    def destinations(self, rows: pa.RecordBatch) -> MessageBatch:
        """Topics of the rows, without payloads and without rows that cannot be encoded."""
        encoded = self._codec.encode(self._named(rows))
        good = np.setdiff1d(np.arange(rows.num_rows), [row for row, _ in encoded.bad])
        empty = pa.repeat(pa.scalar(b""), len(good))
        return MessageBatch(encoded.topics.take(pa.array(good)), empty)

    def _named(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        codec_names, names = zip(*self._plan.native, strict=True)
        return pa.RecordBatch.from_arrays([rows.column(name) for name in names], list(codec_names))

    def _with_json(self, rows: pa.RecordBatch, payloads: pa.Array, rejected: list[int]) -> pa.Array:
        names = [name for _, name in self._plan.native]
        as_json = json_rows(rows.take(pa.array(rejected)), names).texts.cast(payloads.type)
        order = np.arange(len(payloads))
        order[rejected] = len(payloads) + np.arange(len(rejected))
        return pa.concat_arrays([payloads, as_json]).take(pa.array(order))
