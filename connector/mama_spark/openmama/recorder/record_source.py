"""Source of a recorder of OpenMAMA messages: subscribes to topics and symbols, and makes records of their messages.

While the log takes nothing, the peer is still polled, so that the naming service keeps it; its messages wait here up to
a limit, and beyond it at their publishers.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from mama_spark.contracts.errors import PublishError, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import ReadLog, RecordLog
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.status import SubscriptionMsgType
from mama_spark.openmama.wire.frame_filter import FrameColumns
from mama_spark.openmama.wire.market_data import (
    DICTIONARY,
    DICTIONARY_SYMBOL,
    NORMAL,
    MarketDataRequest,
    request_message,
    subscription_topic,
)
from mama_spark.openmama.wire.naming import encode_naming
from mama_spark.openmama.wire.naming_client import PeerChange
from mama_spark.openmama.wire.peer import OpenMamaPeer, PeerInput
from mama_spark.openmama.wire.records import DICTIONARY as DICTIONARY_RECORDS
from mama_spark.openmama.wire.records import PEERS, RECORDER, MamaRecord, MamaRecordKind, messages
from mama_spark.recording.recorder import RecorderCounts, RecorderSettings

from .frame_recorder import FrameRecorder, RecordPacker
from .gaps import RefusedMessages
from .market_data_requests import Asks, MarketDataAsk, MarketDataRequests
from .settings import OpenMamaRecorderSettings

logger = logging.getLogger("mama_spark")

_MOST = 4096  #: frames of one poll, and about as many records of one batch
_MOST_PACKED = 16_384  #: records of one batch that is packed: what a batch costs is shared by more
_POLL_TIMEOUT = 0.1
_ASK_PERIOD = 0.1  #: seconds between looks for requests that are due
_MESSAGES = {
    Asks.IMAGE: (NORMAL, SubscriptionMsgType.SUBSCRIBE),
    Asks.RECAP: (NORMAL, SubscriptionMsgType.DQ_SUBSCRIBER),
    Asks.DICTIONARY: (DICTIONARY, SubscriptionMsgType.DDICT_SNAPSHOT),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class MamaRecorderCounts(RecorderCounts):
    """Counts of a recorder of OpenMAMA messages.

    :ivar symbols: number of symbols that were asked for
    :ivar images: number of those whose image came
    :ivar unreadable: received messages that are no frame of the framing
    """

    METRICS: ClassVar = {
        "symbols": ("symbols", "symbols that were asked for"),
        "images": ("images", "symbols whose image came"),
        "unreadable": ("unreadable_total", "messages of no such framing"),
        **RecorderCounts.METRICS,
    }

    symbols: int
    images: int
    unreadable: int

    def __str__(self) -> str:
        text = f"{self.recorded:,} records, {self.stored:,} stored, {self.waiting:,} wait, {self.gaps:,} gaps"
        if self.symbols:
            text += f", images of {self.images:,} of {self.symbols:,} symbols"
        for count, what in ((self.refused, "refused by the log"), (self.unreadable, "messages of no such framing")):
            text += f", {count:,} {what}" if count else ""
        return text


class MamaRecordSource:
    """See :class:`~mama_spark.recording.recorder.RecordSource`; ``waiting``: messages that are not records yet."""

    settings_class: ClassVar[type[RecorderSettings]] = OpenMamaRecorderSettings

    def __init__(self, settings: OpenMamaRecorderSettings) -> None:
        self.settings = settings
        self._peer = OpenMamaPeer(settings.peer)
        self._frames = FrameRecorder(settings.prefix, settings.peer.framing.name)
        self._requests = MarketDataRequests(settings.symbols, settings.dictionary_sources, settings.request_timeout)
        self._asked: dict[int, MarketDataAsk] = {}  #: by number of the inbox
        self._inboxes: dict[MarketDataAsk, int] = {}
        plain = self._frames.own_topic(DICTIONARY_RECORDS)  # which readers look for by its topic
        self._packer = RecordPacker(settings.pack_max_rows, settings.pack_max_bytes, (plain,))
        self._queue: deque[tuple[FrameColumns, int]] = deque()  #: and when they came, nanoseconds since the epoch
        self.waiting = 0
        self._batch = _MOST_PACKED if settings.pack_max_rows > 1 else _MOST
        self._pack_at = 0.0  #: when what waits becomes records, though it is little
        self._stopping = False
        self._peers: list[PeerChange] = []
        self._gaps = 0
        self._unreported = RefusedMessages()
        self._next_ask = 0.0

    def counts(self, *, recorded: int, stored: int, waiting: int, refused: int) -> RecorderCounts:
        counters = self._peer.counters
        return MamaRecorderCounts(
            recorded=recorded, stored=stored, waiting=waiting, gaps=self._gaps, refused=refused,
            symbols=len(self._requests), images=self._requests.answered,
            unreadable=counters.malformed + counters.multipart,
        )  # fmt: skip

    def resume(self, read: ReadLog) -> None:
        """Go on from the last numbers in the log."""
        read(self._restore)

    def _restore(self, log: RecordLog) -> None:
        bounds = log.bounds()
        after = max(bounds.first - 1, bounds.last - self.settings.look_back)
        for records in log.read(after, bounds.last, (f"{self.settings.prefix}.>",)) if bounds.last > after else ():
            self._frames.restore(records)

    def begin(self) -> Iterator[MessageBatch]:
        """Join the network, yield the record of the start, and subscribe to the recorded topics.

        :raises Unavailable: no name server answers
        """
        self._peer.open()
        yield messages([self._own(MamaRecordKind.STARTED)])
        if self._peer.naming is not None:  # those that were heard of while this one joined
            self._peers += [PeerChange(other.frame, other.presence) for other in self._peer.naming.peers.values()]
        for topic in self.settings.exact_topics:
            self._peer.subscribe(topic)
        for prefix in self.settings.topic_prefixes:
            self._peer.subscribe(prefix, prefix=True)

    def stop(self) -> None:
        self._stopping = True

    def end(self) -> Iterator[MessageBatch]:
        yield from self._peer_records()
        yield messages([self._own(MamaRecordKind.STOPPED)])

    def close(self) -> None:
        self._peer.close()

    def records(self) -> Iterator[MessageBatch]:
        """At most one batch."""
        if not self._stopping:
            self._take(self._peer.poll(self._poll_timeout(), _MOST, columns=True))
        yield from self._peer_records()
        full = self._stopping or self.waiting >= self._batch or time.monotonic() >= self._pack_at
        if self.waiting and full:
            yield from self._frame_records()

    def idle(self) -> None:
        """Answer the naming service, and take messages up to the limit."""
        full = self.waiting >= self.settings.buffer
        self._take(self._peer.poll(0.0, 0 if full else _MOST, columns=True))

    def _poll_timeout(self) -> float:
        return min(_POLL_TIMEOUT, max(0.0, self._pack_at - time.monotonic())) if self.waiting else _POLL_TIMEOUT

    def _take(self, came: PeerInput) -> None:
        if came.columns:
            if not self.waiting:
                self._pack_at = time.monotonic() + (
                    self.settings.pack_delay if self.settings.pack_max_rows > 1 else 0.0
                )
            # Time of day: stamps records.
            self._queue.append((came.columns, time.time_ns()))
            self.waiting += len(came.columns)
        self._peers += came.peers
        for change in came.subscriptions:
            if change.begins:
                self._requests.publisher_came(change.topic)

    def _peer_records(self) -> Iterator[MessageBatch]:
        changes, self._peers = self._peers, []
        if changes:
            now = time.time_ns()
            yield messages([self._peer_record(change, now) for change in changes])

    def _frame_records(self) -> Iterator[MessageBatch]:
        parts, times, n = list[FrameColumns](), [], 0
        while self._queue and (not parts or n + len(self._queue[0][0]) <= self._batch):
            part, received = self._queue.popleft()
            parts.append(part)
            times.append(np.full(len(part), received, np.int64))
            n += len(part)
        self.waiting -= n
        frames = FrameColumns.joined(parts)
        asked = {row: ask for row, inbox in frames.inboxes.items() if (ask := self._asked.get(inbox)) is not None}
        made = self._frames.records(frames, asked, np.concatenate(times))
        recaps = [MarketDataAsk(Asks.RECAP, *topic.split(".", 1)) for topic in made.recaps if "." in topic]
        for ask in (*asked.values(), *recaps):
            self._requests.came(ask)
        self._gaps += len(made.gaps)
        if self.settings.may_request:
            for topic in made.gaps:
                self._requests.gap(topic, time.monotonic())
        yield from self._packer.messages(made.topics, made.payloads)

    def refused(self, batch: MessageBatch, errors: Sequence[PublishError]) -> None:
        self._unreported.add(self._frames.refused(batch, time.time_ns()))

    def gaps(self) -> Iterator[MessageBatch]:
        gaps = self._unreported.take(time.time_ns())
        self._gaps += len(gaps)
        if gaps:
            yield messages(gaps)

    def due(self) -> Iterator[MessageBatch]:
        now = time.monotonic()
        if now < self._next_ask:
            return
        self._next_ask = now + _ASK_PERIOD
        send, failed = self._requests.due(now, self._peer.wanted)
        for ask in send:
            self._send(ask)
        for ask in failed:
            logger.warning("%s.%s: no publisher answers the subscription; it is asked again each minute",
                           ask.source, ask.symbol)  # fmt: skip
        if failed:
            yield messages([self._timeout(ask) for ask in failed])

    def _send(self, ask: MarketDataAsk) -> None:
        kind, message = _MESSAGES[ask.asks]
        payload = encode(request_message(MarketDataRequest(ask.symbol or DICTIONARY_SYMBOL, kind, message)))
        try:
            if not self.settings.may_request:  # programs of this framing end with a fault at a request
                self._peer.publish(subscription_topic(ask.source), payload)
                self._requests.came(ask)
                return
            number = self._peer.request(ask.topic, payload, self._inboxes.get(ask))
        except Unavailable:
            return  # asked again
        self._inboxes[ask], self._asked[number] = number, ask

    def _own(self, kind: MamaRecordKind) -> MamaRecord:
        return MamaRecord(kind, self._frames.own_topic(f"{RECORDER}.{self.settings.name}"), time.time_ns())

    def _timeout(self, ask: MarketDataAsk) -> MamaRecord:
        return MamaRecord(MamaRecordKind.TIMEOUT, self._frames.own_topic(f"{ask.source}.{ask.symbol}"), time.time_ns())

    def _peer_record(self, change: PeerChange, now: int) -> MamaRecord:
        topic, framing = self._frames.own_topic(PEERS), self.settings.peer.framing.name
        frame = encode_naming(change.frame)
        return MamaRecord(MamaRecordKind.PEER, topic, now, frame, framing, cause=change.presence)
