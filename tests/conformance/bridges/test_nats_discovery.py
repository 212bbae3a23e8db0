from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
from mama_spark.contracts.bridge import DiscoveryBridge
from mama_spark.nats.connection.pool import POOL
from mama_spark.nats.discovery import lease
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.nats.settings import NatsSettings
from mama_spark.testing.discovery_suite import DiscoverySetup, DiscoverySuite

from tests.support.nats.nats_servers import Admin


def die(bridge: DiscoveryBridge) -> None:
    """What is left when the process of a bridge is gone: nobody renews."""
    assert isinstance(bridge, NatsDiscovery)
    keeper = bridge._lease_keeper
    assert keeper is not None
    keeper.loop.run(keeper.stop(), 30, "ending")
    bridge.close()


class TestNatsDiscovery(DiscoverySuite):
    @pytest.fixture
    def site(self, nats_server: NatsServer) -> Iterator[DiscoverySetup]:
        names = itertools.count()

        def make() -> NatsDiscovery:
            """Another name is another connection, and so a process of its own to everybody else."""
            return NatsDiscovery(NatsSettings(servers=(nats_server.url,), name=f"process {next(names)}"))

        def lose(n: int) -> None:
            at = 1
            with Admin(nats_server.url) as admin:
                for _ in range(n):
                    found = admin.api("STREAM.MSG.GET.MAMA_EVENTS", {"seq": at, "next_by_subj": "*.event.>"})
                    at = found["message"]["seq"] + 1
                admin.api("STREAM.PURGE.MAMA_EVENTS", {"seq": at})

        def streams() -> list[str]:
            with Admin(nats_server.url) as admin:
                return list(admin.api("STREAM.NAMES").get("streams") or [])

        yield DiscoverySetup(make=make, ttl=2.0, long_ttl=8.0, die=die, lose=lose, streams=streams)
        lease.clear()
        POOL.clear()
