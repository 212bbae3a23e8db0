"""Records of a log become rows of ``mamasub`` without leaving their columns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from mama_spark.errors import SchemaError
from mama_spark.log import Records
from mama_spark.message import HEADERS_TYPE
from mama_spark.spark.messages import ARROW, SCHEMA, check_schema, rows
from pyspark.sql.types import LongType, StructField, StructType

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
        "timestamp": pa.scalar(2_000_000, pa.timestamp("us", "UTC")).as_py(),
        "id": None,
    }


@pytest.mark.parametrize("offset", [0, 2])
@pytest.mark.parametrize(
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
    ids=["ids alone", "no ids", "mixed", "twice", "no value"],
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
    batch = rows(records(1, [[("a", ["b"]), ("Nats-Msg-Id", ["1"])]]), "S", include_headers=False)
    assert batch.column("headers").to_pylist() == [None]
    assert batch.column("id").to_pylist() == ["1"]


def test_other_columns_than_the_formats_are_refused() -> None:
    check_schema(SCHEMA)
    with pytest.raises(SchemaError, match=r"topic string, value binary, .* Given: n bigint"):
        check_schema(StructType([StructField("n", LongType())]))
