"""Subscriptions at device servers that end, stop, restart or move (TG-40 to TG-42).

The periods of subscribers are shortened, but in the last test.
"""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from mama_spark.contracts.backoff import Backoff
from mama_spark.tango.client.keep_alive import Timeouts
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import EventSubMode
from mama_spark.tango.client.subscription_events import SubscriptionEvent
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.tango.client.subscription_states import SubscriptionState
from mama_spark.tango.events.sequence_tracker import SequenceRestart
from mama_spark.tango.source.device import Attribute, Device
from mama_spark.tango.source.event_source import TangoEventSource
from mama_spark.tango.source.event_supplier import SourceSettings
from mama_spark.testing.waiting import until

from tests.support.tango.tango import FAST
from tests.support.tango.tango_subscriptions import DEVICE, Watch, number, own, reasons
from tests.support.tango_processes.servers import TIMEOUT, TangoServer
from tests.support.tango_processes.source_process import SourceProcess


@pytest.mark.spec("TG-30", "TG-40-TG-42")
@pytest.mark.parametrize(
    ("kind", "end"), [("nodb", "stop"), pytest.param("database", "kill", marks=pytest.mark.thorough)]
)
def test_a_restarted_server_is_reconnected_with_one_value_and_a_restart(
    kind: str, end: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """An ERROR is delivered at each check while the server is down; then one RESUBSCRIPTION value, a RESTART of the
    counter, and events."""
    database = request.getfixturevalue("tango_database") if kind == "database" else None
    with (
        own(tmp_path, database) as server,
        TangoSubscriber(timeouts=FAST, timeout=TIMEOUT, report_availability=True) as subscriber,
    ):
        watch = Watch(subscriber)
        subscription = subscriber.subscribe(server.address(), "long", mode=EventSubMode.SYNC)
        last = watch.begin(subscription, lambda value: server.push("long", value))
        getattr(server, end)()
        errors = watch.wait(Kind.ERROR, 3)
        assert reasons(errors) == {"API_EventTimeout"}
        assert len(watch.of(Kind.OFFLINE)) == 1
        assert watch.events[0].kind is Kind.OFFLINE
        server.start()
        server.tell("long", 77)
        watch.wait(Kind.RESUBSCRIPTION)
        watch.wait(Kind.EVENT, act=lambda: server.push("long", 2))
        (value,) = watch.of(Kind.RESUBSCRIPTION)
        assert number(value) in (0, 77)  # 77 was set after the start
        (restart,) = watch.of(Kind.RESTART)
        first = watch.of(Kind.EVENT)[0]
        assert restart.detail == SequenceRestart(last, first.ctr)
        assert watch.events.index(restart) == watch.events.index(first) - 1
        assert len(watch.of(Kind.ONLINE)) == 1
        assert subscriber.counts.reconnects == 1
        assert subscriber.counts.dispatched.gaps == 0


@pytest.mark.spec("TG-40")
def test_a_stopped_server_loses_heartbeats_and_continues_without_a_gap(tmp_path: Path) -> None:
    """SIGSTOP and SIGCONT: the process stays, so nothing is lost. Its heartbeat period is shorter than in cppTango."""
    times = Timeouts(check=0.3, heartbeat=6.0, confirm=200.0, retry=Backoff(0.1, 0.3))
    with (
        SourceProcess(tmp_path, ("long", "short"), heartbeat_period=0.3) as server,
        TangoSubscriber(timeouts=times, timeout=0.5, report_availability=True) as subscriber,
    ):
        watch = Watch(subscriber)
        # ASYNC does not raise: half a second may be too short for a busy server
        long, short = (
            subscriber.subscribe(server.address, name, mode=EventSubMode.ASYNC) for name in ("long", "short")
        )
        watch.begin(long, lambda value: server.push("long", value))
        watch.begin(short, lambda value: server.push("short", value))
        server.pause()
        errors = watch.wait(Kind.ERROR, 4)
        assert reasons(errors) == {"API_EventTimeout"}
        assert long.state in (SubscriptionState.HEARTBEAT_LOST, SubscriptionState.RECONNECTING)
        server.resume()
        watch.wait(Kind.ONLINE, 2)
        assert subscriber._consumer._receiver.wait(TIMEOUT)
        # after a reconnection, short is subscribed after long: its events show that both subscriptions arrived
        watch.begin(short, lambda value: server.push("short", value))
        server.call("burst", attribute="long", first=0, count=10)
        watch.until(lambda: [number(n) for n in watch.of(Kind.EVENT, long)][-1:] == [9])
        assert [number(n) for n in watch.of(Kind.EVENT, long)] == list(range(10))
        assert [n for n in watch.events if n.subscription is long and n.kind in (Kind.RESTART, Kind.GAP)] == []
        assert subscriber.counts.dispatched.restarts == 0


@pytest.mark.spec("TG-36", "TG-40")
def test_a_subscriber_that_was_stopped_itself_reports_no_missing_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """Heartbeats that arrived meanwhile are processed first; otherwise it would reconnect and lose events."""
    clock = SimpleNamespace(time_ns=time.time_ns, ahead=0.0)
    clock.monotonic = lambda: time.monotonic() + clock.ahead
    clock.sleep = lambda seconds: until(lambda: beat() > clock.ahead)
    times = Timeouts(check=0.02, heartbeat=500.0)
    with TangoEventSource([Device(DEVICE, [Attribute("level")])], SourceSettings(heartbeat_period=0.5)) as source:
        monkeypatch.setattr("mama_spark.tango.client.event_consumer.time", clock)
        with TangoSubscriber(timeouts=times, timeout=TIMEOUT, report_availability=True) as subscriber:

            def beat() -> float:
                (channel,) = subscriber._consumer._machine._channels.values()
                return channel.last_heartbeat - began

            watch, began = Watch(subscriber), time.monotonic()
            subscription = subscriber.subscribe(source.address(DEVICE), "level", mode=EventSubMode.SYNC)
            watch.begin(subscription, lambda value: source.push_change_event(DEVICE, "level", value))
            for ahead in (1000.0, 2000.0):
                with subscriber._consumer._lock:  # stops receiver and keep-alive thread
                    clock.ahead = ahead
                until(lambda: beat() > clock.ahead)
            source.push_change_event(DEVICE, "level", 1.0)
            assert number(watch.wait(Kind.EVENT)[0]) == 1.0
            assert [event.kind for event in watch.events] == [Kind.EVENT]
            assert subscriber.counts.reconnects == 0


def test_an_unreachable_server_does_not_delay_events_of_another(own_lab: TangoServer, lab: TangoServer) -> None:
    with TangoSubscriber(timeouts=FAST, timeout=TIMEOUT) as subscriber:
        watch = Watch(subscriber)
        away = subscriber.subscribe(own_lab.address(), "long")
        there = subscriber.subscribe(lab.address(), "long")
        watch.begin(there, lambda value: lab.push("long", value))
        own_lab.kill()
        late = subscriber.subscribe(own_lab.address(), "double", mode=EventSubMode.ASYNC_READ)
        watch.until(lambda: watch.of(Kind.ERROR, late))
        watch.fresh()
        lab.do("burst", "long", count=50)
        watch.until(lambda: len(watch.of(Kind.EVENT, there)) >= 50)
        assert [number(n) for n in watch.of(Kind.EVENT, there)] == list(range(50))
        assert away.state is not SubscriptionState.POSTPONED
        own_lab.start()
        watch.until(lambda: watch.of(Kind.EVENT, late), lambda: own_lab.push("double", 1.5))


# --- Subscriber with the periods of the specification, at a device server ---------------------------------------------


@pytest.mark.explore
@pytest.mark.timeout(1500)
@pytest.mark.spec("TG-37", "TG-43")
def test_confirmed_subscriptions_outlive_600_seconds_and_others_do_not(own_lab: TangoServer) -> None:
    """The server ends a subscription without confirmations; heartbeats continue, and no counter shows it. A late
    confirmation restores the events. cppTango back_ch_event, back_per_event: events arrive during the whole test."""
    own_lab.do("poll", "plain", period=500)
    begin = time.monotonic()
    with (
        TangoSubscriber(timeouts=Timeouts(confirm=690.0), timeout=10.0) as silent,
        TangoSubscriber(timeout=10.0) as confirming,
    ):
        came: dict[str, list[SubscriptionEvent]] = {"long": [], "double": [], "plain": []}
        for subscriber, name, event in (
            (silent, "long", "change"), (confirming, "double", "change"), (confirming, "plain", "periodic")
        ):  # fmt: skip
            subscriber.subscribe(own_lab.address(), name, event, mode=EventSubMode.SYNC, callback=came[name].append)

        def push(number: int) -> None:
            for name in ("long", "double"):
                own_lab.push(name, number)

        while time.monotonic() - begin < 655:
            push(int(time.monotonic() - begin))
            time.sleep(5)  # events all the time; nothing is waited for
        assert [n.kind for n in came["double"]].count(Kind.EVENT) > 100
        periodic = list(came["plain"])
        assert {n.kind for n in periodic} == {Kind.EVENT}
        assert max(np.diff([n.received for n in periodic])) < 30e9
        assert len(periodic) > 400
        came["long"].clear()
        came["double"].clear()
        until(lambda: came["double"], lambda: push(0))
        assert not came["long"]
        until(lambda: came["long"], lambda: push(1), timeout=120.0)
        assert time.monotonic() - begin > 680
        assert not [n for n in came["double"] if n.kind is not Kind.EVENT]
