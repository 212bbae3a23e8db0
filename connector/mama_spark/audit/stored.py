"""What is stored, as columns of the table that a flight log is compared with. Pure."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ..contracts.headers import split_ids
from ..contracts.message import HEADERS_TYPE, MessageBatch, fixed_width, payload_sizes
from ..contracts.record_log import Records
from ..flightlog.schema import TIMESTAMP
from ..packing.format import PACK
from ..publishing.ids.ids import Digests, digest

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
#: The end of a default id: see :mod:`mama_spark.publishing.ids.ids`.
_NAMED = r"-[0-9]{1,9}-(?P<content>[0-9a-f]{32})-[0-9]{1,9}$"


def stored_columns(
    stream: str,
    sequences: pa.Array,
    times: pa.Array,
    topics: pa.Array,
    payloads: pa.Array,
    ids: pa.Array,
    headers: pa.Array | None,
) -> pa.RecordBatch:
    """Messages of one stream as rows of :data:`STORED`.

    :param times: int64, or timestamps; µs
    :param headers: without the ids; null, or None for all, where there are none
    """
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
    """As :func:`stored_columns`, of records of a log."""
    ids, headers = pa.nulls(len(records), pa.string()), records.headers
    if headers is not None:
        ids, headers = split_ids(headers, True)
    where = pa.array(records.sequences), pa.array(records.times)
    return stored_columns(stream, *where, records.topics, records.payloads, ids, headers)


def _fits(messages: MessageBatch, ids: pa.Array, stream: str) -> pa.Array:
    """Whether the content of each message is the one that its id names. A header may come from the server, and a pack
    gets some after its id, so a message with headers and another content proves nothing."""
    if ids.null_count == len(ids):
        return pa.nulls(len(ids), pa.bool_())
    named = pc.struct_field(pc.extract_regex(ids, _NAMED), "content")
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
