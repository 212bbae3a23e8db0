"""When a consumer is lost, and how far a reader has come by it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mama_spark.nats.jetstream.answers import ConsumerInfo
from mama_spark.nats.protocol.records import DeliveryNumbers, OutOfOrder
from mama_spark.nats.read.consumer_course import ConsumerCourse, SubscriptionBroken

from tests.support.tables import each


def numbers(*sequences: int, first: int = 1) -> DeliveryNumbers:
    return DeliveryNumbers(np.array(sequences), np.array(sequences), first, 5)


def info(delivered: int = 0, *, pending: int = 3, waiting: int = 1) -> ConsumerInfo:
    state: dict[str, Any] = {"num_pending": pending, "num_waiting": waiting, "delivered": {"consumer_seq": delivered}}
    return ConsumerInfo.of({"name": "c", **state})


def test_a_course_goes_on_behind_what_was_delivered_and_never_over_a_gap() -> None:
    course = ConsumerCourse(10, 0.0)
    course.take(numbers(11, 14), 1.0)
    course.take(numbers(15, first=3), 2.0)
    assert (course.position, course.delivered, course.heard) == (15, 3, 2.0)
    for lost in (numbers(17, first=5), numbers(15, first=3)):
        with pytest.raises(OutOfOrder):
            course.take(lost, 3.0)
    assert course.position == 15
    course.begin()
    course.take(numbers(16), 3.0)


def test_a_consumer_is_replaced_at_once_and_those_that_bring_nothing_ever_later() -> None:
    course = ConsumerCourse(0, 0.0)
    assert [course.fail() for _ in range(8)] == [0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    course.take(numbers(1), 1.0)
    assert course.fail() == 0.0


@each(
    ("state", "silent", "failed", "why"),
    [
        (info(2), 60.0, 0, None),
        (info(2, waiting=0), 0.1, 0, "waits for nothing"),
        (info(3, waiting=0), 1.9, 0, None),  # on the way
        (info(3), 2.1, 0, "3 were sent, 2 came"),
        (info(3), 2.1, 1, None),
        (info(3), 4.1, 1, "3 were sent, 2 came"),
    ],
)
def test_a_silent_consumer_goes_on_or_is_lost(state: ConsumerInfo, silent: float, failed: int, why: str | None) -> None:
    course = ConsumerCourse(0, 0.0)
    course.take(numbers(1, 2), 10.0)
    course.failed = failed
    if why is None:
        course.check(state, 10.0 + silent)
    else:
        with pytest.raises(SubscriptionBroken, match=why):
            course.check(state, 10.0 + silent)


def test_nothing_is_left_when_two_consumers_say_so_at_the_same_place() -> None:
    course, nothing = ConsumerCourse(0, 0.0), info(2, pending=0)
    course.take(numbers(1, 2), 1.0)
    assert not course.has_nothing_left(info(2), 2.0)
    assert not course.has_nothing_left(info(3, pending=0), 2.0), "a record is on the way"
    with pytest.raises(SubscriptionBroken):
        course.has_nothing_left(nothing, 3.0)
    assert course.heard == 3.0
    course.begin()
    assert course.has_nothing_left(info(0, pending=0), 4.0)
    course.take(numbers(3), 5.0)
    with pytest.raises(SubscriptionBroken):
        course.has_nothing_left(info(1, pending=0), 6.0)
