"""Servers that end, stop, come back or never were there, floods, and what users are told (TG-40 to TG-46).

Times are shrunk where they are the subscriber's own; the real ones are in ``test_tango_subscriber_times.py``.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import zmq
from mama_spark.backoff import Backoff
from mama_spark.errors import ConfigError
from mama_spark.services.tango_server.device import Attribute, Device
from mama_spark.services.tango_server.event_source import TangoEventSource
from mama_spark.tango.client.device_proxy import open_device
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import EventSubMode, Subscription
from mama_spark.tango.client.subscription_calls import choose
from mama_spark.tango.client.subscription_events import QueueOverflow, SubscriptionEvent, SubscriptionEventKind
from mama_spark.tango.client.subscription_states import ConfirmSubscription, SubscriptionState, Timeouts
from mama_spark.tango.errors import ServerAway
from mama_spark.tango.events.sequence_tracker import SequenceGap, SequenceRestart
from mama_spark.tango.giop.cdr import CdrReader, CdrWriter
from mama_spark.tango.giop.ior import parse_device
from mama_spark.tango.idl.negotiation import EndpointPair, SubscriberInfo
from mama_spark.tango.topics import BadEndpoint, MulticastRefused
from mama_spark.tango.types import DevState, EventType
from mama_spark.testing.waiting import until

from tests.support.tango import FAST
from tests.support.tango_processes.servers import PATIENT, TIMEOUT, TangoDatabase, TangoServer, free_port
from tests.support.tango_processes.source_process import SourceProcess

DEVICE = "test/pub/1"


def own(folder: Path, database: TangoDatabase | None = None, name: str = "own") -> TangoServer:
    """A server of one test, which registers under a name of its own."""
    return TangoServer(
        folder / name, [f"test/{folder.name.lower()}/1"], database=database, instance=f"{folder.name}-{name}"
    )


class Watch:
    """What one subscription was told."""

    def __init__(self, subscriber: TangoSubscriber) -> None:
        self.subscriber = subscriber
        self.events: list[SubscriptionEvent] = []

    def until(self, enough: Callable[[], Any], act: Callable[[], Any] = lambda: None) -> None:
        until(lambda: self._more() and enough(), act)

    def _more(self) -> bool:
        self.events += self.subscriber.take(100_000, 0.0)
        return True

    def of(self, kind: SubscriptionEventKind, subscription: Subscription | None = None) -> list[SubscriptionEvent]:
        return [n for n in self.events if n.kind is kind and subscription in (None, n.subscription)]

    def wait(
        self, kind: SubscriptionEventKind, count: int = 1, act: Callable[[], Any] = lambda: None
    ) -> list[SubscriptionEvent]:
        self.until(lambda: len(self.of(kind)) >= count, act)
        return self.of(kind)

    def begin(self, subscription: Subscription, push: Callable[[int], Any]) -> int:
        """Push -1 until the first event comes, and then -2: behind it nothing is on its way any more. Its counter."""
        self.until(lambda: self.of(SubscriptionEventKind.EVENT, subscription), lambda: push(-1))
        push(-2)
        self.until(lambda: number(self.of(SubscriptionEventKind.EVENT, subscription)[-1]) == -2)
        last = self.of(SubscriptionEventKind.EVENT, subscription)[-1].ctr
        self.fresh()
        return last

    def fresh(self) -> None:
        self._more()
        self.events.clear()


def number(event: SubscriptionEvent) -> Any:
    read = event.value.read
    assert read is not None
    assert not isinstance(read, DevState)
    return read[0]


def reasons(events: list[SubscriptionEvent]) -> set[str]:
    return {event.errors[0].reason for event in events}


# --- servers that end and come back ------------------------------------------------------------------------


@pytest.mark.spec("TG-30", "TG-40-TG-42")
@pytest.mark.parametrize(("kind", "end"), [("nodb", "stop"), ("database", "kill")])
def test_a_restarted_server_is_found_again_with_one_value_and_a_restart(
    kind: str, end: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """TG-30, TG-40, TG-41, TG-42, twice: an error each check while it is away, one value that is told apart, and
    then events; that the counter began anew is told before the first."""
    database = request.getfixturevalue("tango_database") if kind == "database" else None
    with (
        own(tmp_path, database) as server,
        TangoSubscriber(timeouts=FAST, timeout=TIMEOUT, report_availability=True) as subscriber,
    ):
        watch = Watch(subscriber)
        subscription = subscriber.subscribe(server.address(), "long", mode=EventSubMode.SYNC)
        last = watch.begin(subscription, lambda value: server.push("long", value))
        getattr(server, end)()
        errors = watch.wait(SubscriptionEventKind.ERROR, 3)
        assert reasons(errors) == {"API_EventTimeout"}
        assert len(watch.of(SubscriptionEventKind.OFFLINE)) == 1
        assert watch.events[0].kind is SubscriptionEventKind.OFFLINE
        server.start()
        server.tell("long", 77)
        watch.wait(SubscriptionEventKind.RESUBSCRIPTION)
        watch.wait(SubscriptionEventKind.EVENT, act=lambda: server.push("long", 2))
        (value,) = watch.of(SubscriptionEventKind.RESUBSCRIPTION)
        assert number(value) in (0, 77)  # told when it was up already
        (restart,) = watch.of(SubscriptionEventKind.RESTART)
        first = watch.of(SubscriptionEventKind.EVENT)[0]
        assert restart.detail == SequenceRestart(last, first.ctr)
        assert watch.events.index(restart) == watch.events.index(first) - 1
        assert len(watch.of(SubscriptionEventKind.ONLINE)) == 1
        assert subscriber.counts.reconnects == 1
        assert subscriber.counts.dispatched.gaps == 0


@pytest.mark.spec("TG-40", "TG-41")
def test_a_restarted_server_with_fixed_ports_is_told_by_its_counter(tmp_path: Path) -> None:
    """cppTango catch2_configure_zmq_ports: the endpoints are the same, so nothing else tells."""
    ports = {f"TANGO_ZMQ_{name}_PORT": str(free_port()) for name in ("HEARTBEAT", "EVENT")}
    with (
        TangoServer(tmp_path / "server", environment=ports) as server,
        TangoSubscriber(timeouts=FAST, timeout=TIMEOUT) as subscriber,
    ):
        watch = Watch(subscriber)
        subscriber.subscribe(server.address(), "long", mode=EventSubMode.SYNC)
        watch.wait(SubscriptionEventKind.EVENT, act=lambda: server.push("long", 1))
        server.do("burst", "long", count=50)
        watch.until(lambda: watch.events and number(watch.events[-1]) == 49)
        last = watch.events[-1].ctr
        watch.fresh()
        server.kill()
        server.start()
        watch.wait(SubscriptionEventKind.RESUBSCRIPTION)
        watch.wait(SubscriptionEventKind.EVENT, act=lambda: server.push("long", 2))
        (restart,) = watch.of(SubscriptionEventKind.RESTART)
        assert restart.detail == SequenceRestart(last, watch.of(SubscriptionEventKind.EVENT)[0].ctr)
        assert watch.of(SubscriptionEventKind.GAP) == []


@pytest.mark.spec("TG-40", "TG-41", "TG-46")
def test_a_device_that_moved_to_another_server_is_found_there(tango_database: TangoDatabase, tmp_path: Path) -> None:
    """What Tango's own clients before 9.5 never did; that counters begin anew is told."""
    with TangoSubscriber(timeouts=FAST, timeout=TIMEOUT) as subscriber:
        watch = Watch(subscriber)
        with own(tmp_path, tango_database, "one") as server:
            subscription = subscriber.subscribe(server.address(), "long", mode=EventSubMode.SYNC)
            last = watch.begin(subscription, lambda value: server.push("long", value))
        with own(tmp_path, tango_database, "two") as server:
            watch.wait(SubscriptionEventKind.RESUBSCRIPTION)
            watch.wait(SubscriptionEventKind.EVENT, act=lambda: server.push("long", 2))
            (restart,) = watch.of(SubscriptionEventKind.RESTART)
            assert restart.detail == SequenceRestart(last, watch.of(SubscriptionEventKind.EVENT)[0].ctr)
            assert subscription.state is SubscriptionState.CONNECTED


