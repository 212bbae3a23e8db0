"""Subscriber with the periods of the specification, at a device server."""

from __future__ import annotations

import time

import numpy as np
import pytest
from mama_spark.tango.client.keep_alive import Timeouts
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import EventSubMode
from mama_spark.tango.client.subscription_events import SubscriptionEvent
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.testing.waiting import until

from tests.support.tango_processes.servers import TangoServer

pytestmark = [pytest.mark.explore, pytest.mark.timeout(1500)]


@pytest.mark.spec("TG-37", "TG-43")
def test_confirmed_subscriptions_outlive_600_seconds_and_others_do_not(own_lab: TangoServer) -> None:
    """The server ends a subscription without confirmations; heartbeats continue, and no counter shows it. A late
    confirmation restores the events. cppTango back_ch_event, back_per_event: events arrive during the whole test."""
    own_lab.do("poll", "plain", period=500)
    begin = time.monotonic()
    with (
        TangoSubscriber(timeouts=Timeouts(confirm=690.0), timeout=10.0) as silent,
        TangoSubscriber(timeout=10.0) as confirming,
    ):
        came: dict[str, list[SubscriptionEvent]] = {"long": [], "double": [], "plain": []}
        for subscriber, name, event in (
            (silent, "long", "change"), (confirming, "double", "change"), (confirming, "plain", "periodic")
        ):  # fmt: skip
            subscriber.subscribe(own_lab.address(), name, event, mode=EventSubMode.SYNC, callback=came[name].append)

        def push(number: int) -> None:
            for name in ("long", "double"):
                own_lab.push(name, number)

        while time.monotonic() - begin < 655:
            push(int(time.monotonic() - begin))
            time.sleep(5)  # events all the time; nothing is waited for
        assert [n.kind for n in came["double"]].count(Kind.EVENT) > 100
        periodic = list(came["plain"])
        assert {n.kind for n in periodic} == {Kind.EVENT}
        assert max(np.diff([n.received for n in periodic])) < 30e9
        assert len(periodic) > 400
        came["long"].clear()
        came["double"].clear()
        until(lambda: came["double"], lambda: push(0))
        assert not came["long"]
        until(lambda: came["long"], lambda: push(1), timeout=120.0)
        assert time.monotonic() - begin > 680
        assert not [n for n in came["double"] if n.kind is not Kind.EVENT]
