"""Events of a market data source: what they hold, how many there are, and that each is stored once."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.mama.messages.event_records import EventRecord
from mama_spark.openmama.source.event_reporter import (
    FlightLogStore,
    SourceEventReporter,
    SourceEventReporters,
    SourceEvents,
)
from mama_spark.openmama.source.market_data_source import PublisherEvent
from mama_spark.report.page import report
from mama_spark.testing.waiting import eventually

from tests.support.flight_logs import rows

pytestmark = pytest.mark.spec("OW20")


def test_a_callback_has_topic_status_and_text() -> None:
    events = SourceEvents("S", 7)
    events.lifecycle("live", 1)
    events.callback(PublisherEvent("onRequest", "A", "SUBSCRIBE; refused: NOT_ENTITLED", "NOT_ENTITLED"), 2)
    events.callback(PublisherEvent("onError", "", "NOT_FOUND: No symbol", "NOT_FOUND"), 3)
    assert events.take(4) == [
        EventRecord("publisher", "live", 1, "S", 7, publisher="S/7", state="LIVE"),
        EventRecord("topic", "onRequest", 2, "S", 7, "S.A", source="S", symbol="A", status="NOT_ENTITLED",
                    info="SUBSCRIBE; refused: NOT_ENTITLED", publisher="S/7"),
        EventRecord("topic", "onError", 3, "S", 7, status="NOT_FOUND", info="NOT_FOUND: No symbol", publisher="S/7"),
    ]  # fmt: skip
    assert events.take(5) == []


def test_a_flood_of_requests_is_counted() -> None:
    events = SourceEvents("S", 7, most=3)
    for _ in range(1000):
        events.callback(PublisherEvent("onRequest", "A"), 1)
    events.callback(PublisherEvent("onMsg", "A"), 1)
    events.lifecycle("destroy", 2)
    taken = [(e.event, e.info) for e in events.take(3)]
    more = "more of them, each without an event of its own"
    assert taken[3:] == [("destroy", None), ("onRequest", f"997 {more}"), ("onMsg", f"1 {more}")]
    events.callback(PublisherEvent("onRequest", "A"), 4)
    assert len(events.take(5)) == 1


class FailingStore:
    """Takes nothing until ``free``."""

    name = "the store"

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.free = error, threading.Event()
        self.tries: list[tuple[int, list[str]]] = []
        self.stored: list[tuple[int, list[str]]] = []

    def open(self) -> None:
        if self.error is not None:
            raise self.error

    def store(self, number: int, events: Sequence[EventRecord]) -> None:
        batch = (number, [e.event for e in events])
        self.tries.append(batch)
        if not self.free.is_set():
            raise Unavailable("nobody there")
        self.stored.append(batch)

    def close(self) -> None:
        self.tries.append((0, []))


def test_a_batch_that_was_not_stored_comes_again_as_it_was() -> None:
    store, warnings = FailingStore(Unavailable("nobody there")), list[str]()
    reporter = SourceEventReporter(store, SourceEvents("S", 7), 0.01, warnings.append)
    with SourceEventReporters([reporter]) as reports:
        eventually(lambda: len(store.tries) >= 3, "it tries again")
        reports.callback(PublisherEvent("onMsg", "A"))
        store.free.set()
        eventually(lambda: len(store.stored) == 2, "both batches are stored")
    assert store.stored == [(1, ["create"]), (2, ["onMsg"]), (3, ["destroy"])]
    assert {number for number, _ in store.tries[:3]} == {1}
    assert warnings == ["events of the source wait for the store: nobody there"]
    assert store.tries[-1] == (0, []), "closed at the end"


def test_what_the_user_must_change_ends_it() -> None:
    store = FailingStore(ConfigError("no permission"))
    with pytest.raises(ConfigError, match="no permission"):
        SourceEventReporters([SourceEventReporter(store, SourceEvents("S", 7), 0.01, print)]).__enter__()
    assert not store.tries


def test_a_batch_that_is_stored_again_adds_no_rows(tmp_path: Path) -> None:
    events = SourceEvents("S", 7)
    events.callback(PublisherEvent("onCreate", "A"), 1_700_000_000_000_000)
    batch = events.take(0)
    store = FlightLogStore(str(tmp_path / "log"), {}, "run")
    store.open()
    for number in (1, 1, 2):
        store.store(number, batch)
    stored = [row for row in rows(tmp_path / "log") if row["committed"]]
    columns = ("kind", "event", "topic", "run_id", "bridge")
    assert [tuple(row[name] for name in columns) for row in stored] == [
        ("topic", "onCreate", "S.A", "run", "openmama")
    ] * 2
    assert report(str(tmp_path / "log")).html.count("<svg") == 1, "a log without messages has a page"
