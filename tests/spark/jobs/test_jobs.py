"""The jobs: their files run in the session of the tests, and once each as their users start them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable
from mama_spark.cli.main import main
from mama_spark.nats.commands.serve import add_demo_stream
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually
from pyspark.sql import SparkSession

from tests.support.discovery_watcher import Watcher
from tests.support.nats.buckets import make, write
from tests.support.nats.nats_servers import Admin
from tests.support.processes import descendant_processes, runs
from tests.support.spark.sink_harness import counts, flights, verdict
from tests.support.spark.spark_jobs import PACKAGES, ROOT, conf_file, in_session, submit
from tests.support.spark.subscribe_harness import delta_rows, plain, store


@pytest.fixture
def admin(admin: Admin) -> Admin:
    admin.create_stream("ORDERS", ["orders.>"])
    return admin


def orders(folder: Path, n: int, **more: Any) -> dict[str, Any]:
    """The table ``input`` for ``n`` rows of a file."""
    source = folder / "orders"
    source.mkdir()
    lines = (json.dumps({"region": "r1", "number": i}) for i in range(n))
    (source / "r1.json").write_text("\n".join([*lines, ""]))
    select = ["concat('orders.', region) AS topic", "concat(region, ' ', number) AS value"]
    return {"format": "json", "path": str(source), "select": select, **more}


@pytest.mark.thorough
def test_submitted_publish_job_publishes_a_stream(nats_server: NatsServer, admin: Admin, tmp_path: Path) -> None:
    source = orders(tmp_path, 500, stream=True, schema="region STRING, number INT")
    sink = {"url": nats_server.url, "flightLog": str(tmp_path / "log"), "flightLogPayload": "all"}
    sink |= {"announce": "true", "sourceName": "orders job"}
    stream = {"checkpointLocation": str(tmp_path / "checkpoint"), "trigger": "availableNow"}
    submit("publish", conf_file(tmp_path / "publish.toml", input=source, mamapub=sink, stream=stream))
    verdict(admin, "ORDERS", tmp_path / "log", sent=500).raise_faults()
    assert counts(flights(tmp_path / "log"), "batch_id") == {0: 500}
    with Watcher(nats_server) as watcher:
        (told,) = watcher.image()
    assert (told.name, told.state) == ("orders job", "OFFLINE")  # at once, with a sourceTtl of 30 s


def test_configuration_file_of_the_publish_job_works_as_it_stands(
    spark: SparkSession, nats_server: NatsServer, tmp_path: Path
) -> None:
    """With the broker of ``mama serve``, in the folder that it is in."""
    add_demo_stream(nats_server.url)
    text = (ROOT / "conf" / "publish.toml").read_text().replace("nats://127.0.0.1:4222", nats_server.url)
    text = text.replace('"jobs/', f'"{ROOT}/jobs/').replace('"data/', f'"{tmp_path}/data/')
    (tmp_path / "publish.toml").write_text(text)
    in_session(spark, "publish", tmp_path / "publish.toml")
    assert counts(flights(tmp_path / "data" / "flight_log"), "event") == {"acked": 12}


def test_configuration_files_name_the_same_flight_log() -> None:
    conf = {
        name: tomllib.loads((ROOT / "conf" / f"{name}.toml").read_text()) for name in ("publish", "report", "republish")
    }
    named = {conf["publish"]["mamapub"]["flightLog"], conf["report"]["flight_log"], conf["republish"]["input"]["path"]}
    assert len(named) == 1, named


@pytest.mark.thorough
def test_republish_job_sends_what_failed_once_more_and_then_finds_nothing_left(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From the payload column of the flight log, submitted, and from the dead-letter table; what failed is of the job
    that publishes a batch."""
    admin.update_stream("ORDERS", max_msgs=30, discard="new")
    log, dead = tmp_path / "log", tmp_path / "dead"
    sink: dict[str, Any] = {"url": nats_server.url, "flightLog": str(log)}
    failing = {**sink, "onError": "deadletter", "deadLetterTable": str(dead)}
    in_session(spark, "publish", conf_file(tmp_path / "publish.toml", input=orders(tmp_path, 50), mamapub=failing))
    assert counts(flights(log), "event") == {"acked": 30, "completed_exceptionally": 20}
    assert DeltaTable(str(dead)).to_pyarrow_table().num_rows == 20
    admin.update_stream("ORDERS", max_msgs=-1)
    again = conf_file(tmp_path / "republish.toml", input={"path": str(log)}, mamapub=sink)
    assert "20 rows to publish again" in submit("republish", again)
    payloads = sorted(m.payload for m in admin.messages("ORDERS"))
    assert payloads == sorted(f"r1 {i}".encode() for i in range(50))
    in_session(spark, "republish", again)
    assert capsys.readouterr().out.startswith("0 rows to publish again")
    failed = sorted(row["payload"] for row in DeltaTable(str(dead)).to_pyarrow_table().to_pylist())
    admin.api("STREAM.DELETE.ORDERS")
    admin.create_stream("ORDERS", ["orders.>"])  # one that has not seen the ids
    letters = conf_file(tmp_path / "letters.toml", input={"path": str(dead)}, mamapub=sink)
    in_session(spark, "republish", letters)
    assert "20 rows to publish again" in capsys.readouterr().out
    assert sorted(m.payload for m in admin.messages("ORDERS")) == failed


