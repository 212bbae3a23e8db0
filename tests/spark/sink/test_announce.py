"""Announced writes against a real server: what readers of discovery see of batches, streams and jobs that die."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mama_spark
import pytest
from deltalake import DeltaTable
from mama_spark.nats.discovery.layout import LIVE, DiscoveryLayout
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.spark.sink.announcer import source_id
from mama_spark.testing.waiting import eventually
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from tests.support.discovery_watcher import Watcher
from tests.support.nats.nats_servers import Admin

PATIENCE = 240.0


@pytest.fixture
def admin(admin: Admin) -> Admin:
    admin.create_stream("ORDERS", ["orders.>"])
    return admin


@pytest.fixture
def watcher(nats_server: NatsServer, admin: Admin) -> Iterator[Watcher]:
    with Watcher(nats_server) as reader:
        yield reader


def orders(spark: SparkSession, n: int, partitions: int = 2) -> DataFrame:
    return spark.range(0, n, 1, partitions).selectExpr("'orders.new' AS topic", "cast(id AS string) AS value")


def write(df: DataFrame, server: NatsServer, **options: str) -> None:
    given = {"url": server.url, "announce": "true", **options}
    df.write.format("mamapub").options(**given).mode("append").save()


def logged(path: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(str(path)).to_pyarrow_table().sort_by("event_time").to_pylist()
    return rows


@pytest.mark.spec("PE-12", "PE-13", "PE-17", "SD-05-SD-12")
def test_batch_is_online_while_it_publishes_and_offline_at_its_commit(
    spark: SparkSession, nats_server: NatsServer, watcher: Watcher, tmp_path: Path
) -> None:
    write(orders(spark, 100), nats_server, sourceName="prices", flightLog=str(tmp_path / "log"))
    assert watcher.states() == ["ONLINE", "OFFLINE"]
    online, offline = watcher.records()
    assert (online.name, online.id) == (offline.name, offline.id)
    assert online.capabilities["applicationName"] == "mama-tests"
    lives: dict[str | None, list[str]] = {}
    for e in watcher.events():
        lives.setdefault(e.publisher, []).append(e.event)
    life = ["create", "live", "PUBLISH_CREATE", "PUBLISH_DESTROY", "destroy", "destroy"]
    assert list(lives.values()) == [life, life]
    told = sorted((e.at_us, e.event, e.state) for e in watcher.events())
    rows = [r for r in logged(tmp_path / "log") if r["kind"] != "flight"]
    assert {r["partition_id"] for r in rows} == {0, 1}
    assert [r["committed"] for r in rows] == [True] * 12
    assert sorted((r["event_time"].timestamp() * 1e6, r["event"], r["publisher_state"]) for r in rows) == [
        (pytest.approx(at), event, state) for at, event, state in told
    ]


@pytest.mark.spec("PE-19")
def test_batch_without_discovery_leaves_no_trace_of_it(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    """Who asks for nothing gets what there was before."""
    write(orders(spark, 10), nats_server, announce="false", flightLog=str(tmp_path), topicEvents="off")
    assert admin.api("STREAM.NAMES")["streams"] == ["ORDERS"]
    assert {r["kind"] for r in logged(tmp_path)} == {"flight"}


def ticking(spark: SparkSession, server: NatsServer, folder: Path, **options: str) -> StreamingQuery:
    """A stream of the text files of a folder, with a look at it every 500 ms."""
    source = folder / "in"
    source.mkdir(exist_ok=True)
    rows = spark.readStream.text(str(source)).selectExpr("'orders.tick' AS topic", "value")
    writer = rows.writeStream.format("mamapub").queryName(folder.name).trigger(processingTime="500 milliseconds")
    given = {"url": server.url, "announce": "true", **options}
    return writer.options(**given).option("checkpointLocation", str(folder / "checkpoint")).start()


def add(folder: Path, name: str) -> None:
    hidden = folder / f".{name}"
    hidden.write_text(f"{name}\n")
    hidden.rename(folder / "in" / f"{name}.txt")


@pytest.mark.thorough
def test_stream_stays_online_while_idle_and_is_offline_when_its_block_is_left(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, watcher: Watcher, tmp_path: Path
) -> None:
    query = ticking(spark, nats_server, tmp_path, sourceTtl="24s")
    watcher.name = tmp_path.name
    with mama_spark.announced(query):
        add(tmp_path, "first")
        eventually(lambda: watcher.states() == ["ONLINE"], "the stream is online", PATIENCE)
        (record,) = watcher.records()
        assert (record.name, record.id) == (tmp_path.name, source_id(str(query.id)))
        assert record.capabilities["queryId"] == str(query.id)
        renewals = f"STREAM.MSG.GET.{DiscoveryLayout().sources}"
        live = {"last_by_subj": DiscoveryLayout().source_subject(watcher.changes()[0].source, LIVE)}  # type: ignore[arg-type]
        seen: set[int] = set()

        def renewed() -> bool:
            seen.add(admin.api(renewals, live)["message"]["seq"])
            return len(seen) >= 2  # one in 8 s: after 12 s it would be SUSPECT

        eventually(renewed, "the idle stream is renewed", PATIENCE)
        add(tmp_path, "second")
        eventually(lambda: len([e for e in watcher.events() if e.event == "live"]) >= 2, "a second batch", PATIENCE)
        assert set(watcher.states()) == {"ONLINE"}
    assert not query.isActive
    eventually(lambda: watcher.states()[-1] == "OFFLINE", "the stream is offline")
    assert set(watcher.states()[:-1]) == {"ONLINE"}
    assert watcher.records()[-1].capabilities == record.capabilities


def test_plain_call_withdraws_a_query_that_ends_by_itself(
    spark: SparkSession, nats_server: NatsServer, watcher: Watcher, tmp_path: Path
) -> None:
    query = ticking(spark, nats_server, tmp_path, sourceName="by name", sourceTtl="10m")
    watcher.name = "by name"
    told = mama_spark.announced(query)
    add(tmp_path, "only")
    eventually(lambda: watcher.states() == ["ONLINE"], "the stream is online", PATIENCE)
    assert repr(told) == "<AnnouncedQuery 'by name'>"
    query.stop()
    eventually(lambda: watcher.states() == ["ONLINE", "OFFLINE"], "the stream is offline", PATIENCE)


def test_query_that_does_not_announce_itself_is_left_alone(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    query = ticking(spark, nats_server, tmp_path, announce="false")
    with mama_spark.announced(query) as told:
        assert repr(told) == "<AnnouncedQuery, withdrawn>"
    assert not query.isActive
    assert admin.api("STREAM.NAMES")["streams"] == ["ORDERS"]
