"""``mamadiscovery`` of peers of OpenMAMA's naming service, from the log of a recorder."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from mama_spark.contracts.bridge import DiscoveryEvent
from mama_spark.contracts.errors import ConfigError
from mama_spark.contracts.message import MessageBatch
from mama_spark.mama.discovery.discovery_rows import DiscoveryRow
from mama_spark.mama.messages.source_records import DEFAULT_FIELDS
from mama_spark.memory import MemoryBroker
from mama_spark.memory.logs import MemoryLogs
from mama_spark.openmama.discovery import UNSEEN, RecordedPeers
from mama_spark.openmama.wire.naming import CONNECT, NamingFrame, PeerPresence, encode_naming
from mama_spark.openmama.wire.records import MamaRecord, MamaRecordKind
from mama_spark.options import DiscoveryOptions
from mama_spark.spark.discovery.data_source import DiscoveryJob

pytestmark = pytest.mark.spec("OW31")
FEED = NamingFrame(CONNECT, "feed", "lab1", 17, "8e2c0000-0000-4000-8000-000000000001", "tcp://10.0.0.1:4001")
OTHER = NamingFrame(CONNECT, "feed", "lab1", 18, "8e2c0000-0001-4000-8000-000000000002", "tcp://10.0.0.1:4002")
STARTED, STOPPED = MamaRecordKind.STARTED, MamaRecordKind.STOPPED
Told = tuple[NamingFrame, PeerPresence] | MamaRecordKind


def stored(told: list[Told]) -> MessageBatch:
    topics, payloads = [], []
    for n, one in enumerate(told):
        if isinstance(one, MamaRecordKind):
            record = MamaRecord(one, "mama._recorder.r", 1_000_000 * n)
        else:
            frame, state = one
            record = MamaRecord(
                MamaRecordKind.PEER, "mama._peers", 1_000_000 * n, encode_naming(frame), "oz", cause=state
            )
        topics.append(record.topic)
        payloads.append(record.encode())
    return MessageBatch.of([*topics, "mama.OM.IBM"], [*payloads, b"no record of a peer"])


class Log:
    def __init__(self) -> None:
        self.name = uuid4().hex
        options = DiscoveryOptions.parse({"url": f"memory://{self.name}", "stream": self.name, "omnm": "true"})
        self.reader = DiscoveryJob(options, DEFAULT_FIELDS).reader
        self.discovery = RecordedPeers(MemoryLogs(self.name), None)

    def put(self, *told: Told) -> None:
        MemoryLogs(self.name).log(self.name).append(stored(list(told)))

    def image(self) -> dict[int | None, DiscoveryRow]:
        return {row.source_id: row for row in self.reader.image(self.discovery.image())}

    def changes(self) -> list[DiscoveryRow]:
        start = self.discovery.initial_offset("earliest")
        events: list[DiscoveryEvent] = []
        for some in self.discovery.read(start, self.discovery.latest_offset(start)):
            events += some
        return [self.reader.row(event) for event in events]


@pytest.fixture
def log() -> Iterator[Log]:
    one = Log()
    yield one
    MemoryBroker.forget(one.name)


def test_peers_come_fall_silent_and_go(log: Log) -> None:
    log.put(STARTED, (FEED, PeerPresence.ONLINE), (OTHER, PeerPresence.ONLINE), (FEED, PeerPresence.SUSPECT))
    log.put((OTHER, PeerPresence.OFFLINE), STOPPED)
    rows = log.changes()
    assert [(row.kind, row.event, row.source_state, row.source_data_state) for row in rows] == [
        ("restart", "recorder_started", None, None),
        ("source", "online", "ONLINE", "OK"),
        ("source", "online", "ONLINE", "OK"),
        ("source", "suspect", "ONLINE", "SUSPECT"),
        ("source", "offline", "OFFLINE", "SUSPECT"),
        ("restart", "recorder_stopped", None, None),
    ]
    assert rows[1].source_name == "feed@lab1"
    assert rows[1].capabilities == {
        "program": "feed", "host": "lab1", "pid": "17", "uuid": FEED.uuid, "endpoint": "tcp://10.0.0.1:4001"
    }  # fmt: skip
    assert (rows[2].bridge, rows[2].event_time, rows[2].sequence) == ("openmama", 2000, 3)


def test_the_image_has_the_last_state_of_each_peer(log: Log) -> None:
    log.put(STARTED, (FEED, PeerPresence.ONLINE), (OTHER, PeerPresence.ONLINE), (OTHER, PeerPresence.OFFLINE))
    assert sorted(row.event or "" for row in log.image().values()) == ["offline", "online"]


def test_a_peer_that_nobody_saw_go_is_offline_in_the_image_of_the_next_recorder(log: Log) -> None:
    log.put(STARTED, (FEED, PeerPresence.ONLINE), (OTHER, PeerPresence.ONLINE), STARTED)
    log.put((OTHER, PeerPresence.ONLINE))
    found = {row.capabilities["pid"]: row for row in log.image().values() if row.capabilities}
    assert (found["17"].event, found["17"].info) == ("offline", UNSEEN)
    assert (found["18"].event, found["18"].info) == ("online", None)


def test_peers_are_announced_by_the_naming_service_alone(log: Log) -> None:
    with pytest.raises(ConfigError, match="naming service"):
        log.discovery.publish_events(log.discovery.image()[0].source, [], [])  # type: ignore[arg-type]
