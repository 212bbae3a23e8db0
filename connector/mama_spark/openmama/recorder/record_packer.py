"""Puts records of one topic together in one message of the log, in their order: columns to columns. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.message import HEADERS_TYPE, MessageBatch
from mama_spark.packing.codec import ArrowCodec
from mama_spark.packing.format import VALUE
from mama_spark.packing.packer import Packed, Packer, Rows

_SCHEMA = pa.schema([pa.field(VALUE, pa.binary())])
_NO_HEADERS = pa.scalar(None, HEADERS_TYPE)


class RecordPacker:
    """Makes the messages of one recorder. For one thread.

    :param max_rows: records of one message; 1: each is a message of its own
    :param max_bytes: payload bytes of a packed message; a larger record travels alone
    :param plain: beginnings of topics in the log whose records are never packed
    """

    def __init__(self, max_rows: int, max_bytes: int, plain: Sequence[str] = ()) -> None:
        self._max_rows, self._max_bytes, self._plain = max_rows, max_bytes, tuple(plain)
        self._codec = ArrowCodec(_SCHEMA)

    def messages(self, topics: pa.DictionaryArray, payloads: pa.Array) -> Iterator[MessageBatch]:
        """The records as messages without ids, those of each topic in order.

        :param topics: of the records in the log
        :param payloads: binary
        """
        if self._max_rows == 1 or len(payloads) < 2:
            yield MessageBatch(topics, payloads)
            return
        alone = np.array([topic.startswith(self._plain) for topic in topics.dictionary.to_pylist()], np.bool_)
        rows = np.arange(len(payloads))
        if alone.any():
            apart = alone[topics.indices.to_numpy()]
            yield MessageBatch(topics, payloads).take(rows[apart])
            rows = rows[~apart]
            topics, payloads = topics.take(pa.array(rows)), payloads.take(pa.array(rows))
        if len(payloads):
            packer = Packer(self._codec, max_rows=self._max_rows, max_bytes=self._max_bytes)
            numbers = np.arange(len(payloads))
            for packs in (packer.add(Rows(topics, pa.record_batch([payloads], _SCHEMA), numbers)), packer.finish()):
                for packed in packs:
                    yield _without_single_packs(packed, payloads)


def _without_single_packs(packed: Packed, payloads: pa.Array) -> MessageBatch:
    """A pack of one record is the record itself."""
    batch, single = packed.batch, packed.rows == 1
    if not single.any():
        return batch
    mask = pa.array(single)
    records = payloads.take(pa.array(packed.numbers[packed.starts[:-1]]))
    headers = pc.if_else(mask, _NO_HEADERS, batch.headers)
    return MessageBatch(batch.topics, pc.if_else(mask, records, batch.payloads), headers)
