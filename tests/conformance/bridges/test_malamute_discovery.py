"""Discovery on a real broker passes the suite for discovery bridges."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from mama_spark.contracts.bridge import DiscoveryBridge
from mama_spark.malamute.bridge.discovery import lease
from mama_spark.malamute.bridge.discovery.bridge import MalamuteDiscovery
from mama_spark.malamute.bridge.discovery.client import DiscoverySettings
from mama_spark.malamute.bridge.discovery.codec import EVENTS
from mama_spark.malamute.bridge.logs import MalamuteLogs
from mama_spark.malamute.bridge.settings import MalamuteSettings
from mama_spark.malamute.broker.broker.broker import Broker
from mama_spark.malamute.broker.configuration import load
from mama_spark.malamute.broker.engines.durable import engine
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.testing.clocks import Clock
from mama_spark.testing.discovery_suite import DiscoverySetup, DiscoverySuite, follow
from mama_spark.testing.waiting import eventually

from tests.support.malamute.malamute_discovery import end_process_of, forget

TTL = 600.0
STEP = TTL / 12  #: of the clock; a third of the time to live is the pace of renewals, a half makes SUSPECT


class Times:
    """The clock of the engine that waits for renewals, and of those who renew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.renewing = Clock(), 0
        for module in (engine, lease):
            monkeypatch.setattr(module, "time", self.clock)
        keep = lease.RenewalKeeper._renew_one

        def renew(announcer: lease.RenewalKeeper, one: lease._Renewal) -> None:
            self.renewing += 1
            keep(announcer, one)
            self.renewing -= 1

        monkeypatch.setattr(lease.RenewalKeeper, "_renew_one", renew)

    def let_pass(self, seconds: float, events: MalamuteLogs) -> None:
        """Step by step: whoever is due has renewed, and then the engine looks."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.clock.ahead += STEP
            eventually(self._renewed, "all that is due is renewed")
            events.log(EVENTS).bounds()

    def _renewed(self) -> bool:
        for announcer in list(lease._keepers.values()):
            with announcer._changed:
                announcer._changed.notify_all()
                if any(one.due <= self.clock.monotonic() for one in announcer.sources.values()):
                    return False
        return not self.renewing


def die(bridge: DiscoveryBridge) -> None:
    """What is left when the process of a bridge is gone: nobody renews."""
    assert isinstance(bridge, MalamuteDiscovery)
    end_process_of(bridge)
    bridge.close()


class TestMalamuteDiscovery(DiscoverySuite):
    @pytest.fixture
    def site(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiscoverySetup]:
        times = Times(monkeypatch)
        names = itertools.count()
        conf = tmp_path / "broker.toml"
        conf.write_text(f'[broker]\nbind = "tcp://127.0.0.1:*"\n[events]\nfolder = "{tmp_path}/streams"\n')
        with Broker(load(conf)) as broker:
            link = ConnectionSettings((broker.endpoint,))

            def let_pass(seconds: float) -> None:
                with MalamuteLogs(MalamuteSettings(link), 60.0) as events:
                    times.let_pass(seconds, events)

            def make() -> MalamuteDiscovery:
                """Another name is another announcer, and so a process of its own to everybody else."""
                return MalamuteDiscovery(DiscoverySettings(link, name=f"process {next(names)}"))

            def lose(n: int) -> None:
                bridge = make()
                bridge.open()
                found = follow(bridge, bridge.initial_offset("earliest"), lambda changes: len(changes) >= n)
                bridge.close()
                forget(broker.endpoint, (found[n - 1].sequence or 0) + 1)

            yield DiscoverySetup(make=make, ttl=TTL, long_ttl=TTL, clock=let_pass, die=die, lose=lose)
            lease.clear()
