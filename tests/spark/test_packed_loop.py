"""What ``mamapub`` packs ``mamasub`` unpacks into a Delta table, row for row, while workers, broker and driver are
killed: typed columns over NATS, lines of JSON over Malamute."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from mama_spark.bridges.nats.server import NatsServer
from mama_spark.testing.brokers import BrokerProcess
from mama_spark.testing.loop_runs import DDL, Loop, OnMalamute, OnNats, Place, flights
from mama_spark.testing.servers import Admin
from pyspark.sql import SparkSession

SCRIPT = Path(__file__).parent / "driver_scripts" / "loop.py"
N = 20_000
PACK_ROWS = 10
#: Rows are spread over topics and two partitions, and what is left of a topic at the end of a partition goes, too.
MOST_PACKS = N // PACK_ROWS


def survives(spark: SparkSession, place: Place, folder: Path, pack: str, schema: str | None = None) -> None:
    source = flights(folder, N)
    more = {} if schema is None else {"schema": schema}
    publish = {"pack": pack, "packMaxRows": str(PACK_ROWS)}
    loop = Loop(SCRIPT, place, folder, source, rate=200, publish=publish, **more)
    loop.survive(MOST_PACKS)
    table = spark.read.format("delta").load(str(folder / "table"))
    assert table.select("sequence", "pack_index").distinct().count() == N
    assert table.where("pack_index IS NOT NULL").count() == N
    assert table.where(f"pack_index >= {PACK_ROWS}").count() == 0
    rows = table
    if schema is None:
        rows = table.selectExpr("topic", f"from_json(cast(value AS STRING), '{DDL}') AS row").select("topic", "row.*")
    reader = spark.read.schema(DDL).option("header", True).option("nullValue", "NA")
    want = reader.csv(str(source)).selectExpr("concat('flights.', origin, '.', carrier) AS topic", "*")
    assert Counter(rows.select(*want.columns).collect()) == Counter(want.collect())


@pytest.mark.timeout(900)
def test_typed_flights_come_back_row_for_row_though_workers_broker_and_driver_are_killed(
    spark: SparkSession, nats_server: NatsServer, tmp_path: Path
) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("FLIGHTS", ["flights.>"], duplicate_window=600_000_000_000)
        schema = f"{DDL}, topic STRING, sequence BIGINT, pack_index INT"
        survives(spark, OnNats(nats_server, admin), tmp_path, "arrow", schema)
        admin.api("STREAM.DELETE.FLIGHTS")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_lines_of_flights_come_back_over_malamute_though_workers_broker_and_driver_are_killed(
    spark: SparkSession, tmp_path: Path
) -> None:
    with BrokerProcess(tmp_path / "broker", "^flights$", "dedup_window = 600") as process:
        survives(spark, OnMalamute(process), tmp_path, "lines")
