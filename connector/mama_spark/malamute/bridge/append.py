"""Appends a few messages to a stream, in order. Nothing is sent again: a resend could change the order."""

from __future__ import annotations

from dataclasses import replace

from mama_spark.contracts.errors import Rejected
from mama_spark.contracts.message import MessageBatch
from mama_spark.malamute.client.connection_settings import FEATURES, ConnectionSettings
from mama_spark.options.window import WindowConfig
from mama_spark.publishing.window.blocking_sender import BlockingSender

from .bridge import MalamuteBridge
from .settings import MalamuteSettings


def append(settings: MalamuteSettings, stream: str, batch: MessageBatch, timeout: float) -> int | None:
    """Sequence of the last; None for an empty batch.

    :raises PublishError: one was rejected, or its outcome is not known; those before it are stored
    :raises Unavailable: the broker did not take them within ``timeout`` seconds
    """
    if not len(batch):
        return None
    connection = replace(settings.connection, features=FEATURES, high_water=ConnectionSettings().high_water)
    bridge = MalamuteBridge(replace(settings, connection=connection, stream=stream, dedup=batch.ids is not None))
    bridge.open()
    try:
        rejected = dict(bridge.prepare(batch).rejected)
        first = min(rejected, default=len(batch))
        last = _store(bridge, batch.slice(0, first), timeout) if first else None
        if rejected:
            raise rejected[first]
        return last
    finally:
        bridge.close()


def _store(bridge: MalamuteBridge, batch: MessageBatch, timeout: float) -> int:
    policy = WindowConfig(max_in_flight=len(batch), wait_timeout=timeout, resend_uncertain=False)
    sequences = BlockingSender(bridge, policy).store(batch, timeout).sequence
    if (sequences < 0).any():
        raise Rejected("the stream is not stored")
    return int(sequences[-1])
