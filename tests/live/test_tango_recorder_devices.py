"""A recorder with a database, which knows the devices that its patterns are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.bridges.nats.server import NatsServer
from mama_spark.errors import MamaError
from mama_spark.tango.attributes import device_names
from mama_spark.tango.records import Kind
from mama_spark.testing.rooms import NatsRoom
from mama_spark.testing.tango_recorder import RecorderThread, RecordLog, accounted, consecutive, settings
from mama_spark.testing.tango_servers import PATIENCE, TangoDatabase, TangoServer, free_port
from mama_spark.testing.waiting import until

DEVICES = ("test/lab/1", "test/lab/2", "other/lab/1")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[TangoDatabase]:
    with TangoDatabase(tmp_path / "database") as found:
        yield found


@pytest.mark.spec("TG-09", "TG-21")
def test_patterns_are_the_devices_of_the_database_also_later(database: TangoDatabase, tmp_path: Path) -> None:
    with (
        NatsServer(tmp_path / "nats") as server,
        NatsRoom(server) as room,
        TangoServer(tmp_path / "ds", DEVICES, database=database) as lab,
        TangoServer(tmp_path / "more", ("test/lab/3",), database=database, instance="more") as more,
    ):
        more.stop()  # known to the database, but away
        log = RecordLog(room)

        def recorded() -> set[str]:
            return {r.place.device for r in log.records(Kind.EVENT)}

        def push() -> None:
            for device in DEVICES:
                lab.do("push", "double", device=device, event="change", value=1.0)

        with RecorderThread(log.options, settings(lab, devices="test/lab/*", attributes="dou*le", lookEvery="200ms")):
            until(lambda: recorded() == {"test/lab/1", "test/lab/2"}, push)
            more.start()
            until(lambda: "test/lab/3" in recorded(), lambda: more.push("double", 2.0))
            with TangoServer(tmp_path / "new", ("test/lab/4",), database=database, instance="new") as new:
                until(lambda: "test/lab/4" in recorded(), lambda: new.push("double", 3.0))
        assert recorded() == {f"test/lab/{n}" for n in (1, 2, 3, 4)}
        of_one = [r for r in log.records() if r.topic.startswith(f"tango.{log_host(database)}.test.lab.1.")]
        assert consecutive(accounted(of_one))


def log_host(database: TangoDatabase) -> str:
    """As topics of records have it."""
    return database.host.replace(".", "%2E")


def test_the_database_is_asked_for_names(database: TangoDatabase, tmp_path: Path) -> None:
    with TangoServer(tmp_path / "ds", DEVICES, database=database):
        assert device_names(database.host, "test/lab/*", PATIENCE) == {"test/lab/1", "test/lab/2"}
        assert device_names(database.host, "*/lab/1", PATIENCE) == {"test/lab/1", "other/lab/1"}
        assert device_names(database.host, "test/lab/[13]", PATIENCE) == {"test/lab/1"}
        assert device_names(database.host, "te?t/lab/?", PATIENCE) == {"test/lab/1", "test/lab/2"}
        assert device_names(database.host, "none/*/*", PATIENCE) == set()
        everything = device_names(database.host, "*/*/*", PATIENCE)
        assert everything >= set(DEVICES)
        assert not any(name.startswith("dserver/") for name in everything)
        assert device_names(database.host, "dserver/lab/*", PATIENCE) == {"dserver/lab/t"}
    with pytest.raises(MamaError):
        device_names(f"127.0.0.1:{free_port()}", "*/*/*", PATIENCE)
