"""What a recorder wrote, read by Spark: devices as sources, gaps and restarts as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from mama_spark.cli.commands.record import log_options
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.tango.log.records import RecordKind
from mama_spark.testing.waiting import until
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.nats.nats import account
from tests.support.nats.nats_accounts import Accounts
from tests.support.nats.nats_servers import Admin
from tests.support.spark.subscribe_harness import parquet_rows
from tests.support.tango_processes.recorder import STREAM, RecorderThread, settings
from tests.support.tango_processes.servers import TangoServer

Rows = list[dict[str, Any]]
_KIND_AT = 5  #: byte of a record


@pytest.fixture
def nats_server(nats_accounts: Accounts) -> Iterator[NatsServer]:
    """Of this test's own: publishers remember for a minute which streams a server has, and all tests use one name."""
    with account(nats_accounts) as server:
        yield server


@pytest.fixture
def admin(nats_server: NatsServer) -> Iterator[Admin]:
    with Admin(nats_server.url) as client:
        yield client


def recording(server: NatsServer, lab: TangoServer, **more: Any) -> RecorderThread:
    """A recorder in a thread of this process."""
    options = log_options({"url": f"{server.url}/{STREAM}", "createStream": "true"})
    return RecorderThread(options, settings(lab, **more))


def stored(admin: Admin, end: str, kind: RecordKind | None = None) -> int:
    names = admin.api("STREAM.NAMES").get("streams") or []
    found = [m.payload for m in admin.messages(STREAM) if m.topic.endswith(end)] if STREAM in names else []
    return sum(kind is None or payload[_KIND_AT] == kind for payload in found)


def push_until(admin: Admin, lab: TangoServer, more: int = 1) -> None:
    """Push until so many more events stand in the log."""
    before = stored(admin, ".double.change", RecordKind.EVENT)
    until(lambda: stored(admin, ".double.change", RecordKind.EVENT) >= before + more, lambda: lab.push("double", 2.5))


def subscribed(spark: SparkSession, server: NatsServer, **options: str) -> DataFrame:
    given = {"url": server.url, "stream": STREAM, "tango": "true", **options}
    return spark.read.format("mamasub").options(**given).load()


@pytest.mark.spec("TG-46")
def test_a_stream_continues_over_restarts_and_reports_the_gap(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, lab: TangoServer, tmp_path: Path
) -> None:
    """From device server through recorder and log into a table; query and recorder end in between."""
    table, checkpoint = tmp_path / "table", tmp_path / "checkpoint"

    def run() -> None:
        given = {"url": nats_server.url, "stream": STREAM, "tango": "true"}
        frame = spark.readStream.format("mamasub").options(**given).load()
        query: StreamingQuery = (
            frame.selectExpr("sequence", "tango.*")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(checkpoint))
            .trigger(availableNow=True)
            .start(str(table))
        )
        query.awaitTermination()

    with recording(nats_server, lab):
        push_until(admin, lab, 3)
        run()
        push_until(admin, lab, 1)
    for _ in range(4):
        lab.push("double", 9.0)
    with recording(nats_server, lab):
        push_until(admin, lab, 2)
    run()
    rows = sorted(parquet_rows(table), key=lambda row: row["sequence"])
    assert [row["sequence"] for row in rows] == list(range(1, len(rows) + 1))
    (gap,) = [row for row in rows if row["kind"] == "gap"]
    assert gap["gap_count"] == gap["gap_to"] - gap["gap_from"] + 1
    assert gap["gap_count"] >= 4
    assert (gap["attribute"], gap["event"], gap["cause"]) == ("double", "change", "away")
    seen: list[int] = []
    for row in rows:
        if row["kind"] == "gap":
            seen += range(row["gap_from"], row["gap_to"] + 1)
        elif row["origin"] == "event":
            seen.append(row["ctr"])
    assert seen == list(range(seen[0], seen[0] + len(seen)))


def discovered(spark: SparkSession, server: NatsServer, tmp_path: Path, **options: str) -> Callable[[], Rows]:
    """A query of mamadiscovery over the recorder's log; each call runs it for what there is now, and gives all rows."""
    table, checkpoint = tmp_path / "sources", tmp_path / "sources-checkpoint"

    def run() -> Rows:
        given = {"url": f"{server.url}/{STREAM}", "tango": "true", **options}
        frame = spark.readStream.format("mamadiscovery").options(**given).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", str(checkpoint))
        writer.trigger(availableNow=True).start(str(table)).awaitTermination()
        return parquet_rows(table)

    return run


@pytest.mark.spec("TG-13", "TG-16", "TG-36", "TG-41")
def test_devices_are_sources_and_what_happens_to_them_are_rows(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, lab: TangoServer, tmp_path: Path
) -> None:
    source = f"tango://{lab.host}/{lab.devices[0]}#dbase=no"
    run = discovered(spark, nats_server, tmp_path, startingOffsets="earliest")
    with recording(nats_server, lab, attributes=["double", "level"], events="change,attr_conf,intr_change"):
        push_until(admin, lab, 2)
        lab.push_error("double", "Broken", "it broke")
        until(lambda: stored(admin, ".heartbeat") >= 2)
        lab.push("double", 1.0)
        until(lambda: stored(admin, ".heartbeat") >= 3)
        until(lambda: stored(admin, ".level.attr_conf") >= 1 and stored(admin, ".intr_change") >= 1)
        lab.do("add", attribute="long_more")
        until(lambda: stored(admin, ".intr_change") >= 2)
    for _ in range(3):
        lab.push("double", 9.0)
    with recording(nats_server, lab):
        push_until(admin, lab)
    rows = sorted(run(), key=lambda row: row["sequence"])
    lives = [row for row in rows if row["kind"] == "source"]
    assert [row["event"] for row in lives] == ["online", "suspect", "online"]
    assert [(row["source_state"], row["source_data_state"]) for row in lives[:2]] == [
        ("ONLINE", "OK"), ("ONLINE", "SUSPECT"),
    ]  # fmt: skip
    assert {row["source_name"] for row in lives} == {source}
    assert "it broke" in lives[1]["info"]
    config = next(row for row in rows if row["kind"] == "attr_conf" and row["symbol"] == "level")
    assert dict(config["capabilities"])["unit"] == "V"
    interface = [row for row in rows if row["kind"] == "intr_change"][-1]
    assert "long_more" in dict(interface["capabilities"])["attributes"].split(",")
    (gap,) = [row for row in rows if row["kind"] == "gap"]
    assert (gap["symbol"], gap["source_name"]) == ("double", source)
    assert gap["gap_to"] >= gap["gap_from"]
    assert [row["event"] for row in rows if row["kind"] == "restart"] == [
        "recorder_started", "recorder_stopped", "recorder_started", "recorder_stopped",
    ]  # fmt: skip
    assert {row["bridge"] for row in rows} == {"tango"}
    assert not [row for row in rows if row["event"] == "bad_record"]


def test_the_column_is_there_only_where_it_is_asked_for(spark: SparkSession, nats_server: NatsServer) -> None:
    plain = spark.read.format("mamasub").options(url=nats_server.url, stream=STREAM).load()
    assert "tango" not in plain.columns
    assert "tango" in subscribed(spark, nats_server).columns
