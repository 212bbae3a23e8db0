"""The readers of ``mamasub`` on a real server, as Spark's driver calls them: what needs no cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mama_spark.contracts.errors import ConfigError, DataLost
from mama_spark.nats.server.nats_server import NatsServer

from tests.support.nats.mamasub import StreamQuery
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


def query(url: str, offset: Any = None, **options: str) -> StreamQuery:
    return StreamQuery(url, offset, waitTimeout="10s", **options)


def read(query: StreamQuery, *, limited: bool = False) -> list[int]:
    return [row["sequence"] for row in query.batch(limited=limited)]


def test_messages_replaced_by_newer_ones_of_their_topic_are_a_loss(nats_server: NatsServer) -> None:
    with Admin(nats_server.url) as admin:
        admin.create_stream("LATEST", ["latest.>"], max_msgs_per_subject=1)
        store(admin, "LATEST", plain("latest.b", 1) + plain("latest.a", 2) + plain("latest.c", 1))
    with pytest.raises(DataLost, match=r"'LATEST': sequence 2: deleted before .*They may all be of topics"):
        read(query(nats_server.url, topics="latest.>"))
    assert read(query(nats_server.url, topics="latest.>", failOnDataLoss="false")) == [1, 3, 4]


def test_a_topic_of_wildcards_alone_finds_no_buckets_and_no_streams_of_our_own(nats_server: NatsServer) -> None:
    """These keep the last message of each subject only: a query of all topics would lose some."""
    with Admin(nats_server.url) as admin:
        for name, subject in (("ALL", "a.>"), ("MAMA_BATCHES", "MAMA_BATCHES.>"), ("KV_b", "$KV.b.>")):
            admin.create_stream(name, [subject], max_msgs_per_subject=1)
            store(admin, name, plain(subject.replace(">", "x.y"), 1))
        for name, topic in (("ALL", ">"), ("ALL", "*.x.>"), ("MAMA_BATCHES", "MAMA_BATCHES.>"), ("KV_b", "$KV.b.>")):
            assert list(query(nats_server.url, topics=topic).offset) == [name], topic


def test_few_permissions_do_when_the_stream_is_named_and_too_few_are_no_loss(tmp_path: Path) -> None:
    """With ``failOnDataLoss=false`` a loss would be skipped, and these messages are still there."""
    login = {"user": "admin", "password": "secret"}
    with NatsServer(tmp_path / "nats", config=USERS) as server:
        with Admin(server.url, **login) as admin:
            admin.create_stream("ORDERS", ["orders.>"])
            store(admin, "ORDERS", plain("orders.a", 10))
        narrow = query(server.url, stream="ORDERS", user="narrow", password="secret")
        start = narrow.offset
        assert read(narrow) == list(range(1, 11))
        blind = query(server.url, start, stream="ORDERS", user="blind", password="secret", failOnDataLoss="false")
        with pytest.raises(ConfigError, match="no permission"):
            read(blind)
        with pytest.raises(ConfigError, match="no permission"):
            blind.reader.partitions(start, narrow.offset)
