"""Rows of a Tango archive beside those that are kept: by the rule of an event source's change and archive events."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import numpy as np
from mama_spark.tango.archive import Reading, Strategy, reading
from mama_spark.tango.rows import VALUES
from mama_spark.tango.source.attribute_readings import ReadingFactory
from mama_spark.tango.source.attribute_state import ChangeFilter
from mama_spark.tango.source.device import Attribute, Criteria
from mama_spark.tango.types import DataType

from tests.support.tables import each

COLUMNS = {DataType.DOUBLE: "double", DataType.ULONG64: "ulong", DataType.BOOLEAN: "bool"}  #: others are in ``long``


def archived(data_type: DataType, value: Any) -> Reading:
    """As Spark keeps it between batches."""
    column = f"value_{COLUMNS.get(data_type, 'long')}"
    elements = np.array([Decimal(value) if data_type is DataType.ULONG64 else value])
    row = {
        "data_time": 0,
        "quality": "VALID",
        "data_type": data_type.name,
        **{f"value_{name}": None for name in VALUES},
    }
    return Reading(*json.loads(json.dumps(reading({**row, column: elements}))))


@each(
    ("data_type", "limits", "last", "now", "changed"),
    [
        (DataType.DOUBLE, {"abs_change": 0.5}, 1.0, 1.4, False),
        (DataType.DOUBLE, {"rel_change": 10}, 100.0, 110.0, True),
        (DataType.LONG64, {"abs_change": 1}, 2**62, 2**62 + 1, True),
        (DataType.LONG64, {"abs_change": 2}, -(2**63), 1 - 2**63, False),
        (DataType.LONG64, {"abs_change": 2}, -(2**63), 2**63 - 1, True),
        (DataType.LONG64, {}, 2**53, 2**53 + 1, True),
        (DataType.LONG64, {"rel_change": 1}, 2**53, 2**53 + 1, False),
        (DataType.ULONG64, {"abs_change": 1}, 2**64 - 2, 2**64 - 1, True),
        (DataType.ULONG64, {"abs_change": 2}, 2**64 - 2, 2**64 - 1, False),
        (DataType.LONG, {"abs_change": 2}, 0, 1, False),
        (DataType.BOOLEAN, {"abs_change": 2}, False, True, True),  # no numbers
        (DataType.ENUM, {"abs_change": 2}, 0, 1, True),
        (DataType.ENUM, {"abs_change": 2}, 1, 1, False),
    ],
)
def test_source_and_archive_agree_which_values_have_changed(
    data_type: DataType, limits: dict[str, Any], last: Any, now: Any, changed: bool
) -> None:
    attribute = Attribute("a", data_type)
    make = ReadingFactory(attribute).make
    source = ChangeFilter(attribute, Criteria(**limits))
    source.was_sent(make(last, 0), 0.0)
    assert source.accepts(make(now, 0), 0.0) is changed
    assert Strategy(**limits).keeps(archived(data_type, last), archived(data_type, now)) is changed


def test_a_series_whose_type_changes_goes_on() -> None:
    strategy = Strategy(abs_change=0.5)
    assert not strategy.keeps(archived(DataType.LONG, 1), archived(DataType.DOUBLE, 1.4))
    assert strategy.keeps(archived(DataType.DOUBLE, 1.4), archived(DataType.LONG64, 2**62))