@pytest.mark.spec("TG-40")
def test_a_stopped_server_is_missed_and_goes_on_where_it_was(tmp_path: Path) -> None:
    """SIGSTOP, SIGCONT. The same process: no restart, nothing lost. It sends a heartbeat more often than real ones."""
    times = Timeouts(check=0.3, heartbeat=3.0, confirm=200.0, retry=Backoff(0.1, 0.3))
    with (
        SourceProcess(tmp_path, ("long", "short"), heartbeat_period=0.3) as server,
        TangoSubscriber(timeouts=times, timeout=0.5, report_availability=True) as subscriber,
    ):
        watch = Watch(subscriber)
        # not in a mode that raises: half a second may be too short for a busy server
        long, short = (
            subscriber.subscribe(server.address, name, mode=EventSubMode.ASYNC) for name in ("long", "short")
        )
        watch.begin(long, lambda value: server.push("long", value))
        watch.begin(short, lambda value: server.push("short", value))
        server.pause()
        errors = watch.wait(SubscriptionEventKind.ERROR, 4)
        assert reasons(errors) == {"API_EventTimeout"}
        assert long.state in (SubscriptionState.HEARTBEAT_LOST, SubscriptionState.RECONNECTING)
        server.resume()
        watch.wait(SubscriptionEventKind.ONLINE, 2)
        assert subscriber._consumer._receiver.wait(TIMEOUT)
        # connected anew or not: what comes through for the one, subscribed behind the other, comes for both
        watch.begin(short, lambda value: server.push("short", value))
        server.call("burst", attribute="long", first=0, count=10)
        watch.until(lambda: [number(n) for n in watch.of(SubscriptionEventKind.EVENT, long)][-1:] == [9])
        assert [number(n) for n in watch.of(SubscriptionEventKind.EVENT, long)] == list(range(10))
        assert [
            n
            for n in watch.events
            if n.subscription is long and n.kind in (SubscriptionEventKind.RESTART, SubscriptionEventKind.GAP)
        ] == []
        assert subscriber.counts.dispatched.restarts == 0


