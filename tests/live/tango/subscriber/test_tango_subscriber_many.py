"""Several subscriptions of one subscriber: to one event, by many threads, to many devices."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import EventSubMode, Subscription
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.tango.client.subscription_states import SubscriptionState

from tests.support.tango.tango import DeviceServers
from tests.support.tango.tango_subscriptions import Watch, numbers
from tests.support.tango_processes.servers import TIMEOUT, DeviceProbe, TangoServer


@pytest.mark.spec("TG-38", "TG-39")
def test_one_of_two_subscriptions_to_the_same_event_can_end(lab: TangoServer, subscriber: TangoSubscriber) -> None:
    one, two = (subscriber.subscribe(lab.address(), "double", mode=EventSubMode.SYNC) for _ in range(2))
    watch = Watch(subscriber)
    watch.begin(one, lambda value: lab.push("double", value))
    one.unsubscribe()
    assert one.state is SubscriptionState.CANCELLED
    lab.push("double", 5.0)
    watch.until(lambda: 5.0 in numbers(watch.of(Kind.EVENT)))
    assert watch.of(Kind.EVENT, one) == []
    two.unsubscribe()
    assert subscriber._consumer._receiver.wait(TIMEOUT)
    other = subscriber.subscribe(lab.address(), "long", mode=EventSubMode.SYNC)
    lab.push("double", 6.0)
    watch.events.clear()
    watch.until(lambda: watch.of(Kind.EVENT, other), lambda: lab.push("long", 1))
    assert watch.of(Kind.EVENT, two) == []


def test_duplicates_that_servers_send_for_new_clients_are_dropped(
    lab: TangoServer, subscriber: TangoSubscriber, tmp_path: Path
) -> None:
    """A client is new if it did not call the server before, whatever it subscribes to."""
    subscription = subscriber.subscribe(lab.address(), "long", mode=EventSubMode.SYNC)
    watch = Watch(subscriber)
    watch.begin(subscription, lambda value: lab.push("long", value))
    with DeviceProbe(tmp_path / "probe") as probe:
        probe.subscribe(lab.address(), "long", "change", quiet=True)
        lab.do("burst", "long", count=10)
        watch.until(lambda: len(watch.of(Kind.EVENT, subscription)) >= 10)
    assert numbers(watch.of(Kind.EVENT, subscription)) == list(range(10))
    assert subscriber.counts.dispatched.duplicates > 0
    assert subscriber.counts.dispatched.gaps == 0


def test_many_threads_subscribe_at_once(lab: TangoServer, subscriber: TangoSubscriber) -> None:
    names = ["double", "long", "short", "ushort", "float", "string", "ulong", "enum"]
    made: list[Subscription] = []

    def work(name: str) -> None:
        made.append(subscriber.subscribe(lab.address(), name))

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT)
    assert {s.attribute for s in made} == set(names)
    watch = Watch(subscriber)
    watch.more()
    assert all(len(watch.of(Kind.INITIAL, s)) == 1 for s in made)


def test_many_devices_of_a_server_share_connections(
    database_labs: DeviceServers, subscriber: TangoSubscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a database, each device has a connection of its own until there are many, since open files are limited."""
    monkeypatch.setattr("mama_spark.tango.client.device_proxy._OWN_CONNECTIONS", 3)
    lab = database_labs.fresh(8)
    found = [subscriber.subscribe(lab.address(device), "long") for device in lab.devices]
    assert len({device.connection for device in subscriber._consumer._calls._connections._devices.values()}) == 3
    watch = Watch(subscriber)
    for device, subscription in zip(lab.devices, found, strict=True):
        watch.until(lambda s=subscription: watch.of(Kind.EVENT, s), lambda d=device: lab.push("long", 1, device=d))  # type: ignore[misc]
        assert numbers(watch.of(Kind.INITIAL, subscription)) == [0]
