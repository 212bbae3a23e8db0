"""The tables of the live view from events and states of streams."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from mama_spark.cli.top.model import COLUMNS, MOST_EVENTS, MOST_PUBLISHERS, RATE_SHOWN, LiveModel, select, sparkline
from mama_spark.console.output import printable
from mama_spark.contracts.record_log import LogStatus, ReaderStatus
from mama_spark.mama.discovery.discovery_rows import DiscoveryRow

from tests.support.tables import each

SOURCE = DiscoveryRow(
    "source", "online", "desk", 7, source_state="ONLINE", source_data_state="OK", event_time=1_000_000
)
LOG = LogStatus("ORDERS", 100, 50, 5000, most_records=100, most_bytes=None, readers=(ReaderStatus("audit", 30, 2),))


def event(kind: str, name: str, publisher: str = "p/0", state: str = "LIVE", **more: Any) -> DiscoveryRow:
    about = {"EventPublisher": publisher, "EventPublisherState": state}
    return DiscoveryRow(kind, name, "desk", 7, capabilities=about, event_time=2_000_000, **more)


def test_rates_are_what_was_stored_between_two_looks() -> None:
    model = LiveModel()
    for now, last in ((10.0, 100), (12.0, 300), (13.0, 300)):
        model.set_streams([replace(LOG, last=last)], now)
    [row] = model.table("streams")
    assert row == ("ORDERS", 0, "█▁", 50, 5000, 1, "50 % of 100 messages")
    model.set_streams([replace(LOG, last=5)], 14.0)
    assert model.table("streams")[0][1:3] == (0, ""), "another stream of that name"
    model.set_streams([], 15.0)
    assert model.table("streams") == []


def test_publishers_have_their_state_topics_and_failures() -> None:
    model = LiveModel()
    model.add_changes([event("publisher", "live"), event("topic", "PUBLISH_CREATE", topic="a")])
    model.add_changes([event("topic", "PUBLISH_ERROR", topic="a", status="TIMEOUT", info="no answer")])
    model.add_changes([event("publisher", "destroy", state="DESTROYED"), event("publisher", "live", "p/1")])
    assert model.table("publishers") == [
        ("p/1", "LIVE", None, "", None, None, 0, 0, "desk", "00:00:02", ""),
        ("p/0", "DESTROYED", None, "", None, None, 1, 1, "desk", "00:00:02", "a TIMEOUT no answer"),
    ]
    assert model.totals()["failed"] == 1


def counts(at: int, acked: int, failed: int, in_flight: int, info: str | None = None) -> DiscoveryRow:
    row = event("publisher", "counts", info=info)
    numbers = {"EventAcknowledged": str(acked), "EventFailed": str(failed), "EventInFlight": str(in_flight)}
    return row._replace(event_time=at * 1_000_000, capabilities={**(row.capabilities or {}), **numbers})


def test_publishers_that_say_so_have_messages_in_flight_rates_and_outcomes() -> None:
    model = LiveModel()
    model.add_changes([event("publisher", "live"), counts(10, 100, 0, 7)], 1.0)
    model.add_changes([counts(12, 500, 2, 90, "acknowledgements"), event("topic", "PUBLISH_ERROR", topic="a")], 3.0)
    [row] = model.table("publishers")
    assert row[:8] == ("p/0", "LIVE", 200, "█", 90, 500, 2, 0)
    assert (model.totals()["in_flight"], model.totals()["acked"], model.totals()["acked_per_second"]) == (90, 500, 200)
    assert [cells[2] for cells in model.table("events")] == ["PUBLISH_ERROR", "live"], "counts are no events"
    model.set_streams([], 3.0 + RATE_SHOWN + 1)
    assert model.table("publishers")[0][2] is None, "nothing came for a while: the rate is not known"
    model.add_changes([event("publisher", "destroy", state="DESTROYED")], 30.0)
    assert (model.totals()["in_flight"], model.totals()["acked"]) == (0, 500)


def test_what_a_publisher_waits_for_is_shown() -> None:
    model = LiveModel()
    model.add_changes([counts(10, 0, 0, 7, "acknowledgements for 12 s")])
    assert model.table("publishers")[0][-1] == "waits for acknowledgements for 12 s"


def test_sources_come_and_go_and_all_is_an_event() -> None:
    model = LiveModel()
    model.set_sources([SOURCE])
    assert model.totals() | {"sources": 1, "online": 1} == model.totals()
    model.add_changes([SOURCE._replace(event="offline", source_state="OFFLINE", source_data_state="SUSPECT")])
    model.add_changes([DiscoveryRow("gap", "gap", gap_from=3, gap_to=9, origin="EVENTS")])
    assert model.table("sources")[0][:4] == ("desk", "7", "OFFLINE", "SUSPECT")
    assert model.totals()["online"] == 0
    assert model.table("events") == [
        ("-", "gap", "lost", "EVENTS", "records 3 to 9"),
        ("00:00:01", "source", "offline", "desk 7", "OFFLINE"),
    ]


def test_memory_is_bounded() -> None:
    model = LiveModel()
    model.add_changes(event("publisher", "live", f"p/{i}") for i in range(3 * MOST_PUBLISHERS))
    assert len(model.table("publishers")) == MOST_PUBLISHERS
    assert len(model.table("events")) == MOST_EVENTS


def test_every_table_is_json() -> None:
    model = LiveModel()
    model.set_sources([SOURCE])
    model.set_streams([LOG], 1.0)
    told = json.loads(json.dumps(model.tables()))
    assert told.keys() == {"totals", *COLUMNS}
    assert told["readers"] == [{"reader": "audit", "stream": "ORDERS", "lag": 30, "unacknowledged": 2}]
    assert (told["totals"]["lag"], told["totals"]["unacknowledged"]) == (30, 2)


def test_rows_are_filtered_and_sorted_numbers_before_text() -> None:
    rows = [("b", 10), ("a", None), ("C", 9)]
    assert select(rows, "", 1, descending=False) == [("C", 9), ("b", 10), ("a", None)]
    assert select(rows, "", 0, descending=True) == [("C", 9), ("b", 10), ("a", None)]
    assert select(rows, "c", 0, descending=False) == [("C", 9)]


@given(st.lists(st.floats(0, 1e9)))
def test_a_sparkline_is_as_long_as_it_may_be_and_its_highest_is_full(numbers: list[float]) -> None:
    line = sparkline(numbers, 12)
    assert len(line) == min(12, len(numbers))
    assert not any(numbers[-12:]) or "█" in line


@each(("value", "shown"), [(None, "-"), (1234567, "1,234,567"), ("a\x1b[31m\nb", "a\ufffd[31m b")])
def test_cells_cannot_steer_the_terminal(value: Any, shown: str) -> None:
    assert printable(value) == shown
