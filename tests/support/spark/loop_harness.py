"""Flights that go round: from files to topics, and from the topics into a table, while things are killed."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import signal
import subprocess
import sys
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from mama_spark.malamute.bridge import MalamuteLogs, MalamuteSettings
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually

from tests.support.malamute.broker_process import BrokerProcess
from tests.support.nats.nats_servers import Admin
from tests.support.processes import connected_to, descendants, jvm_of, none_alive
from tests.support.spark.flight_data import flight_lines
from tests.support.spark.subscribe_harness import delta_rows

DDL = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, "
    "arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, "
    "distance INT, hour INT, minute INT, time_hour STRING"
)
COLUMNS = [(name, kind) for name, kind in (column.split() for column in DDL.split(", "))]
PATIENCE = 200.0
FILES = 4


def flights(folder: Path, n: int | None) -> Path:
    """The first ``n`` rows of the data set (None = all) as a few CSV files, the last of them hidden
    (:meth:`FlightLoop.survive`)."""
    head, *rows = flight_lines()
    rows = rows[:n]
    source = folder / "input"
    source.mkdir()
    for i in range(FILES):
        part = rows[i * len(rows) // FILES : (i + 1) * len(rows) // FILES]
        file = source / (f"{i}.csv" if i < FILES - 1 else f".{i}.csv")
        file.write_text("\n".join([head, *part, ""]))
        os.utime(file, (i, i))
    return source


def expected(source: Path) -> Counter[tuple[Any, ...]]:
    """The rows of these files as the loop brings them: the topic, and the columns of :data:`DDL`."""
    found: Counter[tuple[Any, ...]] = Counter()
    for file in source.glob("*.csv"):
        with file.open(newline="") as lines:
            for row in csv.DictReader(lines):
                values = [None if row[n] == "NA" else int(row[n]) if kind == "INT" else row[n] for n, kind in COLUMNS]
                found[f"flights.{row['origin']}.{row['carrier']}", *values] += 1
    return found


def shown(rows: Iterable[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """Rows of a table in the form of :func:`expected`."""
    return Counter((row["topic"], *(row[name] for name, _ in COLUMNS)) for row in rows)


def reveal(source: Path) -> None:
    """Spark sees the file that :func:`flights` hid from it."""
    for file in source.glob(".*.csv"):
        file.rename(source / file.name[1:])


class LoopMiddleware(Protocol):
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
        with MalamuteLogs(MalamuteSettings(ConnectionSettings((self.url,)))) as logs:
            bounds = logs.log("flights").bounds()
        return bounds.last + 1 - bounds.first

    def restart(self) -> None:
        self.process.kill()
        self.process.start()


@dataclass
class Lane:
    """One way round of a loop.

    :ivar messages: so many are to come, or a few less
    :ivar rate: messages a second and partition at most
    :ivar publish: more options of the sink
    :ivar schema: of what is read, where rows are typed
    """

    name: str
    place: LoopMiddleware
    messages: int
    rate: int
    publish: dict[str, str] = field(default_factory=dict)
    schema: str | None = None

    def given(self) -> dict[str, Any]:
        """What the script takes."""
        typed = {} if self.schema is None else {"schema": self.schema}
        return {"name": self.name, "url": self.place.url, "rate": str(self.rate), "publish": self.publish, **typed}


class KillableDriver(ABC):
    """A script that is a driver of Spark, in a process of its own."""

    process: subprocess.Popen[bytes]

    def __init__(self, script: Path, folder: Path, patience: float = PATIENCE, **env: str) -> None:
        self.script, self.folder, self.output, self.patience = script, folder, folder / "driver.out", patience
        self._env = {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable, **env}

    @abstractmethod
    def given(self) -> dict[str, Any]:
        """What the script takes."""

    def start(self) -> None:
        command = [sys.executable, str(self.script), json.dumps(self.given())]
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(
                command, stdout=out, stderr=out, env={**os.environ, **self._env}, start_new_session=True
            )

    def runs(self) -> None:
        assert self.process.poll() is None, self.output.read_text()[-5_000:]

    def jvm(self) -> int:
        return int(eventually(lambda: jvm_of(self.process.pid), "the driver has a JVM", self.patience))

    def kill_workers(self, port: int) -> None:
        """All Python processes of Spark that are connected to a broker: those that publish, plan and read."""

        def workers() -> list[int]:
            return connected_to(port, descendants(self.jvm()))

        for pid in eventually(workers, "workers are connected", self.patience):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def kill(self, *, jvm_first: bool = True) -> None:
        """SIGKILL to either half of it; the other half and all workers must end by themselves."""
        jvm = self.jvm()
        family = descendants(self.process.pid)
        os.kill(jvm if jvm_first else self.process.pid, signal.SIGKILL)
        self.process.wait(self.patience)
        eventually(lambda: none_alive(family), "JVM and workers ended with their driver", self.patience)


class FlightLoop(KillableDriver):
    """``driver_scripts/loop.py``."""

    def __init__(self, script: Path, folder: Path, source: Path, *lanes: Lane) -> None:
        super().__init__(script, folder)
        self.source, self.lanes = source, lanes

    def given(self) -> dict[str, Any]:
        lanes = [lane.given() for lane in self.lanes]
        return {"input": str(self.source), "ddl": DDL, "folder": str(self.folder), "lanes": lanes}

    def wait_for(self, part: float) -> None:
        """Until so much of all messages is stored, on every lane."""

        def enough() -> bool:
            self.runs()
            return all(lane.place.stored() >= lane.messages * part for lane in self.lanes)

        eventually(enough, f"{part} of all messages are stored", PATIENCE)

    def survive(self, resume: Callable[[dict[str, Any]], object]) -> None:
        """Run to the end, with workers, brokers and driver killed on the way, in this order. The last file is there for
        the second driver only, so that the first one is killed before its work is done, however late.

        :param resume: does the rest of the work in another driver: ``run`` of the script, in a session
        """
        self.start()
        try:
            self.wait_for(0.1)
            for lane in self.lanes:
                self.kill_workers(lane.place.port)
            self.wait_for(0.3)
            for lane in self.lanes:
                lane.place.restart()
            self.wait_for(0.6)
        finally:
            self.kill()
        assert all(lane.place.stored() < lane.messages for lane in self.lanes)
        reveal(self.source)
        resume(self.given())

    def rows(self, lane: Lane) -> list[dict[str, Any]]:
        """The table of a lane."""
        return delta_rows(self.folder / lane.name / "table")
