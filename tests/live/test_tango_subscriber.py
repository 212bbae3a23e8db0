"""Subscriptions at real device servers, with and without a database: every type of value and of event, every way to
get them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mama_spark.errors import ClientClosed, ConfigError
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import EventSubMode, Subscription
from mama_spark.tango.client.subscription_events import SubscriptionEvent, SubscriptionEventKind
from mama_spark.tango.client.subscription_states import SubscriptionState
from mama_spark.tango.errors import DevFailed, DeviceAway
from mama_spark.tango.events.event_codec import Event, decode
from mama_spark.tango.giop.ior import BadAddress
from mama_spark.tango.types import (
    AttributeConfig,
    AttributeValue,
    DataReady,
    DevState,
    Encoded,
    Format,
    InterfaceChange,
    Quality,
)
from mama_spark.testing.waiting import until

from tests.support.tango import DeviceServers
from tests.support.tango_processes.servers import PATIENT, TIMEOUT, DeviceProbe, TangoServer

SAMPLES: dict[str, list[Any]] = {
    "boolean": [True, False], "short": [-32768, 32767], "long": [-(2**31), 7], "long64": [-(2**63), 2**63 - 1],
    "float": [1.5, -0.25], "double": [1e300, -2.5], "uchar": [0, 255], "ushort": [0, 65535], "ulong": [0, 2**32 - 1],
    "ulong64": [0, 2**64 - 1], "string": ["hello", "\xe9 \xfc"], "enum": [2, 0], "state": ["MOVING", "ON"],
}  # fmt: skip


class Taker:
    """Takes all, and waits for what is looked for."""

    def __init__(self, subscriber: TangoSubscriber) -> None:
        self.subscriber = subscriber
        self.events: list[SubscriptionEvent] = []

    def until(
        self, enough: Callable[[list[SubscriptionEvent]], Any], act: Callable[[], Any] = lambda: None
    ) -> list[SubscriptionEvent]:
        until(lambda: self.more() and enough(self.events), act)
        return self.events

    def more(self) -> bool:
        self.events += self.subscriber.take(10_000, 0.0)
        return True

    def of(
        self, subscription: Subscription, kind: SubscriptionEventKind = SubscriptionEventKind.EVENT
    ) -> list[SubscriptionEvent]:
        return [n for n in self.events if n.subscription is subscription and n.kind is kind]


def effective(taker: Taker, subscription: Subscription, push: Callable[[Any], None]) -> None:
    """Push -1 until the first event comes: before, the subscription may not have reached the publisher. Then -2, and
    when that has come, nothing is on its way any more."""
    taker.until(lambda _: taker.of(subscription), lambda: push(-1))
    push(-2)
    taker.until(lambda _: numbers(taker.of(subscription)[-1:]) == [-2])
    taker.events.clear()


def numbers(events: list[SubscriptionEvent]) -> list[Any]:
    """What was read: scalars."""
    found = []
    for event in events:
        read = event.value.read
        found.append(read[0] if not isinstance(read, DevState) and read is not None else read)
    return found


# --- values ------------------------------------------------------------------------------------------------


def shaped(type_: str, shape: str) -> tuple[Any, list[Any], tuple[int, int]]:
    """A value as the server takes it, its elements, and its dimensions."""
    first, second = SAMPLES[type_]
    if shape == "scalar":
        return second, [second], (1, 0)
    if shape == "spectrum":
        return [first, second, first], [first, second, first], (3, 0)
    return [[first, second], [second, first], [first, first]], [first, second, second, first, first, first], (2, 3)


def elements(value: AttributeValue) -> list[Any]:
    read = value.read
    assert read is not None
    if isinstance(read, DevState):
        return [read.name]
    return [x.name if isinstance(x, DevState) else x for x in (read.tolist() if isinstance(read, np.ndarray) else read)]


@pytest.mark.spec("TG-17", "TG-19", "TG-24", "TG-35")
def test_every_type_in_every_shape_comes_as_it_was_pushed(either: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango att_type_event: change, archive, alarm and user events."""
    names = [(t, s, t if s == "scalar" else f"{t}_{s}") for t in SAMPLES for s in ("scalar", "spectrum", "image")]
    events = ("change", "archive", "alarm", "user_event")
    found = subscriber.subscribe_many(
        [(either.address(), name, event) for name in (*(name for *_, name in names), "encoded") for event in events],
        mode=EventSubMode.SYNC,
    )
    *typed, encoded = [found[n : n + len(events)] for n in range(0, len(found), len(events))]
    pushed = [(s, name, shaped(t, shape)[0]) for (t, shape, name), four in zip(names, typed, strict=True) for s in four]
    pushed += [(subscription, "encoded", {"format": "fmt", "data": "010203"}) for subscription in encoded]
    came: dict[Subscription, AttributeValue] = {}

    def all_came() -> bool:
        for event in subscriber.take():
            came.setdefault(event.subscription, event.value)
        return len(came) == len(pushed)

    def push() -> None:
        for subscription, name, value in pushed:
            if subscription not in came:
                either.push(name, value, subscription.event.wire_name.removesuffix("_event"))

    until(all_came, push)
    for (type_, shape, name), subscriptions in zip(names, typed, strict=True):
        _, want, dims = shaped(type_, shape)
        for got in map(came.__getitem__, subscriptions):
            assert (elements(got), (got.r_dim.x, got.r_dim.y), got.name.lower()) == (want, dims, name)
            assert got.format is {"scalar": Format.SCALAR, "spectrum": Format.SPECTRUM, "image": Format.IMAGE}[shape]
            assert got.quality is Quality.VALID
    for subscription in encoded:
        assert came[subscription].read == (Encoded("fmt", b"\1\2\3"),)


