"""Tango recorder between device servers and a log, and what it writes of errors."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mama_spark.cli.commands.record import log_options, record
from mama_spark.contracts.errors import ConfigError
from mama_spark.tango.client.subscriber import TangoSubscriber
from mama_spark.tango.client.subscription_events import SubscriptionEvent
from mama_spark.tango.log.records import GapCause, RecordKind, errors_of
from mama_spark.testing.waiting import until

from tests.support.ports import lasting_port
from tests.support.spark.subscribe_harness import store
from tests.support.tango.records import encode_one
from tests.support.tango.tango import RELEASES, DeviceServers
from tests.support.tango_processes import recorder
from tests.support.tango_processes.recorder import STREAM, RecorderLog, RecorderProcess, RecorderThread, settings
from tests.support.tango_processes.servers import PATIENT, TIMEOUT, TangoDatabase, TangoServer

STATE = encode_one(RecordKind.STATE, 1, [b"t", b"", b"", b"{"])


@pytest.mark.spec("TG-09", "TG-19")
def test_the_received_frames_stand_in_the_log_unchanged(log: RecorderLog, lab: TangoServer) -> None:
    with RecorderThread(log.options, settings(lab)), TangoSubscriber(timeouts=PATIENT, timeout=TIMEOUT) as other:
        other.subscribe(lab.address(), "double", "change")
        log.push_until(lab, 2)
        until(lambda: log.records(RecordKind.INITIAL))
        lab.push("double", -1.0)  # several of ``push_until`` may be on their way; behind this one is nothing
        until(lambda: log.records(RecordKind.EVENT)[-1].reading == -1.0)
        last = max(log.counters("double"))
        for value in range(20):
            lab.push("double", float(value))
        until(lambda: len([c for c in log.counters("double") if c > last]) >= 20)
        seen: list[SubscriptionEvent] = []
        while not seen or seen[-1].ctr < last + 20:
            more = other.take(10_000, TIMEOUT)
            assert more, "not all that the recorder was told came here, too"
            seen += more
    assert [r.frames for r in log.records(RecordKind.EVENT) if r.ctr > last] == [
        list(n.frames) for n in seen if n.frames is not None and n.ctr > last
    ]
    assert [r.reading for r in log.records(RecordKind.EVENT) if r.ctr > last] == [float(v) for v in range(20)]
    (first,) = log.records(RecordKind.INITIAL)  # a value that was read is no event
    assert (first.topic.rsplit(".", 2)[1:], first.ctr) == (["double", "change"], 0)


@pytest.mark.thorough
@pytest.mark.spec("TG-46")
def test_events_missed_by_a_killed_recorder_are_a_gap(log: RecorderLog, lab: TangoServer, tmp_path: Path) -> None:
    """Every event is in the log or in one of its gaps, exactly once. Ctrl-C stops a recorder normally."""
    with RecorderProcess(log, lab, tmp_path) as first:
        stored = log.push_until(lab, 20)
        first.end(signal.SIGKILL)
    for _ in range(7):
        lab.push("double", 3.0)
    with RecorderProcess(log, lab, tmp_path, report="100ms") as second:
        log.push_until(lab, 5)
        until(lambda: "1 subscriptions" in second.out.read_text())
        assert second.end(signal.SIGINT) == 130, second.out.read_text()
    assert "0 waiting" in second.out.read_text().splitlines()[-1]
    records = log.records()
    assert set(stored) <= {r.ctr for r in records if r.kind is RecordKind.EVENT}
    (gap,) = [r for r in records if r.kind is RecordKind.GAP]
    assert gap.cause is GapCause.AWAY
    assert gap.count >= 7
    assert recorder.consecutive(recorder.accounted(records))
    assert [r.kind for r in records if r.kind in (RecordKind.STARTED, RecordKind.STOPPED)] == [
        RecordKind.STARTED, RecordKind.STARTED, RecordKind.STOPPED,
    ]  # fmt: skip


@pytest.mark.own_server
@pytest.mark.spec("TG-44", "TG-45")
@pytest.mark.parametrize(
    ("attribute", "value", "limit", "burst"),
    [
        ("double", 1.0, {"buffer": 100}, {"count": 200}),
        ("double_spectrum", [1.0], {"bufferBytes": "4 MiB"}, {"count": 5, "width": 100_000}),  # 800 kB each
    ],
    ids=["events", "bytes"],
)
def test_events_dropped_by_the_full_queue_are_counted_and_recorded_as_a_gap(
    log: RecorderLog, lab: TangoServer, attribute: str, value: Any, limit: dict[str, Any], burst: dict[str, Any]
) -> None:
    metrics = f"127.0.0.1:{lasting_port()}"
    with RecorderThread(log.options, settings(lab, attributes=[attribute], metrics=metrics, **limit)):
        until(lambda: log.counters(attribute), lambda: lab.push(attribute, value))
        log.room.kill()
        until(lambda: recorder.measured(metrics, "dropped_total") > 5, lambda: lab.do("burst", attribute, **burst))
        log.room.start()
        until(lambda: log.records(RecordKind.GAP))
        before = len(log.counters(attribute))
        until(lambda: len(log.counters(attribute)) > before, lambda: lab.push(attribute, value))
    records = log.records()
    gaps = [r for r in records if r.kind is RecordKind.GAP]
    assert sum(r.count for r in gaps if r.cause is GapCause.BUFFER) > 5
    assert recorder.every_event_is_accounted_for(records, attribute)


@pytest.mark.spec("TG-36", "TG-41")
def test_the_end_and_restart_of_a_server_are_recorded(log: RecorderLog, own_lab: TangoServer) -> None:
    """The log contains OFFLINE, ONLINE, a value that was read, and a restart."""
    with RecorderThread(log.options, settings(own_lab)):
        log.push_until(own_lab, 5)
        own_lab.kill()
        until(lambda: log.records(RecordKind.OFFLINE))
        own_lab.start()
        until(lambda: log.records(RecordKind.RESUBSCRIBED))
        log.push_until(own_lab, 1)
    lives = log.records(RecordKind.ONLINE, RecordKind.OFFLINE, RecordKind.SUSPECT)
    kinds = [r.kind for r in lives]
    assert kinds[0] is RecordKind.ONLINE
    assert kinds[-1] is RecordKind.ONLINE
    offline = next(r for r in lives if r.kind is RecordKind.OFFLINE)
    assert errors_of(offline.found, 0)[0].reason == "API_EventTimeout"
    assert {e.place.device for e in lives} == {own_lab.devices[0]}
    assert any(r.kind is RecordKind.ERROR for r in log.records())


def test_patterns_match_attributes_that_are_added_later_or_again(log: RecorderLog, lab: TangoServer) -> None:
    def recorded() -> set[str | None]:
        return {
            r.place.attribute for r in log.records(RecordKind.INITIAL, RecordKind.EVENT) if r.place.event == "change"
        }

    def changes() -> int:
        return len(log.records(RecordKind.EVENT, end=".intr_change"))

    wanted = settings(lab, attributes=["long*", "PLAIN*"], events="change,intr_change")
    with RecorderThread(log.options, wanted):
        until(lambda: {"long", "long64_image", "long_rw"} <= recorded())
        # changes of the interface come then, too: they were subscribed to before, by the same connection
        until(lambda: log.counters("long"), lambda: lab.push("long", 1))
        lab.do("add", attribute="long_more")
        until(lambda: "long_more" in recorded())
        before = changes()
        lab.do("remove", attribute="long_more")
        until(lambda: changes() > before)
        lab.do("add", attribute="long_more")
        # the server has forgotten the subscription
        until(lambda: log.counters("long_more"), lambda: lab.push("long_more", 1))
    assert "plain" not in recorded()  # it sends no events yet, which the log tells once
    told = [r.place.attribute for r in log.records(RecordKind.ERROR)]  # and perhaps that the other one was away
    assert [attribute for attribute in told if attribute != "long_more"] == ["plain"]


def test_missing_settings_of_a_recorder_are_named(log: RecorderLog, lab: TangoServer) -> None:
    options = log_options({"url": log.given["url"]})
    with pytest.raises(ConfigError, match=STREAM):
        record(settings(lab), options, lambda: False, lambda text: None)


def test_a_foreign_record_in_the_log_does_not_stop_a_recorder(log: RecorderLog, lab: TangoServer) -> None:
    log.admin.create_stream(STREAM, ["tango.>"], allow_batched=True)
    last = store(log.admin, STREAM, [("tango.recorder", payload, None) for payload in (b"rubbish", STATE)])
    assert last == 2
    with RecorderThread(log.options, settings(lab)) as running:
        until(lambda: "ready" in running.said)


# --- What a recorder writes when servers of PyTango 10.3.1 and 9.3.6 send errors, send nothing yet, or end ------------


@pytest.fixture(scope="module", params=RELEASES)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, labs: DeviceServers
) -> Iterator[TangoServer]:
    """Of PyTango 9.3.6 with a database, since it counts events only there."""
    if request.param == 10:
        yield labs.fresh(3)
        return
    folder, database = tmp_path_factory.mktemp("errors"), request.getfixturevalue("tango_database")
    devices = [f"errors/old/{number}" for number in range(1, 4)]
    with TangoServer(folder, devices, database=database, instance="errors9", release=9) as started:
        yield started


def test_an_attribute_that_sends_no_events_yet_is_recorded_once_it_does(log: RecorderLog, server: TangoServer) -> None:
    """Its polling begins after the recorder has started."""
    lab = server.only(server.devices[1])
    given = settings(lab, attributes="doub?e", events="periodic", retryRefused="1s")
    with RecorderThread(log.options, given):
        until(lambda: log.records(RecordKind.ERROR))
        assert errors_of(log.records(RecordKind.ERROR)[0].found, 0)[0].reason == "API_AttributePollingNotStarted"
        lab.do("poll", "double", period=100)
        until(lambda: log.records(RecordKind.EVENT))
    assert len(log.records(RecordKind.ERROR)) == 1
    assert {r.kind for r in log.records(end=".heartbeat")} <= {RecordKind.ONLINE}
    lab.do("rest")


@pytest.mark.parametrize("release", RELEASES)
def test_a_device_whose_server_was_stopped_or_killed_is_offline_for_that_reason(
    log: RecorderLog, release: int, tango_database: TangoDatabase, tmp_path: Path
) -> None:
    def reasons() -> list[str]:
        return [errors_of(r.found, 0)[0].reason for r in log.records(RecordKind.OFFLINE)]

    name = f"life/t{release}/1"
    with (
        TangoServer(tmp_path, [name], database=tango_database, instance=f"life{release}", release=release) as lab,
        RecorderThread(log.options, settings(lab)),
    ):
        log.push_until(lab, 1)
        lab.push_error("double", "Broken")  # which is no cause
        lab.stop()
        until(lambda: "API_DeviceNotExported" in reasons())
        lab.start()
        before = len(log.counters("double"))
        until(lambda: len(log.counters("double")) > before, lambda: lab.push("double", 1.0))
        lab.kill()
        until(lambda: reasons()[-1] == "API_CantConnectToDevice")
    assert "Broken" not in reasons()
