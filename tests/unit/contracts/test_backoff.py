"""The delays of retries: rise by a factor, stay below a limit, and begin anew after a success."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.backoff import RECONNECT, Backoff

from tests.support.tables import each

_SECONDS = st.floats(0, 1e6, allow_nan=False)
_BACKOFFS = st.builds(
    lambda first, more, factor, jitter: Backoff(first, first + more, factor, jitter),
    _SECONDS,
    _SECONDS,
    st.floats(1, 1e3),
    st.floats(0, 1),
)
_UNIFORM = st.floats(0, 1)


@given(_BACKOFFS, st.integers(0, 10**6), _UNIFORM)
def test_a_delay_is_within_its_bounds(backoff: Backoff, attempt: int, drawn: float) -> None:
    whole = backoff.delay(attempt, lambda: 0.0)
    assert backoff.first <= whole <= backoff.most
    assert whole * (1 - backoff.jitter) * (1 - 1e-9) <= backoff.delay(attempt, lambda: drawn) <= whole


@given(_BACKOFFS, st.integers(0, 2000))
def test_delays_rise_by_the_factor_up_to_the_limit(backoff: Backoff, attempt: int) -> None:
    one, following = (backoff.delay(n, lambda: 0.0) for n in (attempt, attempt + 1))
    assert following == pytest.approx(min(one * backoff.factor, backoff.most))


@given(_BACKOFFS, st.lists(st.booleans(), max_size=50))
def test_a_run_counts_failures_since_the_last_success(backoff: Backoff, succeeded: list[bool]) -> None:
    backoff = Backoff(backoff.first, backoff.most, backoff.factor)  # without jitter
    delays, failed = backoff.delays(), 0
    for success in succeeded:
        if success:
            delays.reset()
            failed = 0
        assert delays.next() == backoff.delay(failed)
        failed += 1


def test_one_factor_means_one_delay() -> None:
    assert [Backoff(0.25, 0.25, 1.0).delay(n) for n in (0, 1, 10**9)] == [0.25] * 3


def test_an_attempt_number_may_be_any_integer() -> None:
    assert RECONNECT.delay(-1) == RECONNECT.first
    assert RECONNECT.delay(10**9) == RECONNECT.most
    assert Backoff(0.0, 0.0).delay(10**9) == 0.0


def test_jitter_draws_from_the_random_numbers_of_python_unless_told() -> None:
    drawn = {Backoff(1.0, 1.0, jitter=1.0).delay(0) for _ in range(20)}
    assert len(drawn) > 1
    assert all(0 <= one <= 1 for one in drawn)


@each("wrong", [(-1, 1, 2, 0), (2, 1, 2, 0), (1, 2, 0.5, 0), (1, 2, 2, 1.5), (1, 2, 2, -0.1), (float("nan"), 2, 2, 0)])
def test_what_is_no_schedule_is_refused(wrong: tuple[float, float, float, float]) -> None:
    with pytest.raises(ValueError, match="no schedule of delays"):
        Backoff(*wrong)


def test_the_delays_before_a_reconnect() -> None:
    delays = RECONNECT.delays()
    assert [delays.next() for _ in range(7)] == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    assert "7 failed" in repr(delays)
