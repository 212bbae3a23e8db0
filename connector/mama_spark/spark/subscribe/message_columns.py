"""Makes rows of ``mamasub`` of a log's records, whole batches at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.message import Int64s, RowDecoder
from mama_spark.contracts.middlewares import imported
from mama_spark.contracts.record_log import PUT, Records
from mama_spark.packing.pack_headers import first_values, split_ids
from mama_spark.packing.unpacked import Unpacked, sparse_texts

from ..trace_column import valid_traces
from .schema import ARROW_SCHEMA, OPERATION, TRACE, MessageColumns

#: Header that carries the id of a message. It is the column ``id``, as the sink takes it, and not among the headers.
_HEADERS: pa.MapType = ARROW_SCHEMA.field("headers").type


def rows(
    records: Records,
    found: Unpacked,
    stream: str,
    wanted_columns: MessageColumns,
    include_headers: bool = True,
    decoder: RowDecoder | None = None,
) -> pa.RecordBatch:
    """Rows in the columns of ``wanted_columns``. Typed columns of ``found`` are ``wanted_columns.typed``, or one of
    JSON; ``decoder`` makes the columns of a recorder's records."""
    counts = np.bincount(found.records, minlength=len(records))
    plain = bool((counts == 1).all())

    def topic() -> pa.Array:
        topics = records.topics.cast(pa.string())
        return topics if plain else _repeated(topics.to_pylist(), counts)

    def each(numbers: Int64s) -> pa.Array:
        return pa.array(numbers if plain else np.repeat(numbers, counts), pa.int64())

    ids, headers = _ids_and_headers(found, "headers" in wanted_columns.arrow.names and include_headers)
    makers: dict[str, Callable[[], pa.Array]] = {
        "topic": topic,
        "value": lambda: _with_json(found) if wanted_columns.as_json else found.values,
        "headers": lambda: headers,
        "stream": lambda: _repeated([stream], np.array([len(found)])),
        "sequence": lambda: each(records.sequences),
        "pack_index": lambda: _pack_index(found),
        "timestamp": lambda: each(records.times).view(ARROW_SCHEMA.field("timestamp").type),
        "id": lambda: ids,
        "pack_error": lambda: sparse_texts(found.errors, len(found)),
        TRACE: lambda: trace_column(records).take(pa.array(found.records)),
    }

    def operation() -> pa.Array:
        return operations_of(records, wanted_columns.operations).take(pa.array(found.records))

    makers[OPERATION] = operation
    if wanted_columns.keys is not None:
        keys = imported(wanted_columns.keys)
        makers |= {
            "key": lambda: keys.keys_of(topic()),
            "value": lambda: pc.if_else(pc.equal(operation(), PUT), found.values, None),
            "revision": lambda: each(records.sequences),
        }
    typed = (
        _typed_columns(found, wanted_columns.typed)
        if decoder is None
        else decoder.columns(
            found.values, _of_rows(records.topics, found), records.sequences[found.records], found.errors
        )
    )
    columns = [typed[f.name] if f.name in typed else makers[f.name]() for f in wanted_columns.arrow]
    return pa.RecordBatch.from_arrays(columns, schema=wanted_columns.arrow)


def operations_of(records: Records, operations: str | None) -> pa.Array:
    """Operation of each record on its topic or key; ``operations``: see :class:`~.schema.MessageColumns`."""
    if operations is None:
        return pa.repeat(PUT, len(records))
    return imported(operations)(records.headers, len(records))


def _of_rows(column: pa.Array, found: Unpacked) -> pa.Array:
    """Repeat an element of each record for its rows."""
    return column if len(column) == len(found) else column.dictionary_encode().take(pa.array(found.records))


def trace_column(records: Records) -> pa.Array:
    """The ``traceparent`` of each record, null without a valid one."""
    if records.headers is None:
        return pa.nulls(len(records), pa.string())
    return valid_traces(first_values(records.headers, TRACE)[0])


def _repeated(texts: list[str], counts: Int64s) -> pa.Array:
    """Each text as often as its count, one after another. Arrow's ``take`` takes several times as long."""
    pieces = [text.encode() for text in texts]
    ends = np.zeros(int(counts.sum()) + 1, np.int32)
    np.cumsum(np.repeat([*map(len, pieces)], counts), out=ends[1:])
    data = b"".join([piece * count for piece, count in zip(pieces, counts.tolist(), strict=True)])
    return pa.Array.from_buffers(pa.string(), len(ends) - 1, [None, pa.py_buffer(ends), pa.py_buffer(data)])


def _pack_index(found: Unpacked) -> pa.Array:
    """Places in packs, null for rows outside of packs."""
    outside = found.index < 0
    return pa.array(found.index, mask=outside) if outside.any() else pa.array(found.index)


def _typed_columns(found: Unpacked, wanted: pa.Schema) -> dict[str, pa.Array]:
    n = len(found)
    if not len(wanted) or not found.typed:
        return {f.name: pa.nulls(n, f.type) for f in wanted}
    batches = [run.columns for run in found.typed]
    if all(batch.num_columns == len(wanted) for batch in batches):
        table = pa.Table.from_batches(batches)
    else:  # packs lack columns, each perhaps others
        table = pa.concat_tables([pa.Table.from_batches([batch]) for batch in batches], promote_options="default")
    table = table.combine_chunks()
    there = set(table.schema.names)
    columns = {f.name: table[f.name].chunk(0) if f.name in there else pa.nulls(table.num_rows, f.type) for f in wanted}
    if table.num_rows == n:
        return columns
    place = np.full(n, -1, np.int64)
    place[_typed_rows(found)] = np.arange(table.num_rows)
    index = pa.array(place, mask=place < 0)
    return {name: column.take(index) for name, column in columns.items()}


def _with_json(found: Unpacked) -> pa.Array:
    """Values; for typed rows, their only column, which is JSON."""
    if not found.typed:
        return found.values
    made = pa.concat_arrays([run.columns.column(0) for run in found.typed])
    n = len(found)
    if len(made) == n:
        return made
    place = np.arange(n)
    place[_typed_rows(found)] = n + np.arange(len(made))
    return pa.concat_arrays([found.values, made]).take(pa.array(place))


def _typed_rows(found: Unpacked) -> Int64s:
    return np.concatenate([run.first + np.arange(run.columns.num_rows) for run in found.typed])


def row_decoder(columns: MessageColumns, strict: bool) -> RowDecoder | None:
    """Decoder of a recorder's records, for one thread; None = not a recorder's."""
    if (decoded := columns.decoded) is None:
        return None
    column_type = columns.arrow.field(decoded.column).type if decoded.column in columns.arrow.names else None
    made: RowDecoder = imported(decoded.decoder)(column_type, columns.fields, strict)
    return made


def _ids_and_headers(found: Unpacked, keep: bool) -> tuple[pa.Array, pa.Array]:
    """Ids of the rows, own or from the header, and their headers, if wanted."""
    n, pool = len(found), found.header_pool
    if pool is None:
        return pa.nulls(n, pa.string()) if found.ids is None else found.ids, pa.nulls(n, _HEADERS)
    ids, left = split_ids(pool, keep)
    headers = left.cast(_HEADERS)
    if found.header_at is not None:
        index = pa.array(found.header_at)
        ids = ids.take(index)
        headers = headers.take(index) if keep else pa.nulls(n, _HEADERS)
    return ids if found.ids is None else pc.coalesce(found.ids, ids), headers
