"""Fields as typed columns: what fits which type, and what is said of values that do not."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import MamaMsg, MamaPrice, MamaTime
from mama_spark.mama.messages.omnm import encode
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
from tests.unit.mama.messages.test_omnm_columns import COPIES, decoded

T = FieldType
TIME = MamaTime.from_us(1_700_000_000_123_456)
AT = datetime(2023, 11, 14, 22, 13, 20, 123456, UTC)


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
        (T.F64, 101.25, pa.float64(), 101.25),
        (T.F64, 101.25, pa.float32(), 101.25),
        (T.F64, 3.0, pa.int32(), 3),
        (T.F64, 1.005, pa.decimal128(10, 2), Decimal("1.00")),
        (T.F32, 1.5, pa.string(), "1.5"),
        (T.PRICE, MamaPrice(101.25), pa.float64(), 101.25),
        (T.PRICE, MamaPrice(101.25), pa.decimal128(10, 4), Decimal("101.2500")),
        (T.PRICE, MamaPrice(101.25, hints=2), pa.float64(), 101.25),  # without the hint that it is valid
        (T.PRICE, MamaPrice(101.25, hints=2), pa.string(), "101.25"),
        (T.I32, -7, pa.int64(), -7),
        (T.I64, 300, pa.int16(), 300),
        (T.U64, 2**64 - 1, pa.decimal128(20, 0), Decimal(2**64 - 1)),
        (T.U64, 2**63, pa.string(), str(2**63)),
        (T.I64, 2**53, pa.float64(), 2.0**53),
        (T.U8, 1, pa.bool_(), True),
        (T.QUANTITY, 9, pa.int64(), 9),
        (T.BOOL, True, pa.bool_(), True),
        (T.BOOL, True, pa.string(), "true"),
        (T.BOOL, True, pa.int32(), 1),
        (T.CHAR, "é", pa.string(), "é"),
        (T.STRING, "IBM é", pa.string(), "IBM é"),
        (T.TIME, TIME, pa.timestamp("us", "UTC"), AT),
        (T.TIME, TIME, pa.string(), "2023-11-14T22:13:20.123456Z"),
        (T.TIME, MamaTime(0, hints=0), pa.timestamp("us", "UTC"), None),  # never set
        (T.TIME, MamaTime(0, hints=0), pa.string(), None),
        (T.OPAQUE, b"\x01", pa.binary(), b"\x01"),
        (T.OPAQUE, b"\x01", pa.string(), "01"),
        (T.VECTOR_I32, [1, 2], pa.list_(pa.int64()), [1, 2]),
        (T.VECTOR_PRICE, [MamaPrice(1.5), MamaPrice(0.25, 0)], pa.list_(pa.float64()), [1.5, 0.25]),
        (T.VECTOR_TIME, [TIME, MamaTime(0, hints=0)], pa.list_(pa.timestamp("us", "UTC")), [AT, None]),
        (T.VECTOR_STRING, ["a", "b"], pa.string(), '["a","b"]'),
        (T.VECTOR_STRING, ["a"], pa.list_(pa.string()), ["a"]),
    ],
)
def test_a_value_that_fits(kind: FieldType, value: Any, wanted: pa.DataType, expected: Any) -> None:
    assert column(kind, value, wanted) == (expected, None)


@each(
    ("kind", "value", "wanted"),
    [
        (T.F64, 1.5, pa.int32()),
        (T.F64, float("nan"), pa.int64()),
        (T.F64, 2.0**63, pa.int64()),
        (T.F64, 1e30, pa.decimal128(10, 2)),
        (T.I32, 128, pa.int8()),
        (T.I32, -129, pa.int8()),
        (T.U64, 2**63, pa.int64()),
        (T.I64, 2**53 + 1, pa.float64()),
        (T.U64, 2**64 - 1, pa.float64()),
        (T.I32, 2**24 + 1, pa.float32()),
        (T.U8, 2, pa.bool_()),
        (T.U32, 100, pa.decimal128(2, 0)),
        (T.STRING, "1", pa.int32()),
        (T.CHAR, "1", pa.int32()),
        (T.TIME, TIME, pa.int64()),
        (T.TIME, MamaTime(5, hints=2), pa.timestamp("us", "UTC")),  # a time of day
        (T.TIME, MamaTime(2**62), pa.timestamp("us", "UTC")),
        (T.VECTOR_TIME, [MamaTime(5, hints=2)], pa.list_(pa.timestamp("us", "UTC"))),
        (T.VECTOR_I32, [1], pa.int32()),
        (T.VECTOR_I32, [128], pa.list_(pa.int8())),
        (T.OPAQUE, b"1", pa.int32()),
    ],
)
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
    assert text_of_value((MamaPrice(1.5), TIME)) == '[1.5,"2023-11-14T22:13:20.123456Z"]'
    assert text_of_value((MamaPrice(1.5, 0), MamaTime(0, hints=0))) == "[1.5,null]"
    assert time_text(5, 0, 2) == "00:00:05Z"
    assert time_text(2**40, 1, 3) == f"{2**40}.000000001"
