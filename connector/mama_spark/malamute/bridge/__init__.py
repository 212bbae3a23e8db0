"""The bridge to Malamute brokers: publishing, stored streams as logs, and source discovery."""

from dataclasses import replace

from mama_spark.options import ReadOptions, SinkOptions, SubscribeOptions, TransportOptions

from .batch_ledger import MalamuteBatchLedger
from .bridge import MalamuteBridge
from .discovery.bridge import MalamuteDiscovery
from .discovery.client import DiscoverySettings
from .discovery.codec import EVENTS, DiscoveryCodec
from .logs import MalamuteLogs
from .settings import MalamuteSettings, stream_of

__all__ = [
    "MalamuteBatchLedger",
    "MalamuteBridge",
    "MalamuteDiscovery",
    "MalamuteLogs",
    "MalamuteSettings",
    "batch_ledger",
    "check_transport",
    "discovery_bridge",
    "log_bridge",
    "publisher_bridge",
]


def publisher_bridge(o: SinkOptions) -> MalamuteBridge:
    return MalamuteBridge(MalamuteSettings.from_options(o))


def batch_ledger(o: SinkOptions) -> MalamuteBatchLedger:
    settings, timeout = MalamuteSettings.from_options(o), max(o.retry_deadline, 2 * o.wait_timeout)
    return MalamuteBatchLedger(settings, o.batches_stream, timeout)


def discovery_bridge(o: TransportOptions) -> MalamuteDiscovery:
    events = EVENTS if o.events_stream == TransportOptions.events_stream else o.events_stream
    outage_timeout = (
        o.wait_timeout if isinstance(o, ReadOptions) else o.retry_deadline if isinstance(o, SinkOptions) else 30.0
    )
    codec = DiscoveryCodec(o.discovery_topic, events, o.sources_stream)
    return MalamuteDiscovery(DiscoverySettings(MalamuteSettings.from_options(o).connection, codec, outage_timeout))


def check_transport(o: SinkOptions, topics: list[str]) -> list[tuple[bool, str]]:
    from .preflight import check_server

    return check_server(MalamuteSettings.from_options(o), topics)


def log_bridge(o: TransportOptions, timeout: float) -> MalamuteLogs:
    stream, pattern = (o.stream, o.pattern) if isinstance(o, SubscribeOptions) else (None, None)
    return MalamuteLogs(replace(MalamuteSettings.from_options(o), stream=stream or stream_of(o.url)), timeout, pattern)
