"""Tango recorder with a database, which resolves patterns of devices."""

from __future__ import annotations

from pathlib import Path

import pytest
from mama_spark.contracts.errors import MamaError
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.tango.client.device_proxy import device_names
from mama_spark.tango.log.records import RecordKind
from mama_spark.testing.waiting import until

from tests.support.malamute.restartable_broker import RestartableNatsServer
from tests.support.ports import lasting_port
from tests.support.tango_processes.recorder import RecorderLog, RecorderThread, accounted, consecutive, settings
from tests.support.tango_processes.servers import TIMEOUT, TangoDatabase, TangoServer

DEVICES = ("names/lab/1", "names/lab/2", "other/lab/1")


@pytest.mark.spec("TG-09", "TG-21")
def test_patterns_are_the_devices_of_the_database_also_later(
    tango_database: TangoDatabase, nats_server: NatsServer, tmp_path: Path
) -> None:
    """The recorder reads device names from the database, at its start and later."""
    host = tango_database.host

    def server(instance: str, *devices: str) -> TangoServer:
        return TangoServer(tmp_path / instance, devices, database=tango_database, instance=instance)

    def names(pattern: str) -> set[str]:
        return device_names(host, pattern, TIMEOUT)

    with (
        RestartableNatsServer(nats_server) as room,
        server("names", *DEVICES) as lab,
        server("more", "names/lab/3") as more,
    ):
        more.stop()  # known to the database, but away
        log = RecorderLog(room)

        def recorded() -> set[str]:
            return {r.place.device for r in log.records(RecordKind.EVENT)}

        def push() -> None:
            for device in DEVICES:
                lab.do("push", "double", device=device, event="change", value=1.0)

        with RecorderThread(log.options, settings(lab, devices="names/lab/*", attributes="dou*le", lookEvery="200ms")):
            until(lambda: recorded() == {"names/lab/1", "names/lab/2"}, push)
            more.start()
            until(lambda: "names/lab/3" in recorded(), lambda: more.push("double", 2.0))
            with server("new", "names/lab/4") as new:
                until(lambda: "names/lab/4" in recorded(), lambda: new.push("double", 3.0))
        assert recorded() == {f"names/lab/{n}" for n in (1, 2, 3, 4)}
        of_one = [r for r in log.records() if r.topic.startswith(f"tango.{host.replace('.', '%2E')}.names.lab.1.")]
        assert consecutive(accounted(of_one))

        assert names("names/lab/*") == {f"names/lab/{n}" for n in (1, 2, 3, 4)}
        assert names("[no]*/lab/1") == names("names/lab/1") | names("other/lab/1") == {"names/lab/1", "other/lab/1"}
        assert names("names/lab/[13]") == {"names/lab/1", "names/lab/3"}
        assert names("na?es/lab/?") == names("names/lab/*")
        assert names("none/*/*") == set()
        assert names("*/*/*") >= set(DEVICES)
        assert not any(name.startswith("dserver/") for name in names("*/*/*"))
        assert names("dserver/lab/names") == {"dserver/lab/names"}
    with pytest.raises(MamaError):
        device_names(f"127.0.0.1:{lasting_port()}", "*/*/*", TIMEOUT)
