"""Follows a JetStream stream from a position on, with a consumer that is replaced whenever it fails.

:class:`NatsTail` is polled and never waits: it asks for consumers, and looks later for the answers;
:mod:`.consumer_course` tells when one has failed.
"""

from __future__ import annotations

import contextlib
import logging
import time
from typing import Any, NamedTuple

import orjson

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import ConfigError, MamaError, PublishError, Unavailable
from mama_spark.contracts.record_log import Records

from .. import error_codes
from ..connection.socket_connection import SocketConnection
from ..jetstream.answers import TOO_MANY_CONSUMERS, ApiError, ConsumerInfo, StreamInfo
from ..jetstream.client import read_answer
from ..jetstream.consumers import CONSUMER_KEPT, delete_soon, new_consumer
from ..protocol.acks import is_nobody
from ..protocol.parser import Frame, ProtocolError
from ..protocol.records import delivery_numbers, records_of
from .consumer_course import ConsumerCourse, SubscriptionBroken
from .log_connection import LogConnection
from .pull_subscription import PullSubscription

log = logging.getLogger(__name__)

SILENCE = 2.0  #: seconds without a message after which the consumer is checked
#: Seconds to wait for records in transit, however many consumers were lost: a log may be idle for days.
_IN_TRANSIT = Backoff(2 * SILENCE, 2 * SILENCE)
REQUEST_TIMEOUT = 3.0  #: seconds that one request to the JetStream API may take


class Asked:
    """A request to the JetStream API, without a wait for its answer."""

    def __init__(self, connection: SocketConnection, call: str, body: dict[str, Any] | None, timeout: float) -> None:
        """Send the request. Unavailable: not connected."""
        self._connection, self._subject = connection, f"{connection.api_prefix}{call}"
        self._until = time.monotonic() + timeout
        self._answers: list[Frame | None] = []
        self._lost = connection.loss()
        self._ends = contextlib.ExitStack()
        self._ends.enter_context(connection.denials.watch(self._subject, lambda _: self._answers.append(None)))
        payload = b"" if body is None else orjson.dumps(body)
        try:
            number = connection.requests.ask(self._subject, payload, None, self._answers.append)
        except MamaError:
            self.close()
            raise
        self._ends.callback(connection.answers.forget, number)

    def answer(self) -> dict[str, Any] | None:
        """The answer, None until it comes; otherwise as :meth:`JetStream.request`, once."""
        self._connection.drive(0)
        if not self._answers and not self._lost() and time.monotonic() < self._until:
            return None
        self.close()
        if not self._answers:
            raise Unavailable(f"no answer to {self._subject}")
        reply = self._answers[0]
        nobody = reply is not None and is_nobody(reply)
        return read_answer(self._subject, error_codes.no_responders(self._subject) if nobody else reply, ())

    def close(self) -> None:
        self._ends.close()


class _Consumer(NamedTuple):
    """A consumer and its subscription; ``pending`` messages and ``first`` sequence of the stream when it was
    created."""

    subscription: PullSubscription
    pending: int
    first: int


class _Creation:
    """Creation of a consumer, after a look whether the stream is the same. Unavailable: not connected."""

    def __init__(self, logs: LogConnection, stream: StreamInfo, after: int, filters: list[str], replicas: int) -> None:
        self._connection, self._stream, self._after = logs.connection(), stream, after
        deliver = {"filter_subjects": filters, "deliver_policy": "by_start_sequence", "opt_start_seq": after + 1}
        self._name, self._body = new_consumer(stream.name, replicas, deliver, stream.idle_limit(CONSUMER_KEPT))
        self._first: int | None = None  # known when the consumer is asked for
        self._asked = Asked(self._connection, f"STREAM.INFO.{stream.name}", None, REQUEST_TIMEOUT)

    def look(self) -> _Consumer | None:
        """The consumer; None until it is created. ConfigError: it cannot be created. Unavailable, PublishError,
        ProtocolError: it may be created later."""
        answer = self._asked.answer()
        if answer is None:
            return None
        name = self._stream.name
        if self._first is None:
            now = StreamInfo.of(answer)
            if now.created != self._stream.created:
                raise ConfigError(f"the JetStream stream {name!r} was deleted and created again")
            self._first = now.first
            call = f"CONSUMER.CREATE.{name}.{self._name}"
            self._asked = Asked(self._connection, call, self._body, REQUEST_TIMEOUT)
            return None
        created = ConsumerInfo.of(answer)
        subscription = PullSubscription(
            self._connection, name, self._name, self._after, None, allowed=created.most_requested
        )
        subscription.start()
        return _Consumer(subscription, created.pending, self._first)

    def close(self) -> None:
        self._asked.close()
        if self._first is not None:
            delete_soon(self._connection, self._stream.name, self._name)


