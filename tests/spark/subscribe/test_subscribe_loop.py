"""What ``mamapub`` publishes ``mamasub`` reads: flights go to topics and come back into a Delta table, row for row,
while workers, brokers and the driver are killed."""

from __future__ import annotations

import json
import runpy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from mama_spark.nats.server.nats_server import NatsServer
from pyspark.sql import SparkSession

from tests.support.malamute.broker_process import BrokerProcess
from tests.support.nats.nats_servers import Admin
from tests.support.spark.loop_harness import DDL, FlightLoop, Lane, OnMalamute, OnNats, expected, flights, shown

SCRIPT = Path(__file__).parents[1] / "driver_scripts" / "loop.py"
PACK_ROWS = 10
TYPED = f"{DDL}, topic STRING, sequence BIGINT, pack_index INT"
pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def resume(spark: SparkSession) -> Callable[[dict[str, Any]], object]:
    """The second driver: the session of the tests."""
    return partial(runpy.run_path(str(SCRIPT))["run"], spark)


@pytest.fixture
def nats(nats_server: NatsServer) -> Iterator[OnNats]:
    with Admin(nats_server.url) as admin:
        admin.create_stream("FLIGHTS", ["flights.>"], duplicate_window=600_000_000_000)
        yield OnNats(nats_server, admin)
        admin.api("STREAM.DELETE.FLIGHTS")


@pytest.fixture
def malamute(tmp_path: Path) -> Iterator[OnMalamute]:
    with BrokerProcess(tmp_path / "broker", "^flights$", 'dedup_window = "600s"') as process:
        yield OnMalamute(process)


def plain(loop: FlightLoop, lane: Lane) -> None:
    """Each row in a message of its own, as JSON."""
    rows = loop.rows(lane)
    assert shown({**json.loads(row["value"]), "topic": row["topic"]} for row in rows) == expected(loop.source)
    assert len({row["sequence"] for row in rows}) == lane.place.stored() == lane.messages


def packed(loop: FlightLoop, lane: Lane) -> None:
    """Several rows in a message, each with its place."""
    rows = loop.rows(lane)
    values = rows if lane.schema else [{**json.loads(row["value"]), "topic": row["topic"]} for row in rows]
    assert shown(values) == expected(loop.source)
    assert len({(row["sequence"], row["pack_index"]) for row in rows}) == len(rows)
    assert {row["pack_index"] for row in rows} == set(range(PACK_ROWS))
    assert len({row["sequence"] for row in rows}) == lane.place.stored()


def packing(pack: str) -> dict[str, str]:
    return {"pack": pack, "packMaxRows": str(PACK_ROWS)}


@pytest.mark.thorough
def test_flights_come_back_row_for_row_though_workers_brokers_and_driver_are_killed(
    resume: Callable[[dict[str, Any]], object], nats: OnNats, malamute: OnMalamute, tmp_path: Path
) -> None:
    """One by one over Malamute, and in packs with typed columns over NATS."""
    n = 8_000
    one_by_one = Lane("one by one", malamute, n, rate=1_000)
    # rows are spread over topics and two partitions, and what is left of a topic in a partition goes, too: more packs
    in_packs = Lane("in packs", nats, n // PACK_ROWS, rate=100, publish=packing("arrow"), schema=TYPED)
    loop = FlightLoop(SCRIPT, tmp_path, flights(tmp_path, n), one_by_one, in_packs)
    loop.survive(resume)
    plain(loop, one_by_one)
    packed(loop, in_packs)
