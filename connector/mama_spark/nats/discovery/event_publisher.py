"""Publishes events of sources to the stream of events, in order, many in flight."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from mama_spark.contracts.message import MessageBatch
from mama_spark.options.window import RetryPolicy, WindowConfig
from mama_spark.publishing.window.blocking_sender import BlockingSender

from ..publish.bridge import NatsBridge
from ..settings import NatsSettings

_MAX_IN_FLIGHT = 4096
_RETRY_DELAYS = (0.1,)


class EventPublisher:
    """One open bridge for events; for one thread. By their ids, the server drops resent events that were stored."""

    def __init__(self, settings: NatsSettings) -> None:
        self._timeout = settings.retry_deadline
        wanted = replace(settings, stream=None, create_stream=False, ack_mode="message", dedup=True, ordered=False)
        self._bridge = NatsBridge(wanted)
        policy = WindowConfig(
            max_in_flight=_MAX_IN_FLIGHT,
            refill_allowed_at=_MAX_IN_FLIGHT // 2,
            wait_timeout=settings.wait_timeout,
            retry=RetryPolicy(None, _RETRY_DELAYS, self._timeout),
            ordered=True,
        )
        self._sender = BlockingSender(self._bridge, policy)
        self._bridge.open()

    def close(self) -> None:
        """Never raises."""
        self._bridge.close()

    def publish(self, subject: str, events: Sequence[bytes], ids: Sequence[str]) -> None:
        """Publish events, and wait until all are stored.

        :raises ConfigError: no stream takes the subject
        :raises PublishError: one was rejected
        :raises Unavailable: not all were acknowledged in time
        """
        until = time.monotonic() + self._timeout
        for first in range(0, len(events), _MAX_IN_FLIGHT):
            rows = slice(first, first + _MAX_IN_FLIGHT)
            payloads = pa.array(events[rows], pa.binary())
            topics = pa.DictionaryArray.from_arrays(np.zeros(len(payloads), np.int32), pa.array([subject]))
            messages = MessageBatch(topics, payloads, ids=pa.array(ids[rows], pa.string()))
            self._sender.store(messages, until - time.monotonic())
