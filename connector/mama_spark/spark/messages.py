"""Records of a log as rows of ``mamasub``, whole batches at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from ..errors import SchemaError
from ..log import Records
from ..message import Int64s

#: Header that carries the id of a message. It is the column ``id``, as the sink takes it, and not among the headers.
ID_HEADER = "Nats-Msg-Id"

_COLUMNS: tuple[tuple[str, DataType], ...] = (
    ("topic", StringType()),
    ("value", BinaryType()),
    ("headers", MapType(StringType(), ArrayType(StringType()))),
    ("stream", StringType()),
    ("sequence", LongType()),
    ("timestamp", TimestampType()),
    ("id", StringType()),
)
SCHEMA = StructType([StructField(name, kind) for name, kind in _COLUMNS])
ARROW: pa.Schema = to_arrow_schema(SCHEMA, timezone="UTC")
_HEADERS: pa.MapType = ARROW.field("headers").type


def check_schema(given: StructType) -> None:
    """:raises SchemaError: the user's schema is another one than the format's"""
    if [(f.name, f.dataType) for f in given.fields] != list(_COLUMNS):
        want = ", ".join(f"{name} {kind.simpleString()}" for name, kind in _COLUMNS)
        got = ", ".join(f"{f.name} {f.dataType.simpleString()}" for f in given.fields)
        raise SchemaError(f"mamasub has the columns {want}; leave .schema() out, or give just these. Given: {got}")


def rows(records: Records, stream: str, include_headers: bool = True) -> pa.RecordBatch:
    """:data:`ARROW` rows of one batch of records."""
    n = len(records)
    topics = records.topics
    if pa.types.is_dictionary(topics.type):
        topics = topics.cast(pa.string())
    ids, headers = pa.nulls(n, pa.string()), pa.nulls(n, _HEADERS)
    if records.headers is not None:
        ids, headers = _ids_apart(records.headers, include_headers)
    columns = [
        topics,
        records.payloads,
        headers,
        pa.DictionaryArray.from_arrays(pa.array(np.zeros(n, np.int32)), [stream]).cast(pa.string()),
        pa.array(records.sequences, pa.int64()),
        pa.array(records.times, pa.int64()).cast(ARROW.field("timestamp").type),
        ids,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=ARROW)


def _ids_apart(headers: pa.MapArray, keep: bool) -> tuple[pa.Array, pa.Array]:
    """The ids, and (if they are to be kept) the headers without them, null where none are left."""
    n = len(headers)
    offsets: Int64s = headers.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    keys, values = headers.keys, headers.items
    first, last = int(offsets[0]), int(offsets[-1])
    row_of = np.repeat(np.arange(n), np.diff(offsets))
    is_id = pc.equal(keys, ID_HEADER).to_numpy(zero_copy_only=False)[first:last]
    named = np.flatnonzero(is_id)
    if not len(named):
        none = pa.nulls(n, pa.string())
        return none, headers.cast(_HEADERS) if keep else pa.nulls(n, _HEADERS)
    lists = values.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
    named = named[lists[named + first + 1] > lists[named + first]]  # a name without a value is no id
    at = np.full(n, -1)
    at[row_of[named][::-1]] = lists[named + first][::-1]  # the first one counts
    index = pa.array(at, mask=at < 0)
    ids = values.values.take(index)
    if not keep:
        return ids, pa.nulls(n, _HEADERS)
    rest = np.flatnonzero(~is_id)
    if not len(rest):
        return ids, pa.nulls(n, _HEADERS)
    take = pa.array(rest + first)
    counts = np.bincount(row_of[rest], minlength=n)
    left = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
    starts = pa.array(left, mask=np.append(counts == 0, False))
    return ids, pa.MapArray.from_arrays(starts, keys.take(take), values.take(take)).cast(_HEADERS)
