"""Records of a log of OpenMAMA messages."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.contracts.topics import why_unpublishable
from mama_spark.openmama.rows import TYPE
from mama_spark.openmama.rows.openmama_rows import OpenMamaColumns
from mama_spark.openmama.wire import records
from mama_spark.openmama.wire.records import HEAD_SIZE, MamaRecord, MamaRecordKind, decode_records, message_topic

from tests.support.tables import each

pytestmark = pytest.mark.spec("OW29")
FRAME = b"OM.IBM\0\x01\0O\x01\x00payload"


def message(frame: bytes = FRAME, payload_at: int = 9) -> bytes:
    return MamaRecord(
        MamaRecordKind.MESSAGE, "mama.OM.IBM", 1_700_000_000_000_000_001, frame, "oz", payload_at
    ).encode()


def test_a_record_has_frame_time_and_framing() -> None:
    found = decode_records(pa.array([message(), b"O\x01\x00other"], pa.binary()))
    assert found.is_record.tolist() == [True, False]
    assert found.body(0) == FRAME
    assert found.heads["received"][0] == 1_700_000_000_000_000_001
    assert (found.heads["kind"][0], found.heads["framing"][0]) == (MamaRecordKind.MESSAGE, 1)
    payloads = [bytes(memoryview(found.data)[int(a) : int(b)]) for a, b in zip(found.begins, found.ends, strict=True)]
    assert payloads == [FRAME[9:], b"O\x01\x00other"]


@each("kind", [MamaRecordKind.PEER, MamaRecordKind.DICTIONARY])
def test_what_cannot_be_read_has_no_detail(kind: MamaRecordKind) -> None:
    record = MamaRecord(kind, "mama._peers", 5, b"no such frame", payload_at=3).encode()
    made = OpenMamaColumns(TYPE).columns(pa.array([record], pa.binary()), pa.array(["mama._peers"]), np.arange(1))
    assert made["mama"].field("detail").to_pylist() == [None]


def test_every_cut_and_every_flipped_bit_is_a_record_or_none() -> None:
    data = message()
    cut = [data[:n] for n in range(len(data))]
    flipped = []
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        flipped.append(bytes(changed))
    found = decode_records(pa.array(cut + flipped, pa.binary()))
    assert not found.is_record[:HEAD_SIZE].any()
    assert (found.begins <= found.ends).all()
    assert found.bad


@each("topic", ["OM.IBM", "IBM", "OM.BRK/B US", "A..B", ".x", "ä.*", "a.>", "a.%2E", "A.B.C"])
def test_the_topic_of_any_message_has_a_topic_in_the_log(topic: str) -> None:
    stored = records.record_topic(topic)
    assert why_unpublishable(stored) is None
    assert message_topic(stored) == topic


def test_what_is_about_no_topic_says_so() -> None:
    assert message_topic("mama._peers") == message_topic("mama._dictionary.OM") == ""
