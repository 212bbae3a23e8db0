"""Reads a range of a stream: one consumer after another until the range is read.

The range is read when a record at or after its end was delivered, when a new consumer has nothing pending, or when two
in a row delivered nothing and say so later: servers differ in what they count for a filter that matches nothing. In all
other cases (a gap in the consumer's sequences, silence, a lost connection, a deleted consumer, a restarted server),
another consumer is created after the last record passed on, as by an ordered consumer (NATS ADR-17); so no record is
lost or read twice.
"""

from __future__ import annotations

import contextlib
import time
from base64 import b64decode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import MamaError, Unavailable
from mama_spark.contracts.record_log import Records

from ..connection.connection import Connection
from ..jetstream.api import NO_CONSUMER, NO_MESSAGE, ApiError, BlockingJetStreamClient, JetStreamClient
from ..jetstream.consumers import create_consumer
from ..protocol.parser import ProtocolError
from ..protocol.records import (
    DeliveryBuffer,
    DeliveryNumbers,
    OutOfOrder,
    delivery_numbers,
    records_of,
    records_up_to,
)
from .pull_subscription import UNKNOWN, PullSubscription, SubscriptionBroken

KEPT = 30.0  #: seconds without a request after which the server deletes our consumers, if the stream allows
_SILENCE = 0.5  #: seconds without a record after which the state of the consumer is requested
#: Seconds to wait for records under way, by the number of consecutive consumers without a record.
_IN_TRANSIT = Backoff(2.0, 3600.0)
#: Delay before the next consumer; none after a consumer with records.
_BACKOFF = Backoff(0.05, 1.0)
_INFO_TIMEOUT = 3.0


@dataclass(frozen=True, slots=True)
class SequenceRange:
    """The records ``after < sequence <= up_to`` on ``filters`` (none = all) of ``stream``.

    :ivar kept: seconds without a request after which the server may delete our consumers
    """

    stream: str
    after: int
    up_to: int
    filters: list[str]
    headers: bool = True
    payloads: bool = True
    kept: float = KEPT


T = TypeVar("T")
#: Makes what the caller wants of a buffer of deliveries and its numbers; None = nothing.
Convert = Callable[[DeliveryBuffer, DeliveryNumbers], T | None]


def as_records(wanted: SequenceRange, views: bool = False) -> Convert[Records]:
    """Records of the range.

    :param views: see :func:`~mama_spark.nats.protocol.records.records_of`
    """

    def convert(buffer: DeliveryBuffer, numbers: DeliveryNumbers) -> Records | None:
        records = records_up_to(records_of(buffer, numbers, wanted.headers, views), wanted.up_to)
        return records if len(records) else None

    return convert


