"""More events than sockets, queues or callbacks take, and closing meanwhile (TG-44 to TG-46); many subscriptions;
servers that are not there; losses.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import zmq
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import EventSubMode
from mama_spark.tango.client.subscription_events import SubscriptionEvent
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.tango.client.subscription_states import SubscriptionState
from mama_spark.tango.errors import ServerAway
from mama_spark.tango.events.sequence_tracker import SequenceGap
from mama_spark.tango.log.records import GapCause, RecordKind
from mama_spark.testing.waiting import until

from tests.support.ports import lasting_port
from tests.support.tango.tango import FAST, RELEASES, DeviceServers
from tests.support.tango.tango_subscriptions import Watch, number, numbers, reasons
from tests.support.tango_processes.recorder import RecorderLog, RecorderProcess, accounted, consecutive
from tests.support.tango_processes.servers import PATIENT, TIMEOUT, DeviceProbe, TangoDatabase, TangoServer


@pytest.mark.spec("TG-44-TG-46")
def test_every_event_lost_at_a_small_high_water_mark_is_in_a_gap(tmp_path: Path) -> None:
    """Delivered events and gaps together are all pushed events, in order."""
    pushed, wide = 30_000, "double_spectrum"  # more than the TCP buffers hold
    with (
        TangoServer(tmp_path / "server", environment={"TANGO_DS_EVENT_BUFFER_HWM": "1"}) as server,
        TangoSubscriber(hwm=1, timeouts=PATIENT, timeout=TIMEOUT) as subscriber,
    ):
        watch = Watch(subscriber)
        subscription = subscriber.subscribe(server.address(), wide, mode=EventSubMode.SYNC)
        watch.wait(Kind.EVENT, act=lambda: server.push(wide, [-1.0]))
        gate = threading.Event()
        subscriber._consumer._receiver.execute(lambda: (gate.wait(TIMEOUT), None)[1])  # blocks the receiving thread
        server.do("burst", wide, count=pushed, width=128)
        gate.set()
        watch.until(
            lambda: watch.of(Kind.GAP) and number(watch.of(Kind.EVENT)[-1]) < 0, lambda: server.push(wide, [-2.0])
        )
        counters = [counter for event in watch.events for counter in _counters(event)]
        assert consecutive(counters)  # a gap precedes its event
        assert len(counters) > pushed
        gaps = watch.of(Kind.GAP)
        assert reasons(gaps) == {"API_MissedEvents"}
        counts = subscriber.counts.dispatched
        assert (counts.gaps, counts.missed) == (len(gaps), len(counters) - len(watch.of(Kind.EVENT)))
        assert subscription.state is SubscriptionState.CONNECTED


@pytest.mark.spec("TG-45")
def test_a_slow_callback_loses_the_oldest_events_and_does_not_block_the_receiver(lab: TangoServer) -> None:
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
        until(lambda: came[-1].kind is Kind.EVENT and number(came[-1]) == 99)
        assert Kind.OVERFLOW in {n.kind for n in came}
        assert subscriber.counts.dropped > 0


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


def test_a_receiver_whose_thread_failed_accepts_commands_and_closes() -> None:
    """Its sockets are closed then, as when the thread ends between the stop command and its wakeup."""
    subscriber = TangoSubscriber(timeouts=PATIENT, timeout=TIMEOUT).start()
    receiver = subscriber._consumer._receiver

    def fail() -> None:
        raise ZeroDivisionError("a defect")

    receiver.execute(fail)
    assert receiver._thread is not None
    assert receiver._wakeup is not None
    receiver._thread.join(TIMEOUT)
    wakeup = receiver._wakeup
    until(lambda: not int(wakeup.getsockopt(zmq.EVENTS)) & zmq.POLLOUT)  # the other end is closed
    receiver.subscribe(b"topic")
    subscriber.close()
    assert receiver._thread is None


# --- Several subscriptions of one subscriber: to one event, by many threads, to many devices --------------------------


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
    with ThreadPoolExecutor(len(names)) as pool:
        made = list(pool.map(lambda name: subscriber.subscribe(lab.address(), name), names))
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


# --- Subscriptions at servers that do not run yet, do not answer, or are no Tango servers (TG-21, TG-30, TG-45) -------


@pytest.mark.spec("TG-30")
def test_a_subscription_connects_when_its_server_starts(tmp_path: Path) -> None:
    """No exception is raised, an ERROR is delivered each period, and the subscription connects when the server runs."""
    server = TangoServer(tmp_path / "server", port=lasting_port())
    with TangoSubscriber(timeouts=FAST, timeout=TIMEOUT) as subscriber:
        watch = Watch(subscriber)
        modes = (EventSubMode.STATELESS, EventSubMode.ASYNC, EventSubMode.ASYNC_READ)
        found = [subscriber.subscribe(server.address(), "long", mode=mode) for mode in modes]
        for subscription in found:
            watch.until(lambda s=subscription: len(watch.of(Kind.ERROR, s)) >= 3)  # type: ignore[misc]
            assert subscription.state in (SubscriptionState.POSTPONED, SubscriptionState.NEGOTIATING)
            assert subscription.topic is None
        assert reasons(watch.of(Kind.ERROR)) == {"API_CantConnectToDevice"}
        with server:
            for subscription, mode in zip(found, modes, strict=True):
                watch.until(
                    lambda s=subscription: watch.of(Kind.EVENT, s),  # type: ignore[misc]
                    lambda: server.push("long", 5),
                )
                watch.until(lambda s=subscription, m=mode: bool(watch.of(Kind.INITIAL, s)) is m.reads)  # type: ignore[misc]
                until(lambda s=subscription: s.state is SubscriptionState.CONNECTED)  # type: ignore[misc]


@pytest.mark.thorough
@pytest.mark.spec("TG-30")
def test_a_subscription_connects_when_its_database_starts(tmp_path: Path) -> None:
    with TangoSubscriber(f"127.0.0.1:{(port := lasting_port())}", timeouts=FAST, timeout=TIMEOUT) as subscriber:
        watch = Watch(subscriber)
        subscriber.subscribe("test/lab/1", "long", mode=EventSubMode.ASYNC_READ)
        watch.wait(Kind.ERROR, 2)
        with TangoDatabase(tmp_path / "db", port=port) as database:
            watch.fresh()
            watch.wait(Kind.ERROR)
            with TangoServer(tmp_path / "server", database=database):
                watch.wait(Kind.INITIAL)


@pytest.mark.spec("TG-21")
def test_in_the_modes_that_raise_an_unreachable_server_is_an_error_and_no_event(tmp_path: Path) -> None:
    with TangoSubscriber(timeouts=FAST) as subscriber:
        came: list[SubscriptionEvent] = []
        for mode in (EventSubMode.SYNC, EventSubMode.SYNC_READ):
            with pytest.raises(ServerAway):
                subscriber.subscribe(
                    f"tango://127.0.0.1:{lasting_port()}/a/b/c#dbase=no", "x", mode=mode, callback=came.append
                )
        assert (subscriber.subscriptions, came) == ([], [])


@pytest.mark.spec("TG-45")
def test_a_server_that_never_answers_does_not_block_closing(tmp_path: Path) -> None:
    """The port accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        with TangoSubscriber(timeouts=FAST, timeout=0.2) as subscriber:
            watch = Watch(subscriber)
            subscriber.subscribe(f"tango://127.0.0.1:{port}/a/b/c#dbase=no", "x", mode=EventSubMode.ASYNC)
            assert reasons(watch.wait(Kind.ERROR, 2)) == {"API_DeviceTimedOut"}


