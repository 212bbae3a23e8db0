"""Reads, appends to and trims one JetStream stream: the record log of NATS."""

from __future__ import annotations

import contextlib
import logging
import time
from base64 import b64decode
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable
from mama_spark.contracts.message import MessageBatch
from mama_spark.contracts.record_log import Bounds, MatchRange, RecordLog, Records
from mama_spark.contracts.served_log import LogState

from ..jetstream.api import NO_CONSUMER, NO_MESSAGE, NO_STREAM, ApiError
from ..jetstream.consumers import create_consumer, most_consumers
from ..protocol import records as rc
from ..subjects import PROGRESS_METADATA, filters_of, may_store, stores_text
from . import retention
from .append import append
from .matching import match_range
from .range_reader import KEPT, Convert, RangeReader, SequenceRange, as_records
from .tail import LogAccess, NatsTail

T = TypeVar("T")

_LOG = logging.getLogger(__name__)
#: Maximum number of deleted records that the server is asked to list, which it does in one message of any size. With
#: more, the existing records are read instead.
MOST_LISTED = 100_000
#: Seconds until a replica that lacks messages is asked again.
_REPLICA_BEHIND = 0.05
_RESET_TRY = 2.0  #: seconds; a server older than 2.14 does not answer the request
_FIRST, _LAST = datetime(1970, 1, 1, tzinfo=UTC), datetime(2261, 12, 31, tzinfo=UTC)  # times that the server accepts


