"""The loop of ``mama mama-source``: records of a log out to subscribers, and answers to their requests.

The position is saved once subscribers have taken what was published up to it. After a crash, or an end with unread
messages, the rest is published again with the same numbers, which subscribers that have it take for duplicates.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from mama_spark.contracts.record_log import Records
from mama_spark.contracts.topics import topic_head
from mama_spark.openmama.wire.peer import OpenMamaPeer
from mama_spark.openmama.wire.subscriptions import SubscriptionChange

from ...recording.log_follower import LogFollower
from ...recording.log_position import LogPosition
from ...telemetry.exposition import Metric, measured
from .market_data_source import (
    AnswerRequest,
    BadRecord,
    MarketDataSource,
    PublisherEvent,
    PublishMessage,
    SourceAction,
    StoredTopic,
    fields_of,
)
from .source_state import SourceState

SAVE_INTERVAL, REPORT_INTERVAL = 1.0, 10.0  #: seconds
HOLD = 20.0  #: seconds that a start waits for subscribers: programs without naming come back after 10 to 20
_SERVED = ("records", "other topics", "bad records", "messages")  #: counts that begin anew where the position does
_IDLE, _FULL = 0.02, 0.002  #: seconds of a poll when nothing is to do, and when a reader's queue is full
_REASONS = 10  #: bad records that are shown
#: Count of the server -> name, what it counts.
_COUNTERS = {
    "records": ("records_total", "records of the log that were taken"),
    "other topics": ("other_topics_total", "records of other topics"),
    "bad records": ("bad_total", "records that could not be served"),
    "messages": ("messages_total", "messages that were published"),
    "requests": ("requests_total", "requests of subscribers"),
    "answers": ("answers_total", "answers to requests"),
}
_GAUGES = {
    "symbols": "symbols that have a value",
    "subscriptions": "topics and prefixes that subscribers want",
    "waiting": "messages that subscribers have not taken",
}


class _Published(NamedTuple):
    """State at one moment, which is saved once subscribers have taken its messages."""

    at: LogPosition
    topics: list[StoredTopic]
    wanted: int
    counts: dict[str, int]


class MarketDataServer:
    """Serves one log until ``stop`` says so.

    :param prefix: prefix of the topics of the log; what follows it and a dot is the symbol
    :param on_event: gets each callback of the publisher
    :ivar counts: numbers of records, bad ones, others' topics, messages and answers
    """

    def __init__(
        self,
        peer: OpenMamaPeer,
        source: MarketDataSource,
        state: SourceState,
        log: LogFollower,
        *,
        prefix: str,
        say: Callable[[str], None],
        warn: Callable[[str], None],
        on_event: Callable[[PublisherEvent], None],
    ) -> None:
        self._peer, self._source, self._state, self._log = peer, source, state, log
        self._prefix = topic_head(prefix)
        self._say, self._warn, self._on_event = say, warn, on_event
        self._framing = peer.settings.framing
        self._unsent: list[bytes] = []
        self._position = state.at
        self._looked = self._reported = time.monotonic()
        self._waited = False  # for the subscribers of the last run
        self._saved_counts: dict[str, int] = {}
        self.counts: Counter[str] = Counter()

    def run(self, stop: Callable[[], bool]) -> None:
        """Serve, and close the peer.

        :raises MamaError: the log cannot be read any more, or the state cannot be saved
        """
        for topic in self._source.request_topics:
            self._peer.subscribe(topic)
        for symbol in sorted(self._source.topics):
            self._on_event(PublisherEvent("onCreate", symbol))
        try:
            self._wait_for_subscribers(stop)
            while not stop():
                self._serve_peers(_FULL if self._unsent else 0.0 if self._serve_log() else _IDLE)
                self._look_and_report()
        finally:
            self._end()
            for symbol in sorted(self._source.topics):
                self._on_event(PublisherEvent("onDestroy", symbol))

    def _wait_for_subscribers(self, stop: Callable[[], bool]) -> None:
        """After a restart, wait until as many have subscribed as before: earlier messages do not reach them."""
        until, before = time.monotonic() + HOLD, self._state.wanted
        if before:
            self._say(f"waiting up to {HOLD:g} s for {before:,} subscriptions to come back")
        while (missing := before - self._wanted()) > 0 and not stop():
            if time.monotonic() >= until:
                self._warn(f"{missing:,} subscriptions have not come back after {HOLD:g} s: going on without them")
                break
            self._serve_peers(_IDLE)
        self._waited = not stop()

    def _wanted(self) -> int:
        readers, begin = self._peer.readers, f"{self._source.name}.".encode()
        return sum(readers.readers(prefix) for prefix in readers.prefixes() if prefix.startswith(begin))

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
        """Publish the next records, if readers take more; return whether there were some."""
        if self._unsent:
            return True
        batch = self._log.take()
        if batch is None:
            return False
        if batch.warning:
            self._warn(batch.warning)
        if batch.records is not None:
            self._publish(batch.records)
        self._position = batch.at
        return True

    def _publish(self, records: Records) -> None:
        for sequence, topic, payload in zip(
            records.sequences.tolist(), records.topics.to_pylist(), records.payloads.to_pylist(), strict=True
        ):
            self.counts["records"] += 1
            if not topic.startswith(self._prefix):
                self.counts["other topics"] += 1
                continue
            try:
                kind, fields = fields_of(payload, self._source.dictionary)
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

    def _look_and_report(self) -> None:
        now = time.monotonic()
        if now - self._looked >= SAVE_INTERVAL:
            self._looked = now
            self._note_written()
        if now - self._reported >= REPORT_INTERVAL:
            self._reported = now
            self._say(self.progress())

    def _note_written(self) -> None:
        """Save what was published, once nothing of it waits for a subscriber."""
        if not self._unsent and self._peer.all_written():
            self._save(self._now())

    def _now(self) -> _Published:
        wanted = self._wanted() if self._waited else self._state.wanted  # or else the next run waits for them
        return _Published(self._position, self._source.take_changed(), wanted, dict(self.counts))

    def _save(self, published: _Published) -> None:
        self._saved_counts = published.counts
        if published.topics or (published.at, published.wanted) != (self._state.at, self._state.wanted):
            self._state.save(published.at, published.topics, published.wanted)

    def _end(self) -> None:
        """Wait until subscribers have taken what was published, and save what they have."""
        linger = self._peer.settings.linger
        until = time.monotonic() + linger
        if self._unsent or not self._peer.all_written():
            self._say(f"ending: waiting up to {linger:g} s until subscribers have taken what was sent")
        while self._unsent and time.monotonic() < until:
            self._serve_peers(_FULL)
        now = self._now()
        if self._peer.close(max(0.0, until - time.monotonic())) and not self._unsent:
            self._save(now)
            return
        saved, last = self._state.at, self._position.served
        self._state.save(saved, (), now.wanted)
        first = saved.served + 1 if saved.identity == self._position.identity else 1
        if first <= last:
            self._warn(
                f"subscribers did not take everything within {linger:g} s: records {first} to {last} are "
                "not counted, and are served again by the next start"
            )
        self.counts.update({what: self._saved_counts.get(what, 0) - self.counts[what] for what in _SERVED})

    def metrics(self) -> list[Metric]:
        """Its counters; for any thread."""
        source, readers = self._source, len(self._peer.readers)
        return measure(source.name, self.counts, len(source.topics), readers, len(self._unsent))

    def progress(self) -> str:
        counted = ", ".join(f"{n:,} {what}" for what, n in self.counts.items()) or "nothing yet"
        return f"{len(self._source.topics)} symbols, {len(self._peer.readers)} subscriptions; {counted}"


def measure(source: str, counts: Mapping[str, int], symbols: int, subscriptions: int, waiting: int) -> list[Metric]:
    """The metrics of a source; ``waiting``: messages that subscribers have not taken."""
    values = [*(counts.get(key, 0) for key in _COUNTERS), symbols, subscriptions, waiting]
    return measured("mama_source_", dict(_COUNTERS.values()) | _GAUGES, values, {"source": source})
