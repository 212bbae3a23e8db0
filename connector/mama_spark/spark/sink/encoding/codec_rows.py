"""Encodes rows as messages with the row codec of a bridge, for middlewares with columns of their own."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mama_spark.contracts.errors import BadRow
from mama_spark.contracts.message import MessageBatch, RowCodec
from mama_spark.packing.json_text import json_rows

from ..stages import SinkBatch
from .column_plan import ColumnPlan


class CodecRows:
    """Turns record batches into :class:`~..stages.SinkBatch`, by a plan made on the driver.

    The payload of a row that cannot be encoded is its columns as JSON, for dead letters and the flight log.
    """

    def __init__(self, plan: ColumnPlan, codec: RowCodec) -> None:
        self._plan, self._codec = plan, codec

    def encode(self, rows: pa.RecordBatch, first: int = 0) -> SinkBatch:
        """:param first: number of the first row in the partition"""
        encoded = self._codec.encode(self._named(rows))
        rejected, payloads = dict(encoded.bad), encoded.payloads
        ids = None
        if self._plan.id is not None:
            ids = rows.column(self._plan.id).cast(pa.string())
            for row in np.flatnonzero(np.asarray(ids.is_null())).tolist():
                rejected.setdefault(row, BadRow.of_null("ids", "the id is null"))
            ids = ids.fill_null("")
        if rejected:
            payloads = self._with_json(rows, payloads, sorted(rejected))
        extra = rows.select(list(self._plan.log)) if self._plan.log else None
        messages, numbers = MessageBatch(encoded.topics, payloads, ids=ids), np.arange(first, first + rows.num_rows)
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
