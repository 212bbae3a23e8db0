"""Durations, sizes and times as users write them."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from typing import Any

import pytest
from mama_spark.options.times import duration, duration_or_none, milliseconds
from mama_spark.options.values import (
    boolean,
    byte_size,
    integer,
    member,
    nonempty_text,
    one_of,
    rate,
    real_number,
    string,
    text,
    texts,
    true_or_false,
)

from tests.support.tables import each


class Policy(Enum):
    KEEP = "keep"


@each(("text", "found"), [("7", 7), ("0", 0), ("1 KiB", 1024), ("64MiB", 64 << 20), ("2 GiB", 2 << 30)])
def test_sizes_are_bytes_or_powers_of_two(text: str, found: int) -> None:
    assert byte_size(text) == found


@each("bad", ["", "1.5 MiB", "1 MB", "-1", "MiB", True])
def test_what_is_no_size_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="bytes"):
        byte_size(bad)


@each(
    ("value", "seconds"),
    [
        ("1", 0.001), ("1ms", 0.001), ("500ms", 0.5), ("1.5s", 1.5), ("30s", 30), ("1m", 60), ("5m", 300), ("1min", 60),
        ("1 H", 3600), ("2h", 7200), ("7d", 604_800), (250, 0.25), (0.5, 0.0005), (timedelta(days=7), 604_800),
    ],
)  # fmt: skip
def test_durations(value: object, seconds: float) -> None:
    assert duration(value) == pytest.approx(seconds)


@each("number", [30, "30", 2.5])
def test_a_number_alone_is_milliseconds_or_refused(number: object) -> None:
    assert duration(number) == pytest.approx(float(str(number)) / 1000)
    with pytest.raises(ValueError, match=r"such as 500ms, 30s, 5m, 2h or 7d \(with its unit\)$"):
        duration.with_unit(number)
    assert duration.with_unit("30s") == 30


@each("bad", ["", "0", "0s", "-1s", "1w", "s", True, None, [], "1e3s", float("nan"), float("inf")])
def test_what_is_no_duration_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="positive duration"):
        duration(bad)


@each("zero", [0, "0", "0s", 0.0, timedelta()])
def test_zero_is_a_duration_where_it_has_a_meaning(zero: object) -> None:
    assert duration_or_none(zero) == duration_or_none.with_unit(zero) == 0
    with pytest.raises(ValueError, match="must be a duration"):
        duration_or_none(-1)


def test_durations_of_protocols_are_whole_milliseconds() -> None:
    assert (milliseconds("1m"), milliseconds("1.5s")) == (60_000, 1_500)
    with pytest.raises(ValueError, match="with its unit"):
        milliseconds(1_500)


@each(
    ("parse", "good", "bad"),
    [
        (text, " x ", " "), (text, "x", 1), (nonempty_text, " x", ""), (nonempty_text, "x", 1), (string, "", 1),
        (real_number, 1.5, "1"), (real_number, 1, True), (true_or_false, False, "false"), (boolean, "on", "maybe"),
        (integer(1, 5), 5, 6), (integer(1, 5), "5", "x"), (integer(1, 5), 1, True), (integer(1, 5), 1, 1.5),
        (integer(1, 5), 1, None), (texts, ["a"], "a"), (texts, [], [1]), (member(Policy), "keep", "lose"),
        (one_of("a", "b"), "A", "c"), (one_of("a", "b"), "b", 1), (rate, "1.5", "0"), (rate, "2", "fast"),
    ],
)  # fmt: skip
def test_values_of_files_and_options_are_checked(parse: Callable[[Any], Any], good: object, bad: object) -> None:
    parse(good)
    with pytest.raises(ValueError, match="must"):
        parse(bad)
