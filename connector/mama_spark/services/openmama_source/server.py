"""The loop of ``mama mama-source``: records of a log out to subscribers, and answers to their requests.

Records are published before the position is saved: after a crash, those of the last second are published again with the
numbers that they had, which subscribers take for duplicates.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from mama_spark.openmama_wire.peer.peer import OpenMamaPeer
from mama_spark.openmama_wire.peer.subscription_table import SubscriptionChange
from mama_spark.openmama_wire.protocol.dictionary import DictionaryEntry

from ..prometheus.exposition import Metric
from .log_follower import LogBatch, LogFollower
from .market_data_source import AnswerRequest, MarketDataSource, PublisherEvent, PublishMessage, SourceAction
from .metrics import measure
from .record_fields import BadRecord, fields_of
from .source_state import SourceState

SAVE_INTERVAL, REPORT_INTERVAL = 1.0, 10.0  #: seconds
_IDLE, _FULL = 0.02, 0.002  #: seconds of a poll when nothing is to do, and when a reader's queue is full
_REASONS = 10  #: bad records that are shown


class MarketDataServer:
    """Serves one log until ``stop`` says so.

    :param prefix: of the topics of the log; what follows it and a dot is the symbol
    :param on_event: gets each callback of the publisher
    :ivar counts: of records, bad ones, others' topics, messages and answers
    """

    def __init__(
        self,
        peer: OpenMamaPeer,
        source: MarketDataSource,
        state: SourceState,
        log: LogFollower,
        *,
        prefix: str,
        dictionary: Mapping[str, DictionaryEntry],
        say: Callable[[str], None],
        warn: Callable[[str], None],
        on_event: Callable[[PublisherEvent], None] = lambda event: None,
    ) -> None:
        self._peer, self._source, self._state, self._log = peer, source, state, log
        self._prefix, self._dictionary = f"{prefix}." if prefix else "", dictionary
        self._say, self._warn, self._on_event = say, warn, on_event
        self._framing = peer.settings.framing
        self._unsent: list[bytes] = []
        self._position = (state.identity, state.served, state.time)
        self._saved = self._reported = time.monotonic()
        self._dirty = False
        self.counts: Counter[str] = Counter()

    def run(self, stop: Callable[[], bool]) -> None:
        """:raises MamaError: the log cannot be read any more, or the state cannot be saved"""
        for topic in self._source.request_topics:
            self._peer.subscribe(topic)
        for symbol in sorted(self._source.topics):
            self._on_event(PublisherEvent("onCreate", symbol))
        try:
            while not stop():
                self._serve_peers(_FULL if self._unsent else 0.0 if self._serve_log() else _IDLE)
                self._save_and_report()
            while self._unsent and not self._flush():
                self._serve_peers(_FULL)
        finally:
            self._save()
            for symbol in sorted(self._source.topics):
                self._on_event(PublisherEvent("onDestroy", symbol))

    def _serve_peers(self, timeout: float) -> None:
        came = self._peer.poll(timeout)
        for change in came.subscriptions:
            self._subscription(change)
        for got in came.frames:
            self.counts["requests"] += 1
            self._act(self._source.received(got.frame))
        self._flush()

    def _subscription(self, change: SubscriptionChange) -> None:
        begin = f"{self._source.name}."
        if change.topic.startswith(begin):
            callback = "SUBSCRIBED" if change.begins else "UNSUBSCRIBED"
            self._on_event(PublisherEvent(callback, change.topic.removeprefix(begin)))

    def _serve_log(self) -> bool:
        """Publish the next records, if readers take more; whether there were some."""
        if self._unsent:
            return True
        batch = self._log.take()
        if batch is None:
            return False
        if batch.warning:
            self._warn(batch.warning)
        if batch.records is not None:
            self._publish(batch)
        time = None if batch.records is None else int(batch.records.times[-1])
        self._position = (batch.identity, batch.served, time)
        self._dirty = True
        return True

    def _publish(self, batch: LogBatch) -> None:
        assert batch.records is not None
        records = batch.records
        for sequence, topic, payload in zip(
            records.sequences.tolist(), records.topics.to_pylist(), records.payloads.to_pylist(), strict=True
        ):
            self.counts["records"] += 1
            if not topic.startswith(self._prefix):
                self.counts["other topics"] += 1
                continue
            try:
                kind, fields = fields_of(payload, self._dictionary)
            except BadRecord as e:
                self.counts["bad records"] += 1
                if self.counts["bad records"] <= _REASONS:
                    self._warn(f"record {sequence} ({topic}) is not served: {e}")
                continue
            self._act(self._source.update(topic.removeprefix(self._prefix), fields, kind))
        self._flush()

    def _act(self, actions: Sequence[SourceAction]) -> None:
        for action in actions:
            if isinstance(action, PublishMessage):
                self.counts["messages"] += 1
                self._unsent.append(self._framing.publish_head(action.topic) + action.payload)
            elif isinstance(action, AnswerRequest):
                self.counts["answers"] += 1
                self._flush()  # an image states what was sent before it
                self._peer.reply(action.request, action.payload, action.topic)
            else:
                self._on_event(action)

    def _flush(self) -> bool:
        """Send what waits; whether all of it was sent."""
        if self._unsent:
            del self._unsent[: self._peer.send_many(self._unsent)]
        return not self._unsent

    def _save_and_report(self) -> None:
        now = time.monotonic()
        if self._dirty and not self._unsent and now - self._saved >= SAVE_INTERVAL:
            self._save()
            self._saved = now
        if now - self._reported >= REPORT_INTERVAL:
            self._reported = now
            self._say(self.progress())

    def _save(self) -> None:
        if self._unsent:  # those are published after a restart
            return
        self._state.save(*self._position, self._source.take_changed())
        self._dirty = False

    def metrics(self) -> list[Metric]:
        """What it counts; may be called in any thread."""
        source, readers = self._source, len(self._peer.readers)
        return measure(source.name, self.counts, len(source.topics), readers, len(self._unsent))

    def progress(self) -> str:
        """One line."""
        counted = ", ".join(f"{n:,} {what}" for what, n in self.counts.items()) or "nothing yet"
        return f"{len(self._source.topics)} symbols, {len(self._peer.readers)} subscriptions; {counted}"
