"""Records of a log become rows of ``mamasub`` without leaving their columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.contracts.errors import SchemaError
from mama_spark.contracts.message import HEADERS_TYPE
from mama_spark.contracts.record_log import Records
from mama_spark.options import SubscribeOptions
from mama_spark.spark.subscribe.packed_rows import RowUnpacker
from mama_spark.spark.subscribe.schema import PLAIN_SCHEMA, SCHEMA, message_columns_of, schema_of
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, LongType, StringType, StructField, StructType, TimestampType

from tests.support.tables import each

Headers = list[list[tuple[str, list[str]]] | None]


def records(n: int, headers: Headers | None = None, offset: int = 0) -> Records:
    """``offset``: rows before the first one in the memory of the header column, which a slice leaves out."""
    column = None
    if headers is not None:
        before: Headers = [[("before", ["x", "y"])]] * offset
        column = pa.array([*before, *headers], HEADERS_TYPE).slice(offset)
    topics = pa.array([f"orders.r{i % 2}" for i in range(n)]).dictionary_encode()
    payloads = pa.array([b"%d" % i for i in range(n)], pa.binary())
    return Records(np.arange(11, 11 + n), np.arange(n) * 1_000_000, topics, payloads, column)


def options(**given: str) -> SubscribeOptions:
    return SubscribeOptions.parse({"url": "memory://x", "topics": ">", **given})


ARROW = to_arrow_schema(SCHEMA, timezone="UTC")


def rows(what: Records, stream: str, **given: str) -> pa.RecordBatch:
    o = options(**given)
    (batch,) = RowUnpacker(o, message_columns_of(schema_of(o), o), stream).batches(what)
    return batch


def test_batch_matches_the_schema_exactly() -> None:
    batch = rows(records(3), "ORDERS")
    batch.validate(full=True)
    assert batch.schema.equals(ARROW)
    assert batch.to_pylist()[2] == {
        "topic": "orders.r0",
        "value": b"2",
        "headers": None,
        "stream": "ORDERS",
        "sequence": 13,
        "pack_index": None,
        "timestamp": pa.scalar(2_000_000, pa.timestamp("us", "UTC")).as_py(),
        "id": None,
        "pack_error": None,
    }


def test_without_unpacking_there_are_no_columns_for_it() -> None:
    batch = rows(records(3), "ORDERS", unpack="false")
    assert batch.schema.equals(to_arrow_schema(PLAIN_SCHEMA, timezone="UTC"))
    assert set(SCHEMA.names) - set(batch.schema.names) == {"pack_index", "pack_error"}


@each("offset", [0, 2])
@each(
    ("headers", "ids", "left"),
    [
        ([[("Nats-Msg-Id", ["1"])], [("Nats-Msg-Id", ["2"])]], ["1", "2"], [None, None]),
        ([[("a", ["b", "c"])], None], [None, None], [[("a", ["b", "c"])], None]),
        (
            [[("a", ["b"]), ("Nats-Msg-Id", ["1", "2"]), ("c", [""])], None, [("d", ["e"])]],
            ["1", None, None],
            [[("a", ["b"]), ("c", [""])], None, [("d", ["e"])]],
        ),
        ([[("Nats-Msg-Id", ["1"]), ("Nats-Msg-Id", ["2"])]], ["1"], [None]),
        ([[("Nats-Msg-Id", [])], [("nats-msg-id", ["x"])]], [None, None], [None, [("nats-msg-id", ["x"])]]),
    ],
)
def test_id_stands_in_its_own_column_as_the_sink_takes_it(
    headers: Headers, ids: list[Any], left: list[Any], offset: int
) -> None:
    batch = rows(records(len(headers), headers, offset), "S")
    batch.validate(full=True)
    assert batch.schema.equals(ARROW)
    assert batch.column("id").to_pylist() == ids
    assert batch.column("headers").to_pylist() == left


def test_headers_can_be_left_out_and_ids_stay() -> None:
    batch = rows(records(1, [[("a", ["b"]), ("Nats-Msg-Id", ["1"])]]), "S", includeHeaders="false")
    assert batch.column("headers").to_pylist() == [None]
    assert batch.column("id").to_pylist() == ["1"]


@each(
    ("field", "given", "reason"),
    [
        (StructField("timestamp", LongType()), {}, "column 'timestamp' of mamasub is timestamp, not bigint"),
        (StructField("n", LongType()), {"unpack": "false"}, "no column 'n' here"),
        (StructField("pack_index", LongType()), {"unpack": "false"}, "no column 'pack_index' here"),
        (StructField("n", LongType()), {"tango": "true"}, "no column 'n' here"),
        (StructField("n", LongType(), nullable=False), {}, "column 'n': nulls must be allowed"),
        (StructField("sequence", LongType(), nullable=False), {}, "column 'sequence': nulls must be allowed"),
        (StructField("n", ArrayType(LongType(), containsNull=False)), {}, "column 'n': nulls must be allowed"),
        (StructField("topic", StringType()), {}, "two columns 'topic'"),
    ],
)
def test_schemas_that_cannot_be_are_refused(field: StructField, given: dict[str, str], reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        message_columns_of(StructType([StructField("topic", StringType()), field]), options(**given))


def test_any_choice_of_columns_in_any_order_will_do() -> None:
    given = StructType([StructField("n", LongType()), StructField("timestamp", TimestampType())])
    shape = message_columns_of(given, options())
    assert shape.typed.names == ["n"]
    o = options(mode="permissive")
    (batch,) = RowUnpacker(o, message_columns_of(given, o), "S").batches(records(2))
    assert batch.schema.equals(to_arrow_schema(given, timezone="UTC"))
    assert batch.column("n").null_count == 2
