"""Callbacks of live subscriptions."""

from __future__ import annotations

from typing import Any

import pytest
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import EventSubMode, Subscription
from mama_spark.tango.client.subscription_events import SubscriptionEvent
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.testing.waiting import until

from tests.support.tango.tango_subscriptions import Watch, numbers
from tests.support.tango_processes.servers import TangoServer


@pytest.mark.spec("TG-25")
def test_callbacks_that_raise_are_counted_and_delivery_goes_on(lab: TangoServer, subscriber: TangoSubscriber) -> None:
    came: list[Any] = []

    def callback(event: SubscriptionEvent) -> None:
        came.append(numbers([event])[0])
        raise RuntimeError("raised by the test")

    subscriber.subscribe(lab.address(), "double", mode=EventSubMode.SYNC, callback=callback)
    until(lambda: came, lambda: lab.push("double", 0.0))
    lab.push("double", 1.0)
    lab.push("double", 2.0)
    until(lambda: came[-2:] == [1.0, 2.0])
    until(lambda: subscriber.counts.callback_errors == len(came))
    assert subscriber.take() == []


def test_a_callback_can_unsubscribe_itself_and_is_not_called_again(
    lab: TangoServer, subscriber: TangoSubscriber
) -> None:
    came: list[Any] = []
    other: list[Any] = []

    def callback(event: SubscriptionEvent) -> None:
        came.append(event)
        event.subscription.unsubscribe()
        event.subscription.unsubscribe()

    stays = subscriber.subscribe(lab.address(), "double", mode=EventSubMode.SYNC, callback=other.append)
    until(lambda: other, lambda: lab.push("double", 0.0))
    subscriber.subscribe(lab.address(), "double", mode=EventSubMode.SYNC, callback=callback)
    until(lambda: came, lambda: lab.push("double", 1.0))
    lab.do("burst", "double", count=20)
    until(lambda: numbers(other[-1:]) == [19])
    assert len(came) == 1
    assert subscriber.subscriptions == [stays]


def test_a_callback_can_subscribe(lab: TangoServer, subscriber: TangoSubscriber) -> None:
    made: list[Subscription] = []

    def callback(event: SubscriptionEvent) -> None:
        if not made:
            made.append(subscriber.subscribe(lab.address(), "long"))

    subscriber.subscribe(lab.address(), "double", callback=callback)
    until(lambda: made)
    watch = Watch(subscriber)
    watch.until(lambda: watch.of(Kind.EVENT, made[0]), lambda: lab.push("long", 3))
