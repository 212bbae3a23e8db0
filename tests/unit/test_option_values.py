"""Durations, sizes and times as users write them."""

from __future__ import annotations

import pytest
from mama_spark.options.values import byte_size, duration, instant


@pytest.mark.parametrize(
    ("text", "found"),
    [("7", 7), ("0", 0), ("1 KiB", 1024), ("64MiB", 64 << 20), ("2 GiB", 2 << 30)],
)
def test_sizes_are_octets_or_powers_of_two(text: str, found: int) -> None:
    assert byte_size(text) == found


@pytest.mark.parametrize("bad", ["", "1.5 MiB", "1 MB", "-1", "MiB", True])
def test_what_is_no_size_is_refused(bad: object) -> None:
    with pytest.raises(ValueError, match="octets"):
        byte_size(bad)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1", 0.001), ("1ms", 0.001), ("1.5s", 1.5), ("1m", 60), ("1min", 60), ("1 H", 3600), ("1d", 86400)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("bad", ["", "0", "0s", "-1s", "1w", "s"])
def test_what_is_no_duration_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        duration(bad)


@pytest.mark.parametrize(
    ("text", "micros"),
    [
        ("1700000000123", 1_700_000_000_123_000),
        ("2023-11-14T22:13:20.000123Z", 1_700_000_000_000_123),
        ("2023-11-14T23:13:20+01:00", 1_700_000_000_000_000),
        ("2023-11-14 22:13:20", 1_700_000_000_000_000),
    ],
)
def test_times_are_milliseconds_or_iso_in_utc_unless_they_say_otherwise(text: str, micros: int) -> None:
    assert instant(text) == micros
