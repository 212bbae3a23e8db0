"""Queue of received events, and dispatch of frames, without a socket."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.errors import BackgroundTaskFailed
from mama_spark.tango.client.event_dispatcher import EventDispatcher
from mama_spark.tango.client.event_queue import EventQueue
from mama_spark.tango.client.subscription_events import QueueOverflow, SubscriptionEvent, decode_events
from mama_spark.tango.client.subscription_events import SubscriptionEventKind as Kind
from mama_spark.tango.events.batch_decoder import BatchDecoder
from mama_spark.tango.events.event_codec import heartbeat, split, usual_call
from mama_spark.tango.events.sequence_tracker import SequenceGap, SequenceRestart
from mama_spark.tango.types import DevError, EventType, Severity

TOPIC = b"tango://h:1/a/b/c/d.idl5_change"
VALUE = bytes.fromhex(
    "c0dec0de050000000100000000000000000004400000000000000000050000002d37006ba1ef0a0086030000050000007363616c0000"
    "00000100000000000000000000000000000000000000"
)


def frames(ctr: int, data: bytes = VALUE, topic: bytes = TOPIC) -> list[bytes]:
    return [topic, b"\1", usual_call(ctr), data]


def event(target: object, ctr: int, data: bytes = VALUE) -> SubscriptionEvent:
    return SubscriptionEvent(target, Kind.EVENT, 0, frames(ctr, data), ctr)


# --- queue -------------------------------------------------------------------------------------------------


@pytest.mark.spec("TG-44", "TG-45")
def test_memory_of_waiting_events_is_limited() -> None:
    """The queue keeps far fewer than 100,000 spectra of 8 MB."""
    queue, spectrum = EventQueue(100_000, max_bytes=64 << 20), bytes(8 << 20)
    for ctr in range(1, 101):
        queue.put([event("a", ctr, spectrum)])
    assert len(queue) == 7
    found = queue.take(1000)
    assert [n.ctr for n in found if n.kind is Kind.EVENT] == [94]  # an eighth at once
    assert found[0].detail == QueueOverflow(93, 1, 93)
    assert [[n.ctr for n in queue.take(1000)] for _ in range(7)] == [[95], [96], [97], [98], [99], [100], []]


def test_one_notice_that_is_larger_than_all_that_may_wait_comes() -> None:
    queue = EventQueue(0, max_bytes=1000)
    queue.put([event("a", 1, bytes(10)), event("a", 2, bytes(5000))])
    assert [n.ctr for n in queue.take(10) if n.kind is Kind.EVENT] == [2]
    queue.put([event("a", 3, bytes(10))])
    queue.forget("a")
    queue.put([event("a", 4, bytes(10))])
    assert [n.ctr for n in queue.take(10)] == [4]
    assert queue.dropped == 1


@pytest.mark.spec("TG-44")
@given(st.integers(0, 7), st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=40))
def test_taken_and_dropped_events_are_all_events(limit: int, steps: list[tuple[str, bool]]) -> None:
    """Whatever the order of calls: each lost event is reported, and the order of events is kept."""
    queue, put, got, n = EventQueue(limit), {"a": 0, "b": 0}, {"a": 0, "b": 0}, 0
    taken: list[int] = []
    for who, take in [*steps, ("a", True)]:
        if take:
            for one in queue.take(3) + queue.take(100):
                if isinstance(one.detail, QueueOverflow):
                    got[one.subscription] += one.detail.size
                    assert one.detail.first <= one.detail.last
                else:
                    got[one.subscription] += 1
                    taken.append(one.ctr)
        else:
            n += 1
            put[who] += 1
            queue.put([event(who, n)])
            assert not limit or len(queue) <= limit
    assert got == put
    assert taken == sorted(taken)
    assert queue.dropped == n - len(taken)


def test_an_overflow_names_the_counters_of_the_events_that_it_dropped() -> None:
    queue = EventQueue(1)
    queue.put([SubscriptionEvent("s", Kind.ONLINE, 0), event("s", 4), event("s", 5), event("s", 6)])
    overflow, last = queue.take(10)
    assert (overflow.kind, overflow.detail, last.ctr) == (Kind.OVERFLOW, QueueOverflow(3, 4, 5), 6)


def test_a_gap_that_the_full_queue_drops_counts_as_the_events_that_it_told_of() -> None:
    queue = EventQueue(1)
    gap = SubscriptionEvent("s", Kind.GAP, 0, detail=SequenceGap(5, 14))
    queue.put([event("s", 4), gap, event("s", 15), event("s", 16)])
    overflow, _ = queue.take(10)
    assert overflow.detail == QueueOverflow(12, 4, 15)
    queue.put([gap, SubscriptionEvent("s", Kind.ONLINE, 0)])
    assert queue.take(10)[0].detail == QueueOverflow(10, 5, 14)


def test_take_waits_for_events_and_close_wakes_it() -> None:
    queue, got = EventQueue(0), []
    ready = threading.Barrier(2)

    def run() -> None:
        ready.wait(60)
        got.append(queue.take(10, None))
        ready.wait(60)
        got.append(queue.take(10, None))

    thread = threading.Thread(target=run)
    thread.start()
    ready.wait(60)
    queue.put([event("s", 1)])
    ready.wait(60)
    queue.close()
    thread.join(60)
    assert [[n.ctr for n in events] for events in got] == [[1], []]
    assert queue.put([event("s", 2)]) == 0
    assert queue.take(1, 0.0) == []


def test_a_failure_is_raised_after_all_received_events() -> None:
    queue = EventQueue(0)
    queue.put([event("s", 1)])
    queue.close(RuntimeError("broken"))
    assert [n.ctr for n in queue.take(10)] == [1]
    with pytest.raises(BackgroundTaskFailed, match="broken"):
        queue.take(10)


def test_events_of_a_cancelled_subscription_are_discarded() -> None:
    queue = EventQueue(2)
    queue.put([event(s, n) for n, s in enumerate("aabab")])
    queue.forget("a")
    assert [(n.subscription, n.kind) for n in queue.take(10)] == [("b", Kind.OVERFLOW), ("b", Kind.EVENT)]


# --- messages ----------------------------------------------------------------------------------------------

NO_TOPICS = st.binary(max_size=40).filter(lambda frame: not frame.startswith(b"tango://"))
MESSAGES = st.lists(NO_TOPICS, min_size=1, max_size=5).map(lambda others: [TOPIC, *others])
EVENTS = st.tuples(st.just(TOPIC), NO_TOPICS, NO_TOPICS, NO_TOPICS).map(list)


@given(st.one_of(st.lists(EVENTS), st.lists(st.one_of(EVENTS, MESSAGES))))
def test_a_topic_begins_a_message(messages: list[list[bytes]]) -> None:
    assert [list(found) for found in split([frame for message in messages for frame in message])] == messages


@pytest.mark.spec("TG-45")
@given(st.lists(st.one_of(st.just(TOPIC), NO_TOPICS)), st.lists(EVENTS, min_size=1))
def test_events_behind_anything_are_found(before: list[bytes], messages: list[list[bytes]]) -> None:
    found = [list(one) for one in split([*before, *(frame for message in messages for frame in message)])]
    assert found[-len(messages) :] == messages
    assert [frame for one in found[: -len(messages)] for frame in one] == before


# --- dispatcher ------------------------------------------------------------------------------------------------


def routed(*targets: str) -> EventDispatcher:
    dispatcher = EventDispatcher()
    for target in targets:
        dispatcher.add(TOPIC, EventType.CHANGE, target)
    return dispatcher


def kinds(events: list[SubscriptionEvent]) -> list[Kind]:
    return [one.kind for one in events]


@pytest.mark.spec("TG-46")
def test_gap_and_restart_precede_their_event_for_every_subscription() -> None:
    dispatcher = EventDispatcher()
    assert dispatcher.add(TOPIC, EventType.CHANGE, "one")
    assert not dispatcher.add(TOPIC, EventType.CHANGE, "two")
    found = dispatcher.dispatch([frames(1), frames(1), frames(4), frames(2)], 99)
    assert [(n.kind, n.detail) for n in found if n.subscription == "two"] == [
        (Kind.EVENT, None), (Kind.GAP, SequenceGap(2, 3)), (Kind.EVENT, None),
        (Kind.RESTART, SequenceRestart(4, 2)), (Kind.EVENT, None),
    ]  # fmt: skip
    assert {n.received for n in found} == {99}
    counts = dispatcher.counts
    assert (counts.events, counts.duplicates, counts.gaps, counts.missed, counts.restarts) == (3, 1, 1, 2, 1)


def test_what_two_checks_of_a_server_tell_goes_to_every_subscription_and_losses_are_counted_once() -> None:
    dispatcher, other, uncounted = EventDispatcher(), TOPIC.replace(b"/d.", b"/e."), b"tango://h:1/a/b/c/d.data_ready"
    for topic, kind, target in (
        (TOPIC, EventType.CHANGE, "one"), (TOPIC, EventType.CHANGE, "two"), (other, EventType.CHANGE, "three"),
        (uncounted, EventType.DATA_READY, "four"),
    ):  # fmt: skip
        dispatcher.add(topic, kind, target)
    dispatcher.dispatch([frames(5)], 1)
    sent = [dict.fromkeys((b"tango://h:1/of/nobody/x.change", uncounted, TOPIC, other), n) for n in (8, 9)]
    assert dispatcher.check_counters(sent[0], 77) == []
    assert dispatcher.check_counters(sent[1], 77) == [
        *(SubscriptionEvent(target, Kind.GAP, 77, None, 0, SequenceGap(6, 8)) for target in ("one", "two")),
        SubscriptionEvent("three", Kind.CHECK, 77, None, 8),
    ]
    assert (dispatcher.counts.gaps, dispatcher.counts.missed) == (1, 3)


def test_the_counter_of_data_ready_means_nothing() -> None:
    dispatcher, topic = EventDispatcher(), b"tango://h:1/a/b/c/d.data_ready"
    dispatcher.add(topic, EventType.DATA_READY, "s")
    found = dispatcher.dispatch([frames(n, topic=topic) for n in (7, 7, 100, 3)], 0)
    assert kinds(found) == 4 * [Kind.EVENT]


@pytest.mark.spec("TG-34", "TG-45")
def test_malformed_and_unrouted_messages_are_counted() -> None:
    """Only the topic identifies the sender."""
    dispatcher = routed("s")
    beat = heartbeat(b"tango://h:1/dserver/d/i.heartbeat")
    assert dispatcher.dispatch([beat, [b""], [b"I like beer"], [TOPIC], [TOPIC, b"", b"", b""], frames(1)[:3]], 0) == []
    assert (dispatcher.counts.unrouted, dispatcher.counts.malformed) == (3, 3)


def test_big_endian_counters_are_read_as_such() -> None:
    (found,) = routed("s").dispatch([[TOPIC, b"\0", usual_call(258, little=False), VALUE]], 0)
    assert found.ctr == 258


def test_the_last_one_to_leave_forgets_the_topic() -> None:
    dispatcher = routed("one", "two")
    dispatcher.dispatch([frames(5)], 0)
    assert [dispatcher.remove(TOPIC, target) for target in ("one", "two", "two")] == [False, True, False]
    assert TOPIC not in dispatcher
    dispatcher.add(TOPIC, EventType.CHANGE, "one")
    assert kinds(dispatcher.dispatch([frames(9)], 0)) == [Kind.EVENT]


def test_the_first_event_after_a_marked_restart_reports_it() -> None:
    dispatcher = routed("s")
    dispatcher.dispatch([frames(5)], 0)
    dispatcher.mark_restarted([TOPIC])
    assert kinds(dispatcher.dispatch([frames(8)], 0)) == [Kind.RESTART, Kind.EVENT]


# --- batches ---------------------------------------------------------------------------------------------


def test_a_batch_lists_the_events_with_frames() -> None:
    error = (DevError("R", Severity.ERR, "d", "o"),)
    gap = SubscriptionEvent("s", Kind.GAP, 0, None, 0, SequenceGap(2, 3))
    events = [SubscriptionEvent("s", Kind.ERROR, 0, None, 0, error), event("s", 1), gap, event("s", 4)]
    batch = decode_events(events, BatchDecoder())
    assert (len(batch), batch.rows.tolist(), batch.columns.ctr.tolist()) == (4, [1, 3], [1, 4])
    assert len(decode_events([], BatchDecoder())) == 0
    assert decode_events(events[1:2], BatchDecoder()).rows.tolist() == [0]
    assert events[0].errors == error
    ((reason, _, text, _),) = gap.errors
    assert (reason, text) == ("API_MissedEvents", "2 events are missing, with the counters 2 to 3")
    assert SubscriptionEvent("s", Kind.RESTART, 0, None, 0, SequenceRestart(3, 1)).errors == events[1].errors == ()
