"""Appends a few records to a stream, in order."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from mama_spark.contracts.message import MessageBatch
from mama_spark.options.window_config import RetryPolicy, WindowConfig
from mama_spark.publishing.window.blocking_sender import BlockingSender

from ..publish.bridge import NatsBridge
from ..settings import NatsSettings

RETRY_DELAYS = (0.1,)  #: seconds before each resend; the last value repeats


class Appender:
    """Publishes through its own bridge, and waits until all records are stored. Not thread-safe.

    :param timeout: seconds for which a record is resent
    :param stream: stream that must take all records; None = found from the topics
    :param dedup: records have ids, by which the server drops resends of stored ones; without ids, a record that may be
        stored is not resent
    :param in_flight: maximum number of unanswered records
    :raises ConfigError: there is no such stream
    """

    def __init__(
        self, settings: NatsSettings, timeout: float, stream: str | None = None, *, dedup: bool, in_flight: int
    ) -> None:
        wanted = replace(settings, stream=stream, create_stream=False, ack_mode="message", ordered=False, dedup=dedup)
        self._bridge = NatsBridge(wanted)
        policy = WindowConfig(
            max_in_flight=in_flight,
            refill_allowed_at=in_flight // 2,
            wait_timeout=settings.wait_timeout,
            retry=RetryPolicy(None, RETRY_DELAYS, timeout),
            resend_uncertain=dedup,
            ordered=in_flight > 1,
        )
        self.sender = BlockingSender(self._bridge, policy)
        self._bridge.open()

    def close(self) -> None:
        """Never raises."""
        self._bridge.close()


def append(settings: NatsSettings, stream: str, batch: MessageBatch, timeout: float) -> int | None:
    """Append a batch, one record in flight at a time; returns the sequence of the last record, None for an empty batch.

    :param timeout: seconds for each record
    :raises ConfigError: there is no such stream, or it does not take one of the topics
    :raises PublishError: a record was rejected, or has an unknown outcome; those before it are stored
    :raises Unavailable: a record was not stored within ``timeout`` seconds; those before it are
    """
    with contextlib.closing(Appender(settings, timeout, stream, dedup=batch.ids is not None, in_flight=1)) as appender:
        last = None
        for row in range(len(batch)):
            last = int(appender.sender.store(batch.slice(row, 1), timeout).sequence[0])
        return last
