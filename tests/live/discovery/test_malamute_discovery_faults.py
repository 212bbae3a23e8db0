"""Discovery over ``mama broker``: processes that die, a broker that dies, and clients that know nothing of us."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import zmq
from mama_spark.contracts.bridge import SourceKey
from mama_spark.contracts.errors import ConfigError, DataLost, MamaError
from mama_spark.discovery import lease_keeper
from mama_spark.malamute.bridge.discovery import client as discovery_client
from mama_spark.malamute.bridge.discovery.bridge import MalamuteDiscovery, MalamuteLeases
from mama_spark.malamute.bridge.discovery.client import DiscoverySettings
from mama_spark.malamute.bridge.discovery.codec import DiscoveryCodec, DiscoveryMessage
from mama_spark.malamute.client.calls import CallFailed
from mama_spark.malamute.client.client import MalamuteClient
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.malamute.protocol import commands
from mama_spark.malamute.protocol.extensions import AckRun, Feature
from mama_spark.testing.waiting import eventually

from tests.support.discovery_follower import DESK, EVENT, GAP, IMAGE_END, OFFLINE, RECORD, SUSPECT, TWIN, Follower, has
from tests.support.malamute.broker_process import BrokerHere, BrokerProcess
from tests.support.malamute.malamute_discovery import (
    LASTING,
    discovering,
    discovery_of,
    end_process_of,
    forget,
)
from tests.support.malamute.mlp import Peer
from tests.support.malamute.plain_broker import PlainBroker

Opened = Callable[..., MalamuteDiscovery]


@pytest.fixture
def broker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[BrokerHere | BrokerProcess]:
    """In this process, unless the test says otherwise."""
    with discovering(getattr(request, "param", BrokerHere), tmp_path) as running:
        yield running
        lease_keeper.clear()


@pytest.fixture
def opened(broker: BrokerHere | BrokerProcess) -> Iterator[Opened]:
    bridges: list[MalamuteDiscovery] = []

    def make(name: str = "one") -> MalamuteDiscovery:
        bridges.append(discovery_of(broker.url, name))
        bridges[-1].open()
        return bridges[-1]

    yield make
    for bridge in bridges:
        bridge.close()


@pytest.mark.parametrize("broker", [BrokerProcess], ids=["process"], indirect=True)
def test_a_broker_that_is_killed_and_comes_back_keeps_those_who_live_and_gives_up_those_who_do_not(
    broker: BrokerProcess, opened: Opened
) -> None:
    """After its restart every time to live begins anew."""
    living, dying = opened("living"), opened("dying")
    reader = opened("reader")
    follower = Follower(reader, reader.initial_offset("earliest"))
    living.announce(TWIN, b"twin", 20.0)
    dying.announce(DESK, b"r", 2.0)
    broker.kill()
    end_process_of(dying)
    broker.start()
    follower.until(has(OFFLINE))
    assert follower.kinds() == [RECORD, SUSPECT, OFFLINE]
    living.announce(DESK, b"again", LASTING)
    found = follower.until(lambda found: any(c.payload == b"again" for c in found))
    assert OFFLINE not in follower.kinds(TWIN)
    sequences = [c.sequence or 0 for c in found]
    assert sequences == sorted(set(sequences)), "nothing twice"


def test_a_source_is_renewed_over_another_connection_when_the_thread_of_the_first_has_ended(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where it had to connect again, and no file descriptor was left."""

    def fails() -> bool:
        raise zmq.ZMQError(errno.EMFILE)

    bridge = opened()
    bridge.announce(DESK, b"r", LASTING)
    store = bridge.leases.store
    assert isinstance(store, MalamuteLeases)
    first = store.client.connection
    monkeypatch.setattr(first, "_round", fails)
    eventually(lambda: first.fatal, "its thread has ended")
    assert store.renew(lease_keeper.Announced(DESK, b"r", LASTING))


