"""``spark.read.format("mamadiscovery")`` against a real nats-server: the image."""

from __future__ import annotations

from decimal import Decimal

import pytest
from mama_spark.contracts.bridge import SourceKey
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.source_records import SourceRecord, encode_source
from mama_spark.nats import NatsSettings
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.spark.discovery.row_batches import SCHEMA
from mama_spark.testing.waiting import eventually
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from tests.support.mama.discovery_harness import ForeignAnnouncer, desk, key


def image(spark: SparkSession, url: str, **options: str) -> DataFrame:
    return spark.read.format("mamadiscovery").option("url", url).options(**options).load()


@pytest.mark.spec("SD-04-SD-12", "SD-14")
def test_a_batch_read_is_the_image_with_one_row_a_source(
    spark: SparkSession, nats_server: NatsServer, stranger: ForeignAnnouncer
) -> None:
    """OK, SUSPECT and OFFLINE ones, two of one name, and one that cannot be read."""
    frame = image(spark, nats_server.url)
    assert to_arrow_schema(frame.schema, timezone="UTC").equals(SCHEMA)
    assert frame.count() == 0
    assert stranger.api("STREAM.NAMES").get("streams") is None, "reading creates none"
    full = SourceRecord("desk", 2**64 - 1, "ONLINE", "OK", "BEST", "DELAYED", "MARKETDATA", {"Region": "eu"})
    ours = NatsDiscovery(NatsSettings((nats_server.url,)))
    ours.open()
    try:
        ours.announce(key(full), encode(encode_source(full)), 60.0)
        twin = desk(8, qos_rate="NO_WORD_OF_THE_SPECIFICATION")
        for record in (twin, desk(1, "suspect"), desk(2, "gone"), SourceRecord("no id", None, "OFFLINE")):
            stranger.say(record)
        stranger.live(SourceKey("suspect", 1), 60)
        stranger.live(SourceKey("gone", 2), 2)
        stranger.say(b"junk", SourceKey("bad", 3))

        eventually(lambda: stranger.expired(SourceKey("gone", 2)), "one is gone")
        rows = {(row.source_name, row.source_id): row.asDict() for row in image(spark, nats_server.url).collect()}
    finally:
        ours.withdraw(key(full), b"")  # else it is renewed for a while, also without a server
        ours.close()
    assert len(rows) == 6
    got = rows["desk", Decimal(2**64 - 1)]
    columns = ("kind", "event", "source_state", "source_data_state", "source_qos_rate", "source_qos_timeliness",
               "source_data_dict", "capabilities", "raw", "status")  # fmt: skip
    assert [got[name] for name in columns] == [
        "source", "online", "ONLINE", "OK", "BEST", "DELAYED", "MARKETDATA", {"Region": "eu"},
        bytearray(encode(encode_source(full))), None,
    ]  # fmt: skip
    assert rows["desk", Decimal(8)]["source_qos_rate"] == "NO_WORD_OF_THE_SPECIFICATION"
    assert (rows["gone", Decimal(2)]["source_state"], rows["gone", Decimal(2)]["status"]) == ("OFFLINE", "EXPIRED")
    assert rows["no id", None]["event"] == "offline"
    bad = rows["bad", Decimal(3)]
    assert (bad["event"], bad["raw"], bad["status"]) == ("bad_record", bytearray(b"junk"), "BAD_RECORD")
    assert {row["transport"] for row in rows.values()} == {nats_server.url}
