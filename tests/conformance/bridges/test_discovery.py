"""Discovery of every kind passes its suite: middlewares that announce sources, and logs that a recorder wrote."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from mama_spark.contracts.bridge import DiscoveryBridge, DiscoveryEvent, DiscoveryEventKind, SourceKey
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import RecordLog, Records
from mama_spark.discovery import lease_keeper
from mama_spark.discovery.recorded_discovery import RecordedDiscovery
from mama_spark.malamute.bridge.discovery.bridge import MalamuteDiscovery
from mama_spark.malamute.bridge.discovery.client import DiscoverySettings
from mama_spark.malamute.bridge.discovery.codec import EVENTS
from mama_spark.malamute.bridge.logs import MalamuteLogs
from mama_spark.malamute.bridge.settings import MalamuteSettings
from mama_spark.malamute.broker.broker.broker import Broker
from mama_spark.malamute.broker.configuration import load
from mama_spark.malamute.broker.engines.durable import engine
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.memory.broker import MemoryBroker
from mama_spark.memory.discovery import MemoryDiscovery, MemorySources
from mama_spark.memory.logs import MemoryLog, MemoryLogs
from mama_spark.nats.connection.pool import POOL
from mama_spark.nats.discovery.bridge import NatsDiscovery
from mama_spark.nats.server.nats_server import NatsServer
from mama_spark.nats.settings import NatsSettings
from mama_spark.testing.discovery_suite import DiscoveryReadingSuite, DiscoverySetup, DiscoverySuite, follow
from mama_spark.testing.waiting import eventually

from tests.support.clocks import Clock
from tests.support.malamute.malamute_discovery import forget
from tests.support.nats.nats_servers import Admin


class TestDiscovery(DiscoverySuite):
    @pytest.fixture(params=["memory", "malamute", "nats"])
    def site(self, request: pytest.FixtureRequest) -> DiscoverySetup:
        site: DiscoverySetup = request.getfixturevalue(f"{request.param}_site")
        return site

    @pytest.mark.parametrize(
        "site", ["memory", "malamute", pytest.param("nats", marks=pytest.mark.thorough)], indirect=True
    )
    def test_what_is_renewed_by_one_announcer_or_by_one_of_several_stays(
        self, site: DiscoverySetup, source: DiscoveryBridge, reader: DiscoveryBridge
    ) -> None:
        """For NATS by the clock: half a minute, so that a renewal may be late by five seconds."""
        super().test_what_is_renewed_by_one_announcer_or_by_one_of_several_stays(site, source, reader)


# --- logs of recorders ----------------------------------------------------------------------------------------------


class RecordedNotes(RecordedDiscovery):
    """A recorder writes down what it is told."""

    topics = ("record.>", "event.>")

    def announce(self, source: SourceKey, record: bytes, ttl: float) -> None:
        bounds = self._bounds()
        known = self.sources(self.log, bounds.first, bounds.last).get(source)
        if known is None or known.payload != record:
            self._note("record", source, record, "-")

    def publish_events(self, source: SourceKey, events: Sequence[bytes], ids: Sequence[str]) -> None:
        told = {topic for records in self.log.read(0, self._bounds().last) for topic in records.topics.to_pylist()}
        for event, id_ in zip(events, ids, strict=True):
            if not any(topic.endswith(f".{id_}") for topic in told):
                self._note("event", source, event, id_)

    def _note(self, kind: str, source: SourceKey, payload: bytes, id_: str) -> None:
        topic = f"{kind}.{source.name.encode().hex()}.{'-' if source.id is None else source.id}.{id_}"
        self.log.append(MessageBatch.of([topic], [payload]))

    def events(self, origin: str, records: Records) -> Iterator[DiscoveryEvent]:
        columns = (records.topics.to_pylist(), records.payloads.to_pylist(), records.times, records.sequences)
        for topic, payload, at, sequence in zip(*columns, strict=True):
            kind, name, number, _ = topic.split(".")
            source = SourceKey(bytes.fromhex(name).decode(), None if number == "-" else int(number))
            yield DiscoveryEvent(DiscoveryEventKind(kind), int(at), origin, int(sequence), source, payload)

    def sources(self, log: RecordLog, first: int, last: int) -> dict[SourceKey, DiscoveryEvent]:
        found = (
            event for records in log.read(first - 1, last, self.topics) for event in self.events(log.name, records)
        )
        return {e.source: e for e in found if e.source is not None and e.kind is DiscoveryEventKind.RECORD}


class TestRecordedDiscovery(DiscoveryReadingSuite):
    @pytest.fixture
    def site(self) -> Iterator[DiscoverySetup]:
        name = uuid4().hex

        def lose(n: int) -> None:
            log = MemoryLogs(name).log(name)
            log.trim(log.bounds().first + n)

        yield DiscoverySetup(
            make=lambda: RecordedNotes(MemoryLogs(name), None),
            ttl=30.0,
            long_ttl=30.0,
            die=lambda bridge: bridge.close(),
            lose=lose,
        )
        MemoryBroker.forget(name)

    def test_a_log_whose_leader_is_behind_is_no_other_log(
        self, site: DiscoverySetup, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """What was read is not told again, and what is there is no gap."""
        recorder = site.make()
        recorder.open()
        recorder.announce(SourceKey("a", 1), b"one", 30.0)
        begun = recorder.initial_offset("earliest")
        recorder.announce(SourceKey("b", 2), b"two", 30.0)
        end, bounds = recorder.latest_offset(begun), MemoryLog.bounds
        monkeypatch.setattr(MemoryLog, "bounds", lambda log: replace(bounds(log), last=1))
        monkeypatch.setattr(MemoryLog, "bounds_with", lambda log, sequence, identity: bounds(log))
        reader = site.make()
        reader.open()
        assert reader.latest_offset(end) == end
        for first, told in ((begun, ["one", "two"]), ({"begin": "image"}, ["one", "two", None])):
            found = [event.payload for events in reader.read(first, end) for event in events]
            assert [payload and payload.decode() for payload in found] == told

    def test_a_beginning_behind_the_end_of_the_log_is_refused(self, site: DiscoverySetup) -> None:
        recorder = site.make()
        recorder.open()
        recorder.announce(SourceKey("a", 1), b"one", 30.0)
        name = recorder.image()[-1].origin
        assert recorder.initial_offset(((name, 2),)) == recorder.initial_offset("latest")
        with pytest.raises(ConfigError, match=f"the log '{name}' has no number 3 yet: the last is 1"):
            recorder.initial_offset(((name, 3),))

    def test_what_is_removed_before_it_is_read_is_a_gap_once(
        self, site: DiscoverySetup, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        recorder = site.make()
        recorder.open()
        for n in range(1, 10):
            recorder.announce(SourceKey("a", n), b"%d" % n, 30.0)
        begun = recorder.initial_offset("earliest")
        end, broker = recorder.latest_offset(begun), MemoryBroker.get(recorder.image()[-1].origin)
        log, read = MemoryLogs(broker.name).log(broker.name), MemoryLog.read
        broker.delete([1, 2, 5])

        def late(_: MemoryLog, *__: object) -> Iterator[Records]:
            log.trim(4)
            yield from read(log, 3, 4)
            log.trim(6)
            yield from read(log, 5, 6)
            log.trim(9)
            yield from read(log, 8, 8)
            log.trim(10)

        monkeypatch.setattr(MemoryLog, "read", late)
        found = [event for events in recorder.read(begun, end) for event in events]
        assert [event.gap or event.sequence for event in found] == [(1, 2), (5, 5), (3, 3), 4, 6, (7, 9)]

    @pytest.mark.parametrize("told_first", [False, True])
    def test_records_on_other_topics_that_are_removed_after_they_were_read_are_no_gap(
        self, site: DiscoverySetup, told_first: bool
    ) -> None:
        recorder = site.make()
        recorder.open()
        begun, broker = recorder.initial_offset("earliest"), MemoryBroker.get(recorder.image()[-1].origin)
        log, told = MemoryLogs(broker.name).log(broker.name), 1 if told_first else 6
        for n in range(1, 7):
            if n == told:
                recorder.announce(SourceKey("a", 1), b"one", 30.0)
            else:
                log.append(MessageBatch.of(["other"], [b""]))
        reading, found = recorder.read(begun, recorder.latest_offset(begun)), list[DiscoveryEvent]()
        while not found:
            found += next(reading)
        log.trim(6)
        found += [event for events in reading for event in events]
        assert [event.gap or event.sequence for event in found] == [told]


# --- memory ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def memory_site() -> Iterator[DiscoverySetup]:
    registry = MemorySources.get(uuid4().hex)
    yield DiscoverySetup(
        make=lambda: MemoryDiscovery(registry.name),
        ttl=30.0,
        long_ttl=30.0,
        die=lambda bridge: bridge.close(),
        lose=registry.lose,
        clock=registry.advance,
    )
    MemorySources.forget(registry.name)


def die(bridge: DiscoveryBridge) -> None:
    """What is left when the process of a bridge is gone: nobody renews."""
    assert isinstance(bridge, MalamuteDiscovery | NatsDiscovery)
    bridge.leases.stop()
    bridge.close()


# --- Malamute --------------------------------------------------------------------------------------------------------

TTL = 600.0
STEP = TTL / 12  #: of the clock; a third of the time to live is the pace of renewals, a half makes SUSPECT


class Times:
    """The clock of the engine that waits for renewals, and of those who renew."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock, self.renewing = Clock(), 0
        for module in (engine, lease_keeper):
            monkeypatch.setattr(module, "time", self.clock)
        keep = lease_keeper.LeaseKeeper._renew_one

        def renew(keeper: lease_keeper.LeaseKeeper, one: lease_keeper.Lease) -> None:
            self.renewing += 1
            keep(keeper, one)
            self.renewing -= 1

        monkeypatch.setattr(lease_keeper.LeaseKeeper, "_renew_one", renew)

    def let_pass(self, seconds: float, events: MalamuteLogs) -> None:
        """Step by step: whoever is due has renewed, and then the engine looks."""
        end = self.clock.monotonic() + seconds
        while self.clock.monotonic() < end:
            self.clock.ahead += STEP
            eventually(self._renewed, "all that is due is renewed")
            events.log(EVENTS).bounds()

    def _renewed(self) -> bool:
        for keeper in list(lease_keeper._keepers.values()):
            with keeper._changed:
                keeper._changed.notify_all()
                if any(one.due <= self.clock.monotonic() for one in keeper.sources.values()):
                    return False
        return not self.renewing


@pytest.fixture
def malamute_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DiscoverySetup]:
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
        lease_keeper.clear()


# --- NATS ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def nats_site(nats_server: NatsServer) -> Iterator[DiscoverySetup]:
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

    yield DiscoverySetup(make=make, ttl=2.0, long_ttl=30.0, die=die, lose=lose, streams=streams)
    lease_keeper.clear()
    POOL.clear()
