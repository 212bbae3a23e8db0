"""Follows a JetStream stream from a position on, with a consumer that is replaced whenever it fails.

:class:`NatsTail` is polled and never waits: consumers are created and checked on the event loop of the connection, and
:mod:`.consumer_course` says when one has failed.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, TypeVar

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable
from mama_spark.contracts.record_log import Records

from ..jetstream.answers import TOO_MANY_CONSUMERS, ApiError, ConsumerInfo, StreamInfo
from ..jetstream.api import JetStreamClient
from ..jetstream.consumers import KEPT, new_consumer
from ..protocol.parser import ProtocolError
from ..protocol.records import delivery_numbers, records_of
from .consumer_course import ConsumerCourse, SubscriptionBroken
from .log_connection import LogConnection
from .pull_subscription import PullSubscription

log = logging.getLogger(__name__)
T = TypeVar("T")

SILENCE = 2.0  #: seconds without a message after which the consumer is checked
#: Seconds to wait for records under way, however many consumers were lost: a log may be idle for days.
_IN_TRANSIT = Backoff(2 * SILENCE, 2 * SILENCE)
REQUEST_TIMEOUT = 3.0  #: seconds that one request to the JetStream API may take


class _Consumer(NamedTuple):
    """A consumer at the server, and the subscription to it.

    :ivar pending: messages behind it when it was created
    :ivar first: first sequence of the stream at that time
    """

    subscription: PullSubscription
    pending: int
    first: int


class NatsTail:
    """See :class:`~mama_spark.contracts.served_log.LogTail`.

    :param stream: as it was when its log was opened
    :param filters: the subjects
    """

    def __init__(self, logs: LogConnection, stream: StreamInfo, after: int, filters: list[str], name: str) -> None:
        self.caught_up = False
        self._logs, self._stream, self._filters, self._label = logs, stream, filters, name
        self._course = ConsumerCourse(after, time.monotonic(), _IN_TRANSIT)
        self._creation: Future[_Consumer] | None = None
        self._consumer: _Consumer | None = None
        self._check: Future[ConsumerInfo] | None = None
        self._retry_at = 0.0
        self._last_check = 0.0

    def __repr__(self) -> str:
        state = "open" if self._consumer else "opening" if self._creation else "closed"
        return f"<NatsTail {self._label} at {self.position}, {state}>"

    @property
    def position(self) -> int:
        """Sequence of the last record returned."""
        return self._course.position

    def poll(self) -> Records | None:
        """See :class:`~mama_spark.contracts.served_log.LogTail`."""
        now = time.monotonic()
        if self._consumer is None:
            self._consumer = self._open(now)
        if self._consumer is None:
            return None
        try:
            buffer = self._consumer.subscription.poll()
            if buffer is None:
                self._check_consumer(self._consumer, now)
                return None
            numbers = delivery_numbers(buffer)
            self._course.take(numbers, now)
        except (SubscriptionBroken, ProtocolError) as e:
            self._fail(e)
            return None
        self.caught_up = numbers.pending == 0
        return records_of(buffer, numbers)

    # --- consumers -----------------------------------------------------------------------------------------------

    def _open(self, now: float) -> _Consumer | None:
        """The next consumer; None until it is created."""
        if self._creation is None:
            if now >= self._retry_at:
                replicas = 0 if self._course.failed else 1
                self._creation = self._submit(partial(self._create, self.position, replicas))
            return None
        if not self._creation.done():
            return None
        creation, self._creation = self._creation, None
        try:
            consumer = creation.result()
        except ApiError as e:
            if e.code != TOO_MANY_CONSUMERS:
                raise ConfigError(f"the JetStream stream {self._stream.name!r} cannot be read: {e}") from e
            if not self._course.failed:
                log.warning("%s of stream %r waits for a consumer: %s", self._label, self._stream.name, e)
            self._fail(e)  # one of them may end
            return None
        except (Unavailable, ProtocolError) as e:
            self._fail(e)
            return None
        self._course.begin()
        self._course.heard = self._last_check = now
        self.caught_up = consumer.pending == 0
        if 0 < self.position < consumer.first - 1:
            log.warning(
                "%s: messages %d to %d of stream %r were removed before they were read",
                *(self._label, self.position + 1, consumer.first - 1, self._stream.name),
            )
        return consumer

    async def _create(self, after: int, replicas: int, client: JetStreamClient) -> _Consumer:
        name = self._stream.name
        now = StreamInfo.of(await client.request(f"STREAM.INFO.{name}"))
        if now.created != self._stream.created:
            raise ConfigError(f"the JetStream stream {name!r} was deleted and created again")
        deliver = {
            "filter_subjects": self._filters, "deliver_policy": "by_start_sequence", "opt_start_seq": after + 1
        }  # fmt: skip
        consumer, body = new_consumer(name, replicas, deliver, self._stream.idle_limit(KEPT))
        created = ConsumerInfo.of(await client.request(f"CONSUMER.CREATE.{name}.{consumer}", body))
        subscription = PullSubscription(client.connection, name, consumer, after, None)
        self._logs.subscriptions.add(subscription)
        await subscription.start()
        return _Consumer(subscription, created.pending, now.first)

    def _check_consumer(self, consumer: _Consumer, now: float) -> None:
        """After some time without messages, check whether the consumer still exists."""
        if self._check is None:
            if now - max(self._course.heard, self._last_check) > SILENCE:
                self._check = self._submit(partial(_info, f"{self._stream.name}.{consumer.subscription.consumer}"))
            return
        if not self._check.done():
            return
        check, self._check = self._check, None
        self._last_check = now
        try:
            self._course.check(check.result(), now)
        except (MamaError, ProtocolError) as e:  # deleted, lost, or its server ended
            self._fail(e)

    def _fail(self, error: Exception) -> None:
        log.info("%s of stream %r begins again behind %d: %s", self._label, self._stream.name, self.position, error)
        self._drop()
        self.caught_up = False
        self._retry_at = time.monotonic() + self._course.fail()

    def _drop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if self._check is not None:
            self._check.cancel()
            self._check = None
        if consumer is not None:
            self._end(consumer)

    def close(self) -> None:
        """Never raises."""
        creation, self._creation = self._creation, None
        if creation is not None:
            creation.add_done_callback(self._delete_created)
        self._drop()

    def _delete_created(self, creation: Future[_Consumer]) -> None:
        if creation.exception() is None:
            self._end(creation.result())

    def _end(self, consumer: _Consumer) -> None:
        self._logs.subscriptions.discard(consumer.subscription)
        consumer.subscription.close()

    def _submit(self, work: Callable[[JetStreamClient], Coroutine[Any, Any, T]]) -> Future[T]:
        """Begin work on the event loop of the connection that is open now.

        :raises BackgroundTaskFailed: the event loop has ended
        """
        connection = self._logs.connection()
        if not connection.loop.alive:
            connection.loop.soon(_nothing)  # raises the reason
        client = JetStreamClient(connection, REQUEST_TIMEOUT, REQUEST_TIMEOUT)
        return asyncio.run_coroutine_threadsafe(work(client), connection.loop.loop)


def _nothing() -> None: ...


async def _info(consumer: str, client: JetStreamClient) -> ConsumerInfo:
    return ConsumerInfo.of(await client.request(f"CONSUMER.INFO.{consumer}"))