def test_a_source_is_announced_again_once_when_two_do_it_at_the_same_time(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second one begins between the two messages of the first."""
    follower, bridges = Follower(opened("reader")), [opened("one"), opened("other")]
    for bridge in bridges:
        bridge.announce(DESK, b"r", 3.0)
    one, other = (bridge.leases for bridge in bridges)
    again = lease_keeper.Announced(DESK, b"r", LASTING)
    with one._requests, other._requests:
        follower.until(lambda found: follower.kinds()[-1:] == [OFFLINE])
        assert isinstance(one.store, MalamuteLeases)
        before, client = len(follower.kinds()), one.store.client
        put, first = client._put, iter([True])

        def interrupted(messages: Sequence[DiscoveryMessage]) -> list[AckRun]:
            if not next(first, False):
                return put(messages)
            found = put(messages[:1])
            other.store.announce(again)
            return found + put(messages[1:])

        monkeypatch.setattr(client, "_put", interrupted)
        one.store.announce(again)
        follower.until(lambda found: len(follower.kinds()) > before)
        assert follower.kinds()[before:] == [RECORD]


def test_whoever_knows_the_subjects_and_headers_can_announce_with_a_client(broker: BrokerHere, opened: Opened) -> None:
    """Only a client that announced the feature may, and nothing that looks like the broker's own word."""
    follower = Follower(opened())
    ours = Feature.ACKS | Feature.HEADERS | Feature.DISCOVERY
    with MalamuteClient(broker.url, features=ours) as stranger:
        stranger.write("_MAMA_EVENTS")
        for part, ms in (("rec", "1000"), ("warn", "500")):
            stranger.send(f"_MAMA_SOURCE_DISCOVERY.{part}.-.desk", b"hello", headers={"Mama-Ttl": [ms]})
        stranger.sync()
        follower.until(has(OFFLINE, SourceKey("desk", None)))
        stranger.send("SUBSCRIBED.prices", b"lie")
        with pytest.raises(MamaError):
            stranger.sync()
    with MalamuteClient(broker.url) as plain, pytest.raises(CallFailed, match="the stream is the broker's own"):
        plain.write("_MAMA_EVENTS")
    follower.step()
    assert [c.kind for c in follower.found][:3] == [RECORD, SUSPECT, OFFLINE]


def test_the_first_client_of_an_events_stream_makes_it(tmp_path: Path) -> None:
    """The configuration names it by no exact pattern, and queries make no stream."""
    with BrokerHere(tmp_path, ".*", f'[events]\nfolder = "{tmp_path / "events"}"\n') as broker:
        bridge = MalamuteDiscovery(DiscoverySettings(ConnectionSettings((broker.url,)), DiscoveryCodec(events="mine")))
        bridge.open()
        try:
            begin = bridge.initial_offset("earliest")
            bridge.publish_events(DESK, [b"one"], ["1"])
            found = [event.payload for some in bridge.read(begin, bridge.latest_offset(begin)) for event in some]
        finally:
            bridge.close()
        assert b"one" in found


def test_those_who_read_or_announce_are_not_told_of(opened: Opened) -> None:
    """Else a reader would never come to an end."""
    follower = Follower(opened("reader"), readers=True)
    other = opened("other")
    at = other.latest_offset(other.initial_offset("image"))
    other.announce(DESK, b"r", LASTING)
    other.close()
    follower.until(has(RECORD))
    follower.step()
    assert [c.kind for c in follower.found] == [RECORD]
    again = opened("again")
    there = again.latest_offset(at)
    assert again.latest_offset(there) == there
    follower.step()
    assert follower.bridge.latest_offset(follower.at) == follower.at


def test_a_stream_that_was_deleted_and_made_again_is_a_gap_and_a_new_image(broker: BrokerHere, opened: Opened) -> None:
    one = opened("process")
    reader = opened("reader")
    follower = Follower(reader, reader.initial_offset("image"))
    one.announce(DESK, b"r", LASTING)
    follower.until(has(IMAGE_END, None))
    planned = follower.at
    one.announce(DESK, b"changed", LASTING)
    follower.until(lambda found: found[-1].payload == b"changed")
    read = follower.at
    end_process_of(one)
    broker.stop()
    shutil.rmtree(broker.folder / "events")
    broker.start()
    one.announce(TWIN, b"new", LASTING)
    before = len(follower.found)
    found = follower.until(lambda found: has(IMAGE_END, None)(found[before:]))[before:]
    assert [c.kind for c in found] == [GAP, RECORD, IMAGE_END]
    assert "deleted and made again" in (found[0].info or "")
    again = [c for block in follower.bridge.read(planned, read) for c in block]
    assert [c.kind for c in again] == [GAP], "and not what stands at these numbers now"
    assert again[0].gap == (planned["next"], read["next"] - 1)
    one.announce(DESK, b"again", LASTING)
    follower.until(lambda found: found[-1].payload == b"again")


def test_an_image_that_the_broker_has_forgotten_is_no_silence(broker: BrokerHere, opened: Opened) -> None:
    reader = opened()
    begin = reader.initial_offset("image")
    end = reader.latest_offset(begin)
    reader.publish_events(DESK, [b"e"], ["e"])
    forget(broker.url, reader._bounds().last + 1)
    with pytest.raises(DataLost, match="not in _MAMA_EVENTS any more"):
        list(reader.read(begin, end))


@pytest.mark.spec("SD-18")
def test_a_broker_that_keeps_no_events_has_no_discovery(tmp_path: Path) -> None:
    """NOT_IMPLEMENTED, and what to do."""
    needed = r"NOT_IMPLEMENTED: .* the table \[events\]"
    with BrokerHere(tmp_path) as broker, pytest.raises(ConfigError, match=needed):
        discovery_of(broker.url).open()


@pytest.mark.spec("SD-18", "SD-31")
def test_a_broker_as_the_original_has_no_discovery() -> None:
    with PlainBroker() as broker, pytest.raises(ConfigError, match=r"NOT_IMPLEMENTED: .* needs mama broker"):
        discovery_of(broker.url).open()


def test_many_sources_are_one_image_and_many_events_come_in_order(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than one answer of the broker holds."""
    monkeypatch.setattr(discovery_client, "FETCH_ROWS", 200)
    one, reader = opened("one"), opened("reader")
    codec, keys = one.codec, [SourceKey(f"s{i}", i) for i in range(500)]
    one._client.store([codec.record(key, b"r%d" % (key.id or 0), LASTING, 0) for key in keys])
    *sources, _ = reader.image()
    assert [c.source for c in sources] == keys
    at = reader.latest_offset(reader.initial_offset("image"))
    one.publish_events(DESK, [b"%d" % i for i in range(500)], [f"e{i}" for i in range(500)])
    changes = [c for block in reader.read(at, reader.latest_offset(at)) for c in block]
    assert [c.payload for c in changes] == [b"%d" % i for i in range(500)]


def test_what_strangers_write_is_told_or_left_out_and_stops_nobody(broker: BrokerHere, opened: Opened) -> None:
    follower = Follower(opened())
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    peer = Peer(context, broker.url).open(features=Feature.DISCOVERY | Feature.HEADERS)
    assert isinstance(peer.ask(commands.StreamWrite(b"_MAMA_EVENTS")), commands.Ok)
    for subject in (b"_", b"_MAMA_SOURCE_DISCOVERY.", b"_MAMA_SOURCE_DISCOVERY.rec", b"_MAMA_SOURCE_DISCOVERY.rec.x.y",
                    b"_MAMA_SOURCE_DISCOVERY.rec.\xff.\xfe", b"_MAMA_SOURCE_DISCOVERY.nonsense.7.desk"):  # fmt: skip
        peer.send(commands.StreamSend(subject, [b"\xff", b"\x00"]))
    peer.send(commands.StreamSend(b"_MAMA_SOURCE_DISCOVERY.event.7.desk", [b"\xff"]))
    found = follower.until(has(EVENT))
    assert [c.payload for c in found] == [b"\xff"]
    context.destroy(0)
