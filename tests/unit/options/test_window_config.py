"""The window's rules that follow from the options and from what the bridge can do."""

from __future__ import annotations

from dataclasses import replace

import pytest
from mama_spark.contracts.bridge import Ack, Capabilities
from mama_spark.options import SinkOptions
from mama_spark.options.window_config import RetryPolicy, WindowConfig

from tests.support.tables import each

ABLE = Capabilities(Ack.STORED, True, True, True, True, 1 << 20, 100)


def policy(capabilities: Capabilities, **options: str) -> WindowConfig:
    o = SinkOptions.parse({"url": "memory://x", **options})
    return o.window.for_bridge(capabilities, with_ids=o.dedup)


@each(
    ("dedup", "recognised", "uncertain", "again"),
    [
        ("true", True, "report", True),
        ("true", False, "report", False),
        ("false", True, "report", False),
        ("false", False, "resend", True),
    ],
)
def test_what_may_be_stored_goes_again_where_ids_protect_it_or_the_user_wants_it(
    dedup: str, recognised: bool, uncertain: str, again: bool
) -> None:
    made = policy(replace(ABLE, dedup=recognised), dedup=dedup, onUncertain=uncertain)
    assert made.resend_uncertain is again


@pytest.mark.parametrize(("keeps_order", "in_flight"), [(True, 100), (False, 1)])
def test_in_order_one_message_is_in_flight_where_the_bridge_keeps_no_order(keeps_order: bool, in_flight: int) -> None:
    made = policy(replace(ABLE, ordered=keeps_order), order="partition", maxInFlight="100")
    assert (made.ordered, made.max_in_flight) == (True, in_flight)
    assert policy(replace(ABLE, ordered=keeps_order), maxInFlight="100").max_in_flight == 100


def test_nothing_goes_again_where_nothing_is_acknowledged_or_nobody_wants_it() -> None:
    assert policy(replace(ABLE, ack=Ack.NONE)).retry is None
    assert policy(ABLE, retryAttempts="0").retry is None
    retry = policy(ABLE, retryBackoff="1s", retryMaxBackoff="3s", retryDeadline="20s").retry
    assert retry is not None
    assert (retry.backoffs, retry.deadline) == ((1.0, 2.0, 3.0), 20.0)
    in_sockets = policy(replace(ABLE, ack=Ack.SENT), retryDeadline="20s")
    assert (in_sockets.retry, in_sockets.ack_timeout, in_sockets.longest_silence) == (None, 20.0, 20.0)
    assert policy(ABLE).ack_timeout is None


@each(
    ("retry", "seconds"),
    [
        (None, 10.0),
        (RetryPolicy(None, (1.0,), 30.0), 30.0),
        (RetryPolicy(None, (1.0,), 2.0), 10.0),
        (RetryPolicy(2, (1.0, 2.0)), 5.0 + 6.0 + 7.0),
    ],
)
def test_a_silence_is_an_outage_when_it_outlasts_the_resends_of_one_message(
    retry: RetryPolicy | None, seconds: float
) -> None:
    assert WindowConfig(wait_timeout=5.0, retry=retry).longest_silence == seconds