@pytest.mark.spec("TG-11", "TG-18")
def test_quality_time_and_errors_come_as_they_were_pushed(lab: TangoServer, subscriber: TangoSubscriber) -> None:
    subscription = subscriber.subscribe(lab.address(), "double", mode=EventSubMode.SYNC)
    taker = Taker(subscriber)
    effective(taker, subscription, lambda value: lab.push("double", value))
    lab.push("double", 2.5, quality="WARNING", time=1_700_000_000.25)
    lab.push_error("double", "MyReason", "my desc", "my.origin")
    lab.push("double", 3.5, quality="CHANGING")
    one, error, two = taker.until(lambda n: len(n) >= 3)
    assert (one.value.quality, one.value.time) == (Quality.WARNING, 1_700_000_000_250_000_000)
    assert two.value.quality is Quality.CHANGING
    assert error.kind is SubscriptionEventKind.EVENT
    assert error.data is None
    assert [(e.reason, e.desc, e.origin) for e in error.errors] == [("MyReason", "my desc", "my.origin")]
    with pytest.raises(TypeError, match="no value"):
        _ = error.value


def test_frames_are_handed_out_as_they_came_and_batches_as_columns(
    lab: TangoServer, subscriber: TangoSubscriber
) -> None:
    subscription = subscriber.subscribe(lab.address(), "double")
    taker = Taker(subscriber)
    effective(taker, subscription, lambda value: lab.push("double", value))
    lab.do("burst", "double", count=500)
    lab.push_error("double", "Last")
    until(lambda: len(subscriber.queue) == 501)
    batches = [subscriber.take_batch(200) for _ in range(3)]
    assert [len(batch) for batch in batches] == [200, 200, 101]
    events = [event for batch in batches for event in batch.events]
    values = [x for b in batches for part in b.columns.scalars for x in part.read.tolist()]
    assert values == list(range(500))
    assert [n.ctr for n in events] == list(range(events[0].ctr, events[0].ctr + 501))
    assert [int(c) for b in batches for c in b.columns.ctr] == [n.ctr for n in events]
    assert decode(events[0].frames or ()) == events[0].event
    (other,) = batches[-1].columns.others.values()
    assert isinstance(other, Event)
    assert [error.reason for error in other.errors] == ["Last"]


# --- events ------------------------------------------------------------------------------------------------


