"""Splits packs that were rejected: into halves, or into single rows. Loops here are over rejected packs. Pure."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa

from ..contracts.message import HEADERS_TYPE, Int64s, MessageBatch
from ..contracts.record_log import Records
from .codec import ArrowCodec, Codec
from .compression import plain
from .format import PACK_ROWS
from .packer import Packed, ranges
from .unpacker import unpack


def halves(codec: Codec, packed: Packed, which: Int64s) -> Packed:
    """The packs at ``which``, of two rows or more, each as two of half the rows."""
    begin, end = packed.starts[which], packed.starts[which + 1]
    middle = (end - begin) // 2
    lengths = np.stack([middle, end - begin - middle], axis=1).reshape(-1)
    whole = plain(packed.batch.take(which))
    twice = whole.take(np.repeat(np.arange(len(which)), 2))
    starts, index = np.concatenate(([0], np.cumsum(lengths))), ranges(begin, end)
    payloads = codec.encode(codec.decode(whole.payloads, end - begin), starts)
    return Packed(
        replace(twice, payloads=payloads, headers=_with_rows(twice.headers, lengths), ids=None),
        starts,
        packed.numbers[index],
        None if packed.extra is None else packed.extra.take(pa.array(index)),
    )


def singles(batch: MessageBatch) -> tuple[MessageBatch, Int64s]:
    """Every row of these packs as one message, and the pack of each: value, headers, and its id if it had one (else
    null). A typed row has no value: it becomes an arrow pack of one row."""
    batch, zeros = plain(batch), np.zeros(len(batch), np.int64)
    found = unpack(Records(zeros, zeros, batch.topics, batch.payloads, batch.headers))
    index = pa.array(found.records)
    values, headers = found.values, found.headers
    if found.typed:
        runs = [ArrowCodec(run.columns.schema).encode(run.columns, np.arange(run.columns.num_rows + 1))
                for run in found.typed]  # fmt: skip
        at = np.concatenate([run.first + np.arange(run.columns.num_rows) for run in found.typed])
        place = np.arange(len(found))
        place[at] = len(found) + np.arange(len(at))
        values = pa.concat_arrays([values, *runs]).take(pa.array(place))
        assert batch.headers is not None
        alone = _with_rows(batch.headers.take(pa.array(found.records[at])), np.ones(len(at), np.int64))
        rest = pa.nulls(len(found), HEADERS_TYPE) if headers is None else headers
        headers = pa.concat_arrays([rest, alone]).take(pa.array(place))
    ids = pa.nulls(len(found), pa.string()) if found.ids is None else found.ids
    streams = None if batch.streams is None else batch.streams.take(index)
    return MessageBatch(batch.topics.take(index), values, headers, ids, streams), found.records


def _with_rows(headers: pa.Array | None, rows: Int64s) -> pa.Array:
    assert headers is not None
    maps = [
        [(name, [str(n)] if name == PACK_ROWS else values) for name, values in entries]
        for entries, n in zip(headers.to_pylist(), rows.tolist(), strict=True)
    ]
    return pa.array(maps, HEADERS_TYPE)
