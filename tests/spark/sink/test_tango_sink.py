"""``mamapub`` with ``url=tango://…``: rows become records of a log, and every row has its one outcome."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.tango.events.event_codec import Event, decode
from mama_spark.tango.log import records
from mama_spark.tango.types import AttributeValue, Quality
from pyspark.sql import DataFrame, SparkSession

from tests.support.nats.nats_servers import Admin, FetchedMessage
from tests.support.spark.sink_harness import flights, verdict

N = 2_000


@pytest.fixture
def admin(admin: Admin) -> Admin:
    admin.create_stream("TANGO", ["tango.>"])
    return admin


def write(df: DataFrame, server: NatsServer, **options: str) -> None:
    given = {"url": "tango://lab", "log": f"{server.url}/TANGO", **options}
    df.write.format("mamapub").options(**given).mode("append").save()


def values(stored: list[FetchedMessage]) -> list[AttributeValue]:
    """What the records of a log hold."""
    found = []
    recorded = records.decode(pa.array([m.payload for m in stored], pa.binary()))
    assert not recorded.bad
    for frames in zip(*recorded.frames.columns(), strict=True):
        event = decode(frames)
        assert isinstance(event, Event)
        assert isinstance(event.data, AttributeValue)
        found.append(event.data)
    return found


def readings(spark: SparkSession, n: int) -> DataFrame:
    return spark.range(0, n, 1, 2).selectExpr(
        "concat('lab/cell/', id % 3) AS device",
        "concat('temperature_', id % 10) AS attribute",
        "id / 2 AS value",
        "CASE id % 4 WHEN 0 THEN 'VALID' WHEN 1 THEN 'ALARM' WHEN 2 THEN 'WARNING' ELSE 'CHANGING' END AS quality",
        "timestamp_micros(1700000000000000 + id) AS time",
    )


@pytest.mark.spec("TG-22", "TG-23")
def test_every_row_is_a_record_of_the_log_and_acked_as_stored(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, tmp_path: Path
) -> None:
    """Conservation: as many records as rows, payload equal, each where its flight says it is."""
    write(readings(spark, N), nats_server, flightLog=str(tmp_path / "log"), flightLogPayload="all")
    verdict(admin, "TANGO", tmp_path / "log", sent=N).raise_faults()
    table = flights(tmp_path / "log")
    assert set(table["ack_level"].to_pylist()) == {"stored"}
    assert set(table["bridge"].to_pylist()) == {"tango"}
    assert None not in table["sequence"].to_pylist()
    stored = admin.messages("TANGO")
    assert {m.topic for m in stored} == {
        f"tango.lab.lab.cell.{i % 3}.temperature_{i % 10}.change" for i in range(30)
    }  # fmt: skip
    qualities = [Quality.VALID, Quality.ALARM, Quality.WARNING, Quality.CHANGING]
    found = {v.time: (v.name, v.read.tolist(), v.quality) for v in values(stored)}  # type: ignore[union-attr]
    assert found == {
        1_700_000_000_000_000_000 + 1000 * i: (f"temperature_{i % 10}", [i / 2], qualities[i % 4]) for i in range(N)
    }
