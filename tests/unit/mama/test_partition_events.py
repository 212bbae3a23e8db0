"""Events that the publisher of a partition reports, as tables of inputs and events."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from mama_spark.contracts.errors import (
    AckTimeout,
    BadTopic,
    ConfigError,
    PermissionDenied,
    PublishError,
    Rejected,
    Unavailable,
)
from mama_spark.contracts.message import MessageBatch
from mama_spark.mama.messages.event_records import EventRecord
from mama_spark.mama.publisher.partition_events import MAX_ERRORS, MAX_TOPICS, PartitionEvents
from mama_spark.mama.states import IllegalPublisherStep, PublisherState

from tests.support.memory import peak_of
from tests.support.tables import each

NEVER = -(2**63)
NOTHING = np.empty(0, np.int64)


def batch(topics: list[str], **columns: Any) -> MessageBatch:
    return MessageBatch.of(topics, [b"x"] * len(topics), **columns)


def live(which: str = "topic", **bounds: int) -> PartitionEvents:
    events = PartitionEvents(which, "run/0/1/0", **bounds)
    events.create(1)
    events.live(2)
    return events


def acknowledged(events: PartitionEvents, topics: list[str], first: int = 10) -> list[EventRecord]:
    return events.messages(batch(topics), first + np.arange(len(topics)), NOTHING, {}, 99)


def failed(events: PartitionEvents, topics: list[str], errors: list[PublishError]) -> list[EventRecord]:
    rows = np.arange(len(topics))
    return events.messages(batch(topics), np.full(len(topics), NEVER), rows, dict(enumerate(errors)), 99)


def summary(events: list[EventRecord]) -> list[tuple[Any, ...]]:
    return [(e.kind, e.event, e.topic, e.state, e.at_us) for e in events]


@pytest.mark.spec("PE-48-PE-51", "PE-54")
def test_publisher_walks_the_states_of_the_specification() -> None:
    events = PartitionEvents("topic", "p")
    assert summary(events.create(1)) == [("publisher", "create", None, "CREATING", 1)]
    assert summary(events.live(2)) == [("publisher", "live", None, "LIVE", 2)]
    assert summary(events.destroy(3)) == [("publisher", "destroy", None, "DESTROYING", 3)]
    assert summary(events.destroyed(4)) == [("publisher", "destroy", None, "DESTROYED", 4)]
    assert events.state is PublisherState.DESTROYED
    assert (events.destroy(5), events.destroyed(5)) == ([], [])
    with pytest.raises(IllegalPublisherStep):
        events.live(6)


def test_publisher_that_was_never_live_is_not_destroyed() -> None:
    events = PartitionEvents("topic", "p")
    events.create(1)
    (error,) = events.publisher_error(2, Unavailable("nobody answers"), "nobody answers")
    assert (error.event, error.state, error.status, error.info) == ("error", "CREATING", "PLATFORM", "nobody answers")
    assert events.destroy(3) == []
    assert not events.ended


@pytest.mark.spec("PE-17")
def test_topic_is_created_at_its_first_message_and_destroyed_once() -> None:
    events = live()
    assert summary(acknowledged(events, ["b", "a", "b", "a"])) == [
        ("topic", "PUBLISH_CREATE", "b", None, 10),
        ("topic", "PUBLISH_CREATE", "a", None, 11),
    ]
    assert acknowledged(events, ["a", "b"]) == []
    assert summary(acknowledged(events, ["a", "c"], first=50)) == [("topic", "PUBLISH_CREATE", "c", None, 51)]
    gone = [(e.event, e.topic, e.publisher) for e in events.destroy(90)]
    wanted = [("PUBLISH_DESTROY", t) for t in ("b", "a", "c")] + [("destroy", None)]
    assert gone == [(*event, "run/0/1/0") for event in wanted]


def test_topics_are_reported_in_the_order_of_their_first_sends() -> None:
    sent = np.array([NEVER, 30, 20, 10])
    events = live().messages(batch(["a", "b", "a", "c"]), sent, NOTHING, {}, 99)
    assert [(e.topic, e.at_us) for e in events] == [("c", 10), ("a", 20), ("b", 30)]


def test_root_source_and_symbol_are_those_in_the_headers() -> None:
    headers = [{"Mama-Source": ["S.1"], "Mama-Symbol": ["SYM"], "Other": ["x"]}, None]
    (with_parts, without) = live().messages(
        batch(["S.1.SYM", "S.1"], headers=headers), np.array([1, 2]), NOTHING, {}, 9
    )
    assert (with_parts.root, with_parts.source, with_parts.symbol) == (None, "S.1", "SYM")
    assert (without.root, without.source, without.symbol) == (None, None, None)


@pytest.mark.spec("PE-14", "PE-15", "PE-17")
@each(
    ("error", "event", "status"),
    [
        (PermissionDenied("denied", 403), "PUBLISH_ERROR_NOT_ENTITLED", "PUBLISH_ERROR_NOT_ENTITLED"),
        (BadTopic("wildcard"), "PUBLISH_ERROR_BAD_SYMBOL", "BAD_SYMBOL"),
        (Rejected("maximum messages exceeded", 10077), "PUBLISH_ERROR", "PUBLISH_ERROR"),
        (AckTimeout("no answer"), "PUBLISH_ERROR", "TIMEOUT"),
    ],
)
def test_failed_message_is_an_error_of_its_topic_by_name(error: PublishError, event: str, status: str) -> None:
    """The event has names, never numbers, and the middleware's code and text."""
    (e,) = failed(live(), ["a"], [error])
    assert (e.kind, e.event, e.topic, e.status) == ("topic", event, "a", status)
    assert (e.code, e.info) == (error.code or None, error.info)


