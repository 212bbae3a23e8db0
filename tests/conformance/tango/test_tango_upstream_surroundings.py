"""What the test suites of cppTango and PyTango ask of a subscriber where more than one server and one client take part,
by the names of their tests: locks, forwarded attributes, servers that are clients, pipes, threads, polling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mama_spark.tango.client.device_proxy import open_device
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import EventSubMode
from mama_spark.tango.client.subscription_events import SubscriptionEvent
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.tango.errors import DevFailed
from mama_spark.tango.source.device import Attribute, Device
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.source.event_supplier import SourceSettings
from mama_spark.tango.types import (
    AttributeConfig,
    DevError,
    PipeBlob,
    PipeData,
    PipeElement,
    Severity,
    ValueKind,
)
from mama_spark.testing.waiting import until

from tests.support.tango.tango import FAST
from tests.support.tango_processes.servers import (
    BEAT,
    TIMEOUT,
    DeviceProbe,
    TangoDatabase,
    TangoMirror,
    TangoServer,
)

DEVICE = "test/pub/1"


@pytest.fixture
def subscriber() -> Iterator[TangoSubscriber]:
    with TangoSubscriber(timeouts=FAST, timeout=TIMEOUT) as opened:
        yield opened


class ReceivedEvents:
    """All events so far."""

    def __init__(self, subscriber: TangoSubscriber) -> None:
        self._subscriber = subscriber
        self.events: list[SubscriptionEvent] = []

    def until(self, enough: Callable[[], Any], act: Callable[[], Any] = lambda: None) -> list[SubscriptionEvent]:
        def more() -> Any:
            self.events += self._subscriber.take(100_000)
            return enough()

        until(more, act)
        return self.events

    def wait(self, kind: Kind, count: int = 1, act: Callable[[], Any] = lambda: None) -> list[SubscriptionEvent]:
        self.until(lambda: len(self.of(kind)) >= count, act)
        return self.of(kind)

    def of(self, kind: Kind) -> list[SubscriptionEvent]:
        return [event for event in self.events if event.kind is kind]

    def reasons(self) -> set[str]:
        return {error.reason for event in self.events for error in event.errors}


def first(event: SubscriptionEvent) -> Any:
    """The number that was read."""
    read = event.value.read
    assert isinstance(read, np.ndarray)
    return read.tolist()[0]


# --- others have a say ---------------------------------------------------------------------------------------


def test_event_lock(lab_with_database: TangoServer, subscriber: TangoSubscriber, tmp_path: Path) -> None:
    """cppTango event_lock: a device that another client has locked can be subscribed to, is read, and sends events."""
    taken, server = ReceivedEvents(subscriber), lab_with_database
    with DeviceProbe(tmp_path / "probe", tango_host=server.host) as probe:
        probe.call("lock", device=server.address())
        with open_device(server.address(), timeout=TIMEOUT) as device, pytest.raises(DevFailed) as caught:
            device.command("Echo", "locked out")
        assert caught.value.reason == "API_DeviceLocked"
        subscriber.subscribe(server.address(), "long")
        taken.wait(Kind.EVENT, 2, lambda: server.push("long", 7))
        assert first(taken.events[-1]) == 7
        assert len(taken.of(Kind.INITIAL)) == 1
        assert taken.reasons() == set()
        probe.call("unlock", device=server.address())


def test_fwd_att(
    lab_with_database: TangoServer, tango_database: TangoDatabase, tmp_path: Path, subscriber: TangoSubscriber
) -> None:
    """cppTango cxx_fwd_att: events of an attribute that another server's device has; its own name is in the topic
    alone, since the value has that of the root."""
    taken, server = ReceivedEvents(subscriber), lab_with_database
    with TangoMirror(tmp_path / "mirror", f"{server.devices[0]}/long", tango_database) as mirror:
        subscription = subscriber.subscribe(mirror.address, "forwarded")
        taken.wait(Kind.EVENT, act=lambda: server.push("long", 3))
        assert first(taken.events[-1]) == 3
        assert subscription.topic == f"{mirror.address}/forwarded.idl5_change"
        config = subscriber.subscribe(mirror.address, "forwarded", "attr_conf")
        found: list[Any] = []
        until(lambda: found, lambda: found.extend(n.data for n in subscriber.take() if n.subscription is config))
        assert isinstance(found[0], AttributeConfig)
        assert found[0].root_attr_name == f"{server.address()}/long"


def test_device_proxy_in_server_receives_events(
    lab: TangoServer, subscriber: TangoSubscriber, probe: DeviceProbe
) -> None:
    """cppTango cxx_server_event, PyTango test_device_proxy_in_server_receives_events and
    test_push_event_with_event_callback: a server that is a client pushes an event in the callback of another one."""
    with TangoEventSource([Device(DEVICE, [Attribute("doubled")])], SourceSettings(heartbeat_period=BEAT)) as source:

        def callback(event: SubscriptionEvent) -> None:
            if event.kind is Kind.EVENT:
                source.push_change_event(DEVICE, "doubled", 2.0 * first(event))

        subscriber.subscribe(lab.address(), "long", mode=EventSubMode.SYNC, callback=callback)
        number = probe.subscribe(source.address(DEVICE), "doubled", "change")
        until(lambda: len(probe.events(number)) > 1, lambda: lab.push("long", -1))
        for value in (1, 2, 3):
            lab.push("long", value)
        probe.wait_event(number, lambda event: event["value"]["value"] == 6.0)
        assert [event["value"]["value"] for event in probe.events(number)[-3:]] == [2.0, 4.0, 6.0]


# --- what comes ------------------------------------------------------------------------------------------------


@pytest.mark.spec("TG-14")
def test_pipe_event(subscriber: TangoSubscriber) -> None:
    """cppTango pipe_event: what is in the pipe at first, then what is pushed: a blob, one with a date, an error,
    3,000 elements. From our own source, since no server that is to be had sends pipes any more."""
    taken = ReceivedEvents(subscriber)
    many = PipeBlob("many", tuple(PipeElement(str(n), ValueKind.STRING, (str(n),)) for n in range(3000)))
    broken = DevError("Broken", Severity.ERR, "d", "o")
    with TangoEventSource([Device(DEVICE)]) as source:
        with pytest.raises(DevFailed) as caught:
            subscriber.subscribe(source.address(DEVICE), "nope", "pipe")
        assert caught.value.reason == "API_PipeNotFound"
        source.push_pipe_event(DEVICE, "Pipe", PipeBlob("first"), time=5)
        subscriber.subscribe(source.address(DEVICE), "Pipe", "pipe")
        (initial,) = taken.wait(Kind.INITIAL)
        assert initial.data == PipeData("Pipe", 5, PipeBlob("first"))
        taken.wait(Kind.EVENT, act=lambda: source.push_pipe_event(DEVICE, "Pipe", PipeBlob("try")))
        source.push_pipe_event(DEVICE, "Pipe", PipeBlob("dated"), time=7_000)
        source.push_pipe_event(DEVICE, "Pipe", errors=[broken])
        source.push_pipe_event(DEVICE, "Pipe", many, time=9_000)
        taken.until(lambda: taken.events[-1].data == PipeData("Pipe", 9_000, many))
        dated, error, _ = taken.of(Kind.EVENT)[-3:]
        assert dated.data == PipeData("Pipe", 7_000, PipeBlob("dated"))
        assert error.errors == (broken,)
        assert subscriber.counts.dispatched.gaps == 0
