"""What ``mamapub`` publishes ``mamasub`` reads: flights go to topics and come back into a Delta table, row for row,
while workers, the broker and the driver are killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.bridges.nats.server import NatsServer
from mama_spark.testing.brokers import BrokerProcess
from mama_spark.testing.loop_runs import DDL, Loop, OnMalamute, OnNats, flights
from mama_spark.testing.servers import Admin
from pyspark.sql import DataFrame, SparkSession

SCRIPT = Path(__file__).parent / "driver_scripts" / "loop.py"


@pytest.fixture
def admin(nats_server: NatsServer) -> Iterator[Admin]:
    with Admin(nats_server.url) as client:
        client.create_stream("FLIGHTS", ["flights.>"], duplicate_window=600_000_000_000)
        yield client
        client.api("STREAM.DELETE.FLIGHTS")


def read_back(spark: SparkSession, folder: Path) -> DataFrame:
    rows = spark.read.format("delta").load(str(folder / "table"))
    return rows.selectExpr("topic", "sequence", f"from_json(cast(value AS STRING), '{DDL}') AS row")


def run(spark: SparkSession, loop: Loop, n: int) -> None:
    loop.survive(n)
    assert loop.place.stored() == n
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
    run(spark, Loop(SCRIPT, OnNats(nats_server, admin), tmp_path, flights(tmp_path, n), rate=5_000), n)


@pytest.mark.timeout(900)
def test_flights_come_back_over_malamute_though_workers_broker_and_driver_are_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    n = 20_000
    with BrokerProcess(tmp_path / "broker", "^flights$", "dedup_window = 600") as process:
        run(spark, Loop(SCRIPT, OnMalamute(process), tmp_path, flights(tmp_path, n), rate=2_500), n)


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_all_flights_come_back_row_for_row_though_workers_broker_and_driver_are_killed(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    source = flights(tmp_path, None)
    run(spark, Loop(SCRIPT, OnNats(nats_server, admin), tmp_path, source, rate=10_000), 336_776)
