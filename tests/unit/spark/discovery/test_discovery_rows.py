"""What discovery tells, as rows and as columns."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.mama.discovery.discovery_rows import (
    BAD_RECORD,
    INFO_LENGTH,
    DiscoveryRow,
    DiscoveryRowReader,
    shown_state,
)
from mama_spark.mama.messages.event_records import EventRecord, encode_event
from mama_spark.mama.messages.msg import FieldType, MamaMsg
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.source_records import FieldId, SourceFields, SourceRecord, encode_source
from mama_spark.spark.discovery.row_batches import BATCH, SCHEMA, batches, record_batch
from pyspark.sql import types as T
from pyspark.sql.pandas.types import to_arrow_schema

from tests.support.tables import each

AT = 1_800_000_000_123_456
DESK = SourceKey("desk", 7)
READER = DiscoveryRowReader("nats", "nats://there:4222")

COLUMNS = [
    "kind", "event", "source_name", "source_id", "source_state", "source_data_state",
    "source_qos_rate", "source_qos_timeliness", "source_data_dict", "capabilities", "topic", "root", "source", "symbol",
    "status", "code", "info", "gap_from", "gap_to", "raw", "origin", "bridge", "transport", "event_time", "sequence",
]  # fmt: skip


def record(
    payload: bytes | MamaMsg | SourceRecord, key: SourceKey | None = DESK, info: str | None = None
) -> DiscoveryEvent:
    if isinstance(payload, SourceRecord):
        payload = encode_source(payload)
    data = encode(payload) if isinstance(payload, MamaMsg) else payload
    return DiscoveryEvent(DiscoveryEventKind.RECORD, AT, "MAMA_EVENTS", 12, key, data, info=info)


def row(change: DiscoveryEvent, reader: DiscoveryRowReader = READER) -> dict[str, Any]:
    """The row, through Arrow, without the columns that are null."""
    (made,) = record_batch([reader.row(change)]).to_pylist()
    return {name: value for name, value in made.items() if value is not None}


def test_columns_are_those_of_the_design_in_order_and_what_spark_makes_of_the_schema() -> None:
    assert tuple(SCHEMA.names) == DiscoveryRow._fields == tuple(COLUMNS)
    types = {
        "source_id": T.DecimalType(20, 0), "capabilities": T.MapType(T.StringType(), T.StringType()),
        "code": T.IntegerType(), "gap_from": T.LongType(), "gap_to": T.LongType(), "raw": T.BinaryType(),
        "event_time": T.TimestampType(), "sequence": T.LongType(),
    }  # fmt: skip
    spark = T.StructType(
        [T.StructField(n, types.get(n, T.StringType()), nullable=n not in ("kind", "event")) for n in COLUMNS]
    )
    assert to_arrow_schema(spark, timezone="UTC").equals(SCHEMA)


@pytest.mark.spec("SD-04-SD-12")
def test_a_source_record_fills_a_column_for_each_capability_it_names() -> None:
    said = SourceRecord("desk", 7, "ONLINE", "OK", "FILTERED", "DELAYED", "MARKETDATA", {"Region": "eu"})
    assert row(record(said)) == {
        "kind": "source", "event": "online", "source_name": "desk", "source_id": Decimal(7),
        "source_state": "ONLINE", "source_data_state": "OK", "source_qos_rate": "FILTERED",
        "source_qos_timeliness": "DELAYED", "source_data_dict": "MARKETDATA", "capabilities": [("Region", "eu")],
        "raw": encode(encode_source(said)), "origin": "MAMA_EVENTS", "bridge": "nats",
        "transport": "nats://there:4222", "event_time": datetime.fromtimestamp(AT / 1e6, UTC), "sequence": 12,
    }  # fmt: skip
    assert "source_id" not in row(record(SourceRecord("plain"), SourceKey("plain", None)))
    most = 2**64 - 1
    assert row(record(SourceRecord("most", most), SourceKey("most", most)))["source_id"] == Decimal(most)


@pytest.mark.spec("SD-08", "SD-09")
@each(
    ("state", "data_state", "event"),
    [
        ("ONLINE", None, "online"),
        ("ONLINE", "SUSPECT", "suspect"),
        ("ONLINE", "ROTTEN", "online"),
        ("OFFLINE", "SUSPECT", "offline"),
        (None, "OK", "unknown"),
        ("ASLEEP", "SUSPECT", "unknown"),
    ],
)
def test_the_event_of_a_source_says_what_it_is_and_values_stay_as_they_are(
    state: str | None, data_state: str | None, event: str
) -> None:
    """Values that no enumeration knows are kept."""
    got = row(record(SourceRecord("desk", 7, state, data_state)))
    assert (got["event"], got.get("source_state"), got.get("source_data_state")) == (event, state, data_state)


@pytest.mark.spec("SD-13")
def test_fields_are_found_by_the_names_and_numbers_of_the_properties_and_collisions_are_reported() -> None:
    fields = SourceFields(source=FieldId("Feed", 20001))
    msg = MamaMsg()
    msg.add(FieldType.STRING, "Feed", 20001, "desk")
    msg.add(FieldType.U64, "SourceID", 10002, 7)
    msg.add(FieldType.STRING, "PublisherTopic", 10003, "a.b")  # another program's use of the number of SourceState
    got = row(record(msg), DiscoveryRowReader("nats", "t", fields))
    assert got["source_name"] == "desk"
    assert "source_state" not in got
    assert "PublisherTopic[10003]" in got["info"]
    assert "SourceState" in got["info"]
    assert ("PublisherTopic", "a.b") in got["capabilities"]


def of_one_field(kind: FieldType, name: str, fid: int, value: str | int) -> bytes:
    msg = MamaMsg()
    msg.add(kind, name, fid, value)
    return encode(msg)


@each(
    ("payload", "status", "reason"),
    [
        (b"", "BAD_RECORD", ""),
        (b"not a message", "BAD_RECORD", "0x6e"),
        (b"O\x02\x00", "WRONG_FIELD_TYPE", "version"),
        (encode(encode_source(SourceRecord("desk", 7)))[:-1], "BAD_RECORD", ""),
        (of_one_field(FieldType.STRING, "SourceState", 10003, "ONLINE"), "BAD_RECORD", "SourceName"),
        (of_one_field(FieldType.I32, "SourceName", 10001, 5), "BAD_RECORD", "STRING"),
    ],
)
@each("kind", [DiscoveryEventKind.RECORD, DiscoveryEventKind.EVENT])
def test_a_corrupt_record_is_a_row_with_its_bytes_and_the_reason(
    payload: bytes, status: str, reason: str, kind: DiscoveryEventKind
) -> None:
    got = row(DiscoveryEvent(kind, AT, "MAMA_EVENTS", 3, DESK, payload))
    assert got["event"] == BAD_RECORD
    assert got["kind"] == ("source" if kind is DiscoveryEventKind.RECORD else "publisher")
    assert got["status"] == status
    assert (got["raw"], got["sequence"], got["source_name"]) == (payload, 3, "desk")
    assert got["info"]
    if kind is DiscoveryEventKind.RECORD:
        assert reason in got["info"]
    assert "source_state" not in got


def test_a_record_that_names_another_source_than_its_subject_belongs_to_the_subject() -> None:
    got = row(record(SourceRecord("other", 9, "ONLINE"), info="said by the bridge"))
    assert (got["source_name"], got["source_id"]) == ("desk", Decimal(7))
    assert "'other' 9" in got["info"]
    assert "'desk' 7" in got["info"]
    assert "said by the bridge" in got["info"]


@each(
    ("kind", "event", "state"),
    [(DiscoveryEventKind.SUSPECT, "suspect", "ONLINE"), (DiscoveryEventKind.OFFLINE, "offline", "OFFLINE")],
)
def test_a_source_that_was_not_renewed_is_a_row_with_what_the_middleware_says(
    kind: DiscoveryEventKind, event: str, state: str
) -> None:
    """A vanished source is a message with its state, never silence."""
    got = row(DiscoveryEvent(kind, AT, "MAMA_EVENTS", 5, DESK))
    assert (got["kind"], got["event"], got["status"], got["code"]) == ("source", event, "EXPIRED", 5007)
    assert (got["source_state"], got["source_data_state"]) == (state, "SUSPECT")
    assert (got["source_name"], got["source_id"]) == ("desk", Decimal(7))
    assert "capabilities" not in got


def test_only_offline_replaces_the_state_that_a_source_names_itself() -> None:
    assert shown_state(None, "STALE") == ("online", "STALE", "OK")
    assert shown_state(DiscoveryEventKind.SUSPECT, "STALE") == ("suspect", "STALE", "SUSPECT")
    assert shown_state(DiscoveryEventKind.OFFLINE, "STALE") == ("offline", "OFFLINE", "SUSPECT")


@pytest.mark.spec("PE-05", "PE-16", "PE-17")
def test_publisher_and_topic_events_are_rows_with_names_and_never_numbers() -> None:
    """PE-05, PE-16, PE-17 and the rows of kind publisher."""
    said = EventRecord("publisher", "error", AT - 5, "desk", 7, "md.SRC.IBM", "md", "SRC", "IBM",
                       "NOT_ENTITLED", 403, "no", "desk/3", "LIVE")  # fmt: skip
    got = row(DiscoveryEvent(DiscoveryEventKind.EVENT, AT, "MAMA_EVENTS", 6, DESK, encode(encode_event(said))))
    assert got.items() >= {
        "kind": "publisher", "event": "error", "source_name": "desk", "topic": "md.SRC.IBM", "root": "md",
        "source": "SRC", "symbol": "IBM", "status": "NOT_ENTITLED", "code": 403, "info": "no",
    }.items()  # fmt: skip
    assert dict(got["capabilities"]) == {
        "EventTime": "2027-01-15T08:00:00.123451+00:00", "EventPublisher": "desk/3", "EventPublisherState": "LIVE",
    }  # fmt: skip
    topic = EventRecord("topic", "PUBLISH_ERROR_BAD_SYMBOL", AT, topic="a..b")
    got = row(DiscoveryEvent(DiscoveryEventKind.EVENT, AT, "MAMA_EVENTS", 6, DESK, encode(encode_event(topic))))
    assert (got["kind"], got["event"], got["topic"]) == ("topic", "PUBLISH_ERROR_BAD_SYMBOL", "a..b")


def test_readers_that_come_and_go_the_end_of_the_image_and_a_gap_are_rows() -> None:
    for kind in (DiscoveryEventKind.SUBSCRIBED, DiscoveryEventKind.UNSUBSCRIBED):
        got = row(DiscoveryEvent(kind, AT, "MAMA_ADVISORIES", 2, topic="orders.>", info="consumer c of stream ORDERS"))
        assert (got["kind"], got["event"], got["topic"]) == ("topic", kind.name, "orders.>")
        assert got["info"] == "consumer c of stream ORDERS"
    end = row(DiscoveryEvent(DiscoveryEventKind.IMAGE_END, AT, "MAMA_SOURCES"))
    assert (end["kind"], end["event"]) == ("image_end", "image_end")
    gap = row(DiscoveryEvent(DiscoveryEventKind.GAP, AT, "MAMA_EVENTS", gap=(3, 9), info="stream made again"))
    assert (gap["kind"], gap["gap_from"], gap["gap_to"], gap["origin"]) == ("gap", 3, 9, "MAMA_EVENTS")


@pytest.mark.spec("SD-14")
def test_the_image_is_one_row_a_source_also_where_the_middleware_has_the_last_word() -> None:
    """Two sources of one name are two rows."""
    twin = SourceKey("desk", 8)
    changes = [
        record(SourceRecord("desk", 7, "ONLINE", "OK", data_dict="D")),
        record(SourceRecord("desk", 8, "ONLINE", "OK"), twin),
        DiscoveryEvent(DiscoveryEventKind.SUSPECT, AT + 1, "MAMA_SOURCES", 20, DESK),
        DiscoveryEvent(DiscoveryEventKind.IMAGE_END, AT, "MAMA_SOURCES"),
    ]
    first, second = READER.image(changes)
    assert (first.event, first.source_state, first.source_data_state) == ("suspect", "ONLINE", "SUSPECT")
    assert (first.source_data_dict, first.status, first.event_time, first.raw) == (
        "D", "EXPIRED", AT + 1, changes[0].payload)  # fmt: skip
    assert (second.event, second.source_id) == ("online", 8)


@pytest.mark.spec("SD-26")
def test_a_stream_begins_with_one_row_a_source_and_then_has_one_a_change() -> None:
    said = record(SourceRecord("desk", 7, "ONLINE", "OK"))
    image = [
        replace(said, origin="MAMA_SOURCES"),
        DiscoveryEvent(DiscoveryEventKind.SUSPECT, AT + 1, "MAMA_SOURCES", 20, DESK),
    ]
    changes = [said, DiscoveryEvent(DiscoveryEventKind.SUSPECT, AT + 2, "MAMA_EVENTS", 21, DESK)]
    told = READER.rows([*image, *changes], "MAMA_SOURCES")
    assert [(row.event, row.origin) for row in told] == [
        ("suspect", "MAMA_SOURCES"), ("online", "MAMA_EVENTS"), ("suspect", "MAMA_EVENTS"),
    ]  # fmt: skip


def test_a_corrupt_record_of_a_silent_source_stays_corrupt_in_the_image() -> None:
    (only,) = READER.image(
        [record(b"junk"), DiscoveryEvent(DiscoveryEventKind.OFFLINE, AT + 1, "MAMA_SOURCES", 20, DESK)]
    )
    assert (only.event, only.source_state, only.status) == (BAD_RECORD, "OFFLINE", "BAD_RECORD")
    assert "0x6a" in (only.info or "")


def test_rows_come_in_order_in_batches_of_bounded_size() -> None:
    rows = [READER.row(DiscoveryEvent(DiscoveryEventKind.IMAGE_END, AT, "S", i)) for i in range(BATCH + 10)]
    made = list(batches(iter(rows)))
    assert [b.num_rows for b in made] == [BATCH, 10]
    assert pa.Table.from_batches(made)["sequence"].to_pylist() == list(range(BATCH + 10))
    assert list(batches(iter([]))) == []


KEYS = st.none() | st.builds(SourceKey, st.text(), st.none() | st.integers(0, 2**64 - 1))
TEXTS = st.none() | st.text(st.characters(codec=None), max_size=20)  # lone surrogates included


@given(
    kind=st.sampled_from(DiscoveryEventKind),
    payload=st.none() | st.binary(max_size=200) | st.binary(max_size=200).map(lambda b: b"O\x01\x00" + b),
    key=KEYS,
    topic=TEXTS,
    info=TEXTS | st.just("x" * 5000),
)
def test_records_of_other_writers_do_not_stop_the_rows(
    kind: DiscoveryEventKind, payload: bytes | None, key: SourceKey | None, topic: str | None, info: str | None
) -> None:
    made = READER.row(DiscoveryEvent(kind, AT, "MAMA_EVENTS", 1, key, payload, topic, info))
    got = record_batch([made]).to_pylist()[0]
    assert got["raw"] == payload
    assert got["info"] is None or len(got["info"]) <= INFO_LENGTH