def test_message_that_was_sent_again_and_acknowledged_is_no_error() -> None:
    found = live().messages(batch(["a"]), np.array([1]), NOTHING, {0: AckTimeout("late")}, 9)
    assert [e.event for e in found] == ["PUBLISH_CREATE"]


def test_same_error_of_a_topic_is_reported_once_and_the_others_are_counted() -> None:
    events = live()
    first = failed(events, ["a"] * 5 + ["b"], [PermissionDenied("denied")] * 6)
    assert [(e.event, e.topic) for e in first] == [
        ("PUBLISH_ERROR_NOT_ENTITLED", "a"),
        ("PUBLISH_ERROR_NOT_ENTITLED", "b"),
    ]
    assert failed(events, ["a"], [PermissionDenied("denied")]) == []
    more = events.destroy(9)[0]
    assert (more.event, more.topic) == ("PUBLISH_ERROR_NOT_ENTITLED", None)
    assert more.info == "5 more of them, each without an event of its own"


def test_first_errors_of_each_kind_are_reported_and_the_others_are_counted() -> None:
    events = live()
    bad = [f"t{i}.*" for i in range(1_000)]
    first = failed(events, bad, [BadTopic("wildcard")] * 1_000)
    assert [e.topic for e in first] == bad[:MAX_ERRORS]
    assert len(failed(events, ["other"], [Rejected("full", 10077)])) == 1  # another kind
    lost = [events.publisher_error(t, None, "the connection was lost") for t in range(50)]
    assert [len(e) for e in lost] == [1] * MAX_ERRORS + [0] * 30
    *ends, last = events.destroy(9)
    assert (last.event, last.state) == ("destroy", "DESTROYING"), "errors change no state, and create no topic"
    assert {(e.kind, e.event): e.info for e in ends} == {
        ("topic", "PUBLISH_ERROR_BAD_SYMBOL"): "980 more of them, each without an event of its own",
        ("publisher", "error"): "30 more of them, each without an event of its own",
    }


def test_with_publisher_events_only_failed_messages_are_errors_of_the_publisher() -> None:
    events = live("publisher")
    assert acknowledged(events, ["a", "b"]) == []
    denied = PermissionDenied("denied", 403)
    errors: list[PublishError] = [denied, denied, Rejected("full", 10077)]
    found = failed(events, ["c", "c", "d"], errors)
    assert [(e.kind, e.event, e.status, e.code, e.topic, e.state) for e in found] == [
        ("publisher", "error", "PUBLISH_ERROR_NOT_ENTITLED", 403, "c", "LIVE"),
        ("publisher", "error", "PUBLISH_ERROR", 10077, "d", "LIVE"),
    ]
    assert [e.event for e in events.destroy(9)] == ["error", "destroy"]


def test_switched_off_reports_nothing() -> None:
    events = PartitionEvents("off", "p")
    assert events.create(1) + events.live(2) == []
    assert acknowledged(events, ["a"]) + failed(events, ["b"], [PermissionDenied("denied")]) == []
    assert events.publisher_error(3, ConfigError("no"), "no") + events.destroy(4) + events.destroyed(5) == []


def create_hundred_thousand_topics() -> None:
    events, created = live(), list[str | None]()
    for b in range(20):
        created += [e.topic for e in acknowledged(events, [f"orders.{b * 5_000 + i}" for i in range(5_000)])]
    assert created == [f"orders.{i}" for i in range(MAX_TOPICS)]


def test_hundred_thousand_topics_take_bounded_memory() -> None:
    assert peak_of(create_hundred_thousand_topics).python < 4 << 20, "their names alone take 6 MB"


def test_topics_beyond_the_bound_are_counted_once_each() -> None:
    events = live(max_topics=2)
    for _ in range(3):
        acknowledged(events, ["a", "b", "c", "d", "c"])
    *destroyed, more, _ = events.destroy(9)
    assert [(e.event, e.topic) for e in destroyed] == [("PUBLISH_DESTROY", "a"), ("PUBLISH_DESTROY", "b")]
    assert (more.event, more.topic) == ("PUBLISH_CREATE", None)
    assert more.info == "about 2 more topics, each without events of its own"
