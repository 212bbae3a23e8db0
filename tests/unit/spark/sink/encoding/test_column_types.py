"""Types that a message cannot carry without a change are refused on the driver, with the path to the field."""

from __future__ import annotations

import pytest
from mama_spark.errors import SchemaError
from mama_spark.options import SinkOptions
from mama_spark.spark.sink.encoding.columns import plan_columns
from pyspark.sql import types as T

from tests.support.tables import each

JSON, PACKED, BOTH = ({"pack": "off"},), ({"pack": "arrow"},), ({"pack": "off"}, {"pack": "arrow"})
EMPTY, TWICE = T.StructType([]), T.StructType([T.StructField("a", T.IntegerType()), T.StructField("a", T.LongType())])


@each(
    ("kind", "refusing"),
    [
        (T.VariantType(), BOTH),
        (T.YearMonthIntervalType(), BOTH),
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
