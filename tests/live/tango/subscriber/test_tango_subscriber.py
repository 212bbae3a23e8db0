"""Subscriptions at device servers, with and without a database: modes of subscribing, names, refusals, values,
endpoints, callbacks, confirmations.
"""

from __future__ import annotations

import socket
from typing import Any

import pytest
import zmq
from mama_spark.contracts.errors import ClientClosed, ConfigError
from mama_spark.tango.client.device_proxy import open_device
from mama_spark.tango.client.keep_alive import Timeouts
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import EventSubMode, Subscription
from mama_spark.tango.client.subscription_calls import choose
from mama_spark.tango.client.subscription_events import SubscriptionEvent
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.tango.client.subscription_states import ConfirmSubscription, SubscriptionState
from mama_spark.tango.errors import DevFailed, DeviceAway, ServerAway
from mama_spark.tango.giop.cdr import CdrReader, CdrWriter
from mama_spark.tango.giop.ior import BadAddress, parse_device
from mama_spark.tango.idl.negotiation import SubscriberInfo
from mama_spark.tango.source.device import Attribute, Device
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.source.event_supplier import SourceSettings
from mama_spark.tango.topics import BadEndpoint
from mama_spark.tango.types import AttributeValue, Encoded, EventType, Format, Quality
from mama_spark.testing.waiting import until

from tests.support.ports import lasting_port
from tests.support.tango.tango import FAST
from tests.support.tango.tango_subscriptions import DEVICE, SAMPLES, Watch, elements, numbers, pair, reasons, shaped
from tests.support.tango_processes.servers import PATIENT, TIMEOUT, TangoServer


def test_a_first_value_that_cannot_be_read_is_an_initial_error(lab: TangoServer, subscriber: TangoSubscriber) -> None:
    lab.tell("long", error={"reason": "NotNow", "desc": "d", "origin": "o"})
    subscriber.subscribe(lab.address(), "long")
    (error,) = subscriber.take()
    assert (error.kind, [e.reason for e in error.errors]) == (Kind.INITIAL, ["NotNow"])


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


# --- values of every type and format, quality, time and errors -----------------------------------------------


@pytest.mark.spec("TG-17", "TG-19", "TG-24", "TG-35")
def test_values_of_every_type_and_format_arrive_unchanged(either: TangoServer, subscriber: TangoSubscriber) -> None:
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
def test_quality_time_and_errors_arrive_unchanged(lab: TangoServer, subscriber: TangoSubscriber) -> None:
    subscription = subscriber.subscribe(lab.address(), "double", mode=EventSubMode.SYNC)
    watch = Watch(subscriber)
    watch.begin(subscription, lambda value: lab.push("double", value))
    lab.push("double", 2.5, quality="WARNING", time=1_700_000_000.25)
    lab.push_error("double", "MyReason", "my desc", "my.origin")
    lab.push("double", 3.5, quality="CHANGING")
    watch.until(lambda: len(watch.events) >= 3)
    one, error, two = watch.events
    assert (one.value.quality, one.value.time) == (Quality.WARNING, 1_700_000_000_250_000_000)
    assert two.value.quality is Quality.CHANGING
    assert error.kind is Kind.EVENT
    assert error.data is None
    assert [(e.reason, e.desc, e.origin) for e in error.errors] == [("MyReason", "my desc", "my.origin")]
    with pytest.raises(TypeError, match="carries no value"):
        _ = error.value


# --- which endpoint of a server is connected to, and its high-water mark (TG-08, TG-32, TG-33) ---------------


@pytest.mark.spec("TG-33")
def test_the_first_of_several_endpoints_that_accepts_connections_is_chosen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        first, second = (pair(s.getsockname()[1]) for s in (one, two))
        assert choose([pair(lasting_port()), first, second]) == first
        assert choose([pair(9, "epgm"), pair(lasting_port()), second]) == second
    with pytest.raises(ServerAway, match="none of 2 endpoints accepts a connection"):
        choose([pair(lasting_port()), pair(lasting_port())])


