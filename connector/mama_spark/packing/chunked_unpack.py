"""Records unpacked in portions of bounded memory, whatever is in them.

A message of a few kilobytes can hold a million empty rows, and each of them shares its topic and headers, which are
copied where rows become columns. So few records are unpacked together, and the rows of one are given in several
portions if they must be.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pyarrow as pa

from ..message import Int64s, payload_sizes
from ..record_log import Records
from .codec import bits_of
from .unpacker import Make, Unpacked, pack_headers, unpack, unpacked_as_is

#: Payload bytes and (announced) rows that are unpacked together, unless one record has more.
TOGETHER_BYTES, TOGETHER_ROWS = 8 << 20, 1 << 17
#: Rows and bytes of a portion, unless one row has more; bytes of topic, headers, value and typed columns.
PORTION_ROWS, PORTION_BYTES = 1 << 16, 16 << 20


def portions(records: Records, make: Make | None = None) -> Iterator[tuple[Records, Unpacked]]:
    """All rows of ``records``, in order; of each portion the records that its rows point into.

    :param make: as :func:`~.unpacker.unpack` takes it
    """
    said = pack_headers(records)
    if said is None:
        yield records, unpacked_as_is(records)
        return
    weights = [payload_sizes(records.payloads), said.announced(records.payloads)]
    for start, stop in pairwise(_edges(weights, [TOGETHER_BYTES, TOGETHER_ROWS])):
        some = records.slice(start, stop)
        found = unpack(some, make, said.slice(start, stop))
        if _fits(some, found):
            yield some, found
            continue
        cuts = _edges([_bytes(some, found), np.ones(len(found), np.int64)], [PORTION_BYTES, PORTION_ROWS])
        yield from ((some, found.slice(start, stop)) for start, stop in pairwise(cuts))


def _fits(records: Records, found: Unpacked) -> bool:
    """Are these rows one portion, even if each had the longest topic and the largest headers? Told without a look at
    every row."""
    shared = _largest(payload_sizes(records.topics.cast(pa.string())))
    if found.header_pool is not None:
        shared += _largest(bits_of(found.header_pool) // 8)
    own = found.values.nbytes + sum(run.columns.nbytes for run in found.typed)
    return len(found) <= PORTION_ROWS and own + shared * len(found) <= PORTION_BYTES


def _largest(sizes: Int64s) -> int:
    return int(sizes.max(initial=0))


def _bytes(records: Records, found: Unpacked) -> Int64s:
    """Of each row."""
    topics = records.topics.cast(pa.string())
    total = payload_sizes(topics)[found.records] + payload_sizes(found.values)
    if found.header_pool is not None:
        sizes = bits_of(found.header_pool) // 8
        total = total + (sizes if found.header_at is None else sizes[found.header_at])
    for first, columns in found.typed:  # packs, not rows
        total[first : first + columns.num_rows] += columns.nbytes // max(1, columns.num_rows)
    return total


def _edges(weights: list[Int64s], limits: list[int]) -> list[int]:
    """Where to cut so that no piece weighs more than the limits, unless a single element does."""
    upto = [np.concatenate(([0], np.cumsum(w))) for w in weights]
    n, at, edges = len(weights[0]), 0, [0]
    while at < n:  # pieces, not elements
        ends = [int(np.searchsorted(u, u[at] + most, "right")) - 1 for u, most in zip(upto, limits, strict=True)]
        at = min(n, max(at + 1, min(ends)))
        edges.append(at)
    return edges
