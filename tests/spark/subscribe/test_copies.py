"""What ``mamasub`` reads ``mamapub`` publishes to another stream; tests/live has streams of all kinds without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import eventually
from pyspark.sql import SparkSession

from tests.support.nats.forgotten_ids import WINDOW, forget_ids
from tests.support.nats.nats_servers import Admin
from tests.support.spark.attempts import values

PATIENCE = 240
ROWS = 12
#: With what the server says of each message of such a stream, and without.
ALL = "headers"
OTHERS = "map_filter(headers, (name, _) -> NOT name LIKE 'Nats-%') AS headers"


@pytest.mark.parametrize("headers", [OTHERS, pytest.param(ALL, marks=pytest.mark.thorough)])
@pytest.mark.parametrize("streaming", [True, pytest.param(False, marks=pytest.mark.thorough)])
def test_a_copy_of_a_sourced_stream_that_is_made_again_has_each_row_once_or_says_why_not(
    spark: SparkSession, nats_server: NatsServer, admin: Admin, tmp_path: Path, streaming: bool, headers: str
) -> None:
    admin.create_stream("ORIGIN", ["in.>"])
    admin.create_stream("SOURCED", [], sources=[{"name": "ORIGIN"}])
    admin.create_stream("TO", ["to.>"], allow_batched=True, duplicate_window=WINDOW)
    for n in range(ROWS):
        admin.publish(f"in.{n}", b"row %d" % n, Kept=f"{n}")
    eventually(lambda: admin.info("SOURCED")["state"]["messages"] == ROWS, "the copy is complete")
    given = {"url": nats_server.url, "topicPrefix": "to", "exactlyOnce": "true", "waitTimeout": "300ms"}
    checkpoint = tmp_path / "checkpoint"

    def copy() -> None:
        """From the beginning: as if Spark had not committed."""
        source = (spark.readStream if streaming else spark.read).format("mamasub")
        read = source.options(url=nats_server.url, startingOffsets="earliest", stream="SOURCED", topics="in.>").load()
        rows = read.selectExpr("topic", "value", headers)
        if not streaming:
            once = {"txnAppId": str(tmp_path), "txnVersion": "1"}
            rows.write.format("mamapub").options(**given, **once).mode("append").save()
            return
        for commit in (checkpoint / "commits").glob("*0*"):
            commit.unlink()
        writer = rows.writeStream.format("mamapub").options(**given).option("checkpointLocation", str(checkpoint))
        assert writer.trigger(availableNow=True).start().awaitTermination(PATIENCE)

    wanted = {} if headers == ALL else {(f"to.in.{n}", b"row %d" % n): 1 for n in range(ROWS)}
    for _ in range(2):
        if headers == ALL:
            with pytest.raises(Exception, match="is what a stream with sources writes"):
                copy()
        else:
            copy()
        eventually(lambda: values(admin.messages("TO")) == wanted, "each row is stored once")
        forget_ids(admin)
