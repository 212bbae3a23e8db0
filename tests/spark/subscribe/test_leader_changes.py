"""Queries that read from a replicated cluster while its leaders go."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from mama_spark.bridges.nats.discovery.layout import DiscoveryLayout
from mama_spark.testing.waiting import eventually
from pyspark.sql import DataFrame, SparkSession

from tests.support.mama.discovery_harness import BatchRecorder, ForeignAnnouncer, desk
from tests.support.nats.nats_cluster import Cluster

PEERS = 10058  #: the stream is there


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with Cluster(tmp_path / "cluster") as cluster:
        yield cluster


def replicated(client: ForeignAnnouncer, config: dict[str, object]) -> None:
    def made() -> bool:  # an error until three peers are known
        return client.api(f"STREAM.CREATE.{config['name']}", config).get("error", {}).get("err_code") in (None, PEERS)

    eventually(made, f"stream {config['name']} has three replicas", 240)


def leader(client: ForeignAnnouncer, stream: str) -> str:
    """An error is no answer: nobody may know while there is an election."""
    answered = partial(client.api, f"STREAM.INFO.{stream}")
    return str(eventually(lambda: answered().get("cluster", {}).get("leader"), f"a leader of {stream}", 240))


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_leaders_that_go_while_queries_read_cost_nothing(spark: SparkSession, cluster: Cluster, tmp_path: Path) -> None:
    with ForeignAnnouncer(cluster.url) as client:
        eventually(lambda: "error" not in client.api("INFO"), "JetStream is ready", 240)
        for config in (
            *DiscoveryLayout().streams(3),
            {"name": "S", "subjects": ["s.>"], "num_replicas": 3, "storage": "file"},
        ):
            replicated(client, config)
        read: dict[int, list[str]] = {}

        def keep(rows: DataFrame, batch: int) -> None:
            read[batch] = [bytes(row.value).decode() for row in rows.collect()]

        def messages() -> list[str]:
            return [text for batch in list(read.values()) for text in batch]

        options = {"url": cluster.url, "waitTimeout": "120s"}
        told = BatchRecorder()
        queries = [
            source.load()
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / name))
            .trigger(processingTime="200 milliseconds")
            .start()
            for name, source, sink in (
                ("sub", spark.readStream.format("mamasub").options(topics="s.>", **options), keep),
                ("discovery", spark.readStream.format("mamadiscovery").options(**options), told),
            )
        ]
        try:
            sent: list[str] = []
            for step in range(3):
                for number in range(10):
                    sent.append(f"{step}-{number}")
                    stubbornly(partial(client.publish, "s.a", sent[-1].encode(), {"Nats-Msg-Id": sent[-1]}))
                stubbornly(partial(client.say, desk(step)))  # twice, if the first answer was lost
                eventually(lambda: len(messages()) >= len(sent), f"messages of step {step}", 240)
                eventually(partial(told_of, told, step), f"the source of step {step}", 240)
                if step == 0:
                    for stream in ("S", "MAMA_EVENTS"):
                        eventually(partial(steps_down, client, stream), f"the leader of {stream} goes", 240)
                elif step == 1:
                    cluster.node(leader(client, "S")).kill()
        finally:
            for query in queries:
                query.stop()
    assert sorted(messages()) == sorted(sent), "each once"
    sources = [line for line in told.lines() if line.startswith("online")]
    assert list(dict.fromkeys(sources)) == [f"online desk {step}" for step in range(3)]
    assert "gap" not in {row["kind"] for row in told.rows}


def steps_down(client: ForeignAnnouncer, stream: str) -> bool:
    return bool(client.api(f"STREAM.LEADER.STEPDOWN.{stream}").get("success"))


def told_of(told: BatchRecorder, number: int) -> bool:
    return f"online desk {number}" in told.lines()


def stubbornly(work: Callable[[], object]) -> None:
    """Done, whatever it takes."""
    until = time.monotonic() + 120
    while True:
        try:
            work()
            return
        except Exception:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
