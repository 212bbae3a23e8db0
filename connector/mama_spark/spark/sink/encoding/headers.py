"""Headers of many messages: entries, the maps that they become, and those of W3C trace context, which messages get on
their way to the bridge. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.message import HEADERS_TYPE, Bools, HeaderEntries, MessageBatch, lengths_of
from mama_spark.packing.pack_headers import header_entries, one_value_lists

PARENT, STATE = "traceparent", "tracestate"
#: Bytes that a header block needs beside names and values, and an id.
_OVERHEAD = 320


def header_maps(entries: Sequence[HeaderEntries], n: int) -> pa.Array:
    """One map a row of all entries; entries of a row keep the order given."""
    rows = np.concatenate([e.rows for e in entries])
    order = np.argsort(rows, kind="stable")
    names = pa.concat_arrays([e.names for e in entries]).take(pa.array(order))
    values = pa.concat_arrays([e.values for e in entries]).take(pa.array(order))
    offsets = np.zeros(n + 1, np.int32)
    np.cumsum(np.bincount(rows, minlength=n), out=offsets[1:])
    return pa.MapArray.from_arrays(pa.array(offsets), names, values).cast(HEADERS_TYPE)


def part_entries(parts: pa.RecordBatch) -> list[HeaderEntries]:
    """String columns as headers, each with the name of its column."""
    entries = []
    for name, values in zip(parts.schema.names, parts.columns, strict=True):
        there = np.flatnonzero(np.asarray(values.is_valid()))
        entries.append(HeaderEntries(there, pa.repeat(name, len(there)), one_value_lists(values.take(pa.array(there)))))
    return entries


def with_trace_headers(batch: MessageBatch, parent: str | None, state: str | None, max_payload: int) -> MessageBatch:
    """The messages with a header ``traceparent``: that of ``batch.traces``, or ``parent`` with the
    ``tracestate`` in ``state``. A message that has one keeps it, and one that would exceed ``max_payload`` (bytes of
    payload and headers together) stays without."""
    wanted = _wanted(batch, max_payload - _OVERHEAD - len(state or ""))
    values = batch.traces
    if values is not None:
        wanted &= values.is_valid().to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(wanted)
    if not len(rows):
        return replace(batch, traces=None)
    parents = pa.repeat(parent, len(rows)) if values is None else values.take(pa.array(rows))
    entries = [HeaderEntries(rows, pa.repeat(PARENT, len(rows)), one_value_lists(parents))]
    if state and values is None:
        entries.append(HeaderEntries(rows, pa.repeat(STATE, len(rows)), one_value_lists(pa.repeat(state, len(rows)))))
    if batch.headers is not None:
        of, names, lists = header_entries(batch.headers)
        entries.insert(0, HeaderEntries(of, names, lists))
    return replace(batch, headers=header_maps(entries, len(batch)), traces=None)


def _wanted(batch: MessageBatch, most: int) -> Bools:
    sizes, wanted = batch.sizes(), np.ones(len(batch), np.bool_)
    others = [column for column in (batch.headers, batch.ids) if column is not None]
    near = int(sizes.max(initial=0)) + sum(column.nbytes for column in others) > most
    if near and batch.ids is not None:
        sizes = sizes + lengths_of(batch.ids)
    if batch.headers is not None:
        rows, names, lists = header_entries(batch.headers)
        wanted[rows[pc.equal(pc.utf8_lower(names), PARENT).to_numpy(zero_copy_only=False)]] = False
        if near:
            each = lengths_of(pc.binary_join(lists, "....")) + lengths_of(names) + 4
            sizes = sizes + np.bincount(rows, weights=each, minlength=len(batch)).astype(np.int64)
    return wanted & (sizes <= most)


class TraceHeaders:
    """Puts the trace context of one task into its messages.

    :param parent: ``traceparent`` of all messages; None: ``batch.traces`` has them
    :ivar max_payload: largest payload of the middleware, known when it is connected
    """

    def __init__(self, parent: str | None = None, state: str | None = None) -> None:
        self._parent, self._state = parent, state
        self.max_payload = 1 << 62

    def __call__(self, batch: MessageBatch) -> MessageBatch:
        return with_trace_headers(batch, self._parent, self._state, self.max_payload)