@pytest.mark.spec("TG-36", "TG-40")
def test_a_subscriber_that_stood_still_itself_misses_nobody_who_was_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """What came meanwhile waits to be heard; without that, it would connect anew and lose events."""
    clock = SimpleNamespace(time_ns=time.time_ns, ahead=0.0)
    clock.monotonic = lambda: time.monotonic() + clock.ahead
    clock.sleep = lambda seconds: until(lambda: beat() > clock.ahead)
    times = Timeouts(check=0.02, heartbeat=500.0)
    with TangoEventSource([Device(DEVICE, [Attribute("level")])], "127.0.0.1", heartbeat_period=0.5) as source:
        monkeypatch.setattr("mama_spark.tango.client.event_consumer.time", clock)
        with TangoSubscriber(timeouts=times, timeout=TIMEOUT, report_availability=True) as subscriber:

            def beat() -> float:
                (channel,) = subscriber._consumer._machine._channels.values()
                return channel.last_heartbeat - began

            watch, began = Watch(subscriber), time.monotonic()
            subscription = subscriber.subscribe(source.address(DEVICE), "level", mode=EventSubMode.SYNC)
            watch.begin(subscription, lambda value: source.push_change_event(DEVICE, "level", value))
            for ahead in (1000.0, 2000.0):
                with subscriber._consumer._lock:  # nothing is heard, and nobody looks
                    clock.ahead = ahead
                until(lambda: beat() > clock.ahead)
            source.push_change_event(DEVICE, "level", 1.0)
            assert number(watch.wait(SubscriptionEventKind.EVENT)[0]) == 1.0
            assert [event.kind for event in watch.events] == [SubscriptionEventKind.EVENT]
            assert subscriber.counts.reconnects == 0


def test_one_server_that_is_away_does_not_hold_up_another_one(own_lab: TangoServer, lab: TangoServer) -> None:
    with TangoSubscriber(timeouts=FAST, timeout=TIMEOUT) as subscriber:
        watch = Watch(subscriber)
        away = subscriber.subscribe(own_lab.address(), "long")
        there = subscriber.subscribe(lab.address(), "long")
        watch.begin(there, lambda value: lab.push("long", value))
        own_lab.kill()
        late = subscriber.subscribe(own_lab.address(), "double", mode=EventSubMode.ASYNC_READ)
        watch.until(lambda: watch.of(SubscriptionEventKind.ERROR, late))
        watch.fresh()
        lab.do("burst", "long", count=50)
        watch.until(lambda: len(watch.of(SubscriptionEventKind.EVENT, there)) >= 50)
        assert [number(n) for n in watch.of(SubscriptionEventKind.EVENT, there)] == list(range(50))
        assert away.state is not SubscriptionState.POSTPONED
        own_lab.start()
        watch.until(lambda: watch.of(SubscriptionEventKind.EVENT, late), lambda: own_lab.push("double", 1.5))


