"""Rows become messages: columns, their types, ids and headers."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import SchemaError
from mama_spark.options import SinkOptions
from mama_spark.registry import row_codec
from mama_spark.spark.sink.encoding.columns import plan_columns
from mama_spark.spark.sink.encoding.row_encoder import CodecRows, RowEncoder
from mama_spark.spark.sink.job import ColumnPlan
from mama_spark.spark.sink.stages import SinkBatch
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema as arrow_schema

from tests.support.tables import each

# --- arrow batches become messages, row for row, and what cannot be one is named by row -------------------------------


def plan(**given_columns: Any) -> ColumnPlan:
    base: dict[str, Any] = {
        "topic": "topic", "parts": (), "value": "value", "json": (), "headers": None, "headers_form": "", "id": None,
        "log": (),
    }  # fmt: skip
    return ColumnPlan(**{**base, **given_columns})


def encode(
    columns: dict[str, pa.Array], *, prefix: str | None = None, plan_topic: str | None = "topic", **p: Any
) -> SinkBatch:
    return RowEncoder(plan(topic=plan_topic, **p), None, prefix).encode(pa.record_batch(columns))


def strings(*values: str | None) -> pa.Array:
    return pa.array(values, pa.string())


def blobs(*values: bytes | None) -> pa.Array:
    return pa.array(values, pa.binary())


def header_lists(encoded: SinkBatch) -> list[Any]:
    assert encoded.messages.headers is not None
    lists: list[Any] = encoded.messages.headers.to_pylist()
    return lists


def test_nulls_are_bad_rows_with_a_reason_and_others_are_kept() -> None:
    columns = {
        "topic": strings("a", None, "b", "c", "d"), "value": blobs(b"1", b"2", None, b"4", b"5"),
        "stream": strings("s", "s", "s", None, "s"), "id": strings("1", "2", "3", "4", None), "k": pa.array(range(5)),
    }  # fmt: skip
    encoded = encode(columns, stream="stream", id="id", log=("k",))
    assert [(row, str(e)) for row, e in encoded.rejected] == [
        (1, "BAD_SYMBOL: the topic is null"), (2, "INVALID_ARG: the value is null"),
        (3, "INVALID_ARG: the stream is null"), (4, "INVALID_ARG: the id is null"),
    ]  # fmt: skip
    messages = encoded.messages
    assert messages.topics.to_pylist() == ["a", "", "b", "c", "d"]
    assert messages.payloads.to_pylist() == [b"1", b"2", b"", b"4", b"5"]
    assert messages.streams is not None
    assert messages.streams.to_pylist() == ["s", "s", "s", "", "s"]
    assert messages.ids is not None
    assert messages.ids.to_pylist() == ["1", "2", "3", "4", ""]
    assert encoded.extra is not None
    assert encoded.extra.to_pylist() == [{"k": k} for k in range(5)]
    assert encode(columns).messages.streams is None


def test_prefix_stands_before_column_and_option_topics() -> None:
    columns = {"topic": strings("a", "b"), "value": strings("x", "y")}
    assert encode(columns, prefix="p").messages.topics.to_pylist() == ["p.a", "p.b"]
    fixed = RowEncoder(plan(topic=None), "t", "p").encode(pa.record_batch({"value": strings("x")}))
    assert fixed.messages.topics.to_pylist() == ["p.t"]


def test_root_source_symbol_join_with_missing_and_empty_parts_skipped_and_travel_as_headers() -> None:
    encoded = encode(
        {
            "root": strings(None, "r", None, ""), "source": strings("s", "s", "", "s"),
            "symbol": strings("y", None, None, ""), "value": strings("1", "2", "3", "4"),
        },
        plan_topic=None,
        parts=(("root", "root"), ("source", "source"), ("symbol", "symbol")),
    )  # fmt: skip
    assert encoded.messages.topics.to_pylist() == ["s.y", "r.s", "", "s"]
    assert [row for row, _ in encoded.rejected] == [2]
    assert header_lists(encoded) == [
        [("Mama-Source", ["s"]), ("Mama-Symbol", ["y"])], [("Mama-Root", ["r"]), ("Mama-Source", ["s"])], [],
        [("Mama-Source", ["s"])],
    ]  # fmt: skip


MULTI = pa.map_(pa.string(), pa.list_(pa.string()))
KAFKA = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


@each(
    ("form", "kind", "values", "expected", "bad"),
    [
        (
            "map",
            pa.map_(pa.string(), pa.string()),
            [[("a", "1"), ("b", "2")], None, [], [("c", None)]],
            [[("a", ["1"]), ("b", ["2"])], [], [], []],
            {3: "header 'c' has a null value"},
        ),
        (
            "multimap",
            MULTI,
            [[("a", ["1", "2"])], None, [("b", [])], [("c", None)], [("d", ["x", None])]],
            [[("a", ["1", "2"])], [], [("b", [])], [], [("d", ["x", ""])]],
            {3: "header 'c' has a null value", 4: "header 'd' has a null value"},
        ),
        (
            "kafka",
            KAFKA,
            [
                [{"key": "a", "value": b"1"}, {"key": "a", "value": b"2"}],
                None,
                [None],
                [{"key": "b", "value": b"\xff"}],
                [{"key": None, "value": b"x"}],
                [{"key": "c", "value": None}],
            ],
            [[("a", ["1"]), ("a", ["2"])], [], [], [("b", [""])], [("", ["x"])], []],
            {3: "header 'b' is not UTF-8", 4: "a header has no name", 5: "header 'c' has a null value"},
        ),
    ],
)
@each("offset", [0, 1])
def test_headers_of_every_form(
    form: str, kind: pa.DataType, values: list[Any], expected: list[Any], bad: dict[int, str], offset: int
) -> None:
    n = len(values)
    whole = pa.record_batch(
        {"topic": strings(*["t"] * n), "value": strings(*["v"] * n), "headers": pa.array(values, kind)}
    )
    encoded = RowEncoder(plan(headers="headers", headers_form=form), None, None).encode(whole.slice(offset))
    assert header_lists(encoded) == expected[offset:]
    assert {row: e.info for row, e in encoded.rejected} == {r - offset: t for r, t in bad.items() if r >= offset}


def test_a_row_with_a_value_that_json_cannot_hold_is_refused_with_its_column() -> None:
    days = pa.array([0, 10_000_000, None], pa.int32()).cast(pa.date32())
    encoded = encode({"topic": strings("a", "b", "c"), "day": days}, value=None, json=("day",))
    ((row, error),) = encoded.rejected
    assert row == 1
    assert "column 'day' cannot be JSON: a date or time is not in the years 1 to 9999" in str(error)
    assert encoded.messages.payloads.to_pylist()[::2] == [b'{"day":"1970-01-01"}', b'{"day":null}']


def test_text_that_is_not_utf8_fails_its_row_alone_for_readers_would_see_other_text() -> None:
    texts = pa.array([b"a", b"\xff", b"c", b"\xff", None]).view(pa.string())
    topics = strings("t", "t", "t", "t", "t")
    columns = {"topic": topics, "value": blobs(*[b"v"] * 5), "text": texts, "deep": pa.ListArray.from_arrays(
        pa.array(range(6), pa.int32()), texts)}  # fmt: skip

    def reasons(**given: Any) -> dict[int, str]:
        return {row: str(error) for row, error in encode(columns, **given).rejected}

    bad = "BAD_SYMBOL: it is not UTF-8"
    assert reasons(plan_topic="text") == {1: bad, 3: bad, 4: "BAD_SYMBOL: the topic is null"}
    assert encode(columns, plan_topic="text").messages.topics.to_pylist() == ["a", "", "c", "", ""]
    assert reasons(id="text").keys() == {1, 3, 4}
    ids = encode(columns, id="text").messages.ids
    assert ids is not None
    assert ids.to_pylist() == ["a", "", "c", "", ""]
    assert "the id is not UTF-8" in reasons(id="text")[1]
    for name in ("text", "deep"):
        found = reasons(value=None, typed=(name,))
        assert found.keys() == {1, 3}
        assert f"column '{name}' has text that is not UTF-8" in found[3]


@given(st.lists(st.tuples(st.one_of(st.none(), st.text()), st.one_of(st.none(), st.binary())), max_size=20))
def test_every_row_is_a_message_or_bad(rows: list[tuple[str | None, bytes | None]]) -> None:
    encoded = encode({"topic": strings(*[t for t, _ in rows]), "value": blobs(*[v for _, v in rows])})
    bad = {row for row, _ in encoded.rejected}
    assert bad == {i for i, (t, v) in enumerate(rows) if t is None or v is None}
    assert len(encoded.messages) == len(rows)
    assert encoded.messages.topics.null_count == encoded.messages.payloads.null_count == 0
    for i, (t, v) in enumerate(rows):
        if i not in bad:
            assert (encoded.messages.topics[i].as_py(), encoded.messages.payloads[i].as_py()) == (t, v)


def test_the_payload_of_a_row_that_a_codec_refuses_is_its_columns_as_json() -> None:
    """For dead letters and the flight log."""
    o = SinkOptions.parse({"url": "tango://lab", "log": "nats://h/TANGO"})
    schema = T.StructType([T.StructField(name, T.StringType()) for name in ("device", "attribute", "quality")])
    schema = schema.add("value", T.DoubleType())
    rows = [("d/f/m", "good", None, 1.0), (None, "a", None, 2.0), ("d/f/m", "a b", "ALARM", 4.0),
            ("d/f/m", "a", None, None)]  # fmt: skip
    named = [dict(zip(schema.names, row, strict=True)) for row in rows]
    codec = row_codec(o)
    assert codec is not None
    encoded = CodecRows(plan_columns(schema, o), codec).encode(pa.RecordBatch.from_pylist(named, arrow_schema(schema)))
    assert [row for row, _ in encoded.rejected] == [1, 2, 3]
    assert [json.loads(one) for one in encoded.messages.payloads.to_pylist()[1:]] == named[1:]


# --- types that a message cannot carry without a change are refused on the driver, with the path to the field ---------

JSON, PACKED, BOTH = ({"pack": "off"},), ({"pack": "arrow"},), ({"pack": "off"}, {"pack": "arrow"})
EMPTY, TWICE = T.StructType([]), T.StructType([T.StructField("a", T.IntegerType()), T.StructField("a", T.LongType())])


@each(
    ("kind", "refusing"),
    [
        (T.VariantType(), BOTH),
        (T.CalendarIntervalType(), BOTH),
        (T.DayTimeIntervalType(), ()),
        (T.DayTimeIntervalType(1, 2), JSON),
        (T.MapType(T.IntegerType(), T.StringType()), JSON),
        (T.MapType(T.StringType(), T.IntegerType()), ()),
        (TWICE, JSON),
        (EMPTY, PACKED),
        (T.NullType(), PACKED),
        (T.TimestampNTZType(), ()),
    ],
)
@each("deep", [False, True])
def test_types_that_would_come_back_as_something_else_are_refused(
    kind: T.DataType, refusing: tuple[dict[str, str], ...], deep: bool
) -> None:
    field = T.ArrayType(T.StructType([T.StructField("x", kind)])) if deep else kind
    for pack in BOTH:
        options = SinkOptions.parse({"url": "nats://none", "topic": "t", **pack})
        schema = T.StructType([T.StructField("col", field), T.StructField("n", T.LongType())])
        if pack not in refusing:
            assert "col" in {*plan_columns(schema, options).json, *plan_columns(schema, options).typed}
        else:
            with pytest.raises(SchemaError):
                plan_columns(schema, options)


def test_the_refusal_says_which_field_and_what_to_do() -> None:
    shown = T.StructType([T.StructField("a", T.ArrayType(T.StructType([T.StructField("v", T.VariantType())])))])
    options = SinkOptions.parse({"url": "nats://none", "topic": "t", "pack": "arrow"})
    with pytest.raises(SchemaError, match=r"column 'a\[\]\.v' of type variant .* cast it: to_json\(v\)"):
        plan_columns(shown, options)
