"""Recorder: subscribes to topics and symbols of an OpenMAMA network and writes their messages into a record log.

Its loop takes messages from the peer, makes records, and passes them to the writer, which blocks while the log is slow
or cannot be reached. Meanwhile the peer is polled, so that it stays known to the naming service, and its messages wait
here up to a limit; beyond it they wait at their publishers.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from mama_spark.contracts.errors import ConfigError, MamaError, PublishError, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import ReadLog, RecordLog, RecordWriter
from mama_spark.mama.messages.omnm import encode
from mama_spark.mama.messages.status import SubscriptionMsgType
from mama_spark.openmama.wire.log.records import DICTIONARY as DICTIONARY_RECORDS
from mama_spark.openmama.wire.log.records import PEERS, RECORDER, MamaPeerState, MamaRecord, MamaRecordKind, messages
from mama_spark.openmama.wire.peer.frame_columns import FrameColumns
from mama_spark.openmama.wire.peer.naming_client import PeerChange, PeerPresence
from mama_spark.openmama.wire.peer.peer import OpenMamaPeer, PeerInput
from mama_spark.openmama.wire.protocol.market_data import (
    DICTIONARY,
    DICTIONARY_SYMBOL,
    NORMAL,
    MarketDataRequest,
    request_message,
    subscription_topic,
)
from mama_spark.openmama.wire.protocol.naming import encode_naming
from mama_spark.packing.pack_headers import rows_of_messages

from ...telemetry.progress_lines import with_progress
from ...telemetry.prometheus.exposition import Metric, counter, gauge
from .frame_recorder import FrameRecorder
from .market_data_requests import Asks, MarketDataAsk, MarketDataRequests
from .record_packer import RecordPacker
from .refused_messages import RefusedMessages
from .settings import OpenMamaRecorderSettings

logger = logging.getLogger("mama_spark")

_MOST = 4096  #: frames of one poll, and about as many records of one batch
_MOST_PACKED = 16_384  #: records of one batch that is packed: what a batch costs is shared by more
_POLL_TIMEOUT = 0.1
_ASK_PERIOD = 0.1  #: seconds between looks for requests that are due
_REPORT_PAUSE = 1.0  #: seconds between two attempts to write gap records for what the log rejected
_LOG_PERIOD = 10.0  #: seconds between two log messages about rejected records
_STATES = {
    PeerPresence.ONLINE: MamaPeerState.ONLINE,
    PeerPresence.SUSPECT: MamaPeerState.SUSPECT,
    PeerPresence.OFFLINE: MamaPeerState.OFFLINE,
}
_MESSAGES = {
    Asks.IMAGE: (NORMAL, SubscriptionMsgType.SUBSCRIBE),
    Asks.RECAP: (NORMAL, SubscriptionMsgType.DQ_SUBSCRIBER),
    Asks.DICTIONARY: (DICTIONARY, SubscriptionMsgType.DDICT_SNAPSHOT),
}


@dataclass(frozen=True, slots=True)
class OpenMamaRecorderCounts:
    """Totals since the recorder was made.

    :ivar symbols: that were asked for
    :ivar images: of them came
    :ivar recorded: records that were made
    :ivar stored: records that the log acknowledged
    :ivar waiting: messages that are not records yet, and records without an acknowledgement
    :ivar gaps: gap records; one that the log rejected counts again when it is written again
    :ivar refused: records that the log rejected
    :ivar unreadable: received messages that are no frame of the framing
    """

    symbols: int
    images: int
    recorded: int
    stored: int
    waiting: int
    gaps: int
    refused: int
    unreadable: int

    def __str__(self) -> str:
        text = f"{self.recorded:,} records, {self.stored:,} stored, {self.waiting:,} wait, {self.gaps:,} gaps"
        if self.symbols:
            text += f", images of {self.images:,} of {self.symbols:,} symbols"
        for count, what in ((self.refused, "refused by the log"), (self.unreadable, "messages of no such framing")):
            text += f", {count:,} {what}" if count else ""
        return text

    def metrics(self, labels: dict[str, str]) -> list[Metric]:
        """Under the names of those of Tango where it is the same."""
        return [
            gauge("mama_recorder_symbols", "symbols that were asked for", self.symbols, labels),
            gauge("mama_recorder_images", "of them, those whose image came", self.images, labels),
            counter("mama_recorder_records_total", "records that were made", self.recorded, labels),
            counter("mama_recorder_stored_total", "records that the log acknowledged", self.stored, labels),
            gauge("mama_recorder_waiting", "messages and records that are not acknowledged", self.waiting, labels),
            counter("mama_recorder_gaps_total", "gap records: what is known to be missing", self.gaps, labels),
            counter("mama_recorder_refused_total", "records that the log rejected", self.refused, labels),
            counter("mama_recorder_unreadable_total", "messages of no such framing", self.unreadable, labels),
        ]


class OpenMamaRecorder:
    """One recorder; :meth:`run` in one thread.

    :param writer: stores the records
    :param ids: give records ids, so that a log that deduplicates stores none twice
    """

    def __init__(self, settings: OpenMamaRecorderSettings, writer: RecordWriter, *, ids: bool = True) -> None:
        self.settings, self._writer = settings, writer
        self._peer = OpenMamaPeer(settings.peer)
        self._frames = FrameRecorder(settings.prefix, settings.peer.framing.name)
        self._requests = MarketDataRequests(settings.symbols, settings.dictionary_sources, settings.request_timeout)
        self._asked: dict[int, MarketDataAsk] = {}  #: by number of the inbox
        self._inboxes: dict[MarketDataAsk, int] = {}
        plain = self._frames.own_topic(DICTIONARY_RECORDS)  # which readers look for by its topic
        self._packer = RecordPacker(settings.pack_max_rows, settings.pack_max_bytes, (plain,))
        self._waiting: deque[tuple[FrameColumns, int]] = deque()  #: and when they came, nanoseconds since the epoch
        self._frames_waiting = 0
        self._batch = _MOST_PACKED if settings.pack_max_rows > 1 else _MOST
        self._pack_at = 0.0  #: when what waits becomes records, though it is little
        self._peers: list[PeerChange] = []
        # Time of day: names a run and stamps records.
        self._run_id = f"{settings.name}-{time.time_ns():x}"
        self._number = 1  #: of the next id
        self._ids = ids
        self._recorded = self._refused = self._gaps = 0
        self._refused_batches: deque[MessageBatch] = deque()
        self._unreported = RefusedMessages()
        self._unwritten: list[MessageBatch] = []
        self._failure: MamaError | None = None
        self._next_ask = self._next_log = self._next_report = 0.0

    def __repr__(self) -> str:
        return f"<OpenMamaRecorder {self.settings.name}, {self.counts}>"

    @property
    def counts(self) -> OpenMamaRecorderCounts:
        """Totals since the recorder was made."""
        counters = self._peer.counters
        unwritten = sum(int(rows_of_messages(batch).sum()) for batch in self._unwritten)
        waiting = self._frames_waiting + self._writer.waiting + unwritten
        return OpenMamaRecorderCounts(
            len(self._requests), self._requests.answered, self._recorded, self._writer.stored, waiting, self._gaps,
            self._refused, counters.malformed + counters.multipart,
        )  # fmt: skip

    def resume(self, read: ReadLog) -> None:
        """Go on with the last numbers that stand in the log, before :meth:`run`."""
        read(self.restore)

    def restore(self, log: RecordLog) -> None:
        """Take the last numbers from the end of the log."""
        bounds = log.bounds()
        after = max(bounds.first - 1, bounds.last - self.settings.look_back)
        for records in log.read(after, bounds.last, (f"{self.settings.prefix}.>",)) if bounds.last > after else ():
            self._frames.restore(records)

    def refused(self, batch: MessageBatch, errors: Sequence[PublishError]) -> None:
        """Note that the log rejected these records finally; gap records will say so, once it takes them. May be called
        in any thread."""
        self._refused += int(rows_of_messages(batch).sum())
        if not self._writer.stored:
            self._failure = ConfigError(f"the log rejects records: {errors[0]}; it stored none, so the recorder ends")
        if time.monotonic() >= self._next_log:
            self._next_log = time.monotonic() + _LOG_PERIOD
            logger.error("the log rejects records (%d so far; the recorder goes on, and records what they were as gaps "
                         "once the log takes it): %s", self._refused, errors[0])  # fmt: skip
        self._refused_batches.append(batch)

    def run(self, stop: Callable[[], bool], say: Callable[[str], None] = lambda text: None) -> bool:
        """Record until ``stop`` returns True.

        :param say: gets lines about the progress
        :returns: whether the log acknowledged all records
        :raises Unavailable: no name server answers at first
        :raises MamaError: the log cannot be written
        """
        stop = with_progress(stop, self.settings.report, say, lambda: str(self.counts))
        self._peer.open()
        try:
            self._write([self._own(MamaRecordKind.STARTED)], stop)
            if self._peer.naming is not None:  # those that were heard of while this one joined
                self._peers += [PeerChange(other.frame, other.presence) for other in self._peer.naming.peers.values()]
            self._subscribe()
            say("ready")
            self._loop(stop)
            return self._finish()
        finally:
            self._peer.close()

    # --- the loop --------------------------------------------------------------------------------------------

    def _subscribe(self) -> None:
        for topic in self.settings.exact_topics:
            self._peer.subscribe(topic)
        for prefix in self.settings.topic_prefixes:
            self._peer.subscribe(prefix, prefix=True)

    def _loop(self, stop: Callable[[], bool]) -> None:
        while not stop():
            if self._failure is not None:
                raise self._failure
            self._take(self._peer.poll(self._poll_timeout(), _MOST, columns=True))
            self._record(stop)
            self._ask(stop)

    def _poll_timeout(self) -> float:
        return min(_POLL_TIMEOUT, max(0.0, self._pack_at - time.monotonic())) if self._waiting else _POLL_TIMEOUT

    def _take(self, came: PeerInput) -> None:
        if came.columns:
            if not self._waiting:
                self._pack_at = time.monotonic() + (
                    self.settings.pack_delay if self.settings.pack_max_rows > 1 else 0.0
                )
            self._waiting.append((came.columns, time.time_ns()))
            self._frames_waiting += len(came.columns)
        self._peers += came.peers
        for change in came.subscriptions:
            if change.begins:
                self._requests.publisher_came(change.topic)

    def _record(self, stop: Callable[[], bool]) -> None:
        """Make records of what waits, at most one batch."""
        now = time.time_ns()
        changes, self._peers = self._peers, []
        self._write([self._peer_record(change, now) for change in changes], stop)
        if self._waiting and (self._frames_waiting >= self._batch or time.monotonic() >= self._pack_at or stop()):
            self._record_frames(stop)
        self._report_refused(stop)

    def _report_refused(self, stop: Callable[[], bool]) -> None:
        """Write gap records for what the log rejected, also again where it rejected them."""
        now = time.time_ns()
        while self._refused_batches:
            self._unreported.add(self._frames.refused(self._refused_batches.popleft(), now))
        if len(self._unreported) and (time.monotonic() >= self._next_report or stop()):
            self._next_report = time.monotonic() + _REPORT_PAUSE
            gaps = self._unreported.take(now)
            self._gaps += len(gaps)
            self._write(gaps, stop)

    def _record_frames(self, stop: Callable[[], bool]) -> None:
        parts, times, n = list[FrameColumns](), [], 0
        while self._waiting and (not parts or n + len(self._waiting[0][0]) <= self._batch):
            part, received = self._waiting.popleft()
            parts.append(part)
            times.append(np.full(len(part), received, np.int64))
            n += len(part)
        self._frames_waiting -= n
        frames = FrameColumns.joined(parts)
        asked = {row: ask for row, inbox in frames.inboxes.items() if (ask := self._asked.get(inbox)) is not None}
        made = self._frames.records(frames, asked, np.concatenate(times))
        recaps = [MarketDataAsk(Asks.RECAP, *topic.split(".", 1)) for topic in made.recaps if "." in topic]
        for ask in (*asked.values(), *recaps):
            self._requests.came(ask)
        self._note_gaps(made.gaps)
        self._recorded += len(made.payloads)
        for batch in self._packer.messages(made.topics, made.payloads):
            self._write_messages(batch, stop)

    def _note_gaps(self, topics: list[str]) -> None:
        self._gaps += len(topics)
        if self.settings.may_request:
            for topic in topics:
                self._requests.gap(topic, time.monotonic())

    def _write(self, records: list[MamaRecord], stop: Callable[[], bool]) -> None:
        if records:
            topics, payloads = messages(records)
            self._recorded += len(records)
            self._write_messages(MessageBatch.of(topics, payloads), stop)

    def _write_messages(self, batch: MessageBatch, stop: Callable[[], bool]) -> None:
        """:param batch: without ids"""
        batch = replace(batch, ids=self._next_ids(len(batch)))
        if not self._writer.write(batch, lambda: self._keep_alive() or stop()):
            self._unwritten.append(batch)

    def _next_ids(self, n: int) -> pa.Array | None:
        if not self._ids:
            return None
        first, self._number = self._number, self._number + n
        numbers = pa.array(np.arange(first, first + n)).cast(pa.string())
        return pc.binary_join_element_wise(self._run_id, numbers, "-")

    def _keep_alive(self) -> bool:
        """Called while the log takes nothing: answer the naming service, and take messages up to the limit."""
        full = self._frames_waiting >= self.settings.buffer
        self._take(self._peer.poll(0.0, 0 if full else _MOST, columns=True))
        return False

    # --- requests --------------------------------------------------------------------------------------------

    def _ask(self, stop: Callable[[], bool]) -> None:
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
        self._write([self._timeout(ask) for ask in failed], stop)

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

    # --- records about the recorder and its network ----------------------------------------------------------

    def _own(self, kind: MamaRecordKind) -> MamaRecord:
        return MamaRecord(kind, self._frames.own_topic(f"{RECORDER}.{self.settings.name}"), time.time_ns())

    def _timeout(self, ask: MarketDataAsk) -> MamaRecord:
        return MamaRecord(MamaRecordKind.TIMEOUT, self._frames.own_topic(f"{ask.source}.{ask.symbol}"), time.time_ns())

    def _peer_record(self, change: PeerChange, now: int) -> MamaRecord:
        state = _STATES[change.presence]
        topic = self._frames.own_topic(PEERS)
        return MamaRecord(
            MamaRecordKind.PEER, topic, now, encode_naming(change.frame), self.settings.peer.framing.name, cause=state
        )

    # --- the end ---------------------------------------------------------------------------------------------

    def _finish(self) -> bool:
        deadline = time.monotonic() + self.settings.drain

        def late() -> bool:
            return time.monotonic() > deadline

        unwritten, self._unwritten = self._unwritten, []
        self._unwritten = [batch for batch in unwritten if not self._writer.write(batch, late)]
        while self._waiting and not late():
            self._pack_at = 0.0
            self._record(late)
        self._writer.drain(max(0.0, deadline - time.monotonic()))  # now all rejections are known
        self._next_report = 0.0
        self._record(late)
        self._write([self._own(MamaRecordKind.STOPPED)], late)
        drained = self._writer.drain(max(0.0, deadline - time.monotonic()))
        reported = not self._refused_batches and not len(self._unreported)
        return drained and reported and not self._unwritten and not self._waiting
