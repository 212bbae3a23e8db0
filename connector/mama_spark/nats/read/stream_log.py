"""Reads, appends to and trims one JetStream stream: the record log of NATS."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import Bounds, CurrentRecords, MatchRange, RecordLog, Records, Removal
from mama_spark.contracts.served_log import LogState

from ..jetstream.answers import NO_CONSUMER, NO_SEQUENCE, ApiError, ConsumerInfo, StreamInfo
from ..jetstream.client import JetStream
from ..jetstream.consumers import most_consumers
from ..protocol.direct_get import micros
from ..subjects import PROGRESS_METADATA, filters_of, may_store, shows_progress, stores_text
from . import retention
from .append import append
from .current import read_current, read_newest, records_of_stored
from .log_connection import LogConnection
from .range_reader import Convert, RangeReader, SequenceRange, as_records
from .stream_index import StreamIndex, match_range
from .tail import NatsTail

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
_RESET_SINCE = (2, 14)  #: first version of the server that resets consumers; older ones do not answer
_RESET_TRY = 2.0  #: seconds; the stream's leader may be older than the server of the connection


class NatsLog(RecordLog):
    """Record log whose consumers have no acknowledgements, so that reading removes nothing.

    :param info: the server's last answer about the stream; None = ask it
    :raises ConfigError: there is no such stream, the permissions hide it, or it drops records that consumers have taken
    """

    def __init__(self, logs: LogConnection, name: str, info: StreamInfo | None = None) -> None:
        _require_name(name, "a stream")
        self._logs, self._api = logs, logs.api
        self.info = logs.stream(name) if info is None else info  #: as it was when the log was opened
        self._index = StreamIndex(logs, self.info)
        retention.require_log(name, self.info.retention)

    def __repr__(self) -> str:
        return f"<NatsLog {self.name}>"

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def opened(self) -> Bounds:
        return self.info.bounds

    def warnings(self, topics: Sequence[str] = ()) -> list[str]:
        found = retention.warnings(self.info)
        if self.info.last:
            unsure = [topic for topic in topics if may_store(self.info.config, topic) is None]
            found += [
                f"stream {self.name!r}, which gets its messages from other streams, holds none on {topic!r} now"
                for topic in unsure if not self._index.count([topic], 0)
            ]  # fmt: skip
        return found

    def require_topics(self, topics: Sequence[str]) -> None:
        """Stored topics count, too: the subjects of the stream may have changed."""
        for topic in topics:
            if may_store(self.info.config, topic) is False and not self._index.count([topic], 0):
                text = f"stream {self.name!r} holds no topic {topic!r}: it {stores_text(self.info.config)}"
                raise ConfigError(f"{text}. Correct option topics, or leave it out")

    def bounds(self) -> Bounds:
        return self._logs.stream(self.name).bounds

    def bounds_with(self, sequence: int, identity: str) -> Bounds:
        return self._logs.stream(self.name, (identity, sequence)).bounds

    # --- reading ---------------------------------------------------------------------------------------------

    def read(self, after: int, up_to: int, topics: Sequence[str] = ()) -> Iterator[Records]:
        """Reads up to the range's end as the leader knows it; a few megabytes are fetched ahead. Closing the iterator
        deletes its consumer. Unavailable: no replica has all of the range within the time limit."""
        wanted = SequenceRange(after, up_to, filters_of(topics))
        yield from self.read_as(wanted, as_records(wanted))

    def read_views(self, after: int, up_to: int, topics: Sequence[str] = ()) -> Iterator[Records]:
        wanted = SequenceRange(after, up_to, filters_of(topics))
        yield from self.read_as(wanted, as_records(wanted, views=True))

    def read_as(self, wanted: SequenceRange, convert: Convert[T]) -> Iterator[T]:
        """As :meth:`read`, with the results of ``convert`` for the deliveries."""
        return iter(RangeReader(self._logs, self.info, wanted, convert))

    def current(self, topics: Sequence[str] = (), since: int = 0, payloads: bool = True) -> Iterator[Records]:
        stream = self._logs.stream_with(self.name, since)
        return read_newest(self._logs, stream, filters_of(topics), payloads)

    def read_current(self, wanted: CurrentRecords, topics: Sequence[str] = ()) -> Iterator[Records]:
        return read_current(self._logs, self.info, self._index, wanted, filters_of(topics))

    def missing(self, after: int, up_to: int) -> list[tuple[int, int]]:
        """Sequences after the last record are not missing."""
        return self._index.missing(self._logs.stream(self.name), after, up_to)

    def missing_at_open(self, after: int, up_to: int) -> list[tuple[int, int]]:
        return self._index.missing(self.info, after, up_to)

    def sequence_at(self, time: int) -> int:
        """The start of a consumer that begins at this time."""
        return self._index.first_at(time)

    def most_readers(self) -> tuple[int, str] | None:
        return most_consumers(self._api, self.info)

    def match_range(self, after: int, up_to: int, topics: Sequence[str], limit: int) -> MatchRange | None:
        return match_range(limit, after, up_to, partial(self._index.count, filters_of(topics)))

    # --- writing ---------------------------------------------------------------------------------------------

    def append(self, batch: MessageBatch) -> int:
        last = append(self._logs.settings, self.name, batch, self._logs.timeout)
        return self.bounds().last if last is None else last

    def trim(self, before: int) -> None:
        """See :class:`~mama_spark.contracts.record_log.RecordLog`. Purges up to a sequence (NATS ADR-10); never skips
        sequences, however large ``before`` is."""
        bounds = self.bounds()
        if before <= bounds.first:
            return
        try:
            self._api.request(f"STREAM.PURGE.{self.name}", {"seq": min(before, bounds.last + 1)})
        except ApiError as e:
            raise ConfigError(f"stream {self.name!r} cannot be trimmed: {e}") from e

    def delete(self, sequences: Sequence[int]) -> None:
        calls = [(f"STREAM.MSG.DELETE.{self.name}", {"seq": one, "no_erase": True}) for one in sequences]
        for one, answer in zip(sequences, self._api.request_all(calls), strict=True):
            if isinstance(answer, ApiError) and answer.code == NO_SEQUENCE:
                continue
            if isinstance(answer, ConfigError):
                raise ConfigError(f"message {one} of stream {self.name!r} cannot be deleted: {answer}") from answer
            if isinstance(answer, MamaError):
                raise answer

    @property
    def removal(self) -> Removal:
        return retention.removal(self.info)

    @property
    def made(self) -> int | None:
        return micros(self.info.created)

    # --- telemetry -------------------------------------------------------------------------------------------

    def progress(self, name: str, up_to: int, topics: Sequence[str] = ()) -> None:
        """See :class:`~mama_spark.contracts.record_log.RecordLog`. For monitoring: errors are only logged."""
        try:
            _show_progress(self._api, self.name, name, max(0, up_to) + 1, sorted(filters_of(topics)))
        except MamaError as e:
            _LOG.warning("the progress of consumer %r on stream %r cannot be shown: %s", name, self.name, e)


class ServedStream:
    """A :class:`~mama_spark.contracts.served_log.ServedLog`."""

    def __init__(self, logs: LogConnection, name: str) -> None:
        self._logs, self.records = logs, NatsLog(logs, name)

    def state(self) -> LogState:
        now = self._logs.stream(self.records.name)
        if now.created != self.records.info.created:
            raise ConfigError(f"stream {self.records.name!r} was deleted and created again")
        return LogState(now.bounds, now.messages, now.size, retention.settings_of(now))

    def decided_last(self, topic: str, patience: float) -> int:
        return self._logs.decided_last(self.records.name, topic, patience)

    def read_without_payloads(self, after: int, up_to: int) -> Iterator[Records]:
        wanted = SequenceRange(after, up_to, [], payloads=False)
        yield from self.records.read_as(wanted, as_records(wanted))

    def tail(self, after: int, topics: Sequence[str], name: str) -> NatsTail:
        return NatsTail(self._logs, self.records.info, after, filters_of(topics), name)

    def newest(self, topic: str) -> Records | None:
        found = self._logs.api.message(self.records.name, last_by_subj=topic)
        return None if found is None else records_of_stored([found])


def _show_progress(api: JetStream, stream: str, consumer: str, following: int, filters: list[str]) -> None:
    """Show that all records below ``following`` are read, as the floor of acknowledgements of the consumer, which a
    reset moves (NATS ADR-60). The consumer is created if missing, and delivers nothing."""
    _require_name(consumer, "a consumer")
    what = f"{stream}.{consumer}"
    answer = api.find(f"CONSUMER.INFO.{what}", None, NO_CONSUMER)
    if answer is not None:
        there = ConsumerInfo.of(answer)
        if not shows_progress(there.config):
            raise ConfigError(f"consumer {consumer!r} of stream {stream!r} is somebody else's: choose another name")
        if sorted(there.filters) == filters and api.connection().info.version_numbers >= _RESET_SINCE:
            with contextlib.suppress(ApiError, Unavailable):
                api.request(f"CONSUMER.RESET.{what}", {"seq": following}, timeout=min(_RESET_TRY, api.timeout))
                return
        api.request(f"CONSUMER.DELETE.{what}")
    made: dict[str, Any] = {
        "durable_name": consumer,
        "name": consumer,
        "description": "how far a query of mama-spark has come",
        "ack_policy": "all",
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": following,
        "metadata": PROGRESS_METADATA,
    }
    if filters:
        made["filter_subjects"] = filters
    api.request(f"CONSUMER.CREATE.{what}", {"stream_name": stream, "config": made})


def _require_name(name: str, of: str) -> None:
    """Check the name of a stream or consumer. ConfigError: it is none."""
    if not name or any(c in name for c in " .*>/\\\t\r\n\0"):
        raise ConfigError(f"{name!r} is no name of {of}")
