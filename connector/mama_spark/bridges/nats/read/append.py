"""A few records into a stream, one on its way at a time, so that they stand there in order."""

from __future__ import annotations

import time
from dataclasses import replace

from mama_spark.bridge import EventKind
from mama_spark.errors import AckTimeout, OutcomeUnknown, PublishError, Unavailable
from mama_spark.message import MessageBatch

from ..publish.bridge import NatsBridge
from ..settings import NatsSettings

_PAUSE = 0.1


def append(settings: NatsSettings, stream: str, batch: MessageBatch, timeout: float) -> int | None:
    """Sequence of the last; None for an empty batch.

    What may have been stored is sent again only if it has an id.

    :raises ConfigError: there is no such stream, or it does not take one of the topics
    :raises PublishError: one was refused, or nobody knows what became of it; those before it are stored
    :raises Unavailable: nobody took one within ``timeout`` seconds
    """
    dedup = batch.ids is not None
    bridge = NatsBridge(
        replace(settings, stream=stream, create_stream=False, ack_mode="message", ordered=False, dedup=dedup)
    )
    bridge.open()
    try:
        bad = dict(bridge.prepare(batch).bad)
        token, last = 0, None
        for row in range(len(batch)):
            if row in bad:
                raise bad[row]
            token, last = _one(bridge, batch.slice(row, 1), token, timeout)
        return last
    finally:
        bridge.close()


def _one(bridge: NatsBridge, one: MessageBatch, token: int, timeout: float) -> tuple[int, int]:
    """The next token, and the sequence of the record."""
    until = time.monotonic() + timeout
    why = "it cannot be sent"
    while (left := until - time.monotonic()) > 0:
        if not bridge.send(one, token):
            bridge.poll(min(left, _PAUSE))
            continue
        answer = _answer(bridge, token, min(left, bridge.settings.wait_timeout))
        token += 1
        if isinstance(answer, int):
            return token, answer
        if not answer.retryable or (answer.may_have_landed and one.ids is None):
            raise answer
        why = str(answer)
        time.sleep(_PAUSE)
    raise Unavailable(f"nobody took the record within {timeout:g} s: {why}")


def _answer(bridge: NatsBridge, token: int, timeout: float) -> int | PublishError:
    """Sequence of the message with this token, or why it has none."""
    until = time.monotonic() + timeout
    while (left := until - time.monotonic()) > 0:
        polled = bridge.poll(left)
        for acks in polled.acks:
            here = acks.tokens == token
            if here.any() and acks.sequences is not None:
                return int(acks.sequences[here][0])
        for refusals in polled.refusals:
            if token in refusals.tokens:
                return refusals.error
        for event in polled.events:
            if event.error is not None:
                return event.error
            if event.kind is EventKind.DISCONNECTED:
                return OutcomeUnknown(event.info)
    return AckTimeout(f"no acknowledgement within {timeout:g} s")
