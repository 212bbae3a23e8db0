"""Pauses of a publisher and the size of its window, error by error."""

from __future__ import annotations

import pytest
from mama_spark.errors import NoResponders, PublishError, RateLimited
from mama_spark.sending.backpressure import BackpressureState

from tests.support.tables import each


@pytest.mark.parametrize(
    ("error", "limits"),
    [(NoResponders("no leader"), [100, 100]), (RateLimited("429"), [50, 25])],
    ids=["a pause", "a pause and a smaller window"],
)
def test_each_pause_raises_the_level_and_an_overload_halves_the_window(error: PublishError, limits: list[int]) -> None:
    state = BackpressureState(100)
    for level, limit in enumerate(limits, 1):
        state.pause(error, 10.0 * level, 2.0)
        assert (state.level, state.limit, state.began, state.until) == (level, limit, 10.0 * level, 10.0 * level + 2.0)


def test_the_window_never_shrinks_below_one() -> None:
    state = BackpressureState(1)
    state.pause(RateLimited("429"), 0.0, 1.0)
    assert state.limit == 1


@each(
    ("sent_at", "now", "concerns"),
    [(10.0, 12.0, True), (9.9, 12.0, False), (10.0, 11.9, False), (12.0, 13.0, True)],
)
def test_a_burst_of_refusals_is_one_pause(sent_at: float, now: float, concerns: bool) -> None:
    state = BackpressureState(100)
    assert state.concerns(0.0, 0.0)
    state.pause(NoResponders("no leader"), 10.0, 2.0)
    assert state.concerns(sent_at, now) is concerns


def test_only_an_acknowledgement_of_what_was_sent_since_ends_the_pauses() -> None:
    state = BackpressureState(100)
    state.pause(NoResponders("no leader"), 10.0, 2.0)
    state.acknowledged(9.9)
    assert state.level == 1
    state.acknowledged(10.0)
    assert state.level == 0


def test_a_new_connection_is_tried_at_once() -> None:
    state = BackpressureState(100)
    state.pause(NoResponders("no leader"), 10.0, 2.0)
    state.reconnected(11.0)
    assert state.until == 11.0
    state.reconnected(99.0)
    assert state.until == 11.0


def test_the_window_grows_by_an_eighth_for_each_window_of_acknowledgements() -> None:
    state = BackpressureState(100)
    state.grow(1000, 100)
    assert state.limit == 100
    for _ in range(4):
        state.pause(RateLimited("429"), 0.0, 1.0)
    assert state.limit == 6
    found = []
    for acks in (5, 1, 6, 7, 1000, 1000):
        state.grow(acks, 100)
        found.append(state.limit)
    assert found == [6, 7, 7, 8, 9, 10]
    for _ in range(100):
        state.grow(1000, 100)
    assert state.limit == 100
