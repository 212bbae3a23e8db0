"""What a recorder writes when servers of PyTango 10.3.1 and 9.3.6 send errors, send nothing yet, or end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.tango.log.records import RecordKind, errors_of
from mama_spark.testing.waiting import until

from tests.support.tango.tango import RELEASES, DeviceServers
from tests.support.tango_processes.recorder import RecorderLog, RecorderThread, consecutive, settings
from tests.support.tango_processes.servers import TangoDatabase, TangoServer


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


def test_of_equal_errors_in_a_row_the_first_is_recorded_and_the_rest_are_summed_up(
    log: RecorderLog, server: TangoServer
) -> None:
    lab = server.only(server.devices[0])
    with RecorderThread(log.options, settings(lab)):
        log.push_until(lab, 1)
        for _ in range(300):
            lab.push_error("double", "Broken", "as wanted")
        lab.push("double", -5.0)
        until(lambda: log.records(RecordKind.EVENT)[-1].ctr > 300)
    records = [r for r in log.records(RecordKind.EVENT, RecordKind.ERROR) if r.place.attribute == "double"]
    (summary,) = [r for r in records if r.kind is RecordKind.ERROR]
    assert summary.count == 299
    counters = [ctr for r in records for ctr in (range(r.first, r.last + 1) if r is summary else [r.ctr])]
    assert consecutive(counters)
    assert errors_of(summary.found, 0)[0].reason == "Broken"


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
