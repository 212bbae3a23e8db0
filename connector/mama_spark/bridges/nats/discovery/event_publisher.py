"""Appends many events to the stream of events, in order, in bulk."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from mama_spark.errors import Unavailable
from mama_spark.message import Bools, MessageBatch

from ..publish.bridge import NatsBridge
from ..settings import NatsSettings

#: Events on their way together. What fails is sent again with all that follows it in here, in order; ids drop repeats.
_TOGETHER = 4096
_POLL = 0.1


class EventPublisher:
    """One open bridge for events; from one thread."""

    def __init__(self, settings: NatsSettings) -> None:
        self._timeout, self._answer = settings.retry_deadline, settings.wait_timeout
        wanted = replace(settings, stream=None, create_stream=False, ack_mode="message", dedup=True, ordered=False)
        self._bridge = NatsBridge(wanted)
        self._token = 0
        self._bridge.open()

    def close(self) -> None:
        self._bridge.close()

    def tell(self, subject: str, events: Sequence[bytes], ids: Sequence[str]) -> None:
        """Store all.

        :raises ConfigError: no stream takes the subject
        :raises PublishError: refused for good
        :raises Unavailable: not acknowledged in time
        """
        until = time.monotonic() + self._timeout
        for first in range(0, len(events), _TOGETHER):
            rows = slice(first, first + _TOGETHER)
            payloads = pa.array(events[rows], pa.binary())
            topics = pa.DictionaryArray.from_arrays(np.zeros(len(payloads), np.int32), pa.array([subject]))
            self._store(MessageBatch(topics, payloads, ids=pa.array(ids[rows], pa.string())), until)

    def _store(self, batch: MessageBatch, until: float) -> None:
        while len(batch):
            prepared = self._bridge.prepare(batch)
            if prepared.bad:
                raise prepared.bad[0][1]
            answered, why = self._once(batch, until)
            if answered.all():
                return
            if time.monotonic() >= until:
                told = "" if why is None else f": {why}"
                raise Unavailable(f"events were not acknowledged within {self._timeout:g} s{told}") from why
            batch = batch.slice(int(np.argmin(answered)), len(batch))
            if why is not None:
                time.sleep(_POLL)

    def _once(self, batch: MessageBatch, until: float) -> tuple[Bools, Exception | None]:
        """Send everything and wait for the answers: which rows are stored, and a reason why others are not."""
        first, sent = self._token, 0
        answered = np.zeros(len(batch), np.bool_)
        limit = min(until, time.monotonic() + self._answer)
        while not answered.all() and time.monotonic() < limit:
            if sent < len(batch):
                sent += self._bridge.send(batch.slice(sent, len(batch) - sent), first + sent)
                self._token = first + sent
            polled = self._bridge.poll(_POLL, sent - int(answered.sum()) if sent == len(batch) else 1)
            for acks in polled.acks:
                mine = acks.tokens - first
                answered[mine[(mine >= 0) & (mine < len(batch))]] = True
            for refusals in polled.refusals:
                if (refusals.tokens >= first).any():
                    if not refusals.error.retryable:
                        raise refusals.error
                    return answered, refusals.error
            for event in polled.events:
                if event.error is not None:
                    raise Unavailable(event.info) from event.error
        return answered, None
