"""Values of megabytes: those of the C++ device server TangoTest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.bridges.nats.server.nats_server import NatsServer
from mama_spark.bridges.nats.server.serve import CONFIGURATION
from mama_spark.services.tango_recorder.settings import RecorderSettings
from mama_spark.tango.client.device_proxy import open_device
from mama_spark.tango.giop.ior import parse_device
from mama_spark.tango.giop.typecode import LONGS_AND_STRINGS
from mama_spark.tango.log.records import GapCause, RecordKind, errors_of
from mama_spark.testing.waiting import until

from tests.support.malamute.restartable_broker import RestartableNatsServer
from tests.support.tango_processes.databaseds import MariaDatabase, TangoTest
from tests.support.tango_processes.recorder import SLOW, RecorderLog, RecorderThread
from tests.support.tango_processes.servers import TIMEOUT

pytestmark = pytest.mark.thorough

LARGE, SMALL = "string_image_ro", "double_scalar"


@pytest.fixture(scope="module")
def tango_test(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TangoTest]:
    """It polls both attributes, and sends them as periodic events."""
    folder = tmp_path_factory.mktemp("tangotest")
    with MariaDatabase(folder / "db") as database, TangoTest(database, folder / "TangoTest.log") as started:
        admin = parse_device(started.address).sibling("dserver/tangotest/test")
        with open_device(admin, timeout=TIMEOUT) as proxy:
            for name in (LARGE, SMALL):
                proxy.command("AddObjPolling", ([1000], [started.device, "attribute", name]), LONGS_AND_STRINGS)
        yield started


def settings(server: TangoTest) -> RecorderSettings:
    given = {"devices": [server.device], "attributes": [LARGE, SMALL], "events": ["periodic"], **SLOW}
    return RecorderSettings.of({**given, "url": f"tango://{server.database.host}"})


def of(log: RecorderLog, attribute: str, *kinds: RecordKind) -> list[RecordKind]:
    return [r.kind for r in log.records(*kinds) if r.topic.count(".") == 6 and r.place.attribute == attribute]


def test_the_server_of_mama_serve_takes_an_image_of_megabytes(tango_test: TangoTest, tmp_path: Path) -> None:
    with NatsServer(tmp_path, config=CONFIGURATION) as server, RestartableNatsServer(server) as room:
        log = RecorderLog(room)
        with RecorderThread(log.options, settings(tango_test)):
            until(lambda: len(of(log, LARGE, RecordKind.EVENT)) > 1)
        assert max(len(r.frames[3]) for r in log.records(RecordKind.EVENT)) > 2_000_000


def test_a_value_that_the_log_does_not_take_is_one_error_and_the_recorder_goes_on(
    tango_test: TangoTest, nats_server: NatsServer
) -> None:
    with RestartableNatsServer(nats_server) as room:  # takes 1 MB
        log = RecorderLog(room)
        with RecorderThread(log.options, settings(tango_test)):
            until(lambda: len(log.records(RecordKind.GAP)) > 1 and len(of(log, SMALL, RecordKind.EVENT)) > 3)
        (error,) = log.records(RecordKind.ERROR)
        assert error.place.attribute == LARGE
        (reason,) = errors_of(error.found, 0)
        assert reason.reason == "RecordRefused"
        assert "the server takes 1048576" in reason.desc
        assert {r.cause for r in log.records(RecordKind.GAP)} == {GapCause.REFUSED}
