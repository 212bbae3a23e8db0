"""Times in options: one rule for all that take one."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from mama_spark.contracts.errors import OptionError
from mama_spark.options import SubscribeOptions
from mama_spark.options.declare import declarations
from mama_spark.options.document import markdown
from mama_spark.options.times import TIMES

from tests.support.tables import each

TAKE_TIMES = ("startingOffsets", "startingTimestamp", "endingOffsets", "endingTimestamp")
WANTED = "must be now, milliseconds since the epoch, or a time like"


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This machine is not in UTC."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "Asia/Tokyo")
        time.tzset()
        yield
    time.tzset()


def parsed(option: str, value: str) -> object:
    o = SubscribeOptions.parse({"topics": "a", option: value})
    return o.starting_time if option.startswith("starting") else o.ending_time


@each("option", TAKE_TIMES)
@each(
    "text, micros",
    [
        ("1700000000123", 1_700_000_000_123_000),
        ("2023-11-14T22:13:20.000123Z", 1_700_000_000_000_123),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000_000),
        ("2023-11-14 22:13:20", 1_700_000_000_000_000),  # UTC
        ("2023-11-14", 1_699_920_000_000_000),
        ("now", "now"),
    ],
)
def test_times_are_milliseconds_or_iso_in_utc_unless_they_say_otherwise(option: str, text: str, micros: object) -> None:
    assert parsed(option, text) == micros


@each("option", TAKE_TIMES)
@each(
    "text, told",
    [
        ("1769860800", "in seconds it is 2026-01-31T12:00:00Z: write that, or 1769860800000, got '1769860800'"),
        ("1769860800000000", "in microseconds it is 2026-01-31T12:00:00Z: write that, or 1769860800000"),
        ("1769860800000000001", "in nanoseconds it is 2026-01-31T12:00:00Z: write that, or 1769860800000"),
        ("9" * 30, WANTED),
        ("2026-13-01", WANTED),
    ],
)
def test_a_number_of_another_unit_is_refused_with_what_was_meant(option: str, text: str, told: str) -> None:
    with pytest.raises(OptionError, match=f"^option {option} ") as e:
        parsed(option, text)
    assert told in str(e.value)


def test_where_only_times_stand_short_numbers_are_none() -> None:
    for short in ("17", "20260131"):
        with pytest.raises(OptionError, match=WANTED):
            parsed("startingTimestamp", short)
    assert parsed("startingTimestamp", "0") == 0


def test_the_rule_is_on_the_page_of_options_and_in_the_text_of_each() -> None:
    assert TIMES in markdown()
    texts = [declared.doc for _, declared in declarations(SubscribeOptions) if "time" in declared.kind]
    assert len(texts) == len(TAKE_TIMES)
    assert all("UTC by default" in text for text in texts)
