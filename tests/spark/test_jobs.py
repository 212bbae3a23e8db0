"""The jobs, each as its users start it: ``spark-submit``, with a configuration file."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from mama_spark.bridge import ChangeKind
from mama_spark.bridges.nats import NatsSettings
from mama_spark.bridges.nats.board import Board
from mama_spark.bridges.nats.discovery import NatsDiscovery
from mama_spark.bridges.nats.server import NatsServer
from mama_spark.mama.omnm import decode
from mama_spark.mama.sources import SourceRecord, decode_source
from mama_spark.testing.servers import Admin
from mama_spark.testing.sink_runs import below, counts, flights, processes, verdict
from mama_spark.testing.waiting import eventually

ROOT = Path(__file__).parents[2]


@pytest.fixture
def admin(nats_server: NatsServer) -> Iterator[Admin]:
    with Admin(nats_server.url) as client:
        yield client
        for name in client.api("STREAM.NAMES").get("streams") or []:
            client.api(f"STREAM.DELETE.{name}")


def submit(folder: Path, job: str, **tables: dict[str, Any]) -> str:
    """Run a job with these tables as its configuration; what it printed."""
    lines = []
    for table, values in tables.items():
        lines += [f"[{table}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    conf = folder / f"{job}.toml"
    conf.write_text("\n".join([*lines, ""]))
    bin_folder = Path(sys.executable).parent
    env = {
        **os.environ,
        "PATH": f"{bin_folder}:{os.environ['PATH']}",
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
    }
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    confs = [part for name, value in settings.items() for part in ("--conf", f"{name}={value}")]
    command = [str(bin_folder / "spark-submit"), "--master", "local[2,4]", *confs]
    command += [str(ROOT / "jobs" / f"{job}.py"), "--conf-file", str(conf)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr[-3_000:]
    return done.stdout


def sources(server: NatsServer) -> list[SourceRecord]:
    """What the sources there are say of themselves."""
    discovery = NatsDiscovery(NatsSettings((server.url,)), Board())
    discovery.open()
    try:
        records = [c.payload for c in discovery.image() if c.kind is ChangeKind.RECORD]
    finally:
        discovery.close()
    return [decode_source(decode(payload)).record for payload in records if payload is not None]


def orders(folder: Path, n: int, region: str = "r1") -> Path:
    source = folder / "orders"
    source.mkdir(exist_ok=True)
    lines = (json.dumps({"region": region, "number": i}) for i in range(n))
    (source / f"{region}.json").write_text("\n".join([*lines, ""]))
    return source


SELECT = ["concat('orders.', region) AS topic", "concat(region, ' ', number) AS value"]


def test_publish_job_publishes_a_batch(nats_server: NatsServer, admin: Admin, tmp_path: Path) -> None:
    admin.create_stream("ORDERS", ["orders.>"])
    source = {"format": "json", "path": str(orders(tmp_path, 500)), "select": SELECT}
    sink = {"url": nats_server.url, "flightLog": str(tmp_path / "log"), "flightLogPayload": "all"}
    submit(tmp_path, "publish", input=source, mamapub=sink)
    verdict(admin, "ORDERS", tmp_path / "log", sent=500).raise_faults()


def test_publish_job_publishes_a_stream(nats_server: NatsServer, admin: Admin, tmp_path: Path) -> None:
    admin.create_stream("ORDERS", ["orders.>"])
    source = {
        "format": "json",
        "path": str(orders(tmp_path, 500)),
        "stream": True,
        "schema": "region STRING, number INT",
        "select": SELECT,
    }
    sink = {"url": nats_server.url, "flightLog": str(tmp_path / "log"), "flightLogPayload": "all"}
    sink |= {"announce": "true", "sourceName": "orders job"}
    stream = {"checkpointLocation": str(tmp_path / "checkpoint"), "trigger": "availableNow"}
    submit(tmp_path, "publish", input=source, mamapub=sink, stream=stream)
    verdict(admin, "ORDERS", tmp_path / "log", sent=500).raise_faults()
    assert counts(flights(tmp_path / "log"), "batch_id") == {0: 500}
    (told,) = sources(nats_server)
    assert (told.name, told.state) == ("orders job", "OFFLINE")  # at once, with a sourceTtl of 30 s


def test_republish_job_sends_what_failed_once_more_and_then_finds_nothing_left(
    nats_server: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    """From the payload column of the flight log and from the dead-letter table."""
    admin.create_stream("ORDERS", ["orders.>"], max_msgs=300, discard="new")
    log, dead = tmp_path / "log", tmp_path / "dead"
    source = {"format": "json", "path": str(orders(tmp_path, 500)), "select": SELECT}
    sink: dict[str, Any] = {"url": nats_server.url, "flightLog": str(log)}
    failing = {**sink, "onError": "deadletter", "deadLetterTable": str(dead)}
    submit(tmp_path, "publish", input=source, mamapub=failing)
    assert counts(flights(log), "event") == {"acked": 300, "completed_exceptionally": 200}
    assert DeltaTable(str(dead)).to_pyarrow_table().num_rows == 200
    admin.update_stream("ORDERS", max_msgs=-1)
    printed = submit(tmp_path, "republish", input={"path": str(log)}, mamapub=sink)
    assert "200 rows to publish again" in printed
    payloads = sorted(m.payload for m in admin.messages("ORDERS"))
    assert payloads == sorted(f"r1 {i}".encode() for i in range(500))
    printed = submit(tmp_path, "republish", input={"path": str(log)}, mamapub=sink)
    assert "0 rows to publish again" in printed
    failed = sorted(row["payload"] for row in DeltaTable(str(dead)).to_pyarrow_table().to_pylist())
    admin.api("STREAM.DELETE.ORDERS")
    admin.create_stream("ORDERS", ["orders.>"])  # one that has not seen the ids
    printed = submit(tmp_path, "republish", input={"path": str(dead)}, mamapub=sink)
    assert "200 rows to publish again" in printed
    assert sorted(m.payload for m in admin.messages("ORDERS")) == failed


def test_demo_publishes_the_flights_data_reports_and_leaves_no_process(tmp_path: Path) -> None:
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    command = [sys.executable, str(ROOT / "jobs" / "demo.py"), "--folder", str(tmp_path / "demo")]
    with (tmp_path / "out").open("w") as out:
        demo = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, cwd=tmp_path)
        family: set[int] = set()
        while demo.poll() is None:  # children of children are known only while their parents live
            family |= below(demo.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                demo.wait(0.1)
    printed = (tmp_path / "out").read_text()
    assert demo.returncode == 0, printed[-3_000:]
    assert len(family) >= 2  # a broker and a JVM at least
    eventually(lambda: not family & processes().keys(), "broker, JVM and workers ended")
    for line in (r"rows +336,776\n", r"acked +336,776\n", r"failed +0\n", r"duplicates +0\n"):
        assert re.search(line, printed), printed
    seen = re.findall(r"discovery: source new-york-flights is (\w+), data (\w+)", printed)
    assert (seen[0], seen[-1]) == (("ONLINE", "OK"), ("OFFLINE", "OK")), printed
    for state in ("LIVE", "DESTROYED"):
        assert re.search(rf"discovery: publisher \S+ is {state}", printed), printed
    assert "read back: 342 flights of Hawaiian from JFK" in printed
    assert counts(flights(tmp_path / "demo" / "flight_log"), "event") == {"acked": 336_776}
