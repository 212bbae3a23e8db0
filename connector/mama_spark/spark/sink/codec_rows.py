"""Rows with columns of a middleware's own become messages by the codec of its bridge."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from mama_spark.bridge import RowCodec
from mama_spark.errors import BadRow
from mama_spark.message import MessageBatch

from ..json_rows import json_rows
from .column_plan import ColumnPlan
from .row_encoder import EncodedBatch


class CodecRows:
    """Turns record batches into :class:`~mama_spark.spark.sink.row_encoder.EncodedBatch`, by a plan made on the driver.
    A row that cannot become a message keeps its columns, as JSON: that is what dead letters and the flight log show of
    it."""

    def __init__(self, plan: ColumnPlan, codec: RowCodec) -> None:
        self._plan, self._codec = plan, codec

    def encode(self, rows: pa.RecordBatch) -> EncodedBatch:
        made = self._codec.encode(self._named(rows))
        bad, payloads = dict(made.bad), made.payloads
        ids = None
        if self._plan.id is not None:
            ids = rows.column(self._plan.id).cast(pa.string())
            for row in np.flatnonzero(np.asarray(ids.is_null())).tolist():
                bad.setdefault(row, BadRow("the id is null"))
            ids = ids.fill_null("")
        if bad:
            payloads = self._with_json(rows, payloads, sorted(bad))
        extra = rows.select(list(self._plan.log)) if self._plan.log else None
        return EncodedBatch(MessageBatch(made.topics, payloads, ids=ids), sorted(bad.items()), extra)

    def places(self, rows: pa.RecordBatch) -> MessageBatch:
        """Where the rows go, without payloads; those that go nowhere are left out."""
        made = self._codec.encode(self._named(rows))
        good = np.setdiff1d(np.arange(rows.num_rows), [row for row, _ in made.bad])
        empty = pa.repeat(pa.scalar(b""), len(good))
        return MessageBatch(made.topics.take(pa.array(good)), empty)

    def _named(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        names = self._plan.native
        return pa.RecordBatch.from_arrays([rows.column(theirs) for _, theirs in names], [ours for ours, _ in names])

    def _with_json(self, rows: pa.RecordBatch, payloads: pa.Array, bad: list[int]) -> pa.Array:
        theirs = [name for _, name in self._plan.native]
        shown = json_rows(rows.take(pa.array(bad)), theirs).cast(payloads.type)
        order = np.arange(len(payloads))
        order[bad] = len(payloads) + np.arange(len(bad))
        return pa.concat_arrays([payloads, shown]).take(pa.array(order))