# --- servers that are not there ----------------------------------------------------------------------------


@pytest.mark.spec("TG-30")
def test_a_server_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    """No exception, an error each period, and connected when it comes."""
    server = TangoServer(tmp_path / "server", port=free_port())
    with TangoSubscriber(timeouts=FAST, timeout=TIMEOUT) as subscriber:
        watch = Watch(subscriber)
        modes = (EventSubMode.STATELESS, EventSubMode.ASYNC, EventSubMode.ASYNC_READ)
        found = [subscriber.subscribe(server.address(), "long", mode=mode) for mode in modes]
        for subscription in found:
            watch.until(lambda s=subscription: len(watch.of(SubscriptionEventKind.ERROR, s)) >= 3)  # type: ignore[misc]
            assert subscription.state in (SubscriptionState.POSTPONED, SubscriptionState.NEGOTIATING)
            assert subscription.topic is None
        assert reasons(watch.of(SubscriptionEventKind.ERROR)) == {"API_CantConnectToDevice"}
        with server:
            for subscription, mode in zip(found, modes, strict=True):
                watch.until(
                    lambda s=subscription: watch.of(SubscriptionEventKind.EVENT, s),  # type: ignore[misc]
                    lambda: server.push("long", 5),
                )
                watch.until(lambda s=subscription, m=mode: bool(watch.of(SubscriptionEventKind.INITIAL, s)) is m.reads)  # type: ignore[misc]
                until(lambda s=subscription: s.state is SubscriptionState.CONNECTED)  # type: ignore[misc]


@pytest.mark.spec("TG-30")
def test_a_database_that_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    with TangoSubscriber(f"127.0.0.1:{(port := free_port())}", timeouts=FAST, timeout=TIMEOUT) as subscriber:
        watch = Watch(subscriber)
        subscriber.subscribe("test/lab/1", "long", mode=EventSubMode.ASYNC_READ)
        watch.wait(SubscriptionEventKind.ERROR, 2)
        with TangoDatabase(tmp_path / "db", port=port) as database:
            watch.fresh()
            watch.wait(SubscriptionEventKind.ERROR)
            with TangoServer(tmp_path / "server", database=database):
                watch.wait(SubscriptionEventKind.INITIAL)


@pytest.mark.spec("TG-21")
def test_in_the_modes_that_raise_a_server_that_is_away_is_an_error_and_nothing_is_told(tmp_path: Path) -> None:
    with TangoSubscriber(timeouts=FAST) as subscriber:
        came: list[SubscriptionEvent] = []
        for mode in (EventSubMode.SYNC, EventSubMode.SYNC_READ):
            with pytest.raises(ServerAway):
                subscriber.subscribe(
                    f"tango://127.0.0.1:{free_port()}/a/b/c#dbase=no", "x", mode=mode, callback=came.append
                )
        assert (subscriber.subscriptions, came) == ([], [])


@pytest.mark.spec("TG-38")
def test_what_was_never_connected_can_be_cancelled(tmp_path: Path) -> None:
    with TangoSubscriber(timeouts=FAST) as subscriber:
        watch = Watch(subscriber)
        subscription = subscriber.subscribe(
            f"tango://127.0.0.1:{free_port()}/a/b/c#dbase=no", "x", mode=EventSubMode.STATELESS
        )
        watch.wait(SubscriptionEventKind.ERROR, 2)
        subscription.unsubscribe()
        assert subscription.state is SubscriptionState.CANCELLED
        assert repr(subscriber).startswith(
            "<TangoSubscriber <EventConsumer open, <SubscriptionMachine none, 0 channels>"
        )


