"""Real Tango processes that all tests of one pytest process share: device servers with and without a database, and a
client. Each test gets devices that nobody had before it, and leaves no polling and no subscription behind. Tests that
kill, stop, restart or configure a process start one of their own, not a shared one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.contracts.backoff import Backoff
from mama_spark.tango.client.keep_alive import Timeouts
from mama_spark.tango.client.subscriber import TangoSubscriber

from tests.support.tango_processes.servers import PATIENT, TIMEOUT, DeviceProbe, TangoDatabase, TangoServer

__all__ = [
    "FAST", "RELEASES", "DeviceServers", "database_labs", "either", "lab", "lab_with_database", "labs", "own_lab",
    "probe", "shared_probe", "subscriber", "tango_database",
]  # fmt: skip

#: Of PyTango. The second one is no package of pip.
RELEASES = [pytest.param(10, id="PyTango 10.3.1"), pytest.param(9, id="PyTango 9.3.6", marks=pytest.mark.thorough)]
_DEVICES = 120  #: of one server; one of them costs 2 ms and 0.2 MB

#: Of subscribers whose servers end: those are missed since their connection ends. Heartbeats of real servers come each
#: 9 s, and a new connection hears none before: ``late`` allows for that, and for a machine that stands still meanwhile.
FAST = Timeouts(check=0.3, heartbeat=30.0, confirm=200.0, retry=Backoff(0.1, 0.3))


@pytest.hookimpl(tryfirst=True)  # before they are selected by their marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What needs a database of Tango belongs to the second tier: it starts it, and device servers of its own."""
    for item in items:
        if "tango_database" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.thorough)


class DeviceServers:
    """Devices of a server that is started when the first one is wanted. When it has no more, another one takes its
    place: a test must not keep devices for the next one."""

    def __init__(self, folder: Path, database: TangoDatabase | None = None) -> None:
        self._folder, self._database = folder, database
        self._instances = itertools.count(1)
        self._numbers = itertools.count(1)
        self._server: TangoServer | None = None
        self._left: list[str] = []

    def fresh(self, count: int = 1) -> TangoServer:
        """The server, as one that has so many devices, which are new."""
        if self._server is None or len(self._left) < count:
            self.close()
            instance = f"shared{next(self._instances)}"
            names = [f"test/lab/{next(self._numbers)}" for _ in range(_DEVICES)]
            self._server = TangoServer(self._folder / instance, names, database=self._database, instance=instance)
            self._server.start()
            self._left = names
        taken, self._left = self._left[:count], self._left[count:]
        return self._server.only(*taken)

    def rest(self, server: TangoServer) -> None:
        """End the polling of devices of the server, or the server, if it does not answer: cppTango 10.3 now and then
        waits for ever for its polling thread when it ends the last polling (``DServer::rem_obj_polling``)."""
        try:
            for device in server.devices:
                server.do("rest", device=device)
        except AssertionError:
            self.close()

    def close(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.kill()


@pytest.fixture(scope="session")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceServers]:
    """Without a database."""
    found = DeviceServers(tmp_path_factory.mktemp("labs"))
    yield found
    found.close()


@pytest.fixture(scope="session")
def tango_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TangoDatabase]:
    with TangoDatabase(tmp_path_factory.mktemp("tango-database")) as started:
        yield started


@pytest.fixture(scope="session")
def database_labs(tango_database: TangoDatabase, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceServers]:
    """With a database."""
    found = DeviceServers(tmp_path_factory.mktemp("database-labs"), tango_database)
    yield found
    found.close()


@pytest.fixture
def lab(labs: DeviceServers) -> Iterator[TangoServer]:
    """A device of the shared server without a database."""
    server = labs.fresh()
    yield server
    labs.rest(server)


@pytest.fixture
def lab_with_database(database_labs: DeviceServers) -> Iterator[TangoServer]:
    """A device of the shared server with a database."""
    server = database_labs.fresh()
    yield server
    database_labs.rest(server)


@pytest.fixture(params=["nodb", pytest.param("database", marks=pytest.mark.thorough)])
def either(request: pytest.FixtureRequest) -> TangoServer:
    """With and without a database."""
    found: TangoServer = request.getfixturevalue("lab" if request.param == "nodb" else "lab_with_database")
    return found


@pytest.fixture
def own_lab(tmp_path: Path) -> Iterator[TangoServer]:
    """A server of this test's own without a database, which it may kill, stop and restart."""
    with TangoServer(tmp_path / "lab") as started:
        yield started


@pytest.fixture(scope="session")
def shared_probe(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DeviceProbe]:
    with DeviceProbe(tmp_path_factory.mktemp("probe")) as started:
        yield started


@pytest.fixture
def probe(shared_probe: DeviceProbe) -> Iterator[DeviceProbe]:
    """The shared client, without a subscription."""
    yield shared_probe
    shared_probe.call("forget")


@pytest.fixture
def subscriber() -> Iterator[TangoSubscriber]:
    """One that misses no heartbeat of a slow server."""
    with TangoSubscriber(timeouts=PATIENT, timeout=TIMEOUT) as opened:
        yield opened
