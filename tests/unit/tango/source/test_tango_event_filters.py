"""Event criteria: which values an event source sends as events (TG-06)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.tango.giop.cdr import CdrError
from mama_spark.tango.source.attribute_readings import AttributeReading, ReadingFactory
from mama_spark.tango.source.attribute_state import AlarmFilter, ChangeFilter
from mama_spark.tango.source.device import Attribute, Criteria, Device
from mama_spark.tango.types import DataType, DevError, DevState, Dim, Encoded, Format, Quality, Severity, ValueKind

from tests.support.tables import each

NAN, INF = math.nan, math.inf
IMAGE, SPECTRUM = Format.IMAGE, Format.SPECTRUM
BROKEN, WORSE = DevError("Broken", Severity.ERR, "d", "o"), DevError("Worse", Severity.ERR, "d", "o")
ALARM, NONE = (1.0, Quality.ALARM), (None, Quality.INVALID)
Told = Any  # a value, or (value, quality), or an error


def reading(attribute: Attribute, value_set: Told) -> AttributeReading:
    if isinstance(value_set, DevError):
        return AttributeReading.failed([value_set], 0)
    marked = isinstance(value_set, tuple) and isinstance(value_set[-1], Quality)
    value, quality = value_set if marked else (value_set, Quality.VALID)
    return ReadingFactory(attribute).make(value, 0, quality)


def sent(attribute: Attribute, criteria: Criteria, value_set: list[Told]) -> list[bool]:
    """Which of these values are sent, each compared with the last sent one."""
    filter_, found = ChangeFilter(attribute, criteria), []
    for one in value_set:
        given = reading(attribute, one)
        found.append(filter_.accepts(given, 0.0))
        if found[-1]:
            filter_.was_sent(given, 0.0)
    return found


ABS, REL = Criteria(abs_change=0.5), Criteria(rel_change=10)
YES, NO = True, False


@each(
    ("criteria", "value_set", "expected"),
    [
        pytest.param(ABS, [0.0, 0.2, 0.4, 0.5, 0.9, 1.0], [YES, NO, NO, YES, NO, YES], id="abs is from the last sent"),
        pytest.param(REL, [100.0, 105.0, 110.0, 120.9, 121.1], [YES, NO, YES, NO, YES], id="rel is of the last sent"),
        pytest.param(REL, [-100.0, -105.0, -110.0], [YES, NO, YES], id="rel of a negative value"),
        pytest.param(REL, [0.0, 0.0, 1e-9, 1e-9], [YES, NO, YES, NO], id="rel from 0 is any change"),
        pytest.param(REL, [1.0, 0.0], [YES, YES], id="rel to 0"),
        pytest.param(Criteria(abs_change=50, rel_change=10), [100.0, 111.0], [YES, YES], id="either is enough: rel"),
        pytest.param(Criteria(abs_change=5, rel_change=50), [100.0, 105.0], [YES, YES], id="either is enough: abs"),
        pytest.param(Criteria(abs_change=(-1, 10)), [0.0, 9.0, -1.0, 9.0], [YES, NO, YES, YES], id="two thresholds"),
        pytest.param(ABS, [1.0, NAN, NAN, 1.0], [YES, YES, NO, YES], id="NaN with abs"),
        pytest.param(Criteria(), [NAN, NAN, 1.0], [YES, NO, YES], id="NaN without thresholds"),
        pytest.param(ABS, [1.0, INF, INF, -INF], [YES, YES, NO, YES], id="infinities"),
        pytest.param(REL, [1.0, INF, INF, -INF], [YES, YES, NO, YES], id="infinities with rel"),
        pytest.param(Criteria(), [1.0, 1.0, 1.0000001], [YES, NO, YES], id="without thresholds any difference"),
        pytest.param(ABS, [1.0, ALARM, ALARM, 1.0], [YES, YES, NO, YES], id="quality"),
        pytest.param(ABS, [1.0, NONE, NONE, 1.0], [YES, YES, NO, YES], id="INVALID"),
        pytest.param(ABS, [1.0, BROKEN, BROKEN, WORSE, 1.0, 1.0], [YES, YES, NO, YES, YES, NO], id="exception once"),
        pytest.param(ABS, [BROKEN, NONE, BROKEN], [YES, YES, YES], id="errors and INVALID differ"),
    ],
)
def test_each_row_of_the_table_for_a_double(criteria: Criteria, value_set: list[Told], expected: list[bool]) -> None:
    assert sent(Attribute("a"), criteria, value_set) == expected


@each(
    ("data_type", "format_", "criteria", "value_set", "expected"),
    [
        (DataType.FLOAT, Format.SCALAR, ABS, [1.0, NAN, NAN, 1.0, 1.4, 1.5], [YES, YES, NO, YES, NO, YES]),
        (DataType.LONG, Format.SCALAR, Criteria(abs_change=2), [0, 1, 2], [YES, NO, YES]),
        (DataType.UCHAR, Format.SCALAR, Criteria(abs_change=2), [5, 4, 3], [YES, NO, YES]),
        (DataType.LONG64, Format.SCALAR, Criteria(abs_change=1), [2**62, 2**62, 2**62 + 1], [YES, NO, YES]),
        (DataType.ULONG64, Format.SCALAR, Criteria(abs_change=1), [2**64 - 2, 2**64 - 1, 0], [YES, YES, YES]),
        (DataType.BOOLEAN, Format.SCALAR, Criteria(abs_change=2), [True, True, False], [YES, NO, YES]),
        (DataType.ENUM, Format.SCALAR, Criteria(abs_change=2), [0, 1, 1], [YES, YES, NO]),
        (DataType.STRING, Format.SCALAR, Criteria(abs_change=2), ["a", "a", "b"], [YES, NO, YES]),
        (DataType.STATE, Format.SCALAR, Criteria(), [DevState.ON, DevState.ON, DevState.OFF], [YES, NO, YES]),
        (DataType.ENCODED, Format.SCALAR, Criteria(), [b"1", b"1", Encoded("f", b"1")], [YES, NO, YES]),
        (DataType.DOUBLE, SPECTRUM, ABS, [[1, 2], [1, 2.4], [1, 2.5], [1], [1, 2]], [YES, NO, YES, YES, YES]),
        (DataType.DOUBLE, SPECTRUM, ABS, [[1.0, NAN], [1.0, NAN], [NAN, 1.0]], [YES, NO, YES]),
        (DataType.DOUBLE, IMAGE, ABS, [[[1, 2], [3, 4]], [[1, 2, 3, 4]], [[1], [2], [3], [4]]], [YES, YES, YES]),
        (DataType.STRING, SPECTRUM, Criteria(), [["a"], ["a"], ["a", "b"], []], [YES, NO, YES, YES]),
    ],
)
def test_other_types_and_shapes(
    data_type: DataType, format_: Format, criteria: Criteria, value_set: list[Told], expected: list[bool]
) -> None:
    assert sent(Attribute("a", data_type, format_), criteria, value_set) == expected


def test_after_the_period_an_unchanged_value_is_sent() -> None:
    attribute = Attribute("a")
    filter_ = ChangeFilter(attribute, Criteria(abs_change=1, period=2000))
    given = reading(attribute, 1.0)
    filter_.was_sent(given, 10.0)
    assert filter_.due == 12.0
    assert [filter_.accepts(given, now) for now in (10.0, 11.9, 12.0)] == [NO, NO, YES]


@each(
    ("value_set", "expected"),
    [
        ([1.0, ALARM, ALARM, 1.0], [NO, YES, NO, YES]),
        ([(1.0, Quality.CHANGING), (1.0, Quality.WARNING), ALARM, (1.0, Quality.CHANGING)], [NO, YES, YES, YES]),
        ([NONE, 1.0, NONE, (1.0, Quality.WARNING)], [NO, NO, NO, YES]),
        ([1.0, BROKEN, BROKEN, 1.0], [NO, YES, NO, YES]),
    ],
)
def test_alarm_events_are_for_transitions_to_and_from_alarms_and_errors(
    value_set: list[Told], expected: list[bool]
) -> None:
    filter_, found, attribute = AlarmFilter(), [], Attribute("a")
    for one in value_set:
        given = reading(attribute, one)
        found.append(filter_.accepts(given))
        filter_.was_seen(given)
    assert found == expected


# --- values and declarations ---------------------------------------------------------------------------------


@each(
    ("data_type", "format_", "value"),
    [
        (DataType.SHORT, Format.SCALAR, 2**15), (DataType.UCHAR, Format.SCALAR, -1),
        (DataType.LONG, Format.SCALAR, 1.5), (DataType.FLOAT, Format.SCALAR, 1e300),
        (DataType.BOOLEAN, Format.SCALAR, 2), (DataType.DOUBLE, Format.SCALAR, "1"),
        (DataType.DOUBLE, Format.SCALAR, None), (DataType.DOUBLE, Format.SCALAR, [1.0]),
        (DataType.DOUBLE, SPECTRUM, 1.0), (DataType.DOUBLE, SPECTRUM, [[1.0]]), (DataType.DOUBLE, IMAGE, [1.0]),
        (DataType.STRING, Format.SCALAR, 1), (DataType.STRING, Format.SCALAR, "\u20ac"),
        (DataType.STRING, Format.SCALAR, "a\0"), (DataType.STRING, IMAGE, [["a"], ["b", "c"]]),
        (DataType.STATE, Format.SCALAR, "ON"), (DataType.ENCODED, Format.SCALAR, "text"),
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_encoded_is_refused_when_it_is_set(
    data_type: DataType, format_: Format, value: Any
) -> None:
    with pytest.raises(CdrError, match=r"^a: "):
        ReadingFactory(Attribute("a", data_type, format_)).make(value, 0)


def test_readings_have_the_dimensions_and_set_parts_of_their_attributes() -> None:
    image = ReadingFactory(Attribute("a", DataType.LONG, IMAGE)).make(np.arange(6).reshape(2, 3), 5)
    assert (image.r_dim, image.w_dim) == (Dim(3, 2), Dim(0, 0))
    assert image.value(Attribute("a", DataType.LONG, IMAGE)).content.tolist() == [0, 1, 2, 3, 4, 5]  # type: ignore[union-attr]
    settable = Attribute("a", DataType.DOUBLE, settable=True)
    value = ReadingFactory(settable).make(2.5, 5, written=1.0).value(settable)
    assert (value.read.tolist(), value.written.tolist(), value.time) == ([2.5], [1.0], 5)  # type: ignore[union-attr]
    assert ReadingFactory(settable).make(2.5, 5).value(settable).written.tolist() == [0.0]  # type: ignore[union-attr]
    text = Attribute("a", DataType.STRING, SPECTRUM, settable=True)
    both = ReadingFactory(text).make(["a", "b"], 5, written=["c"]).value(text)
    assert (both.read, both.written) == (("a", "b"), ("c",))
    empty = ReadingFactory(Attribute("a", DataType.STRING, IMAGE)).make([], 5)
    assert empty.r_dim == Dim(0, 0)
    invalid = ReadingFactory(settable).make(1.0, 5, Quality.INVALID).value(settable)
    assert (invalid.kind, invalid.content, invalid.quality) == (ValueKind.NO_DATA, None, Quality.INVALID)


def test_numbers_of_64_bits_keep_all_their_digits() -> None:
    numbers = [0, 7, 2**64 - 1]
    attribute = Attribute("a", DataType.ULONG64, SPECTRUM)
    assert ReadingFactory(attribute).make(numbers, 0).value(attribute).content.tolist() == numbers  # type: ignore[union-attr]
    for wrong in ([0, 2**64], [-1, 2**64 - 1], [0.5, 2**64 - 1]):
        with pytest.raises(CdrError):
            ReadingFactory(attribute).make(wrong, 0)


def test_later_changes_of_an_array_do_not_change_the_set_value() -> None:
    attribute, array = Attribute("a", DataType.DOUBLE, SPECTRUM), np.array([1.0, 2.0])
    found = ReadingFactory(attribute).make(array, 0)
    array[:] = 9
    assert found.value(attribute).content.tolist() == [1.0, 2.0]  # type: ignore[union-attr]


@each("name", ["", "a b", "a/b", "a#b", "a.b", "ä", "a:b", "a->b", "a*", "a?", "a>", "a\x7f"])
def test_names_that_topics_do_not_allow_are_refused(name: str) -> None:
    with pytest.raises(ConfigError):
        Attribute(name)
    with pytest.raises(ConfigError):
        Device(f"a/b/{name}")


def test_declarations_that_contradict_themselves_are_refused() -> None:
    for wrong in ({"abs_change": 0}, {"rel_change": -1}, {"abs_change": (1, 2)}, {"period": 0}):
        with pytest.raises(ConfigError):
            Criteria(**wrong)
    with pytest.raises(ConfigError, match="DevEncoded"):
        Attribute("a", DataType.ENCODED, SPECTRUM)
    with pytest.raises(ConfigError, match="twice: b"):
        Device("a/b/c", [Attribute("b"), Attribute("B")])
    with pytest.raises(ConfigError, match="state"):
        Device("a/b/c", [Attribute("State")])
    with pytest.raises(ConfigError):
        Device("a/b")


@pytest.mark.spec("TG-13")
def test_clients_get_the_criteria_with_the_configuration() -> None:
    change, archive = Criteria(abs_change=0.5, rel_change=(-5, 10)), Criteria(period=60_000)
    config = Attribute("a", change=change, archive=archive, period=500, unit="V").config()
    assert (config.ch_event.abs_change, config.ch_event.rel_change) == ("0.5", "-5,10")
    assert (config.arch_event.period, config.arch_event.abs_change) == ("60000", "Not specified")
    assert (config.per_event.period, config.unit, config.label) == ("500", "V", "a")
