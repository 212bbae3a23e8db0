"""Losses that no later event shows: the recorder hears of them from servers of PyTango 10.3.1 and 9.3.6."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription_events import SubscriptionEvent
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.tango.events.sequence_tracker import SequenceGap
from mama_spark.tango.log.records import GapCause, RecordKind
from mama_spark.testing.waiting import until

from tests.support.tango.tango import RELEASES
from tests.support.tango_processes.recorder import RecorderLog, RecorderProcess, accounted, consecutive
from tests.support.tango_processes.servers import PATIENT, TIMEOUT, TangoDatabase, TangoServer

#: A burst that does not fit into the buffers of a connection, of values that are small enough to be compared.
NAME, BURST, WIDTH = "double_spectrum", 5_000, 400


@pytest.mark.thorough
@pytest.mark.parametrize("release", [10, pytest.param(9, marks=pytest.mark.explore)])
@pytest.mark.spec("TG-46")
def test_a_loss_at_the_end_is_recorded_although_nothing_follows(
    log: RecorderLog, tango_database: TangoDatabase, tmp_path: Path, release: int
) -> None:
    """The high-water mark of the server drops the end of a burst, since the recorder stands still."""
    name, environment = f"losses/t{release}/1", {"TANGO_DS_EVENT_BUFFER_HWM": "100"}
    with (
        TangoServer(
            tmp_path, [name], database=tango_database, instance=f"losses{release}", environment=environment,
            release=release,
        ) as lab,
        RecorderProcess(log, lab, tmp_path, attributes=NAME, lossCheck="1s") as recorder,
    ):  # fmt: skip
        until(lambda: log.counters(NAME), lambda: lab.push(NAME, [1.0]))
        recorder.process.send_signal(signal.SIGSTOP)
        for _ in range(3):  # of one, the middle may be dropped, and its end fit into the buffers of the connection
            lab.do("burst", NAME, count=BURST, width=WIDTH)
        lab.tell(NAME, [7.0])
        lab.push(NAME, [7.0])
        recorder.process.send_signal(signal.SIGCONT)
        found = RecordKind.GAP if release == 10 else RecordKind.CHECKED
        until(lambda: (end := log.records()[-1]).kind is found and (release == 9 or end.last > 3 * BURST))
        assert recorder.end(signal.SIGTERM) == 0, recorder.out.read_text()
    records = [r for r in log.records() if r.kind in (RecordKind.EVENT, RecordKind.GAP, found)]
    last, before = records[-1], records[-2]
    if release == 10:
        assert consecutive(accounted(records, NAME))
        assert (last.cause, last.first) == (GapCause.WAY, before.ctr + 1)
    else:  # no record tells how many were lost
        assert (before.kind, last.reading) == (RecordKind.EVENT, 7.0)
        assert (last.place.device, last.place.event, last.ctr) == (name, "change", 0)


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
