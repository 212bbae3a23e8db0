"""Finds message ids in the header blocks of deliveries. Pure.

The blocks of other batches, and of other publishers, are thrown away by one search each, before anything is parsed.
"""

from __future__ import annotations

import numpy as np

from mama_spark.record_log import Records
from mama_spark.sending.batch_ledger import StoredIds

from ..protocol.records import DeliveryBuffer, DeliveryNumbers, records_of

_HEADER = b"\r\nNats-Msg-Id: "


def find_ids(
    buffer: DeliveryBuffer, numbers: DeliveryNumbers, prefix: bytes, up_to: int, *, records: bool
) -> StoredIds:
    """Messages whose id begins with ``prefix``, up to a sequence.

    :param records: with payloads and headers
    """
    mark, start = _HEADER + prefix, len(_HEADER)
    n = int(np.searchsorted(numbers.sequences, up_to, "right"))
    blocks = buffer.blocks[:n]
    places = [-1 if block is None else block.find(mark) for block in blocks]
    rows = np.flatnonzero(np.array(places, np.int64) >= 0)
    ids = []
    for row in rows.tolist():
        block, at = blocks[row], places[row] + start
        assert block is not None
        ids.append(block[at : block.find(b"\r\n", at)])
    found = None
    if records and len(rows):
        found = _taken(records_of(buffer, numbers), rows)
    return StoredIds(numbers.sequences[rows], ids, found, n)


def _taken(records: Records, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Records:
    return Records(
        records.sequences[rows],
        records.times[rows],
        records.topics.take(rows),
        records.payloads.take(rows),
        None if records.headers is None else records.headers.take(rows),
    )
