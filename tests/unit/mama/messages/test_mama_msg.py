"""Messages: fields in order, found by name and fid, values checked when they are added."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from mama_spark.mama.messages.msg import MAX_DEPTH, Field, FieldType, MamaMsg, MamaPrice, MamaTime
from mama_spark.mama.messages.omnm import BadMessage, decode, encode
from mama_spark.mama.messages.status import Status, StatusError

from tests.support.tables import each

T = FieldType


def sample() -> MamaMsg:
    msg = MamaMsg()
    msg.add(FieldType.I32, "MdMsgType", 1, 0)
    msg.add(FieldType.STRING, "SourceName", 10001, "S")
    msg.add(FieldType.U32, "Other", 10001, 7)
    msg.add(FieldType.STRING, "Region", 0, "EU")
    msg.add(FieldType.STRING, "", 5, "nameless")
    return msg


def test_fields_are_found_by_name_by_fid_or_by_both() -> None:
    msg = sample()
    assert msg.get("Region") == "EU"
    assert msg.get(fid=5) == "nameless"
    assert msg.get(fid=10001) == "S"  # the first
    assert msg.get("Other", 10001) == 7
    assert msg.get("Other", 10002) is None
    assert msg.get("Nothing", default="x") == "x"
    assert msg.field("MdMsgType") == Field("MdMsgType", 1, T.I32, 0)
    assert [f.fid for f in msg] == [1, 10001, 10001, 0, 5]
    assert len(msg) == 5
    with pytest.raises(StatusError, match="name, its fid, or both"):
        msg.get()


def test_update_replaces_value_and_type_in_place_or_appends() -> None:
    """The C library keeps the wide type with the short data, so that decoders misread the following fields."""
    msg = sample()
    msg.update(T.STRING, "Region", 0, "US")
    msg.update(T.U8, "MdMsgType", 1, 5)
    msg.update(T.U8, "New", 9, 1)
    assert [f.value for f in msg] == [5, "S", 7, "US", "nameless", 1]
    assert msg.field("MdMsgType") == Field("MdMsgType", 1, T.U8, 5)
    assert decode(encode(msg)) == msg


@each(
    ("field_type", "value", "status"),
    [
        (T.U8, 256, "INVALID_ARG"), (T.I64, -(2**63) - 1, "INVALID_ARG"), (T.QUANTITY, -1, "INVALID_ARG"),
        (T.I32, 1.0, "WRONG_FIELD_TYPE"), (T.BOOL, "true", "WRONG_FIELD_TYPE"), (T.BOOL, 2, "WRONG_FIELD_TYPE"),
        (T.CHAR, "ab", "WRONG_FIELD_TYPE"), (T.CHAR, "€", "WRONG_FIELD_TYPE"), (T.CHAR, b"a", "WRONG_FIELD_TYPE"),
        (T.F64, "1.5", "WRONG_FIELD_TYPE"), (T.F32, 1e39, "INVALID_ARG"),
        (T.STRING, b"a", "WRONG_FIELD_TYPE"), (T.STRING, "a\0", "INVALID_ARG"), (T.STRING, "\ud800", "INVALID_ARG"),
        (T.OPAQUE, "a", "WRONG_FIELD_TYPE"), (T.TIME, 1.0, "WRONG_FIELD_TYPE"), (T.PRICE, 1.0, "WRONG_FIELD_TYPE"),
        (T.VECTOR_U8, [1, 256], "INVALID_ARG"), (T.VECTOR_U8, 1, "WRONG_FIELD_TYPE"),
        (T.VECTOR_STRING, "ab", "WRONG_FIELD_TYPE"), (T.VECTOR_STRING, ["a", ""], "INVALID_ARG"),
        (T.VECTOR_STRING, ["a\0b"], "INVALID_ARG"), (T.VECTOR_CHAR, "ab", "WRONG_FIELD_TYPE"),
        (T.MSG, {}, "WRONG_FIELD_TYPE"), (T.VECTOR_MSG, MamaMsg(), "WRONG_FIELD_TYPE"),
        (T.VECTOR_MSG, [1], "WRONG_FIELD_TYPE"), (T.UNKNOWN, b"", "WRONG_FIELD_TYPE"), (77, b"", "WRONG_FIELD_TYPE"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_encoded_is_refused_when_it_is_added(field_type: Any, value: Any, status: str) -> None:
    msg = MamaMsg()
    with pytest.raises(StatusError) as e:
        msg.add(field_type, "a", 1, value)
    assert e.value.status.name == status
    with pytest.raises(StatusError):
        msg.update(field_type, "a", 1, value)
    assert len(msg) == 0


@each(("name", "fid"), [("", 0), ("a", 65536), ("a", -1), ("a\0b", 1), ("\udc80", 1), ("a", "1")])
def test_a_field_needs_a_name_or_a_fid_of_16_bits(name: str, fid: Any) -> None:
    with pytest.raises(StatusError) as e:
        MamaMsg().add(T.U8, name, fid, 1)
    assert e.value.status is Status.INVALID_ARG


def test_numpy_numbers_become_python_numbers_and_f32_is_rounded() -> None:
    msg = MamaMsg()
    msg.add(T.U64, "a", 1, np.uint64(2**63 + 5))
    msg.add(T.F64, "b", 2, np.float32(1.5))
    msg.add(T.VECTOR_I32, "c", 3, np.arange(3, dtype=np.int32))
    msg.add(T.BOOL, "d", 4, np.True_)
    msg.add(FieldType.F32, "rounded", 5, 0.1)
    assert [type(f.value) for f in msg] == [int, float, tuple, bool, float]
    assert msg.get("rounded") != 0.1
    assert decode(encode(msg)) == msg


def test_nested_messages_are_copied() -> None:
    inner, outer = MamaMsg(), MamaMsg()
    inner.add(FieldType.U8, "a", 1, 1)
    outer.add(FieldType.MSG, "m", 2, inner)
    outer.add(FieldType.VECTOR_MSG, "v", 3, [inner, inner])
    copy = outer.copy()
    inner.add(FieldType.U8, "b", 2, 2)
    assert len(outer.get("m")) == len(outer.get("v")[1]) == 1
    outer.get("m").add(FieldType.U8, "c", 3, 3)
    assert len(copy.get("m")) == 1
    assert copy != outer


def test_a_message_cannot_contain_itself() -> None:
    msg = MamaMsg()
    for _ in range(MAX_DEPTH - 1):
        msg.add(FieldType.MSG, "self", 1, msg)
        msg.fields[:] = msg.fields[-1:]
    assert decode(encode(msg)) == msg
    with pytest.raises(StatusError, match="levels deep"):
        msg.add(FieldType.MSG, "self", 1, msg)


def test_a_message_nested_too_deep_is_not_encoded() -> None:
    msg = inner = MamaMsg()
    for _ in range(MAX_DEPTH):
        inner.add(FieldType.MSG, "m", 1, MamaMsg())
        inner = inner.get("m")
    with pytest.raises(BadMessage, match="deeper than 16"):
        encode(msg)


def test_a_message_as_json() -> None:
    msg = MamaMsg()
    msg.add(FieldType.CHAR, "c", 1, "\xff")
    msg.add(FieldType.VECTOR_F64, "v", 2, [1.0, float("nan"), float("-inf")])
    msg.add(FieldType.OPAQUE, "o", 3, b"\0\1")
    msg.add(FieldType.PRICE, "p", 4, MamaPrice(float("inf"), 0x22, "EUR"))
    msg.add(FieldType.TIME, "t", 5, MamaTime.from_us(-1))
    msg.add(FieldType.MSG, "m", 6, MamaMsg([Field("x", 0, T.BOOL, True)]))
    values = [f["value"] for f in json.loads(json.dumps(msg.as_dict(), allow_nan=False))["fields"]]
    assert values == [
        {"$hex": "ff"}, [1.0, "nan", "-inf"], {"$hex": "0001"},
        {"hints": 34, "valid": True, "precision": 2, "value": "inf", "currency": "EUR"},
        {"hints": 3, "seconds": -1, "nanoseconds": 999_999_000, "precision": 6, "timezone": ""},
        [{"type": "BOOL", "type_number": 9, "fid": 0, "name": "x", "value": True}],
    ]  # fmt: skip


@each("us", [0, 1, -1, 1_700_000_000_123_456, -62_135_596_800_000_000])
def test_times_keep_their_microseconds(us: int) -> None:
    assert MamaTime.from_us(us).us == us


@each(
    "make",
    [
        lambda: MamaTime(2**63), lambda: MamaTime(0, -1), lambda: MamaTime(0, 2**32), lambda: MamaTime(0, hints=256),
        lambda: MamaTime(0, timezone="x" * 15), lambda: MamaTime(0, timezone="€"), lambda: MamaPrice(1.0, -1),
        lambda: MamaPrice(1.0, currency="EURO"), lambda: MamaPrice(1.0, currency="E\0"),
    ],
)  # fmt: skip
def test_times_and_prices_fit_the_wire(make: Any) -> None:
    with pytest.raises(StatusError) as e:
        make()
    assert e.value.status is Status.INVALID_ARG
