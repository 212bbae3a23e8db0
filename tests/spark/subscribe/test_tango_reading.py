"""What a recorder wrote, read by Spark: devices as sources, gaps and restarts as rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mama_spark.cli.commands.record import log_options
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.tango.log.records import RecordKind
from mama_spark.testing.waiting import until
from pyspark.sql import SparkSession

from tests.support.nats.nats_servers import Admin
from tests.support.spark.subscribe_harness import parquet_rows
from tests.support.tango_processes.recorder import STREAM, RecorderThread, settings
from tests.support.tango_processes.servers import TangoServer

_KIND_AT = 5  #: byte of a record


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


@pytest.mark.spec("TG-13", "TG-16", "TG-36", "TG-41", "TG-46")
def test_devices_are_sources_and_what_happens_to_them_are_rows(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, lab: TangoServer, tmp_path: Path
) -> None:
    source = f"tango://{lab.host}/{lab.devices[0]}#dbase=no"
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
    given = {"url": f"{nats_server.url}/{STREAM}", "tango": "true", "startingOffsets": "earliest"}
    frame = spark.readStream.format("mamadiscovery").options(**given).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "checkpoint"))
    writer.trigger(availableNow=True).start(str(tmp_path / "sources")).awaitTermination()
    rows = sorted(parquet_rows(tmp_path / "sources"), key=lambda row: row["sequence"])
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
    read = spark.read.format("mamasub").options(url=nats_server.url, stream=STREAM, tango="true").load()
    changes = read.where("tango.attribute = 'double' AND tango.event = 'change'").orderBy("sequence")
    seen: list[int] = []
    for change in (row.tango for row in changes.collect()):
        if change.kind == "gap":
            seen += range(change.gap_from, change.gap_to + 1)
        elif change.origin == "event":
            seen.append(change.ctr)
    assert gap["gap_to"] - gap["gap_from"] >= 2
    assert seen == list(range(seen[0], seen[0] + len(seen))), "each event once, or in the gap"
    assert [row["event"] for row in rows if row["kind"] == "restart"] == [
        "recorder_started", "recorder_stopped", "recorder_started", "recorder_stopped",
    ]  # fmt: skip
    assert {row["bridge"] for row in rows} == {"tango"}
    assert not [row for row in rows if row["event"] == "bad_record"]
