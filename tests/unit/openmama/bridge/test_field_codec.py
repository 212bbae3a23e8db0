"""Rows as OMNM messages: what the decoder reads is what the row holds, and what cannot be carried is refused by row."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import ConfigError, OptionError, SchemaError
from mama_spark.mama.messages.field_types import FieldType
from mama_spark.mama.messages.msg import MamaPrice, MamaTime
from mama_spark.mama.messages.omnm import decode, encode
from mama_spark.openmama.bridge import FieldCodec, row_codec
from mama_spark.openmama.bridge.field_columns import FieldForms
from mama_spark.openmama.wire.dictionary import DictionaryEntry
from mama_spark.openmama.wire.market_data import Stamp, stamped
from mama_spark.options import SinkOptions
from mama_spark.options.values import mama_fields

from tests.support.tables import each
from tests.support.tiers import examples

AT = datetime(2026, 1, 2, 3, 4, 5, 678901, UTC)
SECONDS = 1767323045


def codec(fields: str = "", entries: tuple[DictionaryEntry, ...] = (), topic: str | None = "T") -> FieldCodec:
    return FieldCodec(FieldForms(mama_fields(fields) if fields else (), entries), topic)


def encoded(columns: dict[str, pa.Array], fields: str = "", **more: Any) -> tuple[list[list[Any]], dict[int, str]]:
    """Fields of each message without the stamps, and the reasons of bad rows."""
    rows, made = pa.RecordBatch.from_pydict(columns), codec(fields, **more)
    made.check(rows.schema)
    found = made.encode(rows)
    bad = {row: error.info for row, error in found.bad}
    messages = [None if row in bad else decode(payload) for row, payload in enumerate(found.payloads.to_pylist())]
    return [[] if m is None else [f for f in m if f.name not in ("MdMsgType", "MdMsgStatus")] for m in messages], bad


@each(
    ("column", "field", "kind", "value"),
    [
        (pa.array([True]), "", "BOOL", True),
        (pa.array([-5], pa.int8()), "", "I8", -5),
        (pa.array([5], pa.int16()), "", "I16", 5),
        (pa.array([-(2**31)], pa.int32()), "", "I32", -(2**31)),
        (pa.array([1.5], pa.float32()), "", "F32", 1.5),
        (pa.array([Decimal("7")], pa.decimal128(10, 0)), "", "PRICE", MamaPrice(7.0, 48)),
        (pa.array([2.5]), "c:109:PRICE(3)", "PRICE", MamaPrice(2.5, 35)),
        (pa.array([2.5]), "c::PRICE", "PRICE", MamaPrice(2.5, 32)),
        (pa.array([date(2026, 1, 2)]), "", "TIME", MamaTime(1767312000, 0, 1, 10)),
        (pa.array([255], pa.int32()), "c::U8", "U8", 255),
        (pa.array([2**32 - 1]), "c::U32", "U32", 2**32 - 1),
        (pa.array([Decimal(2**64 - 1)], pa.decimal128(20, 0)), "c::U64", "U64", 2**64 - 1),
        (pa.array([7], pa.int32()), "c::STRING", "STRING", "7"),
        (pa.array(["é"]), "c::CHAR", "CHAR", "é"),
        (pa.array([True]), "c::U8", "U8", 1),
        (pa.array([[1, 2]], pa.list_(pa.int32())), "", "VECTOR_I32", (1, 2)),
        (pa.array([["a", "b"]]), "", "VECTOR_STRING", ("a", "b")),
        (pa.array([[AT]], pa.list_(pa.timestamp("us", "UTC"))), "", "VECTOR_TIME", (MamaTime(SECONDS, 678_901_000),)),
    ],
)  # fmt: skip
def test_a_column_becomes_a_field(column: pa.Array, field: str, kind: str, value: object) -> None:
    ((found,),), _ = encoded({"c": column}, field)
    assert (found.name, found.type.name, found.value) == ("c", kind, value)


@each(
    ("column", "field", "words"),
    [
        (pa.array([256], pa.int32()), "c::U8", "256 does not fit into U8"),
        (pa.array([-1]), "c::U64", "-1 does not fit into U64"),
        (pa.array([Decimal("1.5")], pa.decimal128(3, 1)), "c::I32", "1.5 does not fit into I32"),
        (pa.array([1e300]), "c::F32", "too large for F32"),
        (pa.array(["a\0b"]), "", "ends at its first NUL"),
        (pa.array(["ab"]), "c::CHAR", "one character of Latin-1"),
        (pa.array([datetime(1969, 1, 1, tzinfo=UTC)], pa.timestamp("us", "UTC")), "", "before 1970"),
        (pa.array([date(2200, 1, 1)]), "", "after 2106"),
        (pa.array([["a", ""]]), "", "cannot end with an empty string"),
        (pa.array([[None]], pa.list_(pa.int32())), "", "expected an integer"),
    ],
)
def test_what_no_field_can_hold_is_refused_by_row(column: pa.Array, field: str, words: str) -> None:
    good = pa.nulls(1, column.type)
    found, bad = encoded({"c": pa.concat_arrays([good, column, good]), "d": pa.array([1, 2, 3])}, field)
    assert list(bad) == [1]
    assert words in bad[1]
    assert [f.name for f in found[0]] == [f.name for f in found[2]] == ["d"], "a null is no field"


@pytest.mark.spec("OW8")
def test_stamps_are_u8_and_u32_whatever_the_column_is() -> None:
    rows = pa.RecordBatch.from_pydict({"MdMsgType": [1], "MdSeqNum": [7], "x": [1]})
    made = decode(codec().encode(rows).payloads[0].as_py())
    assert [(f.name, f.fid, f.type.name, f.value) for f in made] == [
        ("MdMsgStatus", 2, "U8", 0), ("MdMsgType", 1, "U8", 1), ("MdSeqNum", 10, "U32", 7), ("x", 0, "I64", 1)
    ]  # fmt: skip
    assert decode(codec().encode(rows.select(["x"])).payloads[0].as_py()).fields[:2] == Stamp().fields()


def test_numbers_and_types_come_from_the_option_then_from_the_dictionary() -> None:
    entries = (DictionaryEntry(109, "bid", FieldType.PRICE), DictionaryEntry(110, "size", FieldType.U32))
    columns = {"bid": pa.array([1.5]), "size": pa.array([3]), "other": pa.array([1])}
    ((bid, size, other),), _ = encoded(columns, "bid:200,size::I16", entries=entries)
    assert (bid.fid, bid.type) == (200, FieldType.PRICE)
    assert (size.fid, size.type) == (110, FieldType.I16)
    assert (other.fid, other.type) == (0, FieldType.I64)


VALUES = st.fixed_dictionaries(
    {
        "i": st.none() | st.integers(-(2**63), 2**63 - 1),
        "f": st.none() | st.floats(allow_nan=False),
        "s": st.none() | st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20),
        "b": st.none() | st.binary(max_size=20),
        "p": st.none() | st.decimals(-(10**6), 10**6, places=2),
        "t": st.none() | st.datetimes(datetime(1970, 1, 1), datetime(2105, 1, 1), timezones=st.just(UTC)),
    }
)  # fmt: skip


@examples(300)
@given(st.lists(VALUES, min_size=1, max_size=5), st.integers(0, 4))
def test_rows_are_the_messages_that_the_codec_of_messages_makes(rows: list[dict[str, Any]], start: int) -> None:
    schema = pa.schema({"i": pa.int64(), "f": pa.float64(), "s": pa.string(), "b": pa.binary(),
                        "p": pa.decimal128(12, 2), "t": pa.timestamp("us", "UTC")})  # fmt: skip
    batch = pa.RecordBatch.from_pylist(rows, schema).slice(min(start, len(rows) - 1))
    found = codec().encode(batch)
    assert not found.bad
    for payload, row in zip(found.payloads.to_pylist(), batch.to_pylist(), strict=True):
        msg = stamped(Stamp(), [])
        for name, kind in (("i", "I64"), ("f", "F64"), ("s", "STRING"), ("b", "OPAQUE")):
            if row[name] is not None:
                msg.add(FieldType[kind], name, 0, row[name])
        if row["p"] is not None:
            msg.add(FieldType.PRICE, "p", 0, MamaPrice(float(row["p"]), 34))
        if row["t"] is not None:
            at = MamaTime.from_us((row["t"] - datetime(1970, 1, 1, tzinfo=UTC)) // AT.resolution)
            msg.add(FieldType.TIME, "t", 0, at)
        assert payload == encode(msg)


def test_topics() -> None:
    def topics(prefix: str | None = None, **columns: list[str | None]) -> tuple[list[str], list[int]]:
        batch = pa.RecordBatch.from_pydict({k: pa.array(v, pa.string()) for k, v in columns.items()} | {"x": [1, 2, 3]})
        found = FieldCodec(FieldForms(), None, prefix).encode(batch)
        return found.topics.to_pylist(), [row for row, _ in found.bad]

    assert topics(topic=["A", "", None]) == (["A", "", ""], [1, 2])
    assert topics("p", topic=["A", "B", "C"]) == (["p.A", "p.B", "p.C"], [])
    assert topics(source=["S", "S", None], symbol=["a", None, None]) == (["S.a", "S", ""], [2])
    assert topics("p", source=["S", "", None], symbol=["a", "a", ""]) == (["p.S.a", "p.a", ""], [2])
    assert topics(root=["_MDDD", "R", ""], source=["S"] * 3, symbol=["a"] * 3) == (["_MDDD.S.a", "R.S", "S.a"], [])


def test_a_whole_message_may_stand_in_place_of_fields() -> None:
    message = encode(stamped(Stamp(), []))
    rows = pa.RecordBatch.from_pydict({"value": [message, b"Q\0", None, b"x"]})
    codec().check(rows.schema)
    found = codec().encode(rows)
    assert found.payloads[0].as_py() == message
    assert [(row, error.info[:30]) for row, error in found.bad] == [
        (1, "the payload is of Qpid (id Q):"), (2, "the value is null"), (3, "the payload has the id b'x', O"),
    ]  # fmt: skip


@each(
    ("schema", "fields", "topic", "words"),
    [
        ({"x": pa.int32()}, "", None, "no column 'topic'"),
        ({"topic": pa.int32(), "x": pa.int32()}, "", None, "must be string"),
        ({"topic": pa.string(), "x": pa.int32()}, "", "T", "both option topic"),
        ({"topic": pa.string()}, "", None, "nothing to publish"),
        ({"value": pa.string()}, "", "T", "column 'value' must be binary"),
        ({"value": pa.binary(), "x": pa.int32()}, "", "T", "there can be no field besides"),
        ({"x": pa.struct({"a": pa.int32()})}, "", "T", "has no type of a MAMA field"),
        ({"x": pa.list_(pa.list_(pa.int32()))}, "", "T", "has no type of a MAMA field"),
        ({"x": pa.string()}, "x::I32", "T", "cannot become a field of type I32"),
        ({"x": pa.float64()}, "x::PRICE(16)", "T", "at most 15 decimals"),
        ({"x": pa.decimal128(30, 20)}, "", "T", "at most 15 decimals"),
    ],
)
def test_columns_that_cannot_be_fields_are_refused_before_the_write(
    schema: dict[str, pa.DataType], fields: str, topic: str | None, words: str
) -> None:
    with pytest.raises(SchemaError, match=words):
        codec(fields, topic=topic).check(pa.schema(schema))


def test_options_of_fields(tmp_path: Any) -> None:
    with pytest.raises(ConfigError, match="names 'y', which is no column"):
        codec("y:1").check(pa.schema({"x": pa.int32()}))
    for text in ("x:1:NOTHING", "x:1:U8(2)", "x:1:UNKNOWN"):
        with pytest.raises(ConfigError, match="option mamaFields"):
            codec(text)
    for text, words in (("x:0", "from 1 to 65535"), ("x,x", "twice"), (":1", "must be fields"), ("x:a", "must be")):
        with pytest.raises(OptionError, match=words):
            SinkOptions.parse({"url": "oz://h", "mamaFields": text})
    file = tmp_path / "data.dict"
    o = SinkOptions.parse({"url": "oz://h", "topic": "T", "mamaDictionary": str(file)})
    with pytest.raises(ConfigError, match=r"option mamaDictionary: .*data.dict"):
        row_codec(o)
    file.write_text("nothing")
    with pytest.raises(ConfigError, match=r"option mamaDictionary: .*no line fid\|name\|type"):
        row_codec(o)
    file.write_text("109|x|27")
    found = row_codec(o).encode(pa.RecordBatch.from_pydict({"x": [1.5]}))
    assert decode(found.payloads[0].as_py()).field("x") == ("x", 109, FieldType.PRICE, MamaPrice(1.5))


@each(
    ("more", "words"),
    [({"stream": "S"}, "has no streams"), ({"pack": "lines"}, "pack does not go"),
     ({"onUnavailable": "wait"}, "stores nothing"), ({"requireSubscribers": "true", "ackMode": "none"}, "needs ackn"),
     ({"onError": "deadletter", "deadLetterTopic": "x"}, "has no streams")],
)  # fmt: skip
def test_options_that_do_not_go_with_openmama(more: dict[str, str], words: str) -> None:
    with pytest.raises(OptionError, match=words):
        SinkOptions.parse({"url": "oz://h", **more})


def test_options_of_openmama_are_refused_elsewhere() -> None:
    with pytest.raises(OptionError, match="requireSubscribers"):
        SinkOptions.parse({"url": "nats://h", "requireSubscribers": "true"})
