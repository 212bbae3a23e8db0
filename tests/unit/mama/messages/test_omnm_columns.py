"""Messages decoded as columns: what one by one decoding finds, whatever they hold."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import MamaMsg, MamaPrice, MamaTime
from mama_spark.mama.messages.omnm import BadMessage, decode, encode
from mama_spark.mama.messages.omnm_columns import ColumnDecoder, DecodedColumns, FieldBlock

from tests.support.tables import each
from tests.support.tiers import examples
from tests.support.vectors import vectors
from tests.unit.mama.messages.test_mama_omnm import MESSAGES

VECTORS = [v for v in vectors("openmama") + vectors("openmama-wire") if v["kind"] in ("payload", "payload_tolerant")]
COPIES = 40  #: of a message, so that it is read with others


def decoded(payloads: list[bytes], decoder: ColumnDecoder | None = None) -> DecodedColumns:
    array = pa.array(payloads, pa.binary())
    offsets = np.frombuffer(array.buffers()[1], np.int32).astype(np.int64)[: len(payloads) + 1]
    return (decoder or ColumnDecoder()).decode(array.buffers()[2] or b"", offsets[:-1], offsets[1:])


def values_of(block: FieldBlock) -> list[Any]:
    values = block.values
    if isinstance(values, list | pa.Array):
        return list(values) if isinstance(values, list) else values.to_pylist()
    if block.type is FieldType.CHAR:
        return [chr(value) for value in values.tolist()]
    return list(values.tolist())


def as_column_value(value: Any) -> Any:
    """As a block has it: without currency and time zone."""
    if isinstance(value, MamaTime):
        return (value.hints, value.seconds, value.nanos, value.precision)
    return (value.hints, value.value) if isinstance(value, MamaPrice) else value


def assert_as_one_by_one(payloads: list[bytes], found: DecodedColumns) -> None:
    rows: list[dict[int, tuple[Any, ...]]] = [{} for _ in payloads]
    for block in found.blocks:
        for row, value in zip(block.rows.tolist(), values_of(block), strict=True):
            assert block.place not in rows[row]
            rows[row][block.place] = (block.name, block.fid, block.type, value)
    for row, payload in enumerate(payloads):
        try:
            fields = decode(payload).fields
        except BadMessage as e:
            assert found.bad[row] == e.info  # noqa: PT017
            assert not rows[row]
            continue
        assert row not in found.bad
        expected = [(name, fid, kind, as_column_value(value)) for name, fid, kind, value in fields]
        assert repr([rows[row][place] for place in sorted(rows[row])]) == repr(expected)  # NaN equals NaN


@examples(100)
@given(st.lists(MESSAGES, min_size=1, max_size=4), st.randoms(use_true_random=False))
def test_whole_and_damaged_messages_are_read_as_one_by_one(kinds: list[MamaMsg], chance: random.Random) -> None:
    payloads = [encode(chance.choice(kinds)) for _ in range(3 * COPIES)]
    for row in range(0, len(payloads), 5):
        damaged = bytearray(payloads[row])
        damaged[chance.randrange(len(damaged))] = chance.choice([0, 1, 255, chance.randrange(256)])
        payloads[row] = bytes(damaged[: chance.randint(0, len(damaged))] if row % 2 else damaged)
    assert_as_one_by_one(payloads, decoded(payloads))


@pytest.mark.spec("OW6")
@each("vector", VECTORS)
def test_every_recorded_payload_and_every_cut_of_it(vector: dict[str, Any]) -> None:
    payload = bytes.fromhex(vector["hex"])
    payloads = [payload] * COPIES + [payload[:n] for n in range(len(payload))]
    assert_as_one_by_one(payloads, decoded(payloads))


def test_messages_of_few_layouts_are_not_read_one_by_one() -> None:
    payloads = []
    for n in range(300):
        msg = MamaMsg()
        msg.add(FieldType.U8, "MdMsgType", 1, 0)
        msg.add(FieldType.STRING, "wIssueSymbol", 305, "S" * (n % 7))
        if n % 3:
            msg.add(FieldType.PRICE, "wBidPrice", 237, MamaPrice(n / 4))
        msg.add(FieldType.TIME, "wActivityTime", 102, MamaTime(n))
        payloads.append(encode(msg))
    found = decoded(payloads)
    assert found.one_by_one == 0
    assert_as_one_by_one(payloads, found)


@each("texts", [["IBM"] * 40, ["x" * n for n in range(40)], ["x" * 300] * 40, [""] * 40, ["IBM", "A", *["MSFT"] * 38]])
@each("behind", [True, False])
def test_texts_of_equal_and_of_other_lengths_end_at_their_first_nul(texts: list[str], behind: bool) -> None:
    payloads = []
    for text in texts:
        msg = MamaMsg()
        msg.add(FieldType.STRING, "wText", 1, text)
        if behind:
            msg.add(FieldType.I32, "wNumber", 2, 7)
        payloads.append(encode(msg))
    assert_as_one_by_one(payloads, decoded(payloads))
    cut = [*payloads[:-1], payloads[-1][:-1]]
    assert_as_one_by_one(cut, decoded(cut))


def test_only_wanted_fields_are_decoded() -> None:
    msg = MamaMsg()
    msg.add(FieldType.U8, "a", 1, 1)
    msg.add(FieldType.VECTOR_I32, "skipped", 2, [1, 2])
    msg.add(FieldType.OPAQUE, "skipped too", 3, b"1")
    msg.add(FieldType.F64, "b", 4, 2.5)
    found = decoded([encode(msg)] * COPIES, ColumnDecoder(lambda name, fid: name in ("a", "b")))
    assert {block.name for block in found.blocks} == {"a", "b"}
    assert found.one_by_one == 0


def test_a_thousand_layouts_are_read_in_the_end() -> None:
    payloads = []
    for n in range(1000):
        msg = MamaMsg()
        msg.add(FieldType.I32, f"field{n}", n % 60000 + 1, n)
        payloads.append(encode(msg))
    found = decoded(payloads)
    assert found.one_by_one >= 990
    assert_as_one_by_one(payloads, found)


def test_no_messages_and_empty_ones() -> None:
    assert not decoded([]).blocks
    assert set(decoded([b""] * 3).bad) == {0, 1, 2}
    assert not decoded([encode(MamaMsg())] * COPIES).bad
