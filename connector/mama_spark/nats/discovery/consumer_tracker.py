"""Reads a stream of advisories: created and deleted consumers, and their topics."""

from __future__ import annotations

import time
from typing import NamedTuple

from mama_spark.contracts.bridge import DiscoveryEvent

from ..jetstream.client import JetStream
from ..protocol.direct_get import StoredMessage
from . import consumer_advisories as adv

_NEAR = 50  #: maximum distance in sequences between the advisory and the audit of a consumer
_TOGETHER = 250  #: audits read at a time
_PAUSE, _TRIES = 0.1, 20  #: seconds between two requests for an audit that is still missing, and their number
_FRESH_US = 10_000_000  #: microseconds after which a missing audit is not waited for
_LATE_US = 1_000_000  #: maximum microseconds between a consumer and its audit, by the clocks of the servers


class _Audits(NamedTuple):
    """Audits kept for the next advisories: all from sequence ``first`` to ``last``. ``newest``: time of the last of
    them at the server, microseconds since the epoch."""

    first: int = 0
    last: int = 0
    newest: int = 0
    readers: tuple[adv.AdvisoryReader, ...] = ()


class ConsumerTracker:
    """Reads advisories, and caches the audits near the last one."""

    def __init__(self, api: JetStream, clock_offset: float) -> None:
        self._api = api
        self._clock_offset = clock_offset
        self._generation, self._audits = "", _Audits()

    def changes(self, stream: str, record: StoredMessage, generation: str) -> list[DiscoveryEvent]:
        """Events of one record of the stream of advisories created at ``generation``; audits of another stream do not
        count."""
        if generation != self._generation:
            self._generation, self._audits = generation, _Audits()
        one = adv.consumer_event(record)
        if one is None:
            return []
        made: StoredMessage | None = record
        if one.deleted:
            made = self._last(stream, f"{adv.CREATED}{one.stream}.{one.consumer}", record.sequence)
        reader = None if made is None else self._reader(stream, made)
        if reader is not None and reader.internal:
            return []
        topics: list[str] = []
        if reader is not None and not reader.topics:
            there = self._api.stream(one.stream)
            topics = [] if there is None else list(there.subjects)
        return adv.events_of(record, one, reader, stream, topics)

    def _reader(self, stream: str, made: StoredMessage) -> adv.AdvisoryReader | None:
        """The audit of the request that created a consumer. It may be stored later than the advisory, but before audits
        of later requests."""
        consumer_event = adv.consumer_event(made)
        assert consumer_event is not None
        before = self._last(stream, f"{adv.DELETED}{consumer_event.stream}.{consumer_event.consumer}", made.sequence)
        deleted = None if before is None else adv.consumer_event(before)
        again = _TRIES if (time.monotonic() + self._clock_offset) * 1e6 - made.at < _FRESH_US else 0
        while True:
            audits = self._audits_near(stream, made.sequence)
            reader = adv.find_reader(consumer_event, deleted, audits.readers)
            if reader is not None or not again or audits.newest > consumer_event.at + _LATE_US:
                return reader
            again -= 1
            self._audits = _Audits()
            time.sleep(_PAUSE)

    def _audits_near(self, stream: str, sequence: int) -> _Audits:
        low = max(1, sequence - _NEAR)
        if not (self._audits.first <= low and sequence + _NEAR <= self._audits.last):
            found = self._api.get_many(stream, seq=low, next_by_subj=adv.AUDITS, batch=_TOGETHER)[0]
            readers = tuple(reader for record in found if (reader := adv.reader(record)) is not None)
            last, newest = (found[-1].sequence, adv.time_of(found[-1])) if found else (0, 0)
            self._audits = _Audits(low, last, newest, readers)
        return self._audits

    def _last(self, stream: str, subject: str, up_to: int) -> StoredMessage | None:
        found, _ = self._api.get_many(stream, multi_last=[subject], up_to_seq=up_to)
        return found[-1] if found else None
