"""Which readings an archive keeps: by the rule of an event source's change and archive events."""

from __future__ import annotations

import json
from decimal import Decimal
from math import nan
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import ConfigError
from mama_spark.tango.archive import Reading, Strategy, parse_strategies, reading, strategy_of, text_of
from mama_spark.tango.rows import VALUES
from mama_spark.tango.source.attribute_readings import ReadingFactory
from mama_spark.tango.source.attribute_state import ChangeFilter
from mama_spark.tango.source.device import Attribute, Criteria
from mama_spark.tango.types import DataType

from tests.support.tables import each

SECOND = 10**9
COLUMNS = {DataType.DOUBLE: "double", DataType.ULONG64: "ulong", DataType.BOOLEAN: "bool"}  #: others are in ``long``


def at(seconds: float, *numbers: float, quality: str | None = "VALID", text: str = "") -> Reading:
    return Reading(int(seconds * SECOND), quality, numbers, text)


@each(
    ("strategy", "last", "now", "kept"),
    [
        ({}, None, at(0, 1.0), True),
        ({}, at(0, 1.0), at(1, 1.0), False),
        ({}, at(0, 1.0), at(1, 1.1), True),
        ({"absChange": 0.5}, at(0, 1.0), at(1, 1.5), True),
        ({"relChange": 10}, at(0, 100.0), at(1, 109.9), False),
        ({"absChange": 0.5}, at(0, nan), at(1, nan), False),
        ({"absChange": 0.5}, at(0, 1.0, 2.0), at(1, 1.0, 2.6), True),  # one element
        ({"absChange": 0.5}, at(0, 1.0, 2.0), at(1, 1.1, 2.1), False),
        ({"absChange": 0.5}, at(0, 1.0, 2.0), at(1, 1.0), True),  # its size
        ({"absChange": 0.5}, at(0, 1.0), at(1, 1.0, quality="ALARM"), True),
        ({"absChange": 0.5}, at(0, quality=None), at(1, 1.0), True),  # after an error
        ({"absChange": 0.5}, at(0, quality=None), at(1, quality=None), False),
        ({"absChange": 0.5}, at(0, text=text_of(["a"])), at(1, text=text_of(["b"])), True),
        ({"absChange": 0.5}, at(0, text=text_of(["a"])), at(1, text=text_of(["a"])), False),
        ({"period": "10s"}, at(0, 1.0), at(9, 2.0), False),
        ({"period": "10s"}, at(0, 1.0), at(10, 2.0), True),
        ({"period": "10s"}, at(0, 1.0), at(1, 2.0, quality="ALARM"), True),
        ({"every": "1h", "absChange": 1}, at(0, 1.0), at(3599, 1.0), False),
        ({"every": "1h", "absChange": 1}, at(0, 1.0), at(3600, 1.0), True),
        ({"every": "1h", "period": "2h"}, at(0, 1.0), at(3600, 1.0), True),
    ],
)
def test_what_is_kept(strategy: dict[str, Any], last: Reading | None, now: Reading, kept: bool) -> None:
    table = {f"a/b/c/d.{key}": value for key, value in strategy.items()}
    found = strategy_of(parse_strategies(table), "a/b/c/d") or Strategy()
    assert found.keeps(last, now) is kept


@given(
    st.lists(st.tuples(st.floats(0, 100), st.sampled_from(["VALID", "ALARM"])), max_size=50),
    st.floats(0.1, 50),
    st.integers(0, 50),
)
def test_no_reading_is_further_from_the_last_one_kept_than_the_strategy_allows(
    values: list[tuple[float, str]], step: float, cut: int
) -> None:
    """And it does not matter how the readings come in batches."""
    readings = [at(number, value, quality=quality) for number, (value, quality) in enumerate(values)]
    strategy = Strategy(abs_change=step, every=20.0)
    kept, _ = strategy.select(None, readings)
    first, last = strategy.select(None, readings[:cut])
    assert first + strategy.select(last, readings[cut:])[0] == kept
    newest: Reading | None = None
    for keep, now in zip(kept, readings, strict=True):
        newest = now if keep else newest
        assert newest is not None
        assert abs(newest.numbers[0] - now.numbers[0]) < step or newest is now
        assert newest.quality == now.quality
        assert now.time - newest.time < 20 * SECOND


def test_the_first_pattern_that_matches_decides() -> None:
    found = parse_strategies(
        {"LAB/*/*/temp?.absChange": 1, "LAB/*/*/temp?.every": "1h", "lab/*/*/*.period": "1m", "x/y/z/a.b.relChange": 2}
    )
    assert strategy_of(found, "lab/cell/1/Temp1") == Strategy(abs_change=1.0, every=3600.0)
    assert strategy_of(found, "lab/cell/1/other") == Strategy(period=60.0)
    assert strategy_of(found, "x/y/z/a.b") == Strategy(rel_change=2.0)
    assert strategy_of(found, "sys/tg_test/1/double") is None


@each(
    ("name", "value", "word"),
    [
        ("lab/*.period", "1s", "domain/family"),
        ("a/b/c/d.preiod", "1s", "period"),
        ("a/b/c/d.period", "soon", "period"),
        ("a/b/c/d.absChange", -1, "absChange"),
        ("a/b/c/d.relChange", "nan", "relChange"),
    ],
)
def test_wrong_strategies_are_named(name: str, value: Any, word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        parse_strategies({name: value})


def archived(data_type: DataType, value: Any) -> Reading:
    """As Spark keeps it between batches."""
    column = f"value_{COLUMNS.get(data_type, 'long')}"
    elements = np.array([Decimal(value) if data_type is DataType.ULONG64 else value])
    nothing = {f"value_{name}": None for name in VALUES}
    row = {"data_time": 0, "quality": "VALID", "data_type": data_type.name, **nothing}
    return Reading(*json.loads(json.dumps(reading({**row, column: elements}))))


@each(
    ("data_type", "limits", "last", "now", "changed"),
    [
        (DataType.DOUBLE, {"abs_change": 0.5}, 1.0, 1.4, False),
        (DataType.DOUBLE, {"rel_change": 10}, 100.0, 110.0, True),
        (DataType.LONG64, {"abs_change": 1}, 2**62, 2**62 + 1, True),
        (DataType.LONG64, {"abs_change": 2}, -(2**63), 2**63 - 1, True),
        (DataType.LONG64, {}, 2**53, 2**53 + 1, True),
        (DataType.LONG64, {"rel_change": 1}, 2**53, 2**53 + 1, False),
        (DataType.ULONG64, {"abs_change": 1}, 2**64 - 2, 2**64 - 1, True),
        (DataType.BOOLEAN, {"abs_change": 2}, False, True, True),  # no numbers
        (DataType.ENUM, {"abs_change": 2}, 0, 1, True),
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