class NatsTail:
    """A :class:`~mama_spark.contracts.served_log.LogTail` of ``stream``, as it was when its log was opened."""

    def __init__(self, logs: LogConnection, stream: StreamInfo, after: int, filters: list[str], name: str) -> None:
        self.caught_up = False
        self._logs, self._stream, self._filters, self._label = logs, stream, filters, name
        self._course = ConsumerCourse(after, time.monotonic(), _IN_TRANSIT)
        self._creation: _Creation | None = None
        self._consumer: _Consumer | None = None
        self._check: Asked | None = None
        self._retry_at = 0.0
        self._last_check = 0.0

    def __repr__(self) -> str:
        state = "open" if self._consumer else "opening" if self._creation else "closed"
        return f"<NatsTail {self._label} at {self.position}, {state}>"

    @property
    def position(self) -> int:
        return self._course.position

    def poll(self) -> Records | None:
        now = time.monotonic()
        if self._consumer is None:
            self._consumer = self._open(now)
        if self._consumer is None:
            return None
        try:
            buffer = self._consumer.subscription.next(0)
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
        try:
            if self._creation is None:
                self._logs.connection().drive(0)
                if now >= self._retry_at:
                    replicas = 0 if self._course.failed else 1
                    self._creation = _Creation(self._logs, self._stream, self.position, self._filters, replicas)
                return None
            consumer = self._creation.look()
        except ApiError as e:
            if e.code != TOO_MANY_CONSUMERS:
                raise ConfigError(f"the JetStream stream {self._stream.name!r} cannot be read: {e}") from e
            if not self._course.failed:
                log.warning("%s of stream %r waits for a consumer: %s", self._label, self._stream.name, e)
            self._fail(e)  # one of them may end
            return None
        except (Unavailable, PublishError, ProtocolError) as e:
            self._fail(e)
            return None
        if consumer is None:
            return None
        self._creation = None
        self._logs.subscriptions.add(consumer.subscription)
        self._course.begin()
        self._course.heard = self._last_check = now
        self.caught_up = consumer.pending == 0
        if 0 < self.position < consumer.first - 1:
            log.warning(
                "%s: messages %d to %d of stream %r were removed before they were read",
                *(self._label, self.position + 1, consumer.first - 1, self._stream.name),
            )
        return consumer

    def _check_consumer(self, consumer: _Consumer, now: float) -> None:
        try:
            if self._check is None:
                if now - max(self._course.heard, self._last_check) > SILENCE:
                    call = f"CONSUMER.INFO.{self._stream.name}.{consumer.subscription.consumer}"
                    self._check = Asked(self._logs.connection(), call, None, REQUEST_TIMEOUT)
                return
            answer = self._check.answer()
            if answer is None:
                return
            self._check, self._last_check = None, now
            self._course.check(ConsumerInfo.of(answer), now)
        except (MamaError, ProtocolError) as e:  # deleted, lost, or its server ended
            self._fail(e)

    def _fail(self, error: Exception) -> None:
        log.info("%s of stream %r begins again behind %d: %s", self._label, self._stream.name, self.position, error)
        self._drop()
        self.caught_up = False
        self._retry_at = time.monotonic() + self._course.fail()

    def _drop(self) -> None:
        consumer, self._consumer = self._consumer, None
        for pending in (self._check, self._creation):
            if pending is not None:
                pending.close()
        self._check = self._creation = None
        if consumer is not None:
            self._end(consumer)

    def close(self) -> None:
        """Never raises."""
        self._drop()

    def _end(self, consumer: _Consumer) -> None:
        self._logs.subscriptions.discard(consumer.subscription)
        consumer.subscription.close()
