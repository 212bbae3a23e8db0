"""The bridge to NATS JetStream: publishes messages, reads streams as record logs, finds sources.

``protocol`` is pure (the bytes of the NATS protocol), ``connection`` drives sockets by it, ``jetstream`` makes requests
to the JetStream API; ``publish``, ``read``, ``ledger`` and ``discovery`` implement the contracts of
:mod:`mama_spark.contracts.bridge`, :mod:`mama_spark.contracts.record_log` and :mod:`mama_spark.contracts.batch_ledger`;
``server`` starts a nats-server for ``mama serve``.

Imports are late: the command ``mama`` looks here for its subcommands.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mama_spark.lazy_names import lazy

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from nats.aio.client import Client

    from mama_spark.options import SinkOptions, TransportOptions

    from .discovery.bridge import NatsDiscovery
    from .key_rows import KeyCodec
    from .ledger import NatsBatchLedger
    from .publish.attached import AttachedBridge
    from .publish.bridge import NatsBridge
    from .read.logs import NatsLogs
    from .settings import NatsSettings

__all__ = [
    "AttachedBridge",
    "NatsBridge",
    "NatsSettings",
    "attach",
    "batch_ledger",
    "check_transport",
    "discovery_bridge",
    "key_codec",
    "log_bridge",
    "publisher_bridge",
]


def publisher_bridge(o: SinkOptions) -> NatsBridge:
    from .publish.bridge import NatsBridge
    from .settings import NatsSettings

    return NatsBridge(NatsSettings.from_options(o))


def attach(context: object, loop: AbstractEventLoop | None = None, client: Client | None = None) -> NatsBridge:
    from .publish.attached import AttachedBridge

    return AttachedBridge.attach(context, loop=loop, client=client)


def key_codec(o: SinkOptions) -> KeyCodec:
    from .key_rows import Bucket, KeyCodec
    from .settings import NatsSettings

    settings = NatsSettings.from_options(o)
    bucket = Bucket(str(o.bucket), settings, timeout=o.retry_deadline, wait=o.on_unavailable == "wait")
    return KeyCodec(lambda: bucket.subject_head, o.ttl)


def batch_ledger(o: SinkOptions) -> NatsBatchLedger:
    from .ledger import NatsBatchLedger
    from .settings import NatsSettings

    return NatsBatchLedger(NatsSettings.from_options(o), timeout=max(o.retry_deadline, 2 * o.wait_timeout))


def discovery_bridge(o: TransportOptions) -> NatsDiscovery:
    from mama_spark.options import DiscoveryOptions

    from .discovery.bridge import NatsDiscovery
    from .discovery.layout import DiscoveryLayout
    from .settings import NatsSettings

    wanted = not isinstance(o, DiscoveryOptions) or o.advisories  # readers work without them
    layout = DiscoveryLayout(
        o.discovery_topic, o.sources_stream, o.events_stream, o.advisories_stream if wanted else None
    )
    return NatsDiscovery(NatsSettings.from_options(o), layout)


def log_bridge(o: TransportOptions, timeout: float) -> NatsLogs:
    from .read.logs import NatsLogs
    from .settings import NatsSettings

    return NatsLogs(NatsSettings.from_options(o), timeout=timeout)


def check_transport(o: SinkOptions, topics: list[str]) -> list[tuple[bool, str]]:
    from .preflight import check_server
    from .settings import NatsSettings

    return check_server(NatsSettings.from_options(o), topics)


if not TYPE_CHECKING:
    __getattr__ = lazy(
        __name__, {"AttachedBridge": "publish.attached", "NatsBridge": "publish.bridge", "NatsSettings": "settings"}
    )