class RangeReader(Generic[T]):
    """Reads one range.

    :param connection: returns the connection; a new one if the last one was closed
    :param wanted: the range
    :param convert: what is made of the deliveries of the range, of which the last ones may lie behind its end
    :param check_stream: raises if the stream is not the one of the range
    :param subscriptions: the open subscriptions, which are notified of a lost connection
    """

    def __init__(
        self,
        api: BlockingJetStreamClient,
        connection: Callable[[], Connection],
        wanted: SequenceRange,
        convert: Convert[T],
        check_stream: Callable[[], None],
        subscriptions: set[PullSubscription],
    ) -> None:
        self._api, self._connection, self._wanted = api, connection, wanted
        self._convert = convert
        self._check_stream, self._subscriptions = check_stream, subscriptions
        self._position = wanted.after
        self._last_received = time.monotonic()
        self._failed = 0  # consecutive consumers without a record
        self._exhausted: int | None = None  # position at which a consumer had nothing pending
        #: ended because two consumers said later that nothing is pending, which is not always true
        self.gave_up = False

    @property
    def position(self) -> int:
        """Sequence of the last delivery."""
        return self._position

    def __iter__(self) -> Iterator[T]:
        while self._position < self._wanted.up_to:
            before = self._position
            try:
                consumer = self._create()
                if consumer is None:
                    return
                yield from self._consume(consumer)
            except (SubscriptionBroken, ProtocolError) as e:
                if time.monotonic() - self._last_received > self._api.timeout:
                    raise Unavailable(
                        f"nothing comes from stream {self._wanted.stream!r} for {self._api.timeout:g} s: {e}"
                    ) from e
                if self._position > before:
                    self._failed = 0
                else:
                    time.sleep(_BACKOFF.delay(self._failed))
                    self._failed += 1
                self._check_stream()

    def _create(self) -> str | None:
        """Create a consumer; returns its name, None if nothing is pending for it."""
        wanted = self._wanted
        config: dict[str, Any] = {"deliver_policy": "by_start_sequence", "opt_start_seq": self._position + 1}
        if not wanted.payloads:
            config["headers_only"] = True
        if wanted.filters:
            config["filter_subjects"] = wanted.filters
        consumer, info = create_consumer(self._api, wanted.stream, config, wanted.kept)
        if int(info["num_pending"]):
            return consumer
        self._delete(self._connection(), consumer)
        return None

    def _delete(self, connection: Connection, consumer: str) -> None:
        """Delete the consumer without waiting; if that fails, the server deletes it after a while."""

        async def delete() -> None:
            with contextlib.suppress(Exception):
                await JetStreamClient(connection, 5).request(f"CONSUMER.DELETE.{self._wanted.stream}.{consumer}")

        with contextlib.suppress(MamaError):
            connection.loop.soon(lambda: connection.loop.loop.create_task(delete()))

    def _consume(self, consumer: str) -> Iterator[T]:
        connection = self._connection()
        subscription = PullSubscription(connection, self._wanted.stream, consumer, self._position, self._wanted.up_to)
        self._subscriptions.add(subscription)
        try:
            connection.loop.run(subscription.start(), self._api.timeout, "subscribing")
            yield from self._read(subscription, consumer)
        finally:
            self._subscriptions.discard(subscription)
            with contextlib.suppress(MamaError):
                connection.loop.soon(lambda: connection.loop.loop.create_task(subscription.stop()))
            self._delete(connection, consumer)

    def _read(self, subscription: PullSubscription, consumer: str) -> Iterator[T]:
        expected = 1
        while self._position < self._wanted.up_to:
            buffer = subscription.next(_SILENCE)
            if buffer is None:
                if self._has_nothing_left(consumer, expected):
                    self.gave_up = True
                    self._wanted = replace(self._wanted, up_to=self._position)
                continue
            if UNKNOWN in buffer.blocks and self._wanted.headers:
                self._fetch_header_blocks(buffer)
            numbers = delivery_numbers(buffer)
            if numbers.first != expected:
                raise OutOfOrder(f"delivery {numbers.first} instead of {expected}")
            expected += len(buffer)
            converted = self._convert(buffer, numbers)
            self._position = int(numbers.sequences[-1])
            if converted is not None:
                yield converted
            self._last_received = time.monotonic()
            if numbers.pending == 0:  # only for a new consumer
                return

    def _has_nothing_left(self, consumer: str, expected: int) -> bool:
        """Request the state of the consumer, after a while without records: whether this one, like the one before it,
        has none for the range.

        :param expected: the consumer's sequence of the next record
        :raises SubscriptionBroken: it is gone, has no more records, or its records were lost
        """
        try:
            limit = min(_INFO_TIMEOUT, self._api.timeout)
            info = self._api.request(f"CONSUMER.INFO.{self._wanted.stream}.{consumer}", timeout=limit)
        except Unavailable as e:  # its server, or all servers, are away: the next request shows which
            raise SubscriptionBroken(str(e)) from e
        except ApiError as e:
            if e.code != NO_CONSUMER:
                raise
            raise SubscriptionBroken(f"the consumer is gone: {e}") from e
        sent, silent = int(info["delivered"]["consumer_seq"]), time.monotonic() - self._last_received
        if sent >= expected:
            if silent > _IN_TRANSIT.delay(self._failed):
                raise SubscriptionBroken(f"{sent} were sent, {expected - 1} came")
        elif not int(info["num_pending"]):
            if self._exhausted == self._position:
                return True
            self._exhausted, self._last_received = self._position, time.monotonic()  # it is asked once more
            raise SubscriptionBroken("the consumer has no more records")
        elif not int(info["num_waiting"]):
            raise SubscriptionBroken("the consumer waits for nothing")
        if silent > self._api.timeout:
            raise SubscriptionBroken("the consumer has records and sends none")
        return False

    def _fetch_header_blocks(self, buffer: DeliveryBuffer) -> None:
        """Fetch header blocks one by one: the headers of nats-py have one value per name."""
        for i, block in enumerate(buffer.blocks):
            if block == UNKNOWN:
                sequence = int(buffer.tails[i].partition(b".")[0])
                try:
                    answer = self._api.request(f"STREAM.MSG.GET.{self._wanted.stream}", {"seq": sequence})
                except ApiError as e:
                    if e.code != NO_MESSAGE:
                        raise
                    raise SubscriptionBroken(f"record {sequence} was deleted while it was read") from e
                buffer.blocks[i] = b64decode(answer["message"].get("hdrs", ""))
