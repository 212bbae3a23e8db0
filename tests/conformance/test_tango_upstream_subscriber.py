"""What the test suites of cppTango and PyTango ask of a subscriber, by the names of their tests, against a real
device server.

Elsewhere: pipes (pipe_event) from recorded frames in ``tests/unit/tango/test_tango_events.py``, since no server that is
to be had sends them any more; all types of values (att_type_event) in ``tests/live/test_tango_subscriber.py``;
reconnection with its real times (cxx_reconnection_zmq) in ``tests/live/test_tango_subscriber_times.py``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mama_spark.tango.errors import DevFailed
from mama_spark.tango.ior import parse_device
from mama_spark.tango.life import State, Times
from mama_spark.tango.notices import Kind, Notice
from mama_spark.tango.rpc import open_device
from mama_spark.tango.subscriber import TangoSubscriber
from mama_spark.tango.subscription import SubMode, Subscription
from mama_spark.tango.types import (
    AttributeConfig,
    DataReady,
    DevState,
    Encoded,
    InterfaceChange,
    Quality,
)
from mama_spark.testing.tango_servers import PATIENCE, DeviceProbe, TangoServer, free_port
from mama_spark.testing.waiting import until

DEVICE = "test/lab/1"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[TangoServer]:
    with TangoServer(tmp_path / "server") as started:
        yield started


@pytest.fixture
def subscriber() -> Iterator[TangoSubscriber]:
    with TangoSubscriber(times=Times(check=0.3, late=30.0, retry=0.1, retry_max=0.3), timeout=PATIENCE) as opened:
        yield opened


class Callback:
    """Keeps what it was called with."""

    def __init__(self) -> None:
        self.notices: list[Notice] = []
        self._before: list[Any] = []

    def forget(self) -> None:
        """What came so far."""
        self._before = self.told()[-1:]
        self.notices.clear()

    def __call__(self, notice: Notice) -> None:
        self.notices.append(notice)

    def wait(self, count: int, act: Callable[[], Any] = lambda: None) -> list[Notice]:
        until(lambda: len(self.notices) >= count, act)
        return self.notices

    def told(self) -> list[Any]:
        """Without what a server says of itself when its machine is busy, and what it then says again."""
        found, busy = [*self._before], False
        for one in map(told, list(self.notices)):
            if one != "API_PollThreadOutOfSync" and not (busy and found and one == found[-1]):
                found.append(one)
            busy = one == "API_PollThreadOutOfSync"
        return found[len(self._before) :]


def told(notice: Notice) -> Any:
    """A value, or the reason of an error."""
    if notice.errors:
        return notice.errors[0].reason
    data = notice.data
    if isinstance(data, DataReady):
        return data.ctr
    read = notice.value.read
    if isinstance(read, DevState):
        return read.name
    if read is None:
        return None
    values = [str(x) if isinstance(x, str) else x.item() if hasattr(x, "item") else x for x in read]
    return values[0] if (notice.value.r_dim.x, notice.value.r_dim.y) == (1, 0) else values


def ready(
    server: TangoServer, subscriber: TangoSubscriber, attribute: str, event: str = "change", value: Any = 0
) -> tuple[Subscription, Callback]:
    """A subscription that surely has reached the publisher; what came for it is forgotten."""
    callback = Callback()
    subscription = subscriber.subscribe(server.address(), attribute, event, mode=SubMode.SYNC, callback=callback)
    callback.wait(1, lambda: server.push(attribute, value, event=event.removesuffix("_event")))
    last = 123 if attribute in ("double", "long") else value
    if last != value:
        server.push(attribute, last, event=event.removesuffix("_event"))
        until(lambda: callback.told()[-1:] == [last])
    callback.forget()
    return subscription, callback


def polled(server: TangoServer, subscriber: TangoSubscriber, event: str = "change") -> Callback:
    """A subscription to ``level``, whose events the server sends by itself, that surely has reached the publisher: its
    last value was 1.0, and what came is forgotten."""
    server.tell("level", 1.0)
    server.do("poll", "level", period=50)
    callback, values = Callback(), itertools.count(10.0, 10.0)
    subscriber.subscribe(server.address(), "level", event, callback=callback)
    assert callback.wait(1)[0].kind is Kind.INITIAL
    callback.wait(2, lambda: server.tell("level", next(values)))
    for value in (5.0, 1.0):
        server.tell("level", value)
        until(lambda v=value: callback.told()[-1] == v)  # type: ignore[misc]
    assert {notice.kind for notice in callback.notices[1:]} == {Kind.EVENT}
    callback.forget()
    return callback


# --- change, archive, periodic, user -----------------------------------------------------------------------


@pytest.mark.parametrize("event", ["change", "archive"])
def test_change_event_and_archive_event(server: TangoServer, subscriber: TangoSubscriber, event: str) -> None:
    """cppTango change_event, change_event64, archive_event: a first value at the subscription, an event for a step up
    and for a step down, one for an error and none while it lasts, one when it ends."""
    callback = polled(server, subscriber, event)
    for value in (2.0, 1.0):
        server.tell("level", value)
        until(lambda v=value: callback.told()[-1:] == [v])  # type: ignore[misc]
    server.tell("level", error={"reason": "Broken", "desc": "d", "origin": "o"})
    until(lambda: callback.told()[-1] == "Broken")
    server.tell("level", 1.0)
    until(lambda: callback.told()[-1] == 1.0)
    assert callback.told() == [2.0, 1.0, "Broken", 1.0]


def test_change_event_of_a_spectrum_that_grows_and_shrinks(server: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango change_event, change_event64"""
    _, callback = ready(server, subscriber, "long64_spectrum", value=[0])
    want = [[2**40, 2], [1, 2, 3], [4, 5], []]
    for value in want:
        server.push("long64_spectrum", value)
    until(lambda: callback.told()[-4:] == want)


