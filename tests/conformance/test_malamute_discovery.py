"""Discovery on a real broker passes the suite for discovery bridges."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.bridge import DiscoveryBridge
from mama_spark.bridges.malamute import discovery_announcer
from mama_spark.bridges.malamute.discovery import MalamuteDiscovery
from mama_spark.bridges.malamute.discovery_talk import DiscoverySettings
from mama_spark.malamute.broker import Broker
from mama_spark.malamute.configuration import load
from mama_spark.malamute.link import LinkSettings
from mama_spark.testing.discovery_suite import DiscoverySite, DiscoverySuite, follow
from mama_spark.testing.mlp_discovery import end_process_of, forget


def die(bridge: DiscoveryBridge) -> None:
    """What is left when the process of a bridge is gone: nobody renews."""
    assert isinstance(bridge, MalamuteDiscovery)
    end_process_of(bridge)
    bridge.close()


class TestMalamuteDiscovery(DiscoverySuite):
    @pytest.fixture
    def site(self, tmp_path: Path) -> Iterator[DiscoverySite]:
        names = itertools.count()
        conf = tmp_path / "broker.toml"
        conf.write_text(f'[broker]\nbind = "tcp://127.0.0.1:*"\n[events]\nfolder = "{tmp_path}/streams"\n')
        with Broker(load(conf)) as broker:
            link = LinkSettings((broker.endpoint,))

            def make() -> MalamuteDiscovery:
                """Another name is another announcer, and so a process of its own to everybody else."""
                return MalamuteDiscovery(DiscoverySettings(link, name=f"process {next(names)}"))

            def lose(n: int) -> None:
                bridge = make()
                bridge.open()
                found = follow(bridge, bridge.begin("earliest"), lambda changes: len(changes) >= n)
                bridge.close()
                forget(broker.endpoint, (found[n - 1].sequence or 0) + 1)

            yield DiscoverySite(make=make, ttl=4.0, let_pass=time.sleep, die=die, lose=lose)
            discovery_announcer.clear()