class NatsLog(RecordLog):
    """See :class:`~mama_spark.contracts.record_log.RecordLog`. Reading removes nothing: its consumers have no
    acknowledgements.

    :param info: what the server has just said of the stream; None = it is asked
    :raises ConfigError: there is no such stream, the permissions hide it, or it drops what consumers have taken
    """

    def __init__(self, bridge: LogAccess, name: str, info: dict[str, Any] | None = None) -> None:
        self._bridge, self._api, self._name = bridge, bridge.api, name
        _check_name(name, "a stream")
        info = self._info() if info is None else info
        self._identity = str(info["created"])
        self._config: dict[str, Any] = info["config"]
        retention.require_log(name, self._config.get("retention", "limits"))
        self._opened, self._deleted_when_opened = _bounds(info), _deleted(info)

    def __repr__(self) -> str:
        return f"<NatsLog {self._name}>"

    @property
    def name(self) -> str:
        return self._name

    @property
    def opened(self) -> Bounds:
        """See :class:`~mama_spark.contracts.record_log.RecordLog`."""
        return self._opened

    def warnings(self, topics: Sequence[str] = ()) -> list[str]:
        """See :class:`~mama_spark.contracts.record_log.RecordLog`."""
        found = retention.warnings(self._name, self._config)
        if self._opened.last:
            unsure = [topic for topic in topics if may_store(self._config, topic) is None]
            found += [
                f"stream {self._name!r}, which gets its messages from other streams, holds none on {topic!r} now"
                for topic in unsure if not self._count([topic], 0)
            ]  # fmt: skip
        return found

    def require_topics(self, topics: Sequence[str]) -> None:
        """See :class:`~mama_spark.contracts.record_log.RecordLog`. What the stream holds counts, too: its subjects may
        have been others."""
        for topic in topics:
            if may_store(self._config, topic) is False and not self._count([topic], 0):
                raise ConfigError(
                    f"stream {self._name!r} holds no topic {topic!r}: it {stores_text(self._config)}. Correct option "
                    "topics, or leave it out"
                )

    @property
    def config(self) -> dict[str, Any]:
        """Of the stream, as it was when the log was opened."""
        return self._config

    def bounds(self) -> Bounds:
        """See :class:`~mama_spark.contracts.record_log.RecordLog`; the identity is the creation time of the stream."""
        return _bounds(self._info())

    def _info(self, **what: Any) -> dict[str, Any]:
        try:
            return self._api.request(f"STREAM.INFO.{self._name}", what or None)
        except ApiError as e:
            text = f"there is no stream {self._name!r}" if e.code == NO_STREAM else f"stream {self._name!r}: {e}"
            raise ConfigError(text) from e

    def _check_identity(self) -> None:
        """:raises ConfigError: the stream was deleted, or deleted and created again"""
        if str(self._info()["created"]) != self._identity:
            raise ConfigError(f"stream {self._name!r} was deleted and made again while it was read")

    # --- reading ---------------------------------------------------------------------------------------------

    def read(self, after: int, up_to: int, topics: Sequence[str] = ()) -> Iterator[Records]:
        """See :class:`~mama_spark.contracts.record_log.RecordLog`. The end of a range is that which the leader of the
        stream has.

        Closing the iterator deletes its consumer; a few megabytes are fetched ahead.

        :raises Unavailable: no replica has all of the range within the time limit
        """
        return self._read_topics(after, up_to, topics, views=False)

    def read_views(self, after: int, up_to: int, topics: Sequence[str] = ()) -> Iterator[Records]:
        """See :class:`~mama_spark.contracts.record_log.RecordLog`."""
        return self._read_topics(after, up_to, topics, views=True)

    def _read_topics(self, after: int, up_to: int, topics: Sequence[str], *, views: bool) -> Iterator[Records]:
        filters, kept = filters_of(topics), self._inactive_threshold(KEPT)
        wanted = SequenceRange(self._name, max(0, after), up_to, filters, kept=kept)
        yield from self._read_whole(wanted, as_records(wanted, views))

    def read_all(self, after: int, up_to: int, convert: Convert[T], *, payloads: bool) -> Iterator[T]:
        """What ``convert`` makes of the deliveries of this range, on all topics; otherwise as :meth:`read`."""
        kept = self._inactive_threshold(KEPT)
        yield from self._read_whole(SequenceRange(self._name, after, up_to, [], True, payloads, kept), convert)

    def _read_whole(self, wanted: SequenceRange, convert: Convert[T]) -> Iterator[T]:
        """Read up to the end of the range as the leader of the stream has it: the consumer may be at a replica that
        does not have all of it yet, and that is waited for.

        :raises Unavailable: none has it within the time limit
        """
        after, until = wanted.after, time.monotonic() + self._bridge.timeout
        while after < wanted.up_to:
            reader = RangeReader(
                self._api, self._bridge.connection, replace(wanted, after=after), convert, self._check_identity,
                self._bridge.subscriptions,
            )  # fmt: skip
            yield from reader
            if reader.position > after:
                after, until = reader.position, time.monotonic() + self._bridge.timeout
            unsure = reader.gave_up or int(self._config.get("num_replicas", 1)) > 1  # else it is where the stream is
            if after >= wanted.up_to or not (unsure and self._leader_has_more(after, wanted.up_to, wanted.filters)):
                return
            if time.monotonic() > until:
                raise Unavailable(
                    f"no replica of stream {self._name!r} brings what follows sequence {after}, which is stored"
                )
            time.sleep(_REPLICA_BEHIND)

    def _leader_has_more(self, after: int, up_to: int, filters: list[str]) -> bool:
        for subject in filters or [">"]:
            try:
                answer = self._api.request(f"STREAM.MSG.GET.{self._name}", {"seq": after + 1, "next_by_subj": subject})
            except ApiError as e:
                if e.code != NO_MESSAGE:
                    raise
                continue
            if int(answer["message"]["seq"]) <= up_to:
                return True
        return False

    def _inactive_threshold(self, seconds: float) -> float:
        """Seconds that a consumer may be idle, at most what the stream allows."""
        allowed = (self._config.get("consumer_limits") or {}).get("inactive_threshold")
        return min(seconds, allowed / 1e9) if allowed else seconds

    def read_without_payloads(self, after: int, up_to: int) -> Iterator[Records]:
        """See :class:`~mama_spark.contracts.served_log.ServedLog`."""
        kept = self._inactive_threshold(KEPT)
        wanted = SequenceRange(self._name, max(0, after), up_to, [], True, False, kept)
        yield from self._read_whole(wanted, as_records(wanted))

    def tail(self, after: int, topics: Sequence[str], name: str) -> NatsTail:
        """See :class:`~mama_spark.contracts.served_log.ServedLog`."""
        kept = self._inactive_threshold(KEPT)
        return NatsTail(self._bridge, self._name, self._identity, after, filters_of(topics), kept, name)

    def newest(self, topic: str) -> Records | None:
        """See :class:`~mama_spark.contracts.served_log.ServedLog`."""
        try:
            found = self._api.request(f"STREAM.MSG.GET.{self._name}", {"last_by_subj": topic})["message"]
        except ApiError as e:
            if e.code != NO_MESSAGE:
                raise
            return None
        blocks: list[bytes | None] = [b64decode(found.get("hdrs", ""))]
        return Records(
            np.array([int(found["seq"])]),
            np.array([_microseconds(found["time"])]),
            pa.array([found["subject"]]),
            pa.array([b64decode(found.get("data", ""))], pa.binary()),
            rc.header_column(blocks, 1),
        )

    def state(self) -> LogState:
        """See :class:`~mama_spark.contracts.served_log.ServedLog`."""
        info = self._info()
        if str(info["created"]) != self._identity:
            raise ConfigError(f"stream {self._name!r} was deleted and created again")
        state, config = info["state"], info["config"]
        return LogState(_bounds(info), int(state["messages"]), int(state["bytes"]), retention.settings_of(config))

    def missing(self, after: int, up_to: int) -> list[tuple[int, int]]:
        """See :class:`~mama_spark.contracts.record_log.RecordLog`. Sequences after the last record are not missing."""
        return self.inspect_range(after, up_to)[1]

    def inspect_range(self, after: int, up_to: int) -> tuple[Bounds, list[tuple[int, int]]]:
        """See :class:`~mama_spark.contracts.record_log.RecordLog`."""
        info = self._info()
        bounds = _bounds(info)
        return bounds, self._missing(bounds, _deleted(info), after, up_to)

    def missing_when_opened(self, after: int, up_to: int) -> list[tuple[int, int]]:
        """See :class:`~mama_spark.contracts.record_log.RecordLog`."""
        return self._missing(self._opened, self._deleted_when_opened, after, up_to)

    def _missing(self, bounds: Bounds, deleted: int, after: int, up_to: int) -> list[tuple[int, int]]:
        """:param deleted: how many sequences within ``bounds`` are deleted"""
        low, high = max(0, after) + 1, min(up_to, bounds.last)
        found = [(low, min(high, bounds.first - 1))] if low <= high and low < bounds.first else []
        low = max(low, bounds.first)
        if low > high or not deleted:
            return found
        if deleted > MOST_LISTED:
            return rc.merge_ranges(found + self._scan_missing(low, high))
        listed = np.array(self._info(deleted_details=True)["state"].get("deleted") or [], np.int64)
        return rc.merge_ranges(found + rc.ranges(listed[(listed >= low) & (listed <= high)]))

    def _scan_missing(self, low: int, high: int) -> list[tuple[int, int]]:
        """Sequences between ``low`` and ``high`` without a record, found by reading without payloads."""
        found: list[tuple[int, int]] = []
        wanted = SequenceRange(self._name, low - 1, high, [], False, False, self._inactive_threshold(KEPT))
        for records in self._read_whole(wanted, as_records(wanted)):
            last = int(records.sequences[-1])
            found += rc.missing_ranges(records.sequences, low, last)
            low = last + 1
        return [*found, (low, high)] if low <= high else found

    def at(self, time: int) -> int:
        """See :class:`~mama_spark.contracts.record_log.RecordLog`: the start of a consumer that begins at this time."""
        where = {"deliver_policy": "by_start_time", "opt_start_time": _rfc3339(time)}
        return int(self._of_new_consumer(where)["delivered"]["stream_seq"]) + 1

    def most_readers(self) -> tuple[int, str] | None:
        """See :class:`~mama_spark.contracts.record_log.RecordLog`."""
        return most_consumers(self._api, self._config)

    def match_range(self, after: int, up_to: int, topics: Sequence[str], limit: int) -> MatchRange | None:
        """See :class:`~mama_spark.contracts.record_log.RecordLog`."""
        return match_range(limit, after, up_to, partial(self._count, filters_of(topics)))

    def _count(self, filters: list[str], after: int) -> int:
        """What a consumer that begins there would have pending. The server computes it from its index of subjects,
        block by block, without reading messages."""
        where = {"deliver_policy": "by_start_sequence", "opt_start_seq": max(0, after) + 1, "filter_subjects": filters}
        return int(self._of_new_consumer(where)["num_pending"])

    def _of_new_consumer(self, where: dict[str, Any]) -> dict[str, Any]:
        """Create a consumer, delete it again, and return its initial state."""
        consumer, info = create_consumer(self._api, self._name, where, self._inactive_threshold(5.0))
        with contextlib.suppress(MamaError):  # the server deletes it after a while
            self._api.request(f"CONSUMER.DELETE.{self._name}.{consumer}", timeout=1.0)
        return info

    # --- writing ---------------------------------------------------------------------------------------------

    def append(self, batch: MessageBatch) -> int:
        """See :class:`~mama_spark.contracts.record_log.RecordLog`."""
        last = append(self._bridge.settings, self._name, batch, self._bridge.timeout)
        return self.bounds().last if last is None else last

    def trim(self, before: int) -> None:
        """See :class:`~mama_spark.contracts.record_log.RecordLog`; by a purge up to a sequence (NATS ADR-10). Sequences
        are never skipped, however large ``before`` is."""
        bounds = self.bounds()
        if before <= bounds.first:
            return
        try:
            self._api.request(f"STREAM.PURGE.{self._name}", {"seq": min(before, bounds.last + 1)})
        except ApiError as e:
            raise ConfigError(f"stream {self._name!r} cannot be trimmed: {e}") from e

    # --- telemetry -------------------------------------------------------------------------------------------

    def progress(self, name: str, up_to: int, topics: Sequence[str] = ()) -> None:
        """Let the durable consumer ``name`` show that everything up to ``up_to`` was read.

        It is created if missing and delivers nothing; one request moves it. For monitoring: a failure is only logged.
        """
        try:
            _check_name(name, "a consumer")
            self._show_progress(name, max(0, up_to) + 1, sorted(filters_of(topics)))
        except MamaError as e:
            _LOG.warning("the progress of consumer %r on stream %r cannot be shown: %s", name, self._name, e)

    def _show_progress(self, consumer: str, following: int, filters: list[str]) -> None:
        """Show that everything below ``following`` was read, as the floor of acknowledgements of the consumer; a reset
        moves it (NATS ADR-60).

        For ``nats consumer info`` and tools that watch lag. Nobody reads through it, and nothing depends on it.
        """
        what = f"{self._name}.{consumer}"
        try:
            config = self._api.request(f"CONSUMER.INFO.{what}")["config"]
        except ApiError as e:
            if e.code != NO_CONSUMER:
                raise
        else:
            if not PROGRESS_METADATA.items() <= (config.get("metadata") or {}).items():
                raise ConfigError(
                    f"consumer {consumer!r} of stream {self._name!r} is somebody else's: choose another name"
                )
            one = config.get("filter_subject")
            if sorted(config.get("filter_subjects") or ([one] if one else [])) == filters:
                with contextlib.suppress(ApiError, Unavailable):
                    limit = min(_RESET_TRY, self._api.timeout)
                    self._api.request(f"CONSUMER.RESET.{what}", {"seq": following}, timeout=limit)
                    return
            self._api.request(f"CONSUMER.DELETE.{what}")
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
        self._api.request(f"CONSUMER.CREATE.{what}", {"stream_name": self._name, "config": made})


def _check_name(name: str, of: str) -> None:
    if not name or any(c in name for c in " .*>/\\\t\r\n\0"):
        raise ConfigError(f"{name!r} is no name of {of}")


def _bounds(info: dict[str, Any]) -> Bounds:
    state = info["state"]
    last = int(state["last_seq"])
    first = int(state["first_seq"]) if int(state["messages"]) else last + 1
    return Bounds(first, last, str(info["created"]), _microseconds(state["last_ts"]) if first <= last else None)


def _deleted(info: dict[str, Any]) -> int:
    """How many sequences within the bounds are deleted."""
    return int(info["state"].get("num_deleted", 0))


def _microseconds(time: str) -> int:
    """Of a time of the server, without its last three decimals."""
    return (datetime.fromisoformat(time) - _FIRST) // timedelta(microseconds=1)


def _rfc3339(time: int) -> str:
    try:
        moment = _FIRST + timedelta(microseconds=time)
    except OverflowError:
        moment = _FIRST if time < 0 else _LAST
    return min(max(moment, _FIRST), _LAST).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