def test_change_event_refuses_a_subscription_whose_polling_has_stopped(
    server: TangoServer, subscriber: TangoSubscriber
) -> None:
    """cppTango change_event: API_AttributePollingNotStarted; in the stateless mode it is told and tried again, and
    connected when polling starts (catch2_alarm_event: API_PollObjNotFound, then a value)."""
    with pytest.raises(DevFailed) as caught:
        subscriber.subscribe(server.address(), "plain", "periodic")
    assert caught.value.reason == "API_AttributePollingNotStarted"
    callback = Callback()
    subscriber.subscribe(server.address(), "plain", "periodic", mode=SubMode.STATELESS, callback=callback)
    callback.wait(2)
    assert set(callback.told()) == {"API_AttributePollingNotStarted"}
    server.do("poll", "plain", period=20)
    until(lambda: callback.told()[-1] == 0.0)


def test_per_event(server: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango per_event: each second, whether the value changes or not; errors as well."""
    server.do("poll", "plain", period=50)
    callback = Callback()
    subscriber.subscribe(server.address(), "plain", "periodic", callback=callback)

    def times() -> list[int]:
        """When the server read what it sent."""
        return [n.value.time for n in list(callback.notices) if n.kind is Kind.EVENT and not n.errors]

    until(lambda: len(times()) >= 3)
    assert {n.kind for n in callback.notices[1:]} == {Kind.EVENT}
    first, _, third = times()[:3]
    assert (third - first) / 2e9 > 0.8  # no more often; a busy machine may send later
    server.tell("plain", error={"reason": "Broken", "desc": "d", "origin": "o"})
    until(lambda: callback.told().count("Broken") >= 2)


def test_user_event(server: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango user_event: pushed without polling, encoded values too."""
    _, callback = ready(server, subscriber, "double", "user_event")
    _, encoded = ready(server, subscriber, "encoded", "user_event", {"format": "a", "data": "00"})
    server.push("double", 4.5, event="user")
    server.push("encoded", {"format": "jpeg", "data": "0a0b"}, event="user")
    until(lambda: callback.told()[-1:] == [4.5])
    until(lambda: encoded.told()[-1:] == [Encoded("jpeg", b"\n\x0b")])


def test_state_event_and_status_event(server: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango state_event, catch2_state_status_events; PyTango test_send_events_no_data: the device's own state and
    status are sent."""
    state, status = Callback(), Callback()
    subscriber.subscribe(server.address(), "State", callback=state)
    subscriber.subscribe(server.address(), "Status", callback=status)
    server.do("state", state="FAULT", status="broken")
    until(lambda: state.told()[-1:] == ["FAULT"], lambda: server.push("State"))
    until(lambda: status.told()[-1:] == ["broken"], lambda: server.push("Status"))
    assert state.told()[0] == "ON"
    assert status.told()[0] == "fine"


def test_scan(server: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango scan: a quality is news as a value is."""
    _, callback = ready(server, subscriber, "double")
    for quality in ("VALID", "CHANGING", "VALID"):
        server.push("double", 1.0, quality=quality)
    callback.wait(3)
    assert [n.value.quality for n in callback.notices] == [Quality.VALID, Quality.CHANGING, Quality.VALID]


def test_change_event_on_nan(server: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango catch2_change_event_on_nan: a NaN comes as one, for double and float."""
    for name in ("double", "float"):
        _, callback = ready(server, subscriber, name)
        callback.wait(1, lambda n=name: server.push(n, math.nan))  # type: ignore[misc]
        assert math.isnan(callback.told()[-1])


def test_attr_polling(server: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango catch2_attr_polling: behind the first notices, the change, the error once, the recovery once."""
    callback = polled(server, subscriber)
    server.tell("level", 5.0)
    until(lambda: callback.told()[-1:] == [5.0])
    server.tell("level", error={"reason": "Broken", "desc": "", "origin": ""})
    until(lambda: callback.told()[-1] == "Broken")
    server.tell("level", 5.0)
    until(lambda: callback.told()[-1] == 5.0)
    assert callback.told() == [5.0, "Broken", 5.0]


def test_alarm_event(server: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango catch2_alarm_event, PyTango test_alarm_event: pushed by code, with and without a quality, and errors."""
    _, callback = ready(server, subscriber, "double", "alarm")
    server.push("double", 1.0, event="alarm", quality="ALARM")
    server.push_error("double", "Broken", event="alarm")
    server.push("double", 2.0, event="alarm", quality="WARNING")
    callback.wait(3)
    assert callback.told() == [1.0, "Broken", 2.0]
    assert callback.notices[2].value.quality is Quality.WARNING
    with pytest.raises(DevFailed) as caught:
        subscriber.subscribe(server.address(), "missing", "alarm")
    assert caught.value.reason == "API_AttrNotFound"


# --- configuration, data ready, interface, pipe ------------------------------------------------------------


def test_att_conf_event(server: TangoServer, subscriber: TangoSubscriber, tmp_path: Path) -> None:
    """cppTango att_conf_event, catch2_attr_conf_event: the configuration first, then one event a change and
    subscription."""
    one, two = Callback(), Callback()
    for callback in (one, two):
        subscriber.subscribe(server.address(), "level", "attr_conf", callback=callback)
    ready(server, subscriber, "long")  # subscribed behind it, by the same connection
    with DeviceProbe(tmp_path / "probe") as probe:
        for label in ("first", "second"):
            probe.call("configure", device=server.address(), attribute="level", changes={"label": label})
            until(lambda label=label: all(c.notices[-1].data.label == label for c in (one, two)))  # type: ignore
    for callback in (one, two):
        assert [n.kind for n in callback.notices] == [Kind.INITIAL, Kind.EVENT, Kind.EVENT]
        first = callback.notices[0].data
        assert isinstance(first, AttributeConfig)
        assert (first.label, first.unit, first.ch_event.abs_change) == ("Level", "V", "0.5")


def test_data_ready_event(server: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango catch2_data_ready_event, PyTango test_subscribe_data_ready_event: none at the subscription; type and
    counter, in order, also one that stands still or goes back; of an attribute whose read fails, too."""
    callback = Callback()
    server.tell("long", error={"reason": "Broken", "desc": "", "origin": ""})
    subscriber.subscribe(server.address(), "long", "data_ready", callback=callback)
    assert callback.notices == []
    callback.wait(1, lambda: server.do("data_ready", "long", counter=0))
    callback.notices.clear()
    counters = [5, 6, 100, 100, 3, -1]
    for counter in counters:
        server.do("data_ready", "long", counter=counter)
    until(lambda: callback.told()[-6:] == counters)
    assert {n.data.data_type for n in callback.notices if isinstance(n.data, DataReady)} == {3}
    assert {n.kind for n in callback.notices} == {Kind.EVENT}
    for attribute, reason in (("plain", "API_AttributeNotDataReadyEnabled"), ("nope", "API_AttrNotFound")):
        with pytest.raises(DevFailed) as caught:
            subscriber.subscribe(server.address(), attribute, "data_ready")
        assert caught.value.reason == reason


def test_dev_intr_event(server: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango catch2_dev_intr_event, PyTango test_subscribe_interface_event: at first a started device with its
    lists; then what was added, and what was removed."""
    callback = Callback()
    subscriber.subscribe(server.address(), None, "intr_change", callback=callback)

    def names() -> set[str]:
        data = callback.notices[-1].data
        assert isinstance(data, InterfaceChange)
        return {a.name for a in data.atts}

    first = callback.wait(1)[0].data
    assert isinstance(first, InterfaceChange)
    assert first.dev_started
    assert {"Init", "State", "Status", "Echo"} <= {c.cmd_name for c in first.cmds}
    ready(server, subscriber, "long")  # subscribed behind it, by the same connection
    before = names()
    server.do("add", "double_dynamic")
    callback.wait(2)
    assert names() - before == {"double_dynamic"}
    server.do("remove", "double_dynamic")
    until(lambda: names() == before)
    assert {n.kind for n in callback.notices[1:]} == {Kind.EVENT}


def test_dev_restart_goes_on_with_events(server: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango catch2_dev_intr_event: the interface is the same after DevRestart, so no event of it; and others come
    again without anybody doing anything."""
    interface, callback = Callback(), Callback()
    subscriber.subscribe(server.address(), None, "intr_change", callback=interface)
    subscriber.subscribe(server.address(), "long", callback=callback)
    with open_device(parse_device(server.address()).sibling(server.admin), timeout=PATIENCE) as admin:
        admin.command("DevRestart", DEVICE)
    until(lambda: callback.told()[-1] == 7, lambda: server.push("long", 7))
    assert [n.kind for n in interface.notices] == [Kind.INITIAL]


# --- pull model --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", ["change", "archive", "alarm", "user_event"])
def test_change_event_buffer_and_get_events(server: TangoServer, subscriber: TangoSubscriber, event: str) -> None:
    """cppTango change_event_buffer, PyTango test_get_events: a queue of 1 keeps the last, of 5 the last 5, of 0 all;
    times ascend; taken once."""
    found = {
        size: subscriber.subscribe(server.address(), "long", event, mode=SubMode.SYNC, queue=size) for size in (1, 5, 0)
    }
    name = event.removesuffix("_event")
    until(lambda: all(len(s.inbox) for s in found.values()), lambda: server.push("long", -1, event=name))
    server.push("long", -2, event=name)  # several of -1 may be on their way; behind this one is nothing
    seen: list[Notice] = []
    until(lambda: -2 in map(told, seen), lambda: seen.extend(found[0].get_events()))  # the one that is told last
    for subscription in found.values():
        subscription.get_events()
    dropped = found[1].inbox.dropped
    server.do("burst", "long", count=9, event=name)
    until(lambda: len(found[0].inbox) == 9)
    until(lambda: found[1].inbox.dropped == dropped + 8)
    taken = {size: s.get_events() for size, s in found.items()}
    assert {size: [told(n) for n in notices] for size, notices in taken.items()} == {
        1: [8],
        5: [4, 5, 6, 7, 8],
        0: list(range(9)),
    }
    assert [n.received for n in taken[0]] == sorted(n.received for n in taken[0])
    assert all(s.get_events() == [] for s in found.values())


def test_att_conf_event_buffer_and_data_ready_event_buffer(server: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango att_conf_event_buffer, data_ready_event_buffer"""
    config = subscriber.subscribe(server.address(), "long", "attr_conf", queue=1)
    assert [n.kind for n in config.get_events()] == [Kind.INITIAL]
    queue = subscriber.subscribe(server.address(), "long", "data_ready", queue=5)
    until(lambda: len(queue.inbox), lambda: server.do("data_ready", "long", counter=-1))
    server.do("data_ready", "long", counter=-2)  # behind all of -1 that are on their way
    seen: list[Notice] = []
    until(lambda: -2 in map(told, seen), lambda: seen.extend(queue.get_events()))
    dropped = queue.inbox.dropped
    for counter in range(8):
        server.do("data_ready", "long", counter=counter)
    until(lambda: queue.inbox.dropped == dropped + 3)
    assert [told(n) for n in queue.get_events()] == [3, 4, 5, 6, 7]


# --- several ------------------------------------------------------------------------------------------------


def test_multi_event_and_multi_dev_event(tmp_path: Path, subscriber: TangoSubscriber) -> None:
    """cppTango multi_event, multi_dev_event: one event with several callbacks, several devices; ending one leaves the
    others."""
    devices = ["test/lab/1", "test/lab/2"]
    with TangoServer(tmp_path / "ds", devices) as server:
        callbacks = [Callback() for _ in range(4)]
        made = [
            subscriber.subscribe(server.address(devices[n // 2]), "long", mode=SubMode.SYNC, callback=callback)
            for n, callback in enumerate(callbacks)
        ]
        for device, pair in ((devices[0], callbacks[:2]), (devices[1], callbacks[2:])):
            until(lambda p=pair: all(c.notices for c in p), lambda d=device: server.push("long", 1, device=d))  # type: ignore[misc]
            server.push("long", 2, device=device)  # behind all of 1 that are on their way
            until(lambda p=pair: all(c.told()[-1] == 2 for c in p))  # type: ignore[misc]
        made[0].unsubscribe()
        for callback in callbacks:
            callback.notices.clear()
        for n, device in enumerate(devices):
            server.push("long", 10 + n, device=device)
        until(lambda: all(c.notices for c in callbacks[1:]))
        assert [c.told()[-1:] for c in callbacks] == [[], [10], [11], [11]]
        assert callbacks[0].notices == []


def test_event_after_unsubscription_crash(server: TangoServer, subscriber: TangoSubscriber) -> None:
    """PyTango test_event_after_unsubscription_crash, test_callback_was_dereferenced: nothing is called any more."""
    subscription, callback = ready(server, subscriber, "long")
    subscription.unsubscribe()
    server.push("long", 1)
    _, other = ready(server, subscriber, "double")
    other.wait(1, lambda: server.push("double", 2.0))
    assert callback.notices == []


def test_error_in_event_callback(server: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango catch2_error_in_event_callback: reported, and delivery goes on."""
    came: list[Any] = []

    def callback(notice: Notice) -> None:
        came.append(told(notice))
        raise ValueError("as wanted")

    subscriber.subscribe(server.address(), "long", callback=callback)
    until(lambda: came[-1:] == [3], lambda: server.push("long", 3))
    until(lambda: subscriber.counts.callback_errors == len(came))


def test_callback_unsubscribes(server: TangoServer, subscriber: TangoSubscriber) -> None:
    """cppTango change_event, per_event: subscribe and unsubscribe in a callback."""
    again = Callback()

    def callback(notice: Notice) -> None:
        notice.subscription.unsubscribe()
        subscriber.subscribe(server.address(), "long", callback=again)

    subscriber.subscribe(server.address(), "long", callback=callback)
    again.wait(1)
    until(lambda: again.told()[-1] == 4, lambda: server.push("long", 4))
    assert len(subscriber.subscriptions) == 1


# --- beginning ---------------------------------------------------------------------------------------------


def test_attribute_with_no_events_cannot_be_subscribed(server: TangoServer, subscriber: TangoSubscriber) -> None:
    """PyTango test_attribute_with_no_events_cannot_be_subscribed, test_event_subscription_sub_modes..._fails"""
    for attribute, reason in (("plain", "API_AttributePollingNotStarted"), ("nope", "API_AttrNotFound")):
        for mode in (SubMode.SYNC, SubMode.SYNC_READ):
            with pytest.raises(DevFailed) as caught:
                subscriber.subscribe(server.address(), attribute, mode=mode)
            assert caught.value.reason == reason
    assert subscriber.subscriptions == []


@pytest.mark.parametrize("mode", list(SubMode))
def test_event_subscription_sub_modes(server: TangoServer, subscriber: TangoSubscriber, mode: SubMode) -> None:
    """PyTango test_event_subscription_sub_modes: which ones have a first value, and which have it at once."""
    server.tell("long", 9)
    callback = Callback()
    subscription = subscriber.subscribe(server.address(), "long", mode=mode, callback=callback)
    if mode.waits:
        assert subscription.state is State.CONNECTED
    until(lambda: callback.told()[-1:] == [5], lambda: server.push("long", 5))
    assert sum(n.kind is Kind.INITIAL for n in callback.notices) == mode.reads
    if mode.waits and mode.reads:
        assert callback.told()[0] == 9


@pytest.mark.parametrize("mode", [SubMode.ASYNC, SubMode.ASYNC_READ, SubMode.STATELESS])
def test_event_subscription_sub_modes_invalid_attribute(
    server: TangoServer, subscriber: TangoSubscriber, mode: SubMode
) -> None:
    """PyTango test_event_subscription_sub_modes_invalid_attribute: the error comes again and again."""
    callback = Callback()
    subscriber.subscribe(server.address(), "nope", mode=mode, callback=callback)
    callback.wait(2)
    assert set(callback.told()) == {"API_AttrNotFound"}


def test_stateless_subscription_and_event_on_connection_failure(tmp_path: Path, subscriber: TangoSubscriber) -> None:
    """cppTango cxx_stateless_subscription, catch2_event_on_connection_failure: a dead server raises nothing, gives an
    error each period, and connects later; what was not connected yet can be ended."""
    server = TangoServer(tmp_path / "server", port=free_port())
    callback, ended = Callback(), Callback()
    subscriber.subscribe(server.address(), "long", mode=SubMode.STATELESS, callback=callback)
    other = subscriber.subscribe(server.address(), "long", mode=SubMode.STATELESS, callback=ended)
    callback.wait(2)
    ended.wait(2)
    other.unsubscribe()
    ended.notices.clear()
    assert set(callback.told()) == {"API_CantConnectToDevice"}
    with server:
        until(lambda: callback.told()[-1] == 3, lambda: server.push("long", 3))
    assert ended.notices == []


def test_is_event_subscribed_and_unsubscription_without_subscription(
    server: TangoServer, subscriber: TangoSubscriber
) -> None:
    """PyTango test_is_event_subscribed; cppTango catch2_attr_proxy, where it fails: here ending twice is harmless."""
    subscription = subscriber.subscribe(server.address(), "long")
    assert subscriber.subscriptions == [subscription]
    subscription.unsubscribe()
    assert subscriber.subscriptions == []
    subscription.unsubscribe()
    assert subscription.state is State.CANCELLED


def test_push_event_with_errors_between(server: TangoServer, subscriber: TangoSubscriber) -> None:
    """PyTango test_change_event, test_archive_event, test_user_event: exact lists, errors between."""
    for event in ("change", "archive", "user_event"):
        _, callback = ready(server, subscriber, "long", event)
        name = event.removesuffix("_event")
        for value in (1, 2):
            server.push("long", value, event=name)
        server.push_error("long", "Between", event=name)
        server.push("long", 3, event=name)
        until(lambda c=callback: c.told()[-1:] == [3])  # type: ignore[misc]
        assert callback.told() == [1, 2, "Between", 3]
