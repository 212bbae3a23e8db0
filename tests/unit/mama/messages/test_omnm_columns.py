"""Messages decoded as columns: what one by one decoding finds, whatever they hold; columns of given types."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from decimal import Decimal
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
from mama_spark.mama.messages.typed_columns import (
    ARROW_TYPES,
    TypedField,
    UnfitColumn,
    arrow_type_of,
    check_type,
    text_of_value,
    time_text,
    typed_columns,
)

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


# --- Fields as typed columns: what fits which type, and what is said of values that do not ----------------------------

T = FieldType
TIME = MamaTime.from_us(1_700_000_000_123_456)
AT = datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)
UNSET, STAMP = MamaTime(0, hints=0), pa.timestamp("us", "UTC")


def column(kind: FieldType, value: Any, wanted: pa.DataType) -> tuple[Any, str | None]:
    """The value of a field in a column, and the reason if it does not fit: alike for one message and for many."""
    msg = MamaMsg()
    msg.add(kind, "f", 7, value)
    found = []
    for n in (1, COPIES):
        (made,), reasons = typed_columns(decoded([encode(msg)] * n), [TypedField("f", wanted)], n)
        assert made.type == wanted
        assert len(made) == n
        found.append((made[0].as_py(), reasons.get(0)))
    assert found[0] == found[1]
    return found[0]


@each(
    ("kind", "value", "wanted", "expected"),
    [
        (T.F64, 101.25, pa.float32(), 101.25), (T.F64, 3.0, pa.int32(), 3), (T.F32, 1.5, pa.string(), "1.5"),
        (T.F64, 1.005, pa.decimal128(10, 2), Decimal("1.00")), (T.I64, 2**53, pa.float64(), 2.0**53),
        (T.PRICE, MamaPrice(101.25, hints=2), pa.float64(), 101.25),  # without the hint that it is valid
        (T.PRICE, MamaPrice(101.25), pa.decimal128(10, 4), Decimal("101.2500")),
        (T.I32, -7, pa.int64(), -7), (T.I64, 300, pa.int16(), 300), (T.U64, 2**63, pa.string(), str(2**63)),
        (T.U64, 2**64 - 1, pa.decimal128(20, 0), Decimal(2**64 - 1)),
        (T.U8, 1, pa.bool_(), True), (T.BOOL, True, pa.bool_(), True), (T.BOOL, True, pa.string(), "true"),
        (T.BOOL, True, pa.int32(), 1), (T.CHAR, "é", pa.string(), "é"), (T.STRING, "IBM é", pa.string(), "IBM é"),
        (T.TIME, TIME, STAMP, AT), (T.TIME, TIME, pa.string(), "2023-11-14T22:13:20.123456Z"),
        (T.TIME, UNSET, STAMP, None), (T.TIME, UNSET, pa.string(), None),
        (T.OPAQUE, b"\x01", pa.binary(), b"\x01"), (T.OPAQUE, b"\x01", pa.string(), "01"),
        (T.VECTOR_I32, [1, 2], pa.list_(pa.int64()), [1, 2]), (T.VECTOR_STRING, ["a", "b"], pa.string(), '["a","b"]'),
        (T.VECTOR_PRICE, [MamaPrice(1.5), MamaPrice(0.25, 0)], pa.list_(pa.float64()), [1.5, 0.25]),
        (T.VECTOR_TIME, [TIME, UNSET], pa.list_(STAMP), [AT, None]),
    ],
)  # fmt: skip
def test_a_value_that_fits(kind: FieldType, value: Any, wanted: pa.DataType, expected: Any) -> None:
    assert column(kind, value, wanted) == (expected, None)


@each(
    ("kind", "value", "wanted"),
    [
        (T.F64, 1.5, pa.int32()), (T.F64, float("nan"), pa.int64()), (T.F64, 2.0**63, pa.int64()),
        (T.F64, 1e30, pa.decimal128(10, 2)), (T.U32, 100, pa.decimal128(2, 0)), (T.U8, 2, pa.bool_()),
        (T.I32, 128, pa.int8()), (T.I32, -129, pa.int8()), (T.U64, 2**63, pa.int64()),
        (T.I64, 2**53 + 1, pa.float64()), (T.U64, 2**64 - 1, pa.float64()), (T.I32, 2**24 + 1, pa.float32()),
        (T.STRING, "1", pa.int32()), (T.CHAR, "1", pa.int32()), (T.TIME, TIME, pa.int64()),
        (T.TIME, MamaTime(5, hints=2), STAMP), (T.TIME, MamaTime(2**62), STAMP),  # a time of day, and one too large
        (T.VECTOR_TIME, [MamaTime(5, hints=2)], pa.list_(STAMP)), (T.VECTOR_I32, [1], pa.int32()),
        (T.VECTOR_I32, [128], pa.list_(pa.int8())), (T.OPAQUE, b"1", pa.int32()),
    ],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_null_with_the_reason(kind: FieldType, value: Any, wanted: pa.DataType) -> None:
    made, reason = column(kind, value, wanted)
    assert made is None
    assert reason is not None
    assert reason.startswith(f"field f: {kind.name}")


def test_the_first_field_of_a_name_or_number_counts_and_others_have_null() -> None:
    payloads = []
    for fields in ([("f", 0, 1), ("f", 0, 2)], [("", 7, 3)], [("g", 7, 4), ("f", 1, 5)], [("g", 1, 6)]):
        msg = MamaMsg()
        for name, fid, value in fields:
            msg.add(FieldType.I32, name, fid, value)
        payloads.append(encode(msg))
    (made,), reasons = typed_columns(decoded(payloads * COPIES), [TypedField("f", pa.int32(), 7)], 4 * COPIES)
    assert made.to_pylist() == [1, 3, 4, None] * COPIES
    assert not reasons


def test_a_column_has_a_type_that_a_field_can_have() -> None:
    for kind in FieldType:
        check_type("f", arrow_type_of(kind))
    assert set(ARROW_TYPES) >= {kind for kind in FieldType if not kind.name.startswith("VECTOR")} - {T.MSG, T.UNKNOWN}
    with pytest.raises(UnfitColumn, match="column 'f' of type map"):
        check_type("f", pa.map_(pa.string(), pa.string()))


def test_texts_of_values() -> None:
    inner = MamaMsg()
    inner.add(FieldType.I32, "a", 1, 5)
    assert text_of_value(inner) == '[{"type":"I32","type_number":18,"fid":1,"name":"a","value":5}]'
    assert text_of_value((inner,)) == f"[{text_of_value(inner)}]"
    assert text_of_value((MamaPrice(1.5), TIME, UNSET)) == '[1.5,"2023-11-14T22:13:20.123456Z",null]'
    assert time_text(5, 0, 2) == "00:00:05Z"
    assert time_text(2**40, 1, 3) == f"{2**40}.000000001"
