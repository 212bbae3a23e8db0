"""What each column of the DataFrame is for is decided on the driver, and a misfit is named."""

from __future__ import annotations

import pytest
from mama_spark.contracts.errors import SchemaError
from mama_spark.options import SinkOptions
from mama_spark.spark.sink.encoding.columns import plan_columns
from mama_spark.spark.sink.job import ColumnPlan
from pyspark.sql.types import StructType

pytestmark = pytest.mark.usefixtures("spark")  # parsing the schemas needs a session


def plan(ddl: str, **options: str) -> ColumnPlan:
    schema = StructType.fromDDL(ddl) if ddl else StructType([])
    assert isinstance(schema, StructType)
    return plan_columns(schema, SinkOptions.parse(options))


def test_topic_and_value_are_enough() -> None:
    p = plan("topic STRING, value BINARY")
    assert (p.topic, p.value, p.json, p.headers, p.id) == ("topic", "value", (), None, None)


def test_without_value_the_remaining_columns_become_json() -> None:
    p = plan("Topic STRING, a INT, b STRUCT<c: ARRAY<DECIMAL(9,2)>>, id STRING")
    assert (p.topic, p.json, p.id) == ("Topic", ("a", "b", "id"), None)


def test_root_source_and_symbol_make_the_topic() -> None:
    p = plan("symbol STRING, value STRING, source STRING, root STRING")
    assert p.parts == (("root", "root"), ("source", "source"), ("symbol", "symbol"))


def test_source_is_an_ordinary_column_where_a_topic_is_given() -> None:
    assert plan("topic STRING, source INT").json == ("source",)


@pytest.mark.parametrize(
    ("headers", "form"),
    [
        ("MAP<STRING, STRING>", "map"),
        ("MAP<STRING, ARRAY<STRING>>", "multimap"),
        ("ARRAY<STRUCT<key: STRING, value: BINARY>>", "kafka"),
    ],
)
def test_headers_have_three_forms(headers: str, form: str) -> None:
    assert plan(f"topic STRING, value STRING, headers {headers}").headers_form == form


@pytest.mark.parametrize(
    ("ddl", "options", "said"),
    [
        ("", {}, "no columns"),
        ("value STRING", {}, "no column 'topic'"),
        ("topics STRING, value STRING", {}, "is it 'topics'?"),
        ("topic INT, value STRING", {}, "column 'topic' must be string, it is int; cast it"),
        ("topic STRING, value INT", {}, "column 'value' must be binary or string, it is int"),
        ("topic STRING, value STRUCT<a: INT>", {}, 'make it JSON: to_json("value")'),
        ("topic STRING, value ARRAY<INT>", {}, 'make it JSON: to_json("value")'),
        ("topic STRING, value STRING, headers STRING", {}, "column 'headers' must be map"),
        ("topic STRING, value STRING, id STRING", {}, "column 'id' is used by no rule; is it the message id?"),
        ("topic STRING, value STRING, valu STRING", {}, "did you mean 'value'"),
        ("topic STRING, value STRING, x INT, y INT", {}, "also: 'y'"),
        ("topic STRING", {}, "nothing to publish"),
        ("topic STRING, Topic STRING, value STRING", {}, "two columns"),
        ("topic STRING, value STRING", {"topic": "a"}, "both option topic and a column"),
        ("topic STRING, a INTERVAL YEAR TO MONTH", {}, "has no JSON form"),
        ("topic STRING, a MAP<INT, INT>", {}, "string keys"),
        ("topic STRING, a STRUCT<b: ARRAY<INTERVAL DAY>>", {}, "a.b[]"),
        ("topic STRING, value STRING, stream STRING", {}, "option stream"),
        ("topic STRING, value STRING", {"flightLog": "x", "flightLogColumns": "valu"}, "did you mean 'value'"),
    ],
)
def test_misfits_are_named(ddl: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(SchemaError) as e:
        plan(ddl, **options)
    assert said in str(e.value)


def test_a_row_says_its_stream_where_the_bridge_lets_it() -> None:
    p = plan("topic STRING, a INT, Stream STRING", url="mlp://h")
    assert (p.stream, p.json) == ("Stream", ("a",))
    assert plan("topic STRING, value STRING", url="mlp://h/prices").stream is None
    with pytest.raises(SchemaError, match="column 'stream' must be string, it is int; cast it"):
        plan("topic STRING, value STRING, stream INT", url="mlp://h")


def test_unused_columns_can_be_ignored_or_logged() -> None:
    assert plan("topic STRING, value STRING, x INT", ignoreUnknownColumns="true").value == "value"
    assert plan("topic STRING, value STRING, x INT", flightLog="l", flightLogColumns="X").log == ("x",)
