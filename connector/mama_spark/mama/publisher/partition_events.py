"""Events of a publisher while it publishes a partition of a DataFrame. Pure: values in, events out.

The number of events is bounded: a topic has one PUBLISH_CREATE and one PUBLISH_DESTROY; topics beyond
:data:`MAX_TOPICS` are counted in one event. Failed messages and lost connections have events for the first
:data:`MAX_ERRORS` of each kind, and are then counted. Loops are over failed rows and topics only.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from mama_spark.contracts.errors import ConfigError, MamaError, PublishError
from mama_spark.contracts.message import Int64s, MessageBatch
from mama_spark.contracts.topics import PART_HEADERS

from ..messages.event_records import COUNTS, CREATE, DESTROY, ERROR, LIVE, PUBLISHER, TOPIC, EventRecord
from ..messages.status import Status
from ..states import PublisherState, PublisherStep, TransportTopicEvent, status_of, step, topic_event_for

MAX_TOPICS = 1_000
MAX_ERRORS = 20

_PART_OF_HEADER = {header: part for part, header in PART_HEADERS.items()}


class PartitionEvents:
    """The lifecycle of one publisher. Order of calls: :meth:`create`, :meth:`live`, any number of :meth:`messages` and
    :meth:`trouble`, :meth:`destroy`, :meth:`destroyed`; each returns the events that it causes. Times are microseconds
    since the epoch.

    :param which: ``topic``: events of topics and of the publisher; ``publisher``: events of the publisher only, failed
        messages included; ``off``: none
    """

    def __init__(self, which: str, publisher: str, *, max_topics: int = MAX_TOPICS) -> None:
        self._topics, self._silent = which == "topic", which == "off"
        self._publisher = publisher
        self._max_topics = max_topics
        self._known: dict[str, Mapping[str, str]] = {}
        self._others: _Distinct | None = None
        self._last: pa.Array | None = None
        self._reported: set[tuple[object, ...]] = set()
        self._report_counts: Counter[tuple[object, ...]] = Counter()
        self._unreported: Counter[tuple[object, ...]] = Counter()
        self.state = PublisherState.CREATING

    @property
    def ended(self) -> bool:
        return self.state > PublisherState.LIVE

    # --- lifecycle of the publisher (PE-48..PE-54) -----------------------------------------------------------

    def create(self, at: int) -> list[EventRecord]:
        """Call before the bridge is opened."""
        return self._publisher_event(CREATE, at)

    def live(self, at: int) -> list[EventRecord]:
        """Call when the bridge is open."""
        self.state = step(self.state, PublisherStep.CREATED)
        return self._publisher_event(LIVE, at)

    def destroy(self, at: int) -> list[EventRecord]:
        """Call after the last message; reports the number of failures that had no event."""
        counts = [event for kind, n in self._unreported.items() for event in self._how_many_more(kind, n, at)]
        self._unreported.clear()
        if self.state is not PublisherState.LIVE:
            return counts  # it was never live, so that there is nothing to destroy
        events = [
            self._topic_event(TransportTopicEvent.PUBLISH_DESTROY, at, topic, parts)
            for topic, parts in self._known.items()
        ]
        if self._others is not None:
            number = self._others.count() - len(self._known)
            more = f"about {number:,} more topics, each without events of its own"
            events.append(self._topic_event(TransportTopicEvent.PUBLISH_CREATE, at, None, {}, info=more))
        self.state = step(self.state, PublisherStep.DESTROY)
        return [*counts, *events, *self._publisher_event(DESTROY, at)]

    def destroyed(self, at: int) -> list[EventRecord]:
        """Call when the bridge is closed."""
        if self.state is not PublisherState.DESTROYING:
            return []
        self.state = step(step(self.state, PublisherStep.BRIDGE_DESTROYED), PublisherStep.FREED)
        return self._publisher_event(DESTROY, at)

    def publisher_error(self, at: int, error: MamaError | None, info: str) -> list[EventRecord]:
        """Report a failure of the connection, the login or the whole publisher."""
        status, code = _status_and_code(error)
        kind = (PUBLISHER, ERROR, status, code)
        if not self._may_report(kind):
            return []
        return self._publisher_event(ERROR, at, status=status, code=code, info=info)

    def counts(self, at: int, taken: int, acked: int, failed: int, in_flight: int, info: str) -> EventRecord:
        """The event with the state of the publisher. May be called in any thread.

        :param info: text about what it waits for; empty = nothing
        """
        return EventRecord(
            PUBLISHER, COUNTS, at, publisher=self._publisher, state=self.state.name, info=info or None,
            taken=taken, acked=acked, failed=failed, in_flight=in_flight,
        )  # fmt: skip

    def has_reported(self, topics: pa.DictionaryArray) -> bool:
        """Whether :meth:`messages` returns no event for messages of these topics as long as none failed."""
        return not self._topics or (self._last is not None and topics.dictionary.equals(self._last))

    # --- messages --------------------------------------------------------------------------------------------

    def messages(
        self, batch: MessageBatch, sent: Int64s, failed: Int64s, errors: Mapping[int, PublishError], at: int
    ) -> list[EventRecord]:
        """Report settled messages.

        :param sent: time of the first send of each message, negative if it was not sent
        :param failed: rows that failed for good, ascending
        :param errors: error by row; may have other rows as well
        """
        if self._silent:
            return []
        events = self._new_topics(batch, sent) if self._topics else []
        if len(failed):
            events += self._failures(batch, failed, errors, at)
        return events

    def _new_topics(self, batch: MessageBatch, sent: Int64s) -> list[EventRecord]:
        if self.has_reported(batch.topics):
            return []
        names = batch.topics.dictionary
        if self._others is not None:
            self._last = names
            self._others.add(_sent_names(batch, sent))
            return []
        texts = names.to_pylist()
        new = np.array([code for code, topic in enumerate(texts) if topic not in self._known], np.int64)
        if not len(new):
            self._last = names
            return []
        first = _first_rows(batch, sent)[new]
        order = np.argsort(sent[first], kind="stable")
        new, first = new[order][first[order] >= 0], first[order][first[order] >= 0]
        free = self._max_topics - len(self._known)
        if len(new) > free:
            self._others = _Distinct()
            self._others.add(list(self._known))
            self._others.add([texts[code] for code in new.tolist()])
        events = []
        for code, row in zip(new[:free].tolist(), first[:free].tolist(), strict=True):
            parts = self._known[texts[code]] = _parts_of(batch, row)
            events.append(self._topic_event(TransportTopicEvent.PUBLISH_CREATE, int(sent[row]), texts[code], parts))
        return events

    def _failures(
        self, batch: MessageBatch, failed: Int64s, errors: Mapping[int, PublishError], at: int
    ) -> list[EventRecord]:
        """Events of failed rows. A loop is fine here: each failed row is a row of the flight log as well."""
        events = []
        for row in failed.tolist():
            error = errors[row]
            name = topic_event_for(status_of(error))
            kind = (TOPIC, name) if self._topics else (PUBLISHER, ERROR, error.status, error.code)
            if self._report_counts[kind] >= MAX_ERRORS:
                self._unreported[kind] += 1
                continue
            topic = batch.topics[row].as_py() or None
            same = (name, topic, error.status, error.code)
            if same in self._reported:
                self._unreported[kind] += 1
                continue
            self._reported.add(same)
            self._report_counts[kind] += 1
            why = {"status": error.status, "code": error.code or None, "info": error.info}
            if self._topics:
                events.append(self._topic_event(name, at, topic, _parts_of(batch, row), **why))
            else:
                events += self._publisher_event(ERROR, at, topic=topic, **why)
        return events

    # --- making events ---------------------------------------------------------------------------------------

    def _may_report(self, kind: tuple[object, ...]) -> bool:
        if self._report_counts[kind] >= MAX_ERRORS:
            self._unreported[kind] += 1
            return False
        self._report_counts[kind] += 1
        return True

    def _how_many_more(self, kind: tuple[object, ...], n: int, at: int) -> list[EventRecord]:
        info = f"{n:,} more of them, each without an event of its own"
        if kind[0] == TOPIC:
            return [self._topic_event(str(kind[1]), at, None, {}, info=info)]
        return self._publisher_event(ERROR, at, status=kind[2], code=kind[3] or None, info=info)

    def _publisher_event(self, event: str, at: int, **more: Any) -> list[EventRecord]:
        if self._silent:
            return []
        return [EventRecord(PUBLISHER, event, at, publisher=self._publisher, state=self.state.name, **more)]

    def _topic_event(
        self, event: str, at: int, topic: str | None, parts: Mapping[str, str], **more: Any
    ) -> EventRecord:
        more.update(parts)
        return EventRecord(TOPIC, str(event), at, topic=topic, publisher=self._publisher, **more)


def _first_rows(batch: MessageBatch, sent: Int64s) -> Int64s:
    """First row of each topic code that was sent, -1 if none was."""
    rows = np.flatnonzero(sent >= 0)[::-1]
    first = np.full(len(batch.topics.dictionary), -1, np.int64)
    first[np.asarray(batch.topics.indices)[rows]] = rows  # the last assignment wins: the lowest row
    return first


def _sent_names(batch: MessageBatch, sent: Int64s) -> list[str]:
    names = batch.topics.dictionary
    if (sent < 0).any():
        names = names.filter(pa.array(_first_rows(batch, sent) >= 0))
    found: list[str] = names.to_pylist()
    return found


def _parts_of(batch: MessageBatch, row: int) -> dict[str, str]:
    if batch.headers is None:
        return {}
    pairs = batch.headers[row].as_py() or ()
    return {_PART_OF_HEADER[name]: values[0] for name, values in pairs if name in _PART_OF_HEADER and values}


def _status_and_code(error: MamaError | None) -> tuple[str, int | None]:
    if isinstance(error, PublishError):
        return error.status, error.code or None
    return (Status.INVALID_ARG if isinstance(error, ConfigError) else Status.PLATFORM).name, None


class _Distinct:
    """Estimates the number of distinct texts: error about 2 % up to ten million, in a megabyte (linear counting)."""

    _BITS = 1 << 20

    def __init__(self) -> None:
        self._seen: npt.NDArray[np.bool_] = np.zeros(self._BITS, np.bool_)

    def add(self, texts: Sequence[str]) -> None:
        self._seen[np.fromiter(map(hash, texts), np.int64, len(texts)) % self._BITS] = True

    def count(self) -> int:
        empty = self._BITS - int(self._seen.sum())
        return round(self._BITS * math.log(self._BITS / max(empty, 1)))
