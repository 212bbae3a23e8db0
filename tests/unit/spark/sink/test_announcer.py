"""A write as a source, without a JVM: what is announced, told and withdrawn at a board in memory."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import mama_spark
import pyarrow as pa
import pytest
from mama_spark.contracts.bridge import DiscoveryEvent, DiscoveryEventKind
from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.middlewares import MIDDLEWARES
from mama_spark.mama.messages.event_records import EventRecord, decode_event
from mama_spark.mama.messages.omnm import decode
from mama_spark.mama.messages.source_records import FieldId, SourceFields, SourceRecord, decode_source
from mama_spark.mama.messages.status import Status, StatusError
from mama_spark.memory import MemoryBroker
from mama_spark.memory.discovery import MemoryDiscovery, MemorySources
from mama_spark.options import ANY_USE, DiscoveryOptions, SinkOptions, TransportOptions
from mama_spark.spark.option_loading import DiscoveryProperties, read_options
from mama_spark.spark.sink import announcer
from mama_spark.spark.sink.announcer import SourceAnnouncer, check_announce, source_id, source_record
from mama_spark.spark.sink.data_source import MamaPubWriter
from mama_spark.spark.sink.job import PartitionReport, SinkJob, TaskInfo
from mama_spark.spark.sink.partition_writer import publish_partition

from tests.support.spark.memory_harness import PLAN

TASK = TaskInfo(3, 1, None, None, None, False, "the app", "app-1")


@pytest.fixture
def name() -> Iterator[str]:
    made = uuid4().hex
    yield made
    MemoryBroker.forget(made)
    MemorySources.forget(made)


def options(name: str, **given: str) -> SinkOptions:
    return SinkOptions.parse({"url": f"memory://{name}", "announce": "true", **given})


def publish(
    o: SinkOptions, *topics: str, discovery: DiscoveryProperties | None = None, task: TaskInfo = TASK
) -> PartitionReport:
    job = SinkJob(o, PLAN, task.query_id is not None, "run", (), discovery or DiscoveryProperties())
    rows = pa.record_batch({"topic": list(topics), "value": [str(i).encode() for i in range(len(topics))]})
    return publish_partition(job, task, iter([rows]))


def board(name: str) -> list[DiscoveryEvent]:
    """All changes so far."""
    reader = MemoryDiscovery(name)
    reader.open()
    start = reader.initial_offset("earliest")
    return [change for block in reader.read(start, reader.latest_offset(start)) for change in block]


def records(name: str, fields: SourceFields | None = None) -> list[SourceRecord]:
    found = [c.payload for c in board(name) if c.kind is DiscoveryEventKind.RECORD]
    return [decode_source(decode(p), fields or SourceFields()).record for p in found if p is not None]


def events(name: str) -> list[EventRecord]:
    found = [c.payload for c in board(name) if c.kind is DiscoveryEventKind.EVENT]
    return [decode_event(decode(p)) for p in found if p is not None]


def test_counts_of_a_publisher_are_published_where_they_are_asked_for(name: str) -> None:
    publish(options(name, announceCounts="1h"), "a.b", "c", "a.b")
    found = [event for event in events(name) if event.event == "counts"]
    (counts,) = found
    assert (counts.kind, counts.taken, counts.acked, counts.failed, counts.in_flight) == ("publisher", 3, 3, 0, 0)
    assert (counts.state, counts.publisher) == ("LIVE", next(e.publisher for e in events(name) if e.event == "live"))
    assert [e.event for e in events(name)][-2:] == ["destroy", "destroy"], "they come before its end"


def test_counts_come_while_it_publishes_and_the_newest_wins(name: str) -> None:
    reporter = SourceAnnouncer(options(name), DiscoveryProperties(), SourceRecord("a", 1), "ids")
    assert reporter.start()
    for taken in range(1, 1001):
        reporter.set_counts(EventRecord("publisher", "counts", taken, taken=taken))
    reporter.finish()
    found = [event.taken for event in events(name)]
    assert found[-1] == 1000
    assert found == sorted(found)  # type: ignore[type-var]
    assert [event.source_name for event in events(name)] == ["a"] * len(found)


def test_task_announces_its_source_and_publishes_events_of_its_publisher(name: str) -> None:
    report = publish(options(name, sourceName="prices"), "a.b", "c", "a.b")
    (record,) = records(name)
    assert board(name)[0].kind is DiscoveryEventKind.RECORD, "before its publisher begins"
    assert record == report.source
    assert (record.name, record.id, record.state, record.data_state) == ("prices", source_id("run"), "ONLINE", "OK")
    assert (record.qos_rate, record.qos_timeliness, record.data_dict) == ("BEST", "BEST", "UNKNOWN")
    assert [(e.kind, e.event, e.topic, e.state) for e in events(name)] == [
        ("publisher", "create", None, "CREATING"), ("publisher", "live", None, "LIVE"),
        ("topic", "PUBLISH_CREATE", "a.b", None), ("topic", "PUBLISH_CREATE", "c", None),
        ("topic", "PUBLISH_DESTROY", "a.b", None), ("topic", "PUBLISH_DESTROY", "c", None),
        ("publisher", "destroy", None, "DESTROYING"), ("publisher", "destroy", None, "DESTROYED"),
    ]  # fmt: skip
    assert {(e.source_name, e.source_id, e.publisher) for e in events(name)} == {
        ("prices", source_id("run"), "run/0/3/1")
    }


@pytest.mark.spec("SD-07")
def test_capabilities_say_where_and_what_and_keep_secrets() -> None:
    """Law 11"""
    given = {"url": "nats://me:secret@h:4222", "announce": "true", "topicPrefix": "md"}
    record = source_record(
        SinkOptions.parse(given), "q-1", streaming=True, query_name="ticks", app_name="app", app_id="local-1"
    )
    assert record.name == "ticks"
    assert record.capabilities == {
        "format": "mamapub", "bridge": "nats", "url": "nats://***@h:4222", "topicPrefix": "md", "queryName": "ticks",
        "queryId": "q-1", "applicationName": "app", "applicationId": "local-1",
    }  # fmt: skip


def test_name_of_a_source() -> None:
    for given, query, app, expected in (
        ({"sourceName": "s"}, "q", "a", "s"), ({}, "q", "a", "q"), ({}, None, "a", "a"), ({}, None, None, "mama-spark"),
    ):  # fmt: skip
        record = source_record(SinkOptions.parse(given), "id", streaming=True, query_name=query, app_name=app)
        assert record.name == expected


def test_stream_is_known_by_its_query_and_a_repeated_batch_by_its_transaction(name: str) -> None:
    stream = TaskInfo(0, 0, "query-7", 4, "run-of-it", False, "app", None)
    assert publish(options(name), "a", task=stream).source == records(name)[0]
    assert records(name)[0].id == source_id("query-7")
    report = publish(options(name, txnAppId="daily", txnVersion="3"), "a")
    assert report.source is not None
    assert report.source.id == source_id("daily")


@pytest.mark.parametrize(
    "again",
    [TaskInfo(3, 2, None, None, None, False), TaskInfo(3, 1, None, None, None, False, attempt_id=70)],
    ids=["the task is repeated", "the stage is repeated"],
)
def test_events_of_two_attempts_have_different_ids(name: str, again: TaskInfo) -> None:
    publish(options(name), "a", task=TaskInfo(3, 1, None, None, None, False, attempt_id=7))
    before = len(events(name))
    publish(options(name), "a", task=again)
    assert len(events(name)) == 2 * before


@pytest.mark.spec("PE-14", "PE-15")
def test_error_is_published_before_the_partition_ends(name: str) -> None:
    seen = threading.Event()

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"topic": ["a", "b.*"], "value": [b"1", b"2"]})
        while not [e for e in events(name) if e.event == "PUBLISH_ERROR_BAD_SYMBOL"]:
            assert not seen.wait(0.02)
        yield pa.record_batch({"topic": ["a"], "value": [b"3"]})

    report = publish_partition(SinkJob(options(name), PLAN, False, "run", ()), TASK, rows())
    assert (report.counts.acked, report.counts.failed) == (2, 1)
    (error,) = [e for e in events(name) if e.event.startswith("PUBLISH_ERROR")]
    assert (error.topic, error.status) == ("b.*", "BAD_SYMBOL")


@pytest.mark.spec("PE-01")
def test_lost_connection_is_an_error_of_the_publisher(name: str, tmp_path: Path) -> None:
    MemoryBroker.get(name).then(["disconnect"])
    assert publish(options(name), "a").counts.acked == 1
    (error,) = [e for e in events(name) if e.event == "error"]
    assert (error.kind, error.state, error.info) == ("publisher", "LIVE", "the script cut the connection")


def refuses(error: Exception) -> Callable[..., None]:
    def refuse(*_: object) -> None:
        raise error

    return refuse


def test_write_goes_on_when_discovery_does_not_answer_or_takes_no_events(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    MemorySources.get(name).up = False
    report = publish(options(name, sourceName="prices"), "a")
    assert (report.counts.acked, report.source) == (1, None)
    assert "source 'prices' is not announced" in caplog.text
    MemorySources.get(name).up = True
    monkeypatch.setattr(MemoryDiscovery, "publish_events", refuses(Unavailable("discovery is gone")))
    assert publish(options(name), "a").counts.acked == 1
    assert "were not published: discovery is gone" in caplog.text


def test_end_of_a_partition_waits_a_bounded_time_for_discovery(
    name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(announcer, "FINISH_TIMEOUT", 0.1)
    monkeypatch.setattr(MemoryDiscovery, "publish_events", lambda *_: go_on.wait(60))
    try:
        assert publish(options(name), "a").counts.acked == 1
        assert "its last events were not published" in caplog.text
    finally:
        go_on.set()


def test_what_only_the_user_can_change_is_found_before_the_first_message(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "no permission to publish to '_MAMA_SOURCE_DISCOVERY.source.>'"
    monkeypatch.setattr(MemoryDiscovery, "open", refuses(ConfigError(why)))
    assert publish(options(name), "a").fatal == f"announce=true: {why}"
    assert MemoryBroker.get(name).messages() == []


def test_partition_without_rows_announces_nothing_and_writes_nothing(name: str, tmp_path: Path) -> None:
    report = publish(options(name, flightLog=str(tmp_path / "log")))
    assert (report.source, report.parts, board(name)) == (None, [], [])


def test_commit_of_a_batch_says_offline_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    o = options(name)
    reports = [publish(o, "a", task=TaskInfo(p, 0, None, None, None, False, "app", "1")) for p in range(2)]
    writer = MamaPubWriter(SinkJob(o, PLAN, False, "run", ()))
    writer.commit(list(reports))
    assert re.fullmatch(r"mamapub: 2 rows, all acknowledged, [\d.]+ s, no flight log\n", capsys.readouterr().err)
    assert [r.state for r in records(name)] == ["ONLINE", "OFFLINE"]
    assert records(name)[1].capabilities == records(name)[0].capabilities


def test_batch_that_fails_says_offline_too_or_warns_if_it_cannot(name: str, caplog: pytest.LogCaptureFixture) -> None:
    job = SinkJob(options(name), PLAN, False, "run", ())
    writer, report = MamaPubWriter(job), publish(options(name), "a.*")
    with pytest.raises(Exception, match="1 row was not published"):
        writer.commit([report])
    writer.abort([report])
    assert [r.state for r in records(name)] == ["ONLINE", "OFFLINE"]
    report = publish(options(name), "a")
    MemorySources.get(name).up = False
    MamaPubWriter(job).commit([report])
    assert "is not withdrawn and will expire" in caplog.text


# --- transports of a properties file -----------------------------------------------------------------------


def properties(folder: Path, *lines: str) -> dict[str, str]:
    """Lines that begin with a dot are of the transport ``desk`` of NATS."""
    file = folder / "mama.properties"
    file.write_text("".join(f"{'mama.nats.transport.desk' if line[0] == '.' else 'mama.'}{line}\n" for line in lines))
    return {"transport": "desk", "properties": str(file), "announce": "true"}


def test_transport_of_a_file_gives_options_and_a_given_option_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESK_HOST", "h1")
    given = properties(tmp_path, ".url=nats://$(DESK_HOST):4222", ".maxInFlight=77", "transport.desk.waitTimeout=9s")
    o = read_options(SinkOptions, {**given, "maxinflight": "5"}, ANY_USE).options
    assert (o.url, o.max_in_flight, o.wait_timeout) == (("nats://h1:4222",), 5, 9.0)


@pytest.mark.spec("SD-18", "SD-49", "SD-50")
def test_transport_without_the_property_is_not_implemented_and_names_it(tmp_path: Path) -> None:
    found = read_options(SinkOptions, properties(tmp_path, ".url=nats://h:4222"), ANY_USE)
    with pytest.raises(StatusError, match=r"mama\.nats\.transport\.desk\.sourcediscovery\.supported") as e:
        check_announce(found.options, found.discovery)
    assert e.value.status is Status.NOT_IMPLEMENTED


@pytest.mark.spec("SD-18")
def test_bridge_without_discovery_is_not_implemented_and_named(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks_it = replace(MIDDLEWARES["malamute"], discovery_bridge=None)  # all that have streams have it
    monkeypatch.setitem(MIDDLEWARES, "malamute", lacks_it)
    monkeypatch.setattr(SinkOptions, "bridge_name", "malamute")
    with pytest.raises(StatusError, match="the bridge 'malamute' has no source discovery") as e:
        check_announce(SinkOptions.parse({"announce": "true"}), DiscoveryProperties())
    assert e.value.status is Status.NOT_IMPLEMENTED


@pytest.mark.spec("SD-13")
@pytest.mark.parametrize("kind", [SinkOptions, DiscoveryOptions])
def test_a_file_without_a_transport_gives_the_fields_alone(kind: type[TransportOptions], tmp_path: Path) -> None:
    """With the url given as ever"""
    file = properties(tmp_path, "sourcediscovery.source.name=Wer")["properties"]
    found = read_options(kind, {"url": "nats://h:4222", "properties": file}, ANY_USE)
    assert found.discovery.fields.source == FieldId("Wer", 10001)
    assert found.discovery.supported is None, "the bridge decides"
    assert found.options.url == ("nats://h:4222",)


@pytest.mark.spec("SD-13", "SD-35-SD-48")
def test_fields_of_the_file_are_those_of_the_source_message(name: str, tmp_path: Path) -> None:
    given = properties(
        tmp_path,
        f"memory.transport.desk.url=memory://{name}",
        "memory.transport.desk.sourcediscovery.supported=true",
        "sourcediscovery.source.name=Wer",
        "sourcediscovery.source.fid=20001",
    )
    found = read_options(SinkOptions, {**given, "bridge": "memory", "sourceName": "prices"}, ANY_USE)
    check_announce(found.options, found.discovery)
    publish(found.options, "a", discovery=found.discovery)
    fields = SourceFields(source=FieldId("Wer", 20001))
    assert found.discovery.fields == fields
    (record,) = records(name, fields)
    assert (record.name, record.capabilities["transport"]) == ("prices", "desk")


def test_field_named_like_a_capability_is_found_on_the_driver(tmp_path: Path) -> None:
    of_transport = ".url=nats://h:4222", ".sourcediscovery.supported=true"
    given = properties(tmp_path, *of_transport, "sourcediscovery.source.name=bridge")
    found = read_options(SinkOptions, given, ANY_USE)
    with pytest.raises(Exception, match="capability 'bridge' is named like a field"):
        check_announce(found.options, found.discovery)


def test_annotated_properties_file_is_one_that_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    file = Path(__file__).parents[4] / "conf" / "mama.properties"
    for transport in ("desk", "lab"):
        given: dict[str, Any] = {"transport": transport, "properties": str(file)}
        found = read_options(SinkOptions, given, ANY_USE)
        assert found.options.url[0].startswith("nats://")
        assert found.discovery.fields == SourceFields()
        assert found.discovery.supported is (transport == "desk")


@pytest.fixture(autouse=True)
def _warnings_are_seen(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "mama_spark")


def test_what_is_no_query_cannot_be_withdrawn() -> None:
    with pytest.raises(TypeError, match=r"announced\(\) takes a streaming query, what start\(\) returns, and not 3"):
        mama_spark.announced(3)