@pytest.mark.spec("TG-08", "TG-32")
@pytest.mark.parametrize("host", ["!x", "\xe9", "a@b", "-", "*"])
def test_an_invalid_endpoint_is_an_error_and_other_subscriptions_continue(host: str) -> None:
    """ZeroMQ raises for such endpoints, in the receiving thread of all subscriptions."""
    attributes = [Attribute("level")]
    with (
        TangoEventSource([Device(DEVICE, attributes)]) as bad,
        TangoEventSource([Device(DEVICE, attributes)]) as good,
        TangoSubscriber(timeouts=FAST, timeout=TIMEOUT) as subscriber,
    ):
        with pytest.raises(ConfigError, match="cannot be advertised"):
            TangoEventSource((), SourceSettings(advertise=[host]))
        bad._advertise = (host,)
        with pytest.raises(BadEndpoint):
            subscriber.subscribe(bad.address(DEVICE), "level")
        subscriber._consumer._receiver.connect(pair(7)._replace(event=f"tcp://{host}:7"), ("a", "b"), 1000)
        watch = Watch(subscriber)
        subscriber.subscribe(good.address(DEVICE), "level")
        watch.wait(Kind.EVENT, act=lambda: good.push_change_event(DEVICE, "level", 1.0))


@pytest.mark.spec("TG-10", "TG-44")
def test_the_high_water_mark_is_that_of_the_argument_the_variable_or_the_server(
    lab: TangoServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TANGO_EVENT_BUFFER_HWM", raising=False)
    found = []
    for given, variable in ((None, ""), (None, "77"), (55, "77")):
        monkeypatch.setenv("TANGO_EVENT_BUFFER_HWM", variable)
        with TangoSubscriber(hwm=given, timeouts=PATIENT, timeout=TIMEOUT) as subscriber:
            subscriber.subscribe(lab.address(), "long")
            found.append(subscriber.hwm)
    assert found == [1000, 77, 55]


# --- callbacks -----------------------------------------------------------------------------------------------


@pytest.mark.spec("TG-25")
def test_callbacks_that_raise_are_counted_and_delivery_goes_on(lab: TangoServer, subscriber: TangoSubscriber) -> None:
    came: list[Any] = []

    def callback(event: SubscriptionEvent) -> None:
        came.append(numbers([event])[0])
        raise RuntimeError("raised by the test")

    subscriber.subscribe(lab.address(), "double", mode=EventSubMode.SYNC, callback=callback)
    until(lambda: came, lambda: lab.push("double", 0.0))
    lab.push("double", 2.0)
    until(lambda: came[-1] == 2.0)
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


# --- Confirmation of subscriptions at device servers (TG-37, TG-43) ---------------------------------------------------


@pytest.mark.spec("TG-37")
def test_device_servers_accept_the_confirmation_of_all_subscriptions_of_a_channel(either: TangoServer) -> None:
    """The black box of the admin device contains the confirmations."""
    admin = open_device(parse_device(either.address()).sibling(either.admin), timeout=TIMEOUT)

    def black_box() -> list[str]:
        def body(writer: CdrWriter) -> None:
            writer.long(50)

        found: list[str] = admin.call("black_box", body, CdrReader.strings)
        return found

    times = Timeouts(check=10.0, heartbeat=30.0, confirm=0.2)
    with admin, TangoSubscriber(timeouts=times, timeout=TIMEOUT) as subscriber:
        admin.ping()  # an empty black box would be an error
        watch, before = Watch(subscriber), set(black_box())
        for event in ("change", "archive", "data_ready", "intr_change", "attr_conf"):
            subscriber.subscribe(either.address(), "double", event)
        until(lambda: len({line for line in black_box() if "EventConfirmSubscription" in line} - before) >= 2)
        watch.until(lambda: True)
        assert watch.of(Kind.ERROR) == []
        # a confirmation with another event name than the topic's would make the server send each event twice
        info = admin.subscribe(SubscriberInfo(either.devices[0], "double", EventType.CHANGE, 6))
        with zmq.Context() as context, context.socket(zmq.SUB) as everything:
            everything.setsockopt(zmq.LINGER, 0)
            everything.setsockopt(zmq.SUBSCRIBE, b"tango://")
            everything.connect(info.endpoints[0].event)
            topics: set[bytes] = set()
            until(lambda: everything.poll(20), lambda: either.push("double", 1.0))
            while everything.poll(100):
                topics.add(everything.recv_multipart()[0])
        assert topics == {either.topic("double").encode()}


@pytest.mark.spec("TG-37", "TG-43")
def test_a_removed_attribute_does_not_stop_confirmations_of_others(lab: TangoServer) -> None:
    """A server stops at the first confirmation that it refuses. The others are confirmed all the same, and the refused
    one is reported until the attribute exists again. The expiry of the event source is half a second."""
    names = ["kept", "gone", "more"]
    device = Device(DEVICE, [Attribute(name) for name in names])
    times = Timeouts(check=0.1, heartbeat=60.0, confirm=0.1)
    with (
        TangoEventSource([device], SourceSettings(expiry=0.5)) as source,
        TangoSubscriber(timeouts=times, timeout=TIMEOUT) as subscriber,
    ):
        watch = Watch(subscriber)
        gone, *others = [subscriber.subscribe(source.address(DEVICE), name) for name in ("gone", "kept", "more")]
        source.remove_attributes(DEVICE, ["gone"])
        watch.wait(Kind.ERROR, 8)  # one each 0.1 s: others would have expired
        assert reasons(watch.of(Kind.ERROR)) == {"API_AttrNotFound"}
        assert isinstance(gone.failure, DevFailed)
        assert [n.subscription for n in watch.of(Kind.ERROR)] == [gone] * len(watch.of(Kind.ERROR))
        for other in others:  # without confirmations they would have expired for good
            until(lambda name=other.attribute: source.subscribed(DEVICE, name))  # type: ignore[misc]
        source.add_attributes(DEVICE, [Attribute("gone")])
        watch.until(
            lambda: gone in [n.subscription for n in watch.of(Kind.EVENT)],
            lambda: source.push_change_event(DEVICE, "gone", 1.0),
        )
        until(lambda: gone.failure is None)
    lab.do("add", "double_dynamic")
    with TangoSubscriber(timeouts=times, timeout=TIMEOUT) as subscriber:
        watch = Watch(subscriber)
        dynamic = subscriber.subscribe(lab.address(), "double_dynamic")
        subscriber.subscribe(lab.address(), "long")
        lab.do("remove", "double_dynamic")
        watch.wait(Kind.ERROR, 3)
        assert {n.subscription for n in watch.of(Kind.ERROR)} == {dynamic}
        assert reasons(watch.of(Kind.ERROR)) == {"API_AttrNotFound"}


@pytest.mark.spec("TG-37", "TG-43")
def test_a_late_confirmation_does_not_stop_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """The subscription was cancelled before its confirmation was sent, and the channel has another subscription."""
    late: list[tuple[Any, Any]] = []
    later: list[Any] = []
    device = Device(DEVICE, [Attribute("first"), Attribute("second")])
    with (
        TangoEventSource([device], SourceSettings(expiry=0.5)) as source,
        TangoSubscriber(timeouts=Timeouts(check=0.1, heartbeat=60.0, confirm=0.1), timeout=TIMEOUT) as subscriber,
    ):
        submit = subscriber._consumer._submit

        def delay(work: Any, action: Any) -> None:
            if isinstance(action, ConfirmSubscription) and not late:
                late.append((work, action))
            else:
                later.extend([action] * isinstance(action, ConfirmSubscription))
                submit(work, action)

        monkeypatch.setattr(subscriber._consumer, "_submit", delay)
        first = subscriber.subscribe(source.address(DEVICE), "first")
        until(lambda: late)
        subscriber.subscribe(source.address(DEVICE), "second")
        first.unsubscribe()
        work, action = late[0]
        work(action)
        later.clear()
        until(lambda: len(later) >= 8)  # one each 0.1 s: it would have expired without them
        until(lambda: source.subscribed(DEVICE, "second"))
