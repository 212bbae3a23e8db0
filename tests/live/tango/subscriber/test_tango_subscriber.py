"""Subscriptions at device servers, with and without a database: event types, modes of subscribing, names, refusals."""

from __future__ import annotations

import pytest
from mama_spark.contracts.errors import ClientClosed, ConfigError
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import EventSubMode
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.tango.client.subscription_states import SubscriptionState
from mama_spark.tango.errors import DevFailed, DeviceAway
from mama_spark.tango.giop.ior import BadAddress
from mama_spark.tango.types import AttributeConfig, DataReady, InterfaceChange, Quality

from tests.support.tango.tango_subscriptions import Watch, numbers
from tests.support.tango_processes.servers import PATIENT, TIMEOUT, DeviceProbe, TangoServer


@pytest.mark.spec("TG-12", "TG-19", "TG-22", "TG-23")
def test_every_event_type_with_a_value_arrives(either: TangoServer, subscriber: TangoSubscriber) -> None:
    either.do("poll", "double_rw", period=20)
    names = ("change", "archive", "alarm", "user_event")
    pushed = {name: subscriber.subscribe(either.address(), "double", name) for name in names}
    periodic = subscriber.subscribe(either.address(), "double_rw", "periodic")
    watch = Watch(subscriber)
    watch.more()
    assert all(len(watch.of(Kind.INITIAL, s)) == 1 for s in (*pushed.values(), periodic))
    for name, subscription in pushed.items():
        event = name.removesuffix("_event")
        watch.until(
            lambda s=subscription: watch.of(Kind.EVENT, s),  # type: ignore[misc]
            lambda e=event: either.push("double", 4.5, event=e),  # type: ignore[misc]
        )
        assert numbers(watch.of(Kind.EVENT, subscription))[0] == 4.5
        event_of = watch.of(Kind.EVENT, subscription)[0].event
        assert event_of is not None
        assert event_of.topic.event is subscription.event
    watch.until(lambda: len(watch.of(Kind.EVENT, periodic)) >= 2)


def test_configurations_interfaces_and_ready_data_of_either_release_arrive(
    either: TangoServer, subscriber: TangoSubscriber, probe: DeviceProbe
) -> None:
    config, ready = (subscriber.subscribe(either.address(), "double", name) for name in ("attr_conf", "data_ready"))
    interface = subscriber.subscribe(either.address(), event="intr_change")
    watch = Watch(subscriber)
    watch.more()
    assert [len(watch.of(Kind.INITIAL, one)) for one in (config, ready, interface)] == [1, 0, 1]
    watch.until(lambda: watch.of(Kind.EVENT, ready), lambda: either.do("data_ready", "double", counter=42))
    assert watch.of(Kind.EVENT, ready)[0].data == DataReady("double", 5, 42)
    probe.call("configure", device=either.address(), attribute="double", changes={"label": "new label"})
    watch.until(lambda: watch.of(Kind.EVENT, config))
    changed = watch.of(Kind.EVENT, config)[0].data
    assert isinstance(changed, AttributeConfig)
    assert changed.label == "new label"
    either.do("add", "double_more")
    watch.until(lambda: watch.of(Kind.EVENT, interface))
    before, after = (watch.of(kind, interface)[0].data for kind in (Kind.INITIAL, Kind.EVENT))
    assert isinstance(before, InterfaceChange)
    assert isinstance(after, InterfaceChange)
    assert {one.name for one in after.atts} - {one.name for one in before.atts} == {"double_more"}


def test_the_first_value_is_delivered_as_initial(either: TangoServer, subscriber: TangoSubscriber) -> None:
    """The modes with a read deliver the value before events."""
    either.tell("double", 7.5, quality="ALARM")
    either.tell("long", error={"reason": "NotNow", "desc": "d", "origin": "o"})
    with_value = subscriber.subscribe(either.address(), "double")
    without = subscriber.subscribe(either.address(), "double", mode=EventSubMode.SYNC)
    failing = subscriber.subscribe(either.address(), "long")
    watch = Watch(subscriber)
    watch.more()
    (first,) = watch.of(Kind.INITIAL, with_value)
    assert (numbers([first]), first.value.quality, first.ctr) == ([7.5], Quality.ALARM, 0)
    assert not watch.of(Kind.INITIAL, without)
    (error,) = watch.of(Kind.INITIAL, failing)
    assert [e.reason for e in error.errors] == ["NotNow"]
    assert len(watch.events) == 2


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
def test_invalid_names_and_settings_are_refused_before_any_call(subscriber: TangoSubscriber) -> None:
    for name in ("a/b", "tango://h/a/b/c", "a/b/c#dbase=maybe"):
        with pytest.raises(BadAddress):
            subscriber.subscribe(name, "x")
    with pytest.raises(ConfigError, match="unknown Tango event type 'changes'"):
        subscriber.subscribe("tango://h:1/a/b/c", "x", "changes")
    for attribute in (None, "", "a/b", "a#b", "\u20ac", "a:b", "a->b", "\u00e9"):
        with pytest.raises(ConfigError, match="invalid attribute name"):
            subscriber.subscribe("tango://h:1/a/b/c", attribute)
    with pytest.raises(ConfigError, match="invalid device name"):
        subscriber.subscribe("tango://h:1/a/b/c d", "x")


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
    assert [event.kind for event in subscriber.take()] == [Kind.INITIAL]  # received events can still be taken
    subscriber.close()
    with pytest.raises(ClientClosed):
        subscriber.start()


def test_full_attribute_names_and_tango_host_are_supported(
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
