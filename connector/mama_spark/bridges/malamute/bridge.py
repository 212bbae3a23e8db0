"""The Malamute bridge: a stream of a broker behind the contract of :mod:`mama_spark.bridge`.

Messages go out in chunks, each followed by a PING: replies come in order, so the PONG says that the broker has taken
the chunk. Our own broker says in it what its engine did with the messages, with sequences where the stream is stored.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

import numpy as np

from ...bridge import Ack, Acks, BridgeEvent, Capabilities, EventKind, Polled, Prepared, Refusals
from ...errors import ClientClosed, ConfigError, MamaError, OutOfResources, Refused, Unavailable, Uncertain
from ...malamute.client_machine import Call, CallFailed, State
from ...malamute.extensions import AckRun, Feature, Outcome
from ...malamute.link import Link
from ...malamute.wire import StatusCode
from ...message import MessageBatch
from . import frames as fr
from .settings import MalamuteSettings

#: Most octets of payload in one call of ``send``.
_CHUNK = 1024 * 1024
#: Most messages before a PING: what is in doubt when a connection breaks, and how soon answers come.
_MESSAGES = 1024
_NEVER = float("inf")


@dataclass(slots=True)
class _Chunk:
    """Messages that one PING covers."""

    first: int
    n: int
    call: Call


class MalamuteBridge:
    """Publishes to one stream over one connection."""

    def __init__(self, settings: MalamuteSettings) -> None:
        self.settings = settings
        self._link: Link | None = None
        self._stored = False
        self._chunks: deque[_Chunk] = deque()
        self._down = False
        self._reconnects = 0
        self._told = False

    def __repr__(self) -> str:
        if self._link is None:
            return f"<MalamuteBridge {self.settings.stream} closed>"
        state = self._link.machine.state.value
        return f"<MalamuteBridge {self.settings.stream} at {self._link.endpoint}, {state}, {len(self._chunks)} chunks>"

    @property
    def capabilities(self) -> Capabilities:
        acks, ours = self.settings.acks, self._carries
        return Capabilities(
            ack=Ack.NONE if not acks else Ack.STORED if self._stored else Ack.ACCEPTED,
            sequence=acks and self._stored,
            dedup=self._stored and self.settings.dedup,
            headers=ours,
            ordered=False,
            max_payload=fr.MAX_PAYLOAD,
            max_topic=fr.MAX_TOPIC,
        )

    @property
    def _carries(self) -> bool:
        """The broker is ours: ids and headers reach readers."""
        return self._link is not None and Feature.HEADERS in self._link.machine.features

    # --- opening and closing -------------------------------------------------------------------------------------

    def open(self) -> None:
        """See :class:`~mama_spark.bridge.PublisherBridge`."""
        stream = self.settings.stream
        if stream is None:
            raise ConfigError("no stream is named: give the option stream, or mlp://host:port/stream")
        link = Link(self.settings.link)
        try:
            link.open(self.settings.connect_timeout)
            with link.changed:
                call = link.machine.write(stream.encode(), time.monotonic() + self.settings.connect_timeout)
            link.wait(call, f"writing to {stream!r}")
        except CallFailed as e:
            link.close(0.0)
            if e.code == StatusCode.INTERNAL_ERROR:
                raise Unavailable(f"{link.endpoint}: {e}") from e
            raise ConfigError(f"{link.endpoint}: {e}") from e
        except BaseException:
            link.close(0.0)
            raise
        self._stored = bool(call.extension.stored)
        self._reconnects = link.machine.reconnects
        self._link = link

    def close(self) -> None:
        """See :class:`~mama_spark.bridge.PublisherBridge`."""
        link, self._link = self._link, None
        if link is not None:
            link.close(self.settings.connect_timeout)

    # --- sending -------------------------------------------------------------------------------------------------

    def prepare(self, batch: MessageBatch) -> Prepared:
        """See :class:`~mama_spark.bridge.PublisherBridge`."""
        return Prepared(fr.check(batch, self._carries))

    def send(self, batch: MessageBatch, first_token: int) -> int:
        """See :class:`~mama_spark.bridge.PublisherBridge`."""
        link = self._link
        if link is None:
            raise ClientClosed("the bridge is not open")
        if not len(batch) or not link.connected or self._down or link.machine.reconnects != self._reconnects:
            return 0  # a new connection is told by poll first
        room = min(link.room, _CHUNK)
        if room <= 0:
            return 0
        ends = np.cumsum(batch.sizes())
        n = max(1, int(np.searchsorted(ends, room, "right")))
        part = batch.slice(0, min(n, _MESSAGES))
        if not self._carries:
            part = MessageBatch(part.topics, part.payloads)
        messages, octets = fr.frames(part), int(ends[len(part) - 1]) + 64 * len(part)
        with link.changed:
            if not link.connected or link.machine.reconnects != self._reconnects:
                return 0
            try:
                link.machine.send_frames(messages)
                call = link.machine.ping(time.monotonic(), _NEVER) if self.settings.acks else None
            except MamaError:
                return 0
            link.account(octets)
        link.wake()
        if call is not None:
            self._chunks.append(_Chunk(first_token, len(part), call))
        return len(part)

    def flush(self) -> None:
        """Every chunk is answered by itself: nothing to do."""

    # --- answers -------------------------------------------------------------------------------------------------

    def poll(self, timeout: float, want: int = 1) -> Polled:
        """See :class:`~mama_spark.bridge.PublisherBridge`."""
        link = self._link
        if link is None:
            return Polled()
        with link.changed:
            link.changed.wait_for(lambda: self._worth(link, want), max(0.0, timeout))
            polled = Polled()
            self._settle(polled)
            self._watch(link, polled)
        return polled

    def _worth(self, link: Link, want: int) -> bool:
        """Is it worth while to wake the caller?"""
        answered = 0
        for chunk in self._chunks:
            if not chunk.call.done:
                break
            if any(run.outcome is Outcome.REFUSED for run in chunk.call.extension.acks):
                return True
            answered += 0 if chunk.call.error else chunk.n
        return answered >= want or bool(self._news(link))

    def _settle(self, polled: Polled) -> None:
        now = time.monotonic()
        while self._chunks and self._chunks[0].call.done:
            chunk = self._chunks.popleft()
            if chunk.call.error is None:  # else the connection was lost, and the event says so
                _answers(chunk, self.settings.stream, now, polled)

    def _news(self, link: Link) -> str:
        if link.fatal is not None or link.machine.state in (State.FAILED, State.CLOSED):
            return "" if self._told else "closed"
        if not self._down and (not link.connected or link.machine.reconnects != self._reconnects):
            return "down"
        return "up" if self._down and link.connected else ""

    def _watch(self, link: Link, polled: Polled) -> None:
        """What happened to the connection, as events."""
        now, stream = time.monotonic(), self.settings.stream
        news = self._news(link)
        if news == "closed":
            self._told = True
            text = link.explain("publishing", str(link.fatal or "the broker refused the connection"))
            polled.events.append(BridgeEvent(EventKind.CLOSED, text, now, error=Refused(text)))
            return
        if news == "down":
            self._down, self._reconnects = True, link.machine.reconnects
            self._chunks.clear()
            text = link.explain("publishing", "the connection was lost")
            polled.events.append(BridgeEvent(EventKind.DISCONNECTED, text, now))
        if self._down and link.connected and link.machine.stream == (stream or "").encode():
            self._down, self._reconnects = False, link.machine.reconnects
            polled.events.append(BridgeEvent(EventKind.RECONNECTED, f"connected to {link.endpoint} again", now))


def _answers(chunk: _Chunk, stream: str | None, now: float, polled: Polled) -> None:
    """What the PONG says of the chunk's messages, in their order."""
    token, left = chunk.first, chunk.n
    for run in chunk.call.extension.acks or (AckRun(Outcome.ACCEPTED, chunk.n),):
        n = min(run.count, left)
        tokens = np.arange(token, token + n, dtype=np.int64)
        token, left = token + n, left - n
        if not n:
            continue
        if run.outcome is Outcome.REFUSED:
            polled.refusals.append(Refusals(tokens, OutOfResources(f"stream {stream!r} did not store it"), now))
            continue
        sequences = np.arange(run.first, run.first + n, dtype=np.int64) if run.first else None
        duplicates = np.full(n, run.outcome is Outcome.DUPLICATE) if run.outcome is not Outcome.ACCEPTED else None
        polled.acks.append(Acks(tokens, sequences, duplicates, stream, now))
    if left:
        tokens = np.arange(token, token + left, dtype=np.int64)
        polled.refusals.append(Refusals(tokens, Uncertain("the broker did not say what became of it"), now))
