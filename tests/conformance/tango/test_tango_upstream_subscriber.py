"""What the test suites of cppTango and PyTango ask of a subscriber, by the names of their tests, against a real
device lab.

Elsewhere: pipes (pipe_event) from recorded frames in ``tests/unit/tango/events/test_tango_event_codec.py``, since no
server that is to be had sends them any more. In ``tests/live/tango/subscriber``: all types (att_type_event) in
``test_tango_subscriber.py``, reconnection (cxx_reconnection_zmq) in ``test_tango_subscriber_reconnections.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from mama_spark.tango.client.device_proxy import open_device
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import EventSubMode, Subscription
from mama_spark.tango.client.subscription_events import SubscriptionEvent
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.tango.client.subscription_states import SubscriptionState
from mama_spark.tango.errors import DevFailed
from mama_spark.tango.giop.ior import parse_device
from mama_spark.tango.types import AttributeConfig, DataReady, DevState, InterfaceChange
from mama_spark.testing.waiting import until

from tests.support.tango.tango import FAST
from tests.support.tango_processes.servers import TIMEOUT, DeviceProbe, TangoServer


@pytest.fixture
def subscriber() -> Iterator[TangoSubscriber]:
    with TangoSubscriber(timeouts=FAST, timeout=TIMEOUT) as opened:
        yield opened


class Callback:
    """Keeps what it was called with."""

    def __init__(self) -> None:
        self.events: list[SubscriptionEvent] = []

    def forget(self) -> None:
        """What came so far."""
        self.events.clear()

    def __call__(self, event: SubscriptionEvent) -> None:
        self.events.append(event)

    def wait(self, count: int, act: Callable[[], Any] = lambda: None) -> list[SubscriptionEvent]:
        until(lambda: len(self.events) >= count, act)
        return self.events

    def told(self) -> list[Any]:
        return list(map(told, list(self.events)))


def told(event: SubscriptionEvent) -> Any:
    """A value, or the reason of an error."""
    if event.errors:
        return event.errors[0].reason
    data = event.data
    if isinstance(data, DataReady):
        return data.ctr
    read = event.value.read
    if isinstance(read, DevState):
        return read.name
    if read is None:
        return None
    values = [str(x) if isinstance(x, str) else x.item() if hasattr(x, "item") else x for x in read]
    return values[0] if (event.value.r_dim.x, event.value.r_dim.y) == (1, 0) else values


def ready(
    lab: TangoServer, subscriber: TangoSubscriber, attribute: str, event: str = "change", value: Any = 0
) -> tuple[Subscription, Callback]:
    """A subscription that surely has reached the publisher; what came for it is forgotten."""
    callback = Callback()
    subscription = subscriber.subscribe(lab.address(), attribute, event, mode=EventSubMode.SYNC, callback=callback)
    callback.wait(1, lambda: lab.push(attribute, value, event=event.removesuffix("_event")))
    last = 123 if attribute in ("double", "long") else value
    if last != value:
        lab.push(attribute, last, event=event.removesuffix("_event"))
        until(lambda: callback.told()[-1:] == [last])
    callback.forget()
    return subscription, callback


# --- state and status ----------------------------------------------------------------------------------------


def test_state_event_and_status_event(lab: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango state_event, catch2_state_status_events; PyTango test_send_events_no_data: the device's own state and
    status are sent."""
    state, status = Callback(), Callback()
    subscriber.subscribe(lab.address(), "State", callback=state)
    subscriber.subscribe(lab.address(), "Status", callback=status)
    lab.do("state", state="FAULT", status="broken")
    until(lambda: state.told()[-1:] == ["FAULT"], lambda: lab.push("State"))
    until(lambda: status.told()[-1:] == ["broken"], lambda: lab.push("Status"))
    assert state.told()[0] == "ON"
    assert status.told()[0] == "fine"


# --- configuration, data ready, interface, pipe ------------------------------------------------------------


@pytest.mark.spec("TG-13")
def test_att_conf_event(lab: TangoServer, subscriber: TangoSubscriber, probe: DeviceProbe) -> None:
    """cppTango att_conf_event, catch2_attr_conf_event: the configuration first, then one event a change and
    subscription."""
    one, two = Callback(), Callback()
    for callback in (one, two):
        subscriber.subscribe(lab.address(), "level", "attr_conf", callback=callback)
    ready(lab, subscriber, "long")  # subscribed behind it, by the same connection
    for label in ("first", "second"):
        probe.call("configure", device=lab.address(), attribute="level", changes={"label": label})
        until(lambda label=label: all(c.events[-1].data.label == label for c in (one, two)))  # type: ignore
    for callback in (one, two):
        assert [n.kind for n in callback.events] == [Kind.INITIAL, Kind.EVENT, Kind.EVENT]
        first = callback.events[0].data
        assert isinstance(first, AttributeConfig)
        assert (first.label, first.unit, first.ch_event.abs_change) == ("Level", "V", "0.5")


