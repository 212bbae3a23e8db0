"""Ids in header blocks: those of one batch, with their sequences."""

from __future__ import annotations

import numpy as np
from mama_spark.nats.ledger import find_ids
from mama_spark.nats.protocol.records import DeliveryBuffer, DeliveryNumbers

from tests.support.tables import each

OURS, OTHERS = b"q-7-0-aa-0", b"q-7-1-bb-0"


def block(*ids: bytes) -> bytes:
    return b"NATS/1.0\r\nA: 1\r\n" + b"".join(b"Nats-Msg-Id: " + one + b"\r\n" for one in ids) + b"B: 2\r\n\r\n"


@each(
    ("blocks", "up_to", "rows"),
    [
        ([block(OURS), block(OURS)], 99, [0, 1]),
        ([block(OURS), block(OURS)], 10, [0]),
        ([block(OTHERS), block(OURS), None, block(), block(OURS)], 99, [1, 4]),
        ([block(OURS, OURS), block(), block(OURS)], 99, [0, 2]),  # somebody else's: ids that occur twice in one block
        ([], 99, []),
    ],
)
@each("records", [False, True])
def test_ids_of_one_batch_are_found(blocks: list[bytes | None], up_to: int, rows: list[int], records: bool) -> None:
    n = max(1, len(blocks))
    buffer = DeliveryBuffer([b"t"] * n, [b""] * n, [b"%d" % i for i in range(n)], blocks)
    found = find_ids(
        buffer, DeliveryNumbers(np.arange(10, 10 + n), np.zeros(n, np.int64), 1, 0), b"q-7-0-", up_to, records=records
    )
    assert found.sequences.tolist() == [10 + row for row in rows]
    assert found.ids == [OURS] * len(rows)
    if records and rows:
        assert found.records is not None
        assert found.records.payloads.to_pylist() == [b"%d" % row for row in rows]
