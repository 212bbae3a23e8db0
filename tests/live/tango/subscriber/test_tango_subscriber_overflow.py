"""More events than sockets, queues or callbacks take, and closing meanwhile (TG-44 to TG-46)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import zmq
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription import EventSubMode
from mama_spark.tango.client.subscription_events import SubscriptionEvent
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.tango.client.subscription_states import SubscriptionState
from mama_spark.tango.events.sequence_tracker import SequenceGap
from mama_spark.testing.waiting import until

from tests.support.tango.tango_subscriptions import Watch, number, reasons
from tests.support.tango_processes.servers import PATIENT, TIMEOUT, TangoServer


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
        came = [n.ctr for n in watch.of(Kind.EVENT)]
        missed: list[int] = []
        for event in watch.of(Kind.GAP):
            assert isinstance(event.detail, SequenceGap)
            assert reasons([event]) == {"API_MissedEvents"}
            missed += range(event.detail.first, event.detail.last + 1)
        assert sorted(came + missed) == list(range(came[0], came[-1] + 1))
        assert came[-1] - came[0] >= pushed
        counts = subscriber.counts.dispatched
        assert (counts.gaps, counts.missed) == (len(watch.of(Kind.GAP)), len(missed))
        first_gap = watch.events.index(watch.of(Kind.GAP)[0])
        detail = watch.events[first_gap].detail
        assert isinstance(detail, SequenceGap)
        assert watch.events[first_gap + 1].ctr == detail.last + 1  # GAP precedes its event
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
