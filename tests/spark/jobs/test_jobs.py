"""The jobs: their files run in the session of the tests, and once each as their users start them."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from mama_spark.cli.main import main
from mama_spark.contracts.bridge import SourceKey
from mama_spark.contracts.errors import ConfigError
from mama_spark.flightlog.commit import commit
from mama_spark.nats.commands.serve import add_demo_stream
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.spark.discovery.tables import DiscoveryTables
from mama_spark.testing.waiting import eventually
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.support.discovery_watcher import Watcher
from tests.support.malamute.restartable_broker import RestartableBroker
from tests.support.mama.discovery_harness import ForeignAnnouncer, create_streams, desk, line
from tests.support.nats.buckets import make, write
from tests.support.nats.nats_servers import Admin
from tests.support.processes import descendant_processes, descendants, runs
from tests.support.spark.attempts import STREAM, Query, rows
from tests.support.spark.sink_harness import counts, flights, verdict
from tests.support.spark.spark_jobs import ROOT, conf_file, delta_jars, delta_packages, in_session, start, submit
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
    submit("ingest", conf, *delta_packages())
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
    assert re.search(r"rows +336,776 of committed writes: 336,776 acked, 0 failed, 0 timed out\n", printed), printed
    seen = re.findall(
        r"discovery: new-york-flights is (\w+), (\d+) publishers \((\d+) at work\), (\d+) topics", printed
    )
    assert (seen[0][0], seen[-1][0], *seen[-1][2:]) == ("ONLINE", "OFFLINE", "0", "35"), printed
    assert int(seen[-1][1]) >= 2
    assert re.search(r"(?m)^mamapub: 336,776 rows, all acknowledged, [\d.]+ s, log \S+/flight_log$", printed), printed
    assert "read back: 342 flights of Hawaiian from JFK" in printed
    assert "there are no streams" not in printed
    assert counts(flights(tmp_path / "demo" / "flight_log"), "event") == {"acked": 336_776}


# --- ``jobs/audit.py``: the comparison of ``mama audit``, by Spark ----------------------------------------------------


@pytest.mark.thorough
def test_audit_job_finds_what_the_command_finds(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    admin.create_stream(STREAM, ["once.>"], allow_batched=True)
    log, ids = str(tmp_path / "log"), {"dedup": "false", "exactlyOnce": "false"}
    for batch, options in enumerate(({}, {**ids, "ackMode": "message"}, {**ids, "ackMode": "batch"})):
        report = Query(nats_server.url, {**options, "flightLog": log}, batch=batch).attempt(rows(0, 100))
        assert report.write_id is not None
        assert report.counts.acked == 100
        commit(log, {}, report.write_id, report.parts)
    admin.api(f"STREAM.MSG.DELETE.{STREAM}", {"seq": 17})
    admin.update_stream(STREAM, duplicate_window=int(1e8))
    (id_,) = admin.messages(STREAM)[0].headers["Nats-Msg-Id"]
    admin.publish("once.0", b"row 0", Nats_Msg_Id=id_[:-1] + "7")
    url = {"url": nats_server.url}
    conf = conf_file(tmp_path / "audit.toml", input={"path": log}, mamasub=url, audit={"foreign": True})
    with pytest.raises(SystemExit) as ended:
        in_session(spark, "audit", conf)
    shown = capsys.readouterr().out
    assert (ended.value.code, "300 messages read" in shown) == (1, True)
    for found in (
        "matched      99 by id and content (content)",
        "matched      100 by topic and size, at their sequence (place)",
        "matched      100 by the number of messages with their topic and size (counted)",
        "FOUND        1 acknowledged, and not stored (missing)",
        "FOUND        1 stored with an id of these writes, and the log does not say so (unlogged)",
    ):
        assert found in shown
    conf = conf_file(tmp_path / "earlier.toml", input={"path": log}, mamasub=url, audit={"until": "1h"})
    with pytest.raises(SystemExit) as ended:
        in_session(spark, "audit", conf)
    assert (ended.value.code, "there is nothing to compare" in capsys.readouterr().out) == (2, True)
    conf = conf_file(tmp_path / "wrong.toml", input={"path": log}, mamasub=url, audit={"since": "1"})
    with pytest.raises(ConfigError, match=r"\[audit\] since: .*, got '1'"):
        in_session(spark, "audit", conf)


# --- ``jobs/discover.py`` as its users start it, and the two tables it keeps ------------------------------------------

DESK = SourceKey("desk", 7)


@pytest.fixture
def stranger(stranger: ForeignAnnouncer, nats_server: NatsServer) -> ForeignAnnouncer:
    create_streams(nats_server.url)
    return stranger


def table(path: Path) -> list[dict[str, Any]]:
    try:
        return [dict(row) for row in DeltaTable(str(path)).to_pyarrow_table().to_pylist()]
    except TableNotFoundError:
        return []  # nothing is committed yet


def history(path: Path) -> list[str]:
    """All rows of sources in short, in order."""
    rows = [row for row in table(path) if row["kind"] == "source"]
    return [line(row) for row in sorted(rows, key=lambda r: (r["origin"], r["sequence"]))]


def wait(true: Callable[[], bool], what: str, folder: Path, job: subprocess.Popen[str]) -> None:
    """For conditions on the tables below ``folder``, which ``job`` writes. They are read again only when one of them
    has another commit, because reading them often takes the processor from the job."""
    seen: set[Path] = set()

    def look() -> bool:
        assert job.poll() is None, f"the job has ended before {what}"
        commits = {*folder.glob("*/_delta_log/*.json")}
        if commits <= seen:
            return False
        seen.update(commits)
        return true()

    eventually(look, what, 400)


def kill(job: subprocess.Popen[str]) -> None:
    """With all that it has started."""
    for pid in {job.pid, *descendants(job.pid)}:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    job.wait(60)


def current(path: Path) -> dict[str, tuple[Any, ...]]:
    names = ("event", "source_state", "source_data_state", "source_data_dict")
    return {f"{r['source_name']} {r['source_id']}": tuple(r[n] for n in names) for r in table(path)}


def conf(folder: Path, url: str, trigger: str) -> Path:
    return conf_file(
        folder / f"discover {trigger}.toml",
        mamadiscovery={"url": url},
        tables={"history": str(folder / "history"), "current": str(folder / "current")},
        stream={"checkpointLocation": str(folder / "checkpoint"), "trigger": trigger},
    )


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_job_keeps_both_tables_through_a_kill(
    spark: SparkSession, nats_server: NatsServer, stranger: ForeignAnnouncer, tmp_path: Path
) -> None:
    """The history has each change once, also what happened while the job was dead; the other table is what is now."""
    job = start("discover", conf(tmp_path, nats_server.url, "1 second"), tmp_path / "out", *delta_jars())
    try:
        ended = {"kind": "image_end"}.items()
        wait(lambda: any(ended <= r.items() for r in table(tmp_path / "history")), "the first batch", tmp_path, job)
        stranger.say(desk(7, data_dict="FIRST"))
        wait(lambda: "desk 7" in current(tmp_path / "current"), "the first source", tmp_path, job)
        stranger.say(desk(8))
    finally:
        kill(job)
    stranger.say(desk(7, data_dict="SECOND"))
    stranger.say(desk(9, state="OFFLINE"))
    stranger.say(b"junk", SourceKey("bad", 1))
    in_session(spark, "discover", conf(tmp_path, nats_server.url, "availableNow"))
    changes = ["online desk 7", "online desk 8", "online desk 7", "offline desk 9", "bad_record bad 1"]
    assert history(tmp_path / "history") == changes
    assert current(tmp_path / "current") == {
        "desk 7": ("online", "ONLINE", "OK", "SECOND"),
        "desk 8": ("online", "ONLINE", "OK", None),
        "desk 9": ("offline", "OFFLINE", "OK", None),
    }


@pytest.mark.thorough
def test_tables_of_sources_that_expire_or_are_not_in_a_new_image_and_of_a_batch_that_runs_twice(
    spark: SparkSession, nats_server: NatsServer, stranger: ForeignAnnouncer, tmp_path: Path
) -> None:
    """A source that expired keeps what it said. With another checkpoint, what happened in between nobody saw."""
    tables = DiscoveryTables(str(tmp_path / "history"), str(tmp_path / "current"))
    fails, batches = [False], defaultdict[int, list[list[str]]](list)

    def write(batch: DataFrame, batch_id: int) -> None:
        tables.write(batch, batch_id)
        batches[batch_id].append([line(row.asDict()) for row in batch.collect()])
        if fails[0]:
            fails[0] = False
            raise RuntimeError("written and not committed")

    def run(checkpoint: str = "one") -> None:
        rows = spark.readStream.format("mamadiscovery").option("url", nats_server.url).load()
        writer = rows.writeStream.foreachBatch(write).trigger(availableNow=True)
        assert writer.option("checkpointLocation", str(tmp_path / checkpoint)).start().awaitTermination(240)

    run()
    stranger.say(desk(7, data_dict="KEPT"))
    stranger.say(desk(8))
    stranger.live(DESK, 2)  # last: from here on its time runs
    eventually(lambda: stranger.expired(DESK), "the server's own word")
    fails[0] = True
    with pytest.raises(StreamingQueryException, match="not committed"):
        run()
    run()
    ((first, again),) = [runs for runs in batches.values() if len(runs) > 1]
    assert first == again
    assert "online desk 7" in first
    names = ["online desk 7", "online desk 8", "suspect desk 7", "offline desk 7"]
    assert history(tmp_path / "history") == names
    expired = {"desk 7": ("offline", "OFFLINE", "SUSPECT", "KEPT")}
    assert current(tmp_path / "current") == expired | {"desk 8": ("online", "ONLINE", "OK", None)}
    stranger.api("STREAM.PURGE.MAMA_SOURCES", {"filter": "_MAMA_SOURCE_DISCOVERY.source.desk.8.>"})
    run("two")
    assert current(tmp_path / "current") == expired | {"desk 8": ("offline", "OFFLINE", "SUSPECT", None)}
    (gone,) = [row for row in table(tmp_path / "current") if row["source_id"] == 8]
    assert gone["info"] == "not in the image"


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_mirror_job_keeps_a_table_like_a_bucket_and_goes_on_where_it_was(
    spark: SparkSession, nats_server: NatsServer, tmp_path: Path
) -> None:
    """Once submitted, and killed when it has read a part of the values, and once in the session of the tests."""
    make(nats_server.url, bucket="devices")
    text = (ROOT / "conf" / "mirror.toml").read_text().replace("nats://127.0.0.1:4222", nats_server.url)
    text = text.replace('"data/', f'"{tmp_path}/data/').replace("10 seconds", "availableNow")
    text = text.replace("# maxOffsetsPerTrigger = 1000000", "maxOffsetsPerTrigger = 10")
    (tmp_path / "mirror.toml").write_text(text)
    rows = [{"key": f"k{n}", "value": b"%d" % n} for n in range(50)]
    write(nats_server.url, rows, bucket="devices")
    devices = tmp_path / "data" / "devices"
    job = start("mirror", tmp_path / "mirror.toml", tmp_path / "out", *delta_packages())
    try:
        wait(lambda: table(devices) != [], "some keys are in the table", tmp_path / "data", job)
    finally:
        kill(job)
    write(nats_server.url, [{"key": "k1", "operation": "delete"}, {"key": "k2", "value": b"new"}], bucket="devices")
    in_session(spark, "mirror", tmp_path / "mirror.toml")
    found = {row["key"]: (row["value"], row["revision"]) for row in delta_rows(devices)}
    assert found == {row["key"]: (row["value"], n) for n, row in enumerate(rows, 1)} | {
        "k1": (None, 51),
        "k2": (b"new", 52),
    }
    assert main(["check", nats_server.url, "-o", "bucket=devices", "--table", str(devices)]) == 0


@pytest.mark.thorough
def test_mirror_job_keeps_the_last_message_of_each_topic(
    spark: SparkSession, room: RestartableBroker, tmp_path: Path
) -> None:
    room.create("ORDERS", "orders.>")
    conf = conf_file(
        tmp_path / "mirror.toml",
        mamasub={**room.options("ORDERS"), "topics": "orders.>", "latestPerTopic": True},
        output={"path": str(tmp_path / "table")},
        stream={"checkpointLocation": str(tmp_path / "checkpoint"), "trigger": "availableNow"},
    )
    for batch, topics in enumerate(("aba", "bc")):
        sent = [(f"orders.{topic}", b"%d" % batch) for topic in topics]
        write = Query("", {**room.options("ORDERS"), "exactlyOnce": "false"}, batch)
        assert write.attempt(sent).counts.acked == len(sent)
        in_session(spark, "mirror", conf)
    found = {row["topic"]: (row["value"], row["sequence"], row["operation"]) for row in delta_rows(tmp_path / "table")}
    assert found == {"orders.a": (b"0", 3, "put"), "orders.b": (b"1", 4, "put"), "orders.c": (b"1", 5, "put")}
