"""``mamapub`` with ``pack``: several rows in a message, on real brokers and through the commit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from mama_spark.contracts.message import HEADERS_TYPE
from mama_spark.contracts.record_log import Records
from mama_spark.flightlog.reading import summarise
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.packing.unpacked import Unpacked
from mama_spark.packing.unpacker import unpack
from pyspark.sql import DataFrame, SparkSession

from tests.support.malamute.restartable_broker import RestartableBroker
from tests.support.nats.nats_servers import Admin, FetchedMessage
from tests.support.spark.packed_harness import packed_verdict
from tests.support.spark.sink_harness import flights


def orders(spark: SparkSession, n: int) -> DataFrame:
    return spark.range(0, n, 1, 2).selectExpr(
        "concat('orders.r', cast(id % 7 as string)) AS topic", "concat('order ', id) AS value", "id AS k"
    )


def write(df: DataFrame, **options: str) -> None:
    df.write.format("mamapub").options(**options).mode("append").save()


def unpacked(messages: list[FetchedMessage]) -> Unpacked:
    n = np.arange(len(messages))
    headers = pa.array([list(m.headers.items()) for m in messages], HEADERS_TYPE)
    payloads = pa.array([m.payload for m in messages], pa.binary())
    return unpack(Records(n, n, pa.array([m.topic for m in messages]), payloads, headers))


@pytest.mark.parametrize(("room", "pack"), [("nats", "lines"), ("malamute", "arrow")], indirect=["room"])
def test_packed_rows_are_stored_once_and_are_in_the_committed_log(
    spark: SparkSession, room: RestartableBroker, tmp_path: Path, pack: str
) -> None:
    room.create("ORDERS", "orders.>")
    log = tmp_path / "log"
    options = {**room.options("ORDERS"), "flightLog": str(log), "flightLogPayload": "all", "flightLogColumns": "k"}
    write(orders(spark, 2_000), pack=pack, packMaxBytes="3000", **options)
    packed_verdict(room, "ORDERS", log, sent=2_000).raise_faults()
    table = flights(log)
    assert pc.sum(table["rows"]).as_py() == 2_000
    assert sorted(e["k"] for row in table["packed"].to_pylist() for e in row) == list(range(2_000))
    assert pc.max(table["size"]).as_py() <= 3_000
    assert len(table) < 100
    told = summarise(str(log), {})
    assert told.count_rows("acked") == 2_000
    assert "2,000 rows" in told.text()


def test_packs_too_large_for_the_stream_are_split_down_to_the_row_that_is(
    spark: SparkSession, nats_server: NatsServer, tmp_path: Path
) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("SMALL", ["orders.>"], max_msg_size=2_000)
        rows = spark.range(0, 400, 1, 1).selectExpr(
            "'orders.a' AS topic", "rpad(cast(id as string), if(id = 133, 3000, 40), 'x') AS value", "id AS k"
        )
        log = tmp_path / "log"
        options = {"url": nats_server.url, "flightLog": str(log), "flightLogColumns": "k"}
        with pytest.raises(Exception, match=r"1 row was not published: 400 rows: 399 acked, 1 failed"):
            write(rows, pack="arrow", **options)
        table = flights(log, committed=None)
        assert pc.sum(table["rows"]).as_py() == 400
        (failed,) = [f for f in table.to_pylist() if f["event"] != "acked"]
        assert (failed["rows"], failed["packed"], failed["code"]) == (1, [{"k": 133}], 10054)
        assert failed["sends"] > 5  # of the packs that the row was in
        held = unpacked(admin.messages("SMALL")).values.to_pylist()
        assert sorted(int(v.rstrip(b"x")) for v in held) == [k for k in range(400) if k != 133]
        admin.api("STREAM.DELETE.SMALL")
