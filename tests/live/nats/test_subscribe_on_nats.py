"""The readers of ``mamasub`` on a real server, as Spark's driver calls them: what needs no cluster."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from mama_spark.contracts.errors import ConfigError, DataLost
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.spark.formats import MamaSubDataSource
from mama_spark.spark.subscribe.data_source import MamaSubStreamReader
from mama_spark.spark.subscribe.schema import SCHEMA
from pyspark.sql.streaming.datasource import ReadAllAvailable

from tests.support.nats.nats_servers import Admin
from tests.support.spark.subscribe_harness import plain, store

USERS = """
authorization { users = [
  { user: admin, password: secret }
  { user: narrow, password: secret, permissions: { subscribe: ["_INBOX.>"], publish: ["$JS.API.INFO",
    "$JS.API.STREAM.INFO.ORDERS", "$JS.API.CONSUMER.CREATE.ORDERS.>", "$JS.API.CONSUMER.DELETE.ORDERS.>",
    "$JS.API.CONSUMER.INFO.ORDERS.>", "$JS.API.CONSUMER.MSG.NEXT.ORDERS.>", "$JS.ACK.>"] } }
  { user: blind, password: secret, permissions: { subscribe: ["_INBOX.>"], publish: ["$JS.API.INFO",
    "$JS.API.STREAM.NAMES"] } }
] }
"""


def stream_of(url: str, **options: str) -> MamaSubStreamReader:
    return MamaSubDataSource({"url": url, "waitTimeout": "10s", **options}).streamReader(SCHEMA)


def read(reader: MamaSubStreamReader) -> list[int]:
    start = reader.initialOffset()
    tasks = reader.partitions(start, reader.latestOffset(start, ReadAllAvailable()))
    return [sequence for task in tasks for batch in reader.read(task) for sequence in batch["sequence"].to_pylist()]


def test_stream_whose_limits_can_remove_messages_is_warned_of(
    nats_server: NatsServer, caplog: pytest.LogCaptureFixture
) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("KEPT", ["kept.>"])
        admin.create_stream("LATEST", ["latest.>"], max_msgs_per_subject=1)
        admin.create_stream("YOUNG", ["young.>"], max_age=int(3600e9))
    stream_of(nats_server.url, topics="kept.>").initialOffset()
    assert not caplog.records
    stream_of(nats_server.url, topics="latest.a,young.a").initialOffset()
    warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert len(warned) == 2
    assert all(
        text.startswith("mamasub: ") and name in text for text, name in zip(warned, ("LATEST", "YOUNG"), strict=True)
    )


def test_messages_replaced_by_newer_ones_of_their_topic_are_a_loss(nats_server: NatsServer) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("LATEST", ["latest.>"], max_msgs_per_subject=1)
        store(admin, "LATEST", plain("latest.b", 1) + plain("latest.a", 2) + plain("latest.c", 1))
    with pytest.raises(DataLost, match=r"'LATEST': sequence 2: deleted before .*They may all be of topics"):
        read(stream_of(nats_server.url, topics="latest.>"))
    assert read(stream_of(nats_server.url, topics="latest.>", failOnDataLoss="false")) == [1, 3, 4]


def test_few_permissions_do_when_the_stream_is_named_and_too_few_are_no_loss(tmp_path: Path) -> None:
    """With ``failOnDataLoss=false`` a loss would be skipped, and these messages are still there."""
    login = {"user": "admin", "password": "secret"}
    with NatsServer(tmp_path / "nats", config=USERS) as server:
        with Admin(server.url, **login) as admin:
            admin.create_stream("ORDERS", ["orders.>"])
            store(admin, "ORDERS", plain("orders.a", 10))
        narrow = stream_of(server.url, stream="ORDERS", user="narrow", password="secret")
        assert read(narrow) == list(range(1, 11))
        start = narrow.initialOffset()
        end = narrow.latestOffset(start, ReadAllAvailable())
        blind = stream_of(server.url, stream="ORDERS", user="blind", password="secret", failOnDataLoss="false")
        with pytest.raises(ConfigError, match="no permission"):
            blind.latestOffset(start, ReadAllAvailable())
        with pytest.raises(ConfigError, match="no permission"):
            blind.partitions(start, end)


def test_the_limit_of_a_micro_batch_counts_what_matches_the_topics(nats_server: NatsServer) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("MIXED", ["mixed.>"])
        for _ in range(30):
            store(admin, "MIXED", plain("mixed.noise", 9) + plain("mixed.wanted", 1))
        store(admin, "MIXED", plain("mixed.noise", 50))
    reader = stream_of(nats_server.url, topics="mixed.wanted", maxOffsetsPerTrigger="10")
    offset, found = reader.initialOffset(), []
    while (end := reader.latestOffset(offset, reader.getDefaultReadLimit())) != offset:
        tasks = reader.partitions(offset, end)
        found.append([n for task in tasks for batch in reader.read(task) for n in batch["sequence"].to_pylist()])
        offset = end
    assert [n for batch in found for n in batch] == list(range(10, 301, 10))
    assert max(map(len, found)) <= 10
    assert len(found) <= 5, "a batch is about as large as it may be"
    assert offset["MIXED"]["next"] == 351
