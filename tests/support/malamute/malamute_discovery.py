"""Discovery over a real Malamute broker: bridges, processes that announce, and clients that know nothing of us."""

from __future__ import annotations

from pathlib import Path
from typing import Self, TypeVar

from mama_spark.contracts.bridge import SourceKey
from mama_spark.malamute.bridge.discovery.bridge import MalamuteDiscovery
from mama_spark.malamute.bridge.discovery.client import DiscoveryClient, DiscoverySettings
from mama_spark.malamute.bridge.discovery.codec import EVENT, EVENTS, DiscoveryMessage
from mama_spark.malamute.bridge.logs import MalamuteLogs
from mama_spark.malamute.bridge.settings import MalamuteSettings
from mama_spark.malamute.client.connection_settings import ConnectionSettings
from mama_spark.malamute.protocol.extensions import Extension
from mama_spark.mama.messages.event_records import EventRecord, encode_event
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.source_records import SourceRecord, encode_source

from tests.support.malamute.broker_process import BrokerHere, BrokerProcess

LASTING = 600.0  #: seconds; nobody waits for so long
B = TypeVar("B", BrokerHere, BrokerProcess)


def discovering(kind: type[B], folder: Path) -> B:
    """A broker that keeps its events."""
    return kind(folder, settings=f'[events]\nfolder = "{folder / "events"}"\n')


def discovering_broker(folder: Path) -> BrokerProcess:
    """``mama broker`` that keeps its events."""
    return discovering(BrokerProcess, folder)


def discovery_of(url: str, name: str = "one", outage_timeout: float = 60.0) -> MalamuteDiscovery:
    """Not open. Another name is another announcer, and so a process of its own to everybody else."""
    return MalamuteDiscovery(DiscoverySettings(ConnectionSettings((url,)), outage_timeout=outage_timeout, name=name))


def end_process_of(bridge: MalamuteDiscovery) -> None:
    """What others see when a process is gone: nobody renews."""
    bridge.leases.stop()


def forget(url: str, before: int) -> None:
    """Let the broker forget what it told before this number."""
    with MalamuteLogs(MalamuteSettings(ConnectionSettings((url,))), 60.0) as logs:
        logs.log(EVENTS).trim(before)


class SourceAnnouncers:
    """Sources of one process that say what the test wants."""

    def __init__(self, url: str) -> None:
        self.bridge = discovery_of(url, "desks")

    def __enter__(self) -> Self:
        self.bridge.open()
        return self

    def __exit__(self, *_: object) -> None:
        end_process_of(self.bridge)
        self.bridge.close()

    def say(self, record: SourceRecord | bytes, source: SourceKey | None = None, ttl: float = LASTING) -> None:
        """A source record; bytes are anybody's."""
        if isinstance(record, bytes):
            assert source is not None
            self.bridge.announce(source, record, ttl)
        else:
            self.bridge.announce(source or SourceKey(*record.key), encode(encode_source(record)), ttl)

    def tell(self, source: SourceKey, event: EventRecord | bytes) -> int:
        """An event of a publisher; its number."""
        content = event if isinstance(event, bytes) else encode(encode_event(event))
        client = DiscoveryClient(self.bridge.settings)
        client.open()
        try:
            (run,) = client.store([DiscoveryMessage(self.bridge.codec.subject(EVENT, source), content, Extension())])
        finally:
            client.close()
        return run.first

    def fall_silent(self) -> None:
        """Renew nothing any more."""
        end_process_of(self.bridge)
