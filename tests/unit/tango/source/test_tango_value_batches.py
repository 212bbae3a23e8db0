"""Tables of values to push: groups, and invalid tables."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.tango.source.value_batches import ValueGroup, group_values
from mama_spark.tango.types import EventType, Quality

from tests.support.tables import each

COLUMNS: dict[str, Any] = {
    "device": ["a/b/c", "a/b/c", "a/b/d"],
    "attribute": ["x", "y", "x"],
    "value": [1.0, 2.0, 3.0],
}


def groups(**columns: Any) -> list[ValueGroup]:
    return list(group_values({**COLUMNS, **columns}, EventType.CHANGE, 7))


def test_rows_are_grouped_in_the_order_of_their_first_row() -> None:
    found = groups(attribute=["y", "x", "y"], device=["a/b/c", "a/b/d", "a/b/c"])
    assert [(group.device, group.attribute, list(group.values)) for group in found] == [
        ("a/b/c", "y", [1.0, 3.0]), ("a/b/d", "x", [2.0]),
    ]  # fmt: skip
    assert all(list(group.times) == [7] * len(group.values) for group in found)


def test_tables_and_record_batches_are_taken_as_mappings_are() -> None:
    table = pa.table(COLUMNS)
    for columns in (table, table.to_batches()[0]):
        found = list(group_values(columns, EventType.ARCHIVE, 7))
        assert [group.event for group in found] == [EventType.ARCHIVE] * 3


def test_qualities_are_names_or_numbers_and_times_fall_back_to_now() -> None:
    found = groups(attribute=["x"] * 3, device=["a/b/c"] * 3, quality=["alarm", None, "VALID"], time=[5, None, 6])
    assert found[0].qualities == [Quality.ALARM, Quality.VALID, Quality.VALID]
    assert found[0].times == [5, 7, 6]
    assert groups(quality=[0, 1, 2])[1].qualities == [Quality.INVALID]
    stamps = pa.array([1, 2, None], pa.timestamp("us", "UTC"))
    assert [group.times for group in groups(time=stamps)] == [[1000], [2000], [7]]


@each(
    ("columns", "text"),
    [
        ({"speed": [1, 2, 3]}, "speed"),
        ({"device": [None, "a/b/c", "a/b/d"]}, "column device contains null"),
        ({"event": ["change", "nothing", "user_event"]}, "unknown Tango event type in column event: 'nothing'"),
        ({"quality": ["good", "bad", "ugly"]}, "column quality"),
        ({"quality": [0, 5, 1]}, "column quality"),
        ({"quality": [1.5, 0.5, 2.5]}, "column quality"),
        ({"time": [1.5, 2.5, 3.5]}, "column time"),
    ],
)
def test_columns_that_cannot_be_pushed_are_named(columns: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        groups(**columns)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(ConfigError, match=r"\['value'\] missing"):
        list(group_values({"device": ["a/b/c"], "attribute": ["x"]}, EventType.CHANGE, 7))


def test_a_table_is_grouped_by_attribute_and_event_type() -> None:
    table = pa.table(
        {
            "device": ["a/b/c", "a/b/d", "a/b/c", "a/b/c"],
            "attribute": ["x", "x", "x", "x"],
            "value": [1.0, 2.0, 3.0, 4.0],
            "quality": ["VALID", None, "warning", "ALARM"],
            "time": pa.array([1, 2, None, 4], pa.timestamp("us")),
            "event": ["change", "change", "change", "archive"],
        }
    )
    found = list(group_values(table, EventType.USER, 99))
    assert [(g.device, g.event, list(g.values), list(g.times), list(g.qualities)) for g in found] == [
        ("a/b/c", EventType.CHANGE, [1.0, 3.0], [1000, 99], [Quality.VALID, Quality.WARNING]),
        ("a/b/d", EventType.CHANGE, [2.0], [2000], [Quality.VALID]),
        ("a/b/c", EventType.ARCHIVE, [4.0], [4000], [Quality.ALARM]),
    ]
    assert list(group_values(table.slice(0, 0), EventType.USER, 99)) == []


@each(
    "columns",
    [
        {"device": ["a/b/c"], "attribute": ["x"]},
        {"device": ["a/b/c"], "attribute": ["x"], "value": [1], "valeu": [1]},
        {"device": [None], "attribute": ["x"], "value": [1]},
        {"device": ["a/b/c"], "attribute": ["x"], "value": [1], "quality": ["GOOD"]},
        {"device": ["a/b/c"], "attribute": ["x"], "value": [1], "quality": [7]},
        {"device": ["a/b/c"], "attribute": ["x"], "value": [1], "event": ["changed"]},
        {"device": ["a/b/c"], "attribute": ["x"], "value": [1], "time": ["now"]},
    ],
)
def test_invalid_tables_are_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        list(group_values(columns, EventType.CHANGE, 0))