@pytest.mark.spec("TG-12-TG-16", "TG-19", "TG-22", "TG-23")
def test_every_event_type_that_servers_send_comes(
    either: TangoServer, subscriber: TangoSubscriber, probe: DeviceProbe
) -> None:
    either.do("poll", "double_rw", period=20)
    names = ("change", "archive", "alarm", "user_event")
    pushed = {name: subscriber.subscribe(either.address(), "double", name) for name in names}
    periodic = subscriber.subscribe(either.address(), "double_rw", "periodic")
    config = subscriber.subscribe(either.address(), "double", "attr_conf")
    ready = subscriber.subscribe(either.address(), "double", "data_ready")
    interface = subscriber.subscribe(either.address(), event="intr_change")
    taker = Taker(subscriber)
    taker.more()
    assert all(
        len(taker.of(s, SubscriptionEventKind.INITIAL)) == 1 for s in (*pushed.values(), periodic, config, interface)
    )
    assert not taker.of(ready, SubscriptionEventKind.INITIAL)
    for name, subscription in pushed.items():
        event = name.removesuffix("_event")
        taker.until(
            lambda _, s=subscription: taker.of(s),  # type: ignore[misc]
            lambda e=event: either.push("double", 4.5, event=e),  # type: ignore[misc]
        )
        assert numbers(taker.of(subscription))[0] == 4.5
        event_of = taker.of(subscription)[0].event
        assert event_of is not None
        assert event_of.topic.event is subscription.event
    taker.until(lambda _: taker.of(ready), lambda: either.do("data_ready", "double", counter=42))
    assert taker.of(ready)[0].data == DataReady("double", 5, 42)
    taker.until(lambda _: len(taker.of(periodic)) >= 2)
    probe.call("configure", device=either.address(), attribute="double", changes={"label": "new label"})
    found = taker.until(lambda _: taker.of(config)) and taker.of(config)[0].data
    assert isinstance(found, AttributeConfig)
    assert (found.name, found.label) == ("double", "new label")
    either.do("add", "double_more")
    change = taker.until(lambda _: taker.of(interface)) and taker.of(interface)[0].data
    first = taker.of(interface, SubscriptionEventKind.INITIAL)[0].data
    assert isinstance(change, InterfaceChange)
    assert isinstance(first, InterfaceChange)
    assert first.dev_started
    assert {a.name for a in change.atts} - {a.name for a in first.atts} == {"double_more"}
    assert {c.cmd_name for c in first.cmds} >= {"State", "Status", "Init", "Echo"}


def test_the_first_value_is_read_and_told_apart_from_events(either: TangoServer, subscriber: TangoSubscriber) -> None:
    """A value, not an event; the modes with a read have it."""
    either.tell("double", 7.5, quality="ALARM")
    either.tell("long", error={"reason": "NotNow", "desc": "d", "origin": "o"})
    with_value = subscriber.subscribe(either.address(), "double")
    without = subscriber.subscribe(either.address(), "double", mode=EventSubMode.SYNC)
    failing = subscriber.subscribe(either.address(), "long")
    taker = Taker(subscriber)
    taker.more()
    (first,) = taker.of(with_value, SubscriptionEventKind.INITIAL)
    assert (numbers([first]), first.value.quality, first.ctr) == ([7.5], Quality.ALARM, 0)
    assert not taker.of(without, SubscriptionEventKind.INITIAL)
    (error,) = taker.of(failing, SubscriptionEventKind.INITIAL)
    assert [e.reason for e in error.errors] == ["NotNow"]
    assert len(taker.events) == 2


@pytest.mark.spec("TG-21")
@pytest.mark.parametrize(
    ("attribute", "event", "reason", "kind"),
    [
        ("nope", "change", "API_AttrNotFound", DevFailed),
        ("plain", "change", "API_AttributePollingNotStarted", DeviceAway),
        ("plain", "data_ready", "API_AttributeNotDataReadyEnabled", DevFailed),
        ("double", "quality", "API_WrongNumberOfArgs", DevFailed),
    ],
)
def test_a_refused_subscription_raises_why_and_leaves_nothing_behind(
    lab: TangoServer, subscriber: TangoSubscriber, attribute: str, event: str, reason: str, kind: type[DevFailed]
) -> None:
    for mode in (EventSubMode.SYNC, EventSubMode.SYNC_READ):
        with pytest.raises(kind) as caught:
            subscriber.subscribe(lab.address(), attribute, event, mode=mode)
        assert caught.value.reason == reason
    assert subscriber.subscriptions == []
    assert subscriber.take() == []


@pytest.mark.spec("TG-08")
def test_names_and_settings_that_cannot_be_are_refused_before_anything_is_asked(subscriber: TangoSubscriber) -> None:
    for name in ("a/b", "tango://h/a/b/c", "a/b/c#dbase=maybe"):
        with pytest.raises(BadAddress):
            subscriber.subscribe(name, "x")
    with pytest.raises(ConfigError, match="no event type of Tango: 'changes'"):
        subscriber.subscribe("tango://h:1/a/b/c", "x", "changes")
    for attribute in (None, "", "a/b", "a#b", "\u20ac"):
        with pytest.raises(ConfigError, match="no name of an attribute"):
            subscriber.subscribe("tango://h:1/a/b/c", attribute)
    with pytest.raises(ConfigError, match="a callback or a queue"):
        subscriber.subscribe("tango://h:1/a/b/c", "x", callback=print, queue=1)