@pytest.mark.spec("TG-15")
def test_data_ready_event(lab: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango catch2_data_ready_event, PyTango test_subscribe_data_ready_event: none at the subscription; type and
    counter, in order, also one that stands still or goes back; of an attribute whose read fails, too."""
    callback = Callback()
    lab.tell("long", error={"reason": "Broken", "desc": "", "origin": ""})
    subscriber.subscribe(lab.address(), "long", "data_ready", callback=callback)
    assert callback.events == []
    callback.wait(1, lambda: lab.do("data_ready", "long", counter=0))
    callback.events.clear()
    counters = [5, 6, 100, 100, 3, -1]
    for counter in counters:
        lab.do("data_ready", "long", counter=counter)
    until(lambda: callback.told()[-6:] == counters)
    assert {n.data.data_type for n in callback.events if isinstance(n.data, DataReady)} == {3}
    assert {n.kind for n in callback.events} == {Kind.EVENT}
    for attribute, reason in (("plain", "API_AttributeNotDataReadyEnabled"), ("nope", "API_AttrNotFound")):
        with pytest.raises(DevFailed) as caught:
            subscriber.subscribe(lab.address(), attribute, "data_ready")
        assert caught.value.reason == reason


@pytest.mark.spec("TG-16")
def test_dev_intr_event(lab: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango catch2_dev_intr_event, PyTango test_subscribe_interface_event: at first a started device with its
    lists; then what was added, and what was removed."""
    callback = Callback()
    subscriber.subscribe(lab.address(), None, "intr_change", callback=callback)

    def names() -> set[str]:
        data = callback.events[-1].data
        assert isinstance(data, InterfaceChange)
        return {a.name for a in data.atts}

    first = callback.wait(1)[0].data
    assert isinstance(first, InterfaceChange)
    assert first.dev_started
    assert {"Init", "State", "Status", "Echo"} <= {c.cmd_name for c in first.cmds}
    ready(lab, subscriber, "long")  # subscribed behind it, by the same connection
    before = names()
    lab.do("add", "double_dynamic")
    callback.wait(2)
    assert names() - before == {"double_dynamic"}
    lab.do("remove", "double_dynamic")
    until(lambda: names() == before)
    assert {n.kind for n in callback.events[1:]} == {Kind.EVENT}


def test_dev_restart_goes_on_with_events(own_lab: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango catch2_dev_intr_event: the interface is the same after DevRestart, so no event of it; and others come
    again without anybody doing anything. (A device that starts again has what others of its class were given.)"""
    interface, callback = Callback(), Callback()
    subscriber.subscribe(own_lab.address(), None, "intr_change", callback=interface)
    subscriber.subscribe(own_lab.address(), "long", callback=callback)
    with open_device(parse_device(own_lab.address()).sibling(own_lab.admin), timeout=TIMEOUT) as admin:
        admin.command("DevRestart", own_lab.devices[0])
    until(lambda: callback.told()[-1] == 7, lambda: own_lab.push("long", 7))
    assert [n.kind for n in interface.events] == [Kind.INITIAL]


# --- beginning ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", list(EventSubMode))
def test_event_subscription_sub_modes(lab: TangoServer, subscriber: TangoSubscriber, mode: EventSubMode) -> None:
    """PyTango test_event_subscription_sub_modes: which ones have a first value, and which have it at once."""
    lab.tell("long", 9)
    callback = Callback()
    subscription = subscriber.subscribe(lab.address(), "long", mode=mode, callback=callback)
    if mode.waits:
        assert subscription.state is SubscriptionState.CONNECTED
    until(lambda: callback.told()[-1:] == [5], lambda: lab.push("long", 5))
    assert sum(n.kind is Kind.INITIAL for n in callback.events) == mode.reads
    if mode.waits and mode.reads:
        assert callback.told()[0] == 9


def test_push_event_with_errors_between(lab: TangoServer, subscriber: TangoSubscriber) -> None:
    """PyTango test_change_event, test_archive_event, test_alarm_event, test_user_event: exact lists, errors between."""
    for event in ("change", "archive", "alarm", "user_event"):
        _, callback = ready(lab, subscriber, "long", event)
        name = event.removesuffix("_event")
        for value in (1, 2):
            lab.push("long", value, event=name)
        lab.push_error("long", "Between", event=name)
        lab.push("long", 3, event=name)
        until(lambda c=callback: c.told()[-1:] == [3])  # type: ignore[misc]
        assert callback.told() == [1, 2, "Between", 3]
