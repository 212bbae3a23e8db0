"""Reads a range of a stream, by one consumer after another (:mod:`.consumer_course`).

The range is read to its end when a record at or after the end was delivered, when a new consumer has nothing pending,
or when two consumers in a row deliver nothing and report so later. The leader of the stream must have the end, and no
more records of the range: the consumer's replica may lack some, and so may a new leader, which is waited for.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from mama_spark.contracts.errors import ConfigError, Unavailable
from mama_spark.contracts.record_log import Records

from ..jetstream.answers import NO_CONSUMER, NO_STREAM, ApiError, ConsumerInfo, StreamInfo
from ..jetstream.consumers import CONSUMER_KEPT, create_consumer, delete_soon, no_stream_any_more
from ..protocol.parser import ProtocolError
from ..protocol.records import DeliveryBuffer, DeliveryNumbers, delivery_numbers, records_of, records_up_to
from .consumer_course import ConsumerCourse, SubscriptionBroken
from .log_connection import LogConnection
from .pull_subscription import REQUEST_BYTES, ROWS, PullSubscription

_SILENCE = 0.5  #: seconds without a record after which the state of the consumer is requested
_INFO_TIMEOUT = 3.0
#: Seconds between two reads from a replica that lacks messages.
_REPLICA_BEHIND = 0.05


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """The records ``after < sequence <= up_to`` on ``filters`` (none = all).

    :ivar up_to: a sequence of the stream; ``sys.maxsize`` = all records, also new ones
    :ivar newest: only the last record of each subject of those at the beginning of the read; all newer ones, and all
        that follow a lost consumer
    """

    after: int
    up_to: int
    filters: list[str]
    headers: bool = True
    payloads: bool = True
    newest: bool = False


T = TypeVar("T")
#: Converts a buffer of deliveries and its numbers; None = nothing.
Convert = Callable[[DeliveryBuffer, DeliveryNumbers], T | None]


def as_records(wanted: SequenceRange, views: bool = False) -> Convert[Records]:
    """Conversion into records of the range; ``views``: see :func:`~mama_spark.nats.protocol.records.records_of`."""

    def convert(buffer: DeliveryBuffer, numbers: DeliveryNumbers) -> Records | None:
        records = records_up_to(records_of(buffer, numbers, wanted.headers, views), wanted.up_to)
        return records if len(records) else None

    return convert


class RangeReader(Generic[T]):
    """Reads one range of ``stream``, as it was when its log was opened. ``convert`` gets the deliveries of the range;
    the last ones may lie behind its end."""

    def __init__(self, logs: LogConnection, stream: StreamInfo, wanted: SequenceRange, convert: Convert[T]) -> None:
        self._logs, self._api, self._timeout = logs, logs.api, logs.timeout
        self._stream, self._wanted, self._convert = stream, wanted, convert
        self._course = ConsumerCourse(max(0, wanted.after), time.monotonic())
        self._exhausted = False  # two consumers reported later that nothing is left, perhaps wrongly

    def __iter__(self) -> Iterator[T]:
        """Results of the range. Unavailable: no replica has all of it within the time limit."""
        course, until = self._course, time.monotonic() + self._timeout
        while course.position < self._wanted.up_to:
            before = course.position
            yield from self._read_replica()
            if course.position >= self._wanted.up_to or not self._leader_has_more():
                return
            if course.position > before:
                until = time.monotonic() + self._timeout
            if time.monotonic() > until:
                raise Unavailable(
                    f"no replica of stream {self._stream.name!r} delivers the stored records after sequence "
                    f"{course.position}"
                )
            time.sleep(_REPLICA_BEHIND)

    def _leader_has_more(self) -> bool:
        if self._stream.replicas < 2:  # the consumer is where the stream is
            exhausted, self._exhausted = self._exhausted, False
            return exhausted and self._next_is_stored()
        self._exhausted = False
        end = self._stream.last if self._wanted.up_to == sys.maxsize else self._wanted.up_to
        while True:  # until one and the same leader, which has the end, has answered
            led = self._leader_with(end)
            if self._next_is_stored():
                return True
            if self._leader_with(end) == led:
                return False

    def _leader_with(self, sequence: int) -> tuple[str | None, str]:
        found = self._logs.stream_with(self._stream.name, sequence)
        return found.leader, found.leads_since

    def _next_is_stored(self) -> bool:
        for subject in self._wanted.filters or [">"]:
            found = self._api.message(self._stream.name, seq=self._course.position + 1, next_by_subj=subject)
            if found is not None and found.sequence <= self._wanted.up_to:
                return True
        return False

    def _read_replica(self) -> Iterator[T]:
        """Read until a consumer has no more of the range."""
        self._course.heard = time.monotonic()
        while self._course.position < self._wanted.up_to:
            try:
                consumer = self._create()
                if consumer is None or (yield from self._consume(consumer)):
                    return
            except (SubscriptionBroken, ProtocolError) as e:
                if time.monotonic() - self._course.heard > self._timeout:
                    raise Unavailable(
                        f"nothing comes from stream {self._stream.name!r} for {self._timeout:g} s: {e}"
                    ) from e
                time.sleep(self._course.fail())
                self._check_identity()

    def _check_identity(self) -> None:
        """Check that the stream is the same. ConfigError: it was deleted, and perhaps created again."""
        if self._logs.stream(self._stream.name).created != self._stream.created:
            raise ConfigError(f"stream {self._stream.name!r} was deleted and made again while it was read")

    def _create(self) -> ConsumerInfo | None:
        """Create a consumer; None if nothing is pending for it."""
        wanted, name = self._wanted, self._stream.name
        config: dict[str, Any] = {"deliver_policy": "by_start_sequence", "opt_start_seq": self._course.position + 1}
        if wanted.newest and self._course.position == max(0, wanted.after):
            config = {"deliver_policy": "last_per_subject", "filter_subjects": [">"]}
        if not wanted.payloads:
            config["headers_only"] = True
        if wanted.filters:
            config["filter_subjects"] = wanted.filters
        consumer = create_consumer(self._api, name, config, self._stream.idle_limit(CONSUMER_KEPT))
        if consumer.pending:
            return consumer
        delete_soon(self._logs.connection(), name, consumer.name)
        return None

    def _consume(self, consumer: ConsumerInfo) -> Generator[T, None, bool]:
        """Read from a consumer; true if nothing is left of the range."""
        connection, course, wanted = self._logs.connection(), self._course, self._wanted
        most = None
        if wanted.newest:
            size = self._stream.size // max(1, self._stream.messages) if wanted.payloads else 0
            most = max(1, min(ROWS, REQUEST_BYTES // max(1, size)))
        subscription = PullSubscription(
            *(connection, self._stream.name, consumer.name, course.position, wanted.up_to),
            allowed=consumer.most_requested,
            most=most,
        )
        self._logs.subscriptions.add(subscription)
        try:
            subscription.start()
            return (yield from self._deliveries(subscription))
        finally:
            self._logs.subscriptions.discard(subscription)
            subscription.close()

    def _deliveries(self, subscription: PullSubscription) -> Generator[T, None, bool]:
        course, now = self._course, time.monotonic
        course.begin()
        while course.position < self._wanted.up_to:
            buffer = subscription.next(_SILENCE)
            if buffer is None:
                if self._check(subscription.consumer):
                    self._exhausted = True
                    return True
                continue
            numbers = delivery_numbers(buffer)
            course.take(numbers, now())
            converted = self._convert(buffer, numbers)
            if converted is not None:
                yield converted
            course.heard = now()
            if numbers.pending == 0:  # only for a new consumer
                return False
        return True

    def _check(self, consumer: str) -> bool:
        """Ask for the state of a silent consumer; true if nothing is left of the range. SubscriptionBroken: it is gone
        or lost (:class:`ConsumerCourse`). ConfigError: the stream is gone."""
        try:
            limit = min(_INFO_TIMEOUT, self._timeout)
            answer = self._api.request(f"CONSUMER.INFO.{self._stream.name}.{consumer}", timeout=limit)
        except Unavailable as e:  # its server, or each server, is away: the next request shows which
            raise SubscriptionBroken(str(e)) from e
        except ApiError as e:
            if e.code == NO_STREAM:
                raise no_stream_any_more(self._stream.name) from e
            if e.code != NO_CONSUMER:
                raise
            raise SubscriptionBroken(f"the consumer is gone: {e}") from e
        info, now = ConsumerInfo.of(answer), time.monotonic()
        if self._course.has_nothing_left(info, now):
            return True
        self._course.check(info, now)
        if self._wanted.newest and info.delivered <= self._course.delivered:
            raise SubscriptionBroken("the consumer stands still where a last message was removed before its turn")
        if now - self._course.heard > self._timeout:
            raise SubscriptionBroken("the consumer has records and sends none")
        return False
