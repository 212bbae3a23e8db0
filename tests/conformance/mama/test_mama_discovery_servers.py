"""Source discovery over a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from mama_spark.contracts.bridge import SourceKey
from mama_spark.discovery import lease_keeper
from mama_spark.mama import SourceDiscovery, SourceRecord, Transport
from mama_spark.mama.messages.source_records import OK, ONLINE
from mama_spark.nats import NatsSettings
from mama_spark.nats.connection.pool import POOL
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.testing.waiting import until

from tests.support.mama.mama_discovery import DiscoveryRecorder, as_bytes

KEY = SourceKey("desk", 7)


def records(ear: DiscoveryRecorder) -> list[SourceRecord]:
    return [one for one in ear.heard if isinstance(one, SourceRecord)]


@pytest.fixture
def source(nats_server: NatsServer) -> Iterator[NatsDiscovery]:
    made = NatsDiscovery(NatsSettings((nats_server.url,), name="a source"))
    made.open()
    yield made
    made.close()
    lease_keeper.clear()
    POOL.clear()


def test_a_connection_that_was_closed_for_good_is_made_again(nats_server: NatsServer, source: NatsDiscovery) -> None:
    ear = DiscoveryRecorder()
    place = NatsDiscovery(NatsSettings((nats_server.url,), name="a reader"))
    transport = Transport.create("disc", nats_server.url, place)
    SourceDiscovery.create(ear.callbacks(), None, transport)
    first, second = (SourceRecord("desk", number, ONLINE, OK) for number in (7, 8))
    source.announce(KEY, as_bytes(first), 60.0)
    until(lambda: records(ear) == [first])
    connection = place._connection
    assert connection is not None
    connection.close()
    source.announce(SourceKey("desk", 8), as_bytes(second), 60.0)
    until(lambda: records(ear) == [first, second])
    transport.destroy()