@pytest.mark.spec("TG-45")
def test_a_server_that_is_no_tango_server_is_a_repeated_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, contextlib.suppress(OSError):
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        with TangoSubscriber(timeouts=FAST, timeout=TIMEOUT) as subscriber:
            watch = Watch(subscriber)
            address = f"tango://127.0.0.1:{listener.getsockname()[1]}/a/b/c#dbase=no"
            subscriber.subscribe(address, "x", mode=EventSubMode.ASYNC)
            watch.wait(Kind.ERROR, 2)
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(TIMEOUT)


# --- Losses that no later event shows: the recorder hears of them from servers of PyTango 10.3.1 and 9.3.6 ------------

#: A burst that does not fit into the buffers of a connection, of values that are small enough to be compared.
NAME, BURST, WIDTH = "double_spectrum", 5_000, 400


@pytest.mark.thorough
@pytest.mark.spec("TG-46")
def test_a_loss_at_the_end_is_recorded_although_nothing_follows(log: RecorderLog, tmp_path: Path) -> None:
    """The high-water mark of the server drops the end of a burst, since the recorder stands still."""
    with (
        TangoServer(tmp_path, environment={"TANGO_DS_EVENT_BUFFER_HWM": "100"}) as lab,
        RecorderProcess(log, lab, tmp_path, attributes=NAME, lossCheck="1s") as recorder,
    ):
        until(lambda: log.counters(NAME), lambda: lab.push(NAME, [1.0]))
        recorder.process.send_signal(signal.SIGSTOP)
        for _ in range(3):  # of one, the middle may be dropped, and its end fit into the buffers of the connection
            lab.do("burst", NAME, count=BURST, width=WIDTH)
        lab.tell(NAME, [7.0])
        lab.push(NAME, [7.0])
        recorder.process.send_signal(signal.SIGCONT)
        until(lambda: (end := log.records()[-1]).kind is RecordKind.GAP and end.last > 3 * BURST)
        assert recorder.end(signal.SIGTERM) == 0, recorder.out.read_text()
    records = log.records(RecordKind.EVENT, RecordKind.GAP)
    assert consecutive(accounted(records, NAME))
    assert (records[-1].cause, records[-1].first) == (GapCause.WAY, records[-2].ctr + 1)


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.spec("TG-46")
def test_checks_find_what_was_lost_after_the_newest_event_and_nothing_else(
    tango_database: TangoDatabase, tmp_path: Path, release: int
) -> None:
    """The subscription of the socket ends and begins again, without a word to the server."""
    name = f"checks/t{release}/1"
    with (
        TangoServer(tmp_path, [name], database=tango_database, instance=f"checks{release}", release=release) as lab,
        TangoSubscriber(timeouts=PATIENT, timeout=TIMEOUT) as subscriber,
    ):
        subscription = subscriber.subscribe(lab.address(), "double", "change")
        assert subscription.topic is not None
        receiver, topic = subscriber._consumer._receiver, subscription.topic.encode()
        found: list[SubscriptionEvent] = []
        until(lambda: found[1:], lambda: found.extend(_after(subscriber, lab, 1.0)))
        found += subscriber.take(10, 0.5)
        assert _checked(subscriber) == []
        receiver.unsubscribe(topic)
        arrived = [True]
        until(lambda: not arrived[-1], lambda: arrived.append(_more(found, _after(subscriber, lab, 3.0))))
        _after(subscriber, lab, 7.0)
        receiver.subscribe(topic)
        (loss,) = _checked(subscriber)
        assert _checked(subscriber) == []
        more: list[SubscriptionEvent] = []
        until(lambda: more, lambda: more.extend(_after(subscriber, lab, 9.0)))
    if release == 10:
        more.insert(0, loss)
    else:
        assert (loss.kind, loss.value.read) == (Kind.CHECK, 7.0)
    assert any(event.kind is Kind.GAP for event in more)
    assert consecutive([counter for event in found[1:] + more for counter in _counters(event)])


def _more(found: list[SubscriptionEvent], events: list[SubscriptionEvent]) -> bool:
    found += events
    return bool(events)


def _after(subscriber: TangoSubscriber, lab: TangoServer, value: float) -> list[SubscriptionEvent]:
    """What arrives after an event was pushed: nothing, if it does not arrive soon."""
    lab.tell("double", value)
    lab.push("double", value)
    return subscriber.take(10, 0.2)


def _checked(subscriber: TangoSubscriber) -> list[SubscriptionEvent]:
    for _ in range(4):
        subscriber.check_losses()
    return subscriber.take()


def _counters(event: SubscriptionEvent) -> range:
    if isinstance(event.detail, SequenceGap):
        return range(event.detail.first, event.detail.last + 1)
    return range(event.ctr, event.ctr + 1)
