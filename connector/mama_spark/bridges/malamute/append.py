"""A few messages into a stream, in order."""

from __future__ import annotations

import time
from dataclasses import replace

from mama_spark.bridge import EventKind, PollResult
from mama_spark.errors import (
    AckTimeout,
    ConfigError,
    OutcomeUnknown,
    PublishError,
    Rejected,
    Unavailable,
)
from mama_spark.malamute.client.connection_settings import FEATURES
from mama_spark.message import MessageBatch

from .bridge import MalamuteBridge
from .settings import MalamuteSettings


def append(settings: MalamuteSettings, stream: str, batch: MessageBatch, timeout: float) -> int | None:
    """Sequence of the last; None for an empty batch.

    :raises PublishError: one was refused, or nobody knows what became of it; those before it are stored
    :raises Unavailable: nobody took them within ``timeout`` seconds
    """
    if not len(batch):
        return None
    link = replace(settings.link, features=FEATURES, high_water=type(settings.link)().high_water)
    bridge = MalamuteBridge(replace(settings, link=link, stream=stream, dedup=batch.ids is not None))
    bridge.open()
    try:
        bad = dict(bridge.prepare(batch).rejected)
        first = min(bad, default=len(batch))
        last = _store(bridge, batch.slice(0, first), timeout) if first else None
        if bad:
            raise bad[first]
        return last
    finally:
        bridge.close()


def _store(bridge: MalamuteBridge, batch: MessageBatch, timeout: float) -> int:
    until = time.monotonic() + timeout
    sent, last, open_tokens = 0, 0, len(batch)
    while open_tokens:
        left = until - time.monotonic()
        if left <= 0:
            raise AckTimeout(f"no acknowledgement within {timeout:g} s") if sent else Unavailable("nobody takes it")
        sent += bridge.send(batch.slice(sent, len(batch) - sent), sent)
        polled = bridge.poll(min(left, 0.1) if sent < len(batch) else left)
        _raise(polled)
        for acks in polled.acks:
            if acks.sequences is None:
                raise Rejected("the stream is not stored")
            open_tokens -= len(acks.tokens)
            here = acks.tokens == len(batch) - 1
            if here.any():
                last = int(acks.sequences[here][0])
    return last


def _raise(polled: PollResult) -> None:
    for refusals in polled.refusals:
        raise refusals.error
    for event in polled.events:
        if event.error is not None:
            raise event.error if isinstance(event.error, PublishError) else ConfigError(event.info)
        if event.kind is EventKind.DISCONNECTED:
            raise OutcomeUnknown(event.info)
