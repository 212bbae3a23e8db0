"""Losses at the end of a series: what two checks of a server tell."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.tango.client.loss_detector import LossDetector
from mama_spark.tango.events.event_codec import CallInfo, Event, encode
from mama_spark.tango.events.sequence_tracker import SequenceGap, SequenceTracker
from mama_spark.tango.topics import event_topic
from mama_spark.tango.types import AttributeValue, DataType, DevError, Dim, EventType, Quality, Severity, ValueKind

from tests.support.tables import each

TOPIC = event_topic("vm:1", "a/b/c", "x", EventType.CHANGE)
KEY = TOPIC.encode()


def frames(
    value: float | None, ctr: int = 0, quality: Quality = Quality.VALID, time: int = 0, wide: int = 1
) -> list[bytes]:
    """An event; of an error without a value."""
    if value is None:
        return encode(Event(TOPIC, CallInfo(ctr, True), None, (DevError("Broken", Severity.ERR, "", ""),)))
    content = np.full(wide, value)
    data = AttributeValue("x", ValueKind.DOUBLE, content, time, quality, data_type=DataType.DOUBLE, r_dim=Dim(wide, 0))
    return encode(Event(TOPIC, CallInfo(ctr), data))


class Checker:
    def __init__(self) -> None:
        self.tracker = SequenceTracker()
        self.detector = LossDetector(self.tracker)

    def see(self, ctr: int, value: float | None = 1.0, **more: Any) -> Any:
        _, _, call, data = frames(value, ctr, **more)
        return self.tracker.track(KEY, ctr, call, data).marker

    def check(self, sent: int) -> SequenceGap | int | None:
        """What a check of counters finds."""
        return self.detector.check_counter(KEY, sent)

    def read(self, value: float | None, **more: Any) -> bool:
        """Whether a value that is read now is delivered."""
        return self.detector.check_value(frames(value, time=99, **more))


def test_what_one_check_heard_of_and_the_next_one_misses_is_lost() -> None:
    one = Checker()
    one.see(5)
    assert [one.check(8), one.check(9), one.check(9), one.check(9)] == [
        None, SequenceGap(6, 8), SequenceGap(9, 9), None,
    ]  # fmt: skip
    assert one.see(10) is None


def test_an_event_between_two_checks_means_that_others_may_be_on_their_way() -> None:
    one = Checker()
    one.see(5)
    assert one.check(8) is None
    one.see(6)
    assert [one.check(8), one.see(7), one.see(8), one.check(8), one.check(8)] == [None] * 5


def test_an_event_that_comes_after_all_is_delivered() -> None:
    one = Checker()
    one.see(5)
    assert [one.check(7), one.check(7)] == [None, SequenceGap(6, 7)]
    assert one.tracker.track(KEY, 6, *frames(2.0, 6)[2:]) == (True, None)
    assert one.see(8) is None  # 7 was told


def test_before_the_first_event_a_check_begins_to_count() -> None:
    one = Checker()
    assert [one.check(3), one.check(4), one.check(4), one.check(4)] == [None, 3, SequenceGap(4, 4), None]
    assert one.see(5) is None
    started = Checker()  # of a server that has sent nothing
    assert [started.check(0), started.check(0), started.check(2), started.check(2)] == [
        None, 0, None, SequenceGap(1, 2),
    ]  # fmt: skip


def test_a_restart_is_left_to_the_next_event() -> None:
    one = Checker()
    one.see(5)
    one.tracker.mark_restarted(KEY)
    assert [one.check(9), one.check(9), one.check(9)] == [None] * 3
    assert one.see(1) is not None


@given(st.lists(st.one_of(st.just("push"), st.just("lose"), st.just("check")), max_size=60))
def test_every_counter_is_received_or_told_exactly_once(steps: list[str]) -> None:
    """If no event is on its way for longer than from one check to the next."""
    one, sent, counters = Checker(), 1, [1]
    one.see(1)

    def told(gap: Any) -> None:
        if isinstance(gap, SequenceGap):
            counters.extend(range(gap.first, gap.last + 1))

    for step in [*steps, "check", "check"]:
        if step == "check":
            told(one.check(sent))
            continue
        sent += 1
        if step == "push":
            told(one.see(sent))
            counters.append(sent)
    assert counters == list(range(1, sent + 1))


@each(
    ("known", "read", "delivered"),
    [
        ({"value": 1.0}, {"value": 2.0}, True),
        ({"value": 1.0}, {"value": 1.0}, False),
        ({"value": 1.0, "time": 7}, {"value": 1.0}, False),  # each read has a time of its own
        ({"value": float("nan")}, {"value": float("nan")}, False),
        ({"value": 1.0}, {"value": 1.0, "quality": Quality.ALARM}, True),
        ({"value": None}, {"value": 1.0}, True),
        ({"value": 1.0, "wide": 2}, {"value": 1.0}, True),
        ({"value": 1.0, "wide": 1000}, {"value": 2.0, "wide": 1000}, False),  # too large to be kept
    ],
)
def test_a_value_that_differs_twice_is_delivered_once(known: Any, read: Any, delivered: bool) -> None:
    one = Checker()
    one.see(5, **known)
    assert [one.read(**read) for _ in range(4)] == [False, delivered, False, False]


def test_values_are_compared_with_the_newest_that_was_delivered() -> None:
    one = Checker()
    one.detector.value_was_read(frames(1.0))
    assert [one.read(1.0), one.read(2.0), one.read(1.0), one.read(2.0), one.read(2.0)] == [False] * 4 + [True]
    assert [one.read(2.0), one.read(1.0), one.read(1.0)] == [False, False, True]
    one.see(1, 2.0)
    assert [one.read(2.0), one.read(2.0)] == [False, False]
    assert one.read(3.0) is False
    one.see(2, 4.0)  # which was on its way
    assert [one.read(5.0), one.read(4.0), one.read(5.0), one.read(5.0)] == [False, False, False, True]


def test_without_an_event_the_first_read_is_what_others_are_compared_with() -> None:
    one = Checker()
    assert [one.read(1.0), one.read(2.0), one.read(2.0)] == [False, False, True]
    one.detector.forget(KEY)
    assert [one.read(5.0), one.read(5.0)] == [False, False]
