"""Callbacks and queues of live subscriptions."""

from __future__ import annotations

from typing import Any

import pytest
from mama_spark.contracts.errors import ConfigError
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import EventSubMode, Subscription
from mama_spark.tango.client.subscription_events import SubscriptionEvent
from mama_spark.testing.waiting import until

from tests.support.tango.tango_subscriptions import Taker, numbers
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
    taker = Taker(subscriber)
    taker.until(lambda _: taker.of(made[0]), lambda: lab.push("long", 3))


@pytest.mark.spec("TG-44")
def test_a_queue_keeps_the_newest_events_and_counts_dropped_ones(lab: TangoServer, subscriber: TangoSubscriber) -> None:
    """Queues with the sizes 1, 5 and no limit."""
    queues = {n: subscriber.subscribe(lab.address(), "long", mode=EventSubMode.SYNC, queue=n) for n in (1, 5, 0)}
    until(lambda: all(len(s.queue) for s in queues.values()), lambda: lab.push("long", -1))
    lab.push("long", -2)  # several events of -1 may still arrive; none arrives after -2
    seen: list[SubscriptionEvent] = []
    until(lambda: -2 in numbers(seen), lambda: seen.extend(queues[0].get_events()))  # this queue gets each event last
    for subscription in queues.values():
        subscription.get_events()
    dropped = subscriber.counts.dropped
    lab.do("burst", "long", count=20)
    until(lambda: len(queues[0].queue) == 20)
    until(lambda: subscriber.counts.dropped - dropped == 19 + 15)
    taken = {n: s.get_events() for n, s in queues.items()}
    assert {n: numbers(events) for n, events in taken.items()} == {
        1: [19],
        5: [15, 16, 17, 18, 19],
        0: list(range(20)),
    }
    assert [n.received for n in taken[0]] == sorted(n.received for n in taken[0])
    assert queues[0].get_events() == []
    shared = subscriber.subscribe(lab.address(), "double")
    with pytest.raises(ConfigError, match="no queue of its own"):
        shared.get_events()