@pytest.mark.spec("TG-45")
def test_a_server_that_never_answers_ends_no_subscriber(tmp_path: Path) -> None:
    """A port that takes connections and says nothing; closing does not wait for it."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with TangoSubscriber(timeouts=FAST, timeout=0.2) as subscriber:
            watch = Watch(subscriber)
            subscriber.subscribe(f"tango://127.0.0.1:{port}/a/b/c#dbase=no", "x", mode=EventSubMode.ASYNC)
            assert reasons(watch.wait(SubscriptionEventKind.ERROR, 2)) == {"API_DeviceTimedOut"}


@pytest.mark.spec("TG-45")
@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", b"GIOP\1\2\1\1" + b"\xff" * 40])
def test_a_server_of_something_else_is_an_error_that_repeats(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    connection.recv(4096)
                    connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with TangoSubscriber(timeouts=FAST, timeout=TIMEOUT) as subscriber:
            watch = Watch(subscriber)
            address = f"tango://127.0.0.1:{listener.getsockname()[1]}/a/b/c#dbase=no"
            subscriber.subscribe(address, "x", mode=EventSubMode.ASYNC)
            watch.wait(SubscriptionEventKind.ERROR, 2)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(TIMEOUT)


# --- confirmation ------------------------------------------------------------------------------------------


@pytest.mark.spec("TG-37")
def test_real_servers_take_the_confirmation_of_the_whole_channel(either: TangoServer) -> None:
    """Seen in the admin device's black box."""
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
        assert watch.of(SubscriptionEventKind.ERROR) == []
        # whoever confirms by another name than that of the topic makes the server send everything twice
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
def test_an_attribute_that_is_gone_takes_no_other_one_along(lab: TangoServer) -> None:
    """A server stops at the first confirmation that it refuses; the others are confirmed all the same,
    and the one is told until it is there again. Half a second in place of ten minutes at a source of our own."""
    names = ["kept", "gone", "more"]
    device = Device(DEVICE, [Attribute(name) for name in names])
    times = Timeouts(check=0.1, heartbeat=60.0, confirm=0.1)
    with (
        TangoEventSource([device], "127.0.0.1", expiry=0.5) as source,
        TangoSubscriber(timeouts=times, timeout=TIMEOUT) as subscriber,
    ):
        watch = Watch(subscriber)
        gone, *others = [subscriber.subscribe(source.address(DEVICE), name) for name in ("gone", "kept", "more")]
        source.remove_attributes(DEVICE, ["gone"])
        removed = time.monotonic()
        watch.wait(SubscriptionEventKind.ERROR, 3)
        assert reasons(watch.of(SubscriptionEventKind.ERROR)) == {"API_AttrNotFound"}
        watch.until(lambda: time.monotonic() - removed > 0.8)
        assert [n.subscription for n in watch.of(SubscriptionEventKind.ERROR)] == [gone] * len(
            watch.of(SubscriptionEventKind.ERROR)
        )
        for other in others:  # for ever gone if nobody confirmed them; after a pause of this process for a moment
            until(lambda name=other.attribute: source.subscribed(DEVICE, name))  # type: ignore[misc]
        source.add_attributes(DEVICE, [Attribute("gone")])
        watch.until(
            lambda: gone in [n.subscription for n in watch.of(SubscriptionEventKind.EVENT)],
            lambda: source.push_change_event(DEVICE, "gone", 1.0),
        )
    lab.do("add", "double_dynamic")
    with TangoSubscriber(timeouts=times, timeout=TIMEOUT) as subscriber:
        watch = Watch(subscriber)
        dynamic = subscriber.subscribe(lab.address(), "double_dynamic")
        subscriber.subscribe(lab.address(), "long")
        lab.do("remove", "double_dynamic")
        watch.wait(SubscriptionEventKind.ERROR, 3)
        assert {n.subscription for n in watch.of(SubscriptionEventKind.ERROR)} == {dynamic}
        assert reasons(watch.of(SubscriptionEventKind.ERROR)) == {"API_AttrNotFound"}


