"""Confirmation of subscriptions at device servers (TG-37, TG-43)."""

from __future__ import annotations

from typing import Any

import pytest
import zmq
from mama_spark.tango.client.device_proxy import open_device
from mama_spark.tango.client.keep_alive import Timeouts
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.tango.client.subscription_states import ConfirmSubscription
from mama_spark.tango.errors import DevFailed
from mama_spark.tango.giop.cdr import CdrReader, CdrWriter
from mama_spark.tango.giop.ior import parse_device
from mama_spark.tango.idl.negotiation import SubscriberInfo
from mama_spark.tango.source.device import Attribute, Device
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.source.event_supplier import SourceSettings
from mama_spark.tango.types import EventType
from mama_spark.testing.waiting import until

from tests.support.tango.tango_subscriptions import DEVICE, Watch, reasons
from tests.support.tango_processes.servers import TIMEOUT, TangoServer


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
