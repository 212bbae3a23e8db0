"""Finds message ids in the header blocks of deliveries. Pure.

The blocks of other batches, and of other publishers, are thrown away by one search each, before anything is parsed.
"""

from __future__ import annotations

import re

import numpy as np

from mama_spark.contracts.batch_ledger import StoredIds
from mama_spark.contracts.headers import MSG_ID

from ..protocol.records import DeliveryBuffer, DeliveryNumbers, records_of

_HEADER = f"\r\n{MSG_ID}: ".encode()


def find_ids(
    buffer: DeliveryBuffer, numbers: DeliveryNumbers, prefix: bytes, up_to: int, *, records: bool
) -> StoredIds:
    """Messages whose id begins with ``prefix``, up to a sequence.

    :param records: with payloads and headers
    """
    n = int(np.searchsorted(numbers.sequences, up_to, "right"))
    blocks = buffer.blocks[:n] if n < len(buffer.blocks) else buffer.blocks
    wanted = re.compile(re.escape(_HEADER) + b"(" + re.escape(prefix) + rb"[^\r]*)\r\n")
    ids: list[bytes] = wanted.findall(b"".join(filter(None, blocks)))
    rows = np.arange(n)
    if len(ids) != n:  # some are of others: which
        each = [(i, found) for i, block in enumerate(blocks) if block and (found := wanted.search(block)) is not None]
        rows, ids = np.array([i for i, _ in each], np.int64), [found[1] for _, found in each]
    taken = None
    if records and len(rows):
        taken = records_of(buffer, numbers).take(rows)
    return StoredIds(numbers.sequences[rows], ids, taken, n)
