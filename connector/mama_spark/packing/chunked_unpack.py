"""Unpacks records in chunks of rows, each of bounded memory. Pure.

A message of a few kilobytes can hold a million empty rows, and its topic and headers are copied to each of them where
rows become columns. So few records are unpacked together, and the rows of one record may be split over chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ..contracts.message import Int64s, payload_sizes
from ..contracts.record_log import Records
from .codec import bits_of
from .pack_headers import pack_headers
from .unpacked import Unpacked
from .unpacker import RowTransform, unpack, unpacked_as_is

#: Payload bytes and announced rows that are unpacked together, at most, unless one record has more.
BATCH_BYTES, BATCH_ROWS = 8 << 20, 1 << 17
#: Rows, and bytes of topic, headers, value and typed columns, of a chunk, at most, unless one row has more.
CHUNK_ROWS, CHUNK_BYTES = 1 << 16, 16 << 20


def unpack_chunks(
    records: Records, transform: RowTransform | None = None, *, only_typed: bool = False
) -> Iterator[tuple[Records, Unpacked]]:
    """All rows of ``records`` in order, chunk by chunk, each with the records that its rows point into. The parameters
    are those of :func:`~.unpacker.unpack`."""
    packs = pack_headers(records)
    if packs is None:
        yield records, unpacked_as_is(records, only_typed=only_typed)
        return
    weights = [packs.sizes(records.payloads), packs.announced(records.payloads)]
    for start, stop in pairwise(_edges(weights, [BATCH_BYTES, BATCH_ROWS])):
        some = records.slice(start, stop)
        found = unpack(some, transform, packs.slice(start, stop), only_typed=only_typed)
        if _fits(some, found):
            yield some, found
            continue
        cuts = _edges([_bytes(some, found), np.ones(len(found), np.int64)], [CHUNK_BYTES, CHUNK_ROWS])
        yield from ((some, found.slice(start, stop)) for start, stop in pairwise(cuts))


def _fits(records: Records, found: Unpacked) -> bool:
    """Whether these rows are one chunk even if each has the longest topic and headers: a fast upper bound."""
    topics = records.topics
    shared = _largest(payload_sizes(topics.dictionary if pa.types.is_dictionary(topics.type) else topics))
    if found.header_pool is not None:
        shared += _largest(bits_of(found.header_pool) // 8)
    own = found.values.nbytes + sum(run.columns.nbytes for run in found.typed)
    return len(found) <= CHUNK_ROWS and own + shared * len(found) <= CHUNK_BYTES


def _largest(sizes: Int64s) -> int:
    return int(sizes.max(initial=0))


def _bytes(records: Records, found: Unpacked) -> Int64s:
    topics = records.topics.cast(pa.string())
    total = payload_sizes(topics)[found.records] + payload_sizes(found.values)
    if found.header_pool is not None:
        sizes = bits_of(found.header_pool) // 8
        total = total + (sizes if found.header_at is None else sizes[found.header_at])
    for first, columns in found.typed:  # packs, not rows
        total[first : first + columns.num_rows] += columns.nbytes // max(1, columns.num_rows)
    return total


def _edges(weights: list[Int64s], limits: list[int]) -> list[int]:
    """Cuts so that no piece exceeds the limits, unless a single element does."""
    upto = [np.concatenate(([0], np.cumsum(w))) for w in weights]
    n, at, edges = len(weights[0]), 0, [0]
    while at < n:  # pieces, not elements
        ends = [int(np.searchsorted(u, u[at] + most, "right")) - 1 for u, most in zip(upto, limits, strict=True)]
        at = min(n, max(at + 1, min(ends)))
        edges.append(at)
    return edges
