"""SUSPECT after half of the time to live, OFFLINE after all of it, or when a source is not in the image."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.contracts.errors import ConfigError
from mama_spark.discovery.source_expiry import (
    check_ttl,
    expires_after,
    expiries,
    offline_after,
    offline_by_absence,
    renew_every,
    state_by_marker,
    state_by_markers,
    suspect_after,
)

from tests.support.tables import each

SUSPECT, OFFLINE = DiscoveryEventKind.SUSPECT, DiscoveryEventKind.OFFLINE
ONE, TWO, THREE = (SourceKey("s", number) for number in (1, 2, 3))


@given(st.floats(1e-3, 1e6))
def test_a_renewal_may_be_late_once_before_anything_is_said(ttl: float) -> None:
    assert 0 < renew_every(ttl) < suspect_after(ttl) < offline_after(ttl) == ttl
    assert suspect_after(ttl) == ttl / 2


@given(st.floats(0, 1e6), st.floats(1e-3, 1e6))
def test_a_source_that_nobody_renews_is_suspect_and_then_offline(renewed: float, ttl: float) -> None:
    both = expiries(renewed, ttl, None)
    assert both == [(renewed + ttl / 2, SUSPECT), (renewed + ttl, OFFLINE)]
    assert expiries(renewed, ttl, SUSPECT) == both[1:]
    assert expiries(renewed, ttl, OFFLINE) == []
    assert [(renewed + expires_after(ttl, state), state) for state in (SUSPECT, OFFLINE)] == both


_MARKER = st.none() | st.integers(1, 20)


@given(st.integers(1, 20), _MARKER, _MARKER)
def test_a_marker_counts_until_the_record_is_written_again(record: int, warn: int | None, live: int | None) -> None:
    expected = OFFLINE if (live or 0) > record else SUSPECT if (warn or 0) > record else None
    assert state_by_markers(record, warn, live) is expected


def test_the_marker_of_half_the_time_to_live_means_suspect() -> None:
    assert (state_by_marker(half=True), state_by_marker(half=False)) == (SUSPECT, OFFLINE)


def test_what_is_known_and_not_in_the_image_is_offline() -> None:
    image = [DiscoveryEvent(DiscoveryEventKind.RECORD, 0, "log", 1, ONE), DiscoveryEvent(SUSPECT, 0, "log", 2, ONE)]
    end = DiscoveryEvent(DiscoveryEventKind.IMAGE_END, 0, "log", 3)
    assert offline_by_absence([ONE, TWO, THREE], [*image, end]) == {TWO, THREE}
    assert offline_by_absence([], image) == set()
    assert offline_by_absence([ONE], [end]) == {ONE}


@each("ttl", [0.0, -1.0, float("nan")])
def test_a_time_to_live_is_positive(ttl: float) -> None:
    with pytest.raises(ConfigError, match="must be positive"):
        check_ttl(ttl)
    check_ttl(0.001)