@pytest.mark.spec("TG-37", "TG-43")
def test_a_confirmation_that_is_late_does_not_end_those_to_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its subscription was cancelled before it went out, and the channel has another one"""
    late: list[tuple[Any, Any]] = []
    device = Device(DEVICE, [Attribute("first"), Attribute("second")])
    with (
        TangoEventSource([device], "127.0.0.1", expiry=0.5) as source,
        TangoSubscriber(timeouts=Timeouts(check=0.1, heartbeat=60.0, confirm=0.1), timeout=TIMEOUT) as subscriber,
    ):
        submit = subscriber._consumer._submit

        def delay(work: Any, action: Any) -> None:
            if isinstance(action, ConfirmSubscription) and not late:
                late.append((work, action))
            else:
                submit(work, action)

        monkeypatch.setattr(subscriber._consumer, "_submit", delay)
        first = subscriber.subscribe(source.address(DEVICE), "first")
        until(lambda: late)
        subscriber.subscribe(source.address(DEVICE), "second")
        first.unsubscribe()
        (work, action), began = late[0], time.monotonic()
        work(action)
        until(lambda: time.monotonic() - began > 0.8)
        until(lambda: source.subscribed(DEVICE, "second"))


# --- floods ------------------------------------------------------------------------------------------------


@pytest.mark.spec("TG-44-TG-46")
def test_what_a_small_high_water_mark_loses_is_told_to_the_last_event(tmp_path: Path) -> None:
    """What came and what the gaps tell is all that was pushed, in order."""
    pushed, wide = 30_000, "double_spectrum"  # more than the buffers of TCP hold
    with (
        TangoServer(tmp_path / "server", environment={"TANGO_DS_EVENT_BUFFER_HWM": "1"}) as server,
        TangoSubscriber(hwm=1, timeouts=PATIENT, timeout=TIMEOUT) as subscriber,
    ):
        watch = Watch(subscriber)
        subscription = subscriber.subscribe(server.address(), wide, mode=EventSubMode.SYNC)
        watch.wait(SubscriptionEventKind.EVENT, act=lambda: server.push(wide, [-1.0]))
        gate = threading.Event()
        subscriber._consumer._receiver._enqueue(lambda: (gate.wait(TIMEOUT), None)[1])  # nobody receives
        server.do("burst", wide, count=pushed, width=128)
        gate.set()
        watch.until(
            lambda: watch.of(SubscriptionEventKind.GAP) and number(watch.of(SubscriptionEventKind.EVENT)[-1]) < 0,
            lambda: server.push(wide, [-2.0]),
        )
        came = [n.ctr for n in watch.of(SubscriptionEventKind.EVENT)]
        missed: list[int] = []
        for event in watch.of(SubscriptionEventKind.GAP):
            assert isinstance(event.detail, SequenceGap)
            assert reasons([event]) == {"API_MissedEvents"}
            missed += range(event.detail.first, event.detail.last + 1)
        assert sorted(came + missed) == list(range(came[0], came[-1] + 1))
        assert came[-1] - came[0] >= pushed
        counts = subscriber.counts.dispatched
        assert (counts.gaps, counts.missed) == (len(watch.of(SubscriptionEventKind.GAP)), len(missed))
        first_gap = watch.events.index(watch.of(SubscriptionEventKind.GAP)[0])
        detail = watch.events[first_gap].detail
        assert isinstance(detail, SequenceGap)
        assert watch.events[first_gap + 1].ctr == detail.last + 1  # the marker is before the event
        assert subscription.state is SubscriptionState.CONNECTED


@pytest.mark.spec("TG-44", "TG-45")
def test_what_nobody_takes_is_dropped_from_the_oldest_on_and_told(lab: TangoServer) -> None:
    with TangoSubscriber(limit=100, timeouts=PATIENT, timeout=TIMEOUT) as subscriber:
        watch = Watch(subscriber)
        subscription = subscriber.subscribe(lab.address(), "long", mode=EventSubMode.SYNC)
        before = watch.begin(subscription, lambda value: lab.push("long", value))
        lab.do("burst", "long", count=500)
        until(lambda: subscriber.queue.dropped == 400)
        overflow, *events = subscriber.take()
        assert [number(n) for n in events] == list(range(400, 500))
        assert (overflow.kind, overflow.subscription) == (SubscriptionEventKind.OVERFLOW, subscription)
        assert overflow.detail == QueueOverflow(400, before + 1, events[0].ctr - 1)
        assert subscriber.counts.dropped == 400


@pytest.mark.spec("TG-45")
def test_a_slow_callback_loses_the_oldest_and_not_the_receiver(lab: TangoServer) -> None:
    gate, came = threading.Event(), []

    def callback(event: SubscriptionEvent) -> None:
        came.append(event)
        gate.wait(TIMEOUT)

    with TangoSubscriber(limit=10, timeouts=PATIENT, timeout=TIMEOUT) as subscriber:
        subscriber.subscribe(lab.address(), "long", mode=EventSubMode.SYNC, callback=callback)
        until(lambda: came, lambda: lab.push("long", -1))
        counted = subscriber.counts.dispatched.events
        lab.do("burst", "long", count=100)
        until(lambda: subscriber.counts.dispatched.events >= counted + 100)
        gate.set()
        until(lambda: came[-1].kind is SubscriptionEventKind.EVENT and number(came[-1]) == 99)
        assert SubscriptionEventKind.OVERFLOW in {n.kind for n in came}
        assert subscriber.counts.dropped > 0


# --- endpoints ---------------------------------------------------------------------------------------------


def pair(port: int, scheme: str = "tcp") -> EndpointPair:
    return EndpointPair(f"{scheme}://127.0.0.1:{port}", f"{scheme}://127.0.0.1:{port}")


@pytest.mark.spec("TG-33")
def test_of_several_endpoints_the_first_one_that_listens_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        first, second = (pair(s.getsockname()[1]) for s in (one, two))
        assert choose([pair(free_port()), first, second]) == first
        assert choose([pair(9, "epgm"), pair(free_port()), second]) == second


@pytest.mark.spec("TG-08", "TG-32")
@pytest.mark.parametrize("host", ["!x", "\xe9", "a@b", "-", "*"])
def test_an_endpoint_that_is_none_is_told_and_takes_nobody_along(host: str) -> None:
    """ZeroMQ raises at such names, in the thread that receives for everybody."""
    attributes = [Attribute("level")]
    with (
        TangoEventSource([Device(DEVICE, attributes)], "127.0.0.1") as bad,
        TangoEventSource([Device(DEVICE, attributes)], "127.0.0.1") as good,
        TangoSubscriber(timeouts=FAST, timeout=TIMEOUT) as subscriber,
    ):
        with pytest.raises(ConfigError, match="cannot be advertised"):
            TangoEventSource(advertise=[host])
        bad._server._advertise = (host,)
        with pytest.raises(BadEndpoint):
            subscriber.subscribe(bad.address(DEVICE), "level")
        subscriber._consumer._receiver.connect(pair(7)._replace(event=f"tcp://{host}:7"), ("a", "b"), 1000)
        watch = Watch(subscriber)
        subscriber.subscribe(good.address(DEVICE), "level")
        watch.wait(SubscriptionEventKind.EVENT, act=lambda: good.push_change_event(DEVICE, "level", 1.0))


def test_a_single_endpoint_is_not_tried() -> None:
    """Its heartbeats will tell."""
    nobody = pair(free_port())
    assert choose([nobody]) == nobody


@pytest.mark.spec("TG-32")
def test_multicast_is_refused_by_its_name_and_nobody_listening_is_told() -> None:
    """cppTango cxx_zmcast01 to 03, which receive it."""
    with pytest.raises(MulticastRefused, match=r"multicast are not supported: epgm://127\.0\.0\.1:9"):
        choose([pair(9, "epgm"), pair(10, "pgm")])
    with pytest.raises(BadEndpoint):
        choose([EndpointPair("tcp://h", "tcp://h:1")])
    with pytest.raises(ServerAway, match="none of 2 endpoints accepts a connection"):
        choose([pair(free_port()), pair(free_port())])


@pytest.mark.spec("TG-10", "TG-44")
def test_the_high_water_mark_is_the_given_one_or_the_variables_or_the_servers(
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


def test_closing_leaves_no_thread_and_is_quick_in_the_middle_of_a_flood(lab: TangoServer) -> None:
    before = {t.ident for t in threading.enumerate()}
    with TangoSubscriber(timeouts=PATIENT, timeout=TIMEOUT) as subscriber:
        for name in ("long", "double", "short"):
            subscriber.subscribe(lab.address(), name, callback=lambda _: None)
        flood = threading.Thread(target=lambda: lab.do("burst", "long", count=10_000))
        flood.start()
        until(lambda: subscriber.counts.dispatched.events > 100)
    flood.join(TIMEOUT)
    until(lambda: not [t for t in threading.enumerate() if t.name.startswith("tango-") and t.ident not in before])
    assert subscriber.subscriptions == []


def test_a_receiver_whose_thread_has_ended_takes_commands_and_closes() -> None:
    """Its sockets are gone; so are they when the thread ends between the command to stop and the wakeup of it."""
    subscriber = TangoSubscriber(timeouts=PATIENT, timeout=TIMEOUT).start()
    receiver = subscriber._consumer._receiver

    def fail() -> None:
        raise ZeroDivisionError("a defect")

    receiver._enqueue(fail)
    assert receiver._thread is not None
    assert receiver._wakeup is not None
    receiver._thread.join(TIMEOUT)
    wakeup = receiver._wakeup
    until(lambda: not int(wakeup.getsockopt(zmq.EVENTS)) & zmq.POLLOUT)  # nobody is at the other end any more
    receiver.subscribe(b"topic")
    subscriber.close()
    assert receiver._thread is None
