"""``jobs/discover.py`` as its users start it, and the two tables it keeps."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from mama_spark.contracts.bridge import SourceKey
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.options.conf_file import load
from mama_spark.spark.discovery.tables import DiscoveryTables
from mama_spark.testing.waiting import eventually
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from tests.support.mama.discovery_harness import ForeignAnnouncer, create_streams, desk, line
from tests.support.processes import descendants
from tests.support.spark.spark_jobs import ROOT, conf_file, delta_jars, in_session, start

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
    family: set[int] = set()
    try:
        wait(
            lambda: any(row["kind"] == "image_end" for row in table(tmp_path / "history")),
            "the first batch",
            tmp_path,
            job,
        )
        stranger.say(desk(7, data_dict="FIRST"))
        wait(lambda: "desk 7" in current(tmp_path / "current"), "the first source", tmp_path, job)
        stranger.say(desk(8))
    finally:
        family = {job.pid, *descendants(job.pid)}
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        job.wait(60)
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


class TableQuery:
    """One checkpoint over both tables, in this process."""

    def __init__(self, spark: SparkSession, server: NatsServer, folder: Path) -> None:
        self.spark, self.server, self.folder = spark, server, folder
        self.tables = DiscoveryTables(str(folder / "history"), str(folder / "current"))
        self.fail_after: str | None = None

    def write(self, batch: DataFrame, batch_id: int) -> None:
        self.tables.write(batch, batch_id)
        if self.fail_after == "write":
            self.fail_after = None
            raise RuntimeError("written and not committed")

    def run(self, checkpoint: str = "one", **options: str) -> None:
        rows = self.spark.readStream.format("mamadiscovery").option("url", self.server.url).options(**options).load()
        writer = rows.writeStream.foreachBatch(self.write).trigger(availableNow=True)
        query = writer.option("checkpointLocation", str(self.folder / checkpoint)).start()
        try:
            assert query.awaitTermination(240)
        finally:
            query.stop()


@pytest.mark.thorough
def test_expired_sources_keep_what_they_said_and_a_batch_that_runs_twice_counts_once(
    spark: SparkSession, nats_server: NatsServer, stranger: ForeignAnnouncer, tmp_path: Path
) -> None:
    keeper = TableQuery(spark, nats_server, tmp_path)
    keeper.run()
    stranger.say(desk(7, data_dict="KEPT"))
    stranger.say(desk(8))
    stranger.live(DESK, 2)  # last: from here on its time runs
    eventually(lambda: stranger.expired(DESK), "the server's own word")
    keeper.fail_after = "write"
    with pytest.raises(StreamingQueryException, match="not committed"):
        keeper.run()
    keeper.run()
    names = ["online desk 7", "online desk 8", "suspect desk 7", "offline desk 7"]
    assert history(tmp_path / "history") == names
    assert current(tmp_path / "current") == {
        "desk 7": ("offline", "OFFLINE", "SUSPECT", "KEPT"),
        "desk 8": ("online", "ONLINE", "OK", None),
    }


@pytest.mark.thorough
def test_a_source_that_a_new_image_does_not_have_is_offline(
    spark: SparkSession, nats_server: NatsServer, stranger: ForeignAnnouncer, tmp_path: Path
) -> None:
    """With another checkpoint, what happened in between was seen by nobody."""
    keeper = TableQuery(spark, nats_server, tmp_path)
    keeper.run()
    for number in (7, 8):
        stranger.say(desk(number))
    keeper.run()
    stranger.api("STREAM.PURGE.MAMA_SOURCES", {"filter": "_MAMA_SOURCE_DISCOVERY.source.desk.8.>"})
    keeper.run("two")
    assert current(tmp_path / "current") == {
        "desk 7": ("online", "ONLINE", "OK", None),
        "desk 8": ("offline", "OFFLINE", "SUSPECT", None),
    }
    (gone,) = [row for row in table(tmp_path / "current") if row["source_id"] == 8]
    assert gone["info"] == "not in the image"


def test_the_example_configuration_is_read() -> None:
    example = load(ROOT / "conf" / "discover.toml", ("mamadiscovery", "tables", "stream"))
    assert set(example["tables"]) == {"history", "current"}
    assert json.dumps(example["mamadiscovery"]) == '{"url": "nats://127.0.0.1:4222"}'
