"""``mama tango-source --database``: clients of DataBaseds on MariaDB find the devices by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from mama_spark.cli.main import parse
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.record_log import RecordLog
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import until

from tests.live.tango.test_tango_source_command import DEVICE, Command, append
from tests.support.nats.nats_log import record_log
from tests.support.tango.tango import RELEASES
from tests.support.tango_processes.databaseds import MariaDatabase
from tests.support.tango_processes.servers import TIMEOUT, DeviceProbe

pytestmark = pytest.mark.thorough

RULES = '[[attribute]]\npattern = "*/temperature"\nunit = "°C"\nlabel = "Temperature"\n'


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MariaDatabase]:
    with MariaDatabase(tmp_path_factory.mktemp("mariadb") / "db") as started:
        yield started


@pytest.fixture
def log(nats_server: NatsServer) -> Iterator[RecordLog]:
    with record_log(nats_server.url, "TANGO") as log:
        yield log


@pytest.fixture
def command(nats_server: NatsServer, database: MariaDatabase, tmp_path: Path) -> Iterator[Command]:
    rules = tmp_path / "rules.toml"
    rules.write_text(RULES, encoding="utf-8")
    made = Command(tmp_path, f"{nats_server.url}/TANGO", "--database", database.host, "--conf-file", str(rules))
    yield made
    made._stop.set()
    until(lambda: made._ended.done() or not made.lines)


@pytest.mark.parametrize("release", RELEASES)
def test_a_client_finds_a_device_by_its_name_alone(
    log: RecordLog, command: Command, database: MariaDatabase, tmp_path: Path, release: int
) -> None:
    append(log, [1.5])
    command.start()
    assert database.admin("--ping-device", DEVICE) is not None  # C++
    with DeviceProbe(tmp_path / "client", release=release, tango_host=database.host) as client:
        number = client.subscribe(DEVICE, "temperature", "change")
        assert client.wait_events(number, 1)[0]["value"]["value"] == 1.5
        until(lambda: len(client.events(number)) > 2, lambda: append(log, [2.5]))
        assert client.events(number)[-1]["value"]["value"] == 2.5
        config = client.call("config", device=DEVICE, attribute="temperature")
        assert (config["unit"], config["label"]) == ("°C", "Temperature")
        append(log, [7.0], device=pa.array(["lab/cell/2"]))  # a device that appears while the source runs
        until(lambda: database.admin("--server-instance-list", "mama").split() == ["source"])
        until(lambda: is_pinged(database, "lab/cell/2"))
        assert client.call("read", device="lab/cell/2", attribute="temperature")["value"] == 7.0
    assert command.end() == 0
    assert not is_pinged(database, DEVICE)  # registered, and not running
    command.start("--unregister")
    assert command.end() == 0
    assert not [line for line in command.lines if "does not know" in line]
    assert "mama" not in database.admin("--server-list").split()


def is_pinged(database: MariaDatabase, device: str) -> bool:
    try:
        database.admin("--ping-device", device)
    except AssertionError:
        return False
    return True


def test_taurus_reads_an_attribute_by_its_model(
    log: RecordLog, command: Command, database: MariaDatabase, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import subprocess
    import sys

    append(log, [21.5])
    command.start()
    program = (
        "import taurus; a = taurus.Attribute('tango:lab/cell/1/temperature'); "
        "print(a.read().rvalue.magnitude, a.label, a.fullname, taurus.Device('tango:lab/cell/1').state)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"TANGO_HOST": database.host, "PATH": "/usr/bin:/bin"}, text=True,
        capture_output=True, check=False, timeout=TIMEOUT,
    )  # fmt: skip
    assert done.stdout.startswith("21.5 Temperature tango://"), done.stdout + done.stderr


def test_a_device_of_another_server_is_refused(log: RecordLog, command: Command, database: MariaDatabase) -> None:
    database.add_server("Other/1", "Other", "other/cell/1")
    append(log, [1.0], device=pa.array(["other/cell/1"]))
    args = parse(command.words())
    with pytest.raises(ConfigError, match="the device other/cell/1 belongs to the server Other/1 in the database"):
        args.run(args)
