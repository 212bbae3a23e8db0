"""Follows a JetStream stream from a position on, with a consumer that is replaced whenever it fails (NATS ADR-17).

:class:`NatsTail` is polled and never waits: consumers are created and checked on the event loop of the connection. Any
failure (a lost connection or server, a gap in its sequence, silence) ends a consumer, and another one
begins after the last message returned, as in the ordered consumers of NATS clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from nats.aio.msg import Msg

from mama_spark.contracts.backoff import Backoff
from mama_spark.contracts.errors import ConfigError, MamaError, Unavailable
from mama_spark.contracts.record_log import Records

from ..connection.connection import Connection
from ..jetstream.api import ApiError, BlockingJetStreamClient, JetStreamClient
from ..jetstream.consumers import TOO_MANY, new_consumer
from ..protocol.parser import ProtocolError
from ..protocol.records import DeliveryBuffer, columns, read_reply
from ..settings import NatsSettings
from .pull_subscription import BYTES, ROWS, PullSubscription, SubscriptionBroken

log = logging.getLogger(__name__)
T = TypeVar("T")

SILENCE = 2.0  #: seconds without a message after which the consumer is checked
#: Delays between attempts to create a consumer.
RECREATE = Backoff(0.05, 1.0)
REQUEST_TIMEOUT = 3.0  #: seconds that one request to the JetStream API may take
_UNLIMITED = 1_000_000  #: messages of one pull request: more than fit into its octets


class LogAccess(Protocol):
    """What a log uses of the bridge that opened it, :class:`~.logs.NatsLogs`."""

    @property
    def settings(self) -> NatsSettings: ...

    @property
    def timeout(self) -> float: ...

    @property
    def api(self) -> BlockingJetStreamClient: ...

    @property
    def subscriptions(self) -> set[PullSubscription]: ...

    def connection(self) -> Connection: ...


class _PolledSubscription(PullSubscription):
    """An endless subscription for a reader that does not wait."""

    _requested = False  #: the event loop was asked to flush its buffer

    def poll(self) -> DeliveryBuffer | None:
        """The received messages; see :meth:`next`. Some may be returned by a later call, because they are buffered."""
        with self._ready:
            if not self._buffers and self._error is None:
                hand_over = not self._requested and bool(self._parser.buffer)
                self._requested = self._requested or hand_over
                if hand_over:
                    self.connection.loop.soon(self._flush_buffer)
                return None
        return self.next(0)

    def _flush_buffer(self) -> None:
        self._requested = False
        super()._flush_buffer()

    def _records_added(self) -> None:
        buffer = self._parser.buffer
        caught_up = buffer.tails[-1].split(b".")[3] == b"0"
        if caught_up or buffer.size > BYTES or len(buffer) >= ROWS:
            self._flush_buffer()

    async def _on_message(self, msg: Msg) -> None:
        """Receive by public calls of nats-py, which keep one value per header; engines write only one."""
        reply = read_reply(msg.reply.encode()) if msg.reply else None
        if reply is None:
            await super()._on_message(msg)
            return
        block = None
        if msg.headers is not None:
            text = "".join(f"{name}: {value}\r\n" for name, value in msg.headers.items())
            block = f"NATS/1.0\r\n{text}\r\n".encode()
        self._parser.buffer.add(msg.subject.encode(), reply.tail, msg.data, block)
        self._records_added()


class _Consumer(NamedTuple):
    """A consumer at the server, and the subscription to it.

    :ivar pending: messages behind it when it was created
    :ivar first: first sequence of the stream at that time
    """

    name: str
    subscription: _PolledSubscription
    pending: int
    first: int


class NatsTail:
    """See :class:`~mama_spark.contracts.served_log.LogTail`.

    :param stream: its name
    :param created: when it was created, which distinguishes it from another one of its name
    :param filters: the subjects; ``kept``: see :func:`~..jetstream.consumers.create_consumer`
    """

    def __init__(
        self, logs: LogAccess, stream: str, created: str, after: int, filters: list[str], kept: float, name: str
    ) -> None:
        self.position, self.caught_up = after, False
        self._logs, self._stream, self._created, self._label = logs, stream, created, name
        self._filters, self._kept = filters, kept
        self._creation: Future[_Consumer] | None = None
        self._consumer: _Consumer | None = None
        self._check: Future[dict[str, Any]] | None = None
        self._expected = 1  # consumer sequence of the next delivery
        self._first_try = True
        self._delays = RECREATE.delays()
        self._retry_at = 0.0
        self._last_delivery = 0.0
        self._last_check = 0.0

    def __repr__(self) -> str:
        state = "open" if self._consumer else "opening" if self._creation else "closed"
        return f"<NatsTail {self._label} at {self.position}, {state}>"

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
            batch = columns(buffer)
        except (SubscriptionBroken, ProtocolError) as e:
            self._fail(e)
            return None
        if batch.first != self._expected:
            self._fail(SubscriptionBroken(f"delivery {batch.first} came instead of {self._expected}"))
            return None
        self._expected += len(buffer)
        self._last_delivery, self._first_try = now, True
        self._delays.reset()
        self.position = int(batch.records.sequences[-1])
        self.caught_up = batch.pending == 0
        return batch.records

    # --- consumers -----------------------------------------------------------------------------------------------

    def _open(self, now: float) -> _Consumer | None:
        """The next consumer; None until it is created."""
        if self._creation is None:
            if now >= self._retry_at:
                replicas = 1 if self._first_try else 0
                self._creation = self._submit(partial(self._create, self.position, replicas))
            return None
        if not self._creation.done():
            return None
        creation, self._creation = self._creation, None
        try:
            consumer = creation.result()
        except ApiError as e:
            if e.code == TOO_MANY:  # one of them may end
                if self._first_try:
                    log.warning("%s of stream %r waits for a consumer: %s", self._label, self._stream, e)
                self._fail(e)
                return None
            raise ConfigError(f"the JetStream stream {self._stream!r} cannot be read: {e}") from e
        except (Unavailable, ProtocolError) as e:
            self._fail(e)
            return None
        self._expected, self._last_delivery, self._last_check = 1, now, now
        self.caught_up = consumer.pending == 0
        if 0 < self.position < consumer.first - 1:
            log.warning(
                "%s: messages %d to %d of stream %r were removed before they were read",
                *(self._label, self.position + 1, consumer.first - 1, self._stream),
            )
        return consumer

    async def _create(self, after: int, replicas: int, connection: Connection) -> _Consumer:
        stream = self._stream
        info = await _request(connection, f"STREAM.INFO.{stream}")
        if str(info["created"]) != self._created:
            raise ConfigError(f"the JetStream stream {stream!r} was deleted and created again")
        deliver = {
            "filter_subjects": self._filters, "deliver_policy": "by_start_sequence", "opt_start_seq": after + 1
        }  # fmt: skip
        name, body = new_consumer(stream, replicas, deliver, self._kept)
        created = await _request(connection, f"CONSUMER.CREATE.{stream}.{name}", body)
        subscription = _PolledSubscription(connection, stream, name, after, after + _UNLIMITED)
        self._logs.subscriptions.add(subscription)
        await subscription.start()
        return _Consumer(name, subscription, int(created["num_pending"]), int(info["state"]["first_seq"]))

    def _check_consumer(self, consumer: _Consumer, now: float) -> None:
        """After some time without messages, check whether the consumer still exists."""
        if self._check is None:
            if now - max(self._last_delivery, self._last_check) > SILENCE:
                api = f"CONSUMER.INFO.{self._stream}.{consumer.name}"
                self._check = self._submit(lambda connection: _request(connection, api))
            return
        if not self._check.done():
            return
        check, self._check = self._check, None
        self._last_check = now
        try:
            info = check.result()
        except (MamaError, ProtocolError) as e:  # deleted, or its server ended
            self._fail(e)
            return
        lost = int(info["delivered"]["consumer_seq"]) >= self._expected and now - self._last_delivery > 2 * SILENCE
        if lost or not int(info["num_waiting"]):
            self._fail(SubscriptionBroken("the consumer has no pull request, or its deliveries were lost"))

    def _fail(self, error: Exception) -> None:
        log.info("%s of stream %r begins again behind %d: %s", self._label, self._stream, self.position, error)
        self._drop()
        self.caught_up = False
        self._retry_at = time.monotonic() + (0.0 if self._first_try else self._delays.next())
        self._first_try = False

    def _drop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if self._check is not None:
            self._check.cancel()
            self._check = None
        if consumer is not None:
            self._delete(consumer)

    def close(self) -> None:
        """Never raises."""
        creation, self._creation = self._creation, None
        if creation is not None:
            creation.add_done_callback(self._delete_created)
        self._drop()

    def _delete_created(self, creation: Future[_Consumer]) -> None:
        if creation.exception() is None:
            self._delete(creation.result())

    def _delete(self, consumer: _Consumer) -> None:
        """Delete the consumer without waiting; if that fails, the server deletes it after ``inactive_threshold``."""

        async def end() -> None:
            await consumer.subscription.stop()
            with contextlib.suppress(Exception):
                await _request(consumer.subscription.connection, f"CONSUMER.DELETE.{self._stream}.{consumer.name}")

        self._logs.subscriptions.discard(consumer.subscription)
        with contextlib.suppress(MamaError):
            loop = consumer.subscription.connection.loop
            loop.soon(lambda: loop.loop.create_task(end()))

    def _submit(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> Future[T]:
        """Run a coroutine on the event loop of the connection that is open now.

        :raises BackgroundTaskFailed: the event loop has ended
        """
        connection = self._logs.connection()
        if not connection.loop.alive:
            connection.loop.soon(_nothing)  # raises the reason
        return asyncio.run_coroutine_threadsafe(work(connection), connection.loop.loop)


def _nothing() -> None: ...


async def _request(connection: Connection, api: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    return await JetStreamClient(connection, REQUEST_TIMEOUT, REQUEST_TIMEOUT).request(api, body)