@pytest.mark.thorough
def test_ingest_job_fills_a_delta_table_and_goes_on_where_it_was(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    """Once submitted, and once in the session of the tests."""
    admin.create_stream("TRADES", ["trades.>"])
    conf = conf_file(
        tmp_path / "ingest.toml",
        mamasub={"url": nats_server.url, "topics": ["orders.>", "trades.*"], "maxOffsetsPerTrigger": 60},
        output={
            "path": str(tmp_path / "table"),
            "select": ["topic", "cast(value AS STRING) AS text", "to_date(timestamp) AS day", "sequence"],
            "partitionBy": ["day"],
        },
        stream={"checkpointLocation": str(tmp_path / "checkpoint"), "trigger": "availableNow"},
    )
    sent = plain("orders.a", 60) + plain("trades.b", 40)
    store(admin, "ORDERS", sent[:60])
    store(admin, "TRADES", sent[60:])
    submit("ingest", conf, *PACKAGES)
    assert sorted(r["text"] for r in delta_rows(tmp_path / "table")) == sorted(p.decode() for _, p, _ in sent)
    more = plain("orders.c", 20)
    store(admin, "ORDERS", more)
    in_session(spark, "ingest", conf)
    texts = [r["text"] for r in delta_rows(tmp_path / "table")]
    assert sorted(texts) == sorted(p.decode() for _, p, _ in [*sent, *more])
    assert DeltaTable(str(tmp_path / "table")).metadata().partition_columns == ["day"]


@pytest.mark.thorough
def test_demo_publishes_the_flights_data_reports_and_leaves_no_process(tmp_path: Path) -> None:
    """As the page of installing says."""
    env = {**os.environ, "PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": sys.executable}
    env["PATH"] = f"{Path(sys.executable).parent}:{env['PATH']}"
    command = ["bash", "-c", f"spark-submit $(mama jobs --path demo) --folder {tmp_path}/demo"]
    with (tmp_path / "out").open("w") as out:
        demo = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.STDOUT, cwd=tmp_path)
        family: set[psutil.Process] = set()
        while demo.poll() is None:  # children of children are known only while their parents live
            family |= descendant_processes(demo.pid)
            with contextlib.suppress(subprocess.TimeoutExpired):
                demo.wait(0.1)
    printed = (tmp_path / "out").read_text()
    assert demo.returncode == 0, printed[-3_000:]
    assert len(family) >= 2  # a broker and a JVM at least
    eventually(lambda: not any(map(runs, family)), "broker, JVM and workers ended")
    for line in (r"rows +336,776\n", r"acked +336,776\n", r"failed +0\n", r"duplicates +0\n"):
        assert re.search(line, printed), printed
    seen = re.findall(r"discovery: source new-york-flights is (\w+), data (\w+)", printed)
    assert (seen[0], seen[-1]) == (("ONLINE", "OK"), ("OFFLINE", "OK")), printed
    for state in ("LIVE", "DESTROYED"):
        assert re.search(rf"discovery: publisher \S+ is {state}", printed), printed
    assert re.search(r"(?m)^mamapub: 336,776 rows, all acknowledged, [\d.]+ s, log \S+/flight_log$", printed), printed
    assert "read back: 342 flights of Hawaiian from JFK" in printed
    assert "there are no streams" not in printed
    assert counts(flights(tmp_path / "demo" / "flight_log"), "event") == {"acked": 336_776}


@pytest.mark.thorough
def test_mirror_job_keeps_a_table_like_a_bucket_and_goes_on_where_it_was(
    spark: SparkSession, nats_server: NatsServer, tmp_path: Path
) -> None:
    """Once submitted, and once in the session of the tests."""
    make(nats_server.url, bucket="devices")
    text = (ROOT / "conf" / "mirror.toml").read_text().replace("nats://127.0.0.1:4222", nats_server.url)
    text = text.replace('"data/', f'"{tmp_path}/data/').replace("10 seconds", "availableNow")
    (tmp_path / "mirror.toml").write_text(text)
    rows = [{"key": f"k{n}", "value": b"%d" % n} for n in range(50)]
    write(nats_server.url, rows, bucket="devices")
    submit("mirror", tmp_path / "mirror.toml", *PACKAGES)
    write(nats_server.url, [{"key": "k1", "operation": "delete"}, {"key": "k2", "value": b"new"}], bucket="devices")
    in_session(spark, "mirror", tmp_path / "mirror.toml")
    found = {row["key"]: (row["value"], row["revision"]) for row in delta_rows(tmp_path / "data" / "devices")}
    assert found == {row["key"]: (row["value"], n) for n, row in enumerate(rows, 1)} | {
        "k1": (None, 51),
        "k2": (b"new", 52),
    }
    assert main(["check", nats_server.url, "-o", "bucket=devices", "--table", f"{tmp_path}/data/devices"]) == 0
