"""Several subscriptions of one subscriber: to one event, by many threads, to many devices."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import EventSubMode, Subscription
from mama_spark.tango.client.subscription_events import SubscriptionEventKind
from mama_spark.tango.client.subscription_states import SubscriptionState

from tests.support.tango.tango import DeviceServers
from tests.support.tango.tango_subscriptions import SAMPLES, Taker, effective, numbers, shaped
from tests.support.tango_processes.servers import TIMEOUT, DeviceProbe, TangoServer


@pytest.mark.spec("TG-38", "TG-39")
def test_one_of_two_subscriptions_to_the_same_event_can_end(lab: TangoServer, subscriber: TangoSubscriber) -> None:
    one, two = (subscriber.subscribe(lab.address(), "double", mode=EventSubMode.SYNC) for _ in range(2))
    taker = Taker(subscriber)
    effective(taker, one, lambda value: lab.push("double", value))
    one.unsubscribe()
    assert one.state is SubscriptionState.CANCELLED
    lab.push("double", 5.0)
    taker.until(lambda n: 5.0 in numbers([x for x in n if x.kind is SubscriptionEventKind.EVENT]))
    assert taker.of(one) == []
    two.unsubscribe()
    assert subscriber._consumer._receiver.wait(TIMEOUT)
    other = subscriber.subscribe(lab.address(), "long", mode=EventSubMode.SYNC)
    lab.push("double", 6.0)
    taker.events.clear()
    taker.until(lambda _: taker.of(other), lambda: lab.push("long", 1))
    assert taker.of(two) == []


def test_duplicates_that_servers_send_for_new_clients_are_dropped(
    lab: TangoServer, subscriber: TangoSubscriber, tmp_path: Path
) -> None:
    """A client is new if it did not call the server before, whatever it subscribes to."""
    subscription = subscriber.subscribe(lab.address(), "long", mode=EventSubMode.SYNC)
    taker = Taker(subscriber)
    effective(taker, subscription, lambda value: lab.push("long", value))
    with DeviceProbe(tmp_path / "probe") as probe:
        probe.subscribe(lab.address(), "long", "change", quiet=True)
        lab.do("burst", "long", count=10)
        taker.until(lambda _: len(taker.of(subscription)) >= 10)
    assert numbers(taker.of(subscription)) == list(range(10))
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
    taker = Taker(subscriber)
    taker.more()
    assert all(len(taker.of(s, SubscriptionEventKind.INITIAL)) == 1 for s in made)


def test_many_devices_of_a_server_share_connections(
    database_labs: DeviceServers, subscriber: TangoSubscriber, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a database, each device has a connection of its own until there are many, since open files are limited."""
    monkeypatch.setattr("mama_spark.tango.client.device_proxy._OWN_CONNECTIONS", 3)
    lab = database_labs.fresh(8)
    found = [subscriber.subscribe(lab.address(device), "long") for device in lab.devices]
    assert len({device.connection for device in subscriber._consumer._calls._connections._devices.values()}) == 3
    taker = Taker(subscriber)
    for device, subscription in zip(lab.devices, found, strict=True):
        taker.until(lambda _, s=subscription: taker.of(s), lambda d=device: lab.push("long", 1, device=d))  # type: ignore[misc]
        assert numbers(taker.of(subscription, SubscriptionEventKind.INITIAL)) == [0]


def test_hundreds_of_subscriptions_at_once(labs: DeviceServers, subscriber: TangoSubscriber) -> None:
    """Five devices with 40 attributes each: every subscription is negotiated, reads its value and gets its event."""
    lab = labs.fresh(5)
    types = [t for t in SAMPLES if t != "state"]
    names = [t + s for t in types for s in ("", "_spectrum", "_image")] + [
        "double_rw",
        "long_rw",
        "string_rw",
        "float_rw",
    ]
    assert len(lab.devices) * len(names) == 200
    found = subscriber.subscribe_many([(lab.address(d), n, "change") for d in lab.devices for n in names])
    assert {s.state for s in found} == {SubscriptionState.CONNECTED}
    taker = Taker(subscriber)
    taker.more()
    assert {id(n.subscription) for n in taker.events if n.kind is SubscriptionEventKind.INITIAL} == {
        id(s) for s in found
    }
    taker.events.clear()
    last = subscriber.subscribe(lab.address(lab.devices[0]), "double", "archive")
    taker.until(lambda _: taker.of(last), lambda: lab.push("double", 1.0, "archive", device=lab.devices[0]))
    last.unsubscribe()  # its subscription has reached the publisher, so all earlier ones have
    taker.events.clear()
    for device in lab.devices:
        for name in names:
            type_, _, shape = name.removesuffix("_rw").partition("_")
            lab.push(name, shaped(type_, shape or "scalar")[0], device=device)
    wanted = set(found)
    taker.until(lambda events: {n.subscription for n in events if n.kind is SubscriptionEventKind.EVENT} == wanted)
    assert {n.kind for n in taker.events} == {SubscriptionEventKind.EVENT}
    assert len(subscriber.subscriptions) == 200
