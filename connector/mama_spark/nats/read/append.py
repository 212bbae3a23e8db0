"""Appends a few records to a stream, one in flight at a time, so that they are stored in order."""

from __future__ import annotations

from dataclasses import replace

from mama_spark.contracts.message import MessageBatch
from mama_spark.options.window import RetryPolicy, WindowConfig
from mama_spark.publishing.window.blocking_sender import BlockingSender

from ..publish.bridge import NatsBridge
from ..settings import NatsSettings

RETRY_DELAYS = (0.1,)  #: seconds before each resend; the last value repeats


def append(settings: NatsSettings, stream: str, batch: MessageBatch, timeout: float) -> int | None:
    """Append a batch; returns the sequence of the last record, None for an empty batch.

    A record that may have been stored is resent only if it has an id.

    :param timeout: seconds for each record
    :raises ConfigError: there is no such stream, or it does not take one of the topics
    :raises PublishError: one was rejected, or its outcome is not known; those before it are stored
    :raises Unavailable: one was not stored within ``timeout`` seconds; those before it are
    """
    dedup = batch.ids is not None
    bridge = NatsBridge(
        replace(settings, stream=stream, create_stream=False, ack_mode="message", ordered=False, dedup=dedup)
    )
    bridge.open()
    try:
        policy = WindowConfig(
            max_in_flight=1,
            wait_timeout=bridge.settings.wait_timeout,
            retry=RetryPolicy(None, RETRY_DELAYS, timeout),
            resend_uncertain=dedup,
        )
        sender, last = BlockingSender(bridge, policy), None
        for row in range(len(batch)):
            last = int(sender.store(batch.slice(row, 1), timeout).sequence[0])
        return last
    finally:
        bridge.close()