def test_a_subscriber_that_is_not_open_takes_no_subscriptions(lab: TangoServer) -> None:
    subscriber = TangoSubscriber()
    assert repr(subscriber).startswith("<TangoSubscriber <EventConsumer not open, <SubscriptionMachine none")
    with pytest.raises(ClientClosed):
        subscriber.subscribe(lab.address(), "double")
    with subscriber:
        subscription = subscriber.subscribe(lab.address(), "double")
        assert repr(subscription) == f"<Subscription {lab.address().replace('#', '/double#')}.change connected>"
        assert subscription.topic == lab.topic("double")
    assert subscription.state is SubscriptionState.CANCELLED
    assert [event.kind for event in subscriber.take()] == [
        SubscriptionEventKind.INITIAL
    ]  # what came can still be taken
    subscriber.close()
    with pytest.raises(ClientClosed):
        subscriber.start()


def test_full_names_with_the_attribute_and_the_variable_of_the_database_are_understood(
    lab_with_database: TangoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (device,) = lab_with_database.devices
    monkeypatch.setenv("TANGO_HOST", lab_with_database.host)
    with TangoSubscriber(timeouts=PATIENT, timeout=TIMEOUT) as subscriber:
        found = [
            subscriber.subscribe(f"{lab_with_database.address()}/double"),
            subscriber.subscribe(f"{device.upper()}/Double"),
            subscriber.subscribe(device, "DOUBLE"),
        ]
        assert {s.topic for s in found} == {lab_with_database.topic("double")}
        with pytest.raises(DevFailed) as caught:
            subscriber.subscribe("test/lab/none", "double")
        assert caught.value.reason


# --- callbacks and queues ----------------------------------------------------------------------------------


@pytest.mark.spec("TG-25")
def test_callbacks_that_raise_are_counted_and_delivery_goes_on(lab: TangoServer, subscriber: TangoSubscriber) -> None:
    came: list[Any] = []

    def callback(event: SubscriptionEvent) -> None:
        came.append(numbers([event])[0])
        raise RuntimeError("as wanted")

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
def test_a_queue_keeps_the_last_ones_and_counts_what_it_dropped(lab: TangoServer, subscriber: TangoSubscriber) -> None:
    """Queues of 1, of 5, and of any number."""
    queues = {n: subscriber.subscribe(lab.address(), "long", mode=EventSubMode.SYNC, queue=n) for n in (1, 5, 0)}
    until(lambda: all(len(s.queue) for s in queues.values()), lambda: lab.push("long", -1))
    lab.push("long", -2)  # several of -1 may be on their way; behind this one is nothing
    seen: list[SubscriptionEvent] = []
    until(lambda: -2 in numbers(seen), lambda: seen.extend(queues[0].get_events()))  # the one that is told last
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
    assert subscriber.counts.dispatched.unrouted == 0


def test_what_a_new_client_makes_servers_send_twice_comes_once(
    lab: TangoServer, subscriber: TangoSubscriber, tmp_path: Path
) -> None:
    """New is a client that the server has not seen before, whatever it subscribes to."""
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
    """With a database each has one of its own until there are many, since a process may not open any number of files"""
    monkeypatch.setattr("mama_spark.tango.client.device_connections._OWN_CONNECTIONS", 3)
    lab = database_labs.fresh(8)
    found = [subscriber.subscribe(lab.address(device), "long") for device in lab.devices]
    assert len({device.connection for device in subscriber._consumer._calls._connections._devices.values()}) == 3
    taker = Taker(subscriber)
    for device, subscription in zip(lab.devices, found, strict=True):
        taker.until(lambda _, s=subscription: taker.of(s), lambda d=device: lab.push("long", 1, device=d))  # type: ignore[misc]
        assert numbers(taker.of(subscription, SubscriptionEventKind.INITIAL)) == [0]


def test_a_thousand_subscriptions_in_one_process(labs: DeviceServers, subscriber: TangoSubscriber) -> None:
    """25 devices with 40 attributes each: all agreed on, all read, all get their events."""
    lab = labs.fresh(25)
    types = [t for t in SAMPLES if t != "state"]
    names = [t + s for t in types for s in ("", "_spectrum", "_image")] + [
        "double_rw",
        "long_rw",
        "string_rw",
        "float_rw",
    ]
    assert len(lab.devices) * len(names) == 1000
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
    last.unsubscribe()  # the publisher has heard of it, so it has of all before
    taker.events.clear()
    for device in lab.devices:
        for name in names:
            type_, _, shape = name.removesuffix("_rw").partition("_")
            lab.push(name, shaped(type_, shape or "scalar")[0], device=device)
    wanted = set(found)
    taker.until(lambda events: {n.subscription for n in events if n.kind is SubscriptionEventKind.EVENT} == wanted)
    assert {n.kind for n in taker.events} == {SubscriptionEventKind.EVENT}
    assert len(subscriber.subscriptions) == 1000
