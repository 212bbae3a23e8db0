"""Typed rows are read in the columns that are asked for, by name, and never with a loss."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from mama_spark.packing.schema_cast import SchemaCast, is_castable

from tests.support.tables import each

UTC, NAIVE = pa.timestamp("us", "UTC"), pa.timestamp("us")


def test_columns_come_by_name_without_those_that_are_missing_or_not_wanted() -> None:
    wanted = pa.schema([("b", pa.int64()), ("none", pa.list_(pa.string())), ("a", pa.string())])
    fit = SchemaCast(wanted)
    found = fit(pa.record_batch({"a": ["x", None], "b": pa.array([1, 2], pa.int32()), "c": [0.5, 1.5]}))
    assert found.schema.equals(pa.schema([wanted.field("b"), wanted.field("a")]))
    assert found.to_pydict() == {"b": [1, 2], "a": ["x", None]}
    assert fit.misspelled == {}


def test_case_does_not_count_unless_it_tells_columns_apart() -> None:
    fit = SchemaCast(pa.schema([("Price", pa.float64())]))
    assert fit(pa.record_batch({"price": [1.5]})).to_pydict() == {"Price": [1.5]}
    assert fit(pa.record_batch({"price": [1.5], "Price": [2.5]})).to_pydict() == {"Price": [2.5]}
    with pytest.raises(ValueError, match="several columns 'Price', which differ in case only"):
        fit(pa.record_batch({"price": [1.5], "PRICE": [2.5]}))


def test_packs_without_any_of_the_columns_are_refused_with_both_schemas_and_the_nearest_name() -> None:
    fit = SchemaCast(pa.schema([("temprature", pa.float64()), ("n", pa.int64())]))
    with pytest.raises(ValueError, match="none of the wanted columns") as refused:
        fit(pa.record_batch({"temperature": [20.5], "at": [1]}))
    text = str(refused.value)
    assert "'temprature': did you mean 'temperature'?" in text
    assert "the message has (temperature double, at int64), .schema() has (temprature double, n int64)" in text
    assert fit(pa.record_batch({"temperature": [20.5], "n": [1]})).to_pydict() == {"n": [1]}
    assert fit.misspelled == {"temprature": "did you mean 'temperature'?"}


def test_fields_of_structs_come_by_name_too() -> None:
    kind = pa.struct([("new", pa.string()), ("q", pa.int64())])
    fit = SchemaCast(pa.schema([("s", kind), ("l", pa.list_(kind))]))
    given = pa.struct([("q", pa.int32()), ("other", pa.float64())])
    rows = {"s": pa.array([{"q": 1, "other": 0.5}, None], given), "l": pa.array([[{"q": 2}], []], pa.list_(given))}
    assert fit(pa.record_batch(rows)).to_pydict() == {
        "s": [{"new": None, "q": 1}, None],
        "l": [[{"new": None, "q": 2}], []],
    }


def test_case_does_not_count_in_fields_of_structs_either() -> None:
    wanted = pa.struct([("orderid", pa.int64()), ("Q", pa.struct([("at", pa.int64())])), ("none", pa.string())])
    given = pa.struct([("q", pa.struct([("AT", pa.int32())])), ("orderId", pa.int64())])
    put = {"orderId": 7, "q": {"AT": 1}}
    got = {"orderid": 7, "Q": {"at": 1}, "none": None}
    columns: dict[str, tuple[Any, ...]] = {
        "s": (given, wanted, [put, None], [got, None]),
        "l": (pa.list_(given), pa.list_(wanted), [[put, None], None], [[got, None], None]),
        "L": (pa.large_list(given), pa.list_(wanted), [[], [put]], [[], [got]]),
        "m": (pa.map_(pa.string(), given), pa.map_(pa.string(), wanted), [[("k", put)], None], [[("k", got)], None]),
    }
    fit = SchemaCast(pa.schema([(name, kind) for name, (_, kind, _, _) in columns.items()]))
    rows = pa.record_batch({name: pa.array(values, kind) for name, (kind, _, values, _) in columns.items()})
    for start in (0, 1):
        found = fit(rows.slice(start))
        found.validate(full=True)
        assert found.to_pydict() == {name: values[start:] for name, (*_, values) in columns.items()}
    both = pa.struct([("a", pa.int64()), ("A", pa.int32())])
    exact = SchemaCast(pa.schema([("s", pa.struct([("A", pa.int64())]))]))
    assert exact(pa.record_batch({"s": pa.array([{"a": 1, "A": 2}], both)})).to_pydict() == {"s": [{"A": 2}]}
    twice = pa.struct([("qty", pa.int64()), ("QTY", pa.int64())])
    with pytest.raises(ValueError, match="column 's' is struct<qty: int64, QTY: int64>, struct<Qty: int64> is wanted"):
        SchemaCast(pa.schema([("s", pa.struct([("Qty", pa.int64())]))]))(pa.record_batch({"s": pa.nulls(1, twice)}))


@each(
    ("values", "given", "wanted"),
    [
        ([1, None], pa.int8(), pa.int64()),
        ([1, 2], pa.int64(), pa.int16()),
        ([1, 2], pa.int32(), pa.float64()),
        ([1.5], pa.float32(), pa.float64()),
        ([7], pa.int64(), pa.decimal128(25, 2)),
        (["a", None], pa.large_string(), pa.string()),
        ([b"a"], pa.large_binary(), pa.binary()),
        ([5_000], pa.timestamp("ns", "Europe/Paris"), UTC),
        ([86_400_000], pa.date64(), pa.date32()),
        ([1], pa.date32(), NAIVE),
        ([[1, None], None], pa.large_list(pa.int32()), pa.list_(pa.int64())),
        ([[("k", 1)], None], pa.map_(pa.string(), pa.int32()), pa.map_(pa.string(), pa.int64())),
        ([{"q": 1}, None], pa.struct([("q", pa.int32())]), pa.struct([("q", pa.int64())])),
    ],
)
def test_values_keep_what_they_are_in_other_widths_and_units(
    values: Any, given: pa.DataType, wanted: pa.DataType
) -> None:
    column = pa.array(values, given)
    found = SchemaCast(pa.schema([("x", wanted)]))(pa.record_batch({"x": column})).column("x")
    assert found.type == wanted
    found.validate(full=True)
    assert found.null_count == column.null_count
    if not pa.types.is_temporal(given):
        assert found.to_pylist() == values


@each(
    ("given", "wanted"),
    [
        (pa.int64(), pa.string()),
        (pa.string(), pa.binary()),
        (pa.float64(), pa.int64()),
        (pa.float64(), pa.float32()),
        (pa.bool_(), pa.int32()),
        (UTC, NAIVE),
        (NAIVE, UTC),
        (pa.date32(), UTC),
        (pa.list_(pa.string()), pa.list_(pa.int64())),
        (pa.struct([("a", pa.int64())]), pa.struct([("b", pa.int64())])),
        (pa.map_(pa.string(), pa.string()), pa.struct([("a", pa.int64())])),
    ],
)
def test_other_types_are_refused_by_name(given: pa.DataType, wanted: pa.DataType) -> None:
    assert not is_castable(given, wanted)
    with pytest.raises(ValueError, match="column 'x' is"):
        SchemaCast(pa.schema([("x", wanted)]))(pa.record_batch({"x": pa.nulls(1, given)}))


@each(
    ("value", "given", "wanted"),
    [
        (1 << 40, pa.int64(), pa.int32()),
        (-1, pa.int64(), pa.uint8()),
        ((1 << 53) + 1, pa.int64(), pa.float64()),
        (1_001, pa.timestamp("ns", "UTC"), UTC),
        ((1 << 31) - 1, pa.date32(), NAIVE),
    ],
)
def test_a_value_that_does_not_fit_is_refused(value: int, given: pa.DataType, wanted: pa.DataType) -> None:
    column = pa.array([value], given)
    with pytest.raises(ValueError, match="column 'x' as"):
        SchemaCast(pa.schema([("x", wanted)]))(pa.record_batch({"x": column}))
